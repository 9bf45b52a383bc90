"""The Llama layer's parts as torch modules, which trained heads and the small draft are made of.

Parameters have the names of transformers' Llama, so that a state dict is a checkpoint. They are what is trained and
stored; a head drafts through fast.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def rotary_tables(frequencies: Sequence[float], length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, head width] of rotary positions, halves apart as transformers' Llama has them.

    frequencies are [head width / 2], radians per position (Su et al. 2021, arXiv 2104.09864).
    """
    steps = torch.arange(length, dtype=torch.float32)
    angles = torch.outer(steps, torch.tensor(frequencies, dtype=torch.float32))
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [..., head width] by tables that broadcast against it."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Norm(nn.Module):
    """A root-mean-square norm (Zhang and Sennrich 2019) with its gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normed rows of x [..., size]."""
        # Under autocast a product's rows are narrower than the gain.
        return functional.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self._eps)


class Attention(nn.Module):
    """The four products of attention, and the norms that Qwen3 has on q and k (qk_eps is theirs, None: none).

    bias is that of q, k and v; output_bias that of the output product.
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        width: int,
        *,
        bias: bool = False,
        output_bias: bool = False,
        qk_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.q_proj = nn.Linear(inputs, heads * width, bias=bias)
        self.k_proj = nn.Linear(inputs, kv_heads * width, bias=bias)
        self.v_proj = nn.Linear(inputs, kv_heads * width, bias=bias)
        self.o_proj = nn.Linear(heads * width, hidden, bias=output_bias)
        self._qk_norm = qk_eps is not None
        if qk_eps is not None:
            self.q_norm = Norm(width, qk_eps)
            self.k_norm = Norm(width, qk_eps)
        self._q, self._kv = (heads, width), (kv_heads, width)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turned q [..., heads, width], turned k and v [..., kv heads, width], from x [..., inputs].

        cos and sin are [..., width] of x's rows.
        """
        q = self.q_proj(x).unflatten(-1, self._q)
        k = self.k_proj(x).unflatten(-1, self._kv)
        v = self.v_proj(x).unflatten(-1, self._kv)
        if self._qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = cos.unsqueeze(-2).to(q.dtype), sin.unsqueeze(-2).to(q.dtype)
        return rotate(q, cos, sin), rotate(k, cos, sin), v


class Mlp(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of x [..., hidden] to rows of the same shape."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
