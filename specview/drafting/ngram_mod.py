"""`ngram-mod`: a table from the hash of the last n tokens to the token that followed them.

llama.cpp's --spec-type ngram-mod (common/ngram-mod.cpp, common/speculative.cpp; b11434), with its table,
hash, parameters, defaults and rules: 4,194,304 entries of 4 bytes whatever the text's length, no check
against collisions, the last writer wins; new n-grams enter in chunks; a draft follows the table from token
to token and counts only from n_min tokens on; five drafts in a row of which less than a quarter was
accepted make it forget, and a table a quarter full is emptied before the next run.

With tied runs, this run's n-grams are in a table of their own before the earlier runs': the same as one
table where the last writer wins, and forgetting need not read the whole text again. Two differences, on
purpose: a draft that k cut short is measured by what was drafted; a full table is emptied before the
prompt enters it, not after, so that the prompt is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specview.decoding.interfaces import OnChunk
from specview.decoding.ledger import Array, Round
from specview.drafting.base import Guess
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.ngram_index import (
    LARGEST,
    TIE,
    RollingHashes,
    TiedDrafter,
    check_window,
    preset_option,
)
from specview.errors import UsageError
from specview.settings.options import Option, Value

ENTRIES = 4 * 1024 * 1024
FACTOR = 6364136223846793005  # of a linear congruential generator (Knuth's MMIX)
EMPTY = -1
CHUNK = 32
FULL = 0.25
POOR = 0.25  # accepted share of a draft
POOR_IN_A_ROW = 5

OPTIONS = (
    preset_option(
        "16 tokens to match, 8 to 32 drafted. 24 tokens in a row and 48 more hardly ever come back in prose; "
        "below 16 llama.cpp itself warns of poor drafts."
    ),
    Option(
        "n_match",
        24,
        "Last tokens that are hashed and looked up; few tell too little "
        "(llama.cpp: --spec-ngram-mod-n-match, default 24; it warns below 16).",
        1,
        LARGEST,
        label="n-gram",
    ),
    Option(
        "n_min",
        48,
        "Tokens that the table must lead to before any is drafted (llama.cpp: --spec-ngram-mod-n-min, default 48).",
        0,
        LARGEST,
        label="shortest draft",
    ),
    Option(
        "n_max",
        64,
        "Tokens drafted at most; a round drafts at most k of them (llama.cpp: --spec-ngram-mod-n-max, default 64).",
        1,
        LARGEST,
        label="longest draft",
    ),
    TIE,
)

PRESETS: Mapping[str, Mapping[str, Value]] = {
    "code": {"n_match": 24, "n_min": 48, "n_max": 64},
    "text": {"n_match": 16, "n_min": 8, "n_max": 32},
}


def _empty_table() -> array[int]:
    return array("i", (EMPTY,)) * ENTRIES


@dataclass(slots=True)
class ModMemory:
    """The table of earlier runs, for those that are tied together."""

    table: array[int] = field(default_factory=_empty_table)
    used: int = 0

    def clear(self) -> None:
        """Forget everything."""
        if self.used:
            self.table, self.used = _empty_table(), 0

    def add(self, text: Sequence[int], hashes: Sequence[int], n: int) -> None:
        """Enter every n-gram of a run that a token follows; hashes[i] is that of text[i : i + n]."""
        for place in range(len(text) - n):
            entry = hashes[place]
            self.used += self.table[entry] == EMPTY
            self.table[entry] = text[place + n]


def check(options: Mapping[str, Value]) -> None:
    """Raise UsageError where the lengths do not fit together."""
    if options["n_min"] > options["n_max"]:  # type: ignore[operator]
        raise UsageError(
            f"ngram-mod: its shortest draft, n_min ({options['n_min']}), is longer than its longest, n_max "
            f"({options['n_max']}).",
            "Set n_min to n_max or less.",
        )


class NgramMod(TiedDrafter[ModMemory]):
    """Drafts along a table of constant size."""

    name = "ngram-mod"
    OPTIONS = OPTIONS

    def __init__(self, options: Mapping[str, Value] | None = None, memory: ModMemory | None = None) -> None:
        super().__init__(options, memory)
        self._n = int(self.options["n_match"])
        self._n_min, self._n_max = int(self.options["n_min"]), int(self.options["n_max"])
        check(self.options)
        self._table = _empty_table()
        self.forget()

    def forget(self) -> None:
        """Drop all but the table, whose 16 MB are emptied only where something is in it."""
        self._windows = RollingHashes(self._n, FACTOR % ENTRIES, ENTRIES)
        self._earlier: array[int] | None = None
        self._added = 0  # n-grams in the table
        self._catch_up = False
        self._poor = 0

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run with an empty table."""
        if self._added or not self._table:
            self._table = _empty_table()
        super().begin(prompt, on_chunk)

    def read(self, prompt: Sequence[int]) -> None:
        """Enter the prompt's n-grams."""
        if self._memory is not None:
            if self._memory.used > FULL * ENTRIES:
                self._memory.clear()
            self._earlier = self._memory.table if self._memory.used else None
        self._add(prompt, len(prompt))

    def guess(self, context: Sequence[int], budget: int) -> Guess:
        """Follow the table from the last n tokens on; nothing where it leads to fewer than n_min."""
        n, size = self._n, len(context)
        if size - 1 < n:
            return ()
        if self._catch_up and size - 1 <= CHUNK:
            return ()  # forgotten, and the first chunk is not full yet
        if self._catch_up or self._added + CHUNK < size - 1:
            self._add(context, size - 1)
            self._catch_up = False
        self._windows.extend(context)
        windows, table, earlier = self._windows, self._table, self._earlier
        base, modulus, top = windows.base, windows.modulus, windows.top
        entry = windows.hashes[size - n]
        run = list(context[size - n :])
        for place in range(min(self._n_max, max(self._n_min, budget))):
            token = table[entry]
            if token == EMPTY and earlier is not None:
                token = earlier[entry]
            if token == EMPTY:
                if place < self._n_min:
                    return ()
                break
            entry = ((entry - run[place] * top) * base + token) % modulus
            run.append(token)
        return run[n:]

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Count poor drafts; after five in a row forget the earlier runs, and enter what is due."""
        super().observe(round_, features)
        if round_.drafter != self.name or not round_.k:
            return
        self._poor = self._poor + 1 if round_.accepted / round_.k < POOR else 0
        if self._poor >= POOR_IN_A_ROW:
            self._poor = 0
            self._earlier = None
            self._catch_up = True
            if self._memory is not None:
                self._memory.clear()

    def keep(self, memory: ModMemory, text: list[int]) -> None:
        """Leave the run's n-grams to the next one."""
        self._windows.extend(text)
        memory.add(text, self._windows.hashes, self._n)

    def close(self) -> None:
        """Leave the run's n-grams to the next one, where runs are tied, and free the table."""
        super().close()
        self._table = array("i")

    def _add(self, context: Sequence[int], length: int) -> None:
        """Enter the n-grams that a token of context[:length] follows."""
        self._windows.extend(context)
        n, table, hashes = self._n, self._table, self._windows.hashes
        for place in range(self._added, length - n):
            table[hashes[place]] = context[place + n]
        self._added = max(self._added, length - n)


def make(context: DrafterContext) -> NgramMod:
    """Make the drafter."""
    check_window(context, "ngram-mod", OPTIONS[1])
    key, memory = f"ngram-mod n_match={context.options['n_match']}", None
    if context.options["tie"]:
        memory = context.memory[key] = context.memory.get(key) or ModMemory()
    return NgramMod(context.options, memory)


METHOD = MethodInfo(
    "ngram-mod",
    "n-gram mod",
    "A rolling hash of the last tokens names the next one, in a table of 16 MB; long drafts or none "
    "(llama.cpp ngram-mod).",
    make,
    OPTIONS,
    presets=PRESETS,
    longest="n_max",
    learns_lengths=True,
    check=check,
    place=5,
)
