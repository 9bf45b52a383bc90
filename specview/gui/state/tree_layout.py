"""Where the nodes of one round's draft tree stand. Plain Python: no Qt.

A column for each depth, the context's last token at the left, the token that the target gave at the end of the
accepted path. Nodes that were judged keep room for their words; where ignored ones are too many for the space they
shrink to ticks, so that a tree of 64 nodes is seen whole. A chain is one line, broken where it is wider than the space.
In a narrow column the same nodes stand in an outline: a line each, indented by depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specview.decoding.ledger import Round, depths
from specview.gui.state.view_model import FINAL, TokenKind

ROOT = -1
"""The parent of the context's children, as an index into the nodes."""
MAX_IGNORED, DEEPEST = 12, 8
"""An outline leaves out more ignored drafts than this, and indents no further than this depth: it is narrow."""
Needs = Sequence[tuple[float, float]]
"""Pixels for a node's word and for its number, a pair for each node."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths in pixels: of a judged node in two lines or one, a node with its word only, a tick, and gaps."""

    narrow: float = 36
    usual: float = 66
    wide: float = 118
    two_lines: float = 29
    one_line: float = 17
    tick: float = 3
    tick_wide: float = 16
    gap: float = 3
    column_gap: float = 10
    root: float = 12

    def times(self, factor: float) -> Sizes:
        """The same, larger."""
        return Sizes(*(getattr(self, name) * factor for name in self.__dataclass_fields__))


@dataclass(slots=True)
class Node:
    """A drafted token (place: its index in the round) or the round's final one (FINAL), and its box in pixels.

    parent is an index into the nodes, ROOT for a child of the context. words says whether the box has room for its
    token, number besides for its probability.
    """

    place: int
    parent: int
    depth: int
    verdict: TokenKind
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    words: bool = True
    number: bool = False

    @property
    def judged(self) -> bool:
        """Whether it was tried, or is the target's own."""
        return self.verdict != "ignored"

    @property
    def bright(self) -> bool:
        """Whether it is part of the output."""
        return self.verdict not in ("ignored", "rejected")


@dataclass(slots=True)
class Layout:
    """The nodes, drafted ones first and in their order, and the size of the whole in pixels.

    root is the middle of the context's mark. lines tells that a chain is broken into so many.
    """

    nodes: list[Node]
    width: float = 0.0
    height: float = 0.0
    root: tuple[float, float] = (0.0, 0.0)
    lines: int = 1

    def path(self) -> list[Node]:
        """The accepted path and the final token, from the root on."""
        return sorted((node for node in self.nodes if node.bright), key=lambda node: node.depth)

    def at(self, x: float, y: float) -> Node | None:
        """The node at a point; ticks are caught a little beside them."""
        best, nearest = None, 4.0
        for node in self.nodes:
            dx = max(node.x - x, 0.0, x - node.x - node.width)
            dy = max(node.y - y, 0.0, y - node.y - node.height)
            if math.hypot(dx, dy) < nearest:
                best, nearest = node, math.hypot(dx, dy)
        return best


def nodes_of(round_: Round) -> list[Node]:
    """A round's drafted tokens and its final one, without places."""
    parents = round_.parents or tuple(range(-1, round_.k - 1))
    nodes = [
        Node(place, parent, depth, token.verdict)
        for place, (token, parent, depth) in enumerate(zip(round_.drafted, parents, depths(parents), strict=True))
    ]
    if round_.final is not None:
        path = [place for place, node in enumerate(nodes) if node.verdict == "accepted"]
        last = max(path, key=lambda place: nodes[place].depth, default=ROOT)
        nodes.append(Node(FINAL, last, 0 if last == ROOT else nodes[last].depth + 1, round_.final.kind))
    return nodes


def lay_out(
    round_: Round, width: float, height: float, sizes: Sizes | None = None, *, full: bool = False,
    needs: Needs | None = None,
) -> Layout:
    """Place a round's nodes in a space of width x height pixels; `full` gives every node room, however large that is.

    needs are the pixels that each node of `nodes_of` takes for its word and for its number; without them nodes are alike.
    """
    sizes = sizes or Sizes()
    made = Layout(nodes_of(round_))
    if made.nodes:
        needs = needs or [(sizes.usual * 0.8, sizes.usual * 0.8)] * len(made.nodes)
        if all(node.parent == place - 1 for place, node in enumerate(made.nodes) if node.place != FINAL):
            _chain(made, width, height, sizes, needs, full)
        else:
            _tree(made, width, height, sizes, needs, full)
        for node, (_, number) in zip(made.nodes, needs, strict=True):
            node.number = node.number and number <= node.width + 0.5
    made.width = max((node.x + node.width for node in made.nodes), default=0.0)
    made.height = max((node.y + node.height for node in made.nodes), default=0.0)
    return made


def outline(round_: Round, width: float, current: int | None = None, sizes: Sizes | None = None) -> Layout:
    """Place a round's nodes under one another, children after their parent in the order they were tried.

    Where ignored drafts are many they are left out, all but the one whose place is `current`.
    """
    sizes, nodes = sizes or Sizes(), nodes_of(round_)
    children = _children(nodes)
    many = sum(not node.judged for node in nodes) > MAX_IGNORED
    made, lines = Layout([]), dict[int, int]()
    open_ = children.get(ROOT, [])[::-1]
    while open_:
        index = open_.pop()
        open_ += reversed(children.get(index, []))
        node = nodes[index]
        if node.judged or not many or node.place == current:
            x, lines[index] = min(node.depth, DEEPEST) * sizes.root, len(made.nodes)
            y = lines[index] * (sizes.one_line + 1)
            made.nodes.append(replace(
                node, parent=lines.get(node.parent, ROOT), x=x, y=y, width=max(width - x, 1.0), height=sizes.one_line
            ))  # fmt: skip
    made.width, made.height = width, len(made.nodes) * (sizes.one_line + 1)
    return made


def _children(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """The nodes by their parents, in order."""
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    return children


def _columns(nodes: Sequence[Node]) -> list[list[int]]:
    """The nodes by depth; children in their parents' order, the final token behind its siblings."""
    children = _children(nodes)
    columns: list[list[int]] = []
    here = children.get(ROOT, [])
    while here:
        columns.append(here)
        here = [child for index in here for child in children.get(index, [])]
    return columns


def _tree(made: Layout, width: float, height: float, sizes: Sizes, needs: Needs, full: bool) -> None:
    nodes, columns = made.nodes, _columns(made.nodes)
    judged, ignored = _heights(nodes, columns, math.inf if full else height, sizes)
    words = ignored >= sizes.one_line
    for node in nodes:
        node.height = judged if node.judged else ignored
        node.words = node.judged or words
        node.number = node.judged and judged >= sizes.two_lines
    left = sizes.root + sizes.column_gap
    widths, between = _widths(nodes, columns, width - left, sizes, needs, full)
    for column, wide in zip(columns, widths, strict=True):
        for index in column:
            nodes[index].x, nodes[index].width = left, wide
        left += wide + between
    lowest = 0.0
    for column in columns:
        down = 0.0
        for index in column:
            node = nodes[index]
            node.y = max(down, 0.0 if node.parent == ROOT else nodes[node.parent].y)
            down = node.y + node.height + _gap(node, sizes)
        lowest = max(lowest, nodes[column[-1]].y + node.height)
    room = lowest if full else max(height, max(_height(nodes, column, sizes) for column in columns))
    for column in columns:  # what hangs over the edge moves up as far as it must
        below = room
        for index, above in zip(reversed(column), [*reversed(column[:-1]), None], strict=True):
            node = nodes[index]
            node.y = min(node.y, below - node.height)
            below = node.y - (0.0 if above is None else _gap(nodes[above], sizes))
    if not full and room > height:
        _squeeze(nodes, height / room, sizes)
    first = nodes[columns[0][0]]
    made.root = (sizes.root / 2, first.y + first.height / 2)


def _squeeze(nodes: Sequence[Node], factor: float, sizes: Sizes) -> None:
    """Make everything lower by a factor; what is too low for a word has none."""
    for node in nodes:
        node.y *= factor
        node.height *= factor
        node.words = node.words and node.height >= 0.7 * sizes.one_line
        node.number = False


def _gap(node: Node, sizes: Sizes) -> float:
    return sizes.gap if node.words else _tick_gap(node.height)


def _tick_gap(height: float) -> float:
    return min(1.0, height / 3)


def _height(nodes: Sequence[Node], column: Sequence[int], sizes: Sizes) -> float:
    return sum(nodes[index].height + _gap(nodes[index], sizes) for index in column)


def _heights(nodes: Sequence[Node], columns: Sequence[Sequence[int]], room: float, sizes: Sizes) -> tuple[float, float]:
    """Heights of judged and of ignored nodes, the largest with which every column fits."""
    counts = [(sum(nodes[index].judged for index in column), len(column)) for column in columns]

    def fits(judged: float, ignored: float, gap: float) -> bool:
        return all(n * (judged + sizes.gap) + (total - n) * (ignored + gap) <= room for n, total in counts)

    for judged in (sizes.two_lines, sizes.one_line):
        if fits(judged, sizes.one_line, sizes.gap):
            return judged, sizes.one_line
    for judged in (sizes.two_lines, sizes.one_line):
        for share in (2.6, 2.0, 1.4, 1.0, 0.5):
            if fits(judged, share * sizes.tick, _tick_gap(share * sizes.tick)):
                return judged, share * sizes.tick
    thin = next((share for share in (0.35, 0.2) if fits(judged, share * sizes.tick, _tick_gap(share * sizes.tick))), 0.2)
    return sizes.one_line, thin * sizes.tick


def _share(wishes: Sequence[float], room: float) -> list[float]:
    """Widths that fit a room: each its wish where all fit, else none wider than a common bound."""
    left, made = room, [0.0] * len(wishes)
    order = sorted(range(len(wishes)), key=lambda place: wishes[place])
    for done, place in enumerate(order):
        made[place] = max(min(wishes[place], left / (len(order) - done)), 0.0)
        left -= made[place]
    return made


def _widths(
    nodes: Sequence[Node], columns: Sequence[Sequence[int]], room: float, sizes: Sizes, needs: Needs, full: bool
) -> tuple[list[float], float]:
    """A width for each column, by its longest word and number, and the gap between columns.

    Where they have no room together numbers go first, then the words of columns of ignored nodes, which shrink to ticks;
    then long words are cut, those of the accepted path last.
    """
    gap = sizes.column_gap
    usual = sizes.usual * 1.3 if full else sizes.narrow
    most = 2 * sizes.wide if full else sizes.wide
    plain, whole = [], []
    for column in columns:
        shown = [index for index in column if nodes[index].words] or column
        plain.append(min(max(usual, *(needs[index][0] for index in shown)), most))
        numbers = [needs[index][1] for index in shown if nodes[index].number]
        whole.append(min(max(plain[-1], *numbers, 0.0), most))
    if full:
        return whole, gap
    space = room - gap * len(columns)
    for wishes in (whole, plain):
        if sum(wishes) <= space:
            extra = (space - sum(wishes)) / len(columns)
            return [min(wish + extra, max(wish, sizes.usual)) for wish in wishes], gap
    judged = [any(nodes[index].judged for index in column) for column in columns]
    for column, kept in zip(columns, judged, strict=True):
        for index in column:  # a narrow column has ticks, whatever room there is above and below
            nodes[index].words = nodes[index].words and kept
    if not all(judged):
        for column, kept, place in zip(columns, judged, range(len(columns)), strict=True):
            if kept:
                own = [index for index in column if nodes[index].judged]
                plain[place] = min(max(usual, *(needs[index][0] for index in own)), most)
            else:
                plain[place] = sizes.tick_wide
    if sum(plain) <= space:
        return plain, gap
    gap = max(min(0.4 * gap, room / len(columns) / 3), 0.0)
    space = room - gap * len(columns)
    path = []
    for column, kept, most in zip(columns, judged, plain, strict=True):
        lit = [needs[index][0] for index in column if nodes[index].bright]
        path.append(min(max([sizes.narrow, *lit] if kept else [sizes.tick_wide]), most))
    if sum(path) > space:
        return _share(path, space), gap
    more = _share([wish - least for wish, least in zip(plain, path, strict=True)], space - sum(path))
    return [least + extra for least, extra in zip(path, more, strict=True)], gap


def _chain(made: Layout, width: float, height: float, sizes: Sizes, needs: Needs, full: bool) -> None:
    """Place a chain: in two-line boxes on as many lines as have room, else in low ones, at last cut to what fits.

    The final token follows the accepted ones; where a rejected draft stands in its place, it has a line below that.
    """
    nodes, left, between = made.nodes, sizes.root + sizes.column_gap, sizes.column_gap
    final = next((node for node in nodes if node.place == FINAL), None)
    drafted = [node for node in nodes if node is not final]
    above = next((node for node in drafted if final is not None and node.depth == final.depth), None)
    line = sorted(range(len(nodes) - (above is not None)), key=lambda index: nodes[index].depth)
    space, most, more = width - left, 2 * sizes.wide if full else sizes.wide, above is not None
    numbered = [min(max(sizes.usual if full else sizes.usual * 0.8, *need), most) for need in needs]
    worded = [min(max(sizes.narrow, need[0]), most) for need in needs]
    wishes, tall, gap, lines = numbered, sizes.two_lines, 3 * sizes.gap, [line]
    if not full:
        for wishes, tall, gap in (
            (numbered, sizes.two_lines, 3 * sizes.gap), (worded, sizes.two_lines, 3 * sizes.gap),
            (worded, sizes.one_line, 2 * sizes.gap),
        ):
            lines = _broken(line, wishes, space, between)
            if (len(lines) + more) * (tall + gap) - gap <= height:
                break
        else:
            lines = _even(line, max(int((height + gap) / (tall + gap)) - more, 1))
            if (len(lines) + more) * (tall + gap) - gap > height:
                tall, gap = max(0.8 * height / (1 + more), 1.0), 0.2 * height / (1 + more)
    top = 0.0
    for ranks in lines:
        apart = between
        if space - apart * (len(ranks) - 1) < sizes.narrow * len(ranks):
            apart = min(0.4 * apart, max(space, 0.0) / len(ranks) / 3)
        own, x = [wishes[index] for index in ranks], left
        for index, wide in zip(ranks, own if full else _share(own, space - apart * (len(ranks) - 1)), strict=True):
            nodes[index].x, nodes[index].y, nodes[index].width = x, top, wide
            x += wide + apart
        top += (tall + gap) * (2 if above is not None and above in [nodes[index] for index in ranks] else 1)
    if final is not None and above is not None:
        room = math.inf if full else width - above.x
        final.x, final.y = above.x, above.y + tall + sizes.gap
        final.width = max(min(wishes[len(nodes) - 1], room), above.width)
    for node in nodes:
        node.height, node.number = tall, tall >= sizes.two_lines
    made.lines = len(lines)
    made.root = (sizes.root / 2, tall / 2)


def _broken(line: Sequence[int], wishes: Sequence[float], space: float, gap: float) -> list[list[int]]:
    """A chain in lines no wider than the space, as many nodes in each as fit."""
    lines: list[list[int]] = []
    used = math.inf
    for index in line:
        if used + gap + wishes[index] > space + 1e-9:
            lines.append([])
            used = -gap
        lines[-1].append(index)
        used += gap + wishes[index]
    return lines


def _even(line: Sequence[int], rows: int) -> list[list[int]]:
    """A chain in so many lines (or fewer) of the same number of nodes."""
    each = math.ceil(len(line) / rows)
    return [list(line[start : start + each]) for start in range(0, len(line), each)]
