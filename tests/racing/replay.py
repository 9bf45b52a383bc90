"""Test helper: the real loop over recorded texts, on a clock that moves by a cost table.

The target's rows are one-hot at the recorded output, the draft model's guesses are the recorded ones;
loop, rule, drafters and policies are the product's. Ids are renumbered from 0 so that rows stay short.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from specview.decoding.interfaces import Forward
from specview.decoding.ledger import EMPTY_DRAFT, Draft, Round
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.base import BaseDrafter
from tests.decoding.toy import FakeClock

LEDGER = Path(__file__).parent / "data" / "ledger.json"


@dataclass(frozen=True)
class Table:
    """What things cost, seconds."""

    passes: Mapping[int, float]
    draft_step: float
    draft_start: float
    other: float
    copy: float

    def pass_s(self, rows: int) -> float:
        at = list(self.passes)
        place = bisect_left(at, rows)
        if place < len(at) and at[place] == rows:
            return self.passes[rows]
        place = min(place, len(at) - 1)
        low, high = at[place - 1], at[place]
        return self.passes[low] + (self.passes[high] - self.passes[low]) * (rows - low) / (high - low)


@dataclass(frozen=True)
class Text:
    """A recorded text: prompt and output ids, and at each output position the draft's next ids."""

    name: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    ahead: tuple[tuple[int, ...], ...]
    sure: tuple[tuple[float, ...], ...]
    vocab: int

    def draft(self, position: int, k: int) -> tuple[list[int], list[float]]:
        """The draft's greedy guesses at an output position; after its first wrong one any will do."""
        tokens: list[int] = []
        sure: list[float] = []
        while len(tokens) < k:
            at = position + len(tokens)
            right = tuple(tokens) == self.output[position:at]
            if at >= len(self.ahead) or not right:
                tokens.append(0)
                sure.append(0.5)
                continue
            for token, percent in zip(self.ahead[at], self.sure[at], strict=True):
                tokens.append(token)
                sure.append(percent)
        return tokens[:k], sure[:k]


@cache
def ledger() -> tuple[Table, dict[str, Text]]:
    """The recorded cost table and texts."""
    document = json.loads(LEDGER.read_text(encoding="utf-8"))
    table = Table(
        {int(rows): seconds for rows, seconds in document["pass_s"].items()},
        document["draft_step_s"],
        document["draft_start_s"],
        document["other_s"],
        document["copy_s"],
    )
    texts = {}
    for name, text in document["texts"].items():
        number: dict[int, int] = {}

        def renumbered(ids: Sequence[int], number: dict[int, int] = number) -> tuple[int, ...]:
            return tuple(number.setdefault(token, len(number)) for token in ids)

        prompt, output = renumbered(text["prompt"]), renumbered(text["output"])
        ahead = tuple(renumbered(ids) for ids in text["ahead"])
        sure = tuple(tuple(percent / 100 for percent in row) for row in text["sure"])
        texts[name] = Text(name, prompt, output, ahead, sure, len(number))
    return table, texts


class ReplaySession:
    """A session whose rows point at the recorded output."""

    def __init__(self, text: Text, table: Table, clock: FakeClock) -> None:
        self.text, self.table, self.clock = text, table, clock
        self.length = len(text.prompt) - 1
        self._base = 0
        full = [*text.prompt, *text.output, 0]
        self._next = np.array(full[1:] + [0] * 256)

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, features: Sequence[Any] = ()
    ) -> Forward:
        if parents is None:
            depth = np.arange(len(tokens))
        else:
            found: list[int] = []
            for parent in parents:
                found.append(0 if parent < 0 else found[parent] + 1)
            depth = np.array(found)
        rows = np.zeros((len(tokens), self.text.vocab), dtype=np.float32)
        rows[np.arange(len(tokens)), self._next[self.length + depth]] = 10.0
        self._base = self.length
        self.length += len(tokens)
        self.clock.now += self.table.pass_s(len(tokens))
        return Forward(rows)

    def truncate(self, length: int) -> None:
        self.length = length
        self.clock.now += self.table.other

    def keep(self, path: Sequence[int]) -> None:
        self.truncate(self._base + len(path))

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


class RecordedDraft(BaseDrafter):
    """Stands for `draft-model`: its guesses are the recorded ones, on the table's time."""

    name = "draft-model"

    def __init__(self, text: Text, table: Table, clock: FakeClock) -> None:
        self.text, self.table, self.clock = text, table, clock

    def start(self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: Any = None) -> None:
        assert tuple(prompt_tokens) == self.text.prompt

    def propose(
        self, context: Sequence[int], budget: int, proceed: Callable[[float], bool] | None = None
    ) -> Draft:
        if budget <= 0:
            return EMPTY_DRAFT
        tokens, sure = self.text.draft(len(context) - len(self.text.prompt), budget)
        if proceed is not None:
            for place, confidence in enumerate(sure):
                if not proceed(confidence):
                    tokens, sure = tokens[: place + 1], sure[: place + 1]
                    break
        self.clock.now += self.table.draft_start + len(tokens) * self.table.draft_step
        return Draft(tuple(tokens), confidences=tuple(sure) if proceed else (), drafter=self.name)


class Timed(BaseDrafter):
    """A model-free drafter of the product, with the table's time for a look-up."""

    def __init__(self, inner: Any, table: Table, clock: FakeClock) -> None:
        self.inner, self.table, self.clock = inner, table, clock
        self.name, self.exact_q = inner.name, inner.exact_q
        self.feature_layers, self.prompt_layers = inner.feature_layers, inner.prompt_layers

    def start(self, *args: Any) -> None:
        self.inner.start(*args)

    def propose(self, *args: Any) -> Draft:
        self.clock.now += self.table.copy
        return self.inner.propose(*args)

    def observe(self, *args: Any) -> None:
        self.inner.observe(*args)

    def close(self) -> None:
        self.inner.close()


def replay(
    text: Text,
    table: Table,
    drafter: Any,
    policy: Any,
    clock: FakeClock,
    k: int = 1,
    on_round: Callable[[Round], None] = lambda round_: None,
) -> list[Round]:
    """Run the loop over a recorded text; checks that the output is the recorded one."""
    session = ReplaySession(text, table, clock)
    if drafter is not None:
        drafter.start(list(text.prompt), SamplingParams())
        policy.start(k)
    sequence = TokenSequence(list(text.prompt))
    rounds = []
    for round_ in decode(
        session,
        sequence,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=len(text.output),
        drafter=drafter,
        policy=policy,
        clock=clock,
    ):
        on_round(round_)
        rounds.append(round_)
    assert tuple(sequence.output) == text.output
    return rounds
