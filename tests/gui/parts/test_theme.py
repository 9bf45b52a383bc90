"""Both palettes are readable, and lanes can be told apart by colour-blind readers too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specview.gui.parts import theme
from specview.gui.parts.theme import DARK, LIGHT

THEMES = [pytest.param(DARK, id="dark"), pytest.param(LIGHT, id="light")]
# Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}


def linear(colour: str) -> np.ndarray:
    """Linear red, green and blue of '#rrggbb', 0..1."""
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1..21 (WCAG 2.2)."""
    high, low = sorted((float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (first, second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, vision: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as seen."""
    seen = np.clip(vision @ linear(colour), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.cbrt(xyz / np.array([0.9505, 1, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("palette", THEMES)
@pytest.mark.parametrize("behind", ["panel", "ground", "field"])
@pytest.mark.parametrize(
    "text", ["ink", "muted", "faint", "error", "warning", "accepted", "corrected", "bonus", "rejected"]
)
def test_text_has_contrast(palette, behind, text):
    assert contrast(getattr(palette, text), getattr(palette, behind)) >= 4.5


@pytest.mark.parametrize("palette", THEMES)
def test_text_on_tints_and_buttons_has_contrast(palette):
    for tint in ("accepted_tint", "corrected_tint", "bonus_tint", "error_tint", "warning_tint"):
        assert contrast(palette.ink, getattr(palette, tint)) >= 7
    assert contrast(palette.accent_ink, palette.accent) >= 4.5
    for behind in ("panel", "ground", "field"):
        assert contrast(palette.focus, getattr(palette, behind)) >= 3
    for colour in (*palette.lane_colors, *palette.phases, palette.p_ink, palette.q_grey):
        assert contrast(colour, palette.panel) >= 2.2
    for colour in palette.lane_colors:
        assert contrast(colour, palette.panel) >= 3


@pytest.mark.parametrize("palette", THEMES)
@pytest.mark.parametrize("vision", list(VISION))
def test_lanes_and_states_differ(palette, vision):
    seen = [lab(colour, VISION[vision]) for colour in palette.lane_colors]
    for first, second in itertools.combinations(seen, 2):
        assert np.linalg.norm(first - second) >= 14
    assert len(set(palette.lane_colors)) == 5
    states = {palette.accepted, palette.corrected, palette.bonus, palette.rejected}
    assert not states & set(palette.lane_colors)
    assert not states & set(palette.phases)


def test_applying_tells_widgets_and_bounds_the_scale(qapp, qtbot):
    with qtbot.waitSignal(theme.signals.changed):
        theme.apply(qapp, "light", 9.0)
    assert theme.current() is LIGHT
    assert theme.font_scale() == theme.SCALES[-1]
    assert theme.ui_font().pixelSize() == 26
    theme.apply(qapp, "no such theme", 1.0)
    assert theme.choice() == "system"
    theme.apply(qapp, "dark", 1.0)
    assert theme.current() is theme.DARK


def test_fonts_exist_and_are_fixed_width(qapp):
    from PySide6.QtGui import QFontMetricsF

    mono = theme.mono_font()
    metrics = QFontMetricsF(mono)
    assert metrics.horizontalAdvance("iiii") == metrics.horizontalAdvance("MMMM")


def test_dialog_buttons_have_no_pictures_of_the_style(qtbot, qapp):
    from PySide6.QtWidgets import QDialogButtonBox

    theme.apply(qapp, "dark", 1.0)
    box = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel)
    qtbot.addWidget(box)
    box.show()
    assert all(button.icon().isNull() for button in box.buttons())
