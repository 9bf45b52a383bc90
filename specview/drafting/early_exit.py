"""`early-exit`: the target's own first layers draft, its final norm and head on top of them.

Self-speculation as in LayerSkip, Elhoushi et al. 2024 (arXiv 2404.16710), section 3.3; transformers calls
the layer `assistant_early_exit`. The first layers' keys, values and hidden states of the drafted tokens are
taken up by the verifying pass, which runs the remaining layers only.
"""

from __future__ import annotations

from collections.abc import Sequence

from array_api_compat import array_namespace

from specview.decoding.interfaces import EarlyExitSession, Engine, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft
from specview.drafting.base import BaseDrafter
from specview.drafting.method import DrafterContext, MethodInfo
from specview.errors import SpecviewError, UsageError
from specview.settings.options import Option

OPTIONS = (
    Option(
        "exit_layer",
        0,
        "E: how many of the target's layers draft; 0 is a quarter of them, as for models trained to be left "
        "early. Others are right only after their last layers: specview scan finds the best for a prompt "
        "(LayerSkip: exit_layer; transformers: assistant_early_exit).",
        0,
        label="exit layer E",
    ),
)


class EarlyExit(BaseDrafter):
    """Drafts with the lane's own session, left after the first layers; q is of the exit's logits."""

    name = "early-exit"

    def __init__(self, session: EarlyExitSession, layer: int, max_length: int) -> None:
        self._session = session
        self.layer = layer
        self._max_length = max_length
        self.whose = f"the target, left after layer {layer},"

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` tokens; the last one is not fed, for nothing is drafted after it."""
        budget = min(budget, self._max_length - len(context))
        if budget <= 0:
            return EMPTY_DRAFT

        def step(token: int | None) -> tuple[Array, Array]:
            logits = self._session.forward_exit([context[-1] if token is None else token], self.layer)[-1]
            # The engine may reuse its logit buffer in the next step; the rule reads these rows later.
            logits = array_namespace(logits).asarray(logits, copy=True)
            return logits, logits

        return self.chain(step, context, budget, proceed)


def default_layer(layers: int) -> int:
    """The exit where the user named none: after a quarter of the layers, within what can be left."""
    return min(max(1, round(layers / 4)), layers - 1)


def problem(engine: Engine) -> str | None:
    """Say why this target cannot be left early, or None."""
    if engine.exit_layers > 1:
        return None
    if engine.exit_layers == 1:
        return "it has one layer only."
    return engine.exit_problem or "it cannot be left after some of its layers."


def make(context: DrafterContext) -> EarlyExit:
    """Make the drafter; raises UsageError where the exit layer is out of range."""
    engine, session = context.target, context.session
    if engine is None or session is None or problem(engine) is not None:
        reason = "it has no session of its own." if engine is None else problem(engine)
        raise SpecviewError(f"early-exit cannot draft here: {reason}")
    layers = engine.exit_layers
    layer = int(context.options["exit_layer"]) or default_layer(layers)
    if not 1 <= layer < layers:
        raise UsageError(
            f"exit_layer is {layer}, and {engine.model_name} has {layers} layers.",
            f"Use 1 to {layers - 1}, or 0 for a quarter of them.",
        )
    assert isinstance(session, EarlyExitSession)
    return EarlyExit(session, layer, context.max_length)


METHOD = MethodInfo(
    "early-exit",
    "early exit",
    "The target's own first layers draft, on the cache that verifies (LayerSkip, arXiv 2404.16710).",
    make,
    OPTIONS,
    family="self",
    follows_text=True,
    shares_passes=True,
    seldom_pays=True,
    problem=problem,
    place=2,
)
