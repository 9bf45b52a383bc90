"""The branch that is set up: it counts while the setup is that of the run which it goes on from. Plain Python: no Qt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specview.settings.branch import Branch
from specview.settings.run import RunSettings


@dataclass(slots=True)
class SetBranch:
    """The branch, and what it was set up with: with another prompt or target its ids continue nothing."""

    branch: Branch | None = None
    _texts: tuple[str, str] = "", ""
    _shown: Any = None

    def set(self, settings: RunSettings, shown: RunSettings) -> None:
        """Take the branch of settings, or that they have none; shown is what the setup makes of them."""
        self.branch, self._shown = settings.branch, _continued(shown)
        self._texts = settings.prompt, settings.system

    def of(self, settings: RunSettings) -> Branch | None:
        """The branch, if it is one of these settings."""
        return self.branch if self.branch is not None and self._shown == _continued(settings) else None

    def on(self, settings: RunSettings) -> RunSettings:
        """The settings with the branch, if it is one of them: then with its very texts, of which a field may drop something."""
        branch, (prompt, system) = self.of(settings), self._texts
        return settings if branch is None else replace(settings, branch=branch, prompt=prompt, system=system)


def _continued(settings: RunSettings) -> Any:
    """What leads to the output that a branch goes on from."""
    said = [tuple(sorted(turn.items())) for turn in settings.history]
    return (settings.target, settings.prompt, settings.system, settings.chat, settings.chat_template, said)
