"""Held-out acceptance of a draft, from teacher-forced predictions.

The target's greedy answers are written once and kept. Under the greedy rule a drafted token is only
judged while everything before it equals the answer, so one pass of the draft over prompt and answer
tells what every chain would have proposed, and rounds are then walked through without a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specview.errors import Stopped
from specview.training.chat import ChatLayout
from specview.training.plain import COPY_KINDS, plain_sequences
from specview.training.shards import Labelled
from specview.training.small_draft import SmallDraft
from specview.training.target import SlotCache, TargetModel

ANSWER_TOKENS = 160


@dataclass
class Acceptance:
    """Counts over rounds of one draft length; figures are those of DESIGN.md section 6."""

    judged: int = 0
    accepted: int = 0
    passes: int = 0
    emitted: int = 0

    @property
    def alpha(self) -> float | None:
        """Acceptance rate: accepted / judged; None when nothing was judged."""
        return self.accepted / self.judged if self.judged else None

    @property
    def tokens_per_target_pass(self) -> float | None:
        """Emitted / target passes, the prefill's excluded; None without passes."""
        return self.emitted / self.passes if self.passes else None

    def add(self, other: Acceptance) -> None:
        """Add another's counts to these."""
        self.judged += other.judged
        self.accepted += other.accepted
        self.passes += other.passes
        self.emitted += other.emitted


Results = dict[int, dict[str, Acceptance]]
"""By draft length and by prompt kind; the kind `all` sums them up."""


def add_rounds(results: Results, kind: str, agrees: Sequence[bool], deeper: Sequence[Sequence[bool]] | None = None) -> None:
    """Walk through one answer with every draft length (`walk`), and add what was counted."""
    for k, kinds in results.items():
        counts = walk(agrees, k, deeper)
        for name in ("all", kind):
            kinds.setdefault(name, Acceptance()).add(counts)


def walk(agrees: Sequence[bool], k: int, deeper: Sequence[Sequence[bool]] | None = None) -> Acceptance:
    """Rounds of draft length k over one answer.

    agrees[i] says whether the draft, after answer token i, proposes answer token i + 1. Token 0 is
    the prefill's. Every pass yields the accepted tokens and one of the target's own. deeper[d][i], where it is
    given, says instead whether the draft's token d (from 0) after answer token i is right.
    """
    result, at, last = Acceptance(), 0, len(agrees)
    while at < last:
        accepted = 0
        for offset in range(min(k, last - at)):
            result.judged += 1
            if not (agrees[at + offset] if deeper is None else deeper[offset][at]):
                break
            accepted += 1
        emitted = min(accepted + 1, last - at)
        result.accepted += accepted
        result.passes += 1
        result.emitted += emitted
        at += emitted
    return result


@torch.inference_mode()
def greedy_continuations(
    target: TargetModel,
    texts: Sequence[Sequence[int]],
    end: int | None,
    limit: int = ANSWER_TOKENS,
    stop: Callable[[], bool] = lambda: False,
) -> list[list[int]]:
    """What the target greedily writes after each text: up to `end`, which is kept, or `limit` tokens.

    Raises Stopped when asked to.
    """
    cache = SlotCache(target.shape, len(texts), max(map(len, texts)) + limit)
    answers: list[list[int]] = []
    for slot, tokens in enumerate(texts):
        if stop():
            raise Stopped
        keys, values, hidden = target.prefill(list(tokens))
        cache.put(slot, 0, keys, values)
        answers.append([int(target.next_logits(hidden[-1:]).argmax())])
    while True:
        going = [a[-1] != end and len(a) < limit for a in answers]
        if not any(going):
            return answers
        if stop():
            raise Stopped
        positions = torch.tensor([len(t) + len(a) - 1 for t, a in zip(texts, answers, strict=True)])
        hidden = target.step([cache], torch.tensor([a[-1] for a in answers]), positions)
        best = target.next_logits(hidden).argmax(-1).tolist()
        for answer, token, more in zip(answers, best, going, strict=True):
            if more:
                answer.append(token)


@torch.inference_mode()
def agreement(draft: SmallDraft, sequence: Labelled) -> list[bool]:
    """For each answer token but the last, whether the draft's likeliest next token is the next one."""
    first = len(sequence.tokens) - sequence.written
    hidden = draft(sequence.tokens[None, :-1])[0, first:]
    best: Tensor = draft.logits(hidden).argmax(-1)
    return (best == sequence.tokens[first + 1 :]).tolist()


def acceptance(draft: SmallDraft, answers: Sequence[Labelled], lengths: Sequence[int] = (1, 2, 3, 4)) -> Results:
    """Counts of the draft's own chains."""
    draft.eval()
    result: Results = {k: {"all": Acceptance()} for k in lengths}
    for sequence in answers:
        add_rounds(result, sequence.kind, agreement(draft, sequence))
    return result


@torch.inference_mode()
def copying(
    draft: SmallDraft, answers: Sequence[Labelled], layout: ChatLayout, seed: int
) -> dict[str, float]:
    """By kind of copy, the share of repeated tokens that the draft finds, in copies made of `answers`."""
    found, asked = Counter[str](), Counter[str]()
    texts = [a.tokens[-a.written :].tolist() for a in answers] * 3
    for s in plain_sequences(texts, layout, 1 << 60, seed):
        if s.kind in COPY_KINDS:
            best = draft.logits(draft(s.tokens[None, :-1])[0, -s.written :]).argmax(-1)
            found[s.kind] += int((best == s.tokens[-s.written :]).sum())
            asked[s.kind] += s.written
    return {kind: found[kind] / asked[kind] for kind in COPY_KINDS if asked[kind]}


def table(result: Results) -> str:
    """A Markdown table: one row per kind, alpha and tokens per target pass for each draft length."""
    lengths = list(result)
    lines = ["| kind | " + " | ".join(f"k={k}" for k in lengths) + " |", "|---|" + "---|" * len(lengths)]
    for kind in result[lengths[0]]:
        cells = []
        for k in lengths:
            counts = result[k][kind]
            if counts.alpha is None or counts.tokens_per_target_pass is None:
                cells.append("none")
            else:
                cells.append(f"{counts.alpha:.3f} / {counts.tokens_per_target_pass:.3f}")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
