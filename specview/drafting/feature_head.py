"""What drafters with a trained head share: its own vocabulary in the target's, and the target's hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import Engine, OnChunk
from specview.decoding.ledger import Array, Draft, Round
from specview.drafting.base import BaseDrafter

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

LAST = "last"
"""The hidden state after the final norm."""


class LazyRows(Sequence[Array]):
    """Logit rows over the target's vocabulary, each made when it is looked at: for viewing only."""

    def __init__(self, places: range, make: Callable[[int], Array]) -> None:
        self._places = places
        self._make = make

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return LazyRows(self._places[place], self._make)
        return self._make(self._places[place])


class HeadDrafter(BaseDrafter):
    """A drafter with a trained head, which may draft in a vocabulary of its own."""

    def __init__(self, head: LoadedHead, max_length: int) -> None:
        self._head = head
        self._max_length = max_length
        ids = getattr(head.module, "target_ids", None)
        self._target_ids: list[int] | None = None if ids is None else ids.tolist()
        if self._target_ids is not None:
            self.own_places = {token: place for place, token in enumerate(self._target_ids)}

    def target_id(self, token: int) -> int:
        """The target's id of one of the head's own."""
        return token if self._target_ids is None else self._target_ids[token]

    def _over_target(self, draft: Draft) -> Draft:
        """A draft in the head's own vocabulary, in the target's: only what is drafted is widened."""
        spread: dict[int, Array] = {}  # siblings share a row
        raw = draft.raw_logits or ()
        for row in draft.q or ():
            if id(row) not in spread:
                spread[id(row)] = self._head.spread(row, 0.0)
        return replace(
            draft,
            tokens=tuple(map(self.target_id, draft.tokens)),
            q=None if draft.q is None else [spread[id(row)] for row in draft.q],
            raw_logits=LazyRows(range(len(raw)), lambda place: self._head.spread(raw[place])),
        )


def accepted_rows(round_: Round) -> list[int]:
    """The rows of a round's pass that stay in the context: its last token's, then those of the accepted path."""
    return [0, *(1 + index for index, token in enumerate(round_.drafted) if token.verdict == "accepted")]


class LastHidden(HeadDrafter):
    """A drafter over the target's hidden state, after the final norm, of the last token but one of the context.

    That is the state from which the target chose the context's last token. It comes with the pass that did so:
    the first round of a run has none, and drafts nothing.
    """

    feature_layers: tuple[Any, ...] = (LAST,)

    def __init__(self, head: LoadedHead, max_length: int) -> None:
        super().__init__(head, max_length)
        self._hidden: Any = None  # [1, hidden]

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run: nothing is known of the target's state yet."""
        self._hidden = None

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Keep the state of the last accepted row, whoever drafted the round."""
        rows = features.get(LAST)
        row = accepted_rows(round_)[-1]
        # A copy: the engine may reuse its buffer in the next pass.
        self._hidden = None if rows is None else self._head.tensor(rows[row : row + 1]).clone()

    def close(self) -> None:
        """Free the state; the head itself is shared."""
        self._hidden = None

    def _room(self, context: Sequence[int], budget: int) -> int:
        """Rows that a draft may have now; 0 where there is nothing to draft from."""
        return 0 if self._hidden is None or budget <= 0 else max(0, self._max_length - len(context))


def problem(engine: Engine) -> str | None:
    """Say why this target gives no hidden states, or None."""
    return engine.features_problem
