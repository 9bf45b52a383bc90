"""How a drafter that runs a model chooses its next token: the one function that keeps q honest."""

from __future__ import annotations

from array_api_compat import array_namespace

from specview.decoding.ledger import Array
from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.errors import SpecviewError


def choose(logits: Array, sampling: SamplingParams, position: int, whose: str) -> tuple[int, Array | None]:
    """Choose the drafted token at an output position from a logit row [vocab]; return it and its q [vocab].

    q is exactly the distribution that the token was drawn from: temperature and filters as the target's.
    A greedy draft is a point mass (q None). Raises SpecviewError, which names `whose` logits they are,
    where they are not finite.
    """
    if sampling.greedy:
        token = int(array_namespace(logits).argmax(logits))
        if not bool(array_namespace(logits).isfinite(logits[token])):
            raise _not_finite(whose)
        return token, None
    try:
        q = probabilities(logits, sampling)
    except ValueError:
        raise _not_finite(whose) from None
    return draw(q, uniform(sampling.seed, position, "draft")), q


def _not_finite(whose: str) -> SpecviewError:
    return SpecviewError(
        f"{whose} gave logits that are not finite (NaN or infinite).",
        "Try another dtype (float32), or check the model's file.",
    )
