"""EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840) and P-EAGLE's parallel ones, as a torch module.

Row t pairs the target's features at position t with the token at t + 1, and predicts the token at t + 2. The
parameters' names are those of the `speculators` layout, so that a state dict is a checkpoint:

    g = fc([low; mid; high])        after input_norm (over all) or fc_norm (one for each), where there is one
    e = input_layernorm(E(x)), n = hidden_norm(g), r = n if norm_before_residual else g
    y = r + attention([e; n]); y = y + mlp(post_attention_layernorm(y)); logits = lm_head(norm(y))

The next step's g is y itself (norm(y) with norm_output): no fc. In P-EAGLE the later rows of a draft are
fed at once, with the mask token and fc(mask_hidden) in the features' place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from specview.heads.blocks import LayerCache, Rotary, attend, new_caches, rms_norm, rotate


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """Sizes and switches of a head.

    aux_layers are the target's hidden states that the head reads: after so many layers (0 is the embedding).
    frequencies are the rotary ones [head width / 2]. mask_token_id is P-EAGLE's.
    """

    hidden: int
    target_hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    width: int
    vocab: int
    draft_vocab: int
    eps: float
    frequencies: tuple[float, ...]
    aux_layers: tuple[int, ...]
    layers: int = 1
    norm_before_residual: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    own_embedding: bool = False
    mask_token_id: int | None = None


class Norm(nn.Module):
    """An RMS norm's gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normed rows of x [..., size]."""
        return rms_norm(x, self.weight, self._eps)


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


class Eagle3Layer(nn.Module):
    """One layer; the first reads the embedding beside the features, the others are ordinary."""

    def __init__(self, shape: Eagle3Shape, first: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        if first:
            self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(
            2 * shape.hidden if first else shape.hidden,
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.width,
            bias=shape.attention_bias,
            output_bias=shape.attention_bias and not shape.qk_norm,
            qk_eps=shape.eps if shape.qk_norm else None,
        )
        self.mlp = Mlp(shape.hidden, shape.intermediate)
        self._norm_before_residual = shape.norm_before_residual
        self._first = first

    def enter(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The attention's input and the residual, from [..., hidden] each; embedded is for the first layer."""
        if not self._first:
            return self.input_layernorm(g), g
        normed = self.hidden_norm(g)
        x = torch.cat([self.input_layernorm(embedded), normed], -1)
        return x, normed if self._norm_before_residual else g

    def leave(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output from the residual and what attention mixed [..., heads * width]."""
        y = residual + self.self_attn.o_proj(mixed)
        out: Tensor = y + self.mlp(self.post_attention_layernorm(y))
        return out


class Eagle3Head(nn.Module):
    """An EAGLE-3 or P-EAGLE head."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.shape = shape
        aux = len(shape.aux_layers)
        self.fc = nn.Linear(aux * shape.target_hidden, shape.hidden, bias=False)
        if shape.norm_before_fc:
            self.input_norm = Norm(aux * shape.target_hidden, shape.eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(shape.target_hidden, shape.eps) for _ in range(aux))
        self.layers = nn.ModuleList(Eagle3Layer(shape, index == 0) for index in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        if shape.mask_token_id is not None:
            self.mask_hidden = nn.Parameter(torch.randn(1, 1, aux * shape.target_hidden))
        if shape.draft_vocab != shape.vocab:
            self.register_buffer("d2t", torch.zeros(shape.draft_vocab, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(shape.vocab, dtype=torch.bool))
        self.rotary = Rotary(shape.frequencies)

    @property
    def target_ids(self) -> Tensor | None:
        """The target's id of every row of the logits [draft vocab]; None where they are the target's own.

        d2t holds offsets: the target's id is i + d2t[i].
        """
        if self.shape.draft_vocab == self.shape.vocab:
            return None
        return torch.arange(self.shape.draft_vocab, device=self.d2t.device) + self.d2t

    def set_target_ids(self, ids: Tensor) -> None:
        """Say which target ids the rows of lm_head stand for: rising ids [draft vocab]."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    def fuse(self, features: Tensor) -> Tensor:
        """g [..., hidden] from the aux layers' hidden states side by side [..., aux * target hidden]."""
        if self.shape.norm_before_fc:
            features = self.input_norm(features)
        if self.shape.fc_norm:
            parts = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        g: Tensor = self.fc(features)
        return g

    def logits(self, y: Tensor) -> Tensor:
        """Logits [..., draft vocab] of outputs [..., hidden]."""
        rows: Tensor = self.lm_head(self.norm(y))
        return rows

    def next_hidden(self, y: Tensor) -> Tensor:
        """What takes the features' place in the step after an output."""
        return self.norm(y) if self.shape.norm_output else y

    def new_cache(self) -> list[LayerCache]:
        """An empty cache, one for each layer."""
        return new_caches(self.shape.layers, self.shape.kv_heads, self.fc.weight, self.shape.width)

    def run(
        self,
        embedded: Tensor,
        g: Tensor,
        positions: Tensor,
        cache: Sequence[LayerCache],
        sees: Tensor | None = None,
    ) -> Tensor:
        """Feed rows after the cache's end: embedded tokens and g [n, hidden]; give their outputs [n, hidden].

        positions [n] are the rotary ones. sees [n, length] is True where a row may look at the entries, its
        own n last; None is causal.
        """
        cos, sin = self.rotary.tables(positions)
        y = g
        for layer, own in zip(self.layers, cache, strict=True):
            x, residual = layer.enter(embedded, y)
            q, k, v = layer.self_attn.project(x, cos, sin)
            keys, values = own.append(k.transpose(0, 1), v.transpose(0, 1))
            y = layer.leave(residual, attend(q, keys, values, sees))
        return y
