"""What most drafters without a model have in common: a new one is a few lines.

A subclass says which tokens it guesses; this class turns them into a Draft, obeys the length policy
and keeps how often its guesses held after how long a match, which is what a copy knows of its own chances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from specview.decoding.interfaces import OnChunk
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.acceptance import COPIES, Acceptance, Matches, learn_round
from specview.settings.options import Option, Value

Guess = Sequence[int]


class ModelFreeDrafter:
    """A drafter whose proposals are point masses (no q): override `guess`, and what else is needed.

    Its confidence in a token is the share accepted so far in this run of its tokens that went on from a match of
    the same length (see acceptance.py), unless `confidences` says better.
    """

    name: str = ""
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    exact_q = True
    feature_layers: tuple[Any, ...] = ()
    prompt_layers: tuple[Any, ...] = ()

    def __init__(self, options: Mapping[str, Value] | None = None) -> None:
        self.options = {option.name: option.default for option in self.OPTIONS} | dict(options or {})
        self._acceptance = Acceptance(COPIES)
        self._matches = Matches()

    def guess(self, context: Sequence[int], budget: int) -> Guess:
        """Guess up to `budget` tokens after `context` (prompt and output so far); none is a fine answer."""
        raise NotImplementedError

    def confidences(self, tokens: Guess) -> Sequence[float] | None:
        """Probabilities of the tokens just guessed, where the method has them."""
        return None

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Begin a run: forget how earlier guesses held."""
        self._acceptance = Acceptance(COPIES)
        self._matches = Matches()
        self._matches.extend(prompt_tokens)

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Learn nothing: no features were asked for."""

    def propose(
        self, context: Sequence[int], budget: int, proceed: Callable[[float], bool] | None = None
    ) -> Draft:
        """Draft what `guess` says, up to `budget` tokens and while `proceed` agrees."""
        tokens = tuple(self.guess(context, budget)[:budget])
        if not tokens:
            return EMPTY_DRAFT
        given = self.confidences(tokens)
        sure = self._expected(context, tokens) if given is None else list(given[: len(tokens)])
        if proceed is not None:
            for place, confidence in enumerate(sure):
                if not proceed(confidence):
                    tokens, sure = tokens[: place + 1], sure[: place + 1]
                    break
        return Draft(tokens=tokens, confidences=tuple(sure), drafter=self.name)

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Count which tokens of this drafter's own draft held."""
        if round_.drafter and round_.drafter != self.name:
            return
        learn_round(self._acceptance, round_)

    def close(self) -> None:
        """Free the drafter's state; there is none to free unless a subclass says so."""

    def _expected(self, context: Sequence[int], tokens: Guess) -> list[float]:
        """The chance of each token, by the length of the match that it goes on from."""
        self._matches.extend(context)
        acceptance = self._acceptance
        acceptance.run = self._matches.length(context, tokens[0])
        return [acceptance.after(acceptance.run + place) for place in range(len(tokens))]
