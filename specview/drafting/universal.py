"""Drafts with another tokenizer than the target's (universal assisted decoding).

`re-encode`: the draft reads the context's text in its own vocabulary and goes on writing; what it wrote is
re-encoded in the target's, so that the proposal continues the target's own tokens exactly. Point masses:
for greedy, match and typical (they are exact under rejection too). Hugging Face's universal assisted
generation; SLEM of Timor et al. 2025 (arXiv 2502.05202).

`intersection`: the draft is restricted to the tokens that both vocabularies have, and drafts those with q:
for rejection and naive. TLI, algorithm 4 of the same paper. The order: the draft's logits of shared tokens,
then temperature and filters as the target's. So q sums to 1 over the shared tokens and is exactly what was
sampled from; the target can still give every token of its own, by the residual.

An end that the draft drafts (end of text, end of turn) stands for the target's own end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

from array_api_compat import array_namespace

from specview.decoding.interfaces import Engine, OnChunk, Proceed, Session
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft
from specview.decoding.sampling import SamplingParams, softmax
from specview.decoding.verification import RULES
from specview.drafting.base import choose
from specview.drafting.own_model import OwnModel
from specview.drafting.universal_text import Mirror, TextCoder, complete, prefix_of
from specview.drafting.universal_vocabulary import Pairing, pairing_of
from specview.errors import SpecviewError, UsageError

Approach = Literal["same", "re-encode", "intersection"]

APPROACHES: dict[str, Approach] = {name: "intersection" if rule.uses_q else "re-encode" for name, rule in RULES.items()}
"""Rule -> how a draft with another tokenizer drafts for it: those that use q get one."""

WINDOW_TOKENS = 8
"""Context tokens that what was drafted is re-encoded after: enough for the word that it may continue."""

STEPS_PER_TOKEN = 4
"""Most draft steps per drafted token asked for: a draft of single letters stops within words."""


def approach(asked: str, rule: str, target: Engine, draft: Engine) -> Approach:
    """How `draft` drafts for `target` under a rule, where the option says `asked`.

    Raises UsageError where the tokenizers differ and only the same was asked for.
    """
    if asked in ("re-encode", "intersection"):
        return cast(Approach, asked)
    if target.tokenizer is draft.tokenizer or pairing_of(target, draft).same:
        return "same"
    if asked == "same":
        raise UsageError(
            f"{draft.model_name} has another tokenizer than {target.model_name}, and vocabulary is same.",
            "Use vocabulary auto, or choose a draft of the same family.",
        )
    return APPROACHES[rule]


def make(name: str, how: Approach, target: Engine, draft: Engine, max_length: int, vocab_size: int) -> OwnModel:
    """Make the drafter of a method (its name) over a new session of the draft.

    max_length is the longest context in target tokens, vocab_size the width of the target's rows. Raises
    SpecviewError where no token is shared and the intersection was asked for.
    """
    pairing = pairing_of(target, draft)
    if how == "intersection" and not (pairing.target.ids.keys() & pairing.draft.ids.keys()):
        raise SpecviewError(no_shared_token(target.model_name, draft.model_name))
    # The draft may need more tokens than the target for the same text.
    length = min(2 * max_length + 64, draft.context_length)
    session = draft.new_session(length)
    kind = IntersectionDraft if how == "intersection" else ReencodingDraft
    made = kind(session, target, draft, pairing, vocab_size, length)
    made.name = name
    return made


def no_shared_token(target: str, draft: str) -> str:
    """The line for a pair without a common token."""
    return (
        f"the vocabularies of {draft} and {target} share no token, so there is nothing to draft with q. "
        "Use rule match, vocabulary re-encode, or a draft of the same family."
    )


class _Foreign(OwnModel):
    """What both approaches share: the target's context mirrored in the draft's vocabulary."""

    _one_to_one = False

    def __init__(
        self, session: Session, target: Engine, draft: Engine, pairing: Pairing, vocab_size: int, length: int
    ) -> None:
        super().__init__(session, vocab_size, length)
        self._pairing = pairing
        self._mirror = Mirror(
            pairing, TextCoder(draft.tokenizer, pairing.draft), prefix_of(draft.tokenizer)
        )
        self._end: int | None = None

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Prefill the draft's cache with the prompt in its own vocabulary."""
        self._mirror.start()
        self._end = self._pairing.end_for(prompt[: self._prompt_length])
        super().begin(prompt, on_chunk)

    def _ids_of(self, context: Sequence[int]) -> Sequence[int]:
        # What was not settled may be split otherwise by now.
        self._certain = min(self._certain, self._mirror.settled)
        return self._mirror.follow(context) or ()


class IntersectionDraft(_Foreign):
    """Drafts tokens that both vocabularies have, each with its q over the target's vocabulary."""

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Prefill the draft's cache, and fix which of the target's ends the draft's stand for."""
        super().begin(prompt, on_chunk)
        ends = self._pairing.target.ends
        self._own: dict[int, int] = {
            token: own
            for token, own in self._pairing.counterparts.items()
            if token not in ends and own not in self._pairing.draft.ends and token < self._vocab_size
        }
        self._ends = frozenset() if self._end is None else frozenset({self._end})
        self._indices: tuple[Any, ...] = ()
        self._end_row: Any = None  # the last row's logits of the draft's ends, in order

    def _own_id(self, token: int) -> int:
        if token != self._end:
            return self._own[token]
        best = int(array_namespace(self._end_row).argmax(self._end_row))
        return sorted(self._pairing.draft.ends)[best]  # the one whose logit the row has

    def _rated(self, own: Array) -> Array:
        return own

    def _row_of(self, own: Array) -> Array:
        """The draft's logits of the shared tokens, -inf elsewhere; its likeliest end stands for the end."""
        xp = array_namespace(own)
        if not self._indices:
            ends = sorted(self._pairing.draft.ends)
            self._indices = tuple(
                xp.asarray(list(ids), dtype=xp.int64, device=own.device)
                for ids in (self._own.keys(), self._own.values(), ends)
            )
        shared, theirs, ends_ = self._indices
        row = xp.full((self._vocab_size,), -math.inf, dtype=own.dtype, device=own.device)
        row[shared] = own[theirs]
        if self._end is not None:
            self._end_row = own[ends_]
            row[self._end] = xp.max(self._end_row)
        return row


class ReencodingDraft(_Foreign):
    """Drafts text, and proposes it in the target's tokens as point masses.

    The draft always writes its likeliest token: of all point masses the one most often right.
    """

    def __init__(
        self, session: Session, target: Engine, draft: Engine, pairing: Pairing, vocab_size: int, length: int
    ) -> None:
        super().__init__(session, target, draft, pairing, vocab_size, length)
        self._coder = TextCoder(target.tokenizer, pairing.target)
        self._specials = {
            own: token for token, own in pairing.counterparts.items() if own in pairing.draft.specials
        }

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` target tokens after `context`; nothing beyond the draft's own context length.

        A token's confidence is the product of those of the draft's tokens that begin within it.
        """
        ids = self._ids_of(context)
        room = self._room_after(ids)
        if budget <= 0 or room <= 0 or not ids:
            return EMPTY_DRAFT
        self._roll_back(ids)
        feed = list(ids[len(self._cached) :])
        before = self._before(context)
        written = b""
        sure: list[tuple[int, float]] = []  # (offset in `written`, probability) of the draft's tokens
        tokens: list[int] = []
        asked = 0
        texts = self._pairing.draft.texts
        for _ in range(min(room, STEPS_PER_TOKEN * budget)):
            own = self._session.forward(feed).logits[-1]
            self._cached += feed
            token, _q = choose(own, _GREEDY, 0, 0, "the draft model")
            if proceed is not None:
                sure.append((len(written), float(softmax(own)[token])))
            feed = [token]
            if token not in texts:
                end = self._end if token in self._pairing.draft.ends else self._specials.get(token)
                if end is not None and complete(before + written) == before + written:
                    tokens = [*tokens, end]
                break
            written += texts[token]
            tokens = self._in_target(before, written)
            if proceed is not None and len(tokens) > asked:
                confidences = self._confidences(tokens, sure)
                new = range(asked, min(len(tokens), budget))
                stop = next((at for at in new if not proceed(confidences[at])), None)
                asked = len(tokens)
                if stop is not None:
                    tokens = tokens[: stop + 1]
                    break
            if len(tokens) >= budget:
                break
        tokens = tokens[:budget]
        confidences = self._confidences(tokens, sure) if proceed is not None else []
        return Draft(tokens=tuple(tokens), confidences=tuple(confidences), drafter=self.name)

    def _before(self, context: Sequence[int]) -> bytes:
        """The bytes of the last context tokens, back to a special one at most."""
        texts = self._pairing.target.texts
        parts: list[bytes] = []
        for token in reversed(context[-WINDOW_TOKENS:]):
            if token not in texts:
                break
            parts.append(texts[token])
        return b"".join(reversed(parts))

    def _in_target(self, before: bytes, written: bytes) -> list[int]:
        """The target's ids of what the draft wrote, as far as its characters are whole."""
        whole = complete(before + written)
        return self._coder.encode(whole[len(before) :], before) or []

    def _confidences(self, tokens: Sequence[int], sure: Sequence[tuple[int, float]]) -> list[float]:
        texts = self._pairing.target.texts
        found: list[float] = []
        begin, place = 0, 0
        for token in tokens:
            end = begin + len(texts[token]) if token in texts else math.inf
            confidence = 1.0
            while place < len(sure) and sure[place][0] < end:
                confidence *= sure[place][1]
                place += 1
            found.append(confidence)
            begin = int(end) if end != math.inf else begin
        return found


_GREEDY = SamplingParams()
