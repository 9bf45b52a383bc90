"""Work off the Qt thread of which only the newest matters: what was asked before it is told to stop and not heard of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from specview.errors import SpecviewError, Stopped

log = logging.getLogger(__name__)
POLL_MS = 30

Tell = Callable[[str, float], None]
"""Called by the work with (what, fraction); raises Stopped where the work is no longer wanted."""
Work = Callable[[Tell], Any]


class LatestWork(QObject):
    """Runs one piece of work at a time on a thread of its own.

    done(question, answer), failed(question, line) and progressed(what, fraction) come on the Qt thread, of the newest
    question alone.
    """

    done = Signal(object, object)
    failed = Signal(object, str)
    progressed = Signal(str, float)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._wanted: tuple[Any, Work] | None = None
        self._question: Any = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._result: tuple[bool, Any] | None = None
        self._progress: tuple[str, float] | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._poll)

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return self._thread is not None

    def want(self, question: Any, work: Work) -> None:
        """Do this work; what is under way is told to stop."""
        self._wanted = question, work
        self._stop.set()
        if self._thread is None:
            self._begin()

    def drop(self) -> None:
        """Want nothing any more."""
        self._wanted = None
        self._stop.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop, and wait so long at most for the work to notice."""
        self._timer.stop()
        self.drop()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def _begin(self) -> None:
        assert self._wanted is not None
        self._question, work = self._wanted
        self._wanted, self._result, self._progress = None, None, None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work, self._stop), name="specview-work", daemon=True)
        self._thread.start()
        self._timer.start()

    def _run(self, work: Work, stop: threading.Event) -> None:
        def tell(what: str, fraction: float) -> None:
            if stop.is_set():
                raise Stopped
            self._progress = what, fraction

        try:
            self._result = True, work(tell)
        except Stopped:
            self._result = None
        except SpecviewError as error:
            self._result = False, str(error)
        except Exception as error:
            log.exception("work off the Qt thread failed")
            self._result = False, f"Unexpected {type(error).__name__}: {str(error)[:200]}. The log has more."

    def _poll(self) -> None:
        if self._thread is None:
            return
        if self._thread.is_alive():
            progress, self._progress = self._progress, None
            if progress is not None and not self._stop.is_set():
                self.progressed.emit(*progress)
            return
        self._thread = None
        self._timer.stop()
        result, stopped, question = self._result, self._stop.is_set(), self._question
        if self._wanted is not None:
            self._begin()
        if result is not None and not stopped:
            fine, value = result
            (self.done if fine else self.failed).emit(question, value)
