"""`specview export` as a child process: started, followed, stopped. It paints in a theme of its own, beside the window."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

from specview import child


@dataclass(frozen=True, slots=True)
class Ended:
    """How an export ended: what it printed, or in one line what went wrong; stopped says that it was asked to."""

    out: str = ""
    problem: str = ""
    stopped: bool = False


class ExportProcess(QObject):
    """One export at a time.

    signals: progressed(what is done, fraction), ended(Ended)
    """

    progressed = Signal(str, float)
    ended = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._out = b""
        self._follows = self._stopped = False

    @property
    def running(self) -> bool:
        """Whether a child is at work."""
        return self._process is not None

    def start(self, words: Sequence[str], follow: bool = True) -> None:
        """Run `specview export` with these words; `follow` asks for its progress, else what it prints is its result."""
        program, *arguments = child.command("specview", "export", *words, *(("--progress", "-") if follow else ()))
        made = QProcess(self)
        env = QProcessEnvironment()
        for name, value in child.environment(PYTHONIOENCODING="utf-8").items():
            env.insert(name, value)
        made.setProcessEnvironment(env)
        made.readyReadStandardOutput.connect(self._read)
        made.finished.connect(lambda code, status: self._end(code, status))
        made.errorOccurred.connect(self._failed)
        self._process, self._out, self._follows, self._stopped = made, b"", follow, False
        made.start(program, arguments)

    def stop(self) -> None:
        """End it; it leaves no half file."""
        if self._process is not None:
            self._stopped = True
            self._process.kill() if sys.platform == "win32" else self._process.terminate()

    def close(self) -> None:
        """The window closes: end it now."""
        process = self._process
        if process is not None:
            process.blockSignals(True)
            self.stop()
            if not process.waitForFinished(1500):
                process.kill()
                process.waitForFinished(1500)
            self._process = None

    def _read(self) -> None:
        if self._process is None:
            return
        self._out += bytes(self._process.readAllStandardOutput().data())
        if not self._follows:
            return
        *lines, self._out = self._out.split(b"\n")
        for line in lines[-1:]:  # the newest says all
            try:
                news = json.loads(line)
                self.progressed.emit(str(news["text"]), min(max(float(news["fraction"]), 0.0), 1.0))
            except (ValueError, KeyError, TypeError):
                continue

    def _failed(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart:
            self._forget(Ended(problem="The export cannot start: this Python is not where it was."))

    def _end(self, code: int, status: QProcess.ExitStatus) -> None:
        if self._process is None:
            return
        self._read()
        errors = bytes(self._process.readAllStandardError().data()).decode("utf-8", "replace")
        lines = [" ".join(line.split()) for line in errors.splitlines() if line.strip()]
        problem = ""
        if code != 0 or status != QProcess.ExitStatus.NormalExit:
            said = lines[-1].removeprefix("specview: ") if lines else f"The export ended by itself (exit code {code})."
            problem = f"{said[:1].upper()}{said[1:]}"
        self._forget(Ended("" if self._follows else self._out.decode("utf-8", "replace"), problem, self._stopped))

    def _forget(self, ended: Ended) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.deleteLater()
            self.ended.emit(ended)
