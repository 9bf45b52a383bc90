"""What most drafters without a model have in common: a new one is a few lines.

A subclass says which tokens it guesses; this class turns them into a Draft, obeys the length policy
and keeps how often its guesses held, which is what a copy knows of its own chances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from specview.decoding.interfaces import OnChunk
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.options import Option, Value

Guess = Sequence[int]


class ModelFreeDrafter:
    """A drafter whose proposals are point masses (no q): override `guess`, and what else is needed.

    Its confidence in the token at place i of a draft is the share of its tokens at that place which were
    accepted so far in this run (Laplace's rule of succession), unless `confidences` says better.
    """

    name: str = ""
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    exact_q = True
    feature_layers: tuple[Any, ...] = ()

    def __init__(self, options: Mapping[str, Value] | None = None) -> None:
        self.options = {option.name: option.default for option in self.OPTIONS} | dict(options or {})
        self._held: list[int] = []
        self._tried: list[int] = []

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
        self._held, self._tried = [], []

    def propose(
        self, context: Sequence[int], budget: int, proceed: Callable[[float], bool] | None = None
    ) -> Draft:
        """Draft what `guess` says, up to `budget` tokens and while `proceed` agrees."""
        tokens = tuple(self.guess(context, budget)[:budget])
        if not tokens:
            return EMPTY_DRAFT
        given = self.confidences(tokens)
        sure = [self._share(place) for place in range(len(tokens))] if given is None else list(given[: len(tokens)])
        if proceed is not None:
            for place, confidence in enumerate(sure):
                if not proceed(confidence):
                    tokens, sure = tokens[: place + 1], sure[: place + 1]
                    break
        return Draft(tokens=tokens, confidences=tuple(sure), drafter=self.name)

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Count which places of the draft held."""
        for place, token in enumerate(round_.drafted):
            if token.verdict == "ignored":
                break
            if place == len(self._tried):
                self._tried.append(0)
                self._held.append(0)
            self._tried[place] += 1
            self._held[place] += token.verdict == "accepted"

    def close(self) -> None:
        """Free the drafter's state; there is none to free unless a subclass says so."""

    def _share(self, place: int) -> float:
        if place >= len(self._tried):
            return 0.5 if not self._tried else self._share(len(self._tried) - 1)
        return (self._held[place] + 1) / (self._tried[place] + 2)
