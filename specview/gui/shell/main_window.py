"""The main window: menus, setup bar, race page, status bar, and what ties them to the controller."""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QByteArray, QEvent, QMargins, QMimeData, QRect, QTimer
from PySide6.QtGui import (
    QAction,
    QActionGroup,
    QCloseEvent,
    QDragEnterEvent,
    QDropEvent,
    QGuiApplication,
    QKeySequence,
    QShowEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QFileDialog,
    QMainWindow,
    QMenu,
    QToolButton,
    QWidget,
)

from specview.drafting.lanes import needs_draft
from specview.drafting.registry import DEFAULT_METHOD, METHODS, methods_for
from specview.errors import SpecviewError
from specview.gui.lanes.editor import LaneEditor, model_name
from specview.gui.lanes.exit_scan_dialog import ExitScans
from specview.gui.lanes.menu import LaneMenu, known_problems
from specview.gui.lanes.panel import LanePanel
from specview.gui.link.background import Background
from specview.gui.link.controller import Controller
from specview.gui.link.engine_thread import EngineThread
from specview.gui.link.head_checks import FoundHead, head_in, needs_choice
from specview.gui.link.library import Library
from specview.gui.link.open_run import Pick
from specview.gui.parts import layout, theme
from specview.gui.parts.pages import RACE, WHY, PageContext, Tabs
from specview.gui.parts.questions import ask
from specview.gui.parts.selection import Selection
from specview.gui.parts.widgets import Banner, set_tip
from specview.gui.race.foreign_models import ForeignModels
from specview.gui.race.page import RacePage
from specview.gui.race.recorded_runs import RecordedRuns
from specview.gui.race.setup_bar import SetupBar
from specview.gui.shell.help_dialogs import show_about, show_shortcuts
from specview.gui.shell.screen_fit import USUAL_FRAME, margins, on_screen
from specview.gui.shell.status_strip import StatusStrip
from specview.gui.state.settings_store import Remembered, SettingsStore, WindowState
from specview.gui.state.view_model import LaneModel
from specview.gui.train.dialog import BESIDE, TrainDialog
from specview.gui.train.process import TrainingRun
from specview.racing.resolve import checked_run, idle_notes
from specview.reading import read_text
from specview.settings.run import BUNDLED, MAX_LANES, LaneSettings, RunSettings

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 8.0
CONTINUE_TOKENS = 64
LARGEST_PROMPT_FILE = 4_000_000
FRAME_MS = 400
STALE = "figures of the run before: target, prompt, lanes or sampling have changed since"


class MainWindow(QMainWindow):
    """One window over one controller; closing it ends the engine thread and keeps the settings."""

    def __init__(
        self,
        engine: EngineThread,
        library: Library,
        store: SettingsStore,
        remembered: Remembered,
        first: RunSettings,
    ) -> None:
        """`first` stands where nothing was remembered."""
        super().__init__()
        self.setWindowTitle("specview")
        self.setAcceptDrops(True)
        self.controller = Controller(engine)
        self.library = library
        self._files = Background(self)
        self._files.failed.connect(self.show_message)
        self.foreign = ForeignModels(self)
        self.store = store
        self.thread_ended = True
        self._looks: WindowState = remembered.window
        run = remembered.run or first
        self._sound = run  # the settings as last shown without a fault
        self.lane_settings = self.controller.lanes
        self.lane_settings[:] = run.lanes
        self._closing = False
        self._looked = False
        self._trained_before = False

        self.setup = SetupBar(library)
        self.lane_menu = LaneMenu(self)
        self.banner = Banner()
        self.setup.show_settings(run, self._looks.rule)
        self.show_lanes()
        self.selection = Selection(self)
        self.page = RacePage(self.controller, self.selection)
        self.tabs = Tabs(self.page, self._looks.pages)
        self.tabs.context = PageContext(
            self.controller, self.selection, self.run_settings, self.show_message, self.open_race, self.take_lane,
            self.tabs.open, self.foreign.confirm,
        )
        self.recorded = RecordedRuns(self, self.tabs.open)
        self.tabs.context.extra["open_runs"] = self.recorded.open
        self.status = StatusStrip(self.controller)
        self.setStatusBar(self.status)
        self.training = TrainingRun(self)
        self.train_dialog: TrainDialog | None = None
        self.job_dialogs: dict[str, QDialog] = {}  # tuning, prompt sets: made when first opened
        self.train_button = QToolButton()
        self.train_button.setProperty("kind", "caption")
        self.train_button.setAccessibleName("Training")
        set_tip(self.train_button, "Show the training (Ctrl+T)")
        self.train_button.hide()
        self.status.addPermanentWidget(self.train_button)
        page = QWidget()
        page.setObjectName("page")
        holder = QWidget()
        self._banner_holder = holder
        layout.column(self.banner, on=holder, margins=(10, 8, 10, 0))
        holder.hide()
        layout.column(self.tabs, self.setup, holder, (self.tabs.stack, 1), on=page, gap=0)
        self.setCentralWidget(page)
        self._make_menus()
        self._connect()
        self._restore_looks()
        self._refresh_actions()
        self.setup.run.setFocus()

    # -- settings --------------------------------------------------------------------------------------

    def run_settings(self) -> RunSettings:
        """Return the checked settings as shown; raises UsageError with one line."""
        return checked_run(self.setup.turn_settings(tuple(self.lane_settings)))

    def own_settings(self) -> RunSettings:
        """Return the settings as shown, or as last shown without a fault; lanes that follow the race's rule say `auto`."""
        try:
            return self._raw_settings()
        except SpecviewError:
            return self._sound

    def _raw_settings(self) -> RunSettings:
        """Return the settings as remembered: lanes that follow the race's rule say `auto`."""
        return replace(self.setup.settings(()), lanes=tuple(self.lane_settings))

    def _settings_to_keep(self) -> RunSettings:
        """Return the settings as shown, now that the window closes: a number that does not fit gives way to its last."""
        self.setup.blockSignals(True)
        self.setup.make_sound(self._sound)
        try:
            return self._raw_settings()
        except SpecviewError:
            log.exception("the settings as shown cannot be kept")
            return self._sound

    def show_lanes(self) -> None:
        """Let the panels show the lanes as set, if the settings are sound."""
        with suppress(SpecviewError):
            self._sound = self._raw_settings()
        try:
            self.controller.show_lanes(self.run_settings())
        except SpecviewError:
            # Run will say what is wrong; until then the lanes stand as they would without it.
            plain = tuple(replace(lane, rule="auto") for lane in self.lane_settings)
            self.controller.show_lanes(RunSettings(lanes=plain))

    def start(self, preload: bool = True) -> None:
        """Begin the background work; called once the window is on the screen."""
        self.library.scan(models=False)
        self._ask_count()
        if preload:
            try:
                self.controller.preload(self.run_settings())
            except SpecviewError:
                pass  # Run will say it, in words and where it matters
        self._look_for_models()

    def _look_for_models(self) -> None:
        """Look for models once nothing loads or runs; see `library` for why not before."""
        if not self._looked and self.controller.state in ("ready", "ended"):
            self._looked = True
            self.library.scan()

    # -- actions -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all lanes, or say in one line why they cannot run."""
        if self.controller.racing:
            return
        self.clear_message()
        if self.controller.job:
            self.show_message(self.controller.busy_words, "warning")
            return
        if not self.foreign.settle():
            return
        self.tabs.open(RACE)
        try:
            settings = self.run_settings()
            problem = self.library.engine_problem(settings.engine)
            if problem:
                raise SpecviewError(problem)
        except SpecviewError as error:
            self.show_message(str(error))
            field = self.setup.invalid_field()
            if field is not None:
                field.setFocus()
            return
        self.controller.run(settings)
        if notes := idle_notes(settings):
            self.show_message(" ".join(notes), "warning")
        self._warn_of_training()

    def continue_run(self) -> None:
        """Go on past the limit."""
        if self.controller.can_continue:
            try:
                tokens = int(self.setup.fields["max_tokens"].value())
            except SpecviewError:
                tokens = CONTINUE_TOKENS
            self.clear_message()
            self.controller.continue_(tokens)
            self._warn_of_training()

    def next_turn(self, text: str) -> None:
        """Run the next turn of the conversation, with everything else as set now."""
        self.clear_message()
        if self.controller.job:
            self.show_message(self.controller.busy_words, "warning")
            return
        try:
            settings = self.run_settings()
            if not settings.chat:
                raise SpecviewError("A follow-up needs the chat form.", "Choose it under More.")
        except SpecviewError as error:
            self.show_message(str(error))
            return
        self.show_lanes()
        self.page.sent = text
        self.controller.follow_up(text, settings)
        if notes := idle_notes(settings):
            self.show_message(" ".join(notes), "warning")
        self._warn_of_training()

    def add_lane(self) -> None:
        """Open the menu of methods under the + Lane button."""
        if self._can_add():
            self.lane_menu.fill(self.method_problems())
            self.lane_menu.open_under(self.setup.add_lane)

    def add_method(self, name: str) -> None:
        """Add a lane of this method as it stands; its name opens the editor, as does a head that must be chosen."""
        if self._can_add() and name in METHODS:
            lane: LaneSettings | None = LaneSettings(method=name)
            if needs_choice(name):
                kind = METHODS[name].head
                found = next((head.ref for head in self.library.found.heads if head.kind == kind), BUNDLED)
                lane = self._edit(LaneSettings(method=name, draft=found), "Add lane")
            if lane is None:
                return
            self.lane_settings.append(lane)
            self._lanes_edited()
            self.page.panels[-1].setFocus()
            self.page.lane_scroll.ensureWidgetVisible(self.page.panels[-1])

    def set_up_lane(self) -> None:
        """Add a lane by way of its editor, on a method that is not there yet."""
        if not self._can_add():
            return
        there = {lane.method for lane in self.lane_settings}
        problems = self.method_problems()
        drafting = [name for name, info in METHODS.items() if info.drafts and name not in problems]
        if not drafting:
            drafting = [name for name, info in METHODS.items() if info.drafts]
        method = next((name for name in drafting if name not in there), drafting[0])
        edited = self._edit(LaneSettings(method=method), "Add lane")
        if edited is not None:
            self.lane_settings.append(edited)
            self._lanes_edited()

    def open_race(self, settings: RunSettings) -> None:
        """Take settings into the setup bar and the lanes, and go to the race; nothing is run, no unknown model is named."""
        if self.controller.racing:
            self.show_message("A race is running. Stop it before setting up another.", "warning")
            return
        self.take_settings(settings)
        if self.foreign.words:
            self.show_message(f"{self.foreign.words}.", "warning")
        self.tabs.open(RACE)

    def take_settings(self, settings: RunSettings) -> None:
        """Take settings into the setup bar and the lanes, but for models that are not known; Run asks about them."""
        shown = self.foreign.take(settings)
        self.show_setup(shown, shown.lanes[-1].rule if shown.lanes else "auto")
        self.foreign.withhold(settings, shown)

    def show_setup(self, settings: RunSettings, rule: str) -> None:
        """Show settings in the setup bar and the lanes; `rule` is the one of all lanes that have none of their own."""
        self.lane_settings[:] = settings.lanes or (LaneSettings(),)
        self.setup.show_settings(settings, rule)
        self._lanes_edited()
        self._ask_count()

    def take_lane(self, lane: LaneSettings) -> bool:
        """Add a lane to the race as set up; False, with a line that says why, where it cannot be."""
        if self.controller.racing:
            self.show_message("A race is running. Stop it before adding a lane.", "warning")
        elif not self._can_add():
            self.show_message("All lanes are taken. Remove one first.", "warning")
        else:
            self.lane_settings.append(lane)
            self._lanes_edited()
            self.page.lane_scroll.ensureWidgetVisible(self.page.panels[-1])
            return True
        return False

    # -- tuning and prompt sets ----------------------------------------------------------------------------

    def show_tuning(self) -> None:
        """Open the dialog that finds the fastest method."""
        self._show_job("tune", "specview.gui.tune.dialog", "TuneDialog")

    def show_prompt_set(self) -> None:
        """Open the dialog that races a set of prompts."""
        self._show_job("prompt set", "specview.gui.race.prompt_set_dialog", "PromptSetDialog")

    def _show_job(self, name: str, module: str, kind: str) -> None:
        if name not in self.job_dialogs:
            self.job_dialogs[name] = getattr(importlib.import_module(module), kind)(self.tabs.context, self)
        self.job_dialogs[name].show()
        self.job_dialogs[name].raise_()
        self.job_dialogs[name].activateWindow()

    # -- training ------------------------------------------------------------------------------------------

    def show_training(self) -> None:
        """Open the training dialog, beside the window's own work."""
        if self.train_dialog is None:
            self.train_dialog = TrainDialog(self.training, self._training_target, self._files, self)
            self.train_dialog.use_asked.connect(self.use_trained)
        self.train_dialog.show()
        self.train_dialog.raise_()
        self.train_dialog.activateWindow()

    def _training_target(self) -> tuple[str, str, str]:
        picker = self.setup.target
        return picker.engine, picker.target, model_name(picker.target)

    def use_trained(self, method: str, folder: str) -> None:
        """Add a lane that drafts with what was trained."""
        if self.take_lane(LaneSettings(method=method, draft=folder)):
            self.tabs.open(RACE)
            self.library.scan()

    def _warn_of_training(self) -> None:
        if self.training.running and self.controller.racing:
            self.show_message(f"A training runs beside this race. {BESIDE}", "warning")

    def _training_changed(self) -> None:
        """Show in the status bar that something is trained, and warn where a race is timed meanwhile."""
        training = self.training
        kind = training.request.kind if training.request is not None else ""
        percent = "" if training.fraction is None else f" {training.fraction:.0%}"
        words = {"running": f"training {kind}{percent}", "stopping": f"stopping {kind}",
                 "done": f"{kind} trained", "failed": f"training {kind} failed", "stopped": f"{kind} stopped"}
        text = words.get(training.state, "")
        if text != self.train_button.text():
            self.train_button.setText(text)
            self.train_button.setVisible(bool(text))
        if training.running != self._trained_before:
            self._trained_before = training.running
            self._warn_of_training()

    def _may_close(self) -> bool:
        """Ask what becomes of a training that runs; False where the window is to stay."""
        if not self.training.running:
            return True
        answer = self.ask_training()
        if answer == "stop":
            if self.training.state != "stopping":
                self.training.stop()
            self.training.leave()
        elif answer == "leave":
            self.training.leave()
        return answer in ("stop", "leave")

    def ask_training(self) -> str:
        """Ask whether to stop a training that runs ('stop'), leave it running ('leave') or stay ('')."""
        return ask(
            self, "A training is running", "A training is running.",
            {"stop": "Stop and keep state", "leave": "Leave it running"},
            "Stop it and keep its state (the same settings go on from there later), or leave it running without the window?",
        )  # fmt: skip

    def _can_add(self) -> bool:
        return not self.controller.racing and len(self.lane_settings) < MAX_LANES

    def method_problems(self) -> dict[str, str]:
        """Method -> why it cannot draft on the chosen target: what is known of it, before it was loaded little."""
        picker = self.setup.target
        known = self.controller.target_known(picker.engine, picker.target)
        return dict(known_problems(picker.engine) if known is None else known.problems)

    def edit_lane(self, index: int) -> None:
        """Open the editor of a lane."""
        if self.controller.racing or not 0 <= index < len(self.lane_settings):
            return
        if self.lane_settings[index].plain:
            self.show_message("Plain decoding has nothing to set: it is the baseline, and always there.", "warning")
            return
        edited = self._edit(self.lane_settings[index], "Edit lane")
        if edited is not None:
            self.lane_settings[index] = edited
            self._lanes_edited()

    def _edit(self, lane: LaneSettings, title: str) -> LaneSettings | None:
        try:
            run = self.setup.settings(())
        except SpecviewError as error:
            self.show_message(str(error))
            return None
        known = self.controller.target_known(run.engine, run.target)
        editor = LaneEditor(
            lane, run, self.setup.rule.value() or "auto", self.library, self,
            problems=self.method_problems(), device="" if known is None else known.device,
            scans=ExitScans(self.controller, run),
        )
        editor.setWindowTitle(title)
        taken = editor.lane() if editor.exec() == QDialog.DialogCode.Accepted else None
        editor.deleteLater()
        return taken

    def remove_lane(self, index: int) -> None:
        """Remove a lane; plain stays."""
        if not self.controller.racing and 0 < index < len(self.lane_settings):
            del self.lane_settings[index]
            self._lanes_edited()

    def move_lane(self, index: int, step: int) -> None:
        """Move a lane by `step` places; plain stays first."""
        to = index + step
        if not self.controller.racing and 0 < index < len(self.lane_settings) and 0 < to < len(self.lane_settings):
            self.lane_settings.insert(to, self.lane_settings.pop(index))
            self._lanes_edited()
            self.page.panels[to].setFocus()

    def _lanes_edited(self) -> None:
        self.show_lanes()
        self._refresh_actions()

    def copy_lane(self) -> None:
        """Copy the output of the lane that has the focus (of the selected one otherwise)."""
        panel = self._focused_panel()
        lane = panel.lane if panel is not None else self.page.selected
        if lane is not None:
            QGuiApplication.clipboard().setText(lane.text.encode("utf-8", "replace").decode("utf-8"))

    def _focused_panel(self) -> LanePanel | None:
        widget = QApplication.focusWidget()
        return next((p for p in self.page.panels if widget is not None and p.isAncestorOf(widget)), None)

    def _focused_lane(self) -> int | None:
        """The index of the lane that has the focus, of the selected one otherwise."""
        panel = self._focused_panel()
        lane = panel.lane if panel is not None else self.page.selected
        return next((index for index, held in enumerate(self.controller.race.lanes) if held is lane), None)

    def _edit_focused(self) -> None:
        index = self._focused_lane()
        if index is not None:
            self.edit_lane(index)

    def toggle_tree(self) -> None:
        """Open or close the live draft tree of the lane that has the focus."""
        index = self._focused_lane()
        if index is not None:
            self.page.toggle_tree(index)

    # -- messages ------------------------------------------------------------------------------------------

    def show_message(self, text: str, kind: str = "error") -> None:
        """Show one line on top; it stays until dismissed or the next run."""
        self.banner.show_message(text, kind)
        self._banner_holder.show()

    def clear_message(self) -> None:
        """Take the line away."""
        self.banner.clear()

    # -- menus ------------------------------------------------------------------------------------------------

    def _make_menus(self) -> None:
        bar = self.menuBar()
        file = bar.addMenu("&File")
        self._action(file, "Open &target…", "Ctrl+O", self.setup.target.open_file_dialog)
        self._action(file, "Open &prompt…", "", self._open_prompt)
        self._action(file, "Open t&race…", "Ctrl+Shift+O", self.recorded.ask)
        self.copy_action = self._action(file, "&Copy lane's text", "Ctrl+Shift+C", self.copy_lane)
        file.addSeparator()
        self._action(file, "&Quit", "Ctrl+Q", self.close)
        race = bar.addMenu("&Race")
        self.run_action = self._action(race, "&Run", "Ctrl+Return", self.run)
        self.run_action.setShortcuts([QKeySequence("Ctrl+Return"), QKeySequence("Ctrl+Enter"), QKeySequence("F5")])
        self.stop_action = self._action(race, "&Stop", "Esc", self.controller.stop)
        self.continue_action = self._action(race, "&Continue past the limit", "Ctrl+G", self.continue_run)
        race.addSeparator()
        self.add_action = self._action(race, "&Add lane…", "Ctrl+L", self.add_lane)
        self.edit_action = self._action(race, "&Edit lane…", "Ctrl+Shift+L", self._edit_focused)
        race.addSeparator()
        self._action(race, "T&une: the fastest method here…", "Ctrl+Shift+Y", self.show_tuning)
        self._action(race, "Run a &prompt set…", "Ctrl+Shift+P", self.show_prompt_set)
        race.addSeparator()
        self.train_action = self._action(race, "&Train a drafter…", "Ctrl+T", self.show_training)
        view = bar.addMenu("&View")
        self.ghosts = self._toggle(view, "&Ghosts of rejected drafts", "Ctrl+R", self._looks.ghosts)
        self.whitespace = self._toggle(view, "&Spaces and newlines as marks", "Ctrl+W", self._looks.whitespace)
        self.tree_action = self._action(view, "&Draft tree of the lane, live", "Ctrl+D", self.toggle_tree)
        self.inspector = self._toggle(view, "&Inspector", "Ctrl+I", self._looks.inspector)
        self.plots = self._toggle(view, "&Plots", "Ctrl+J", self._looks.plots)
        view.addSeparator()
        self._action(view, "&Larger font", "Ctrl++", lambda: self._zoom(1)).setShortcuts(
            [QKeySequence("Ctrl++"), QKeySequence("Ctrl+=")]
        )
        self._action(view, "S&maller font", "Ctrl+-", lambda: self._zoom(-1))
        self._action(view, "&Normal font", "Ctrl+0", lambda: self._zoom(0))
        view.addSeparator()
        group = QActionGroup(self)
        for name in theme.CHOICES:
            action = view.addAction({"system": "Theme of the s&ystem", "dark": "Dar&k", "light": "Lig&ht"}[name])
            action.setCheckable(True)
            action.setChecked(theme.choice() == name)
            action.triggered.connect(lambda _=False, name=name: self._set_theme(name))
            group.addAction(action)
        self._themes = group
        go = bar.addMenu("&Go")
        self._action(go, "&Prompt", "Ctrl+P", self.setup.prompt.setFocus)
        self._action(go, "&Follow-up line", "Ctrl+Shift+M", self.page.follow_up.setFocus)
        go.addSeparator()
        for place, title in enumerate(self.tabs.titles):
            self._action(go, f"Tab {title}", f"Alt+{place + 1}", lambda title=title: self.tabs.enter(title))
        go.addSeparator()
        for number in range(MAX_LANES):
            self._action(go, f"Lane &{number + 1}", f"Ctrl+{number + 1}", lambda n=number: self.page.focus_lane(n))
        help_ = bar.addMenu("&Help")
        self._action(help_, "&Keyboard shortcuts", "F1", lambda: show_shortcuts(self))
        self._action(help_, "&About specview", "", lambda: show_about(self))

    def _action(self, menu: QMenu, text: str, shortcut: str, slot: object) -> QAction:
        action = menu.addAction(text)
        if shortcut:
            action.setShortcut(QKeySequence(shortcut))
        action.triggered.connect(lambda _=False: slot())  # type: ignore[operator]
        return action

    def _toggle(self, menu: QMenu, text: str, shortcut: str, on: bool) -> QAction:
        action = menu.addAction(text)
        action.setCheckable(True)
        action.setChecked(on)
        action.setShortcut(QKeySequence(shortcut))
        action.triggered.connect(self._looks_toggled)
        return action

    def _looks_toggled(self) -> None:
        looks = self._looks
        looks.ghosts, looks.whitespace = self.ghosts.isChecked(), self.whitespace.isChecked()
        asked = ""
        for name, action in (("inspector", self.inspector), ("plots", self.plots)):
            if action.isChecked() != self.page.shown(name):
                setattr(looks, name, action.isChecked())
                asked = name
        self._apply_looks(asked)

    def _apply_looks(self, asked: str = "") -> None:
        looks = self._looks
        self.page.show_marks(ghosts=looks.ghosts, whitespace=looks.whitespace)
        self.page.wish(looks.inspector, looks.plots, asked)
        self._show_folds()

    def _show_folds(self) -> None:
        """Tick what is shown: in a small window parts fold by themselves."""
        self.inspector.setChecked(self.page.shown("inspector"))
        self.plots.setChecked(self.page.shown("plots"))

    def _set_theme(self, name: str) -> None:
        self._looks.theme = name
        theme.apply(_app(), name)

    def _zoom(self, direction: int) -> None:
        scales = theme.SCALES
        place = min(range(len(scales)), key=lambda i: abs(scales[i] - theme.font_scale()))
        place = scales.index(1.0) if direction == 0 else min(max(place + direction, 0), len(scales) - 1)
        self._looks.font_scale = scales[place]
        theme.apply(_app(), theme.choice(), scales[place])

    def _open_prompt(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "Open a prompt", "", "Text (*.txt *.md);;All files (*)")
        if path:
            self.take_prompt_file(Path(path))

    def take_prompt_file(self, path: Path) -> None:
        """Put a text file's content into the prompt box."""
        try:
            text = read_text(path, LARGEST_PROMPT_FILE)
        except OSError as error:
            self.show_message(f"{path.name} cannot be read: {error.strerror or error}.")
        except UnicodeDecodeError:
            self.show_message(f"{path.name} is not UTF-8 text. Save it as UTF-8 text first.")
        except ValueError:
            self.show_message(f"{path.name} is larger than 4 MB. Choose a shorter text.")
        else:
            self.setup.set_prompt(text)

    # -- reactions ---------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        setup, page, controller = self.setup, self.page, self.controller
        setup.run_requested.connect(self.run)
        setup.stop_requested.connect(controller.stop)
        setup.add_lane_requested.connect(self.add_lane)
        setup.tune.clicked.connect(self.show_tuning)
        self.lane_menu.method_chosen.connect(self.add_method)
        self.lane_menu.editor_asked.connect(self.set_up_lane)
        setup.changed.connect(self._settings_changed)
        setup.changed.connect(lambda: self.train_dialog.refresh_target() if self.train_dialog is not None else None)
        setup.prompt_changed.connect(self._ask_count)
        page.edit_lane.connect(self.edit_lane)
        page.remove_lane.connect(self.remove_lane)
        page.move_lane.connect(self.move_lane)
        page.more.clicked.connect(self.continue_run)
        page.lane_selected.connect(self._lane_selected)
        page.turn_requested.connect(self.next_turn)
        page.why_requested.connect(self.show_why)
        page.folded.connect(self._show_folds)
        self.status.select(page.selected)
        self.tabs.changed.connect(self._tab_changed)
        controller.state_changed.connect(self._refresh_actions)
        controller.state_changed.connect(self._look_for_models)
        controller.failed.connect(self.show_message)
        controller.warned.connect(lambda text: self.show_message(text, "warning"))
        controller.tokens_counted.connect(setup.set_count)
        controller.turn_started.connect(self._turn_started)
        self.banner.gone.connect(self._banner_holder.hide)
        theme.signals.changed.connect(self._fit_minimum)
        self.training.changed.connect(self._training_changed)
        self.train_button.clicked.connect(self.show_training)

    def _lane_selected(self, lane: LaneModel | None) -> None:
        self.status.select(lane)

    def show_why(self, lane: int) -> None:
        """Explain a lane in the tab Why."""
        show_lane = getattr(self.tabs.made(WHY), "show_lane", None)  # a tab that could not be made has none
        if show_lane is not None:
            show_lane(lane)
        self.tabs.open(WHY)

    def _tab_changed(self, title: str) -> None:
        self.setup.setVisible(self.tabs.needs_setup)

    def _settings_changed(self) -> None:
        self.show_lanes()
        self._refresh_actions()

    def _ask_count(self) -> None:
        try:
            self.controller.count_tokens(self.setup.settings((LaneSettings(),)))
        except SpecviewError:
            self.controller.count_tokens(None)

    def _turn_started(self, settings: RunSettings) -> None:
        self.setup.set_conversation(settings.history, settings.prompt)
        self.page.turn_taken()

    def _refresh_actions(self) -> None:
        controller = self.controller
        racing, state = controller.racing, controller.state
        can_add = self._can_add()
        self.setup.tell_add(
            "" if can_add else "Lanes cannot change while a race runs" if racing
            else f"A race takes plain and up to {MAX_LANES - 1} others: remove one first"
        )
        self.setup.set_busy(can_run=not racing, can_stop=controller.can_stop, can_edit=can_add,
                            stopping=state == "stopping")
        self.run_action.setEnabled(not racing)
        self.stop_action.setEnabled(controller.can_stop)
        self.continue_action.setEnabled(controller.can_continue)
        self.add_action.setEnabled(can_add)
        self.edit_action.setEnabled(not racing)
        ran, picker, fields = controller.ran, self.setup.target, self.setup.fields
        shown = (picker.target, picker.engine, fields["dtype"].value(), fields["device"].value())
        loaded = ran is not None and (ran.target, ran.engine, ran.dtype, ran.device) == shown
        picker.set_dtype(str(controller.race.facts.get("target_dtype") or "") if loaded else "")
        known = controller.target_known(picker.engine, picker.target)
        self.setup.tell_target(None if known is None else known.declared)
        ended = controller.race.ended
        live = state == "ended" and controller.recorded is None  # the bar of a recorded run says its own
        busy = ended.busy if live and ended is not None else ""
        self.page.show_note(STALE if controller.stale else busy)

    # -- drag and drop --------------------------------------------------------------------------------------------

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take files that can be used."""
        if dropped_paths(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Use what was dropped."""
        paths = dropped_paths(event.mimeData())
        if paths:
            event.acceptProposedAction()
            if len(paths) > 1 and all(path.suffix.lower() == ".jsonl" for path in paths):
                self.recorded.open([Pick(path) for path in paths])
            else:
                self.take_path(paths[0])

    def take_path(self, path: Path) -> None:
        """Use a dropped file or folder: a model as target or draft, a head as a lane, a text as the prompt."""
        if self.controller.racing:
            self.show_message("A race is running. Stop it before changing models or the prompt.", "warning")
            return
        if path.suffix.lower() == ".jsonl" and not path.is_dir():
            self.recorded.open([Pick(path)])
        elif path.suffix.lower() in (".txt", ".md"):
            self.take_prompt_file(path)
        elif path.is_dir():
            self._files.do(lambda: head_in(path), lambda head: self._take_folder(path, head))
        elif path.suffix.lower() == ".gguf":
            self._take_model(path)
        else:
            self.show_message(
                f"{path.name} is neither a model nor a text. Drop a .gguf file, a folder of a model or a head, a .txt file or a .jsonl trace.",
                "warning",
            )

    def _take_folder(self, path: Path, head: FoundHead | None) -> None:
        if self.controller.racing:
            return  # one began while the folder was read
        if head is not None:
            self._take_head(head)
        else:
            self._take_model(path)

    def _take_model(self, path: Path) -> None:
        role = self.ask_role(path)
        if role == "target":
            self.setup.target.choose(str(path))
        elif role == "draft":
            self._take_draft(str(path))

    def ask_role(self, path: Path) -> str:
        """Ask whether a model is to be the target or a draft; '' when neither."""
        text = f"Use {model_name(str(path))} as the target, or as a draft model?"
        return ask(self, "Use this model", text, {"target": "Target", "draft": "Draft"})

    def _take_head(self, head: FoundHead) -> None:
        """Add a lane that drafts with a head, by way of its editor, which says whether it fits."""
        if not self._can_add():
            self.show_message("All lanes are taken. Remove one first.", "warning")
            return
        edited = self._edit(LaneSettings(methods_for(head.kind)[0], draft=head.ref), "Add lane")
        if edited is not None:
            self.lane_settings.append(edited)
            self._lanes_edited()

    def _take_draft(self, ref: str) -> None:
        """Give a draft to the first lane that uses one, or to a new lane."""
        for index, lane in enumerate(self.lane_settings):
            if needs_draft(lane):
                self.lane_settings[index] = replace(lane, draft=ref)
                self._lanes_edited()
                return
        if len(self.lane_settings) >= MAX_LANES:
            self.show_message("All lanes are taken. Remove one first.", "warning")
            return
        self.lane_settings.append(LaneSettings(DEFAULT_METHOD, draft=ref))
        self._lanes_edited()

    # -- looks and the end ------------------------------------------------------------------------------------------

    def _fit_minimum(self) -> None:
        self.setMinimumSize(min(640, theme.px(560)), min(420, theme.px(400)))

    def _restore_looks(self) -> None:
        self._fit_minimum()
        looks = self._looks
        if looks.geometry and self.restoreGeometry(QByteArray.fromHex(looks.geometry.encode())):
            self._fit_screen(USUAL_FRAME)
        else:
            room = self.screen().availableGeometry()
            self.resize(on_screen(QRect(0, 0, 1440, 900), USUAL_FRAME, room).size())  # where, the desktop decides
        for name, splitter in (("rows", self.page.rows), ("columns", self.page.columns)):
            sizes = looks.splitters.get(name)
            if isinstance(sizes, list) and len(sizes) == 2 and all(isinstance(s, int) and s > 0 for s in sizes):
                splitter.setSizes(sizes)
        self.page.plots.set_fourth(looks.fourth_plot)
        self.page.set_trees(str(key) for key in looks.trees)
        self._apply_looks()

    def _fit_screen(self, frame: QMargins) -> None:
        """Keep the window, with this frame, on the screen."""
        if not self.isMaximized() and not self.isFullScreen():
            fits = on_screen(self.geometry(), frame, self.screen().availableGeometry())
            if fits != self.geometry():
                self.setGeometry(fits)

    def _fit_frame(self) -> None:
        """Make room for the frame that the window has got; one that was made larger than the screen stays so."""
        inner, room = self.geometry(), self.screen().availableGeometry()
        if inner.width() <= room.width() and inner.height() <= room.height():
            self._fit_screen(margins(self.frameGeometry(), inner))

    def showEvent(self, event: QShowEvent) -> None:
        """Look again once the window manager has given the window its frame, which takes it a moment."""
        super().showEvent(event)
        QTimer.singleShot(FRAME_MS, self, self._fit_frame)

    def _keep_looks(self) -> None:
        looks = self._looks
        looks.geometry = bytes(self.saveGeometry().toHex().data()).decode()
        # A part that is folded, by its user or for lack of room, has no size worth keeping.
        for name, part, splitter in (("rows", "plots", self.page.rows), ("columns", "inspector", self.page.columns)):
            if self.page.shown(part) and all(splitter.sizes()):
                looks.splitters[name] = splitter.sizes()
        looks.theme, looks.font_scale = theme.choice(), theme.font_scale()
        looks.rule = self.setup.rule.value() or "auto"
        looks.fourth_plot = self.page.plots.fourth
        looks.trees = sorted(self.page.trees)
        looks.pages = self.tabs.kept()
        self.store.save(Remembered(self._settings_to_keep(), looks))

    def changeEvent(self, event: QEvent) -> None:
        """Follow the desktop when it turns dark or light."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.ThemeChange and theme.choice() == "system":
            theme.apply(_app(), "system")

    def closeEvent(self, event: QCloseEvent) -> None:
        """Stop the engine thread (bounded wait), free the models, keep the settings."""
        if not self._closing:
            if not self._may_close():
                event.ignore()
                return
            self._closing = True
            self.recorded.close_run()  # what is kept for the next start is the user's own setup
            self._keep_looks()
            self.hide()
            self.recorded.shut()
            self.tabs.shut()
            self.thread_ended = self.controller.close(CLOSE_TIMEOUT_S)
            self._files.close()
            self.library.close()
        event.accept()


def dropped_paths(data: QMimeData) -> list[Path]:
    """Return the local files and folders of a drag."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()] if data.hasUrls() else []


def _app() -> QApplication:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    return app
