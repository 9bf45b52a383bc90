"""A button that says what is chosen, in as many words as it has room for."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy

from specview.gui.parts import theme

_ARROW = "  ▾"
_JOIN = " · "


class WordsButton(QPushButton):
    """Shows its parts joined; with less room the last ones go first, and where `counted` it says how many: '+2 more'.

    It takes no more width than its words want, nor than `most` pixels at font scale 1, and gives way down to `least` pixels.
    """

    def __init__(self, name: str, *, least: int, most: float, counted: bool = False) -> None:
        super().__init__()
        self._parts: tuple[str, ...] = ()
        self._least, self._most, self._counted = least, most, counted
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        theme.signals.changed.connect(self.updateGeometry)

    @property
    def words(self) -> str:
        """All parts, whatever is shown of them."""
        return _JOIN.join(self._parts)

    def set_parts(self, parts: Sequence[str]) -> None:
        """Say these."""
        if tuple(parts) != self._parts:
            self._parts = tuple(parts)
            self.updateGeometry()
            self._show()

    def sizeHint(self) -> QSize:
        wanted = self.fontMetrics().horizontalAdvance(self.words + _ARROW) + self._around() + 2
        return QSize(min(wanted, theme.px(self._most)), super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        return QSize(self._least, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show()

    @staticmethod
    def _around() -> int:
        """Padding and border of both sides, as in the style sheet, pixels."""
        return 2 * (theme.px(12) + 1)

    def _show(self) -> None:
        metrics = self.fontMetrics()
        room = max(0, self.width() - self._around() - metrics.horizontalAdvance(_ARROW))
        for count in range(len(self._parts), 0, -1):
            left = len(self._parts) - count
            words = _JOIN.join((*self._parts[:count], *((f"+{left} more",) if left and self._counted else ())))
            if metrics.horizontalAdvance(words) <= room:
                break
        else:
            others = f" +{len(self._parts) - 1}" if self._counted and len(self._parts) > 1 else ""
            first = self._parts[0] if self._parts else ""
            words = metrics.elidedText(first, Qt.TextElideMode.ElideMiddle, room - metrics.horizontalAdvance(others)) + others
        # '&' would mark a shortcut key in a button's text.
        shown = words.replace("&", "&&") + _ARROW
        if shown != self.text():
            self.setText(shown)
