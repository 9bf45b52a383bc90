"""What drafters over the target's features share: following the context with a head's own cache, and its drafts.

The features of the prompt come chunk by chunk, those of a round with its outcome, whoever drafted it. Rows of
the context that are new since the last draft are fed together with that draft's first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import Engine, OnChunk, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.drafting.base import BaseDrafter
from specview.drafting.draft_tree import Drawn
from specview.errors import SpecviewError, UsageError
from specview.settings.options import WEIGHTS

if TYPE_CHECKING:
    from specview.drafting.method import DrafterContext
    from specview.heads.loaded import LoadedHead
    from specview.heads.running import HeadRun

LAST = "last"
"""The hidden state after the final norm."""
MOST_WAITING = 64
"""Rows of the context that wait for the next draft; more are fed as they come."""


class SpreadRows(Sequence[Array]):
    """Logit rows over the target's vocabulary, each made when it is looked at: for viewing only."""

    def __init__(self, rows: Sequence[Array], spread: Callable[[Array], Array]) -> None:
        self._rows = rows
        self._spread = spread

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return SpreadRows(self._rows[place], self._spread)
        return self._spread(self._rows[place])


class RowsBehind(Sequence[Array]):
    """Logit rows of the context's tokens that a head caught up with, made when they are first looked at."""

    def __init__(self, run: HeadRun) -> None:
        self._run = run
        self._count = run.behind
        self._rows: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if self._rows is None:
            self._rows = self._run.rows_behind()
        return self._rows[place]


def accepted_rows(round_: Round) -> list[int]:
    """The rows of a round's pass that stay in the context: its last token's, then those of the accepted path."""
    return [0, *(1 + index for index, token in enumerate(round_.drafted) if token.verdict == "accepted")]


class HeadDrafter(BaseDrafter):
    """A drafter with a trained head, which may draft in a vocabulary of its own."""

    def __init__(self, head: LoadedHead, max_length: int) -> None:
        self._head = head
        self._max_length = max_length
        ids = getattr(head.module, "target_ids", None)
        self._target_ids: list[int] | None = None if ids is None else ids.tolist()

    def _target_id(self, token: int) -> int:
        """The target's id of one of the head's own."""
        return token if self._target_ids is None else self._target_ids[token]

    def _over_target(self, draft: Draft) -> Draft:
        """A draft in the head's own vocabulary, in the target's: only what is drafted is widened."""
        spread: dict[int, Array] = {}  # siblings share a row
        for row in draft.q or ():
            if id(row) not in spread:
                spread[id(row)] = self._head.spread(row, 0.0)
        return replace(
            draft,
            tokens=tuple(map(self._target_id, draft.tokens)),
            q=None if draft.q is None else [spread[id(row)] for row in draft.q],
            raw_logits=SpreadRows(draft.raw_logits or (), self._head.spread),
        )


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


class FeatureDrafter(HeadDrafter):
    """A drafter with a head that reads the target's features; subclasses say what it drafts.

    layers are the features that the head reads. A drafter that lacks the features of some position, because
    the target's session gave none, drafts nothing.
    """

    def __init__(self, name: str, head: LoadedHead, layers: Sequence[Any], max_length: int, weights: str = "auto") -> None:
        self.name, self.whose = name, f"the {name} head"
        super().__init__(head, max_length)
        self.feature_layers = self.prompt_layers = tuple(layers)
        self._weights = weights
        self._tokens: list[int] = []  # the context
        self._run: HeadRun | None = None

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run with an empty cache; the prompt's features come later."""
        from specview.heads.running import HeadRun

        self._tokens = list(prompt)
        self._run = HeadRun(self._head, self.feature_layers, self._weights)

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Feed the head the prompt's next tokens; the last row waits for the first draft."""
        run = self._run
        assert run is not None
        if all(layer in features for layer in self.feature_layers):
            run.add(features)
            run.feed(self._tokens, min(run.known, len(self._tokens) - 1) - 1)

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft after `context`: paths of up to `budget` tokens."""
        run, end = self._run, len(context) - 1
        room = self._max_length - len(context)  # of the pass; the last token has its place already
        if run is None or budget <= 0 or room <= 0 or end < 1 or run.known < end:
            return EMPTY_DRAFT
        draft = self._draft(run, context, budget, room, proceed)
        return replace(draft, caught_up=RowsBehind(run)) if self.watched and run.behind else draft

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Take the features of the context's last token and of the tokens accepted after it."""
        run, emitted = self._run, round_.emitted
        if run is None:
            return
        if run.known == len(self._tokens) - 1 and all(layer in features for layer in self.feature_layers):
            # After an accepted end of text there is no final token, and the last position leads nowhere.
            run.add(features, accepted_rows(round_)[: len(emitted)])
        self._tokens += emitted
        if run.known - run.length > MOST_WAITING:
            run.feed(self._tokens, run.known - 1)

    def close(self) -> None:
        """Free the head's cache; the head itself is shared."""
        self._run = None

    def _draft(
        self, run: HeadRun, context: Sequence[int], budget: int, room: int, proceed: Proceed | None
    ) -> Draft:
        """Draft paths of up to `budget` tokens, at most `room` tokens in all; the features are there."""
        raise NotImplementedError

    def _drawn(self, drawn: Drawn) -> Draft:
        """A tree in the target's vocabulary."""
        point_masses = all(q is None for q in drawn.q)
        return self._over_target(
            Draft(
                tokens=tuple(drawn.tokens),
                parents=None if drawn.is_chain else tuple(drawn.parents),
                q=None if point_masses else drawn.q,
                confidences=tuple(drawn.confidences),
                drafter=self.name,
                raw_logits=drawn.made_by,
                siblings="point-mass" if point_masses else "without-replacement",
            )
        )


def head_of(context: DrafterContext, method: str) -> LoadedHead:
    """The loaded head of a method that reads features of some layers.

    Raises SpecviewError where there is none, or where it cannot draft for the target.
    """
    head = context.head(method, "a trained head", "Name one with --draft or the option head: a folder or a hub id.")
    facts, target = head.facts, context.target
    needed = max((layer for layer in facts.aux_layers if isinstance(layer, int)), default=0)
    if target is not None and not (
        target.hidden_size == facts.hidden_size and needed <= target.layers
    ):
        raise SpecviewError(
            f"the head {facts.folder.name} reads features of {facts.hidden_size} numbers after {needed} layers; "
            f"{target.model_name} has {target.hidden_size}, and {target.layers} layers.",
            "Choose a head that was trained for this target.",
        )
    ids = getattr(head.module, "target_ids", None)
    if ids is not None and int(ids.max()) >= context.vocab_size:
        raise SpecviewError(
            f"the head {facts.folder.name} drafts token {int(ids.max())}, and the target has {context.vocab_size}.",
            "Choose a head that was trained for this target.",
        )
    return head


def weights_of(context: DrafterContext, head: LoadedHead) -> str:
    """What the option `weights` says; raises UsageError where it asks for 8-bit ones and the head's device has none."""
    from specview.heads.fast import takes_int8

    asked = str(context.options.get(WEIGHTS.name, WEIGHTS.default))
    if asked == "int8" and not takes_int8(head.device, head.dtype):
        here = "this one is not quick at them" if head.device.type == "cpu" else f"the head runs on {head.device}"
        raise UsageError(
            f"weights is int8, which takes a CPU that is quick at 8-bit weights, and {here}.", "Use auto or stored."
        )
    return asked


def problem(engine: Engine) -> str | None:
    """Say why this target gives no hidden states, or None."""
    return engine.features_problem
