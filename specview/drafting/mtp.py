"""`mtp`: the target's own next-token-prediction modules draft, those that ship inside its checkpoint.

DeepSeek-V3 (arXiv 2412.19437, section 2.2), GLM-4.5, Qwen3-Next and Qwen3.5, MiMo. Module k drafts the k-th token
from what the module before it gave; once all have drafted the last one goes on from its own output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import OnChunk, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.drafting.base import BaseDrafter
from specview.drafting.feature_head import LAST, accepted_rows, problem
from specview.drafting.method import DrafterContext, MethodInfo
from specview.settings.options import Option

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

OPTIONS = (
    Option(
        "reuse",
        True,
        "Whether the last module goes on from its own output where a draft is longer than there are modules (vLLM and "
        "llama.cpp do; transformers drafts one token for each module).",
        label="reuse the last module",
    ),
)


class Mtp(BaseDrafter):
    """Drafts a chain; each token is drawn from its module's own distribution, which is its q."""

    name = "mtp"
    whose = "the target's modules"
    feature_layers: tuple[Any, ...] = (LAST,)
    prompt_layers: tuple[Any, ...] = (LAST,)

    def __init__(self, head: LoadedHead, max_length: int, reuse: bool = True) -> None:
        self._head = head
        self._max_length = max_length
        self._longest = max_length if reuse else int(head.module.shape.modules)
        self._run: Any = None
        self._prompt: Sequence[int] = ()

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run with empty caches."""
        self.close()
        self._run = self._head.module.new_run(self._head, self._max_length)
        self._prompt = tuple(prompt)

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Read the next part of the prompt, all but the row that a draft begins with."""
        self._run.add(features[LAST])
        self._run.read(self._prompt)

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` tokens after `context`; nothing where the target's state there is not known."""
        run = self._run
        budget = min(budget, self._longest, self._max_length - len(context))
        if budget <= 0 or not run.known or run.known != len(context) - 1:
            return EMPTY_DRAFT

        def step(token: int | None) -> tuple[Array, Array]:
            logits = run.first(context) if token is None else run.step(token)
            row = self._head.spread(logits)[0]
            return row, row

        draft = self.chain(step, context, budget, proceed)
        run.end()
        return draft

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Take the target's states of the accepted path, whoever drafted the round."""
        rows = features.get(LAST)
        if rows is not None:
            self._run.add(rows[accepted_rows(round_)])

    def close(self) -> None:
        """Free the caches; the modules are shared."""
        if self._run is not None:
            self._run.close()
        self._run = None


def make(context: DrafterContext) -> Mtp:
    """Make the drafter; raises SpecviewError where the target has no modules."""
    needs = "a target whose checkpoint has next-token-prediction modules"
    return Mtp(context.head(Mtp.name, needs, "Choose another method."), context.max_length, bool(context.options["reuse"]))


METHOD = MethodInfo(
    "mtp",
    "MTP",
    "The target's own next-token-prediction modules, inside its checkpoint (DeepSeek-V3, GLM-4.5, Qwen3-Next, "
    "MiMo).",
    make,
    OPTIONS,
    head="mtp",
    family="trained head",
    problem=problem,
    place=3,
)
