"""Work off the Qt thread: files, replays, imports. The models have a thread of their own, see `engine_thread`."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from PySide6.QtCore import QObject, Signal

from specview.errors import SpecviewError, Stopped
from specview.gui.link.messages import unforeseen
from specview.gui.link.pace import every

log = logging.getLogger(__name__)

POLL_MS = 30
Then = Callable[[Any], None]
Otherwise = Callable[[str], None]


@dataclass(slots=True)
class _Piece:
    """One piece of work, and what came of it: a result, or a line that says why there is none ('' where it stopped)."""

    work: Callable[[], Any]
    then: Then | None
    otherwise: Otherwise | None
    kind: str
    stop: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    problem: str | None = None
    told: tuple[str, float] | None = None


class Background(QObject):
    """Does one thing after the other on a short-lived thread; `do(work, then)` calls then(work()) on the Qt thread.

    Work that takes long asks `should_stop`, or calls `tell`, which raises Stopped where it is no longer wanted.

    signals: failed(one line, where work was given no `otherwise`), progressed(what, fraction: what work told),
    changed (it began or ended to be busy)
    """

    failed = Signal(str)
    progressed = Signal(str, float)
    changed = Signal()

    def __init__(self, parent: QObject | None = None, name: str = "specview-files") -> None:
        super().__init__(parent)
        self._name = name
        self._waiting: deque[_Piece] = deque()
        self._piece: _Piece | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._timer = every(self, POLL_MS, self._poll)

    # -- called on the Qt thread -----------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._waiting) or (self._piece is not None and not self._piece.stop.is_set())

    def do(
        self, work: Callable[[], Any], then: Then | None = None, kind: str = "", otherwise: Otherwise | None = None
    ) -> None:
        """Do this after what waits already; of one `kind` only the last that waits is done.

        Where it fails, otherwise(one line) is called on the Qt thread in place of the signal `failed`.
        """
        if self._closed:
            return
        if kind:
            self._waiting = deque(piece for piece in self._waiting if piece.kind != kind)
        self._waiting.append(_Piece(work, then, otherwise, kind))
        if self._thread is None:
            self._next()

    def only(self, work: Callable[[], Any], then: Then | None = None, otherwise: Otherwise | None = None) -> None:
        """Do this alone: what waits is forgotten, what is under way told to stop, and neither is heard of."""
        self.drop()
        self.do(work, then, "", otherwise)

    def drop(self) -> None:
        """Want nothing any more."""
        if self.busy:
            self._waiting.clear()
            if self._piece is not None:
                self._piece.stop.set()
            self.changed.emit()

    def close(self, timeout_s: float = 2.0) -> None:
        """Begin nothing any more, and wait so long at most for what is under way to notice."""
        self._closed = True
        self.blockSignals(True)  # nothing is heard of it any more
        self.drop()
        self._timer.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = self._piece = None

    def _next(self) -> None:
        self._piece = self._waiting.popleft()
        self._thread = threading.Thread(target=self._run, args=(self._piece,), name=self._name, daemon=True)
        self._thread.start()
        self._timer.start()
        self.changed.emit()

    def _poll(self) -> None:
        piece = self._piece
        if piece is None or self._thread is None:
            return
        if self._thread.is_alive():
            told, piece.told = piece.told, None
            if told is not None and not piece.stop.is_set():
                self.progressed.emit(*told)
            return
        self._thread = self._piece = None
        if not self._waiting:
            self._timer.stop()
        if not piece.stop.is_set():
            if piece.problem:
                (piece.otherwise or self.failed.emit)(piece.problem)
            elif piece.problem is None and piece.then is not None:
                piece.then(piece.result)
        if self._waiting and self._thread is None:
            self._next()
        else:
            self.changed.emit()

    # -- called by work, on the thread -----------------------------------------------------------

    def should_stop(self) -> bool:
        """Whether the work under way is no longer wanted."""
        piece = self._piece
        return piece is None or piece.stop.is_set()

    def tell(self, what: str = "", fraction: float = 0.0) -> None:
        """Say how far the work under way is; raises Stopped where it is no longer wanted."""
        piece = self._piece
        if piece is None or piece.stop.is_set():
            raise Stopped
        piece.told = what, fraction

    def _run(self, piece: _Piece) -> None:
        try:
            piece.result = piece.work()
        except Stopped:
            piece.problem = ""
        except SpecviewError as error:
            piece.problem = str(error)
        except MemoryError:
            piece.problem = "There is not enough memory for this. Close other programs."
        except Exception as error:
            log.exception("work off the Qt thread failed")
            piece.problem = f"Something went wrong: {unforeseen(error)}. The log has more."


Answer = tuple[str, str]
"""(kind, words): kind is 'small' where all is well, else 'warning'."""
Question = TypeVar("Question", bound=Hashable)


class BackgroundAnswers(QObject, Generic[Question]):
    """Answers, in words, the question wanted last; each answer is kept, and `changed` fires when one has come."""

    changed = Signal()

    def __init__(
        self, work: Callable[[Question], Answer], busy_words: str, failed_words: str, parent: QObject | None = None
    ) -> None:
        """`work` runs on the thread; busy_words stand meanwhile, failed_words where it raised."""
        super().__init__(parent)
        self._answer_of, self._busy_words, self._failed_words = work, busy_words, failed_words
        self._known: dict[Question, Answer] = {}
        self._work = Background(self)
        self.close = self._work.close

    @property
    def busy(self) -> bool:
        """Whether a question is being answered, or waits for it."""
        return self._work.busy

    def answer(self, question: Question) -> Answer:
        """(kind, words) as far as known."""
        return self._known.get(question, ("small", self._busy_words if self.busy else ""))

    def want(self, question: Question) -> None:
        """Answer this in the background, unless that is known."""
        if question not in self._known:
            self._work.do(lambda: self._find(question), lambda found: self._keep(question, found), "question")

    def _find(self, question: Question) -> Answer:
        if question in self._known:  # asked for twice before it was answered
            return self._known[question]
        try:
            return self._answer_of(question)
        except Exception:
            log.exception("answering %r failed", question)
            return "small", self._failed_words

    def _keep(self, question: Question, found: Answer) -> None:
        self._known[question] = found
        self.changed.emit()
