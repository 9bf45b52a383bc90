"""`draft-model`: a second, smaller model drafts token by token.

Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (2302.01318). A draft with another tokenizer than
the target's drafts by the classes of universal.py.
"""

from __future__ import annotations

from specview.drafting import universal
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.own_model import OwnModel
from specview.errors import SpecviewError
from specview.settings.options import Option

OPTIONS = (
    Option(
        "vocabulary",
        "auto",
        "How a draft with another tokenizer drafts: re-encode (its text in the target's tokens, as transformers' "
        "universal assisted generation), intersection (the tokens both have, with q, as its universal speculative "
        "decoding), same (refuse it), auto (the tokenizer and the rule decide: intersection for rejection and "
        "naive, else re-encode).",
        choices=("auto", "same", "re-encode", "intersection"),
        label="other tokenizer",
    ),
)


class DraftModel(OwnModel):
    """Drafts with a model that has the target's tokenizer."""

    name = "draft-model"


def make(context: DrafterContext) -> OwnModel:
    """Make the drafter over a new session of the lane's draft engine, by the pair's tokenizers and the rule.

    Raises SpecviewError where there is no draft, or the vocabularies do not allow what the option asks for.
    """
    if context.draft_engine is None:
        raise SpecviewError(
            "draft-model needs a draft model.", "Name one with --draft, or use the bundled one."
        )
    engine = context.draft_engine
    asked = str(context.options.get("vocabulary", "auto"))
    if context.target is not None:
        approach = universal.approach(asked, context.rule, context.target, engine)
        if approach != "same":
            return universal.make(DraftModel.name, approach, context.target, engine, context.max_length, context.vocab_size)
    length = min(context.max_length, engine.context_length)
    return DraftModel(engine.new_session(length), context.vocab_size, length, engine.vocab_size)


METHOD = MethodInfo(
    "draft-model",
    "draft model",
    "A small model drafts; Leviathan 2023, Chen 2023. One with another tokenizer drafts by re-encoding or "
    "over the shared vocabulary.",
    make,
    OPTIONS,
    needs_draft_model=True,
    follows_text=True,
    trained="draft",
    family="draft model",
    place=1,
)
