"""What Medusa's heads and the MLP speculator share: they read the target's last hidden state, and only the newest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import Engine, OnChunk
from specview.decoding.ledger import Array, Round
from specview.decoding.sampling import SamplingParams

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

LAST = "last"


def accepted_rows(round_: Round) -> list[int]:
    """The rows of a round's pass that stay in the context: its last token's, then those of the accepted path."""
    return [0, *(1 + index for index, token in enumerate(round_.drafted) if token.verdict == "accepted")]


class LastHidden:
    """A drafter over the target's hidden state, after the final norm, of the last token but one of the context.

    That is the state from which the target chose the context's last token. It comes with the pass that did so:
    the first round of a run has none, and drafts nothing.
    """

    name = ""
    exact_q = True
    feature_layers: tuple[Any, ...] = (LAST,)
    prompt_layers: tuple[Any, ...] = ()

    def __init__(self, head: LoadedHead, max_length: int) -> None:
        self._head = head
        self._max_length = max_length
        self._hidden: Any = None  # [1, hidden]
        self._prompt_length = 0
        self.written = 0
        self._sampling = SamplingParams()

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Begin a run: nothing is known of the target's state yet."""
        self._hidden = None
        self._prompt_length = len(prompt_tokens) - self.written
        self._sampling = sampling

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Learn nothing: no features were asked for."""

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Keep the state of the last accepted row, whoever drafted the round."""
        rows = features.get(LAST)
        if rows is None:
            self._hidden = None
            return
        row = accepted_rows(round_)[-1]
        # A copy: the engine may reuse its buffer in the next pass.
        self._hidden = self._head.tensor(rows[row : row + 1]).clone()

    def close(self) -> None:
        """Free the state; the head itself is shared."""
        self._hidden = None

    def _room(self, context: Sequence[int], budget: int) -> int:
        """Rows that a draft may have now; 0 where there is nothing to draft from."""
        return 0 if self._hidden is None or budget <= 0 else max(0, self._max_length - len(context))


def problem(engine: Engine) -> str | None:
    """Say why this target gives no hidden states, or None."""
    return engine.features_problem
