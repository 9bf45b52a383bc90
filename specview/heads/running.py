"""One sequence through a head of the EAGLE family: its cache, and the rows of a draft.

Row t pairs the target's features at position t with the token at t + 1. Rows of the context stay in the
cache; those of a draft come after them, feed on the head's own outputs in the features' place, and are
dropped when the next rows of the context come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specview.decoding.ledger import Array
from specview.heads.fast import fast_head
from specview.heads.loaded import LoadedHead


class HeadRun:
    """A sequence's state in an EagleHead or an Eagle3Head.

    layers name the target's features that the head reads, in its order. known is the number of positions
    whose features have come, length that of the context's rows in the cache. weights as in `fast_head`.
    """

    def __init__(self, head: LoadedHead, layers: Sequence[Any], weights: str = "auto") -> None:
        self.known = self.length = 0
        self._head = head
        self._module = fast_head(head.module, weights)
        self._layers = tuple(layers)
        self._cache = self._module.new_cache()
        self._target_ids: Tensor | None = head.module.target_ids
        self._own_logits = hasattr(self._module, "logits")
        self._waiting: list[Tensor] = []  # features of the positions from `length` on
        self._last: Tensor | None = None  # output of the context's last row [1, hidden]
        self._behind: Tensor | None = None  # those of the rows that were fed with it, before it [n, hidden]
        self._outputs: Tensor | None = None  # those of the draft's rows, and before them the context's last
        self._paths: list[list[int]] = []  # per row of the draft the rows that it sees, itself the last
        self._masks: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode()
    def add(self, features: Mapping[Any, Array], rows: Sequence[int] | None = None) -> None:
        """Take the features [n, target hidden] of the next positions, by layer: of these rows, None for all."""
        parts = [self._head.tensor(features[layer]) for layer in self._layers]
        if rows is not None:
            parts = [part[list(rows)] for part in parts]
        self._waiting.append(torch.cat(parts, -1))  # a copy: an engine may reuse its buffers
        self.known += len(parts[0])

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int], end: int) -> None:
        """Feed the rows of the positions up to `end` (those known) that are not in the cache; drop a draft's.

        tokens is the context; the token after each position goes with its row.
        """
        self._drop()
        self._behind = None
        count = end - self.length
        if count > 0:
            embedded, g = self._context_rows(tokens, count)
            y = self._run(embedded, g, self._positions(count))
            self._behind, self._last = y[:-1], y[-1:]
            self.length = end

    @property
    def behind(self) -> int:
        """Rows of the context that were fed together with its last one, before it."""
        return 0 if self._behind is None else len(self._behind)

    @torch.inference_mode()
    def rows_behind(self) -> Tensor:
        """Logits [behind, vocab] of what those rows would have drafted first."""
        assert self._behind is not None
        return self._head.spread(self._logits(self._behind))

    @torch.inference_mode()
    def first(self) -> Tensor:
        """Logits [draft vocab] of what follows the context."""
        assert self._last is not None
        return self._logits(self._last)[0]

    @torch.inference_mode()
    def step(self, token: int) -> Tensor:
        """Feed a token that follows the last row; return the logits [draft vocab] of what follows it."""
        return self.level([token], [len(self._paths) - 1])[0]

    @torch.inference_mode()
    def level(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Feed drafted tokens at once, each after an earlier row of the draft (-1: the context's last).

        Returns the logits [n, draft vocab] of what follows each. Rows are numbered as they are fed.
        """
        assert self._last is not None
        if self._outputs is None:
            self._outputs = self._last
        first = len(self._paths)
        self._paths += [
            [*(self._paths[parent] if parent >= 0 else ()), first + index]
            for index, parent in enumerate(parents)
        ]
        g = self._outputs[parents[0] + 1 :][:1] if len(parents) == 1 else self._outputs[[p + 1 for p in parents]]
        new = self._paths[first:]
        positions = [self.length + len(path) - 1 for path in new]
        y = self._run(self._head.embed(tokens), self._module.next_hidden(g), positions, self._sees(new))
        self._outputs = torch.cat([self._outputs, y])
        return self._logits(y)

    @torch.inference_mode()
    def parallel(self, tokens: Sequence[int], end: int, count: int) -> Tensor:
        """Logits [count, draft vocab] of what comes next, in one pass: P-EAGLE's mask rows after the context's.

        Feeds the context's rows up to `end` on the way, as `feed` does; the mask rows leave nothing.
        """
        self._drop()
        new = end - self.length
        masked = count - 1
        if new <= 0:
            if not masked:
                return self.first()[None]
            parts = []
        else:
            parts = [self._context_rows(tokens, new)]
        new = max(new, 0)
        if masked:
            parts.append(self._mask_rows(masked))
        embedded, g = (torch.cat(side) for side in zip(*parts, strict=True))
        y = self._run(embedded, g, self._positions(new + masked))
        self.length += new
        self._drop()
        self._behind = None
        if new:
            self._behind, self._last = y[: new - 1], y[new - 1 : new]
        assert self._last is not None
        return self._logits(torch.cat([self._last, y[new:]]))

    @torch.inference_mode()
    def _context_rows(self, tokens: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        """Embedded tokens and g [count, hidden] of the next positions; their features wait no more."""
        waiting = self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting)
        self._waiting = [waiting[count:]] if len(waiting) > count else []
        followers = tokens[self.length + 1 : self.length + count + 1]
        return self._head.embed(followers), self._module.fuse(waiting[:count])

    def _mask_rows(self, count: int) -> tuple[Tensor, Tensor]:
        if self._masks is None:
            embedded = self._head.embed([self._module.shape.mask_token_id])
            self._masks = embedded, self._module.fuse(self._module.mask_hidden[0])
        embedded, g = self._masks
        return embedded.expand(count, -1), g.expand(count, -1)

    def _positions(self, count: int) -> Sequence[int]:
        return range(self.length, self.length + count)

    def _run(self, embedded: Tensor, g: Tensor, positions: Sequence[int], sees: Tensor | None = None) -> Tensor:
        y: Tensor = self._module.run(embedded, g, positions, self._cache, sees)
        return y

    def _sees(self, paths: Sequence[Sequence[int]]) -> Tensor | None:
        """[n, length] True where the draft's newest rows may look; None where that is everywhere."""
        rows = len(self._paths)
        if len(paths) == 1 and len(paths[0]) == rows:
            return None
        sees = torch.zeros(len(paths), self.length + rows, dtype=torch.bool)
        sees[:, : self.length] = True
        at = [index for index, path in enumerate(paths) for _ in path]
        sees[at, [self.length + row for path in paths for row in path]] = True
        return sees.to(self._head.device)

    def _logits(self, y: Tensor) -> Tensor:
        rows: Tensor = self._module.logits(y) if self._own_logits else self._head.project(y)
        # A vocabulary padded beyond the target's logits has columns that no token has.
        return rows if self._target_ids is not None else rows[..., : self._head.vocab_size]

    def _drop(self) -> None:
        """Forget the draft's rows."""
        if self._cache[0].length > self.length:
            for layer in self._cache:
                layer.truncate(self.length)
        self._paths = []
        self._outputs = None
