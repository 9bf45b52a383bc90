"""A form made from `Option` declarations: one row each, with its meaning, range and default as tooltip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFormLayout, QLabel, QLineEdit, QWidget

from specview.drafting.options import Option, Value
from specview.gui.widgets import Check, Choice, NumberEdit, label, set_tip


def option_tip(option: Option) -> str:
    """Say what an option means, which values fit and what the default is."""
    parts = [option.help]
    if option.minimum is not None or option.maximum is not None:
        parts.append(f"Takes {option.range_text()}.")
    default = ("yes" if option.default else "no") if isinstance(option.default, bool) else option.default
    parts.append(f"Default: {default}.")
    return "\n".join(parts)


class OptionForm(QWidget):
    """Rows for a method's or a policy's options; `changed` fires on every edit."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._form = QFormLayout(self)
        self._form.setContentsMargins(0, 0, 0, 0)
        self._form.setVerticalSpacing(6)
        self._options: tuple[Option, ...] = ()
        self._fields: dict[str, QWidget] = {}

    def fill(self, options: Sequence[Option], given: Mapping[str, Any]) -> None:
        """Show these options with the given values, the defaults elsewhere."""
        while self._form.rowCount():
            self._form.removeRow(0)
        self._options = tuple(options)
        self._fields = {}
        for option in self._options:
            made = self._make(option, given.get(option.name, option.default))
            caption = option.label or option.name.replace("_", " ")
            made.setAccessibleName(caption)
            title: QLabel = label(caption)
            title.setBuddy(made)
            for widget in (made, title):
                set_tip(widget, option_tip(option))
            self._fields[option.name] = made
            self._form.addRow(title, made)
        self.setVisible(bool(self._options))

    def field(self, name: str) -> QWidget:
        """Return the widget of an option."""
        return self._fields[name]

    def values(self) -> dict[str, Value]:
        """Return every option's checked value; raises UsageError on the first that does not fit."""
        return {option.name: self._read(option) for option in self._options}

    def _make(self, option: Option, value: Any) -> QWidget:
        if isinstance(option.default, bool):
            box = Check()
            box.setChecked(bool(value))
            box.toggled.connect(self.changed)
            return box
        if option.choices:
            choice = Choice(tuple((name, name) for name in option.choices))
            choice.set_value(str(value))
            choice.currentIndexChanged.connect(self.changed)
            return choice
        if isinstance(option.default, str):
            line = QLineEdit(str(value))
            line.textChanged.connect(self.changed)
            return line
        whole = isinstance(option.default, int)
        number = NumberEdit(
            option.label or option.name.replace("_", " "),
            value,
            whole=whole,
            minimum=option.minimum,
            maximum=option.maximum,
            step=1 if whole else 0.05,
            check=option.parse,
        )
        number.edited.connect(self.changed)
        return number

    def _read(self, option: Option) -> Value:
        field = self._fields[option.name]
        if isinstance(field, Check):
            return field.isChecked()
        if isinstance(field, Choice):
            return option.parse(field.value())
        if isinstance(field, NumberEdit):
            return option.parse(field.value())
        assert isinstance(field, QLineEdit)
        return option.parse(field.text())
