"""Work on files for a page, one thing after the other on a short-lived thread; answers come on the Qt thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from specview.errors import SpecviewError, Stopped

log = logging.getLogger(__name__)

POLL_MS = 30
Then = Callable[[Any], None]
Otherwise = Callable[[str], None]


class FileWork(QObject):
    """`do(work, then)` calls work() on the thread and then(its result) on the Qt thread.

    signals: failed(str: one line; where work was given no `otherwise`), changed (it began or ended to be busy)
    """

    failed = Signal(str)
    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._waiting: deque[tuple[str, Callable[[], Any], Then | None, Otherwise | None]] = deque()
        self._thread: threading.Thread | None = None
        self._then: Then | None = None
        self._otherwise: Otherwise | None = None
        self._answer: tuple[Any, str] = (None, "")
        self._closed = threading.Event()
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._poll)

    @property
    def busy(self) -> bool:
        """Whether something is under way or waits."""
        return self._thread is not None or bool(self._waiting)

    def should_stop(self) -> bool:
        """Whether the page is closed: for work that takes long."""
        return self._closed.is_set()

    def do(
        self, work: Callable[[], Any], then: Then | None = None, kind: str = "", otherwise: Otherwise | None = None
    ) -> None:
        """Do this after what waits already; of one `kind` only the last that waits is done.

        Where it fails otherwise(one line) is called on the Qt thread, in place of the signal `failed`.
        """
        if self._closed.is_set():
            return
        if kind:
            self._waiting = deque(item for item in self._waiting if item[0] != kind)
        self._waiting.append((kind, work, then, otherwise))
        if self._thread is None:
            self._next()

    def _next(self) -> None:
        _, work, self._then, self._otherwise = self._waiting.popleft()
        self._thread = threading.Thread(target=self._run, args=(work,), name="specview-files", daemon=True)
        self._thread.start()
        self._timer.start()
        self.changed.emit()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._answer = work(), ""
        except Stopped:
            self._answer = None, "stopped"
        except SpecviewError as error:
            self._answer = None, str(error)
        except Exception as error:
            log.exception("work on files failed")
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._answer = None, f"Something went wrong with the files: {what}. The log has more."

    def _poll(self) -> None:
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        (result, problem), then, otherwise = self._answer, self._then, self._otherwise
        self._answer, self._then, self._otherwise = (None, ""), None, None
        if not self._waiting:
            self._timer.stop()
        if problem:
            if problem != "stopped":
                (self.failed.emit if otherwise is None else otherwise)(problem)
        elif then is not None:
            then(result)
        if self._waiting and self._thread is None:
            self._next()
        else:
            self.changed.emit()

    def close(self, timeout_s: float = 2.0) -> None:
        """Begin nothing any more, and wait briefly for what is under way."""
        self._closed.set()
        self._waiting.clear()
        self._timer.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None
