"""Draft length policies: how many tokens the next round drafts. Usable with every drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specview.decoding.costs import Costs
from specview.decoding.interfaces import LengthPolicy
from specview.decoding.ledger import Round
from specview.drafting.options import Option, Value

LONGEST = 64


class Constant:
    """Always k."""

    name = "constant"

    def __init__(self, options: Mapping[str, Value], costs: Costs | None = None) -> None:
        self._k = 1

    def start(self, k: int) -> None:
        """Begin a run with the user's k."""
        self._k = k

    def budget(self) -> int:
        """Tokens to draft in the next round."""
        return self._k

    @property
    def proceed(self) -> Callable[[float], bool] | None:
        """Draft to the budget."""
        return None

    def observe(self, round_: Round) -> None:
        """Learn nothing."""


class Heuristic(Constant):
    """k grows by 2 when a whole draft was accepted and shrinks by 1 otherwise (transformers)."""

    name = "heuristic"

    def observe(self, round_: Round) -> None:
        """Lengthen or shorten the next draft."""
        if not round_.k:
            return
        self._k = min(self._k + 2, LONGEST) if round_.accepted == round_.k else max(self._k - 1, 1)


class Confidence(Constant):
    """Ends the draft after the first token that the drafter itself gives less than the threshold.

    The token stays in the draft and is judged: dropping a sampled token by its value would bend the
    distribution.
    """

    name = "confidence"

    def __init__(self, options: Mapping[str, Value], costs: Costs | None = None) -> None:
        super().__init__(options)
        self._threshold = float(options["threshold"])

    @property
    def proceed(self) -> Callable[[float], bool] | None:
        """Go on while the drafter is sure."""
        return lambda confidence: confidence >= self._threshold


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy as the window and the command line offer it."""

    name: str
    label: str
    description: str
    make: Callable[[Mapping[str, Value], Costs], LengthPolicy]
    options: tuple[Option, ...] = ()
    default_k: int | None = None  # k where the user named none; None leaves it to method and engine
    needs_costs: bool = False  # asks for a calibration of the target's passes


POLICIES: dict[str, PolicyInfo] = {
    info.name: info
    for info in (
        PolicyInfo("constant", "constant", "Every round drafts k tokens.", Constant),
        PolicyInfo(
            "heuristic",
            "heuristic",
            "Starts at k; 2 more after a fully accepted draft, 1 fewer otherwise, as transformers does.",
            Heuristic,
        ),
        PolicyInfo(
            "confidence",
            "confidence",
            "Drafts up to k tokens, and stops after one that the drafter gives less than the threshold.",
            Confidence,
            (
                Option(
                    "threshold",
                    0.4,
                    "Drafter's probability of its own token below which the draft ends; transformers calls "
                    "it assistant_confidence_threshold (0.4), llama.cpp --draft-p-min.",
                    0.0,
                    1.0,
                ),
            ),
        ),
    )
}
