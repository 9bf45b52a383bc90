"""A transformers KV cache whose rollback moves a pointer.

Buffers are allocated ahead and grow by doubling; a pass writes its keys and values in place, and
`truncate` only sets the length. Sliding-window layers keep everything too (the mask does the sliding), so
that a rollback never needs what a window has dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from specview.engines.tree import move_together

_FIRST_BLOCK = 512


def _whole_blocks(tokens: int, block: int) -> int:
    # With a block, attention always sees whole blocks (the causal mask hides what lies beyond the end):
    # its sums then do not depend on where a pass happens to end.
    return -(-tokens // block) * block


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer, [1, heads, capacity, width] each, of which `length` are valid.

    block > 1 shows attention whole blocks of that many tokens. first is the position of the first entry.
    """

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, max_length: int, block: int = 1, is_sliding: bool = False, first: int = 0) -> None:
        super().__init__()
        self.first = first
        self.is_sliding = is_sliding
        self.length = 0
        self._key_buffer: torch.Tensor | None = None
        self._value_buffer: torch.Tensor | None = None
        self._max_length = max_length
        self._block = block

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: `update` allocates."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values [1, heads, n, width] and return all that attention may see."""
        start, end = self.length, self.length + key_states.shape[-2]
        visible = _whole_blocks(end, self._block)
        keys = self._key_buffer = _grown(self._key_buffer, key_states, start, visible, self._max_length)
        values = self._value_buffer = _grown(self._value_buffer, value_states, start, visible, self._max_length)
        self.is_initialized = True
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.length = end
        self.keys, self.values = keys[:, :, :visible], values[:, :, :visible]
        return self.keys, self.values

    def get_seq_length(self, *args: Any) -> int:
        """Return the number of tokens held."""
        return self.length

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return how many keys attention will see once `query_length` tokens are added, and the offset 0."""
        # Early 5.x releases hand over the cache positions instead of their number.
        added = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        return _whole_blocks(self.length + added, self._block), 0

    def get_max_length(self) -> int:
        """Return -1: no fixed maximum (5.24's name)."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Return -1: no fixed maximum (the name in earlier 5.x)."""
        return -1

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: a pointer move."""
        self.length = min(self.length, length)

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` tokens and, of those after them, a path's, by index."""
        for buffer in (self._key_buffer, self._value_buffer):
            if buffer is not None:
                move_together(buffer, -2, start, path)
        self.length = start + len(path)

    def repeat(self, sequences: int) -> None:
        """Hold what the one sequence holds for so many."""
        if self._key_buffer is not None and self._value_buffer is not None:
            self._key_buffer = self._key_buffer.repeat(sequences, 1, 1, 1)
            self._value_buffer = self._value_buffer.repeat(sequences, 1, 1, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return sum(buffer.nbytes for buffer in (self._key_buffer, self._value_buffer) if buffer is not None)


def _grown(
    buffer: torch.Tensor | None, states: torch.Tensor, filled: int, needed: int, max_length: int
) -> torch.Tensor:
    """Return a buffer with room for `needed` tokens, with the first `filled` kept."""
    if buffer is not None and buffer.shape[-2] >= needed:
        return buffer
    grown = max(needed, min(max_length, 2 * buffer.shape[-2] if buffer is not None else _FIRST_BLOCK))
    # Zeros: what a mask hides must still be finite, for 0 times NaN is NaN.
    new = states.new_zeros((*states.shape[:-2], grown, states.shape[-1]))
    if buffer is not None:
        new[:, :, :filled] = buffer[:, :, :filled]
    return new


class PreallocatedCache(Cache):
    """One sequence's keys and values over all layers of a model.

    block > 1 (check mode) shows attention whole blocks of that many tokens. Raises ValueError where
    the model has layers whose state is not keys and values.
    """

    def __init__(self, config: Any, max_length: int, block: int = 1) -> None:
        template = DynamicCache(config=config)
        layers: list[Any] = []
        for layer in template.layers:
            kind = type(layer).__name__
            if kind in ("DynamicLayer", "DynamicSlidingWindowLayer"):
                layers.append(PreallocatedLayer(max_length, block, kind == "DynamicSlidingWindowLayer"))
            elif kind == "DummyLayer":
                layers.append(layer)
            else:
                raise ValueError(kind)
        super().__init__(layers=layers)
        self._own = [layer for layer in layers if isinstance(layer, PreallocatedLayer)]
        self._block = block

    def visible(self, end: int) -> int:
        """Return how many keys attention is shown once `end` tokens are held."""
        return _whole_blocks(end, self._block)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        for layer in self._own:
            layer.truncate(length)

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` tokens and, of those after them, a path's, by index."""
        for layer in self._own:
            layer.keep(start, path)

    def repeated(self, sequences: int) -> PreallocatedCache:
        """Return this cache, made one of so many sequences, each with what the only one held."""
        for layer in self._own:
            layer.repeat(sequences)
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(layer.nbytes for layer in self._own)
