"""The Exactness tab: the toy proof, and a real pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QTabBar, QVBoxLayout

from specview.gui.exactness_pair import PairPanel
from specview.gui.exactness_toy import ToyPanel
from specview.gui.pages import Page, PageContext

VIEWS = ("Toy proof", "Real pair")


class ExactnessPage(Page):
    """Two views, each with a job of its own on the engine thread."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.toy = ToyPanel(context)
        self.pair = PairPanel(context)
        self.views = QTabBar()
        self.views.setDrawBase(False)
        self.views.setExpanding(False)
        self.views.setAccessibleName("Views of the exactness lab")
        self.views.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.stack = QStackedWidget()
        for title, view in zip(VIEWS, (self.toy, self.pair), strict=True):
            self.views.addTab(title)
            self.stack.addWidget(view)
        self.views.currentChanged.connect(self._view_changed)
        row = QHBoxLayout()
        row.setContentsMargins(8, 0, 8, 0)
        row.addWidget(self.views)
        row.addStretch(1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addLayout(row)
        column.addWidget(self.stack, 1)

    def _view_changed(self, place: int) -> None:
        self.stack.setCurrentIndex(place)
        self.needs_setup = place == 1  # the target, the prompt and the lanes that are tested
        if place == 1:
            self.pair.show_lanes()
        self.setup_wanted.emit()

    def opened(self) -> None:
        """Take the lanes as they are set up now."""
        self.pair.show_lanes()

    def kept(self) -> dict[str, Any]:
        """Which view, and what is set in each."""
        return {"view": self.views.currentIndex(), "toy": self.toy.kept(), "pair": self.pair.kept()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what fits of it."""
        view = kept.get("view")
        if isinstance(view, int) and 0 <= view < len(VIEWS):
            self.views.setCurrentIndex(view)
        for panel, name in ((self.toy, "toy"), (self.pair, "pair")):
            if isinstance(kept.get(name), Mapping):
                panel.restore(kept[name])
