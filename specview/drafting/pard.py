"""`pard`: a separate small model drafts all tokens in one pass, through mask tokens (AMD, arXiv 2504.18583).

A causal model trained for it gets K - 1 mask tokens (`pard_token` in its config.json) after the context and predicts a
token at each of the last K rows, none of which sees what was drafted before it: each is drawn from its own
distribution, which is its q. The mask rows are rolled back before the next pass.
"""

from __future__ import annotations

from typing import Any

from specview.decoding.interfaces import Engine, Session
from specview.decoding.ledger import Array
from specview.drafting import universal
from specview.drafting.base import Step
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.own_model import OwnModel
from specview.errors import SpecviewError, UsageError
from specview.settings.options import Option

OPTIONS = (
    Option(
        "pard_token",
        -1,
        "The draft's mask token; -1 takes pard_token of its config.json. A GGUF has none: give it (151665 for PARD "
        "models of Qwen2.5, 128020 of Llama 3).",
        -1,
        label="mask token",
    ),
)
_KEYS = ("pard_token", "ptd_token_id")


class Pard(OwnModel):
    """Drafts in one pass with a session of its own, rolled back with the target's."""

    name = "pard"

    def __init__(
        self, session: Session, vocab_size: int, context_length: int, mask_token: int, own_ids: int | None = None
    ) -> None:
        super().__init__(session, vocab_size, context_length, own_ids)
        self._mask_token = mask_token

    def _steps(self, fresh: list[int], budget: int) -> Step:
        rows = self._session.forward([*fresh, *[self._mask_token] * (budget - 1)]).logits
        self._caught_up = self._behind(rows[: len(fresh) - 1])
        self._cached.extend(fresh)
        self._session.truncate(len(self._cached))
        drafted = iter(rows[-budget:])

        def step(token: int | None) -> tuple[Array, Array]:
            own = next(drafted)
            return self._row_of(own), self._rated(own)

        return step


def mask_token_of(engine: Engine, asked: int) -> int:
    """The draft's mask token: the one asked for (0 or more), else its config's.

    Raises UsageError where it has none, or none of that number.
    """
    config: Any = getattr(engine, "config", None) or {}
    found = asked if asked >= 0 else next((config[key] for key in _KEYS if isinstance(config.get(key), int)), None)
    if found is None:
        raise UsageError(
            f"{engine.model_name} names no mask token: it is no PARD model, or its file does not say so.",
            "Choose a draft with pard_token in its config.json, or give the option pard_token.",
        )
    if not 0 <= found < engine.vocab_size:
        raise UsageError(
            f"pard_token is {found}, and {engine.model_name} has {engine.vocab_size} tokens.",
            f"Use 0 to {engine.vocab_size - 1}.",
        )
    return int(found)


def make(context: DrafterContext) -> Pard:
    """Make the drafter over a new session of the lane's draft engine.

    Raises SpecviewError where there is no draft, it has no mask token, or another tokenizer than the target's.
    """
    engine = context.draft_engine
    if engine is None:
        raise SpecviewError("pard needs a draft model.", "Name a PARD model with --draft.")
    mask_token = mask_token_of(engine, int(context.options["pard_token"]))
    if context.target is not None and universal.approach("auto", context.rule, context.target, engine) != "same":
        raise SpecviewError(
            f"{engine.model_name} has another tokenizer than {context.target.model_name}, and pard drafts in the "
            "target's own tokens.",
            "Choose a PARD model of the target's family.",
        )
    length = min(context.max_length, engine.context_length)
    return Pard(engine.new_session(length), context.vocab_size, length, mask_token, engine.vocab_size)


METHOD = MethodInfo(
    "pard",
    "PARD",
    "A small model trained for it drafts all tokens in one pass, through mask tokens (arXiv 2504.18583).",
    make,
    OPTIONS,
    needs_draft_model=True,
    one_pass=True,
    seldom_pays=True,
    family="draft model",
    place=2,
)
