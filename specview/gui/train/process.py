"""A training run as a child process: `specview train ... --progress -`, started, followed, stopped.

Its JSON lines go into a file that is read on a timer, so that nothing waits on the Qt thread, and a run that the user
leaves running outlives the window. It has the lowest priority: a race beside it is slowed all the same.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PySide6.QtCore import QObject, Signal

from specview import child
from specview.gui.link.pace import every
from specview.training.asked import TrainSettings, same_run

log = logging.getLogger(__name__)

POLL_MS = 250
MOST_POINTS = 4000
"""Points of a curve that are kept; beyond, every other one goes."""
_CHUNK = 1 << 20
State = Literal["idle", "running", "stopping", "stopped", "done", "failed"]


@dataclass(slots=True)
class Curve:
    """Points (x, y) that only grow; every other one goes where they are many."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        """Append a point; one that goes back starts the curve anew from there."""
        while self.x and self.x[-1] >= x:
            self.x.pop()
            self.y.pop()
        self.x.append(x)
        self.y.append(y)
        if len(self.x) > MOST_POINTS:
            self.x, self.y = self.x[1::2], self.y[1::2]


def program() -> list[str]:
    """The command line that runs specview."""
    return child.command("specview")


class TrainingRun(QObject):
    """One run at a time. `changed` when there is news (4 times a second at most), `ended` when the child has gone."""

    changed = Signal()
    ended = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.state: State = "idle"
        self.request: TrainSettings | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._read = 0
        self._rest = b""
        self._timer = every(self, POLL_MS, self.poll)
        self._clear()
        self._clear_curves()

    def _clear(self) -> None:
        self.stage = ""
        self.fraction: float | None = None
        self.left_s: float | None = None
        self.step: int | None = None
        self.agreement: float | None = None
        self.message = ""
        self.folder = ""
        self.work = ""
        self.stop_asked_at: float | None = None
        self._said_end = ""

    def _clear_curves(self) -> None:
        self.loss = Curve()
        self.held_out: dict[int, Curve] = {}
        self.tokens_per_pass: dict[int, float] = {}

    @property
    def running(self) -> bool:
        """Whether a child is at work."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return None if self._process is None else self._process.pid

    # -- wishes ------------------------------------------------------------------------------------

    def start(self, request: TrainSettings, *, command: Sequence[str] | None = None) -> bool:
        """Start the child; False (and `message` says why) where that is not possible. Curves go on on resuming."""
        if self.running:
            return False
        goes_on = self.request is not None and self.state in ("stopped", "failed") and same_run(self.request, request)
        self._clear()
        if not goes_on:
            self._clear_curves()
        self.request = request
        self._folder = Path(tempfile.mkdtemp(prefix="specview-train-"))
        line = [*(program() if command is None else command), *request.arguments(), "--progress", "-"]
        options: dict[str, Any] = (
            {"creationflags": 0x00004000 | 0x08000000}  # below normal priority, no console window
            if sys.platform == "win32" else {"start_new_session": True}
        )
        try:
            with open(self._folder / "progress", "wb") as out, open(self._folder / "errors", "wb") as errors:
                self._process = subprocess.Popen(
                    line, stdin=subprocess.PIPE, stdout=out, stderr=errors, **options,
                    env=child.environment(PYTHONUNBUFFERED="1", PYTHONIOENCODING="utf-8"),
                )
        except OSError as error:
            self.state, self.message = "failed", f"The training cannot start: {error.strerror or error}."
            self._forget_files()
            self.changed.emit()
            return False
        if sys.platform != "win32":
            try:
                os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
            except OSError as error:
                log.info("the training keeps its priority: %s", error)
        self.state, self.stage = "running", "Starting"
        self._read, self._rest = 0, b""
        self._timer.start()
        self.changed.emit()
        return True

    def stop(self) -> None:
        """Ask the child to stop after its step and keep its state; asked twice, end it."""
        if self._process is None:
            return
        if self.state == "stopping":
            self._process.terminate()
            return
        self.state, self.stop_asked_at = "stopping", time.monotonic()
        self._say("stop\n")
        self.changed.emit()

    def _say(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:  # it has gone already: the next poll says how
            pass

    def leave(self) -> None:
        """Follow the child no more; it goes on by itself."""
        self._timer.stop()
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                try:
                    process.stdin.close()
                except OSError:
                    pass
            process.returncode = process.poll() or 0  # nobody waits for it, and nobody need be warned of that
        self._forget_files()  # it writes on into them where the system lets them go meanwhile
        self.state = "idle"

    # -- news ---------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in what the child has written, and whether it has ended."""
        if self._process is None or self._folder is None:
            return
        code = self._process.poll()
        news = self._take_lines()
        if code is None:
            if news:
                self.changed.emit()
            return
        while self._take_lines():
            pass
        self._end(code)

    def _take_lines(self) -> bool:
        assert self._folder is not None
        try:
            with open(self._folder / "progress", "rb") as file:
                file.seek(self._read)
                data = file.read(_CHUNK)
        except OSError:
            return False
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._apply(event)
        return bool(data)

    def _apply(self, event: Mapping[str, Any]) -> None:
        fraction, left = _number(event.get("fraction")), _number(event.get("left_seconds"))
        if fraction is not None:
            self.fraction = min(max(fraction, 0.0), 1.0)
        if left is not None:
            self.left_s = left
        match event.get("event"):
            case "stage":
                self.stage = " ".join(str(event.get("text", "")).split())
            case "step":
                step, loss = _number(event.get("step")), _number(event.get("loss"))
                self.agreement = _number(event.get("agreement"))
                if step is not None:
                    self.step = int(step)
                    if loss is not None:
                        self.loss.add(step, loss)
            case "heldout":
                step = _number(event.get("step")) or 0.0
                for k, value in _by_length(event.get("alpha")).items():
                    self.held_out.setdefault(k, Curve()).add(step, value)
                self.tokens_per_pass = _by_length(event.get("tokens_per_target_pass"))
            case "done":
                self._said_end, self.folder = "done", str(event.get("folder", ""))
            case "stopped":
                self._said_end, self.work = "stopped", str(event.get("work", ""))
            case "error":
                self._said_end, self.message = "failed", " ".join(str(event.get("text", "")).split())

    def _end(self, code: int) -> None:
        self._timer.stop()
        assert self._process is not None
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        asked = self.state == "stopping"
        self._process = None
        if self._said_end == "done":
            self.state, self.fraction, self.left_s = "done", 1.0, 0.0
        elif self._said_end == "stopped":
            self.state = "stopped"
        elif asked and not self._said_end:
            self.state = "stopped"
            self.message = "Ended before it could say that its state is kept; Resume goes on from what it saved last."
        else:
            self.state = "failed"
            self.message = self.message or self._last_words() or f"The training ended by itself (exit code {code})."
        self._forget_files()
        self.changed.emit()
        self.ended.emit()

    def _last_words(self) -> str:
        """The last line that the child wrote to its standard error, '' for none."""
        assert self._folder is not None
        try:
            text = (self._folder / "errors").read_bytes()[-8000:].decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        return lines[-1][:400].removeprefix("specview: ") if lines else ""

    def _forget_files(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _by_length(value: Any) -> dict[int, float]:
    """{draft length: figure} from {"1": .., "2": ..}; what is no number is left out."""
    if not isinstance(value, Mapping):
        return {}
    found = {}
    for key, figure in value.items():
        number = _number(figure)
        if str(key).isdigit() and number is not None:
            found[int(key)] = number
    return dict(sorted(found.items()))
