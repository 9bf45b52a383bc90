"""The main window: tabs and menu, setup row, pages, and what ties them to the controller."""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QKeySequence, QMouseEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QDialog, QMainWindow, QWidget

from specview.errors import SpecviewError
from specview.gui.lanes.menu import LaneMenu
from specview.gui.link.background import Background
from specview.gui.link.controller import Controller
from specview.gui.link.engine_thread import EngineThread
from specview.gui.link.library import Library
from specview.gui.parts import layout, theme
from specview.gui.parts.pages import RACE, WHY, PageContext, Tabs
from specview.gui.parts.selection import Selection
from specview.gui.parts.widgets import Banner, dropped_paths
from specview.gui.present.presenting import Presenting
from specview.gui.race.branching import Branching
from specview.gui.race.foreign_models import ForeignModels
from specview.gui.race.page import RacePage
from specview.gui.race.recorded_runs import RecordedRuns
from specview.gui.race.setup_bar import SetupBar
from specview.gui.shell.help_dialogs import show_about, show_shortcuts
from specview.gui.shell.intake import Intake
from specview.gui.shell.lane_setup import LaneSetup
from specview.gui.shell.menus import LINE, Entry, MenuButton
from specview.gui.shell.screen_fit import make_room, restore
from specview.gui.shell.status_strip import MachineLabel
from specview.gui.shell.training import Training
from specview.gui.state.set_branch import SetBranch
from specview.gui.state.settings_store import Remembered, SettingsStore, WindowState
from specview.gui.state.token_looks import MODE_WORDS
from specview.gui.tour.offer import GuidedTour
from specview.racing.resolve import checked_run, idle_notes
from specview.settings.run import MAX_LANES, LaneSettings, RunSettings

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 8.0
CONTINUE_TOKENS = 64
FRAME_MS = 400


class MainWindow(QMainWindow):
    """One window over one controller; closing it ends the engine thread and keeps the settings."""

    def __init__(
        self, engine: EngineThread, library: Library, store: SettingsStore, remembered: Remembered, first: RunSettings
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
        self._branch = SetBranch()
        self.lane_settings = self.controller.lanes
        self.lane_settings[:] = run.lanes
        self._closing = False
        self._looked = False
        self._refused = ""  # what was last said of a run that the settings did not allow

        self.setup = SetupBar(library)
        self.lane_menu = LaneMenu(self)
        self.lanes = LaneSetup(self, self.lane_menu, self._settings_changed)
        self.banner = Banner()
        self.setup.show_settings(run, self._looks.rule)
        self.show_lanes()
        self.selection = Selection(self)
        self.page = RacePage(self.controller, self.selection)
        self.page.export.told.connect(self.show_message)
        self.tabs = Tabs(self.page, self._looks.pages)
        self.tabs.context = PageContext(
            self.controller, self.selection, lambda: replace(self.run_settings(), branch=None), self.show_message,
            self.open_race, self.lanes.take, self.tabs.open, self.foreign.confirm,
        )
        self.recorded = RecordedRuns(self, self.tabs.open)
        self.tabs.context.extra["open_runs"] = self.recorded.open
        self.branching = Branching(self, self._branch, self.run, self.recorded.open, self.lanes.problems)
        self.presenting = Presenting(self)
        self.tabs.context.extra["present_runs"] = self.presenting.present
        self.intake = Intake(self, self.lanes, self._files, self.recorded.open)
        self.training = Training(self, self._files)
        self.job_dialogs: dict[str, QDialog] = {}  # tuning, prompt sets: made when first opened
        self.machine, self.menu = MachineLabel(self.controller), MenuButton()
        self.tabs.add(self.machine, self.training.button, self.menu)
        page = QWidget()
        page.setObjectName("page")
        self._banner_holder = QWidget()
        layout.column(self.banner, on=self._banner_holder, margins=(10, 8, 10, 0))
        self._banner_holder.hide()
        self.tour = GuidedTour(self, self._looks, self.controller)
        layout.column(self.tabs, self.setup, self.tour.offer_line, self._banner_holder, (self.tabs.stack, 1), on=page, gap=0)
        self.setCentralWidget(page)
        self._make_menus()
        self._connect()
        self._restore_looks()
        self._refresh_actions()
        layout.tab_order(self.setup.run, *layout.stops(self.tour.offer_line, self.banner, self.branching.bar, self.recorded.bar,
                                                       self.page.legend, *self.page.panels, self.page.inspector))  # fmt: skip
        self.setup.run.setFocus()

    # -- settings --------------------------------------------------------------------------------------

    def run_settings(self) -> RunSettings:
        """Return the checked settings as shown; raises UsageError with one line."""
        return checked_run(self._branch.on(self.setup.turn_settings(tuple(self.lane_settings))))

    def own_settings(self) -> RunSettings:
        """Return the settings as shown, or as last shown without a fault; lanes that follow the race's rule say `auto`."""
        try:
            return self._raw_settings()
        except SpecviewError:
            return self._sound

    def _raw_settings(self) -> RunSettings:
        """Return the settings as remembered: lanes that follow the race's rule say `auto`."""
        return self._branch.on(replace(self.setup.settings(()), lanes=tuple(self.lane_settings)))

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
            if self._refused and self.banner.message == self._refused:
                self.clear_message()
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
            if problem := self.library.engine_problem(settings.engine):
                raise SpecviewError(problem)
        except SpecviewError as error:
            self._refuse(str(error))
            if self.setup.invalid_field() is not None:
                self.setup.open_panel()
            return
        self.setup.prompt.fold()
        self.controller.run(settings)
        if self.setup.run.hasFocus():  # Space there would stop what it has begun; on the text it pauses
            self.page.focus_selected()
        self._warn(settings)

    def continue_run(self) -> None:
        """Go on past the limit."""
        if self.controller.can_continue:
            try:
                tokens = int(self.setup.fields["max_tokens"].value())
            except SpecviewError:
                tokens = CONTINUE_TOKENS
            self.clear_message()
            self.controller.continue_(tokens)
            self.training.warn()

    def next_turn(self, text: str) -> None:
        """Run the next turn of the conversation, with everything else as set now."""
        self.clear_message()
        if self.controller.job:
            self.show_message(self.controller.busy_words, "warning")
            return
        try:
            settings = self.run_settings()
            if not settings.chat:
                raise SpecviewError("A follow-up needs the chat form.", "Choose it among the settings (Ctrl+,).")
        except SpecviewError as error:
            self.show_message(str(error))
            return
        self.show_lanes()
        self.page.conversation.on_its_way = text
        self.controller.follow_up(text, settings)
        self._warn(settings)

    def _warn(self, settings: RunSettings) -> None:
        """Say what of a race's settings does nothing, and what its times suffer from."""
        if notes := idle_notes(settings):
            self.show_message(" ".join(notes), "warning")
        self.training.warn()

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
        with suppress(SpecviewError):
            self._branch.set(settings, self.setup.settings(()))
        self._settings_changed()
        self._ask_count()

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
        dialog = self.job_dialogs[name]
        dialog.show()
        dialog.raise_()
        dialog.activateWindow()

    # -- messages ------------------------------------------------------------------------------------------

    def show_message(self, text: str, kind: str = "error") -> None:
        """Show one line on top, and over a presentation; it stays until dismissed or the next run."""
        self.banner.show_message(text, kind)
        self.presenting.tell(text)
        self._banner_holder.show()

    def _refuse(self, text: str) -> None:
        """Say why nothing could be run, until the settings are others that can be."""
        self.show_message(text)
        self._refused = self.banner.message

    def clear_message(self) -> None:
        """Take the line away."""
        self.banner.clear()

    # -- menus ------------------------------------------------------------------------------------------------

    def _make_menus(self) -> None:
        lanes, looks = self.lanes, self._looks
        themes = {"system": "Theme of the s&ystem", "dark": "Dar&k", "light": "Lig&ht"}
        self.actions_by_name = self.menu.fill(self, {
            "&File": (
                Entry("Open &target…", self.setup.target.open_file_dialog, "Ctrl+O"),
                Entry("Open &prompt…", self.intake.open_prompt),
                Entry("Open t&race…", self.recorded.ask, "Ctrl+Shift+O"),
                Entry("&Copy lane's text", lanes.copy, "Ctrl+Shift+C"),
                Entry("&Export the race…", self.page.export.open, "Ctrl+Shift+E", "export"),
                LINE,
                Entry("&Quit", self.close, "Ctrl+Q"),
            ),
            "&Race": (
                Entry("&Run", self.run, "Ctrl+Return; Ctrl+Enter; F5", "run"),
                Entry("&Stop", self.controller.stop, "Esc", "stop"),
                Entry("&Continue past the limit", self.continue_run, "Ctrl+G", "continue"),
                LINE,
                Entry("Sampling and &other settings…", self.show_settings, "Ctrl+,"),
                Entry("&Add lane…", lanes.open_menu, "Ctrl+L", "add"),
                Entry("&Edit lane…", lambda: lanes.edit(lanes.focused()), "Ctrl+Shift+L", "edit"),
                LINE,
                Entry("T&une: the fastest method here…", self.show_tuning, "Ctrl+Shift+Y"),
                Entry("Run a &prompt set…", self.show_prompt_set, "Ctrl+Shift+P"),
                LINE,
                Entry("&Train a drafter…", self.training.show, "Ctrl+T", "train"),
            ),
            "&View": (
                Entry("Thrown-away drafts", self._tokens_switched, "Ctrl+R", "ghosts"),
                Entry("&Spaces and newlines as marks", self._looks_toggled, "Ctrl+W", "whitespace", looks.whitespace),
                Entry("Scroll lanes &together", self._looks_toggled, "", "linked", looks.linked),
                Entry("&Draft tree of the lane, live", lanes.toggle_tree, "Ctrl+D", "tree"),
                Entry("&Inspector", self._looks_toggled, "Ctrl+I", "inspector", looks.inspector),
                Entry("&Close the inspector", self._close_inspector, name="close inspector"),
                Entry("&Plots", self._looks_toggled, "Ctrl+J", "plots", looks.plots),
                LINE,
                Entry("P&resent: full screen, big tokens", self.presenting.toggle, "F11", "present"),
                LINE,
                Entry("&Larger font", lambda: self._zoom(1), "Ctrl++; Ctrl+="),
                Entry("S&maller font", lambda: self._zoom(-1), "Ctrl+-"),
                Entry("N&ormal font", lambda: self._zoom(0), "Ctrl+0"),
                LINE,
                *(Entry(themes[name], partial(self._set_theme, name), on=theme.choice() == name, group="theme")
                  for name in theme.CHOICES),
            ),
            "&Play": tuple(Entry(words, do) for words, do in self.page.transport.entries),
            "&Go": (
                Entry("&Menu", self.menu.open, "F10"),
                Entry("&Prompt", self.go_to_prompt, "Ctrl+P"),
                Entry("&Follow-up line", self.go_to_follow_up, "Ctrl+Shift+M"),
                LINE,
                *(Entry(f"Tab {title}", partial(self.tabs.enter, title), f"Alt+{place}")
                  for place, title in enumerate(self.tabs.titles, 1)),
                LINE,
                *(Entry(f"Lane &{place}", partial(self.go_to_lane, place - 1), f"Ctrl+{place}")
                  for place in range(1, MAX_LANES + 1)),
            ),
            "&Help": (
                Entry("&Guided tour", self.tour.show, name="tour"),
                Entry("&Keyboard shortcuts", lambda: show_shortcuts(self), "F1"),
                Entry("&About specview", lambda: show_about(self)),
            ),
        })  # fmt: skip

    def _looks_toggled(self) -> None:
        looks, ticked = self._looks, {name: action.isChecked() for name, action in self.actions_by_name.items()}
        looks.whitespace, looks.linked = ticked["whitespace"], ticked["linked"]
        asked = ""
        for name in ("inspector", "plots"):
            if ticked[name] != self.page.shown(name):
                setattr(looks, name, ticked[name])
                asked = name
        self._apply_looks(asked)

    def _tokens_switched(self, state: str = "", on: bool = True) -> None:
        self._looks.switch_tokens(state, on)
        self._apply_looks()

    def _apply_looks(self, asked: str = "") -> None:
        looks = self._looks
        self.page.show_looks(looks.tokens)
        self.page.links.together = looks.linked
        self.actions_by_name["ghosts"].setText(f"Thrown-away drafts: {MODE_WORDS[looks.ghosts]} (&next)")
        opened = looks.inspector if asked == "inspector" else looks.inspector or self.page.shown("inspector")
        self.page.wish(opened, looks.plots, asked)
        self._show_folds()

    def _close_inspector(self) -> None:
        self._looks.inspector = False
        self.page.close_inspector()

    def _show_folds(self) -> None:
        """Tick what is shown: in a small window parts fold by themselves."""
        for name in ("inspector", "plots"):
            self.actions_by_name[name].setChecked(self.page.shown(name))
        # Escape closes what is open before it stops anything.
        opened = self.page.shown("inspector")
        for name, has in (("close inspector", opened), ("stop", not opened)):
            self.actions_by_name[name].setShortcuts([QKeySequence("Esc")] if has else [])
        self.actions_by_name["close inspector"].setEnabled(opened)

    def _set_theme(self, name: str) -> None:
        self._looks.theme = name
        theme.apply(_app(), name)

    def _zoom(self, direction: int) -> None:
        scales = theme.SCALES
        place = min(range(len(scales)), key=lambda i: abs(scales[i] - theme.font_scale()))
        place = scales.index(1.0) if direction == 0 else min(max(place + direction, 0), len(scales) - 1)
        self._looks.font_scale = scales[place]
        theme.apply(_app(), theme.choice(), scales[place])

    # -- reactions ---------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        setup, page, controller = self.setup, self.page, self.controller
        setup.run_requested.connect(self.run)
        setup.stop_requested.connect(controller.stop)
        setup.add_lane_requested.connect(self.lanes.open_menu)
        self.lane_menu.method_chosen.connect(self.lanes.add_method)
        self.lane_menu.editor_asked.connect(self.lanes.set_up)
        self.lane_menu.tuning_asked.connect(self.show_tuning)
        setup.changed.connect(self.lanes.follow_target)
        setup.changed.connect(self._settings_changed)
        setup.prompt_changed.connect(self._ask_count)
        page.edit_lane.connect(self.lanes.edit)
        page.remove_lane.connect(self.lanes.remove)
        page.move_lane.connect(self.lanes.move)
        page.conversation.more.clicked.connect(self.continue_run)
        page.conversation.forgotten.connect(setup.new_conversation)
        setup.forget_asked.connect(page.conversation.forget)
        page.conversation.sent.connect(self.next_turn)
        page.why_requested.connect(self.show_why)
        page.folded.connect(self._show_folds)
        page.legend.switched.connect(self._tokens_switched)
        page.inspector.closed.connect(self._close_inspector)
        self.tabs.changed.connect(self._tab_changed)
        controller.state_changed.connect(self._refresh_actions)
        controller.state_changed.connect(self._look_for_models)
        controller.failed.connect(self._refuse)
        controller.warned.connect(lambda text: self.show_message(text, "warning"))
        controller.tokens_counted.connect(setup.set_count)
        controller.turn_started.connect(self._turn_started)
        self.banner.gone.connect(self._banner_holder.hide)
        theme.signals.changed.connect(self._fit_minimum)

    def show_why(self, lane: int) -> None:
        """Explain a lane in the tab Why."""
        show_lane = getattr(self.tabs.made(WHY), "show_lane", None)  # a tab that could not be made has none
        if show_lane is not None:
            show_lane(lane)
        self.tabs.open(WHY)

    def _tab_changed(self, title: str) -> None:
        self.setup.setVisible(title == RACE)

    def show_settings(self) -> None:
        """Open the panel of what all lanes share."""
        self.tabs.open(RACE)
        self.setup.open_panel()

    def go_to_prompt(self) -> None:
        """Put the keyboard into the prompt."""
        self.tabs.open(RACE)
        self.setup.prompt.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def go_to_lane(self, index: int) -> None:
        """Put the keyboard on a lane's text."""
        self.tabs.open(RACE)
        self.page.focus_lane(index)

    def go_to_follow_up(self) -> None:
        """Put the keyboard on the line for the next turn."""
        self.tabs.open(RACE)
        self.page.focus_follow_up()

    def _settings_changed(self) -> None:
        self.show_lanes()
        self.branching.refresh()
        self._refresh_actions()

    def _ask_count(self) -> None:
        try:
            self.controller.count_tokens(self.setup.settings((LaneSettings(),)))
        except SpecviewError:
            self.controller.count_tokens(None)

    def _turn_started(self, settings: RunSettings) -> None:
        self.setup.set_conversation(settings.history, settings.prompt)
        self.branching.refresh()
        self.page.conversation.turn_taken()

    def _refresh_actions(self) -> None:
        controller = self.controller
        racing, state = controller.racing, controller.state
        can_add = self.lanes.can_add
        self.setup.tell_add(
            "" if can_add else "Lanes cannot change while a race runs" if racing
            else f"A race takes plain and up to {MAX_LANES - 1} others: remove one first"
        )
        self.setup.set_busy(stops=bool(controller.busy_with), stopping=state == "stopping", can_edit=can_add,
                            what=controller.job)
        actions = self.actions_by_name
        actions["run"].setEnabled(not racing)
        actions["stop"].setEnabled(controller.can_stop)
        actions["continue"].setEnabled(controller.can_continue)
        actions["add"].setEnabled(can_add)
        actions["edit"].setEnabled(not racing)
        ran, picker, fields = controller.ran, self.setup.target, self.setup.fields
        shown = (picker.target, picker.engine, fields["dtype"].value(), fields["device"].value())
        loaded = ran is not None and (ran.target, ran.engine, ran.dtype, ran.device) == shown
        picker.set_dtype(str(controller.race.facts.get("target_dtype") or "") if loaded else "")
        known = controller.target_known(picker.engine, picker.target)
        self.setup.tell_target(None if known is None else known.declared)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """A press that nothing else takes leaves the prompt."""
        self.setup.prompt.fold()
        super().mousePressEvent(event)

    # -- drag and drop --------------------------------------------------------------------------------------------

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take files that can be used."""
        if dropped_paths(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Use what was dropped."""
        if paths := dropped_paths(event.mimeData()):
            event.acceptProposedAction()
            self.intake.take_all(paths)

    # -- looks and the end ------------------------------------------------------------------------------------------

    def _fit_minimum(self) -> None:
        self.setMinimumSize(min(640, theme.px(560)), min(420, theme.px(400)))

    def _restore_looks(self) -> None:
        self._fit_minimum()
        looks = self._looks
        restore(self, looks.geometry)
        for name, splitter in (("rows", self.page.rows), ("columns", self.page.columns)):
            sizes = looks.splitters.get(name)
            if isinstance(sizes, list) and len(sizes) == 2 and all(isinstance(s, int) and s > 0 for s in sizes):
                splitter.setSizes(sizes)
        self.page.plots.set_third(looks.third_plot)
        self.page.set_trees(str(key) for key in looks.trees)
        self._apply_looks()

    def showEvent(self, event: QShowEvent) -> None:
        """Look again once the window manager has given the window its frame, which takes it a moment."""
        super().showEvent(event)
        QTimer.singleShot(FRAME_MS, self, lambda: make_room(self))

    def _keep_looks(self) -> None:
        looks = self._looks
        looks.geometry = bytes(self.saveGeometry().toHex().data()).decode()
        # A part that is folded, by its user or for lack of room, has no size worth keeping.
        for name, part, splitter in (("rows", "plots", self.page.rows), ("columns", "inspector", self.page.columns)):
            if self.page.shown(part) and all(sizes := splitter.sizes()) and len(sizes) == 2:
                looks.splitters[name] = sizes
        looks.theme, looks.font_scale = theme.choice(), theme.font_scale()
        looks.rule = self.setup.rule.value() or "auto"
        looks.third_plot = self.page.plots.third
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
            if not self.training.may_close():
                event.ignore()
                return
            self._closing = True
            try:
                self._keep_looks()
            except Exception:  # what is remembered must not keep the threads from ending
                log.exception("the window's looks were not kept")
            self.hide()
            self.presenting.shut()
            self.recorded.shut()
            self.page.export.shut()
            self.tabs.shut()
            self.thread_ended = self.controller.close(CLOSE_TIMEOUT_S)
            self._files.close()
            self.library.close()
        event.accept()


def _app() -> QApplication:
    assert isinstance(app := QApplication.instance(), QApplication)
    return app
