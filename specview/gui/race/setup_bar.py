"""The bar on top: target, prompt, sampling, and the buttons that run and stop."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QFontMetrics, QResizeEvent
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFrame,
    QMenu,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QWidget,
)

from specview.decoding.interfaces import Declared
from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES, resolve_rule, rule_label
from specview.errors import SpecviewError
from specview.fields import declared
from specview.gui.lanes.editor import rule_words
from specview.gui.link.library import FoundWorkload, Library
from specview.gui.parts import layout, theme
from specview.gui.parts.option_field import OptionField, option_tip
from specview.gui.parts.widgets import (
    Choice,
    Field,
    caption_height,
    enable_in_turn,
    label,
    set_tip,
)
from specview.gui.race.more_panel import MorePanel
from specview.gui.race.target_picker import TargetPicker
from specview.settings.run import LaneSettings, RunSettings, shared_settings

PROMPT_LINES = 2
BAR = ("temperature", "max_tokens", "seed")
"""The settings whose fields stand in the bar itself, in order; the rule's is after the first."""


class PromptEdit(QPlainTextEdit):
    """The prompt; takes plain text only, and leaves dropped files to the window."""

    def __init__(self) -> None:
        super().__init__()
        self.setTabChangesFocus(True)
        self.setAccessibleName("Prompt")
        self.setPlaceholderText("Type a prompt, or choose a workload above")
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMinimumWidth(180)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # The padding is the frame's: lines that are scrolled out must not show in a margin.
        self.document().setDocumentMargin(0)
        theme.signals.changed.connect(self._fit)
        self._fit()

    def _fit(self) -> None:
        spacing = QFontMetrics(theme.ui_font()).lineSpacing()
        self.setFixedHeight(spacing * PROMPT_LINES + 2 * theme.px(4) + 4)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.ignore()
        else:
            super().dragEnterEvent(event)


class PromptDialog(QDialog):
    """The prompt in a large editor."""

    def __init__(self, text: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Edit prompt")
        self.edit = QPlainTextEdit(text)
        self.edit.setFont(theme.mono_font())
        self.edit.setAccessibleName("Prompt")
        self.edit.setTabChangesFocus(True)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        layout.column((self.edit, 1), buttons, on=self, margins=None)
        self.resize(theme.px(720), theme.px(460))


class SetupBar(QFrame):
    """Everything that all lanes share. `changed` fires on every edit, `prompt_changed` besides on the
    prompt's.
    """

    changed = Signal()
    prompt_changed = Signal()
    run_requested = Signal()
    stop_requested = Signal()
    add_lane_requested = Signal()

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.setProperty("kind", "bar")
        self._library = library
        self._workload: str | None = None
        self._workload_text = ""
        self._history: tuple = ()
        self._seeded_turn = 0  # the turn that the field's seed is of
        self._count: int | None = None
        self._shape = ""

        self.target = TargetPicker(library)
        self.prompt = PromptEdit()
        self.caption = QToolButton()
        self.caption.setProperty("kind", "caption")
        self.caption.setAccessibleName("Choose a workload")
        self.caption.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.caption.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.menu = QMenu(self.caption)
        self.caption.setMenu(self.menu)
        set_tip(self.caption, "Choose a built-in prompt")
        self.enlarge = QToolButton()
        self.enlarge.setProperty("kind", "caption")
        self.enlarge.setText("edit…")
        self.enlarge.setAccessibleName("Edit the prompt in a large window")
        self.tokens = label("", "small")
        set_tip(self.tokens, "Tokens of the prompt as the target reads it, with the chat template around it")
        self.rule = Choice()
        # What `auto` picks changes with the temperature, and must not be cut.
        self.rule.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
        self.more = QPushButton("More ▾")
        self.panel = MorePanel(self.more)
        bar = {name: shared_settings()[name] for name in BAR}
        self.fields = {name: OptionField(one, one.default, self._edited) for name, one in bar.items()} | self.panel.fields
        """Every setting that has a field of its own, here or in the panel."""
        self.tune = QPushButton("Tune…")
        set_tip(self.tune, "Find the method, k and policy that are fastest here, within a time budget (Ctrl+Shift+Y)")
        self.add_lane = QPushButton("+ Lane ▾")
        self.stop = QPushButton("Stop")
        self.run = QPushButton("Run")
        self.run.setProperty("kind", "primary")
        self.tell_add("")
        set_tip(self.stop, "Stop within one round (Esc)")
        set_tip(self.run, "Run all lanes (Ctrl+Enter or F5)")
        self._lay_out()
        self._connect()
        self._fill_rules()
        self._fill_workloads()
        self.set_count(None)
        self._templates_of = self.target.target

    # -- values ------------------------------------------------------------------------------------

    def show_settings(self, run: RunSettings, rule: str) -> None:
        """Show these settings; `rule` is the one of all lanes that have none of their own."""
        self.target.set_values(run.engine, run.target, run.trust_remote_code)
        self.panel.blockSignals(True)
        self.panel.show_settings(run)
        for name, field in self.fields.items():
            field.set_value(getattr(self._owner(run, name), name))
        self.panel.blockSignals(False)
        self._templates_of = run.target
        self._fill_rules()
        self.rule.set_value(rule)
        self.prompt.setPlainText(run.prompt)
        self._set_workload(run.workload)
        self._history, self._seeded_turn = run.history, run.turn

    def settings(self, lanes: tuple[LaneSettings, ...]) -> RunSettings:
        """Return the settings with these lanes, the race's rule filled in; raises UsageError."""
        panel, rule = self.panel, self.rule.value()
        values = {name: field.value() for name, field in self.fields.items()}
        sampling = {name: values.pop(name) for name in declared(SamplingParams) if name in values}
        return RunSettings(
            engine=self.target.engine,
            target=self.target.target,
            trust_remote_code=self.target.trust and self.target.engine == "transformers",
            prompt=self.prompt.toPlainText(),
            system=panel.system.toPlainText(),
            chat=panel.chat.value() == "chat",
            chat_template=panel.template.value() or None,
            history=self._history,
            workload=self._workload,
            sampling=SamplingParams(**sampling),
            lanes=tuple(replace(lane, rule=rule) if lane.rule == "auto" else lane for lane in lanes),
            **values,
        )

    @staticmethod
    def _owner(run: RunSettings, name: str) -> RunSettings | SamplingParams:
        """Which record of a run has a setting."""
        return run.sampling if name in declared(SamplingParams) else run

    def field(self, name: str) -> QWidget:
        """The widget of a setting."""
        return self.fields[name].widget

    def make_sound(self, held: RunSettings) -> None:
        """Let every field whose value does not fit show that of `held`."""
        for name, field in self.fields.items():
            if field.problem():
                field.set_value(getattr(self._owner(held, name), name))

    def turn_settings(self, lanes: tuple[LaneSettings, ...]) -> RunSettings:
        """Return `settings` with the seed of the turn that is shown: the field's is that of the conversation's first."""
        run = self.settings(lanes)
        return replace(run, sampling=run.sampling.later(run.turn - self._seeded_turn))

    def tell_target(self, declared: Declared | None) -> None:
        """Show what the target's files declare; None while it has not been loaded."""
        self.target.set_about(() if declared is None else declared.lines())
        self.panel.offer_templates(() if declared is None else declared.templates)

    def invalid_field(self) -> QWidget | None:
        """Return the first field whose value does not fit, to put the cursor there."""
        for name, field in self.fields.items():
            if field.problem():
                return self.more if name in self.panel.fields else field.widget
        return None

    def set_prompt(self, text: str, workload: str | None = None) -> None:
        """Put a text into the prompt box; the conversation so far ends."""
        self._history, self._seeded_turn = (), 0
        self.prompt.setPlainText(text)
        self._set_workload(workload)

    def set_conversation(self, history: tuple, prompt: str) -> None:
        """Show the turn that runs now, after `history`."""
        self._history = history  # first: the new prompt's tokens are counted with the turns before it
        self.prompt.setPlainText(prompt)
        self._set_workload(None)
        self.set_count(self._count)

    @property
    def history(self) -> tuple:
        """The turns before this prompt."""
        return self._history

    def set_count(self, count: int | None) -> None:
        """Show the prompt's tokens; an ellipsis while they cannot be told."""
        self._count = count
        turn = f" · turn {len(self._history) // 2 + 1}" if self._history else ""
        self.tokens.setText(f"{'…' if count is None else f'{count:,}'} tokens{turn}")

    def set_busy(self, *, can_run: bool, can_stop: bool, can_edit: bool, stopping: bool) -> None:
        """Enable what can be done now; the keyboard goes from Run to Stop and back."""
        # Stop is enabled while stopping too: a disabled button would pass the keyboard on to its neighbour.
        enable_in_turn(self.run, self.stop, can_run, can_stop or stopping)
        self.stop.setText("Stopping" if stopping else "Stop")
        self.add_lane.setEnabled(can_edit)

    def tell_add(self, reason: str) -> None:
        """Say in the button's tool tip why no lane can be added now; '' where one can."""
        set_tip(self.add_lane, reason or "Add a lane: all methods (Ctrl+L)")

    # -- layout --------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        prompt_box = QWidget()
        layout.column(
            layout.row(self.caption, self.tokens, 1, self.enlarge, gap=4), self.prompt, 1, on=prompt_box, gap=2
        )
        self._prompt_box = prompt_box
        self.target.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

        self._numbers = QWidget()
        row = layout.row(on=self._numbers, gap=10)
        bar = [self._bar_field(name) for name in BAR]
        rule = Field("Rule", self.rule, "The acceptance rule of every lane that has none of its own")
        more = Field(" ", self.more, "System text, chat or raw, filters, device and threads")
        for widget in (bar[0], rule, *bar[1:], more):
            row.addWidget(widget)
        buttons = QWidget()
        layout.row(self.tune, self.add_lane, self.stop, self.run, on=buttons, gap=8)
        self._buttons = Field(" ", buttons)

        self._fit()
        self._first, self._second = layout.row(gap=10), layout.row(gap=10)
        layout.column(self._first, self._second, on=self, gap=6, margins=(14, 8, 14, 10))
        self._target_field = Field("Target", self.target)
        self._place("wide")
        # Keyboard order follows the eye in both layouts.
        order = (self.target, self.caption, self.enlarge, self.prompt, bar[0].inner, self.rule, *(one.inner for one in bar[1:]),
                 self.more, self.tune, self.add_lane, self.stop, self.run)
        for first, second in zip(order, order[1:], strict=False):
            QWidget.setTabOrder(first, second)

    def _bar_field(self, name: str) -> Field:
        option = self.fields[name].option
        return Field(option.caption, self.field(name), option_tip(option))

    def _fit(self) -> None:
        """Follow the font."""
        for small in (self.caption, self.tokens, self.enlarge):
            small.setFixedHeight(caption_height())
        advance = QFontMetrics(theme.ui_font()).horizontalAdvance("Stopping")
        self.stop.setMinimumWidth(advance + theme.px(28))
        if self._shape:
            self._place(self._fitting())

    def _place(self, shape: str) -> None:
        """One line ('wide'), two ('narrow'), or two with the buttons on the first ('tiny')."""
        if shape == self._shape:
            return
        self._shape = shape
        for line in (self._first, self._second):
            while line.count():
                line.takeAt(0)
        self.target.set_short(shape == "tiny")
        self.tokens.setVisible(shape != "tiny")
        self.tune.setVisible(shape != "tiny")  # the menu has it
        self.prompt.setMinimumWidth(theme.px(120) if shape == "tiny" else 180)
        self._first.addWidget(self._target_field)
        self._first.addWidget(self._prompt_box, 1)
        if shape == "wide":
            self._first.addWidget(self._numbers)
            self._first.addWidget(self._buttons)
            return
        self._second.addWidget(self._numbers)
        self._second.addStretch(1)
        (self._first if shape == "tiny" else self._second).addWidget(self._buttons)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place(self._fitting())

    def _fitting(self) -> str:
        """The shape that the present width has room for."""
        rest = self._numbers.sizeHint().width() + self._buttons.sizeHint().width()
        if self.tune.isHidden():  # the same answer in every shape
            rest += self.tune.sizeHint().width() + 8
        whole = self.target.wide_width() + rest + theme.px(250) + 58
        return "wide" if self.width() >= whole else "narrow" if self.width() >= rest + 28 + 20 else "tiny"

    def minimumSizeHint(self) -> QSize:
        """Narrower than its one-line layout: it breaks into two."""
        hint = super().minimumSizeHint()
        return QSize(min(hint.width(), self._numbers.minimumSizeHint().width() + 40), hint.height())

    # -- reactions -------------------------------------------------------------------------------------

    def _target_chosen(self) -> None:
        """A chat template is chosen for one model."""
        if self.target.target != self._templates_of:
            self._templates_of = self.target.target
            self.panel.forget_template()

    def _connect(self) -> None:
        self.target.changed.connect(self._target_chosen)
        self.target.changed.connect(self.changed)
        self.prompt.textChanged.connect(self._prompt_edited)
        self.rule.currentIndexChanged.connect(self._rule_chosen)
        self.panel.changed.connect(self.changed)
        self.panel.changed.connect(self.prompt_changed)
        self.target.changed.connect(self.prompt_changed)
        self.more.clicked.connect(lambda: self.panel.open_under(self.more))
        self.enlarge.clicked.connect(self._edit_large)
        self.add_lane.clicked.connect(self.add_lane_requested)
        self.stop.clicked.connect(self.stop_requested)
        self.run.clicked.connect(self.run_requested)
        self._library.changed.connect(self._fill_workloads)
        self.menu.aboutToShow.connect(self._fill_workloads)
        theme.signals.changed.connect(self._fit)

    def _prompt_edited(self) -> None:
        if self._workload is not None and self.prompt.toPlainText() != self._workload_text:
            self._set_workload(None)
        self.changed.emit()
        self.prompt_changed.emit()

    def _rule_chosen(self) -> None:
        self._tell_rule()
        self.changed.emit()

    def _edited(self) -> None:
        self._fill_rules()  # what `auto` picks hangs on the temperature
        self.changed.emit()

    def _sampling(self) -> SamplingParams:
        """Sampling at the temperature that is shown; greedy where that is no temperature."""
        try:
            return SamplingParams(self.fields["temperature"].value())
        except SpecviewError:
            return SamplingParams()

    def _tell_rule(self) -> None:
        set_tip(self.rule, rule_words(self.rule.value() or "auto", self._sampling())[1])

    def _fill_rules(self) -> None:
        picked = resolve_rule("auto", self._sampling())
        self.rule.set_items((("auto", f"auto: {picked} · exact"), *((name, rule_label(name)) for name in RULES)))
        self._tell_rule()

    def _fill_workloads(self) -> None:
        self.menu.clear()
        if self._history:
            self.menu.addAction("New conversation").triggered.connect(self._new_conversation)
            self.menu.addSeparator()
        found = self._library.found.workloads
        for workload in found:
            action = self.menu.addAction(workload.label.replace("&", "&&"))
            action.triggered.connect(lambda _=False, workload=workload: self._take_workload(workload))
        if not found:
            self.menu.addAction("no workloads found").setEnabled(False)
        self._show_caption()

    def _take_workload(self, workload: FoundWorkload) -> None:
        self.panel.system.setPlainText(workload.system)
        self.set_prompt(workload.prompt, workload.name)

    def _new_conversation(self) -> None:
        """Forget the turns so far; the prompt stays."""
        self._history, self._seeded_turn = (), 0
        self.set_count(None)
        self.prompt_changed.emit()

    def _set_workload(self, name: str | None) -> None:
        self._workload = name
        self._workload_text = self.prompt.toPlainText()
        self._show_caption()

    def _show_caption(self) -> None:
        self.caption.setText(f"Prompt · {self._workload or 'workload'} ▾")

    def _edit_large(self) -> None:
        dialog = PromptDialog(self.prompt.toPlainText(), self.window())
        if dialog.exec() == QDialog.DialogCode.Accepted and dialog.edit.toPlainText() != self.prompt.toPlainText():
            self.prompt.setPlainText(dialog.edit.toPlainText())
        dialog.deleteLater()
