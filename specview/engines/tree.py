"""The shape of a draft tree that is verified in one pass: who sees whom, its branches, and chains that cover it.

Tree attention (Miao et al. 2023, arXiv 2305.09781; Cai et al. 2024, arXiv 2401.10774): each token of the
pass sees the whole cache and its own ancestors, at the position of its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from specview.decoding.ledger import depths


class Tree:
    """Per token the index of the one it follows (parents), -1 for the cache's last token; depths count from 0."""

    def __init__(self, parents: tuple[int, ...]) -> None:
        self.parents = parents
        self.depths = depths(parents)

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def height(self) -> int:
        """Tokens of the longest branch."""
        return max(self.depths, default=-1) + 1

    @cached_property
    def sees(self) -> np.ndarray:
        """[n, n], True where row i may look at token j: itself and its ancestors."""
        width = -(-len(self.parents) // 8)
        # Bit j of a token's number: it sees token j. Python's integers do 200 tokens in 0.1 ms.
        bits: list[int] = []
        for index, parent in enumerate(self.parents):
            bits.append((bits[parent] if parent >= 0 else 0) | 1 << index)
        packed = np.frombuffer(b"".join(number.to_bytes(width, "little") for number in bits), dtype=np.uint8)
        seen = np.unpackbits(packed.reshape(-1, width), axis=1, count=len(bits), bitorder="little")
        return seen.view(np.bool_)

    @cached_property
    def branches(self) -> list[tuple[int, ...]]:
        """Every path from the root to a leaf, as token indices, depth first: those through one token stand side by side."""
        children: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]  # the last is the root's
        for index, parent in enumerate(self.parents):
            children[parent].append(index)
        found: list[tuple[int, ...]] = []
        path: list[int] = []
        waiting = children[-1][::-1]
        while waiting:
            index = waiting.pop()
            path[self.depths[index] :] = [index]
            if children[index]:
                waiting += children[index][::-1]
            else:
                found.append(tuple(path))
        return found

    @cached_property
    def spans(self) -> tuple[list[int], list[int]]:
        """Per token the first branch through it, and how many go through it."""
        first, count = [0] * len(self), [0] * len(self)
        for branch, nodes in enumerate(self.branches):
            for node in nodes:
                first[node] = branch if not count[node] else first[node]
                count[node] += 1
        return first, count

    @cached_property
    def chains(self) -> list[tuple[int, ...]]:
        """Of each branch what the one before it does not share: together they cover the tree, each token once."""
        befores: list[tuple[int, ...]] = [(), *self.branches]
        return [branch[shared_length(branch, before) :] for branch, before in zip(self.branches, befores, strict=False)]


_tree_of = lru_cache(maxsize=64)(Tree)


def read_tree(parents: Sequence[int] | None, tokens: int) -> Tree | None:
    """Return the tree of so many tokens, None for a chain. Raises ValueError where a parent is no earlier token."""
    if parents is None:
        return None
    if len(parents) != tokens or any(not -1 <= parent < index for index, parent in enumerate(parents)):
        raise ValueError(f"{tokens} tokens with parents {list(parents)} are no tree")
    return None if all(parent == index - 1 for index, parent in enumerate(parents)) else _tree_of(tuple(parents))


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning of two paths."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


def move_together(buffer: Any, dimension: int, start: int, path: Sequence[int]) -> None:
    """Put the entries start + path[i] of a torch buffer at start + i, along one dimension; path rises."""
    import torch

    moved = next((at for at, index in enumerate(path) if index != at), len(path))
    if moved == len(path):
        return
    with torch.inference_mode():
        source = torch.tensor([start + index for index in path[moved:]], device=buffer.device)
        buffer.narrow(dimension, start + moved, len(path) - moved).copy_(buffer.index_select(dimension, source))
