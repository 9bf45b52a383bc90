"""The Exactness tab: the toy proof, a real pair, and every policy on the toy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specview.gui.exactness.pair import PairPanel
from specview.gui.exactness.policies import PoliciesPanel
from specview.gui.exactness.toy import ToyPanel
from specview.gui.parts.pages import PageContext, ViewsPage

VIEWS = ("Toy proof", "Real pair", "Policies")


class ExactnessPage(ViewsPage):
    """Three views, each with a job of its own on the engine thread."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.toy = ToyPanel(context)
        self.pair = PairPanel(context)
        self.policies = PoliciesPanel(context)
        panels = (self.toy, self.pair, self.policies)
        self.set_views("Views of the exactness lab", dict(zip(VIEWS, panels, strict=True)))

    def view_changed(self, place: int) -> None:
        """Show a view, and the setup bar where it matters."""
        super().view_changed(place)
        self.needs_setup = place == 1  # the target, the prompt and the lanes that are tested
        if place == 1:
            self.pair.show_lanes()
        self.setup_wanted.emit()

    def opened(self) -> None:
        """Take the lanes as they are set up now."""
        self.pair.show_lanes()

    def kept(self) -> dict[str, Any]:
        """Which view, and what is set in each."""
        return {"view": self.views.currentIndex(), "toy": self.toy.kept(), "pair": self.pair.kept(),
                "policies": self.policies.kept()}  # fmt: skip

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what fits of it."""
        view = kept.get("view")
        if isinstance(view, int) and 0 <= view < len(VIEWS):
            self.views.setCurrentIndex(view)
        for panel, name in ((self.toy, "toy"), (self.pair, "pair"), (self.policies, "policies")):
            if isinstance(kept.get(name), Mapping):
                panel.restore(kept[name])
