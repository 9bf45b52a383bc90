"""The panel under the sampling button: rule, system text, chat or raw, and every setting that declares a form."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QPlainTextEdit, QPushButton, QScrollArea, QWidget

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES, resolve_rule, rule_label
from specview.errors import SpecviewError
from specview.fields import declared
from specview.gui.parts import layout, theme
from specview.gui.parts.option_field import OptionField, option_tip
from specview.gui.parts.widgets import Check, Choice, Field, Popover, button, label, set_tip
from specview.gui.state.setup_words import SETTINGS, rule_words
from specview.settings.run import RunSettings

_USUAL = (("", "the default one"),)
_FIRST = {"Output", *(one.form for one in declared(SamplingParams).values())}
"""The groups of the first column: how tokens are chosen, and how many."""
_ACROSS = 3


class _Content(QScrollArea):
    """As large as its content, where the screen has room; it scrolls where it has not."""

    def __init__(self, content: QWidget) -> None:
        super().__init__()
        self._content = content
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        content.setObjectName("scrolled")
        self.setWidget(content)

    def sizeHint(self) -> QSize:
        return self._content.sizeHint()


class SetupPanel(Popover):
    """What all lanes share beside target and prompt. signals: changed, on every edit; run_requested, by its keys."""

    changed = Signal()
    run_requested = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.fields = {name: OptionField(one, one.default, self._edited) for name, one in SETTINGS.items()}
        self.rule = Choice()
        self.rule.setAccessibleName("Rule")
        # What `auto` picks changes with the temperature, and must not be cut.
        self.rule.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
        self.system = QPlainTextEdit()
        self.system.setTabChangesFocus(True)
        self.system.setPlaceholderText("none: the model's template may have one of its own")
        self.chat = Choice((("chat", "chat: the model's own template"), ("raw", "raw: the text as it is")))
        self.template = Choice(_USUAL)
        self._template_field = Field("Chat template", self.template, "One of the model's own by name")
        self._template_field.hide()
        self._body: _Content | None = None
        for named, name in ((self.system, "System text"), (self.chat, "Form"), (self.template, "Chat template")):
            named.setAccessibleName(name)
        # Until it is laid out they would be windows of their own, and outlive this one.
        for part in (self.rule, self.system, self.chat, self._template_field, *(field.widget for field in self.fields.values())):
            part.setParent(self)
        self._fit()
        self.fill_rules()
        theme.signals.changed.connect(self._fit)
        self.rule.currentIndexChanged.connect(self._rule_chosen)
        self.system.textChanged.connect(self.changed)
        for choice in (self.chat, self.template):
            choice.currentIndexChanged.connect(self.changed)

    # -- layout ----------------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Follow the font."""
        self.system.setFixedHeight(theme.px(58))

    def _lay_out(self) -> _Content:
        content = QWidget()
        left, right = layout.column(gap=8), layout.column(gap=8)
        for item in (
            label("Prompt", "title"), Field("System text", self.system, "What the system turn of the chat says"),
            Field("Form", self.chat, "Chat wraps the prompt in the model's template; raw feeds it as typed"), self._template_field,
        ):  # fmt: skip
            right.addWidget(item)
        titles = dict.fromkeys(one.form for one in SETTINGS.values())
        for title in sorted(titles, key=lambda title: (title == "Checks", title == "Output", title not in _FIRST)):
            fields = [self.fields[name] for name, one in SETTINGS.items() if one.form == title]
            self._group(left if title in _FIRST else right, title, fields)
        left.addStretch(1)
        right.addStretch(1)
        right.addLayout(layout.row(1, button(QPushButton, "Done", "Close (Esc)", self.hide)))
        layout.row((left, 1), (right, 1), on=content, gap=28)
        body = _Content(content)
        self.column.addWidget(body)
        return body

    def _group(self, column: QBoxLayout, title: str, fields: list[OptionField]) -> None:
        """A title, the fields of a group under their captions, and its tick boxes."""
        column.addWidget(label(title, "title"))
        boxes = [field for field in fields if isinstance(field.widget, Check)]
        wide = [field for field in fields if isinstance(field.widget, QPlainTextEdit)]
        small: list[QWidget] = [self._captioned(field) for field in fields if field not in boxes and field not in wide]
        if title == "Sampling":
            small.insert(1, Field("Rule", self.rule, "The acceptance rule of every lane that has none of its own"))
        for place in range(0, len(small), _ACROSS):
            column.addLayout(layout.row(*small[place : place + _ACROSS], 1, gap=12))
        for field in wide:
            column.addWidget(self._captioned(field))
        for field in boxes:
            field.widget.setText(field.option.caption)  # type: ignore[attr-defined]
            set_tip(field.widget, option_tip(field.option))
            column.addWidget(field.widget)

    @staticmethod
    def _captioned(field: OptionField) -> Field:
        return Field(field.option.caption, field.widget, option_tip(field.option))

    # -- opening ---------------------------------------------------------------------------------------

    def open_at(self, anchor: QWidget, widget: QWidget | None = None) -> None:
        """Open under a button, the keyboard on this field, else on the first one; laid out when it is opened first."""
        self._body = self._body or self._lay_out()
        for part in self.findChildren(QWidget):
            part.ensurePolished()  # before it is shown first, sizes would be those without the style sheet
        self._body.updateGeometry()
        self.open_under(anchor)
        if widget is not None:
            widget.setFocus()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Run from here too: a window's own keys do not reach it while a panel is open."""
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if event.key() == Qt.Key.Key_F5 or (enter and event.modifiers() & Qt.KeyboardModifier.ControlModifier):
            self.hide()
            self.run_requested.emit()
        else:
            super().keyPressEvent(event)

    # -- values ----------------------------------------------------------------------------------------

    def problem(self) -> tuple[QWidget, str, str] | None:
        """The first field whose value does not fit, what it is called, and why; the rule among them."""
        for field in self.fields.values():
            if words := field.problem():
                return field.widget, field.option.caption, words
        try:
            resolve_rule(self.rule.value() or "auto", self._sampling())
        except SpecviewError as error:
            return self.rule, "Rule", str(error)
        return None

    def _sampling(self) -> SamplingParams:
        """Sampling at the temperature that is shown; greedy where that is no temperature."""
        try:
            return SamplingParams(self.fields["temperature"].value())
        except SpecviewError:
            return SamplingParams()

    def _edited(self) -> None:
        self.fill_rules()  # what `auto` picks hangs on the temperature
        self.changed.emit()

    def _rule_chosen(self) -> None:
        self._tell_rule()
        self.changed.emit()

    def _tell_rule(self) -> None:
        set_tip(self.rule, rule_words(self.rule.value() or "auto", self._sampling())[1])

    def fill_rules(self) -> None:
        """Offer the rules, `auto` with what it picks at the temperature that is shown."""
        picked = resolve_rule("auto", self._sampling())
        self.rule.set_items((("auto", f"auto: {picked} · exact"), *((name, rule_label(name)) for name in RULES)))
        self._tell_rule()

    def offer_templates(self, names: Iterable[str]) -> None:
        """Offer a loaded target's chat templates; none takes no choice away, for the target may not be loaded yet."""
        from specview.engines.templates import DEFAULT

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

    def show_settings(self, run: RunSettings, rule: str) -> None:
        """Show these settings; `rule` is the one of all lanes that have none of their own."""
        self.blockSignals(True)
        for name, field in self.fields.items():
            field.set_value(getattr(owner(run, name), name))
        self.system.setPlainText(run.system)
        self.chat.set_value("chat" if run.chat else "raw")
        self._fill_templates(() if run.chat_template is None else (run.chat_template,))
        self.template.set_value(run.chat_template or "")
        self.fill_rules()
        self.rule.set_value(rule)
        self.blockSignals(False)


def owner(run: RunSettings, name: str) -> RunSettings | SamplingParams:
    """Which record of a run has a setting."""
    return run.sampling if name in declared(SamplingParams) else run
