"""What only a viewer needs of a round: texts, likeliest tokens, entropies, margins.

Computed between rounds and off the lane's clock: looking must not slow what is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from array_api_compat import array_namespace

from specview.decoding.interfaces import Detokenizer, Tokenizer
from specview.decoding.ledger import Array, Candidate, Draft, DraftedToken, FinalToken, Guess, Rider
from specview.decoding.sampling import SamplingParams, draw, probabilities, softmax, top_entries, uniform
from specview.decoding.verification import Decision, DecisionRows, Trial, entropy_of

Level = Literal["off", "light", "full"]
TOP = 8


class Observer:
    """Turns a decision into ledger entries.

    level `off` keeps the bare numbers of the rule; `light` adds texts, margins and the drafter's
    confidence; `full` adds the likeliest tokens of p and q, the residual and the entropy. given are tokens that the
    output goes on from: their text is none of a round.
    """

    def __init__(self, level: Level = "off", tokenizer: Tokenizer | None = None, given: Sequence[int] = ()) -> None:
        self.level = level if tokenizer is not None else "off"
        self.tokenizer = tokenizer
        self.detokenizer: Detokenizer | None = after(tokenizer, given)[0] if tokenizer is not None else None
        self._given = len(given)

    def entries(
        self, rule: str, decision: Decision, rows: DecisionRows, draft: Draft
    ) -> tuple[tuple[DraftedToken, ...], FinalToken | None]:
        """Make the ledger's drafted tokens and final token of a round."""
        texts, final_text = self._texts(decision, draft)
        drafted = tuple(
            self._drafted(rule, index, trial, text, rows, draft)
            for index, (trial, text) in enumerate(zip(decision.trials, texts, strict=True))
        )
        return drafted, self._final(decision, final_text, rows)

    def riders(self, draft: Draft) -> tuple[Rider, ...]:
        """Make the ledger's entries of the tokens that rode along; texts on their own."""
        text = self.tokenizer.token_text if self.level != "off" and self.tokenizer is not None else lambda token: ""
        return tuple(Rider(token, text(token), parent) for token, parent in zip(draft.riders, draft.rider_parents, strict=True))

    def guesses(self, draft: Draft, sampling: SamplingParams, position: int) -> tuple[Guess, ...]:
        """What the drafter would have drafted for the output tokens before `position`: its choice in the rows caught up.

        It chooses as it drafts: the argmax, or the first draw of a round that begins there. Rows of the prompt's tokens and of
        those that were given are left out, and with them all before a row that decides nothing.
        """
        if self.level == "off":
            return ()
        found: list[Guess] = []
        for back in range(1, min(len(draft.caught_up), position - self._given) + 1):
            row = draft.caught_up[-back]
            if sampling.greedy:
                token = top_entries(row, 1)[0][0]
            else:
                try:
                    token = draw(probabilities(row, sampling), uniform(sampling.seed, position - back, "draft"))
                except ValueError:  # not finite: the draft's own rows say so where it matters
                    break
            found.append(Guess(token, float(softmax(row)[token])))
        return tuple(reversed(found))

    def _texts(self, decision: Decision, draft: Draft) -> tuple[list[str], str]:
        """Incremental texts: accepted and final tokens join; the others stand where they would have."""
        texts = [""] * len(decision.trials)
        if self.level == "off" or self.detokenizer is None:
            return texts, ""
        parents: Sequence[int] = draft.parents if draft.parents is not None else range(-1, len(texts) - 1)
        accepted = set(decision.path)
        # Node -> the accepted node (or -1) that it hangs off, and the tokens from there to it.
        hangs: dict[int, tuple[int, list[int]]] = {}
        for index, parent in enumerate(parents):
            if index not in accepted:
                root, before = (parent, []) if parent < 0 or parent in accepted else hangs[parent]
                hangs[index] = (root, [*before, draft.tokens[index]])
        for node in (-1, *decision.path):
            if node >= 0:
                texts[node] = self.detokenizer.add(draft.tokens[node])
            here = [index for index, (root, _) in hangs.items() if root == node]
            inner = {parents[index] for index in here}
            for leaf in here:
                if leaf in inner:
                    continue
                branch, index = [], leaf
                while index != node:
                    branch.append(index)
                    index = parents[index]
                branch.reverse()
                for place, text in zip(branch, self.detokenizer.peek(hangs[leaf][1]), strict=True):
                    texts[place] = text
        final = "" if decision.final is None else self.detokenizer.add(decision.final[0])
        return texts, final

    def _drafted(
        self, rule: str, index: int, trial: Trial, text: str, rows: DecisionRows, draft: Draft
    ) -> DraftedToken:
        row = index if draft.parents is None else draft.parents[index] + 1
        p, confidence, margin = trial.p, None, None
        p_top: tuple[Candidate, ...] = ()
        q_top: tuple[Candidate, ...] = ()
        residual_top: tuple[Candidate, ...] = ()
        entropy = None
        if draft.confidences:
            confidence = draft.confidences[index]
        if self.level != "off":
            if p is None:
                p = rows.probability(row, trial.id)
            if rule == "greedy":
                margin = top_margin(rows.logits[row])
            raw_q = None
            if draft.raw_logits is not None and (self.level == "full" or confidence is None):
                raw_q = softmax(draft.raw_logits[index])
                if confidence is None:
                    confidence = float(raw_q[trial.id])
            if self.level == "full":
                raw_p = softmax(rows.logits[row])
                p_top, entropy = self.top(raw_p), entropy_of(raw_p)
                if raw_q is not None:
                    q_top = self.top(raw_q)
                if trial.residual is not None:
                    rest = trial.residual
                    residual_top = self.top(rest / array_namespace(rest).sum(rest))
        numbers = {name: getattr(trial, name) for name in ("id", "verdict", "q", "accept", "u", "draw", "threshold")}
        return DraftedToken(
            **numbers, p=p, text=text, confidence=confidence, margin=margin, p_top=p_top, q_top=q_top,
            residual_top=residual_top, entropy=entropy,
        )  # fmt: skip

    def _final(self, decision: Decision, text: str, rows: DecisionRows) -> FinalToken | None:
        if decision.final is None:
            return None
        token, kind, p = decision.final
        if self.level == "off":
            return FinalToken(id=token, kind=kind, p=p)
        logits = rows.logits[decision.path[-1] + 1 if decision.path else 0]
        margin = top_margin(logits)
        if self.level == "light":
            return FinalToken(id=token, kind=kind, text=text, p=p, margin=margin)
        raw = softmax(logits)
        return FinalToken(
            id=token, kind=kind, text=text, p=p, margin=margin, p_top=self.top(raw), entropy=entropy_of(raw)
        )

    def top(self, p: Array) -> tuple[Candidate, ...]:
        """The likeliest tokens of a distribution [vocab] with their texts; zeros left out."""
        assert self.tokenizer is not None
        ids, values = top_entries(p, TOP)
        return tuple(
            (token, self.tokenizer.token_text(token), value)
            for token, value in zip(ids, values, strict=True)
            if value > 0
        )


def top_margin(logits: Array) -> float:
    """Top-1 minus top-2 logit of a row [vocab]."""
    _, values = top_entries(logits, 2)
    return float(values[0] - values[1]) if len(values) > 1 else float("inf")


def after(tokenizer: Tokenizer, given: Sequence[int]) -> tuple[Detokenizer, str]:
    """A detokenizer that has these tokens behind it, and their text, but for a character that is not complete yet."""
    detokenizer = tokenizer.detokenizer()
    return detokenizer, "".join([detokenizer.add(token) for token in given])


def join_text(tokenizer: Tokenizer, tokens: Sequence[int], given: Sequence[int] = ()) -> str:
    """The text of output tokens after those that are given, as an incremental detokenizer gives it."""
    detokenizer, _ = after(tokenizer, given)
    return "".join(detokenizer.add(token) for token in tokens) + detokenizer.flush()
