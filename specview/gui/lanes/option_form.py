"""A form made from `Option` declarations: one row each, with its meaning, range and default as tooltip.

Three names are special: an option called `preset` fills the others with that preset's values, which can then
be edited; one called `store` is a file; one called `head` is a trained head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QFormLayout, QLineEdit, QPushButton, QWidget

from specview.fields import Option, Value
from specview.gui.lanes.head_chooser import HeadChooser, HeadPlace
from specview.gui.parts import layout
from specview.gui.parts.option_field import OptionField, option_tip
from specview.gui.parts.widgets import label, set_tip
from specview.settings.options import ANSWERS, HEAD, overlay
from specview.settings.run import BUNDLED

PRESET, STORE = "preset", "store"


class _HeadField(OptionField):
    """An option `head`, chosen among the heads of its kind."""

    def __init__(self, option: Option, value: Any, changed: Callable[[], object], kind: str, place: HeadPlace) -> None:
        self.chooser = HeadChooser(place)
        self.chooser.fill(kind, str(value))
        super().__init__(option, value, changed)

    def _make(self, value: Any, changed: Callable[[], object]) -> QWidget:
        self.chooser.changed.connect(changed)
        return self.chooser

    def value(self) -> Any:
        """The head's name, '' for the bundled one."""
        chosen = self.chooser.value()
        return "" if chosen == BUNDLED else chosen

    def set_value(self, value: Any) -> None:
        """Choose a head."""
        self.chooser.set_value(str(value))


class OptionForm(QWidget):
    """Rows for a method's or a policy's options; `changed` fires on every edit."""

    changed = Signal()
    noted = Signal()
    """What is said of the head that is chosen here has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: HeadPlace | None = None  # where an option `head` is chosen from; None: it is typed
        self._form = QFormLayout(self)
        self._form.setContentsMargins(0, 0, 0, 0)
        self._form.setVerticalSpacing(6)
        self._form.setHorizontalSpacing(14)
        self._form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        self._presets: Mapping[str, Mapping[str, Value]] = {}
        self._fields: dict[str, OptionField] = {}
        self._files: dict[str, QPushButton] = {}

    def fill(
        self,
        options: Sequence[Option],
        given: Mapping[str, Any],
        presets: Mapping[str, Mapping[str, Value]] | None = None,
        hidden: Collection[str] = (),
        head: str | None = None,
    ) -> None:
        """Show these options with the given values; elsewhere those of the preset, else the defaults.

        Options named in `hidden` get no row and no value. head is the kind of trained head that an option `head`
        names.
        """
        self.close_heads()
        while self._form.rowCount():
            self._form.removeRow(0)
        self._presets, self._fields, self._files = presets or {}, {}, {}
        shown = tuple(option for option in options if option.name not in hidden)
        standing = overlay(shown, self._presets, given)
        for option in shown:
            value = standing.get(option.name, option.default)
            if option.name == HEAD.name and self.heads is not None and head:
                chosen = _HeadField(option, value, self.changed.emit, head, self.heads)
                chosen.chooser.noted.connect(self.noted)
                field: OptionField = chosen
            else:
                field = OptionField(option, value, lambda *_, name=option.name: self._edited(name))
            self._fields[option.name] = field
            title = label(option.caption)
            title.setBuddy(field.widget)
            for widget in (title,) if isinstance(field, _HeadField) else (field.widget, title):
                set_tip(widget, option_tip(option))
            self._form.addRow(title, self._with_file(field) if option.name == STORE else field.widget)
        self.setVisible(bool(shown))
        self._answer_head()

    def _edited(self, name: str) -> None:
        if name == PRESET:
            self._take_preset()
        if name in ANSWERS:
            self._answer_head()
        self.changed.emit()

    @property
    def _head(self) -> HeadChooser | None:
        field = self._fields.get(HEAD.name)
        return field.chooser if isinstance(field, _HeadField) else None

    def answers(self) -> tuple[tuple[str, str], ...]:
        """(option, value) of those that say how a trained head is read, where they say something."""
        given = self.held()
        return tuple(sorted((name, str(given[name])) for name in ANSWERS if given.get(name, "auto") != "auto"))

    def _answer_head(self) -> None:
        if self._head is not None:
            self._head.set_answers(self.answers())

    def head_refusal(self) -> str:
        """Why the head that is chosen here cannot draft, once its files have told that; '' else."""
        return "" if self._head is None else self._head.refusal()

    def close_heads(self) -> None:
        """Tell of heads nothing any more."""
        if self._head is not None:
            self._head.close_checks()

    def field(self, name: str) -> QWidget:
        """Return the widget of an option."""
        return self._fields[name].widget

    def fields(self) -> list[QWidget]:
        """Every widget that takes the keyboard, in order."""
        found: list[QWidget] = []
        for name, field in self._fields.items():
            if isinstance(field, _HeadField):
                found += field.chooser.fields()
            else:
                found += [field.widget, self._files[name]] if name in self._files else [field.widget]
        return found

    def values(self) -> dict[str, Value]:
        """Return every option's checked value; raises UsageError on the first that does not fit."""
        return {name: field.value() for name, field in self._fields.items()}

    def held(self) -> dict[str, Value]:
        """Return every option's value, the text as typed where it does not fit; `fill` takes them back."""
        return {name: field.held() for name, field in self._fields.items()}

    def set_value(self, name: str, value: Value) -> None:
        """Put a value into an option's field."""
        self._fields[name].set_value(value)

    def _with_file(self, field: OptionField) -> QWidget:
        line, caption = field.widget, field.option.caption
        assert isinstance(line, QLineEdit)
        line.setPlaceholderText("none")
        holder = QWidget()
        button = QPushButton("File…")
        button.setAccessibleName(f"Choose a file for {caption}")
        button.clicked.connect(lambda: self._choose_file(caption, line))
        layout.row((line, 1), button, on=holder)
        self._files[field.option.name] = button
        return holder

    def _choose_file(self, caption: str, line: QLineEdit) -> None:
        """Take a file's path: one that is there, or the name of one to be made."""
        path, _ = QFileDialog.getSaveFileName(
            self, f"Choose a file for {caption}", line.text(), "", options=QFileDialog.Option.DontConfirmOverwrite
        )
        if path:
            line.setText(path)

    def _take_preset(self) -> None:
        """Fill in the chosen preset's values, and the defaults where another preset had its own."""
        chosen = self._presets.get(str(self._fields[PRESET].value()), {})
        touched = {name for preset in self._presets.values() for name in preset}
        self.blockSignals(True)
        for name, field in self._fields.items():
            if name in touched and name != PRESET:
                field.set_value(chosen.get(name, field.option.default))
        self.blockSignals(False)
