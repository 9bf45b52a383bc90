"""`lookahead`: Jacobi iteration collects n-grams while the target verifies those collected before.

Fu, Bailis, Stoica, Zhang 2024 (arXiv 2402.02057), algorithm 2 and figure 2; option names as in
hao-ai-lab/LookaheadDecoding. One target pass does both: the n-grams that begin with the last token are a
draft tree, the window of guesses rides along and its rows say how it moves on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.decoding.interfaces import OnChunk, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Rider, Round, depths
from specview.decoding.sampling import likeliest_ids
from specview.drafting.base import ModelFreeDrafter, going_on
from specview.drafting.method import DrafterContext, MethodInfo
from specview.errors import SpecviewError
from specview.settings.options import Option, Value

OPTIONS = (
    Option(
        "window_size",
        3,
        "W: how many positions ahead the window guesses. Its (N - 1) W - 1 tokens are rows of every pass: a "
        "few pay on a CPU, more on a GPU (LookaheadDecoding: WINDOW_SIZE, 7 to 20 in its examples).",
        2,
        128,
        label="window W",
    ),
    Option(
        "level",
        3,
        "N: the length of the n-grams collected; a draft is up to N - 1 tokens long (LookaheadDecoding: "
        "LEVEL, 5 to 7 in its examples).",
        3,
        16,
        label="n-gram N",
    ),
    Option(
        "guess_set_size",
        3,
        "G: n-grams kept for each first token, the latest ones, and so the most that one pass verifies "
        "(LookaheadDecoding: GUESS_SET_SIZE, equal to W in its examples).",
        1,
        64,
        label="guesses G",
    ),
    Option(
        "pool_from_prompt",
        True,
        "Also collect the n-grams of the prompt and the output (LookaheadDecoding: POOL_FROM_PROMPT, off "
        "unless asked for).",
        label="n-grams of the text too",
    ),
)

Ngram = tuple[int, ...]


class Pool:
    """The n-grams collected: by first token the latest `size` continuations."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._after: dict[int, dict[Ngram, None]] = {}  # a dict keeps its order: the latest is last

    def add(self, ngram: Sequence[int]) -> None:
        """Add an n-gram as the latest of its first token; the oldest makes room."""
        after = self._after.setdefault(ngram[0], {})
        rest = tuple(ngram[1:])
        after.pop(rest, None)
        after[rest] = None
        if len(after) > self._size:
            del after[next(iter(after))]

    def after(self, token: int) -> list[Ngram]:
        """What was seen to follow a token, the latest first."""
        return list(reversed(self._after.get(token, {})))

    def __len__(self) -> int:
        return sum(map(len, self._after.values()))


class Window:
    """The guesses about the tokens ahead: levels of a Jacobi iteration, the oldest first.

    The token of level l in column j stands l + j places after the context's last token (which is column 0
    of level 0 itself: that level has one token fewer) and follows level l - 1 in its column, or in level 0
    the column before. So a column read downwards, from its place in level 0, is an n-gram to be. Until it
    has all N - 1 levels the window gains one a pass.
    """

    def __init__(self, level: int, first: Sequence[int]) -> None:
        """Begin with level 0 alone, `first`, of W + N - 3 tokens."""
        self._full = level - 1
        self.levels = [list(first)]

    @property
    def columns(self) -> int:
        """W, or more while levels are still to come; 0 once the window was dropped."""
        return len(self.levels[0]) + 1 if self.levels else 0

    def __len__(self) -> int:
        return sum(map(len, self.levels))

    def shrink(self, room: int) -> None:
        """Let go of the farthest columns until `room` tokens or fewer are left; one column is no window."""
        if len(self) <= room:
            return
        columns = (max(room, 0) + 1) // len(self.levels)
        if columns < 2:
            self.levels = []
        else:
            self.levels = [self.levels[0][: columns - 1], *(level[:columns] for level in self.levels[1:])]

    def forest(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens, level by level, and the parent of each by index (-1 is the context's last token)."""
        parents: list[int] = []
        above = list(range(-1, self.columns - 1))  # who stands over each column of the next level
        for number, level in enumerate(self.levels):
            if number:
                begin = len(parents)
                parents += above
                above = list(range(begin, begin + len(level)))
            else:
                parents += range(-1, len(level) - 1)
        return tuple(token for level in self.levels for token in level), tuple(parents)

    def advance(self, last: int, found: Sequence[int], instead_of_eos: Callable[[int], int]) -> list[Ngram]:
        """Move one place on with what the target found below the deepest level, one token a column.

        last is the context's last token in that pass. Returns the n-grams that are complete now.
        instead_of_eos replaces an end of text, after which there is nothing to guess.
        """
        ngrams: list[Ngram] = []
        levels = self.levels
        if len(levels) == self._full:
            heads = [last, *levels[0]]
            columns = zip(heads, *levels[1:], found, strict=True)
            ngrams = [tuple(column) for column in columns]
            kept = [levels[1][1:], *levels[2:]]
            fresh = list(found)
        else:
            kept = [level[1:] for level in levels]
            fresh = list(found) if len(levels) == 1 else list(found[1:])
        self.levels = [*kept, [instead_of_eos(token) for token in fresh]]
        if self.columns < 2:
            self.levels = []  # shrunk before it was full
        return ngrams


def window_grid(riders: Sequence[Rider]) -> list[list[Rider]]:
    """The window's levels from the riders of a round, by their parents alone.

    levels[0][j] stands in column j + 1 (column 0 is the context's last token), levels[l][j] in column j.
    """
    head = 0
    while head < len(riders) and riders[head].parent == head - 1:
        head += 1
    levels = [list(riders[:head])] if head else []
    level_of = dict.fromkeys(range(-1, head), 0)
    for index in range(head, len(riders)):
        level = level_of[index] = level_of[riders[index].parent] + 1
        if level == len(levels):
            levels.append([])
        levels[level].append(riders[index])
    return levels


class Lookahead(ModelFreeDrafter):
    """Drafts the pooled n-grams that begin with the last token, as a tree that shares their prefixes.

    Guesses are point masses (no q). The window moves on by the target's argmax, at any temperature, and
    one place a pass, however many tokens were accepted (LookaheadDecoding's ALWAYS_FWD_ONE).
    """

    name = "lookahead"
    OPTIONS = OPTIONS

    def __init__(
        self, options: Mapping[str, Value], max_length: int, eos_ids: Collection[int] = frozenset()
    ) -> None:
        super().__init__(options)
        self._window_size = int(options["window_size"])
        self._level = int(options["level"])
        self._from_prompt = bool(options["pool_from_prompt"])
        self._max_length = max_length
        self._eos_ids = eos_ids
        self.begin((), None)

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run: a window of random tokens of the prompt, a pool of its n-grams or an empty one."""
        self._random = random.Random(self._sampling.seed)
        self._filling = [token for token in prompt if token not in self._eos_ids] or list(prompt)
        self.pool = Pool(int(self.options["guess_set_size"]))
        self._pooled = 0  # context tokens whose n-grams are in the pool
        self._last = -1
        self._riding = 0
        self._held: list[int] = []  # by place of the longest path: a tree goes on from no one match
        self._tried: list[int] = []
        size = self._window_size + self._level - 3
        self.window = Window(self._level, [self._any_token(0) for _ in range(size)] if self._filling else ())
        if self._from_prompt:
            self._pool_text(prompt)

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft the pooled n-grams, each up to `budget` tokens, and let the window ride along.

        What does not fit into the session any more is left out: old guesses, then columns of the window.
        """
        if self._from_prompt:
            self._pool_text(context)
        room = self._max_length - len(context)  # of the pass, the last token has its place already
        if budget <= 0 or room <= 0:
            return EMPTY_DRAFT
        shares = self._shares(min(budget, self._level - 1))
        tokens, parents = self._tree(self.pool.after(context[-1]), going_on(shares, proceed), room)
        self.window.shrink(room - len(tokens))
        riders, rider_parents = self.window.forest()
        self._riding, self._last = len(riders), context[-1]
        chain = parents == list(range(-1, len(parents) - 1))
        return Draft(
            tokens=tuple(tokens),
            parents=None if chain else tuple(parents),
            confidences=tuple(shares[place] for place in depths(parents)),
            drafter=self.name,
            riders=riders,
            rider_parents=rider_parents,
        )

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Count how guesses held, and move the window on where it rode in this pass."""
        riding, self._riding = self._riding, 0
        self._count(round_)
        rows = features.get("riders")
        if rows is None or not riding or rows.shape[0] != riding:
            return
        deepest = rows[riding - len(self.window.levels[-1]) :]
        found = likeliest_ids(deepest)
        if -1 in found:  # not finite: the rows that decide will say so
            return
        for ngram in self.window.advance(self._last, found, self._any_token_for_eos):
            self.pool.add(ngram)

    def _tree(self, guesses: Sequence[Ngram], depth: int, room: int) -> tuple[list[int], list[int]]:
        """A prefix tree of the guesses: tokens and parents, at most `depth` deep and `room` tokens large."""
        tokens: list[int] = []
        parents: list[int] = []
        places: dict[tuple[int, int], int] = {}
        for guess in guesses:
            node = -1
            for token in guess[:depth]:
                place = places.get((node, token))
                if place is None:
                    if len(tokens) == room:
                        return tokens, parents
                    place = places[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = place
                if token in self._eos_ids:
                    break
        return tokens, parents

    def _count(self, round_: Round) -> None:
        """Count by depth: a place held when one of the siblings tried there was accepted."""
        if round_.drafter != self.name or not round_.drafted:
            return
        tried: dict[int, bool] = {}
        for token, place in zip(round_.drafted, round_.depths, strict=True):
            if token.verdict != "ignored":
                tried[place] = tried.get(place, False) or token.verdict == "accepted"
        for place in sorted(tried):
            if place == len(self._tried):
                self._tried.append(0)
                self._held.append(0)
            self._tried[place] += 1
            self._held[place] += tried[place]

    def _shares(self, count: int) -> list[float]:
        """The first `count` places' shares of tokens that held; places never tried have the last tried one's."""
        shares = [(held + 1) / (tried + 2) for held, tried in zip(self._held[:count], self._tried, strict=False)]
        last = shares[-1] if shares else 0.5
        return shares + [last] * (count - len(shares))

    def _pool_text(self, context: Sequence[int]) -> None:
        """Pool the n-grams of the text that end after what was pooled before."""
        for end in range(max(self._pooled + 1, self._level), len(context) + 1):
            self.pool.add(context[end - self._level : end])
        self._pooled = len(context)

    def _any_token(self, token: int) -> int:
        return self._random.choice(self._filling)

    def _any_token_for_eos(self, token: int) -> int:
        return self._any_token(token) if token in self._eos_ids else token


def window_rows(window_size: int, level: int) -> int:
    """Most tokens that the window ever has, those of the first passes too."""
    return max((step + 1) * (window_size + level - 2 - step) - 1 for step in range(level - 1))


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass with `guesses` n-grams of `level` tokens and a window: drafts are as long as the n-grams allow."""

    window_size: int
    level: int
    guesses: int

    @property
    def levels(self) -> int:
        """The longest draft."""
        return self.level - 1

    @property
    def leaves(self) -> int:
        """The guesses and the columns of the window."""
        return self.guesses + self.window_size + self.level - 3

    def rows_at(self, k: int) -> int:
        """The guesses and the window."""
        return self.guesses * min(k, self.levels) + window_rows(self.window_size, self.level)


def shape_of(options: Mapping[str, Value]) -> Pass:
    """What a pass holds with these options."""
    return Pass(int(options["window_size"]), int(options["level"]), int(options["guess_set_size"]))


def make(context: DrafterContext) -> Lookahead:
    """Make the drafter; raises SpecviewError where a pass with the window does not fit."""
    options = context.options
    shape = shape_of(options)
    rows = window_rows(shape.window_size, shape.level) + shape.levels + 1
    if rows > context.max_length:
        raise _too_large(options, f"{rows} tokens a pass, and this sequence holds {context.max_length}")
    target = context.target
    if target is not None and target.device == "cpu":
        import psutil

        # Logit rows, once more while they are copied; the sequence's own cache is there already.
        needed = 2 * 4 * context.vocab_size * rows
        free = int(psutil.virtual_memory().available)
        if needed > free:
            what = f"{needed / 1e9:.1f} GB for its logits, and {free / 1e9:.1f} GB are free"
            raise _too_large(options, what)
    return Lookahead(options, context.max_length, target.eos_ids if target is not None else frozenset())


def _too_large(options: Mapping[str, Value], what: str) -> SpecviewError:
    return SpecviewError(
        f"lookahead's window of W {options['window_size']}, N {options['level']} needs {what}.",
        "Use a smaller window_size or level.",
    )


METHOD = MethodInfo(
    "lookahead",
    "lookahead",
    "Guesses n-grams by Jacobi iteration in the same pass that verifies them; no draft model "
    "(Fu et al. 2024).",
    make,
    OPTIONS,
    family="self",
    rides_passes=True,
    seldom_pays=True,
    shape=shape_of,
    place=1,
)
