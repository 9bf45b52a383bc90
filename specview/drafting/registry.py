"""The methods: one line here, one file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specview.decoding.interfaces import Drafter, Engine
from specview.drafting import draft_model, prompt_lookup
from specview.drafting.options import Option, Value


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a lane can give a drafter.

    max_length is the longest context in tokens, drafts included; vocab_size the width of the
    target's logit rows.
    """

    options: Mapping[str, Value]
    max_length: int
    vocab_size: int
    draft_engine: Engine | None = None


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A method as the window and the command line offer it. `make` is None for plain decoding."""

    name: str
    label: str
    description: str
    make: Callable[[DrafterContext], Drafter] | None
    options: tuple[Option, ...] = ()
    needs_draft_model: bool = False

    @property
    def drafts(self) -> bool:
        """Whether the method drafts at all."""
        return self.make is not None


METHODS: dict[str, MethodInfo] = {
    method.name: method
    for method in (
        MethodInfo("plain", "plain", "The target alone, one token a pass: the measured baseline.", None),
        MethodInfo(
            "draft-model",
            "draft model",
            "A small model of the same tokenizer drafts; Leviathan 2023, Chen 2023.",
            draft_model.make,
            needs_draft_model=True,
        ),
        MethodInfo(
            "prompt-lookup",
            "prompt lookup",
            "Copies what followed the same n-gram earlier in the text; no second model (Saxena 2023).",
            prompt_lookup.make,
            prompt_lookup.OPTIONS,
        ),
    )
}
