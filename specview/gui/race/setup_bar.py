"""The setup row: target, prompt, the sampling in words, + Lane, and the one button that runs and stops."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QFontMetrics, QMouseEvent, QMoveEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from specview.decoding.interfaces import Declared
from specview.decoding.sampling import SamplingParams
from specview.fields import declared
from specview.gui.link.library import FoundWorkload, Library
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import set_kind, set_tip
from specview.gui.race.prompt_line import PromptLine
from specview.gui.race.setup_panel import SetupPanel, owner
from specview.gui.race.target_picker import TargetPicker
from specview.gui.race.words_button import WordsButton
from specview.gui.state.setup_words import setup_parts
from specview.settings.run import LaneSettings, RunSettings


class RunButton(QPushButton):
    """Run, and Stop in the same place while something runs; the second press of a double click counts for neither."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = False
        self.tell(stops=False)

    def tell(self, *, stops: bool, stopping: bool = False, what: str = "") -> None:
        """Say what a press does now; `what` is what would be stopped, where it is no race."""
        self.stops = stops
        set_kind(self, "stop" if stops else "primary")
        self.setText("Stopping" if stopping else "Stop" if stops else "Run")
        set_tip(self, f"Stop {what or 'within one round'} (Esc)" if stops else "Run all lanes (Ctrl+Enter or F5)")

    def sizeHint(self) -> QSize:
        """One width for all its words; padding as in the style sheet."""
        words = QFontMetrics(theme.ui_font(bold=True)).horizontalAdvance("Stopping")
        return QSize(words + 2 * (theme.px(18) + 1), super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        event.accept()


class SetupBar(QFrame):
    """Everything that all lanes share. `changed` fires on every edit, `prompt_changed` besides on the
    prompt's.
    """

    changed = Signal()
    prompt_changed = Signal()
    run_requested = Signal()
    stop_requested = Signal()
    add_lane_requested = Signal()
    forget_asked = Signal()

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.setProperty("kind", "bar")
        self._library = library
        self._workload: str | None = None
        self._workload_text = ""
        self._history: tuple = ()
        self._seeded_turn = 0  # the turn that the field's seed is of
        self._count: int | None = None

        self.target = TargetPicker(library)
        self.line = PromptLine()
        self.prompt, self.caption, self.tokens = self.line.edit, self.line.edit.chooser, self.line.edit.count
        self.menu = self.prompt.menu
        self.sampling = WordsButton("Sampling", least=72, most=330, counted=True)
        self.panel = SetupPanel(self.sampling)
        self.rule, self.fields = self.panel.rule, self.panel.fields
        self.add_lane = QPushButton("+ Lane")
        self.run = RunButton()
        self.tell_add("")
        layout.row(self.target, (self.line, 1), self.sampling, self.add_lane, self.run, on=self, gap=8, margins=(12, 7, 12, 7))
        layout.tab_order(self.target, self.prompt, self.caption, self.sampling, self.add_lane, self.run)
        self._connect()
        self._fill_workloads()
        self.set_count(None)
        self._tell_sampling()
        self._templates_of = self.target.target

    # -- values ------------------------------------------------------------------------------------

    def show_settings(self, run: RunSettings, rule: str) -> None:
        """Show these settings; `rule` is the one of all lanes that have none of their own."""
        self.target.set_values(run.engine, run.target, run.trust_remote_code)
        self._templates_of = run.target
        self.panel.show_settings(run, rule)
        self._tell_sampling()
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

    def field(self, name: str) -> QWidget:
        """The widget of a setting."""
        return self.fields[name].widget

    def make_sound(self, held: RunSettings) -> None:
        """Let every field whose value does not fit show that of `held`."""
        for name, field in self.fields.items():
            if field.problem():
                field.set_value(getattr(owner(held, name), name))

    def turn_settings(self, lanes: tuple[LaneSettings, ...]) -> RunSettings:
        """Return `settings` with the seed of the turn that is shown: the field's is that of the conversation's first."""
        run = self.settings(lanes)
        return replace(run, sampling=run.sampling.later(run.turn - self._seeded_turn))

    def tell_target(self, declared: Declared | None) -> None:
        """Show what the target's files declare; None while it has not been loaded."""
        self.target.set_about(() if declared is None else declared.lines())
        self.panel.offer_templates(() if declared is None else declared.templates)

    def invalid_field(self) -> QWidget | None:
        """Return the first field whose value does not fit."""
        problem = self.panel.problem()
        return None if problem is None else problem[0]

    def open_panel(self) -> None:
        """Open the panel of all settings, at the first one that does not fit."""
        self.panel.open_at(self.sampling, self.invalid_field())

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
        self.prompt.tell_count(f"{'…' if count is None else f'{count:,}'} tokens{turn}")

    def set_busy(self, *, stops: bool, stopping: bool, can_edit: bool, what: str = "") -> None:
        """Say what the main button does now, and whether a lane can be added; `what` is what runs beside races."""
        self.run.tell(stops=stops, stopping=stopping, what=what)
        self.add_lane.setEnabled(can_edit)

    def tell_add(self, reason: str) -> None:
        """Say in the button's tool tip why no lane can be added now; '' where one can."""
        set_tip(self.add_lane, reason or "Add a lane: all methods (Ctrl+L)")

    # -- reactions -------------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Leave the prompt its room: in a narrow window the buttons say less."""
        super().resizeEvent(event)
        for words in (self.target, self.sampling):
            words.setMaximumWidth(max(words.minimumSizeHint().width(), round(0.3 * self.width()) - 60))

    def moveEvent(self, event: QMoveEvent) -> None:
        super().moveEvent(event)
        self.line.follow()

    def _connect(self) -> None:
        self.target.changed.connect(self._target_chosen)
        self.target.changed.connect(self.changed)
        self.target.changed.connect(self.prompt_changed)
        self.prompt.textChanged.connect(self._prompt_edited)
        self.panel.changed.connect(self._tell_sampling)
        self.panel.changed.connect(self.changed)
        self.panel.changed.connect(self.prompt_changed)
        self.panel.run_requested.connect(self.run_requested)
        self.sampling.clicked.connect(self.open_panel)
        self.add_lane.clicked.connect(self.add_lane_requested)
        self.run.clicked.connect(lambda: (self.stop_requested if self.run.stops else self.run_requested).emit())
        self._library.changed.connect(self._fill_workloads)
        self.menu.aboutToShow.connect(self._fill_workloads)

    def _target_chosen(self) -> None:
        """A chat template is chosen for one model."""
        if self.target.target != self._templates_of:
            self._templates_of = self.target.target
            self.panel.forget_template()

    def _prompt_edited(self) -> None:
        if self._workload is not None and self.prompt.toPlainText() != self._workload_text:
            self._set_workload(None)
        self.changed.emit()
        self.prompt_changed.emit()

    def _tell_sampling(self) -> None:
        """Say the settings in words on their button, or which of them does not fit."""
        problem = self.panel.problem()
        if problem is None:
            self.sampling.set_parts(setup_parts(self.settings(()), self.rule.value() or "auto"))
            set_tip(self.sampling, f"{self.sampling.words}.\nSampling, output, engine: all that the lanes share (Ctrl+,)")
        else:
            self.sampling.set_parts([f"✕ {problem[1]}"])
            set_tip(self.sampling, f"{problem[2]}\nOpen to change it (Ctrl+,)")
        set_kind(self.sampling, "true" if problem else "false", "invalid")

    def _fill_workloads(self) -> None:
        self.menu.clear()
        if self._history:
            self.menu.addAction("New conversation").triggered.connect(self.forget_asked)
            self.menu.addSeparator()
        found = self._library.found.workloads
        for workload in found:
            action = self.menu.addAction(workload.label.replace("&", "&&"))
            action.triggered.connect(lambda _=False, workload=workload: self._take_workload(workload))
        if not found:
            self.menu.addAction("no workloads found").setEnabled(False)

    def _take_workload(self, workload: FoundWorkload) -> None:
        self.panel.system.setPlainText(workload.system)
        self.set_prompt(workload.prompt, workload.name)

    def new_conversation(self) -> None:
        """Forget the turns so far; the prompt stays."""
        self._history, self._seeded_turn = (), 0
        self.set_count(None)
        self.changed.emit()
        self.prompt_changed.emit()

    def _set_workload(self, name: str | None) -> None:
        self._workload = name
        self._workload_text = self.prompt.toPlainText()
        self.prompt.tell_workload(name)
