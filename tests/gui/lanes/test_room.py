"""How much of the window is text: the tokens are the stage."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from specview.gui.lanes.panel import LanePanel
from specview.settings.run import LaneSettings
from tests.gui.shell_fake import ran

LEAST_SHARE = 0.45
LEAST_LINES = 8


def text_areas(window) -> list[tuple[int, int]]:
    return [(panel.view.viewport().width(), panel.view.viewport().height()) for panel in window.page.panels]


def share(window) -> float:
    """Of the window's area, what lanes' text has."""
    return sum(wide * high for wide, high in text_areas(window)) / (window.width() * window.height())


def settle(qtbot, window) -> None:
    window.page._on_numbers()
    QApplication.sendPostedEvents()
    qtbot.wait(30)


def slow(panel: LanePanel) -> None:
    """A why line that takes both its lines."""
    panel.why.sentence = "This lane is slow because what it drafts is seldom what the target says, and a draft costs a lot here. " * 2
    panel.why.fit()
    panel.why.show()


@pytest.mark.parametrize("why", [False, True])
def test_three_lanes_text_has_its_share_of_a_small_window(window, qtbot, why):
    window.resize(1280, 800)
    ran(qtbot, window)
    assert window.page.shown("plots") and len(window.page.panels) == 3
    settle(qtbot, window)
    if why:
        for panel in window.page.panels[1:]:
            slow(panel)
        settle(qtbot, window)
        assert all(len(panel.why.lines) == 2 for panel in window.page.panels[1:])
    assert (window.width(), window.height()) == (1280, 800)
    assert share(window) >= LEAST_SHARE, f"{share(window):.3f}, {text_areas(window)}"


def test_five_lanes_have_eight_lines_of_text_and_all_figures(make_window, qtbot):
    from dataclasses import replace

    from specview.gui.shell.app import first_settings

    first = first_settings()
    lanes = (LaneSettings(), *(LaneSettings(name, k=2) for name in ("draft-model", "prompt-lookup", "suffix", "eagle3")))
    window = make_window(first=replace(first, lanes=lanes))
    window.resize(1366, 768)
    ran(qtbot, window)
    settle(qtbot, window)
    assert window.page.shown("plots") and (window.width(), window.height()) == (1366, 768)
    for panel in window.page.panels[1:]:
        slow(panel)
    settle(qtbot, window)
    for panel in window.page.panels:
        lines = panel.view.viewport().height() / panel.view.lines.pitch
        assert lines >= LEAST_LINES, f"{panel.lane.name}: {lines:.1f} lines"
        if not panel.lane.plain:
            text = panel.line.shown_text()
            assert "tok/s" in text and "pass" in text and "accepts" in text and f"k {panel.lane.settings['k']}" in text
    assert window.page.lane_scroll.horizontalScrollBar().maximum() == 0, "all five are in sight"
