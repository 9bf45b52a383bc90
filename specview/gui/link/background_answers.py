"""Questions that take a moment (files are read), answered off the Qt thread; each answer is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from PySide6.QtCore import QObject, Signal

from specview.gui.link.file_work import FileWork

log = logging.getLogger(__name__)

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
        self._work = FileWork(self)

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

    def close(self, timeout_s: float = 0.0) -> None:
        """Tell nothing any more. A question under way ends by itself; it is waited for `timeout_s` at most."""
        self._work.close(timeout_s)
