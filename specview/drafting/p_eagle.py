"""`p-eagle`: an EAGLE-3 head that drafts all its tokens in one pass.

P-EAGLE (as in `speculators` and vLLM): behind the context's last row come rows with a mask token and a learned
vector in the features' place, one for every further token. No drafted token depends on another one, so what
a pass costs hardly depends on k, and later tokens are drafted without knowing the earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specview.decoding.interfaces import Proceed
from specview.decoding.ledger import Array, Draft
from specview.drafting.feature_head import FeatureDrafter, head_of, problem, weights_of
from specview.drafting.method import DrafterContext, MethodInfo

if TYPE_CHECKING:
    from specview.heads.running import HeadRun


class PEagle(FeatureDrafter):
    """Drafts a chain, each token from a row of its own.

    q is exactly the distribution that each token was sampled from: it does not depend on the tokens before it
    in the draft, which the acceptance rule does not ask for.
    """

    def _draft(
        self, run: HeadRun, context: Sequence[int], budget: int, room: int, proceed: Proceed | None
    ) -> Draft:
        budget = min(budget, room)
        rows = iter(run.parallel(context, len(context) - 1, budget))

        def step(token: int | None) -> tuple[Array, Array]:
            row = next(rows)
            return row, row

        return self._over_target(self.chain(step, context, budget, proceed))


def make(context: DrafterContext) -> PEagle:
    """Make the drafter; raises SpecviewError where it has no head that fits."""
    head = head_of(context, METHOD.name)
    return PEagle(METHOD.name, head, head.facts.aux_layers, context.max_length, weights_of(context, head))


METHOD = MethodInfo(
    "p-eagle",
    "P-EAGLE",
    "An EAGLE-3 head that drafts all its tokens in one pass, through rows with a mask token.",
    make,
    head="p-eagle",
    family="trained head",
    one_pass=True,
    problem=problem,
    place=7,
)
