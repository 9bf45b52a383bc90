"""What ties branches to the window: asking how a text goes on, running it, the line that says so, the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QDialog, QFrame, QPushButton, QSizePolicy, QWidget

from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.gui.link.head_checks import needs_choice
from specview.gui.link.messages import RunKept
from specview.gui.link.open_run import Pick, pick_of
from specview.gui.parts import layout
from specview.gui.parts.widgets import ElidedLabel, button, label
from specview.gui.race.foreign_models import SetupWindow
from specview.gui.state.display_text import quoted, visible
from specview.gui.state.set_branch import SetBranch
from specview.gui.state.view_model import FINAL, LaneModel
from specview.racing.branching import alternatives, branch_at
from specview.settings.branch import Branch, known_branch
from specview.settings.run import LaneSettings, RunSettings


class BranchBar(QWidget):
    """Shown while the setup is a branch of another run."""

    ended = Signal()
    parent_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        frame = QFrame()
        frame.setObjectName("banner")
        frame.setProperty("kind", "note")
        self.setAccessibleName("Branch")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._words = ElidedLabel()
        self.open_parent = button(QPushButton, "Open parent", "Show the run that this one goes on from", self.parent_asked, kind="flat")
        self.end = button(
            QPushButton, "× End branch", "Back to the setup as it was before: the prompt, from its beginning", self.ended, kind="flat"
        )
        layout.row(
            label("↳ Branch", "title"), (self._words, 1), self.open_parent, self.end, on=frame, gap=12, margins=(12, 3, 6, 3)
        )
        layout.column(frame, on=self, margins=(10, 8, 10, 0))
        self.hide()

    def show_branch(self, branch: Branch | None) -> None:
        """Say what Run goes on from; None hides the line."""
        self.setVisible(branch is not None)
        if branch is not None:
            token = quoted(branch.token) if branch.token else f"token {branch.token_ids[-1]}"
            lane = f" of {branch.lane}" if branch.lane else ""
            whose = branch.run or "a run that was not kept"
            self._words.set_full(visible(f"Run goes on from position {branch.position}{lane} with {token} · {whose}"))
            self.open_parent.setVisible(bool(branch.run))

    @property
    def words(self) -> str:
        """All that is said."""
        return self._words.full


class Branching(QObject):
    """Goes on from a token of the race on screen, live or recorded, as a run that knows its parent."""

    def __init__(
        self, window: SetupWindow, held: SetBranch, run: Callable[[], None], open_runs: Callable[[Sequence[Pick]], None],
        problems: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        """problems: method -> why it cannot draft on the target that is set up."""
        super().__init__(window.page)
        self._window, self._held, self._run, self._open_runs, self._problems = window, held, run, open_runs, problems
        self._controller = window.controller
        self._kept: dict[int, Path] = {}  # where live runs are kept, by their numbers
        self._before: tuple[RunSettings, str, bool] | None = None  # the setup and its rule as they were, whether no turns were shown
        self._taken: RunSettings | None = None  # the setup as the branch made it
        self.bar = BranchBar()
        rows = window.page.layout()
        assert rows is not None
        rows.insertWidget(0, self.bar)  # type: ignore[attr-defined]
        window.page.branch_requested.connect(self.ask)
        self.bar.ended.connect(self.end)
        self.bar.parent_asked.connect(self.open_parent)
        self._controller.run_kept.connect(self._on_kept)

    # -- asking --------------------------------------------------------------------------------

    def ask(self, lane_index: int, round_index: int, token_index: int, alternative: int | None = None) -> None:
        """Ask how the text is to go on from a token, and run that."""
        window, controller = self._window, self._controller
        found = self._parent()
        lanes = controller.race.lanes
        if isinstance(found, str) or not 0 <= lane_index < len(lanes):
            window.show_message(found if isinstance(found, str) else "That lane is gone.", "warning")
            return
        base, run = found
        controller.show_whole()
        lane = lanes[lane_index]
        if not 0 <= round_index < len(lane.rounds):
            window.show_message("The round of that token was not finished: there is nothing to go on from." if round_index >= 0
                                else "Choose a token first: click one, or go there with the arrow keys.", "warning")  # fmt: skip
            return
        position, rounds = position_at(lane, round_index, token_index), list(lane.rounds)
        likely = alternatives(rounds, position)
        if not likely:
            window.show_message("There is no output to go on from.", "warning")
            return
        before = known_branch(controller.race.facts)
        if alternative is None and 0 <= token_index < rounds[round_index].k:
            alternative = rounds[round_index].drafted[token_index].id
        here = branch_at(rounds, position, likely[0], before=before, run=run, lane=lane.name)
        from specview.gui.race.branch_dialog import BranchDialog

        dialog = BranchDialog(base, likely, position, here.text, window.page.window(), chosen=alternative, others=self._others(base))
        accepted = dialog.exec() == QDialog.DialogCode.Accepted
        settings, choice = dialog.settings, dialog.choice
        dialog.deleteLater()
        if accepted:
            branch = branch_at(rounds, position, choice, before=before, run=run, lane=lane.name)
            self.go_on(replace(settings, branch=branch))

    def go_on(self, settings: RunSettings) -> None:
        """Set up a branch and run it; models that a file named and that are not known here are asked about first."""
        window = self._window
        if not window.foreign.confirm(settings):
            return
        before = self._before or (self._own(), window.setup.rule.value() or "auto", window.page.conversation.ended)
        lanes = self._as_set_up(settings.lanes)
        known = any(lane in window.lane_settings for lane in lanes)
        rule = before[1] if known else settings.lanes[-1].rule if settings.lanes else "auto"
        window.show_setup(replace(settings, lanes=lanes), rule)
        self._before, self._taken = before, window.own_settings()
        self._run()

    def _as_set_up(self, lanes: tuple[LaneSettings, ...]) -> tuple[LaneSettings, ...]:
        """These lanes, each that a lane of the setup comes to as it is set up: the same lane, for the way back."""
        window, own = self._window, tuple(self._window.lane_settings)
        known: list[tuple[LaneSettings, LaneSettings]] = []
        with suppress(SpecviewError):
            for run in (window.run_settings(), window.setup.turn_settings(own)):
                known += ((replace(lane, name=""), mine) for lane, mine in zip(run.lanes, own, strict=False))
        return tuple(next((mine for one, mine in known if one == replace(lane, name="")), lane) for lane in lanes)

    def _own(self) -> RunSettings:
        """The setup as it is, with the seed of its turn."""
        own, setup = self._window.own_settings(), self._window.setup
        with suppress(SpecviewError):
            return replace(own, sampling=setup.turn_settings(()).sampling)
        return own

    def _parent(self) -> tuple[RunSettings, str] | str:
        """The settings of the race on screen, and what it is called where it is kept; or why it cannot be gone on from."""
        from specview.library.library import SUFFIX, runs_folder

        window, controller = self._window, self._controller
        if controller.racing:
            return "A race is running. Stop it before going on from one of its tokens."
        opened = controller.recorded
        if opened is not None:
            if opened.beside:
                return "Lanes of several runs are shown. Open one run by itself to go on from its tokens."
            if opened.settings is None:
                return opened.problem or "The settings of this run are not known."
            path = opened.picks[0].path
            return opened.settings, path.name.removesuffix(SUFFIX) if path.parent == runs_folder() else str(path)
        if controller.ran is None:
            return "There is no finished race to go on from."
        kept = self._kept.get(controller.race.run_id)
        lanes = tuple(window.lane_settings)
        ran = controller.ran if controller.stale else window.setup.turn_settings(lanes)
        return ran, "" if kept is None else kept.name.removesuffix(SUFFIX)

    def _others(self, base: RunSettings) -> dict[str, LaneSettings]:
        """Lanes that the run has not and that can be raced as they stand, by the method's name."""
        there, problems = {lane.method for lane in base.lanes}, self._problems()
        names = [name for name, info in METHODS.items() if info.drafts and name not in there and name not in problems]
        return {METHODS[name].label: LaneSettings(name) for name in names if not needs_choice(name)}

    def _on_kept(self, event: RunKept) -> None:
        if event.path is not None:
            self._kept[event.run_id] = event.path

    # -- the setup -----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Say whether the setup is a branch now."""
        branch = self._held.of(self._window.own_settings())
        if self._held.branch is None:
            self._before = self._taken = None
        self.bar.show_branch(branch)

    def end(self) -> None:
        """Setup and conversation as they were before the branch; what was changed in the setup since stays."""
        window, controller, before, taken = self._window, self._controller, self._before, self._taken
        if controller.racing:
            window.show_message("A race is running. Stop it before ending the branch.", "warning")
            return
        now = replace(window.own_settings(), branch=None)
        if before is None or taken is None:
            window.show_setup(now, window.setup.rule.value() or "auto")
            return
        settings, rule, ended = before
        edited = {item.name: value for item in fields(now) if (value := getattr(now, item.name)) != getattr(taken, item.name)}
        window.show_setup(replace(settings, **edited | {"branch": None}), rule)
        controller.drop_partial_branch()
        if ended or (controller.settings is not None and controller.settings.history != window.setup.history):
            window.page.conversation.leave()

    def open_parent(self) -> None:
        """Show the run that the branch goes on from."""
        branch = self._held.branch
        if branch is None or not branch.run:
            return
        try:
            self._open_runs([pick_of(branch.run)])
        except SpecviewError as error:
            self._window.show_message(str(error), "warning")


def position_at(lane: LaneModel, round_index: int, token_index: int) -> int:
    """The output position that a token of a lane stands at, or was tried for; a draft that was never judged has its round's end."""
    round_ = lane.rounds[round_index]
    first = lane.position_of(round_index, FINAL) - round_.accepted
    if 0 <= token_index < round_.k and round_.drafted[token_index].verdict != "ignored":
        return first + round_.depths[token_index]
    return first + len(round_.emitted) - 1
