"""One sequence over a torch model: its passes, early exits, and check mode's padded passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from specview.engines.session import Fed, Rows, SequenceSession, require_features
from specview.engines.tree import Tree
from specview.errors import SpecviewError

PREFILL_CHUNK = 256
CHECK_ROWS = 8
"""Rows of every check-mode pass: with one number of rows, one kernel computes every logit."""
CHECK_BLOCK = 512
"""Check mode shows attention whole blocks of so many keys (the block of torch's CPU attention)."""


class Runner(Protocol):
    """A loaded model's forward pass over a cache; one that can be left early has run_lower and run_upper (LlamaRunner)."""

    device: torch.device
    vocab_size: int
    tree_problem: str | None  # why a pass cannot verify a tree, or None
    exit_layers: int  # layers, of which the pass can be left early; 0 where it cannot
    exit_problem: str | None  # why it cannot, or None
    hidden_size: int
    layers: int
    features_problem: str | None  # why it gives no features, or None

    def new_cache(self, max_length: int) -> Any:
        """Make an empty cache for up to max_length tokens, with truncate(length) and keep(start, path)."""
        ...

    def run(
        self,
        tokens: Sequence[int],
        start: int,
        cache: Any,
        *,
        logits: bool,
        features: Sequence[Any] = (),
        tree: Tree | None = None,
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run tokens after the `start` that the cache holds; a tree says who sees whom of them.

        Returns float logits [n, vocab], or None without `logits`, and the features asked for.
        """
        ...

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """The embedding's rows of some ids, [n, hidden], as the first layer gets them."""
        ...

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float logits [n, vocab] of the head alone, of normed hidden states [n, hidden]."""
        ...


@dataclass(frozen=True, slots=True)
class _Pending:
    """Tokens after the cache's end that have gone through the first `layer` layers; hidden is [n, hidden]."""

    tokens: tuple[int, ...]
    layer: int
    hidden: torch.Tensor


class TransformersSession(SequenceSession):
    """One sequence: its own KV cache over the engine's weights (interfaces.Session, EarlyExitSession).

    Check mode computes every logit in passes of CHECK_ROWS padded rows, so that it has the same bits
    however tokens are grouped. It is for exactness, never timed.
    """

    _join = staticmethod(torch.cat)

    def __init__(self, runner: Runner, max_length: int, *, check_mode: bool = False) -> None:
        super().__init__(max_length, check_mode)
        self._runner: Any = runner
        self._cache: Any = runner.new_cache(max_length)
        self._pending: _Pending | None = None

    def _need_open(self) -> None:
        if self._runner is None:
            raise ValueError("the session is closed")

    def _prepare(self, features: Sequence[Any]) -> int:
        if features:
            require_features(features, self._runner.layers, self._runner.features_problem)
        return PREFILL_CHUNK

    def _feed(self, tokens: Sequence[int], features: Sequence[Any]) -> Mapping[Any, Any]:
        self._drop_pending()
        _, found = self._runner.run(tokens, self.length, self._cache, logits=False, features=features)
        self.length += len(tokens)
        return found

    def _require_tree(self, tree: Tree) -> None:
        if not self._check_mode and self._runner.tree_problem is not None:
            raise tree_error(self._runner.tree_problem)

    def _chain(self, tokens: Sequence[int], features: Sequence[Any]) -> Rows:
        pending = self._pending
        if pending is not None and _takes_up(pending, tokens, features):
            given = self._take_up(pending, tokens, features)
        else:
            self._drop_pending()
            given = self._run_chain(tokens, features)
        self._pending = None
        self.length += len(tokens)
        return given

    def _run_chain(self, tokens: Sequence[int], features: Sequence[Any]) -> Rows:
        runner, cache = self._runner, self._cache

        def run(chunk: Any, at: int) -> Rows:
            return runner.run(chunk, at, cache, logits=True, features=features)

        return self._padded(list(tokens), self.length, run) if self._check_mode else run(tokens, self.length)

    def _whole_tree(self, tokens: Sequence[int], tree: Tree, features: Sequence[Any]) -> Rows:
        self._drop_pending()
        rows: Rows = self._runner.run(tokens, self.length, self._cache, logits=True, features=features, tree=tree)
        return rows

    def _cut(self, length: int) -> None:
        self._pending = None
        self._cache.truncate(length)
        self.length = length

    def _keep(self, fed: Fed, path: tuple[int, ...]) -> None:
        self._drop_pending()
        self._cache.keep(fed.start, path)
        self.length = fed.start + len(path)

    def _feed_again(self, tokens: Sequence[int]) -> None:
        self._chain(tokens, ())

    def forward_exit(self, tokens: Sequence[int], layer: int) -> torch.Tensor:
        """Feed tokens after the pending ones through the first `layer` layers (interfaces.EarlyExitSession).

        Returns logits [n, vocab] of the final norm and head over that layer's output. Self-speculation of
        LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710): the keys and values of these layers and the
        hidden states serve the verifying `forward` too. Raises SpecviewError where the model cannot be
        left after that layer.
        """
        if not tokens:
            raise ValueError("forward_exit needs at least one token")
        self._need_room(len(tokens) + (len(self._pending.tokens) if self._pending is not None else 0))
        runner = self._runner
        if not runner.exit_layers:
            raise SpecviewError(
                f"This model cannot be left early: {runner.exit_problem}.", "Choose another drafting method."
            )
        if not 1 <= layer < runner.exit_layers:
            raise SpecviewError(
                f"Exit layer {layer} is out of range.",
                f"This model has {runner.exit_layers} layers: use 1 to {runner.exit_layers - 1}.",
            )
        given, before, done = len(tokens), self._pending, 0
        if before is not None and before.layer == layer:
            done = len(before.tokens)
        elif before is not None:  # what is pending starts again from the embedding
            tokens, before = [*before.tokens, *tokens], None
            self._drop_pending()
        logits, hidden = self._run_lower(tokens, self.length + done, layer, logits=True)
        assert logits is not None
        if before is not None:
            tokens = [*before.tokens, *tokens]
            hidden = torch.cat([before.hidden, hidden])
        self._pending = _Pending(tuple(tokens), layer, hidden)
        return logits[-given:]

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._pending = None
            self._cache.truncate(self.length)

    def _padded(self, rows: Any, start: int, run: Callable[[Any, int], Rows]) -> Rows:
        """Call run(CHECK_ROWS of the rows, the position of their first) until all have run.

        rows are token ids or hidden states; the last of them fill up a pass, and are forgotten.
        """
        logits: list[torch.Tensor] = []
        layers: dict[Any, list[torch.Tensor]] = {}
        for begin in range(0, len(rows), CHECK_ROWS):
            chunk = rows[begin : begin + CHECK_ROWS]
            count = len(chunk)
            if isinstance(chunk, torch.Tensor):
                padded: Any = torch.cat([chunk, chunk[-1:].expand(CHECK_ROWS - count, -1)])
            else:
                padded = chunk + [chunk[-1]] * (CHECK_ROWS - count)
            given, extra = run(padded, start + begin)
            self._cache.truncate(start + begin + count)
            logits.append(given[:count])
            for layer, values in extra.items():
                layers.setdefault(layer, []).append(values[:count])
        return torch.cat(logits), {layer: torch.cat(parts) for layer, parts in layers.items()}

    def _run_lower(
        self, tokens: Sequence[int], start: int, layer: int, *, logits: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Run tokens through the first layers; return logits, where asked for, and hidden states."""
        runner = self._runner
        if not self._check_mode:
            rows, hidden = runner.run_lower(tokens, start, self._cache, layer, logits=logits)
            return rows, hidden

        def run(chunk: Any, at: int) -> Rows:
            rows, hidden = runner.run_lower(chunk, at, self._cache, layer, logits=True)
            return rows, {layer: hidden}

        rows, found = self._padded(list(tokens), start, run)
        return rows, found[layer]

    def _take_up(self, pending: _Pending, tokens: Sequence[int], features: Sequence[Any]) -> Rows:
        """Run pending tokens and those after them: the latter through the first layers, all through the rest."""
        done, layer, hidden = len(pending.tokens), pending.layer, pending.hidden
        if done < len(tokens):
            _, rest = self._run_lower(tokens[done:], self.length + done, layer, logits=False)
            hidden = torch.cat([hidden, rest])

        def run(chunk: Any, at: int) -> Rows:
            return self._runner.run_upper(chunk, at, self._cache, layer, features)

        return self._padded(hidden, self.length, run) if self._check_mode else run(hidden, self.length)

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        if self._runner is not None:
            wait_for(self._runner.device)

    def close(self) -> None:
        """Free the cache."""
        self._cache = self._runner = None
        self._fed = self._pending = None
        self.length = 0


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def tree_error(problem: str) -> SpecviewError:
    """A model that cannot verify a tree in one pass."""
    return SpecviewError(f"This model cannot verify draft trees: {problem}.", "Use a method that drafts chains.")


def _takes_up(pending: _Pending, tokens: Sequence[int], features: Sequence[Any]) -> bool:
    """Whether a forward begins with the pending tokens and asks for nothing of the layers behind them."""
    return tuple(tokens[: len(pending.tokens)]) == pending.tokens and all(
        feature == "last" or feature >= pending.layer for feature in features
    )
