"""`ngram-map-k` and `ngram-map-k4v`: n-grams as keys, with what their drafts were worth before.

llama.cpp's --spec-type ngram-map-k and ngram-map-k4v (common/ngram-map.cpp, common_ngram_map_draft;
b11434), with its parameters, defaults and rules:

- a key's place is the last one known when the key was first seen, and stays it;
- it must be followed by size_m tokens; keys that begin in the last size_n + size_m tokens of the prompt
  are never taken (llama.cpp leaves them out, as a chat's end may be cut off later);
- k remembers for every key, k4v for each of its up to four continuations, how many tokens of its last
  draft were accepted, and never drafts more again;
- k4v drafts only where one continuation was seen at least twice as often as all others together; every
  further lookup of a key counts the continuation at its place once more.

Three differences, on purpose. llama.cpp's hash map loses a key whose slot another one holds; here none is
lost. It ignores --spec-ngram-map-k-min-hits in ngram-map-k; here it counts lookups of the key, as in
ngram-map-k4v. Where one continuation dominates but another stands at the key's place, llama.cpp copies
the latter; here the dominating one is drafted, as its documentation says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specview.decoding.ledger import Array, Round
from specview.drafting.base import Guess
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.ngram_index import (
    KEY_PRESETS,
    SEPARATOR,
    TIE,
    EarlierRuns,
    RollingHashes,
    TiedDrafter,
    check_window,
    key_options,
)
from specview.settings.options import Option, Value

MAX_VALUES = 4
DOMINATES = 2  # times as often as all others together
EARLIER_TOKENS = 1 << 16


def _options(method: str, *, ignored: bool) -> tuple[Option, ...]:
    return (
        *key_options(
            method,
            "Tokens of a key: they must occur again, word for word",
            "key",
            "Tokens that must follow a key, drafted at most; a round drafts at most k of them",
            "Lookups of a key, this one included, before it drafts",
            "keys of 8 tokens that came up twice, as prose repeats shorter runs, and less surely.",
            ignored=ignored,
        ),
        TIE,
    )


Continuations = list[list[int]]  # [place in the text, times seen] each, in the order they were first seen


class Keys:
    """Every key of one text: its place, and (four) the continuations seen up to that place."""

    def __init__(self, n: int, m: int, four: bool) -> None:
        self.n, self.m, self.four = n, m, four
        self.windows = RollingHashes(n)
        self.places: dict[int, int] = {}
        self._seen: dict[int, int | Continuations] = {}  # one place alone is an int: most keys have no more

    def index(self, text: Sequence[int], begin: int, end: int, first: int) -> None:
        """Take in the keys beginning at [begin, end): those from `first` on may be a key's place.

        The keys of one call are looked at together: the last place of a new one counts.
        """
        self.windows.extend(text)
        hashes, places = self.windows.hashes, self.places
        for place in range(begin, end):
            window = hashes[place]
            known = places.get(window)
            if known is not None and known < begin:
                continue
            if self.four:
                self._count(text, window, place)
            if place >= first:
                places[window] = place

    def find(self, text: Sequence[int], context: Sequence[int], window: int) -> int | None:
        """Return the place in `text` of the last n tokens of `context`, whose hash is `window`."""
        place = self.places.get(window)
        if place is None or text[place : place + self.n] != context[-self.n :]:
            return None
        return place

    def continuations(self, window: int) -> Continuations:
        """Return the continuations of a key and how often each was seen."""
        seen = self._seen[window]
        return [[seen + self.n, 1]] if isinstance(seen, int) else [list(one) for one in seen]

    def _count(self, text: Sequence[int], window: int, place: int) -> None:
        seen = self._seen.get(window)
        if seen is None:
            self._seen[window] = place
            return
        if isinstance(seen, int):
            seen = self._seen[window] = [[seen + self.n, 1]]
        m, begin = self.m, place + self.n
        for one in seen:
            if text[one[0] : one[0] + m] == text[begin : begin + m]:
                one[1] += 1
                return
        if len(seen) < MAX_VALUES:
            seen.append([begin, 1])


@dataclass(slots=True)
class MapMemory:
    """What tied runs keep: the texts, and each key's lookups and accepted lengths."""

    runs: EarlierRuns = field(default_factory=lambda: EarlierRuns(EARLIER_TOKENS))
    hits: dict[int, int] = field(default_factory=dict)
    accepted: dict[tuple[int, int], int] = field(default_factory=dict)
    text: list[int] = field(default_factory=list)
    keys: Keys | None = None
    version: int = -1

    def index(self, n: int, m: int, four: bool) -> Keys:
        """Return the keys of all earlier texts, indexed anew where those have changed."""
        if self.keys is None or self.version != self.runs.version:
            self.text = []
            for run in self.runs.runs:
                self.text += [*run, SEPARATOR]
            self.keys = Keys(n, m, four)
            self.keys.index(self.text, 0, len(self.text) - n - m, 0)
            self.version = self.runs.version
        return self.keys


class NgramMap(TiedDrafter[MapMemory]):
    """Drafts what followed a key, as far as it was accepted before."""

    four = False

    def __init__(self, options: Mapping[str, Value] | None = None, memory: MapMemory | None = None) -> None:
        super().__init__(options, memory)
        self._n, self._m = int(self.options["size_n"]), int(self.options["size_m"])
        self._min_hits = int(self.options["min_hits"])
        self.forget()

    def forget(self) -> None:
        """Drop the index, and what its keys were worth."""
        self._keys = Keys(self._n, self._m, self.four)
        self._earlier: Keys | None = None
        self._earlier_text: list[int] = []
        self._hits: dict[int, int] = {}
        self._accepted: dict[tuple[int, int], int] = {}
        self._again: dict[int, int] = {}  # lookups of a key after its continuations were counted
        self._drafted: tuple[int, int] | None = None  # (key, continuation) of the draft that is out
        self._prompt = 0
        self._indexed = 0

    def read(self, prompt: Sequence[int]) -> None:
        """Index the keys of the prompt."""
        if self._memory is not None:
            self._earlier = self._memory.index(self._n, self._m, self.four)
            self._earlier_text = self._memory.text
            self._hits, self._accepted = dict(self._memory.hits), dict(self._memory.accepted)
        self._prompt = len(prompt)
        self._indexed = max(0, self._prompt - self._n - self._m)
        self._keys.index(prompt, 0, self._indexed, 1)

    def guess(self, context: Sequence[int], budget: int) -> Guess:
        """Draft a continuation of the last n tokens, where one is known that is good enough."""
        self._drafted = None
        n, m, size = self._n, self._m, len(context)
        if size - 1 < 2 * n + m and self._earlier is None or size < n:
            return ()
        end = max(self._indexed, size - 1 - n - m)
        self._keys.index(context, self._indexed, end, self._prompt + 1)
        self._indexed = end
        window = self._keys.windows.hashes[size - n]
        keys, text = self._keys, context
        place = keys.find(text, context, window) if size - 1 >= 2 * n + m else None
        if place is None and self._earlier is not None:
            keys, text = self._earlier, self._earlier_text
            place = keys.find(text, context, window)
        if place is None:
            return ()
        hits = self._hits[window] = self._hits.get(window, 0) + 1
        if hits < self._min_hits:
            return ()
        begin: int | None = place + n
        if self.four:
            begin = self._dominating(keys, text, window, place + n)
            if begin is None:
                return ()
            key = (window, hash(tuple(text[begin : begin + m])))
        else:
            key = (window, 0)
        assert begin is not None
        length = min(m, self._accepted.get(key, m), budget)
        tokens = text[begin : begin + length]
        if text is not context and SEPARATOR in tokens:
            tokens = tokens[: tokens.index(SEPARATOR)]
        if tokens:
            self._drafted = key
        return tokens

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Remember how much of the key's draft was accepted."""
        super().observe(round_, features)
        # A draft that k cut short and that held says nothing of where a longer one would have failed.
        failed = round_.accepted < round_.k or round_.k >= self._m
        if self._drafted is not None and round_.drafter == self.name and round_.k and failed:
            self._accepted[self._drafted] = round_.accepted
        self._drafted = None

    def keep(self, memory: MapMemory, text: list[int]) -> None:
        """Leave the text to the next run, and what its keys were worth."""
        memory.runs.add(text)
        memory.hits.update(self._hits)
        memory.accepted.update(self._accepted)
        for known in (memory.hits, memory.accepted):
            while len(known) > EARLIER_TOKENS:  # as many keys as texts can have, oldest dropped
                known.pop(next(iter(known)))  # type: ignore[call-overload]

    def _dominating(self, keys: Keys, text: Sequence[int], window: int, at_place: int) -> int | None:
        """Return where the continuation begins that is seen far more often than the others, or None."""
        seen = keys.continuations(window)
        again = self._again.get(window, 0)
        self._again[window] = again + 1
        if len(seen) == 1:
            return seen[0][0]
        m = self._m
        for one in seen:
            if again and text[one[0] : one[0] + m] == text[at_place : at_place + m]:
                one[1] += again
        best = max(seen, key=lambda one: one[1])  # the first of equals
        others = sum(one[1] for one in seen) - best[1]
        return best[0] if best[1] >= DOMINATES * others else None


class NgramMapK(NgramMap):
    """One continuation a key."""

    name = "ngram-map-k"
    OPTIONS = _options("ngram-map-k", ignored=True)


class NgramMapK4V(NgramMap):
    """Up to four continuations a key."""

    name = "ngram-map-k4v"
    OPTIONS = _options("ngram-map-k4v", ignored=False)
    four = True


def make(kind: type[NgramMap], context: DrafterContext) -> NgramMap:
    """Make a drafter; tied ones of the same sizes share a memory."""
    check_window(context, kind.name, kind.OPTIONS[1])
    memory = None
    if context.options["tie"]:
        shaping = ",".join(f"{name}={context.options[name]}" for name in ("size_n", "size_m", "min_hits"))
        memory = context.memory.setdefault(f"{kind.name} {shaping}", MapMemory())
    return kind(context.options, memory)


def _method(kind: type[NgramMap], label: str, description: str, place: int) -> MethodInfo:
    return MethodInfo(
        kind.name, label, description, partial(make, kind), kind.OPTIONS,
        presets=KEY_PRESETS, longest="size_m", learns_lengths=True, place=place,
    )  # fmt: skip


MAP_K = _method(
    NgramMapK,
    "n-gram map k",
    "Keeps n-grams that recurred in a hash map, and how much of each one's last draft held (llama.cpp ngram-map-k).",
    3,
)
MAP_K4V = _method(
    NgramMapK4V,
    "n-gram map k4v",
    "Keeps up to four continuations of each n-gram and drafts when one of them dominates (llama.cpp ngram-map-k4v).",
    4,
)
