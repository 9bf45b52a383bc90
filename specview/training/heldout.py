"""Prompts kept for measuring drafters; no training text may come from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

SETS = ("first-table", "fresh")


@dataclass(frozen=True)
class HeldOutPrompt:
    """One held-out user turn and its kind."""

    kind: str
    text: str


def held_out(name: str) -> list[HeldOutPrompt]:
    """The prompts of a set: `first-table` (the prototype's 30) or `fresh`.

    `first-table` was looked at while choosing k and vocabularies; `fresh` never decided anything.
    Raises ValueError for another name.
    """
    if name not in SETS:
        raise ValueError(f"no held-out set {name!r}; there are {', '.join(SETS)}")
    file = resources.files(__package__).joinpath("heldout_prompts", f"{name}.jsonl")
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [HeldOutPrompt(row["kind"], row["text"]) for row in rows]
