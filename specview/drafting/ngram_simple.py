"""`ngram-simple`: copy what followed the last n tokens where they last occurred.

llama.cpp's --spec-type ngram-simple (common/ngram-map.cpp, common_ngram_simple_draft; b11434), with its
parameters, defaults and conditions. There the text is scanned; here the place is looked up, with the
same result. llama.cpp takes --spec-ngram-simple-min-hits but its ngram-simple never reads it; here it
counts, as its documentation says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specview.drafting.base import Guess, ModelFreeDrafter
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.ngram_index import KEY_PRESETS, RollingHashes, check_window, key_options
from specview.errors import UsageError
from specview.settings.options import Value

OPTIONS = key_options(
    "ngram-simple",
    "Tokens that must occur again, word for word, before anything is drafted",
    "n-gram",
    "Tokens copied at most; a round drafts at most k of them. As in llama.cpp nothing is drafted until "
    "the text has size_n + size_m + 2 tokens, or where fewer than size_n could be copied",
    "Earlier occurrences of the n-gram that a draft needs",
    "n-grams of 8 that occurred twice before, as prose repeats shorter runs, and less surely.",
)


class NgramSimple(ModelFreeDrafter):
    """Drafts from an index of every n-gram's last place.

    Places are those that llama.cpp's scan finds: not the first token's, and not one token before the
    end. The last token of the context is what llama.cpp calls `sampled`: it ends the n-gram and is
    never copied.
    """

    name = "ngram-simple"
    OPTIONS = OPTIONS

    def __init__(self, options: Mapping[str, Value] | None = None) -> None:
        super().__init__(options)
        self._n, self._m = int(self.options["size_n"]), int(self.options["size_m"])
        self._min_hits = int(self.options["min_hits"])
        if self._m < self._n:
            raise UsageError(
                f"ngram-simple: size_m ({self._m}) is less than size_n ({self._n}), and llama.cpp's rule drafts "
                "nothing shorter than size_n.",
                "Set size_m to size_n or more.",
            )
        self.forget()

    def forget(self) -> None:
        """Drop the index."""
        self._windows = RollingHashes(self._n)
        self._last_place: dict[int, int] = {}
        self._hits: dict[int, int] = {}
        self._indexed = 1

    def guess(self, context: Sequence[int], budget: int) -> Guess:
        """Copy what followed the n-gram's last place; nothing where llama.cpp would draft nothing."""
        self.read(context)
        n, size = self._n, len(context)
        if size - 1 <= n + self._m + 1:
            return ()
        window = self._windows.hashes[size - n]
        place = self._last_place.get(window)
        if place is None or (self._min_hits > 1 and self._hits[window] < self._min_hits):
            return ()
        copied = min(self._m, size - 1 - place - n)
        if copied < n or context[place : place + n] != context[size - n :]:
            return ()
        return context[place + n : place + n + min(copied, budget)]

    def read(self, prompt: Sequence[int]) -> None:
        """Index the n-grams that have become earlier ones."""
        self._windows.extend(prompt)
        hashes, places, hits = self._windows.hashes, self._last_place, self._hits
        end = len(prompt) - self._n - 1
        for place in range(self._indexed, end):
            places[hashes[place]] = place
            if self._min_hits > 1:
                hits[hashes[place]] = hits.get(hashes[place], 0) + 1
        self._indexed = max(self._indexed, end)


def make(context: DrafterContext) -> NgramSimple:
    """Make the drafter."""
    check_window(context, "ngram-simple", OPTIONS[1])
    return NgramSimple(context.options)


METHOD = MethodInfo(
    "ngram-simple",
    "n-gram simple",
    "Copies a long run after the last n-gram of the same n tokens (llama.cpp ngram-simple).",
    make,
    OPTIONS,
    presets=KEY_PRESETS,
    longest="size_m",
    place=2,
)
