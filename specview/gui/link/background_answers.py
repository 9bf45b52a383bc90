"""Questions that take a moment (files are read), answered on a short-lived thread; each answer is kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from PySide6.QtCore import QObject, QTimer, Signal

log = logging.getLogger(__name__)

POLL_MS = 50
Answer = tuple[str, str]
"""(kind, words): kind is 'small' where all is well, else 'warning'."""
Question = TypeVar("Question", bound=Hashable)


class BackgroundAnswers(QObject, Generic[Question]):
    """Answers the question that was wanted last; `changed` fires on the Qt thread when an answer has come."""

    changed = Signal()

    def __init__(
        self, work: Callable[[Question], Answer], busy_words: str, failed_words: str, parent: QObject | None = None
    ) -> None:
        """`work` runs on the thread; busy_words stand meanwhile, failed_words where it raised."""
        super().__init__(parent)
        self._answer_of, self._busy_words, self._failed_words = work, busy_words, failed_words
        self._known: dict[Question, Answer] = {}
        self._wanted: Question | None = None
        self._asked: Question | None = None
        self._result: Answer | None = None
        self._thread: threading.Thread | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._poll)

    @property
    def busy(self) -> bool:
        """Whether a question is being answered."""
        return self._thread is not None

    def answer(self, question: Question) -> Answer:
        """(kind, words) as far as known."""
        return self._known.get(question, ("small", self._busy_words if self.busy else ""))

    def want(self, question: Question) -> None:
        """Answer this in the background, unless that is known."""
        self._wanted = question
        self._begin()

    def _begin(self) -> None:
        if self._thread is not None or self._wanted is None or self._wanted in self._known:
            return
        self._asked, self._result = self._wanted, None
        self._thread = threading.Thread(target=self._work, args=(self._asked,), name="specview-answer", daemon=True)
        self._thread.start()
        self._timer.start()

    def _work(self, question: Question) -> None:
        try:
            self._result = self._answer_of(question)
        except Exception:
            log.exception("answering %r failed", question)
            self._result = "small", self._failed_words

    def _poll(self) -> None:
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        self._timer.stop()
        if self._asked is not None and self._result is not None:
            self._known[self._asked] = self._result
        self._begin()
        self.changed.emit()

    def close(self, timeout_s: float = 0.0) -> None:
        """Tell nothing any more. A question under way ends by itself; it is waited for `timeout_s` at most."""
        self._timer.stop()
        self._wanted = None
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None
