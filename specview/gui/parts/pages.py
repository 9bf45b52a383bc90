"""The window's tabs. A page is made when its tab is first opened, and its modules are imported only then."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QStackedWidget, QTabBar, QToolButton, QWidget

from specview.errors import SpecviewError
from specview.gui.link.controller import Controller
from specview.gui.parts import layout
from specview.gui.parts.selection import Selection
from specview.gui.parts.widgets import ElidedLabel, button, label
from specview.gui.state.setup_words import taken_words
from specview.settings.run import RunSettings

log = logging.getLogger(__name__)

RACE, WHY = "Race", "Why"
PAGES: tuple[tuple[str, str, str], ...] = (
    (WHY, "specview.gui.why.page", "WhyPage"),
    ("Sweep", "specview.gui.sweep.page", "SweepPage"),
    ("Exactness", "specview.gui.exactness.page", "ExactnessPage"),
    ("Theory", "specview.gui.theory.page", "TheoryPage"),
    ("Runs", "specview.gui.runs.page", "RunsPage"),
)
"""Title, module and class of every tab beside the race, in order."""


@dataclass(slots=True)
class PageContext:
    """What a page may ask of the window.

    run_settings   the checked settings as the setup bar and the lanes show them; raises UsageError, one line
    show_message   a line in the banner, kind 'error' or 'warning'
    open_race      take settings (prompt, lanes, sampling) into the setup bar and go to the race; nothing is run
    add_lane       add a lane (`settings.run.LaneSettings`) to the race as set up; False where there is no room
    goto           open a tab by its title
    confirm_models whether settings that came with a file may be run: their models are known, or the user says yes
    extra          what pages share beside this, by name (the library of runs, ...)
    """

    controller: Controller
    selection: Selection
    run_settings: Callable[[], RunSettings]
    show_message: Callable[..., None]
    open_race: Callable[[RunSettings], None]
    add_lane: Callable[[Any], bool]
    goto: Callable[[str], None]
    confirm_models: Callable[[RunSettings], bool]
    extra: dict[str, Any] = field(default_factory=dict)


class SetupLine(QWidget):
    """What a page takes from the race that is set up, in one muted line, and the way there; `own` is what it sets itself."""

    def __init__(self, context: PageContext, own: Collection[str] = ()) -> None:
        super().__init__()
        self._context, self._own = context, own
        self.words = ElidedLabel("", "small")
        self.words.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.words.setAccessibleName("Taken from the race")
        self.change = button(QToolButton, "change in Race", "Go to the race's setup", lambda: context.goto(RACE), kind="link")
        layout.row((self.words, 1), self.change, on=self, gap=6)
        context.controller.tokens_counted.connect(self._changed)

    def refresh(self) -> None:
        """Say it anew."""
        try:
            self.words.set_full(taken_words(self._context.run_settings(), self._own))
        except SpecviewError as error:
            self.words.set_full(str(error))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def _changed(self) -> None:
        """The prompt's length is asked for anew: something of the setup is another."""
        if self.isVisible():
            self.refresh()


class Page(QWidget):
    """A tab's content."""

    def __init__(self, context: PageContext) -> None:
        super().__init__()
        self.context = context

    def opened(self) -> None:
        """The tab came to the front."""

    def left(self) -> None:
        """Another tab came to the front: stop live drawing."""

    def take_focus(self) -> bool:
        """Take the keyboard where the widget that had it went with its tab; False leaves it to the row of tabs."""
        return False

    def shut(self) -> None:
        """The window closes: end what runs on threads of your own."""

    def kept(self) -> dict[str, Any]:
        """JSON values to be remembered until the next start."""
        return {}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` returned, in this or another version: skip what does not fit."""


def tabs_over(name: str, views: Mapping[str, QWidget]) -> tuple[QTabBar, QStackedWidget]:
    """A row of tabs and the views (title -> widget) under it; name is what a screen reader calls the row."""
    bar, stack = QTabBar(), QStackedWidget()
    bar.setDrawBase(False)
    bar.setExpanding(False)
    bar.setAccessibleName(name)
    bar.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    for title, view in views.items():
        bar.addTab(title)
        stack.addWidget(view)
    return bar, stack


class ViewsPage(Page):
    """A page of several views under a row of tabs of its own: `views` and `stack`.

    parts  what of it is remembered, by name: each has `kept` and `restore` of its own
    """

    setup_view = 1
    """The view that takes something from the race."""
    own: Collection[str] = ()
    """The settings that it has fields of its own for."""

    def set_views(self, name: str, views: Mapping[str, QWidget], parts: Mapping[str, Any]) -> None:
        """Lay the views out; see `tabs_over`."""
        self.parts = parts
        self.views, self.stack = tabs_over(name, views)
        self.views.currentChanged.connect(self.view_changed)
        self.setup_line = SetupLine(self.context, self.own)
        self.setup_line.hide()
        row = layout.row(self.views, (self.setup_line, 1), gap=16, margins=(8, 0, 8, 0))
        layout.column(row, (self.stack, 1), on=self, gap=0)

    def view_changed(self, place: int) -> None:
        """Show the view of a tab, and what it takes from the race."""
        self.stack.setCurrentIndex(place)
        self.setup_line.setVisible(place == self.setup_view)

    def kept(self) -> dict[str, Any]:
        """Which view, and what is set in each."""
        return {"view": self.views.currentIndex(), **{name: part.kept() for name, part in self.parts.items()}}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what fits of it."""
        view = kept.get("view")
        if isinstance(view, int) and 0 <= view < self.views.count():
            self.views.setCurrentIndex(view)
        for name, part in self.parts.items():
            if isinstance(kept.get(name), Mapping):
                part.restore(kept[name])


class Broken(Page):
    """What stands in place of a page that could not be made."""

    def __init__(self, context: PageContext, why: str) -> None:
        super().__init__(context)
        words = label(why, "error")
        words.setWordWrap(True)
        layout.column((words, 0, Qt.AlignmentFlag.AlignTop), on=self, margins=24)


class Tabs(QFrame):
    """The row of tabs and the pages under them; the race's own page is given ready."""

    changed = Signal(str)

    def __init__(self, race: QWidget, kept: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.setProperty("kind", "tabs")
        self.bar = QTabBar()
        self.bar.setDrawBase(False)
        self.bar.setExpanding(False)
        self.bar.setAccessibleName("Views")
        self.bar.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.stack = QStackedWidget()
        self.context: PageContext | None = None
        self._kept = {title: dict(value) for title, value in (kept or {}).items() if isinstance(value, Mapping)}
        self._pages: dict[str, Page] = {}
        self._race = race
        for title in (RACE, *(title for title, _, _ in PAGES)):
            self.bar.addTab(title)
        self.stack.addWidget(race)
        self._row = layout.row(self.bar, 1, on=self, gap=8, margins=(8, 0, 8, 0))
        self.bar.currentChanged.connect(self._changed)

    @property
    def titles(self) -> list[str]:
        """The tabs' titles, in order."""
        return [self.bar.tabText(place) for place in range(self.bar.count())]

    @property
    def current(self) -> str:
        """The title of the tab in front."""
        return self.bar.tabText(self.bar.currentIndex())

    def add(self, *widgets: QWidget) -> None:
        """Put widgets at the right end of the row."""
        for widget in widgets:
            self._row.addWidget(widget, 0, Qt.AlignmentFlag.AlignVCenter)

    def open(self, title: str) -> None:
        """Bring a tab to the front."""
        if title in self.titles:
            self.bar.setCurrentIndex(self.titles.index(title))

    def enter(self, title: str) -> None:
        """Bring a tab to the front, and the keyboard to where its page has use for it."""
        self.open(title)
        page = self.page(title)
        if page is not None:
            page.take_focus()

    def page(self, title: str) -> Page | None:
        """A tab's page; None where it was not opened yet."""
        return self._pages.get(title)

    def made(self, title: str) -> Page | None:
        """A tab's page, made now if it was not opened yet; None for the race's."""
        return None if title == RACE else self._pages.get(title) or self._make(title)

    def kept(self) -> dict[str, Any]:
        """What the pages want remembered, by title: of those never opened, what they had kept before."""
        return self._kept | {title: page.kept() for title, page in self._pages.items()}

    def shut(self) -> None:
        """The window closes."""
        for page in self._pages.values():
            page.shut()

    def _changed(self, place: int) -> None:
        before, focus = self.stack.currentWidget(), self.window().focusWidget()
        if isinstance(before, Page):
            before.left()
        page = self.made(self.bar.tabText(place))
        self.stack.setCurrentWidget(self._race if page is None else page)
        if page is not None:
            page.opened()
        self.changed.emit(self.current)
        gone = focus is not None and not focus.isVisible()
        if gone and not (page is not None and page.take_focus()):  # Qt would give it to whatever comes next
            self.bar.setFocus(Qt.FocusReason.OtherFocusReason)

    def _make(self, title: str) -> Page:
        assert self.context is not None
        module, name = next((module, name) for known, module, name in PAGES if known == title)
        try:
            page: Page = getattr(importlib.import_module(module), name)(self.context)
            page.restore(self._kept.get(title, {}))
        except Exception as error:
            log.exception("the tab %s could not be made", title)
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            page = Broken(self.context, f"This tab cannot be shown: {what}. The log has more; please report it.")
        self._pages[title] = page
        self.stack.addWidget(page)
        return page
