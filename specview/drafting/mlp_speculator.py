"""`mlp-speculator`: a small recurrent network goes on from the target's last hidden state, token by token.

Wertheimer et al. 2024 (arXiv 2404.19124), IBM's speculators; Arctic's LSTM variant. Each step reads the token
drafted before, so the chain is one sample of the speculator's own distribution, which is its q.
"""

from __future__ import annotations

from collections.abc import Sequence

from specview.decoding.interfaces import Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft
from specview.drafting.feature_head import LastHidden, problem
from specview.drafting.method import DrafterContext, MethodInfo


class Speculator(LastHidden):
    """Drafts a chain of at most as many tokens as the speculator was trained for."""

    name = "mlp-speculator"
    whose = "the speculator"

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` tokens after `context`."""
        module = self._head.module
        budget = min(budget, module.shape.predicts, self._room(context, budget))
        if budget <= 0:
            return EMPTY_DRAFT
        # A token that the speculator has no row for, as the target got it later, is read as another one.
        last = context[-1] if context[-1] < module.shape.vocab else 0
        state, place = module.begin(self._hidden), 0

        def step(token: int | None) -> tuple[Array, Array]:
            nonlocal state, place
            state, logits = module.step(place, state, [last if token is None else token])
            place += 1
            row = self._head.spread(logits)[0]
            return row, row

        return self.chain(step, context, budget, proceed)


def make(context: DrafterContext) -> Speculator:
    """Make the drafter; raises SpecviewError where the lane has no speculator."""
    head = context.head(Speculator.name, "a trained speculator", "Name its folder with --draft.")
    return Speculator(head, context.max_length)


METHOD = MethodInfo(
    "mlp-speculator",
    "MLP speculator",
    "A small recurrent network goes on from the target's last hidden state (IBM, arXiv 2404.19124; Arctic).",
    make,
    head="mlp-speculator",
    family="trained head",
    problem=problem,
    place=2,
)
