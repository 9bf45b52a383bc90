"""The prompt: one line in the setup row, an editor of some lines over the page while one types."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QDragEnterEvent,
    QFocusEvent,
    QHideEvent,
    QKeyEvent,
    QMouseEvent,
    QMoveEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QLabel, QMenu, QPlainTextEdit, QSizePolicy, QToolButton, QWidget

from specview.gui.parts import theme
from specview.gui.parts.widgets import label, set_tip
from specview.gui.state.display_text import visible

LEAST_LINES, MOST_LINES = 4, 14
_SEEN = 1000
"""Characters of a prompt that may be seen on one line."""
_STAY = (Qt.FocusReason.ActiveWindowFocusReason, Qt.FocusReason.PopupFocusReason, Qt.FocusReason.MenuBarFocusReason)
"""Reasons for which the keyboard comes and goes without the user having left the prompt."""
_COUNT_FROM, _NAME_FROM = 330, 220
"""Widths, pixels at font scale 1, from which there is room for the prompt's length and for the workload's name."""


class PromptEdit(QPlainTextEdit):
    """The prompt; takes plain text only, and leaves dropped files to the window.

    Folded it shows its text on one line, cut with an ellipsis; with the keyboard in it it opens over what is below.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.folded = True
        self._line = 30
        self.setTabChangesFocus(True)
        self.setAccessibleName("Prompt")
        set_tip(self, "What the model is asked (Ctrl+P)")
        self.setPlaceholderText("Type a prompt, or choose a workload")
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # The padding is the frame's: lines that are scrolled out must not show in a margin.
        self.document().setDocumentMargin(0)
        self.chooser = QToolButton(self)
        self.chooser.setProperty("kind", "caption")
        self.chooser.setAccessibleName("Choose a workload")
        self.chooser.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.chooser.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.chooser.setCursor(Qt.CursorShape.ArrowCursor)
        self.menu = QMenu(self.chooser)
        self.chooser.setMenu(self.menu)
        set_tip(self.chooser, "Choose a built-in prompt")
        self.count: QLabel = label("", "small", self)
        self.count.setCursor(Qt.CursorShape.ArrowCursor)
        set_tip(self.count, "Tokens of the prompt as the target reads it, with the chat template around it")
        self._workload = ""
        self.document().documentLayout().documentSizeChanged.connect(lambda _: None if self.folded else self._fit())

    @property
    def over(self) -> QWidget:
        """What it lies over."""
        return self.parentWidget() or self

    # -- folding -------------------------------------------------------------------------------------

    def place(self, line: QRect) -> None:
        """Take this line of the parent; opened, it goes on below."""
        self._line = line.height()
        self.setGeometry(QRect(line.topLeft(), QSize(line.width(), self.height())))
        self._fit()

    def fold(self, folded: bool = True) -> None:
        """Show one line, or the editor."""
        if folded != self.folded:
            self.folded = folded
            policy = Qt.ScrollBarPolicy.ScrollBarAlwaysOff if folded else Qt.ScrollBarPolicy.ScrollBarAsNeeded
            self.setVerticalScrollBarPolicy(policy)
            if folded:
                self.verticalScrollBar().setValue(0)
            else:
                self.raise_()
                self.ensureCursorVisible()
            self._fit()
            self._place_right()
            self.viewport().update()

    def _fit(self) -> None:
        around = self.height() - self.viewport().height()
        spacing = self.fontMetrics().lineSpacing()
        lines = min(max(round(self.document().size().height()), LEAST_LINES), MOST_LINES)
        room = self.over.height() - self.y() - 4
        height = self._line if self.folded else min(lines * spacing + around + 2, max(room, self._line))
        if height != self.height():
            self.setFixedHeight(height)

    # -- what stands at its right ----------------------------------------------------------------------

    def tell_workload(self, name: str | None) -> None:
        """Name the built-in prompt that it is."""
        self._workload = name or "workload"
        self._place_right()

    def tell_count(self, words: str) -> None:
        """Say how long the prompt is."""
        self.count.setText(words)
        self._place_right()

    def _place_right(self) -> None:
        wide, named = self.width() >= theme.px(_COUNT_FROM), self.width() >= theme.px(_NAME_FROM)
        self.chooser.setText(f"{self._workload} ▾" if named else "▾")
        self.count.setVisible(wide)
        right, middle = self.width() - theme.px(8 if self.folded else 18), self._line // 2  # beside the scroll bar
        for widget in (self.count, self.chooser):
            if widget is self.chooser or wide:
                size = widget.sizeHint()
                right -= size.width()
                widget.setGeometry(QRect(QPoint(right, middle - size.height() // 2), size))
                right -= theme.px(4)
        self.setViewportMargins(0, 0, max(0, self.width() - right - theme.px(8)), 0)

    # -- events ----------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        """Folded: the text on one line."""
        if not self.folded:
            super().paintEvent(event)
            return
        text, colours = self._beginning(), theme.current()
        painter = QPainter(self.viewport())
        painter.setFont(self.font())
        painter.setPen(QColor(colours.ink if text else colours.muted))
        room = self.viewport().rect()
        shown = painter.fontMetrics().elidedText(text or self.placeholderText(), Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine, shown)
        painter.end()

    def _beginning(self) -> str:
        """As much of the text on one line as can be seen."""
        text, block = "", self.document().begin()
        while block.isValid() and len(text) < _SEEN:
            text = f"{text} {block.text()[:_SEEN]}"
            block = block.next()
        return " ".join(visible(text).split())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_right()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        if event.reason() not in _STAY:
            self.fold(False)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if event.reason() not in _STAY:
            self.fold()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.fold(False)
        super().mousePressEvent(event)

    def event(self, event: QEvent) -> bool:
        """Escape folds the open editor before it stops a race."""
        asked = isinstance(event, QKeyEvent) and event.type() == QEvent.Type.ShortcutOverride and event.key() == Qt.Key.Key_Escape
        if asked and not self.folded:
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and not self.folded:
            self.fold()
            return
        if self.folded and (event.text() or event.key() in (Qt.Key.Key_Down, Qt.Key.Key_Return, Qt.Key.Key_Enter)):
            self.fold(False)
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                return  # it opens the editor; the next one is a line break
        super().keyPressEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.ignore()
        else:
            super().dragEnterEvent(event)


class PromptLine(QWidget):
    """The prompt's place in the setup row; the editor itself lies over the window, so that it can grow."""

    def __init__(self) -> None:
        super().__init__()
        self.edit = PromptEdit(self)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.setMinimumWidth(100)

    def sizeHint(self) -> QSize:
        return QSize(theme.px(420), self.edit.fontMetrics().lineSpacing() + 2 * theme.px(5) + 2)

    def follow(self) -> None:
        """Lay the editor over this place."""
        self.edit.place(QRect(self.mapTo(self.edit.over, QPoint()), self.size()))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.follow()

    def moveEvent(self, event: QMoveEvent) -> None:
        super().moveEvent(event)
        self.follow()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self.edit.over is not self.window():
            self.edit.setParent(self.window())
        self.follow()
        self.edit.show()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not self.isVisible() and self.edit.over is not self:
            self.edit.hide()
