"""Rows, columns and grids of widgets, each made in one call; the order in which Tab goes through them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QHBoxLayout, QLayout, QSplitter, QVBoxLayout, QWidget

Part = QWidget | QLayout
Item = Part | int | tuple[Part, int] | tuple[Part, int, Qt.AlignmentFlag]
"""A widget or layout, with its share of the room left over and its alignment if any; a number is an empty share."""
Margins = int | tuple[int, int, int, int] | None
"""Pixels around: all four, or left, top, right and bottom; None for the style's own."""
Made = TypeVar("Made", bound=QLayout)


def row(*items: Item, on: QWidget | None = None, gap: int | None = None, margins: Margins = 0) -> QHBoxLayout:
    """Lay items from left to right, `gap` pixels between them (None: the style's), as the layout of `on` if given."""
    return _filled(QHBoxLayout(), items, on, gap, margins)


def column(*items: Item, on: QWidget | None = None, gap: int | None = None, margins: Margins = 0) -> QVBoxLayout:
    """Lay items from top to bottom; see `row`."""
    return _filled(QVBoxLayout(), items, on, gap, margins)


def grid(
    widgets: Iterable[QWidget], across: int, *, on: QWidget | None = None, gap: int | None = None,
    shares: tuple[int, int] = (0, 0),
) -> QGridLayout:
    """Lay widgets in rows of `across`; shares are each column's and each row's of the room left over. See `row`."""
    made = _placed(QGridLayout(), on, gap, 0)
    for place, widget in enumerate(widgets):
        made.addWidget(widget, place // across, place % across)
        made.setColumnStretch(place % across, shares[0])
        made.setRowStretch(place // across, shares[1])
    return made


def split(way: Qt.Orientation, *parts: tuple[QWidget, int, int]) -> QSplitter:
    """Lay out (widget, share of the room left over, pixels) with edges to drag; the first part is never dragged shut."""
    made = QSplitter(way)
    for place, (part, share, _) in enumerate(parts):
        made.addWidget(part)
        made.setStretchFactor(place, share)
    made.setSizes([size for _, _, size in parts])
    made.setCollapsible(0, False)
    return made


def tab_order(*widgets: QWidget) -> None:
    """Let Tab go through these in this order."""
    for first, second in pairwise(widgets):
        QWidget.setTabOrder(first, second)


def stops(*parts: QWidget) -> list[QWidget]:
    """What Tab stops at within these, in the order it was made."""
    inner = [one for part in parts for one in part.findChildren(QWidget)]
    return [one for one in inner if one.focusPolicy() & Qt.FocusPolicy.TabFocus and not one.objectName().startswith("qt_")]


def _placed(made: Made, on: QWidget | None, gap: int | None, margins: Margins) -> Made:
    if on is not None:
        on.setLayout(made)
    if gap is not None:
        made.setSpacing(gap)
    if margins is not None:
        made.setContentsMargins(*(margins if isinstance(margins, tuple) else (margins,) * 4))
    return made


def _filled(made: Made, items: tuple[Item, ...], on: QWidget | None, gap: int | None, margins: Margins) -> Made:
    assert isinstance(made, QBoxLayout)
    _placed(made, on, gap, margins)
    for item in items:
        if isinstance(item, int):
            made.addStretch(item)
            continue
        part, *how = item if isinstance(item, tuple) else (item,)
        add: Any = made.addWidget if isinstance(part, QWidget) else made.addLayout
        add(part, *how)
    return made
