"""Every page on a recorded race: what a person reads there is what was frozen (SPECVIEW_FREEZE=1 freezes anew)."""

from __future__ import annotations

import time

import pytest

from specview.gui.link.open_run import Pick
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
    seen, since = [], [time.monotonic()]

    def settled():  # a page fills in over some turns of the event loop, and from threads of its own
        now = net.outline(opened)
        if now != seen:
            seen[:], since[0] = now, time.monotonic()
        drawn = title != "Race" or opened.page.plots.loaded
        return drawn and time.monotonic() - since[0] > 0.7

    qtbot.waitUntil(settled, timeout=30_000)
    net.check(f"page-{title.lower()}", seen)


def test_menus_and_shortcuts(window):
    found = {}
    for menu in window.menu.menus.actions():
        found[menu.text()] = [f"{one.text()} [{one.shortcut().toString()}]" for one in menu.menu().actions() if one.text()]
    net.check("menus", found)
