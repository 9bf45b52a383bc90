"""`draft-model`: a small model with the target's tokenizer drafts token by token.

Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (2302.01318).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace

from specview.decoding.interfaces import OnChunk, Session
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.decoding.sampling import SamplingParams, draw, probabilities, softmax, uniform
from specview.errors import SpecviewError

if TYPE_CHECKING:
    from specview.drafting.registry import DrafterContext


class DraftModel:
    """Drafts with a session of its own, rolled back with the target's.

    q is exactly the distribution each token was sampled from: the draft's logits after the same
    temperature and filters as the target's, over the ids both vocabularies have.
    """

    name = "draft-model"
    exact_q = True
    feature_layers: tuple[Any, ...] = ()

    def __init__(self, session: Session, vocab_size: int, context_length: int) -> None:
        self._session = session
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._cached: list[int] = []
        self._certain = 0  # cached tokens known to be context: only later ones need comparing
        self._prompt_length = 0
        self._sampling = SamplingParams()

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Prefill the draft's cache with all of the prompt but its last token."""
        self._sampling = sampling
        self._prompt_length = len(prompt_tokens)
        if len(prompt_tokens) > self._context_length:
            return  # nothing will be drafted
        self._session.prefill(prompt_tokens[:-1], on_chunk)
        self._cached = list(prompt_tokens[:-1])

    def propose(
        self, context: Sequence[int], budget: int, proceed: Callable[[float], bool] | None = None
    ) -> Draft:
        """Draft up to `budget` tokens after `context`; nothing beyond the draft's own context length."""
        budget = min(budget, self._context_length - len(context))
        if budget <= 0:
            return EMPTY_DRAFT
        self._roll_back(context)
        feed = list(context[len(self._cached) :])
        tokens: list[int] = []
        q: list[Array] = []
        raw: list[Array] = []
        confidences: list[float | None] = []
        position = len(context) - self._prompt_length
        for step in range(budget):
            logits = self._session.forward(feed).logits[-1, : self._vocab_size]
            self._cached += feed
            # The engine may reuse its logit buffer in the next step; the rule reads these rows later.
            logits = array_namespace(logits).asarray(logits, copy=True)
            token, row = self._choose(logits, position + step)
            tokens.append(token)
            raw.append(logits)
            if row is not None:
                q.append(row)
            feed = [token]
            if proceed is not None:
                confidence = float(softmax(logits)[token])
                confidences.append(confidence)
                if not proceed(confidence):
                    break
        return Draft(
            tokens=tuple(tokens),
            q=tuple(q) or None,
            confidences=tuple(confidences),
            drafter=self.name,
            raw_logits=tuple(raw),
        )

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Learn nothing: the next proposal rolls back to what its context shares with the cache."""

    def close(self) -> None:
        """Free the draft's cache."""
        self._session.close()

    def _roll_back(self, context: Sequence[int]) -> None:
        """Keep the part of the cache that is a prefix of the context (its last token is fed anew)."""
        shared = min(len(self._cached), len(context) - 1)
        start = min(shared, self._certain)
        while start < shared and self._cached[start] == context[start]:
            start += 1
        if start < len(self._cached):
            self._session.truncate(start)
            del self._cached[start:]
        self._certain = start

    def _choose(self, logits: Array, position: int) -> tuple[int, Array | None]:
        """The drafted token and q; greedy drafts are point masses (q None)."""
        xp = array_namespace(logits)
        if self._sampling.greedy:
            token = int(xp.argmax(logits))
            if not bool(xp.isfinite(logits[token])):
                raise _not_finite()
            return token, None
        try:
            q = probabilities(logits, self._sampling)
        except ValueError:
            raise _not_finite() from None
        return draw(q, uniform(self._sampling.seed, position, "draft")), q


def _not_finite() -> SpecviewError:
    return SpecviewError(
        "the draft model gave logits that are not finite (NaN or infinite).",
        "Try another dtype (float32), or check the draft's file.",
    )


def make(context: DrafterContext) -> DraftModel:
    """Make the drafter over a new session of the lane's draft engine."""
    if context.draft_engine is None:
        raise SpecviewError(
            "draft-model needs a draft model.", "Name one with --draft, or use the bundled one."
        )
    engine = context.draft_engine
    length = min(context.max_length, engine.context_length)
    return DraftModel(engine.new_session(length), context.vocab_size, length)
