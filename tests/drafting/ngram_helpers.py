"""Test helpers: a drafter fed a known text round by round, as the loop would feed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specview.decoding.ledger import Draft, DraftedToken, FinalToken, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.base import ModelFreeDrafter
from specview.drafting.method import DrafterContext
from specview.settings.options import overlay, resolve


def finished(draft: Draft, held: int, final: int) -> Round:
    """The round of a draft whose first `held` tokens were accepted."""
    verdicts = ["accepted"] * held + ["rejected"] + ["ignored"] * len(draft)
    drafted = tuple(DraftedToken(token, verdict) for token, verdict in zip(draft.tokens, verdicts, strict=False))
    return Round(0, 0.0, 0.0, 0.0, 0.0, drafter=draft.drafter, drafted=drafted, final=FinalToken(final, "plain"))


def replay(
    drafter: ModelFreeDrafter, text: Sequence[int], prompt: int, budget: int = 1000, first: int | None = None
) -> list[tuple[int, tuple[int, ...], int]]:
    """Decode `text` after its first `prompt` tokens: per round (tokens before it, drafted ids, accepted).

    `first` is where the first round begins, where something else made the tokens before it.
    """
    drafter.start(text[:prompt], SamplingParams())
    context = list(text[: prompt if first is None else first])
    rounds = []
    while len(context) < len(text):
        place = len(context)
        left = len(text) - place
        draft = drafter.propose(context, min(budget, left - 1)) if left > 1 else Draft()
        held = 0
        while held < len(draft) and draft.tokens[held] == text[place + held]:
            held += 1
        round_ = finished(draft, held, text[place + held])
        rounds.append((place, draft.tokens, held))
        context += round_.emitted
        drafter.observe(round_, {})
    return rounds


def context_of(module_options: Any, presets: Any, memory: dict[str, Any] | None = None, **given: Any) -> DrafterContext:
    """What a lane gives `make`: options filled in as the registry fills them in."""
    max_length = given.pop("max_length", 4096)
    options = resolve(module_options, overlay(module_options, presets, given), "method")
    return DrafterContext(options, max_length, 100_000, memory={} if memory is None else memory)
