"""The status bar: what goes on, rounds per lane, v(k) and c, the share of real time, threads, memory."""

from __future__ import annotations

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QProgressBar, QSizePolicy, QStatusBar, QToolButton, QWidget

from specview.gui.link.controller import Controller, State
from specview.gui.link.pace import every
from specview.gui.parts import layout, theme
from specview.gui.parts.job_view import show_progress
from specview.gui.parts.widgets import ElidedLabel, label, set_tip
from specview.gui.state.display_text import brief
from specview.gui.state.view_model import LaneModel
from specview.gui.train.process import TrainingRun

MEMORY_MS = 2000
FIGURE_SPACE = "\u2007"
"""As wide as a digit: padding with it keeps labels from jumping."""

_WORDS: dict[State, str] = {
    "ready": "ready",
    "preloading": "getting ready",
    "loading": "loading",
    "prefill": "reading the prompt",
    "running": "running",
    "stopping": "stopping",
    "working": "working",
    "ended": "done",
    "closing": "closing",
}

_STARTING: dict[State, str] = {
    "preloading": "loading libraries and the models, so that Run starts at once",
    "loading": "loading libraries",
    "prefill": "",
    "working": "",
    "stopping": "",
}


def count_text(count: float) -> str:
    """Write a mean number of tokens: one decimal where it has one worth reading, never an exponent."""
    text = f"{count:.1f}" if count < 10 else f"{count:.0f}"
    return text.removesuffix(".0")


class TrainingButton(QToolButton):
    """What is trained beside the window's own work; hidden while there is nothing to say."""

    def __init__(self, training: TrainingRun) -> None:
        super().__init__()
        self._training = training
        self.setProperty("kind", "caption")
        self.setAccessibleName("Training")
        set_tip(self, "Show the training (Ctrl+T)")
        self.hide()
        training.changed.connect(self._show)

    def _show(self) -> None:
        training = self._training
        kind = training.request.kind if training.request is not None else ""
        percent = "" if training.fraction is None else f" {training.fraction:.0%}"
        words = {"running": f"training {kind}{percent}", "stopping": f"stopping {kind}",
                 "done": f"{kind} trained", "failed": f"training {kind} failed", "stopped": f"{kind} stopped"}
        text = words.get(training.state, "")
        if text != self.text():
            self.setText(text)
            self.setVisible(bool(text))


class StatusStrip(QStatusBar):
    """Refreshed twice a second while a race runs, and on every change of state."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.setSizeGripEnabled(False)
        self._floors: dict[QLabel, int] = {}
        self.state = label()
        self.state.setAccessibleName("State")
        self.detail = ElidedLabel()
        self.costs = label()
        self.share = label()
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, 1000)
        self._fit()
        self.progress.setAccessibleName("Progress")
        self.machine = label()
        set_tip(self.costs, "v(k): time of a (k+1)-row target pass over a 1-row pass. c: time of one draft step over "
                "a plain target step. Both measured in this race.")
        set_tip(self.share, "Lanes take turns on one device, and each clock counts only its own compute; together "
                "they advance at this fraction of real time.")
        set_tip(self.machine, "Processor threads of the target, and memory of this program")
        holder = QWidget()
        row = layout.row(self.state, self.progress, (self.detail, 1), on=holder, gap=18, margins=(10, 2, 10, 2))
        for widget in (self.costs, self.share, self.machine):
            widget.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
            row.addWidget(widget)
        self.addWidget(holder, 1)
        self._selected: LaneModel | None = None
        self._was_short = False
        self._memory = every(self, MEMORY_MS, self._show_machine)
        self._memory.start()
        self._memory_text = ""
        theme.signals.changed.connect(self._fit)
        controller.state_changed.connect(self.refresh)
        controller.number_tick.connect(self.refresh)
        controller.text_tick.connect(self._on_text)
        self.refresh()

    def _fit(self) -> None:
        """Follow the font."""
        self._floors.clear()
        self.progress.setFixedWidth(theme.px(150))

    def select(self, lane: LaneModel | None) -> None:
        """Show v(k) and c of this lane."""
        self._selected = lane
        self._show_costs()

    def refresh(self) -> None:
        """Write all labels anew."""
        controller = self._controller
        state = controller.state
        word = _WORDS[state]
        if state == "ended":
            word = "recorded" if controller.recorded is not None else controller.outcome
        elif state == "working":
            word = controller.job or word
        mark = "○" if state in ("ready", "ended") else "●"
        self._put(self.state, f"{mark} {word}")
        self._show_progress()
        self._show_costs()
        self._show_share()
        self._show_machine()

    def _on_text(self) -> None:
        """Follow what loads; the rest has time until the next refresh."""
        if self._controller.state in ("preloading", "loading", "prefill", "working"):
            self._show_progress()

    # -- parts ---------------------------------------------------------------------------------------

    def _show_progress(self) -> None:
        controller = self._controller
        progress = controller.progress
        waiting = controller.state in ("preloading", "loading", "prefill", "working")
        if controller.state == "stopping":
            waiting = progress is not None and progress.phase != "decode" and not controller.race_running
        if not waiting:
            if not self.progress.isHidden():
                self.progress.hide()
            if controller.state in ("running", "ended", "stopping"):
                self.detail.set_full(self._rounds_text())
            elif controller.state == "ready" and controller.preloaded:
                self.detail.set_full("models loaded: Run starts at once")
            else:
                self.detail.set_full("")
            return
        show_progress(self.progress, None if progress is None else progress.fraction)
        if self.progress.isHidden():
            self.progress.show()
        self.detail.set_full(progress.text if progress is not None else _STARTING[controller.state])

    def _rounds_text(self) -> str:
        lanes = self._controller.race.lanes
        if not any(lane.rounds for lane in lanes):
            return ""
        counts = " · ".join(f"{lane.name} {len(lane.rounds):{FIGURE_SPACE}>3}" for lane in lanes)
        return f"rounds: {counts}"

    def _show_costs(self) -> None:
        lane = self._selected
        text = ""
        if lane is not None and not lane.plain and lane.rounds:
            metrics = self._controller.race.metrics(lane)
            draft, verify = metrics.draft_cost, metrics.verify_cost
            if verify is not None:
                mean_k = metrics.proposed / max(1, metrics.rounds)
                name = "" if self._short else f"{brief(lane.name)}: "
                text = f"{name}v({count_text(mean_k)}) {verify:.2f}"
                if draft is not None:
                    text += f" · c {draft:.3f}" if self._short else f" · c {draft:.3f} a draft step"
        self._put(self.costs, text)

    def _show_share(self) -> None:
        share = self._controller.real_time_fraction
        text = ""
        if share is not None and share >= 0.005:  # at first no clock has moved
            fraction = f"{share:.2f}× real time"
            text = fraction if self._short else f"shown at {fraction}: lanes take turns"
        self._put(self.share, text)

    def _show_machine(self) -> None:
        import psutil

        threads = self._controller.race.facts.get("threads")
        memory = psutil.Process().memory_info().rss / 1e9
        parts = [f"{threads} thread{'s' if threads != 1 else ''}"] if threads else []
        self._put(self.machine, " · ".join([*parts, f"{memory:.1f} GB"]))

    @property
    def _short(self) -> bool:
        """Whether the window is too narrow for whole sentences."""
        return self.width() < theme.px(1080)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._short != self._was_short:
            self._was_short = self._short
            self._floors.clear()
            for target in (self.costs, self.share):
                target.setMinimumWidth(0)
            self._show_costs()
            self._show_share()

    def _put(self, target: QLabel, text: str) -> None:
        """Set a label, never making it narrower while it shows something: figures do not jump."""
        if target.text() == text:
            return
        target.setText(text)
        floor = max(self._floors.get(target, 0), target.sizeHint().width()) if text else 0
        self._floors[target] = floor
        target.setMinimumWidth(floor)
