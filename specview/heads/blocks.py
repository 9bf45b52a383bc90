"""Pieces that the heads' forward passes share: RMS norm, rotary positions, attention over a small cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_FIRST_BLOCK = 256


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019)."""
    if weight is not None:
        x = x.to(weight.dtype)  # under autocast a product's rows are narrower than the gain
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


class Rotary:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864), halves apart as transformers' Llama has them.

    frequencies are [head width / 2], radians per position.
    """

    def __init__(self, frequencies: Sequence[float]) -> None:
        self.frequencies = torch.tensor(frequencies, dtype=torch.float32)
        self._cos = self._sin = torch.empty(0, 0)

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [..., head width] at positions [...]."""
        longest = int(positions.max()) + 1 if positions.numel() else 0
        if len(self._cos) < longest:
            steps = torch.arange(max(longest, 2 * len(self._cos), _FIRST_BLOCK), dtype=torch.float32)
            angles = torch.outer(steps, self.frequencies)
            angles = torch.cat([angles, angles], -1)
            self._cos, self._sin = angles.cos(), angles.sin()
        where = positions.cpu()
        return self._cos[where].to(positions.device), self._sin[where].to(positions.device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [..., head width] by tables that broadcast against it."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class LayerCache:
    """Keys and values of one layer of a head, for one sequence: [kv heads, length, width] each."""

    def __init__(self, kv_heads: int, width: int, device: torch.device, dtype: torch.dtype) -> None:
        self.length = 0
        self._keys = torch.zeros(kv_heads, _FIRST_BLOCK, width, device=device, dtype=dtype)
        self._values = torch.zeros_like(self._keys)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [kv heads, n, width]; return all there are, [kv heads, length, width]."""
        end = self.length + keys.shape[1]
        capacity = self._keys.shape[1]
        if end > capacity:
            room = max(end, 2 * capacity) - capacity
            self._keys = functional.pad(self._keys, (0, 0, 0, room))
            self._values = functional.pad(self._values, (0, 0, 0, room))
        self._keys[:, self.length : end] = keys
        self._values[:, self.length : end] = values
        self.length = end
        return self._keys[:, :end], self._values[:, :end]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` entries: a pointer move."""
        self.length = min(self.length, length)


def new_caches(layers: int, kv_heads: int, like: Tensor, width: int) -> list[LayerCache]:
    """Empty caches, one for each layer, on the device and in the dtype of a weight."""
    return [LayerCache(kv_heads, width, like.device, like.dtype) for _ in range(layers)]


def attend(q: Tensor, keys: Tensor, values: Tensor, sees: Tensor | None) -> Tensor:
    """Attention of q [n, heads, width] over keys and values [kv heads, length, width]; gives [n, heads * width].

    sees [n, length] is True where a row may look; None is causal, the rows being the last n entries.
    """
    rows, heads, width = q.shape
    kv_heads, length, _ = keys.shape
    if sees is None and rows > 1:
        sees = torch.ones(rows, length, dtype=torch.bool, device=q.device).tril(length - rows)
    # The heads of a group are the batch, over the same keys and values.
    grouped = q.view(rows, kv_heads, heads // kv_heads, width).permute(2, 1, 0, 3)
    mixed = functional.scaled_dot_product_attention(
        grouped,
        keys.expand(heads // kv_heads, -1, -1, -1),
        values.expand(heads // kv_heads, -1, -1, -1),
        attn_mask=sees,
    )
    return mixed.permute(2, 1, 0, 3).reshape(rows, heads * width)
