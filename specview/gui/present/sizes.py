"""Sizes of what is shown to a room: all of them are shares of the screen's height, so that it reads alike on every screen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from PySide6.QtGui import QFont

from specview.gui.parts import theme
from specview.gui.parts.token_paint import COUNT_SHARE

LEAST = 0.022
"""The smallest text: from ten metres a screen of 2.5 m shows it as large as a book's."""
TITLE, NAME, LINE, NUMBER, NOTE = 0.03, 0.028, 0.0235, 0.088, LEAST
GAP, MARGIN, PAD = 0.011, 0.02, 0.018


@dataclass(frozen=True, slots=True)
class Sizes:
    """Pixels for a screen of so many pixels' height; the user's font scale plays no part."""

    height: int

    def px(self, share: float) -> int:
        """A length, rounded up."""
        return max(1, math.ceil(self.height * share - 1e-9))

    def font(self, share: float, *, bold: bool = False) -> QFont:
        """The interface font; none is smaller than LEAST."""
        font = theme.ui_font(bold=bold)
        font.setPixelSize(self.px(max(share, LEAST)))
        return font

    @property
    def token(self) -> float:
        """Size of the tokens as the token view takes it, before the font scale: their counts ("+2") are not below LEAST."""
        return math.ceil(self.px(LEAST) / COUNT_SHARE) / theme.font_scale()
