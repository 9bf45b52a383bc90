"""A form made from `Option` declarations: one row each, with its meaning, range and default as tooltip.

Three names are special: an option called `preset` fills the others with that preset's values, which can then
be edited; one called `store` is a file; one called `head` is a trained head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QFormLayout, QLabel, QLineEdit, QPushButton, QWidget

from specview.errors import SpecviewError
from specview.gui.lanes.head_chooser import HeadChooser, HeadPlace
from specview.gui.parts import layout
from specview.gui.parts.widgets import Check, Choice, NumberEdit, label, set_tip
from specview.settings.options import ANSWERS, HEAD, Option, Value, overlay
from specview.settings.run import BUNDLED

PRESET, STORE = "preset", "store"
_SHORTEST, _LONGEST = 5, 12


def option_tip(option: Option) -> str:
    """Say what an option means, which values fit and what the default is."""
    parts = [option.help]
    if option.minimum is not None or option.maximum is not None:
        parts.append(f"Takes {option.range_text()}.")
    default = ("yes" if option.default else "no") if isinstance(option.default, bool) else option.default
    parts.append(f"Default: {default}." if default != "" else "Default: none.")
    parts.append(f"In files and on the command line: {option.name}")
    return "\n".join(parts)


def caption_of(option: Option) -> str:
    """An option's caption in a form."""
    return option.label or option.name.replace("_", " ").replace("-", " ")


class OptionForm(QWidget):
    """Rows for a method's or a policy's options; `changed` fires on every edit."""

    changed = Signal()
    noted = Signal()
    """What is said of the head that is chosen here has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: HeadPlace | None = None  # where an option `head` is chosen from; None: it is typed
        self._head_kind = ""
        self._form = QFormLayout(self)
        self._form.setContentsMargins(0, 0, 0, 0)
        self._form.setVerticalSpacing(6)
        self._form.setHorizontalSpacing(14)
        self._form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        self._options: tuple[Option, ...] = ()
        self._presets: Mapping[str, Mapping[str, Value]] = {}
        self._fields: dict[str, QWidget] = {}
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
        for field in self._fields.values():
            if isinstance(field, HeadChooser):
                field.close_checks()
        self._head_kind = head or ""
        while self._form.rowCount():
            self._form.removeRow(0)
        self._options = tuple(option for option in options if option.name not in hidden)
        self._presets = presets or {}
        self._fields, self._files = {}, {}
        standing = overlay(self._options, self._presets, given)
        for option in self._options:
            made = self._make(option, standing.get(option.name, option.default))
            caption = caption_of(option)
            made.setAccessibleName(caption)
            title: QLabel = label(caption)
            title.setBuddy(made)
            for widget in (title,) if isinstance(made, HeadChooser) else (made, title):
                set_tip(widget, option_tip(option))
            self._fields[option.name] = made
            self._form.addRow(title, self._with_file(option, made) if _is_file(option) else made)
        self.setVisible(bool(self._options))
        self._answer_head()

    def answers(self) -> tuple[tuple[str, str], ...]:
        """(option, value) of those that say how a trained head is read, where they say something."""
        given = self.held()
        return tuple(sorted((name, str(given[name])) for name in ANSWERS if given.get(name, "auto") != "auto"))

    def _answer_head(self) -> None:
        for field in self._fields.values():
            if isinstance(field, HeadChooser):
                field.set_answers(self.answers())

    def head_problem(self) -> str:
        """Why the head that is chosen here cannot draft, as far as is known at once; '' else."""
        chooser = self._fields.get(HEAD.name)
        return chooser.problem() if isinstance(chooser, HeadChooser) else ""

    def head_refusal(self) -> str:
        """Why the head that is chosen here cannot draft, once its files have told that; '' else."""
        chooser = self._fields.get(HEAD.name)
        return chooser.refusal() if isinstance(chooser, HeadChooser) else ""

    def close_heads(self) -> None:
        """Tell of heads nothing any more."""
        for field in self._fields.values():
            if isinstance(field, HeadChooser):
                field.close_checks()

    def field(self, name: str) -> QWidget:
        """Return the widget of an option."""
        return self._fields[name]

    def fields(self) -> list[QWidget]:
        """Every widget that takes the keyboard, in order."""
        found: list[QWidget] = []
        for name, field in self._fields.items():
            if isinstance(field, HeadChooser):
                found += field.fields()
            else:
                found += [field, self._files[name]] if name in self._files else [field]
        return found

    def values(self) -> dict[str, Value]:
        """Return every option's checked value; raises UsageError on the first that does not fit."""
        return {option.name: self._read(option) for option in self._options}

    def held(self) -> dict[str, Value]:
        """Return every option's value, the text as typed where it does not fit; `fill` takes them back."""
        found: dict[str, Value] = {}
        for option in self._options:
            try:
                found[option.name] = self._read(option)
            except SpecviewError:
                field = self._fields[option.name]
                found[option.name] = field.text() if isinstance(field, QLineEdit) else option.default
        return found

    def set_value(self, name: str, value: Value) -> None:
        """Put a value into an option's field."""
        field = self._fields[name]
        if isinstance(field, Check):
            field.setChecked(bool(value))
        elif isinstance(field, Choice):
            field.set_value(str(value))
        elif isinstance(field, NumberEdit):
            field.set_value(value)
        elif isinstance(field, HeadChooser):
            field.set_value(str(value))
        elif isinstance(field, QLineEdit):
            field.setText(str(value))

    def _make(self, option: Option, value: Any) -> QWidget:
        if isinstance(option.default, bool):
            box = Check()
            box.setChecked(bool(value))
            box.toggled.connect(self.changed)
            return box
        if option.choices:
            choice = Choice(tuple((name, name) for name in option.choices))
            choice.set_value(str(value))
            if option.name == PRESET:
                choice.currentIndexChanged.connect(self._take_preset)
            if option.name in ANSWERS:
                choice.currentIndexChanged.connect(self._answer_head)
            choice.currentIndexChanged.connect(self.changed)
            return choice
        if option.name == HEAD.name and self.heads is not None and self._head_kind:
            chooser = HeadChooser(self.heads)
            chooser.fill(self._head_kind, str(value))
            chooser.changed.connect(self.changed)
            chooser.noted.connect(self.noted)
            return chooser
        if isinstance(option.default, str):
            line = QLineEdit(str(value))
            line.setAcceptDrops(False)
            line.textChanged.connect(self.changed)
            return line
        whole = isinstance(option.default, int)
        widest = max(len(f"{number:g}" if not whole else str(int(number)))
                     for number in (option.default, option.minimum or 0, option.maximum or 0))
        number = NumberEdit(
            caption_of(option),
            value,
            whole=whole,
            minimum=option.minimum,
            maximum=option.maximum,
            step=1 if whole else 0.05,
            check=option.parse,
            digits=min(max(widest, _SHORTEST), _LONGEST),
        )
        number.edited.connect(self.changed)
        return number

    def _with_file(self, option: Option, line: QWidget) -> QWidget:
        assert isinstance(line, QLineEdit)
        line.setPlaceholderText("none")
        holder = QWidget()
        button = QPushButton("File…")
        button.setAccessibleName(f"Choose a file for {caption_of(option)}")
        button.clicked.connect(lambda: self._choose_file(option, line))
        layout.row((line, 1), button, on=holder)
        self._files[option.name] = button
        return holder

    def _choose_file(self, option: Option, line: QLineEdit) -> None:
        """Take a file's path: one that is there, or the name of one to be made."""
        path, _ = QFileDialog.getSaveFileName(
            self, f"Choose a file for {caption_of(option)}", line.text(), "",
            options=QFileDialog.Option.DontConfirmOverwrite,
        )
        if path:
            line.setText(path)

    def _take_preset(self) -> None:
        """Fill in the chosen preset's values, and the defaults where another preset had its own."""
        chooser = self._fields[PRESET]
        assert isinstance(chooser, Choice)
        chosen = self._presets.get(chooser.value(), {})
        touched = {name for preset in self._presets.values() for name in preset}
        self.blockSignals(True)
        for option in self._options:
            if option.name in touched and option.name != PRESET:
                self.set_value(option.name, chosen.get(option.name, option.default))
        self.blockSignals(False)

    def _read(self, option: Option) -> Value:
        field = self._fields[option.name]
        if isinstance(field, Check):
            return field.isChecked()
        if isinstance(field, Choice):
            return option.parse(field.value())
        if isinstance(field, NumberEdit):
            return option.parse(field.value())
        if isinstance(field, HeadChooser):
            chosen = field.value()
            return "" if chosen == BUNDLED else option.parse(chosen)
        assert isinstance(field, QLineEdit)
        return option.parse(field.text())


def _is_file(option: Option) -> bool:
    return option.name == STORE and isinstance(option.default, str) and not option.choices
