"""The lanes as set up: added, edited, moved and removed; one list that window, controller and race share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QDialog

from specview.drafting.lanes import needs_draft
from specview.drafting.plain import BASELINE
from specview.drafting.registry import DEFAULT_METHOD, METHODS, fitting, methods_for
from specview.errors import SpecviewError
from specview.gui.lanes.menu import LaneMenu, known_problems
from specview.gui.lanes.panel import LanePanel
from specview.gui.link.head_checks import FoundHead, heads_for, needs_choice
from specview.gui.race.foreign_models import SetupWindow
from specview.gui.race.server_dialog import ServerDialog
from specview.settings.run import BUNDLED, MAX_LANES, LaneSettings

FULL = "All lanes are taken. Remove one first."
RECOMMENDED = 3
"""Methods that the menu leads with."""


def first_lanes(target: str = BUNDLED, engine: str = "transformers", problems: Collection[str] = ()) -> tuple[LaneSettings, ...]:
    """The lanes of a first start: plain, and the two that fit the target best."""
    return tuple(LaneSettings(name) for name in (BASELINE, *fitting(heads_for(target, engine), problems)[:2]))


class LaneSetup:
    """Changes a window's lanes; nothing changes while a race runs. `edited` is called after each change."""

    def __init__(self, window: SetupWindow, menu: LaneMenu, edited: Callable[[], None]) -> None:
        self._window, self._menu, self._edited = window, menu, edited
        self._lanes = window.lane_settings
        self._first, self._fits = first_lanes(), (BUNDLED, "transformers")
        window.setup.target.server_wanted.connect(self.add_server)

    @property
    def can_add(self) -> bool:
        """Whether there is room for a lane, now."""
        return not self._window.controller.racing and len(self._lanes) < MAX_LANES

    def problems(self) -> dict[str, str]:
        """Method -> why it cannot draft on the chosen target: what is known of it, before it was loaded little."""
        picker = self._window.setup.target
        known = self._window.controller.target_known(picker.engine, picker.target)
        return dict(known_problems(picker.engine) if known is None else known.problems)

    def recommended(self) -> list[str]:
        """What fits the chosen target best, of what is not there yet."""
        picker = self._window.setup.target
        heads = heads_for(picker.target, picker.engine, self._window.library.found.heads)
        return fitting(heads, self.problems(), {lane.method for lane in self._lanes})[:RECOMMENDED]

    def follow_target(self) -> None:
        """Where the lanes are still those of a first start, make them fit another target that was chosen."""
        picker = self._window.setup.target
        if (picker.target, picker.engine) != self._fits:
            self._fits = picker.target, picker.engine
            before, self._first = self._first, first_lanes(*self._fits, self.problems())
            if tuple(self._lanes) == before:
                self._lanes[:] = self._first

    # -- adding ------------------------------------------------------------------------------------

    def open_menu(self) -> None:
        """Open the menu of methods under the + Lane button."""
        if self.can_add:
            self._menu.fill(self.problems(), self.recommended())
            self._menu.open_under(self._window.setup.add_lane)

    def add_method(self, name: str) -> None:
        """Add a lane of this method as it stands; its name opens the editor, as does a head that must be chosen."""
        if not self.can_add or name not in METHODS:
            return
        lane: LaneSettings | None = LaneSettings(method=name)
        if needs_choice(name):
            kind = METHODS[name].head
            found = next((head.ref for head in self._window.library.found.heads if head.kind == kind), BUNDLED)
            lane = self.ask(LaneSettings(method=name, draft=found), "Add lane")
        if self._append(lane):
            self._window.page.panels[-1].setFocus()

    def set_up(self) -> None:
        """Add a lane by way of its editor, on a method that is not there yet."""
        if self.can_add:
            there, problems = {lane.method for lane in self._lanes}, self.problems()
            drafting = [name for name, info in METHODS.items() if info.drafts]
            drafting = [name for name in drafting if name not in problems] or drafting
            method = next((name for name in drafting if name not in there), drafting[0])
            self._append(self.ask(LaneSettings(method=method), "Add lane"))

    def take(self, lane: LaneSettings) -> bool:
        """Add a lane to the race as set up; False, with a line that says why, where it cannot be."""
        if self._window.controller.racing:
            self._window.show_message("A race is running. Stop it before adding a lane.", "warning")
            return False
        return self._has_room() and self._append(lane)

    def add_server(self) -> None:
        """Ask for a server, and add the lane that it decodes."""
        if self._has_room():
            dialog = ServerDialog(self._window.page.window())
            dialog.exec()
            self._append(dialog.lane)
            dialog.deleteLater()

    def take_head(self, head: FoundHead) -> None:
        """Add a lane that drafts with a head, by way of its editor, which says whether it fits."""
        if self._has_room():
            self._append(self.ask(LaneSettings(methods_for(head.kind)[0], draft=head.ref), "Add lane"))

    def take_draft(self, ref: str) -> None:
        """Give a draft to the first lane that uses one, or to a new lane."""
        place = next((place for place, lane in enumerate(self._lanes) if needs_draft(lane)), None)
        if place is not None:
            self._lanes[place] = replace(self._lanes[place], draft=ref)
            self._edited()
        elif self._has_room():
            self._append(LaneSettings(DEFAULT_METHOD, draft=ref))

    def _has_room(self) -> bool:
        if not self.can_add:
            self._window.show_message(FULL, "warning")
        return self.can_add

    def _append(self, lane: LaneSettings | None) -> bool:
        if lane is not None:
            self._lanes.append(lane)
            self._edited()
            self._window.page.lane_scroll.ensureWidgetVisible(self._window.page.panels[-1])
        return lane is not None

    # -- changing ----------------------------------------------------------------------------------

    def edit(self, index: int | None) -> None:
        """Open the editor of a lane."""
        if index is None or self._window.controller.racing or self._foreign() or not 0 <= index < len(self._lanes):
            return
        if self._lanes[index].plain:
            self._window.show_message("Plain decoding has nothing to set: it is the baseline, and always there.", "warning")
            return
        edited = self.ask(self._lanes[index], "Edit lane")
        if edited is not None:
            self._lanes[index] = edited
            self._edited()

    def ask(self, lane: LaneSettings, title: str) -> LaneSettings | None:
        """Let the user edit a lane; None where that was cancelled."""
        from specview.gui.lanes.editor import LaneEditor
        from specview.gui.lanes.exit_scan_dialog import ExitScans

        window = self._window
        try:
            run = window.setup.settings(())
        except SpecviewError as error:
            window.show_message(str(error))
            return None
        known = window.controller.target_known(run.engine, run.target)
        editor = LaneEditor(
            lane, run, window.setup.rule.value() or "auto", window.library, window.page.window(),
            problems=self.problems(), device="" if known is None else known.device,
            scans=ExitScans(window.controller, run),
        )
        editor.setWindowTitle(title)
        taken = editor.lane() if editor.exec() == QDialog.DialogCode.Accepted else None
        editor.deleteLater()
        return taken

    def remove(self, index: int) -> None:
        """Remove a lane; plain stays."""
        if self._movable(index):
            del self._lanes[index]
            self._edited()

    def move(self, index: int, step: int) -> None:
        """Move a lane by `step` places; plain stays first."""
        to = index + step
        if self._movable(index) and self._movable(to):
            self._lanes.insert(to, self._lanes.pop(index))
            self._edited()
            self._window.page.panels[to].setFocus()

    def _movable(self, index: int) -> bool:
        return not self._window.controller.racing and 0 < index < len(self._lanes) and not self._foreign()

    def _foreign(self) -> bool:
        """Whether the lanes on screen are a recorded run's: they are not set up here."""
        recorded = self._window.controller.recorded is not None
        if recorded:
            self._window.show_message("These are lanes of a recorded run. Close it, or take over its settings.", "warning")
        return recorded

    # -- the lane with the focus ---------------------------------------------------------------------

    def _focused_panel(self) -> LanePanel | None:
        widget = QApplication.focusWidget()
        return next((p for p in self._window.page.panels if widget is not None and p.isAncestorOf(widget)), None)

    def focused(self) -> int | None:
        """The index of the lane that has the focus, of the selected one otherwise."""
        panel = self._focused_panel()
        lane = panel.lane if panel is not None else self._window.page.selected
        return next((index for index, held in enumerate(self._window.controller.race.lanes) if held is lane), None)

    def copy(self) -> None:
        """Copy the output of the lane that has the focus."""
        index = self.focused()
        if index is not None:
            text = self._window.controller.race.lanes[index].reply
            QGuiApplication.clipboard().setText(text.encode("utf-8", "replace").decode("utf-8"))

    def toggle_tree(self) -> None:
        """Open or close the live draft tree of the lane that has the focus."""
        index = self.focused()
        if index is not None:
            self._window.page.toggle_tree(index)
