"""Every page on a recorded race: what a person reads there is what was frozen (SPECVIEW_FREEZE=1 freezes anew)."""

from __future__ import annotations

import pytest

from specview.gui.open_run import Pick
from tests.frozen import net


@pytest.fixture
def opened(qtbot, make_window):
    """A window on the frozen trace."""
    window = make_window()
    window.recorded.open([Pick(net.DATA / "race.jsonl", "", None)])
    qtbot.waitUntil(lambda: not window.recorded.opener.busy, timeout=10_000)
    return window


@pytest.mark.parametrize("title", ["Race", "Why", "Sweep", "Exactness", "Theory", "Runs"])
def test_pages(qtbot, opened, title):
    opened.tabs.open(title)
    qtbot.wait(50)
    busy = lambda: [one for one in getattr(opened.tabs.stack.currentWidget(), "works", ()) if one.busy]  # noqa: E731
    qtbot.waitUntil(lambda: not busy(), timeout=10_000)
    net.check(f"page-{title.lower()}", net.outline(opened))


def test_menus_and_shortcuts(window):
    found = {}
    for menu in window.menuBar().actions():
        found[menu.text()] = [f"{one.text()} [{one.shortcut().toString()}]" for one in menu.menu().actions() if one.text()]
    net.check("menus", found)
