"""Conversations in a set of prompts: plain's answer to a turn stands before the next one, as in the window's follow-up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from specview.errors import UsageError
from specview.settings.run import LaneSettings, RunSettings

History = tuple[Mapping[str, str], ...]


class Turn(Protocol):
    """What `Turns` needs of a prompt."""

    @property
    def text(self) -> str:
        """What the user says."""
        ...

    @property
    def history(self) -> History:
        """The turns before a prompt that follows none of its set."""
        ...

    @property
    def follows(self) -> bool:
        """Whether it is the turn after the prompt before it."""
        ...


class Turns:
    """Plain's answers to the prompts of a set, and so the history of those that follow."""

    def __init__(self, prompts: Sequence[Turn], settings: RunSettings) -> None:
        """Raises UsageError where the set has conversations and the settings are not those of a chat."""
        if not settings.chat and any(prompt.follows for prompt in prompts):
            raise UsageError("the set has conversations of several turns.", "They need the chat form, not the raw one.")
        self._prompts = prompts
        self._answers: dict[tuple[int, Hashable], str] = {}

    def heard(self, place: int, answer: str, key: Hashable = None) -> None:
        """Keep plain's answer to a prompt; key tells runs apart that do not share answers (repeats, temperatures)."""
        self._answers[place, key] = answer

    def before(self, place: int) -> int:
        """How many prompts of the set come before this one in its conversation."""
        first = place
        while self._prompts[first].follows:
            first -= 1
        return place - first

    def history(
        self, place: int, race_of: Callable[[int], RunSettings], ask: Callable[[RunSettings], str], key: Hashable = None
    ) -> History:
        """The turns before a prompt. A turn whose answer was not heard is asked for: its race, with plain alone."""
        first = place - self.before(place)
        history = self._prompts[first].history
        for at in range(first, place):
            if (at, key) not in self._answers:
                self.heard(at, ask(replace(race_of(at), history=history, lanes=(LaneSettings(),))), key)
            history = after(history, self._prompts[at].text, self._answers[at, key])
        return history


def after(history: History, prompt: str, answer: str) -> History:
    """The history that a next turn has, after this prompt and its answer."""
    return (*history, {"role": "user", "content": prompt}, {"role": "assistant", "content": answer})
