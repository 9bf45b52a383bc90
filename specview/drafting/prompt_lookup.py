"""`prompt-lookup`: copy what followed the same n-gram earlier in the prompt or the output.

Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding); transformers'
`prompt_lookup_num_tokens`. The longest n-gram that occurred before wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specview.drafting.base import Guess, ModelFreeDrafter
from specview.drafting.method import MethodInfo
from specview.errors import UsageError
from specview.settings.options import Option, Value

OPTIONS = (
    Option(
        "ngram_max",
        3,
        "Longest run of last tokens looked up (transformers: max_matching_ngram_size, default 2 there).",
        1,
        32,
        label="longest n-gram",
    ),
    Option("ngram_min", 1, "Shortest run looked up (transformers: 1).", 1, 32, label="shortest n-gram"),
    Option(
        "match",
        "first",
        "Which earlier occurrence is copied: the first (as transformers) or the last.",
        choices=("first", "last"),
        label="occurrence",
    ),
)


def check(options: Mapping[str, Value]) -> None:
    """Raise UsageError where the sizes do not fit together."""
    if options["ngram_min"] > options["ngram_max"]:  # type: ignore[operator]
        raise UsageError(
            f"prompt-lookup's shortest n-gram ({options['ngram_min']}) is longer than its longest "
            f"({options['ngram_max']}).",
            "Set ngram_min to ngram_max or less.",
        )


class PromptLookup(ModelFreeDrafter):
    """Drafts from an index of every n-gram's first or last place; a lookup costs the same at any length."""

    name = "prompt-lookup"
    OPTIONS = OPTIONS

    def __init__(self, options: Mapping[str, Value] | None = None) -> None:
        super().__init__(options)
        self._longest = int(self.options["ngram_max"])
        self._shortest = int(self.options["ngram_min"])
        check(self.options)
        self._keep_first = self.options["match"] == "first"
        self.forget()

    def forget(self) -> None:
        """Drop the index."""
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def read(self, prompt: Sequence[int]) -> None:
        """Index every n-gram that something follows: those ending before the last token."""
        for after in range(max(self._indexed, 1), len(prompt)):
            for n in range(self._shortest, min(self._longest, after) + 1):
                key = tuple(prompt[after - n : after])
                if self._keep_first:
                    self._places.setdefault(key, after)
                else:
                    self._places[key] = after
        self._indexed = max(len(prompt), 1)

    def guess(self, context: Sequence[int], budget: int) -> Guess:
        """Copy up to `budget` tokens that followed the longest n-gram seen before; else nothing."""
        self.read(context)
        size = len(context)
        for n in range(min(self._longest, size - 1), self._shortest - 1, -1):
            after = self._places.get(tuple(context[size - n :]))
            if after is not None:
                return context[after : after + budget]
        return ()


METHOD = MethodInfo.of(
    PromptLookup,
    "Copies what followed the same n-gram earlier in the text; no second model (Saxena 2023).",
    check=check,
    place=1,
)
