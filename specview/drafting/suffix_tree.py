"""A suffix tree that counts: how often every run of up to `depth` tokens occurred, and what followed it.

The tree of SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975; snowflakedb/ArcticInference) in its
smallest form, the suffix automaton (Blumer et al. 1985) of all runs of up to `depth` tokens: runs that always
end at the same places share a state, so a text of n tokens has at most 2 n of them, however deep the tree is,
and the text's own suffixes are one chain of links. That chain has `depth` states at most, so appending a
token and drafting take a number of steps that the text's length has no part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROOT = 0
NONE = -1


@dataclass(frozen=True, slots=True)
class Continuation:
    """What most often followed a match: tokens, the share of each among what followed its path so far.

    score is the sum over the tokens of the product of shares up to each, the expected number of hits;
    match is the length in tokens of the match continued.
    """

    tokens: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    score: float = 0.0
    match: int = 0


class SuffixTree:
    """Counts of one text that grows, or of several with a negative token after each.

    Per state: its transitions, the state of its longest suffix that has ended elsewhere too (link), the length
    of its longest run, how often its runs occurred, and the token that most often followed them.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [NONE]
        self._length = [0]
        self._count = [0]
        self._best = [NONE]
        self.end = ROOT  # state of the last `end_length` tokens
        self.end_length = 0  # depth at most

    def __len__(self) -> int:
        """States, the root included."""
        return len(self._next)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; a negative one separates texts and is never proposed."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        nexts, link, length, count, best = self._next, self._link, self._length, self._count, self._best

        # The suffix of depth - 1 tokens at most, which the token makes one longer.
        state, size = self.end, self.end_length
        if size == self.depth:
            size -= 1
            if length[link[state]] >= size:
                state = link[state]
        suffix = state

        if token not in nexts[state]:  # a run never seen: a state for it and for its suffixes likewise
            new = len(nexts)
            nexts.append({})
            link.append(ROOT)
            length.append(size + 1)
            count.append(0)
            best.append(NONE)
            while state != NONE and token not in nexts[state]:
                nexts[state][token] = new
                state = link[state]
            if state != NONE:
                old = nexts[state][token]
                if length[old] == length[state] + 1:
                    link[new] = old
                else:  # the runs of `old` that are suffixes here now end at one more place: they part
                    clone = len(nexts)
                    nexts.append(nexts[old].copy())
                    link.append(link[old])
                    length.append(length[state] + 1)
                    count.append(count[old])
                    best.append(best[old])
                    while state != NONE and nexts[state].get(token) == old:
                        nexts[state][token] = clone
                        state = link[state]
                    link[old] = link[new] = clone
                    if suffix == old and size <= length[clone]:
                        suffix = clone

        # Every suffix of the new text ends once more: the children of those of the old one.
        self.end, self.end_length = nexts[suffix][token], size + 1
        counted = NONE
        state = suffix
        while state != NONE:
            after = nexts[state]
            child = after[token]
            if child != counted:
                count[child] += 1
                counted = child
            likeliest = best[state]
            if likeliest != token and token >= 0:
                # Of equals the last to get there wins, but the first of those seen once (as ArcticInference).
                rival = 0 if likeliest < 0 else count[after[likeliest]]
                if count[child] > rival or count[child] == rival > 1:
                    best[state] = token
            state = link[state]
        self.tokens += 1

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Return state and length of the longest suffix of (a match, token) that the text has, depth at most."""
        nexts, link, length = self._next, self._link, self._length
        while state != ROOT and token not in nexts[state]:
            state = link[state]
            matched = length[state]
        if token not in nexts[state]:
            return ROOT, 0
        state, matched = nexts[state][token], min(matched + 1, self.depth)
        while length[link[state]] >= matched:
            state = link[state]
        return state, matched

    def continuation(
        self, state: int, matched: int, budget: int, factor: float = 1.0, offset: float = 0.0, least: float = 0.1
    ) -> Continuation:
        """Return the best-scoring continuation of a suffix of the match (state, matched).

        Of a match of L tokens at most factor * L + offset tokens are proposed, within budget and depth,
        always the likeliest next, while the product of shares is at least `least`. Of equal scores the
        longest match wins. (SuffixTree::speculate in ArcticInference.)
        """
        nexts, link, length, count, best = self._next, self._link, self._length, self._count, self._best
        depth = self.depth
        found = Continuation()
        matched = min(matched, depth - 1)
        while state != ROOT:
            shortest = length[link[state]] + 1
            if best[state] >= 0 and matched >= shortest:
                ceiling = min(budget, int(matched * factor + offset + 1e-6), depth - shortest)
                if ceiling > found.score:  # no share is above 1
                    tokens: list[int] = []
                    shares: list[float] = []
                    scores = [0.0]
                    node, total = state, count[state]
                    while len(tokens) < ceiling:
                        token = best[node]
                        if token < 0:
                            break
                        child = nexts[node][token]
                        product = count[child] / total  # of the shares up to here: the counts between cancel
                        if product < least:
                            break
                        tokens.append(token)
                        shares.append(count[child] / count[node])
                        scores.append(scores[-1] + product)
                        node = child
                    for match in range(matched, shortest - 1, -1):
                        most = min(budget, int(match * factor + offset + 1e-6), depth - match, len(tokens))
                        if most > 0 and scores[most] > found.score:
                            found = Continuation(tuple(tokens[:most]), tuple(shares[:most]), scores[most], match)
            state = link[state]
            matched = min(matched, length[state])
        return found
