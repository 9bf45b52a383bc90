"""How a drafter that runs a model drafts token by token: the one place that keeps q honest."""

from __future__ import annotations

from collections.abc import Callable, Collection

from specview.decoding.ledger import Array, Draft
from specview.decoding.sampling import SamplingParams, draw, likeliest_ids, probabilities, softmax, uniform
from specview.errors import SpecviewError

Step = Callable[[int | None], tuple[Array, Array]]
"""Feeds the token just drafted (None at first: the context) and gives two logit rows: one of its own over the
target's vocabulary, which is chosen from, and the model's own, which a confidence is a share of."""


def draft_chain(
    step: Step,
    budget: int,
    sampling: SamplingParams,
    position: int,
    *,
    drafter: str,
    whose: str,
    proceed: Callable[[float], bool] | None = None,
    own_id: Callable[[int], int] = lambda token: token,
    ends: Collection[int] = (),
) -> Draft:
    """Draft up to `budget` tokens in a round that begins at an output position.

    It goes on while `proceed` agrees and no token is in `ends`.
    own_id gives a token's place in the model's own row. The last token is not fed: nothing follows it.
    """
    tokens: list[int] = []
    q: list[Array] = []
    raw: list[Array] = []
    confidences: list[float | None] = []
    for place in range(budget):
        logits, own = step(tokens[-1] if tokens else None)
        token, row = choose(logits, sampling, position, place, whose)
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
    return Draft(
        tokens=tuple(tokens),
        q=tuple(q) or None,
        confidences=tuple(confidences),
        drafter=drafter,
        raw_logits=tuple(raw),
    )


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
