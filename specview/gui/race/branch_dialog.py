"""Going on from a token in another way: which token stands there, which lanes race on, at which temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QPushButton,
    QWidget,
)

from specview.decoding.sampling import SamplingParams
from specview.drafting.registry import title
from specview.errors import SpecviewError
from specview.fields import declared
from specview.files.figures import probability
from specview.gui.parts import layout, theme
from specview.gui.parts.option_field import OptionField, option_tip
from specview.gui.parts.widgets import Choice, Field, label, set_tip
from specview.gui.state.display_text import quoted, visible
from specview.racing.branching import Alternative
from specview.racing.resolve import checked_run
from specview.settings.run import BASELINE, LaneSettings, RunSettings

_SHOWN_TEXT = 4000
_SAMPLING = ("temperature", "seed")
_WORDS = {"": "", "rejected": "a rejected draft"}
AS_BEFORE = ""


class BranchDialog(QDialog):
    """Asks how to go on; once accepted, `choice` is the token and `settings` is the race, without the branch itself.

    base are the settings of the run; found what could stand at the place, what does first; text the output before it;
    chosen the id to begin with (None: what stands there); others more lanes to go on with, by name.
    """

    def __init__(
        self, base: RunSettings, found: Sequence[Alternative], position: int, text: str, parent: QWidget,
        *, chosen: int | None = None, others: Mapping[str, LaneSettings] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(parent)
        self.setWindowTitle("Continue from here with…")
        self.settings = base
        self._base, self._others = base, dict(others or {})
        self._found = sorted(found, key=lambda one: -(one.p if one.p is not None else -1.0 if one is not found[0] else 2.0))
        self.before = QPlainTextEdit(_tail(text))
        self.before.setReadOnly(True)
        self.before.setTabChangesFocus(True)
        self.before.setFont(theme.mono_font(12))
        self.before.setAccessibleName("Text up to the token")
        self.before.setFixedHeight(theme.px(84))
        self.before.moveCursor(QTextCursor.MoveOperation.End)
        self.tokens = QListWidget()
        self.tokens.setAccessibleName(f"Token at position {position}")
        self.tokens.setFont(theme.mono_font(12))
        self.tokens.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        set_tip(self.tokens, "The token that the text goes on with: the likeliest of the target there, at temperature 1 without filters")
        for one in self._found:
            self.tokens.addItem(QListWidgetItem(_row(one, found[0])))
        self.tokens.setCurrentRow(next((row for row, one in enumerate(self._found) if one.id == chosen), self._found.index(found[0])))
        self.lanes = Choice(self._offers())
        self.lanes.setMinimumWidth(theme.px(240))
        self.fields = {name: OptionField(declared(SamplingParams)[name], getattr(base.sampling, name), self._look) for name in _SAMPLING}
        few = "" if any(not one.what for one in found) else "No other tokens were recorded here: observation was light."
        self.problem = label(few, "small")
        self.problem.setWordWrap(True)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        self.run = QPushButton("Run")
        self.run.setProperty("kind", "primary")
        set_tip(self.run, "Run the race from here as a run of its own (Enter)")
        buttons.addButton(self.run, QDialogButtonBox.ButtonRole.AcceptRole)
        buttons.accepted.connect(self._accept)
        buttons.rejected.connect(self.reject)
        self.tokens.itemDoubleClicked.connect(lambda _: self._accept())
        self.run.setDefault(True)
        fields = [Field(one.option.caption, one.widget, option_tip(one.option)) for one in self.fields.values()]
        layout.column(
            Field("The text so far", self.before), (Field(f"Token at position {position}", self.tokens), 1),
            layout.row((Field("Race on with", self.lanes, "Plain decoding always runs beside"), 1), *fields, gap=10),
            self.problem, buttons, on=self, gap=10, margins=None,
        )  # fmt: skip
        self.resize(theme.px(560), theme.px(480))
        self.tokens.setFocus()

    @property
    def choice(self) -> Alternative:
        """The token that is chosen."""
        return self._found[max(self.tokens.currentRow(), 0)]

    def _offers(self) -> tuple[tuple[str, str], ...]:
        called = {lane.label: title(lane.label, lane.method) for lane in self._base.lanes}
        count = len(called)
        same = [(AS_BEFORE, f"the same {count} lanes" if count > 1 else f"the same lane: {called.popitem()[1]}")]
        own = [(name, f"only {words}") for name, words in called.items() if count > 2 or name == BASELINE]
        more = [(f"+{name}", f"only {name}") for name in self._others]
        return tuple((key, visible(words)) for key, words in (*same, *own, *more))

    def _chosen_lanes(self) -> tuple[LaneSettings, ...]:
        asked = self.lanes.value()
        if asked == AS_BEFORE:
            return self._base.lanes
        plain = next((lane for lane in self._base.lanes if lane.plain), LaneSettings())
        chosen = next((lane for lane in self._base.lanes if lane.label == asked), None) or self._others[asked.removeprefix("+")]
        return (plain,) if chosen.plain else (plain, chosen)

    def _asked(self) -> RunSettings:
        """The settings as asked for; raises SpecviewError, one line, where they cannot work."""
        sampling = replace(self._base.sampling, **{name: field.value() for name, field in self.fields.items()})
        asked = replace(self._base, sampling=sampling, lanes=self._chosen_lanes())
        checked_run(asked)
        return asked

    def _look(self) -> None:
        """What was said of a value that did not fit is old."""
        self.problem.setText("")

    def _accept(self) -> None:
        try:
            self.settings = self._asked()
        except SpecviewError as error:
            self.problem.setText(str(error))
            return
        self.accept()


def _row(one: Alternative, stands: Alternative) -> str:
    words = "stands here" if one.id == stands.id else _WORDS.get(one.what, one.what)
    p = "     " if one.p is None else probability(one.p)
    return f"{p}  {quoted(one.text, 48) if one.text else f'token {one.id}'}" + (f"  · {words}" if words else "")


def _tail(text: str) -> str:
    shown = "\n".join(visible(line) for line in text[-_SHOWN_TEXT:].split("\n"))
    return f"…{shown}" if len(text) > _SHOWN_TEXT else shown
