"""The More panel: system text, chat or raw, and every setting that declares a group of it."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QGridLayout, QPlainTextEdit, QWidget

from specview.decoding.sampling import SamplingParams
from specview.engines.templates import DEFAULT
from specview.fields import declared
from specview.gui.parts import theme
from specview.gui.parts.option_field import OptionField, option_tip
from specview.gui.parts.widgets import Check, Choice, Field, Popover, label, set_tip
from specview.settings.run import RunSettings

_USUAL = (("", "the default one"),)
_SETTINGS = {name: one for name, one in (*declared(SamplingParams).items(), *declared(RunSettings).items()) if one.form}
GROUPS = sorted(dict.fromkeys(one.form for one in _SETTINGS.values()), key=lambda title: title == "Checks")
"""The titles that settings declare, in order; switches of Checks stand at the end."""


class MorePanel(Popover):
    """Settings that are seldom changed; `changed` fires on every edit."""

    changed = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.system = QPlainTextEdit()
        self.system.setTabChangesFocus(True)
        self.system.setPlaceholderText("none: the model's template may have one of its own")
        self._fit()
        theme.signals.changed.connect(self._fit)
        self.chat = Choice((("chat", "chat: the model's own template"), ("raw", "raw: the text as it is")))
        self.template = Choice(_USUAL)
        self.fields = {
            name: OptionField(one, one.default, self.changed.emit) for name, one in _SETTINGS.items()
        }
        self._lay_out()
        self.system.textChanged.connect(self.changed)
        for choice in (self.chat, self.template):
            choice.currentIndexChanged.connect(self.changed)

    def _fit(self) -> None:
        """Follow the font."""
        self.system.setFixedHeight(theme.px(58))

    def _lay_out(self) -> None:
        self.column.addWidget(label("Prompt", "title"))
        self.column.addWidget(Field("System text", self.system, "What the system turn of the chat says"))
        self.column.addWidget(Field("Form", self.chat, "Chat wraps the prompt in the model's template; raw feeds it "
                                    "as typed"))
        self._template_field = Field("Chat template", self.template, "One of the model's own by name")
        self._template_field.hide()
        self.column.addWidget(self._template_field)
        for title in GROUPS:
            self._grid(title, [field for name, field in self.fields.items() if _SETTINGS[name].form == title])

    def _grid(self, title: str, fields: list[OptionField]) -> None:
        boxes = [field for field in fields if isinstance(field.widget, Check)]
        for field in boxes:
            field.widget.setText(field.option.caption)  # type: ignore[attr-defined]
            set_tip(field.widget, option_tip(field.option))
            self.column.addWidget(field.widget)
        if len(boxes) == len(fields):
            return
        self.column.addWidget(label(title, "title"))
        grid = QGridLayout()
        grid.setHorizontalSpacing(14)
        grid.setVerticalSpacing(6)
        for place, field in enumerate(one for one in fields if one not in boxes):
            made = Field(field.option.caption, field.widget, option_tip(field.option))
            wide = isinstance(field.widget, QPlainTextEdit)
            grid.addWidget(made, place // 3, 0 if wide else place % 3, 1, 4 if wide else 1)
        grid.setColumnStretch(3, 1)
        self.column.addLayout(grid)

    def offer_templates(self, names: Iterable[str]) -> None:
        """Offer a loaded target's chat templates; none takes no choice away, for the target may not be loaded yet."""
        if named := [name for name in names if name != DEFAULT]:
            self._fill_templates(named)

    def forget_template(self) -> None:
        """Take the default one: another model was chosen."""
        self._fill_templates(())

    def _fill_templates(self, names: Iterable[str]) -> None:
        held = self.template.value()
        self.template.set_items((*_USUAL, *((name, name) for name in names)))
        self._template_field.setVisible(self.template.count() > 1)
        if self.template.value() != held:
            self.changed.emit()

    def show_settings(self, run: RunSettings) -> None:
        """Show the prompt's settings; whoever has all fields shows theirs."""
        self.system.setPlainText(run.system)
        self.chat.set_value("chat" if run.chat else "raw")
        self._fill_templates(() if run.chat_template is None else (run.chat_template,))
        self.template.set_value(run.chat_template or "")
