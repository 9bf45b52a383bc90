"""A draft tree as llama.cpp's sequences: every root-to-leaf branch is one, and a token belongs to several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The shape of a pass.

    parents   per token the index of the one it follows, -1 for the context's last token
    depths    per token 0 for the context's children, and so on
    branches  every root-to-leaf path, as token indices; in depth-first order, so that those through one
              token stand side by side
    first, count  per token the branches through it: count of them, from first on
    """

    parents: tuple[int, ...]
    depths: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    count: tuple[int, ...]

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return len(self.branches) <= 1

    @property
    def height(self) -> int:
        """Tokens of the longest branch."""
        return max(self.depths, default=-1) + 1

    def require_path(self, path: Sequence[int]) -> tuple[int, ...]:
        """Return the path as a tuple; raises ValueError where it is none from the root."""
        at = -1
        for index in path:
            if not 0 <= index < len(self.parents) or self.parents[index] != at:
                raise ValueError(f"{list(path)} is not a path from the root of the last pass")
            at = index
        return tuple(path)


@lru_cache(maxsize=64)
def token_tree(parents: tuple[int, ...]) -> TokenTree:
    """Work a tree's branches out; raises ValueError where a parent does not come before its child."""
    total = len(parents)
    children: list[list[int]] = [[] for _ in range(total + 1)]  # the last is the root's
    depths: list[int] = []
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise ValueError(f"the parent of token {index} is {parent}: it must be an earlier one, or -1")
        children[parent].append(index)
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    branches: list[tuple[int, ...]] = []
    first, count = [0] * total, [0] * total
    path: list[int] = []
    open_ = list(reversed(children[-1]))
    while open_:
        index = open_.pop()
        del path[depths[index] :]
        path.append(index)
        first[index] = len(branches)
        if children[index]:
            open_ += reversed(children[index])
        else:
            branches.append(tuple(path))
            for node in path:
                count[node] += 1
    return TokenTree(parents, tuple(depths), tuple(branches), tuple(first), tuple(count))


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning of two paths."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
