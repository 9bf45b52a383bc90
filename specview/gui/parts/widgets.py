"""Small widgets that the setup bar, the editors and the window share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QMimeData, QPoint, QRect, Qt, Signal, SignalInstance
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QHideEvent,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import (
    QAbstractButton,
    QCheckBox,
    QComboBox,
    QFrame,
    QLabel,
    QLineEdit,
    QMenu,
    QPushButton,
    QRadioButton,
    QScrollArea,
    QSizePolicy,
    QStyle,
    QStyleOptionButton,
    QToolButton,
    QWidget,
)

from specview.errors import SpecviewError, UsageError
from specview.gui.parts import layout, theme
from specview.gui.state.display_text import brief, tooltip

Pressed = TypeVar("Pressed", bound=QAbstractButton)


def set_kind(widget: QWidget, kind: str, name: str = "kind") -> None:
    """Set a dynamic property that the style sheet looks at, and restyle where it changed."""
    if widget.property(name) == kind:
        return
    widget.setProperty(name, kind)
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def label(text: str = "", kind: str = "", parent: QWidget | None = None) -> QLabel:
    """Make a label that shows its text as plain text, whatever is in it."""
    made = QLabel(parent)
    made.setTextFormat(Qt.TextFormat.PlainText)
    made.setText(text)
    if kind:
        made.setProperty("kind", kind)
    return made


def button(
    made: type[Pressed], text: str, tip: str = "", slot: Callable[..., Any] | SignalInstance | None = None,
    *, kind: str = "", name: str = "",
) -> Pressed:
    """Make a QPushButton or QToolButton: text, tool tip, what a press does, kind for the style, name for screen readers."""
    one = made()
    one.setText(text)
    set_tip(one, tip)
    if kind:
        one.setProperty("kind", kind)
    if name:
        one.setAccessibleName(name)
    if slot is not None:
        one.clicked.connect(slot)
    return one


def set_tip(widget: QWidget, text: str) -> None:
    """Give a widget a tooltip that is never read as HTML, and the same words for screen readers."""
    widget.setToolTip(tooltip(text))
    widget.setAccessibleDescription(text)


def enable_in_turn(run: QPushButton, stop: QPushButton, can_run: bool, can_stop: bool) -> None:
    """Enable what can be pressed; the keyboard goes from Run to Stop and back, and on to no neighbour.

    One that has the keyboard stays enabled until the other can take it: for a moment neither can be pressed.
    """
    for button, able, other, other_able in ((run, can_run, stop, can_stop), (stop, can_stop, run, can_run)):
        if button.hasFocus() and other_able and not able:
            other.setEnabled(True)
            other.setFocus()
        button.setEnabled(able or (button.hasFocus() and not other_able))


def menu_button(text: str, tip: str = "") -> tuple[QToolButton, QMenu]:
    """Make a button that opens a menu."""
    button = QToolButton()
    button.setText(text)
    button.setAccessibleName(text.rstrip(" ▾"))
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    if tip:
        set_tip(button, tip)
    menu = QMenu(button)
    button.setMenu(menu)
    return button, menu


class Scrolled(QScrollArea):
    """A view that keeps a least height, and width, in pixels at font scale 1: with less room it scrolls, its plots not crushed."""

    def __init__(self, view: QWidget, least: int, wide: int = 0) -> None:
        super().__init__()
        self._view, self._least, self._wide = view, least, wide
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        view.setObjectName("scrolled")
        self.setWidget(view)
        theme.signals.changed.connect(self._fit)
        self._fit()

    def _fit(self) -> None:
        self._view.setMinimumSize(theme.px(self._wide), theme.px(self._least))


class ElidedLabel(QLabel):
    """One line of plain text, cut with an ellipsis where it does not fit; the tooltip has it whole."""

    def __init__(self, text: str = "", kind: str = "", mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self._full = ""
        self._mode = mode
        if kind:
            self.setProperty("kind", kind)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.set_full(text)

    def set_full(self, text: str) -> None:
        """Show this text, shortened as needed."""
        text = " ".join(text.split())
        if text != self._full:
            self._full = text
            self._elide()

    @property
    def full(self) -> str:
        """The whole text."""
        return self._full

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        shown = self.fontMetrics().elidedText(self._full, self._mode, max(0, self.contentsRect().width()))
        if shown != self.text():
            self.setText(shown)
        self.setToolTip(tooltip(self._full) if shown != self._full else "")


class Choice(QComboBox):
    """A drop-down list with a drawn arrow; the wheel changes it only while it has the focus."""

    def __init__(self, items: tuple[tuple[str, str], ...] = (), parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._about = ""
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.set_items(items)

    def set_items(self, items: tuple[tuple[str, str], ...]) -> None:
        """Fill with (value, text shown), keeping the value chosen where it is still there; an open list is left as it is
        where it offers just these.
        """
        if items == tuple((self.itemData(place), self.itemText(place)) for place in range(self.count())):
            return
        held = self.value()
        self.blockSignals(True)
        self.clear()
        for value, text in items:
            self.addItem(text, value)
        self.set_value(held)
        self.blockSignals(False)

    def setAccessibleName(self, name: str) -> None:
        """Name it and its list; Linux reads out the chosen text in place of a box's name, so that it is said besides."""
        super().setAccessibleName(name)
        self.view().setAccessibleName(name)
        self.setAccessibleDescription(self._about)

    def setAccessibleDescription(self, description: str) -> None:
        """Say what it is about, after its name."""
        self._about = description
        super().setAccessibleDescription(". ".join(filter(None, (self.accessibleName(), description))))

    def value(self) -> str:
        """Return the chosen value."""
        found = self.currentData()
        return "" if found is None else str(found)

    def set_value(self, value: str) -> None:
        """Choose a value; the first one where it is not offered."""
        self.setCurrentIndex(max(0, self.findData(value)))

    def wheelEvent(self, event: QWheelEvent) -> None:
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colours = theme.current()
        painter.setPen(QPen(QColor(colours.muted if self.isEnabled() else colours.border), 1.5))
        size = theme.px(3.5)
        centre = QPoint(self.width() - theme.px(13), self.height() // 2)
        painter.drawLine(centre + QPoint(-size, -size // 2), centre + QPoint(0, size - size // 2))
        painter.drawLine(centre + QPoint(0, size - size // 2), centre + QPoint(size, -size // 2))
        painter.end()


def _mark_colour(button: QAbstractButton) -> QColor:
    colours = theme.current()
    return QColor(colours.focus if button.hasFocus() else colours.muted if button.isEnabled() else colours.border)


class Check(QCheckBox):
    """A tick box whose outline can be seen in both themes."""

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        option = QStyleOptionButton()
        self.initStyleOption(option)
        box = self.style().subElementRect(QStyle.SubElement.SE_CheckBoxIndicator, option, self)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(_mark_colour(self), 1.5))
        painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), 3, 3)
        painter.end()


class Radio(QRadioButton):
    """A radio button whose outline and dot can be seen in both themes."""

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        option = QStyleOptionButton()
        self.initStyleOption(option)
        box = self.style().subElementRect(QStyle.SubElement.SE_RadioButtonIndicator, option, self)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(_mark_colour(self), 1.5))
        painter.drawEllipse(box.adjusted(1, 1, -2, -2))
        if self.isChecked():
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(theme.current().focus))
            painter.drawEllipse(box.adjusted(4, 4, -5, -5))
        painter.end()


class NumberEdit(QLineEdit):
    """A number typed as text: what does not fit is marked at once and refused in words when asked for.

    Up and Down step. With `optional` an empty field is None. `check` may refuse further (it raises
    UsageError). `fits` says which values fit where the bounds alone would read badly.
    """

    edited = Signal()

    def __init__(
        self,
        name: str,
        value: float | str | None,
        *,
        whole: bool = False,
        minimum: float | None = None,
        maximum: float | None = None,
        step: float = 1,
        optional: bool = False,
        placeholder: str = "",
        digits: int = 5,
        check: Callable[[Any], object] | None = None,
        fits: str = "",
    ) -> None:
        super().__init__()
        self.name, self._fits = name, fits
        self._whole, self._minimum, self._maximum = whole, minimum, maximum
        self._step, self._optional, self._check = step, optional, check
        self._digits = digits
        self.setAcceptDrops(False)
        self.setPlaceholderText(placeholder)
        self.setAccessibleName(name)
        self.set_value(value)
        if self.problem():
            set_kind(self, "true", "invalid")
        self.textChanged.connect(self._on_text)
        theme.signals.changed.connect(self._fit)
        self._fit()

    def set_value(self, value: float | str | None) -> None:
        """Show a number, a text as it was typed, or nothing."""
        self.setText(
            "" if value is None else value if isinstance(value, str)
            else f"{value:d}" if isinstance(value, int) else f"{value:g}"
        )
        self.setCursorPosition(0)

    def value(self) -> Any:
        """Return the number (int where whole), None where empty and optional; raises UsageError."""
        text = self.text().strip().replace(",", ".") if not self._whole else self.text().strip()
        if not text and self._optional:
            return None
        number: float
        try:
            number = int(text) if self._whole else float(text)
        except ValueError:
            kind = "a whole number" if self._whole else "a number"
            said = f"is {text!r}" if text else "is empty"
            raise UsageError(f"{self.name} {said}.", f"Use {kind}.") from None
        if not self._whole and not math.isfinite(number):  # a whole number may be too large to ask
            raise UsageError(f"{self.name} is {text}.", "Use a number.")
        low, high = self._minimum, self._maximum
        if (low is not None and number < low) or (high is not None and number > high):
            raise UsageError(f"{self.name} is {brief(text)}.", f"Use {self._range()}.")
        if self._check is not None:
            self._check(number)
        return number

    def problem(self) -> str:
        """Say in one line why the value does not fit; empty when it does."""
        try:
            self.value()
        except SpecviewError as error:
            return str(error)
        return ""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        direction = {Qt.Key.Key_Up: 1, Qt.Key.Key_Down: -1}.get(Qt.Key(event.key()))
        if direction is None or event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().keyPressEvent(event)
            return
        try:
            held = self.value()
        except UsageError:
            return
        stepped = (held if held is not None else self._minimum or 0) + direction * self._step
        if self._minimum is not None:
            stepped = max(self._minimum, stepped)
        if self._maximum is not None:
            stepped = min(self._maximum, stepped)
        self.set_value(int(stepped) if self._whole else round(stepped, 6))

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        if event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason):
            self.selectAll()

    def _range(self) -> str:
        if self._fits:
            return self._fits
        low, high = ("" if bound is None else format(int(bound), ",") if self._whole else format(bound, ",.10g")
                     for bound in (self._minimum, self._maximum))  # fmt: skip
        return f"a value from {low} to {high}" if low and high else f"{low} or more" if low else f"{high} or less"

    def _on_text(self) -> None:
        problem = self.problem()
        set_kind(self, "true" if problem else "false", "invalid")
        if problem:
            self.setToolTip(tooltip(problem))
        else:
            self.setToolTip(tooltip(self.accessibleDescription()))
        self.edited.emit()

    def _fit(self) -> None:
        width = theme.ui_font().pixelSize() * 0.62 * self._digits
        self.setFixedWidth(round(width) + theme.px(20))


def caption_height() -> int:
    """Height of the small captions above fields, one for all so that fields line up."""
    return theme.px(17)


class Field(QWidget):
    """A small caption above a widget."""

    def __init__(self, caption: str, inner: QWidget, tip: str = "") -> None:
        super().__init__()
        self.caption = label(caption, "small")
        self.inner = inner
        self.caption.setBuddy(inner)
        self._fit()
        theme.signals.changed.connect(self._fit)
        if not inner.accessibleName() and caption.strip():
            inner.setAccessibleName(caption)
        if tip:
            set_tip(inner, tip)
            self.caption.setToolTip(tooltip(tip))
        layout.column(self.caption, inner, 1, on=self, gap=2)

    def _fit(self) -> None:
        self.caption.setFixedHeight(caption_height())


class Popover(QFrame):
    """A panel that opens under a button and closes on Escape or a click elsewhere."""

    closed = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setProperty("kind", "panel")
        self.column = layout.column(on=self, gap=8, margins=(14, 12, 14, 14))

    def open_under(self, anchor: QWidget) -> None:
        """Show beneath `anchor`, wholly on its screen."""
        self.adjustSize()
        corner = anchor.mapToGlobal(QPoint(0, anchor.height() + 4))
        room = anchor.screen().availableGeometry()
        size = self.sizeHint().boundedTo(room.size())
        x = min(max(corner.x(), room.left()), max(room.left(), room.right() - size.width()))
        y = corner.y()
        if y + size.height() > room.bottom():
            y = max(room.top(), room.bottom() - size.height())
        self.setGeometry(QRect(QPoint(x, y), size))
        self.show()
        self.setFocus()
        self.focusNextChild()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.hide()
        else:
            super().keyPressEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.closed.emit()


class Banner(QFrame):
    """One line about what went wrong and what to do; it can be dismissed."""

    gone = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("kind", "error")
        self._text = label()
        self._text.setWordWrap(True)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._text.setAccessibleName("Message")
        self._close = QPushButton("×")
        self._close.setProperty("kind", "flat")
        self._close.setAccessibleName("Dismiss")
        self._close.clicked.connect(self.clear)
        layout.row((self._text, 1), (self._close, 0, Qt.AlignmentFlag.AlignTop), on=self, margins=(12, 6, 6, 6))
        self.hide()

    def show_message(self, text: str, kind: str = "error") -> None:
        """Show one line; `kind` is error, warning or note: of what went well."""
        set_kind(self, kind)
        mark = {"error": "✕ ", "note": "✓ "}.get(kind, "! ")
        self._text.setText(mark + " ".join(text.split()))
        self.show()

    @property
    def message(self) -> str:
        """What is shown, '' when hidden."""
        return self._text.text()[2:] if not self.isHidden() else ""

    def clear(self) -> None:
        """Take the message away."""
        self.hide()
        self._text.clear()
        self.gone.emit()


def dropped_paths(data: QMimeData) -> list[Path]:
    """Return the local files and folders of a drag."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()] if data.hasUrls() else []
