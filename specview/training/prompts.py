"""Instructions that the target is asked to answer when it writes training text.

Most come from templates (prompt_parts.json) filled at random, some with real code or prose in them,
and some with text the target wrote itself earlier. Held-out prompts are kept out by topic, and by a
check of long word sequences.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

from specview.training.corpus import Corpus

# Share of the prompts by kind; the target's own user turns come on top (see generate.py).
SHORT_KINDS = {"story": 0.3, "explain": 0.24, "chat": 0.28, "write_code": 0.08, "portuguese": 0.1}
LONG_KINDS = {"edit_code": 0.5, "extract": 0.5}
OVERLAP_WORDS = 7
SETS = ("first-table", "fresh")
"""Held-out prompts, for measuring drafters: no training text may come from them."""


@dataclass(frozen=True)
class Prompt:
    """One user turn and its kind."""

    kind: str
    text: str


def held_out(name: str) -> list[Prompt]:
    """The prompts of a set: `first-table` (the prototype's 30) or `fresh`.

    `first-table` was looked at while choosing k and vocabularies; `fresh` never decided anything.
    Raises ValueError for another name.
    """
    if name not in SETS:
        raise ValueError(f"no held-out set {name!r}; there are {', '.join(SETS)}")
    file = resources.files(__package__).joinpath("heldout_prompts", f"{name}.jsonl")
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [Prompt(row["kind"], row["text"]) for row in rows]


class Prompts(Protocol):
    """What a writer draws user turns from."""

    own_texts: list[str]

    def is_held_out(self, text: str) -> bool:
        """Whether a text is kept for measuring."""
        ...

    def draw(self, kinds: dict[str, float]) -> Prompt:
        """One prompt; `kinds` gives the weight of each kind."""
        ...


class PromptSource:
    """Draws prompts at random; `own_texts` grows with what the target has written."""

    def __init__(self, corpus: Corpus, held_out: Iterable[str], rng: random.Random) -> None:
        """`held_out` are prompts that must never be drawn."""
        parts = json.loads(resources.files(__package__).joinpath("prompt_parts.json").read_text("utf-8"))
        self._templates: dict[str, list[str]] = parts["templates"]
        self._slots: dict[str, list[str]] = parts["slots"]
        self._corpus, self._rng = corpus, rng
        self._banned = {gram for text in held_out for gram in _grams(text)}
        self._banned_texts = {" ".join(_words(text)) for text in held_out}
        self.own_texts: list[str] = []

    def is_held_out(self, text: str) -> bool:
        """Whether `text` is a held-out prompt or shares a long word sequence with one."""
        return " ".join(_words(text)) in self._banned_texts or any(g in self._banned for g in _grams(text))

    def draw(self, kinds: dict[str, float]) -> Prompt:
        """One prompt; `kinds` gives the weight of each kind."""
        while True:
            kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
            text = self._fill(self._rng.choice(self._templates[kind]))
            if not self.is_held_out(text):
                return Prompt(kind, text)

    def _fill(self, template: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name == "code":
                return self._rng.choice(self._corpus.functions)
            if name == "prose":
                own = self.own_texts and self._rng.random() < 0.6
                return self._rng.choice(self.own_texts if own else self._corpus.paragraphs)
            return self._fill(self._rng.choice(self._slots[name]))

        return re.sub(r"\{(\w+)\}", value, template)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _grams(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[i : i + OVERLAP_WORDS]) for i in range(len(words) - OVERLAP_WORDS + 1)}
