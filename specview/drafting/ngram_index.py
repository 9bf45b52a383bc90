"""What the n-gram drafters share: hashes of a sliding window, and the texts of earlier runs.

llama.cpp's n-gram methods scan the text backwards for the last n tokens. Here a window's hash is rolled
on by one multiplication a token and looked up in a dict, so a lookup takes the same time at any length
of the text; a hit is compared token by token, so a collision of hashes never drafts.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from specview.decoding.interfaces import OnChunk
from specview.decoding.ledger import Array, Round
from specview.drafting.base import ModelFreeDrafter
from specview.errors import UsageError
from specview.settings.options import Option, Value

if TYPE_CHECKING:
    from specview.drafting.method import DrafterContext

Memory = TypeVar("Memory")

PRIME = (1 << 61) - 1
BASE = 6364136223846793005 % PRIME
LARGEST = 1024
SEPARATOR = -1  # between the texts of two runs: no token, so that nothing matches across it

TIE = Option(
    "tie",
    False,
    "Keep what this drafter learned for its next run with these settings on this target; off, every run "
    "starts anew. llama.cpp's server always keeps it. Lanes of one race never learn from each other.",
    label="tie runs",
)


def preset_option(text: str) -> Option:
    """Make the option that chooses between the presets "code" and "text"; `text` says what text's are."""
    return Option(
        "preset",
        "code",
        f"Values for the options below that are left alone. code: llama.cpp's defaults. text: {text}",
        choices=("code", "text"),
    )


class RollingHashes:
    """Hashes of every window of n tokens of a text that grows: hashes[i] is that of text[i : i + n].

    hash = sum of token * base^(n - 1 - place), modulo `modulus`. A token costs one step.
    """

    def __init__(self, n: int, base: int = BASE, modulus: int = PRIME) -> None:
        self.n = n
        self.base, self.modulus = base, modulus
        self.top = pow(base, n - 1, modulus)
        self.hashes = array("q")
        self._size = 0  # tokens taken
        self._last = 0  # hash of the last n of them (of all while there are fewer)

    def extend(self, text: Sequence[int]) -> None:
        """Take the tokens of `text` beyond those taken before."""
        n, base, modulus, top, last = self.n, self.base, self.modulus, self.top, self._last
        append = self.hashes.append
        for place in range(self._size, len(text)):
            if place >= n:
                last = ((last - text[place - n] * top) * base + text[place]) % modulus
                append(last)
            else:
                last = (last * base + text[place]) % modulus
                if place == n - 1:
                    append(last)
        self._size = max(self._size, len(text))
        self._last = last


class EarlierRuns:
    """The texts of earlier runs, oldest first, within bounds: the oldest are dropped whole.

    version changes whenever the texts do.
    """

    def __init__(self, max_tokens: int, max_runs: int | None = None) -> None:
        self.max_tokens, self.max_runs = max_tokens, max_runs
        self.runs: deque[array[int]] = deque()
        self.tokens = 0
        self.version = 0
        self.dropped = 0  # runs dropped so far

    def add(self, text: Sequence[int]) -> None:
        """Add a run's text; of one longer than the bound, its end."""
        kept = array("i", text[-self.max_tokens :] if self.max_tokens else ())
        if not kept:
            return
        self.runs.append(kept)
        self.tokens += len(kept)
        self.version += 1
        self.evict()

    def evict(self) -> None:
        """Drop the oldest runs until the bounds hold; where memory is the bound, an eighth more.

        An index over the runs is built anew after a change: the eighth makes that rare.
        """
        limit = self.max_tokens if self.tokens <= self.max_tokens else self.max_tokens * 7 // 8
        most = len(self.runs) if self.max_runs is None else self.max_runs
        while self.runs and (len(self.runs) > most or (self.tokens > limit and len(self.runs) > 1)):
            self.tokens -= len(self.runs.popleft())
            self.version += 1
            self.dropped += 1


def check_window(context: DrafterContext, method: str, option: Option) -> None:
    """Raise UsageError where an n-gram size is more than the run's text can ever hold.

    The default size is no error in a run that is simply short: it drafts nothing.
    """
    size = int(context.options[option.name])
    if size + 1 >= context.max_length and size > int(option.default):
        raise UsageError(
            f"{method}: {option.name} is {size}, and this run's text is at most {context.max_length} tokens "
            "long, so an n-gram can never come back.",
            f"Use {option.name}={max(1, min(int(option.default), context.max_length // 2))} or so.",
        )


def key_options(
    method: str, key: str, label: str, most: str, hits: str, text: str, *, ignored: bool = True
) -> tuple[Option, ...]:
    """Options of a method that looks n-grams up, as llama.cpp has them: preset, size_n, size_m, min_hits.

    key, most and hits say what the last three are, label what size_n is called, text what the preset "text" has; ignored
    that llama.cpp takes min_hits and never reads it.
    """

    def option(name: str, default: int, says: str, label: str, tail: str = "") -> Option:
        flag = f"llama.cpp: --spec-{method}-{name.replace('_', '-')}, default {default}{tail}"
        return Option(name, default, f"{says} ({flag}).", 1, LARGEST, label=label)

    return (
        preset_option(text),
        option("size_n", 12, key, label),
        option("size_m", 48, most, "draft"),
        option("min_hits", 1, hits, "minimum hits", f", which its {method} takes but ignores" if ignored else ""),
    )


KEY_PRESETS: Mapping[str, Mapping[str, Value]] = {
    "code": {"size_n": 12, "size_m": 48, "min_hits": 1},
    "text": {"size_n": 8, "size_m": 48, "min_hits": 2},
}
"""llama.cpp's own values, and those for prose: it repeats shorter runs, and less surely."""


class TiedDrafter(ModelFreeDrafter, Generic[Memory]):
    """A drafter whose runs may be tied: it then has a memory, and collects the run's text for the next one."""

    def __init__(self, options: Mapping[str, Value] | None = None, memory: Memory | None = None) -> None:
        super().__init__(options)
        self._memory = memory
        self._text: list[int] = []

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run with the prompt as its text."""
        super().begin(prompt, on_chunk)
        self._text = [] if self._memory is None else list(prompt)

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Count how guesses held, and collect the output where runs are tied."""
        super().observe(round_, features)
        if self._memory is not None:
            self._text += round_.emitted

    def keep(self, memory: Memory, text: list[int]) -> None:
        """Leave what was learned from a run's text to the next one."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave what was learned to the next run, where runs are tied, and drop the rest."""
        text, self._text = self._text, []
        try:
            if self._memory is not None and text:
                self.keep(self._memory, text)
        finally:
            self.forget()
