"""What drafters over a model of their own share: its session follows the context, and drafts token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from array_api_compat import array_namespace

from specview.decoding.interfaces import OnChunk, Proceed, Session
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft
from specview.drafting.base import BaseDrafter, Step

STAND_IN = 0
"""What the draft reads where the text has a token beyond its own ids."""


class OwnModel(BaseDrafter):
    """Drafts with a session of its own, rolled back with the target's.

    q is exactly the distribution each token was sampled from: the draft's logits after the same
    temperature and filters as the target's, over the ids both vocabularies have. The draft here has the
    target's tokenizer; subclasses translate. own_ids is how many ids the draft has, None for as many as the
    target: a context's ids beyond them are fed to it as another one, which only its guesses suffer from.
    """

    _ends: frozenset[int] = frozenset()  # target ids after which nothing more is drafted
    _one_to_one = True  # whether a token of the target's is one of the draft's

    def __init__(
        self, session: Session, vocab_size: int, context_length: int, own_ids: int | None = None
    ) -> None:
        self._session = session
        self._vocab_size = vocab_size
        self._own_ids = vocab_size if own_ids is None else own_ids
        self._context_length = context_length
        self._cached: list[int] = []
        self._certain = 0  # cached tokens known to be context: only later ones need comparing
        self._caught_up: tuple[Array, ...] = ()  # in the draft under way

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Prefill the draft's cache with all of the prompt but its last token."""
        ids = self._ids_of(prompt)
        if len(ids) > self._context_length:
            return  # nothing will be drafted
        self._session.prefill(ids[:-1], on_chunk)
        self._cached = list(ids[:-1])

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` tokens after `context`; nothing beyond the draft's own context length."""
        ids = self._ids_of(context)
        budget = min(budget, self._room_after(ids))
        if budget <= 0 or not ids:
            return EMPTY_DRAFT
        self._roll_back(ids)
        step = self._steps(list(ids[len(self._cached) :]), budget)
        draft = self.chain(step, context, budget, proceed, self._own_id, self._ends)
        return replace(draft, caught_up=self._caught_up) if self._caught_up else draft

    def close(self) -> None:
        """Free the draft's cache."""
        self._session.close()

    def _steps(self, fresh: list[int], budget: int) -> Step:
        """The draft's own steps, of which the first feeds the context's tokens that are not cached yet."""

        def step(token: int | None) -> tuple[Array, Array]:
            feed = fresh if token is None else [self._own_id(token)]
            rows = self._session.forward(feed).logits
            self._cached.extend(feed)
            if token is None:
                self._caught_up = self._behind(rows[: len(feed) - 1])
            # The engine may reuse its logit buffer in the next step; the rule reads these rows later.
            return self._row_of(rows[-1]), self._rated(rows[-1])

        return step

    def _ids_of(self, context: Sequence[int]) -> Sequence[int]:
        """The draft's ids of a context; those that it lacks become STAND_IN."""
        own = self._own_ids
        if own >= self._vocab_size or max(context, default=0) < own:
            return context
        return [token if token < own else STAND_IN for token in context]

    def _room_after(self, ids: Sequence[int]) -> int:
        """How many tokens the draft's own context has left after these; notes it where that is none."""
        room = max(0, self._context_length - len(ids))
        self.full_context = 0 if room else self._context_length
        return room

    def _own_id(self, token: int) -> int:
        """The draft's id of a target id."""
        return token

    def _behind(self, rows: Array) -> tuple[Array, ...]:
        """What is kept of the rows [n, ids] of context tokens before the last one: they say what it would have drafted.

        Nothing where nobody looks, and of a draft with tokens of its own, whose rows stand for other places.
        """
        return tuple(self._row_of(row) for row in rows) if self.watched and self._one_to_one else ()

    def _rated(self, own: Array) -> Array:
        """The draft's own logits [ids] that its confidence is a share of."""
        return own[: self._vocab_size]

    def _row_of(self, own: Array) -> Array:
        """A new row over the target's vocabulary, from a row of the draft's own logits."""
        return array_namespace(own).asarray(own[: self._vocab_size], copy=True)

    def _roll_back(self, ids: Sequence[int]) -> None:
        """Keep the part of the cache that is a prefix of the draft's context (its last token is fed anew)."""
        shared = min(len(self._cached), len(ids) - 1)
        start = min(shared, self._certain)
        while start < shared and self._cached[start] == ids[start]:
            start += 1
        if start < len(self._cached):
            self._session.truncate(start)
            del self._cached[start:]
        self._certain = start
