"""What drafters have in common, and what most of those without a model do: a new one is a few lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from specview.decoding.interfaces import OnChunk, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.decoding.sampling import (
    Penalties,
    SamplingParams,
    draw,
    likeliest_ids,
    probabilities,
    softmax,
    uniform,
)
from specview.drafting.acceptance import COPIES, Acceptance, Matches, learn_round
from specview.errors import SpecviewError
from specview.settings.options import Option, Value

Guess = Sequence[int]

Step = Callable[[int | None], tuple[Array, Array]]
"""Feeds the token just drafted (None at first: the context) and gives two logit rows: one of its own over the
target's vocabulary, which is chosen from, and the model's own, which a confidence is a share of."""


class BaseDrafter:
    """A drafter that asks for no features, learns nothing and has nothing to free: override `propose`, and what else is needed.

    See interfaces.Drafter. q, where there is one, is exactly the distribution that a token was sampled from.
    """

    name: str = ""
    exact_q = True
    feature_layers: tuple[Any, ...] = ()
    prompt_layers: tuple[Any, ...] = ()
    written = 0
    watched = False
    full_context = 0
    whose = "the draft model"
    """Whose logits an error names."""
    own_places: Mapping[int, int] | None = None
    """Token -> its place in the rows that are chosen from, where these are over other ids than the target's."""
    _sampling = SamplingParams()
    _prompt_length = 0
    _penalties: Penalties | None = None

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Note the run's sampling, and where its output begins; then `begin`."""
        self._sampling = sampling
        self._prompt_length = len(prompt_tokens) - self.written
        self._penalties = Penalties(sampling, self._prompt_length) if sampling.penalised else None
        self.begin(prompt_tokens, on_chunk)

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run: forget the one before, read the prompt."""

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Learn nothing: no features were asked for."""

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` tokens after `context`."""
        raise NotImplementedError

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Learn nothing."""

    def close(self) -> None:
        """There is nothing to free."""

    def position(self, context: Sequence[int]) -> int:
        """The output position where a round after `context` begins."""
        return len(context) - self._prompt_length

    def target_id(self, token: int) -> int:
        """The target's id of a token as it is drafted."""
        return token

    def penalised(self, rows: Array, context: Sequence[int], paths: Sequence[Sequence[int]]) -> Array:
        """Logit rows [n, ids] after the context and each path of drafted tokens, with the penalties that p has there."""
        if self._penalties is None:
            return rows
        self._penalties.follow(context)
        return self._penalties.rows(rows, [[*map(self.target_id, path)] for path in paths], self.own_places)

    def chain(
        self,
        step: Step,
        context: Sequence[int],
        budget: int,
        proceed: Proceed | None,
        own_id: Callable[[int], int] = lambda token: token,
        ends: frozenset[int] = frozenset(),
    ) -> Draft:
        """Draft token by token, up to `budget` of them in a round after `context`.

        It goes on while `proceed` agrees and no token is in `ends`.
        own_id gives a token's place in the model's own row. The last token is not fed: nothing follows it.
        """
        tokens: list[int] = []
        q: list[Array] = []
        raw: list[Array] = []
        confidences: list[float | None] = []
        position = self.position(context)
        for place in range(budget):
            logits, own = step(tokens[-1] if tokens else None)
            logits = self.penalised(logits[None], context, [tokens])[0]
            token, row = choose(logits, self._sampling, position, place, self.whose)
            tokens.append(token)
            raw.append(logits)
            if row is not None:
                q.append(row)
            if proceed is not None:
                confidence = float(softmax(own)[own_id(token)])
                confidences.append(confidence)
                if not proceed(confidence):
                    break
            if token in ends:
                break
        return Draft(tuple(tokens), None, tuple(q) or None, tuple(confidences), self.name, tuple(raw))


def choose(
    logits: Array, sampling: SamplingParams, position: int, place: int, whose: str
) -> tuple[int, Array | None]:
    """Choose the token at a place of the draft of a round, from a logit row [vocab]; return it and its q [vocab].

    position is the output position where the round begins. q is exactly the distribution that the token was drawn from: temperature and filters as the target's.
    A greedy draft is a point mass (q None). Raises SpecviewError, which names `whose` logits they are,
    where they are not finite.
    """
    if sampling.greedy:
        token = likeliest_ids(logits[None])[0]
        if token < 0:
            raise not_finite(whose)
        return token, None
    try:
        q = probabilities(logits, sampling)
    except ValueError:
        raise not_finite(whose) from None
    return draw(q, uniform(sampling.seed, position, "draft", place)), q


def not_finite(whose: str) -> SpecviewError:
    """Logits with NaN or infinities: what to tell."""
    return SpecviewError(
        f"{whose} gave logits that are not finite (NaN or infinite).",
        "Try another dtype (float32), or check the model's file.",
    )


class ModelFreeDrafter(BaseDrafter):
    """A drafter whose proposals are point masses (no q): override `guess`, `forget` and `read`.

    Its confidence in a token is the share accepted so far in this run of its tokens that went on from a match of
    the same length (see acceptance.py), unless `confidences` says better.
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = ()

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

    def forget(self) -> None:
        """Drop what was learned of a text."""

    def read(self, prompt: Sequence[int]) -> None:
        """Take the prompt in."""

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run: forget the text before and how guesses held."""
        self._acceptance = Acceptance(COPIES)
        self._matches = Matches()
        self._matches.extend(prompt)
        self.forget()
        self.read(prompt)

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft what `guess` says, up to `budget` tokens and while `proceed` agrees."""
        tokens = tuple(self.guess(context, budget)[:budget])
        if not tokens:
            return EMPTY_DRAFT
        given = self.confidences(tokens)
        sure = self._expected(context, tokens) if given is None else list(given[: len(tokens)])
        end = going_on(sure, proceed)
        return Draft(tokens=tokens[:end], confidences=tuple(sure[:end]), drafter=self.name)

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Count which tokens of this drafter's own draft held."""
        if not round_.drafter or round_.drafter == self.name:
            learn_round(self._acceptance, round_)

    def close(self) -> None:
        """Drop what was learned of the text."""
        self.forget()

    def _expected(self, context: Sequence[int], tokens: Guess) -> list[float]:
        """The chance of each token, by the length of the match that it goes on from."""
        self._matches.extend(context)
        acceptance = self._acceptance
        acceptance.run = self._matches.length(context, tokens[0])
        return [acceptance.after(acceptance.run + place) for place in range(len(tokens))]


def going_on(confidences: Sequence[float | None], proceed: Proceed | None) -> int:
    """How many tokens are drafted: up to the first after which `proceed` wants no more; those without confidence go on."""
    if proceed is not None:
        for place, confidence in enumerate(confidences):
            if confidence is not None and not proceed(confidence):
                return place + 1
    return len(confidences)
