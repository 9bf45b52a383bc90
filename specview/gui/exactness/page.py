"""The Exactness tab: the toy proof, a real pair, and every policy on the toy."""

from __future__ import annotations

from specview.gui.exactness.pair import PairPanel
from specview.gui.exactness.policies import PoliciesPanel
from specview.gui.exactness.toy import ToyPanel
from specview.gui.parts.pages import PageContext, ViewsPage


class ExactnessPage(ViewsPage):
    """Three views, each with a job of its own on the engine thread; the pair's takes the lanes as they are set up now."""

    own = ("temperature", "top_k", "seed", "max_tokens", "check_mode", "rule")

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.toy = ToyPanel(context)
        self.pair = PairPanel(context)
        self.policies = PoliciesPanel(context)
        self.set_views(
            "Views of the exactness lab", {"Toy proof": self.toy, "Real pair": self.pair, "Policies": self.policies},
            {"toy": self.toy, "pair": self.pair, "policies": self.policies},
        )  # fmt: skip

    def view_changed(self, place: int) -> None:
        super().view_changed(place)
        self.pair.show_lanes()

    def opened(self) -> None:
        self.pair.show_lanes()
