"""The widget of a declared option or setting: shows a value, reads it back, tells of edits. No form asks what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QWidget

from specview.errors import SpecviewError
from specview.fields import Option, Setting
from specview.gui.parts import theme
from specview.gui.parts.widgets import Check, Choice, NumberEdit

_SHORTEST, _LONGEST = 5, 12
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def option_tip(option: Option) -> str:
    """Say what an option means, which values fit and what the default is."""
    if isinstance(option, Setting):
        return f"{option.help[0].upper()}{option.help[1:]}.\nOn the command line: {option.flag}"
    parts = [option.help]
    if option.minimum is not None or option.maximum is not None:
        parts.append(f"Takes {option.range_text()}.")
    default = ("yes" if option.default else "no") if isinstance(option.default, bool) else option.default
    parts.append(f"Default: {default}." if default != "" else "Default: none.")
    parts.append(f"In files and on the command line: {option.name}")
    return "\n".join(parts)


class OptionField:
    """One option's widget; `changed` is called on every edit."""

    def __init__(self, option: Option, value: Any, changed: Callable[[], object]) -> None:
        self.option = option
        self.offers = option.offers if isinstance(option, Setting) else ()
        self.offers = self.offers or tuple((name, name) for name in option.choices)
        self.repeated = isinstance(option, Setting) and option.repeated
        self.widget = self._make(value, lambda *_: changed())
        if not self.widget.accessibleName():
            self.widget.setAccessibleName(option.caption)

    def _make(self, value: Any, changed: Callable[[], object]) -> QWidget:
        option = self.option
        if self.offers:
            choice = Choice(self.offers)
            choice.set_value(str(value or ""))
            choice.currentIndexChanged.connect(changed)
            return choice
        if self.repeated:
            lines = QPlainTextEdit(_lines(value))
            lines.setTabChangesFocus(True)
            lines.setPlaceholderText("none: one a line; \\n is a line break")
            lines.setFixedHeight(theme.px(46))
            lines.textChanged.connect(changed)
            return lines
        if option.kind is bool:
            box = Check()
            box.setChecked(bool(value))
            box.toggled.connect(changed)
            return box
        if option.kind is str:
            line = QLineEdit(str(value or ""))
            line.setAcceptDrops(False)
            line.textChanged.connect(changed)
            return line
        whole = option.kind is int
        ends = (option.default or 0, option.minimum or 0, option.maximum or 0)
        widest = max(len(str(int(number)) if whole else f"{number:g}") for number in ends)
        optional = option.default is None
        number = NumberEdit(
            option.words if isinstance(option, Setting) else option.caption, value, whole=whole, minimum=option.minimum,
            maximum=option.maximum, step=option.step or (1 if whole else 0.05), optional=optional,
            placeholder="auto" if optional else "", check=option.check, fits=option.fits, digits=min(max(widest, _SHORTEST), _LONGEST),
        )  # fmt: skip
        number.edited.connect(changed)
        return number

    def value(self) -> Any:
        """The checked value; raises UsageError where it does not fit."""
        widget = self.widget
        if isinstance(widget, Choice):
            chosen = widget.value()
            return None if not chosen and self.option.default is None else self.option.parse(chosen)
        if isinstance(widget, QPlainTextEdit):
            return tuple(_text(line) for line in widget.toPlainText().split("\n") if line)
        if isinstance(widget, Check):
            return widget.isChecked()
        if isinstance(widget, NumberEdit):
            held = widget.value()
            return held if held is None else self.option.parse(held)
        assert isinstance(widget, QLineEdit)
        return self.option.parse(widget.text())

    def held(self) -> Any:
        """The value, or the text as typed where it does not fit; `set_value` takes either back."""
        try:
            return self.value()
        except SpecviewError:
            return self.widget.text() if isinstance(self.widget, QLineEdit) else self.option.default

    def problem(self) -> str:
        """Why the value does not fit, in one line; '' where it does."""
        try:
            self.value()
        except SpecviewError as error:
            return str(error)
        return ""

    def set_value(self, value: Any) -> None:
        """Show a value."""
        widget = self.widget
        if isinstance(widget, Choice):
            widget.set_value(str(value or ""))
        elif isinstance(widget, QPlainTextEdit):
            widget.setPlainText(_lines(value))
        elif isinstance(widget, Check):
            widget.setChecked(bool(value))
        elif isinstance(widget, NumberEdit):
            widget.set_value(value)
        elif isinstance(widget, QLineEdit):
            widget.setText(str(value or ""))


def _lines(texts: tuple[str, ...]) -> str:
    """Texts one a line, with escapes for what a line cannot hold."""
    return "\n".join("".join(_ESCAPES.get(char, char) for char in text) for text in texts)


def _text(line: str) -> str:
    """The text of a line: `_lines` the other way; a backslash before anything else stands for itself."""
    back = {escape[1]: char for char, escape in _ESCAPES.items()}
    made, place = "", 0
    while place < len(line):
        following = line[place + 1 : place + 2]
        escaped = line[place] == "\\" and following in back and bool(following)
        made += back[following] if escaped else line[place]
        place += 2 if escaped else 1
    return made
