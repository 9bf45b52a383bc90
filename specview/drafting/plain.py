"""`plain`: no draft. The target alone, one token a pass, is what every other method is measured against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from specview.drafting.method import MethodInfo
from specview.settings.run import BASELINE

METHOD = MethodInfo(
    BASELINE, "plain", "The target alone, one token a pass: the measured baseline.", None, family="baseline"
)


class HasSettings(Protocol):
    """A lane, of a trace or on screen, with its flat settings."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its settings."""


_Lane = TypeVar("_Lane", bound=HasSettings)


def is_baseline(settings: Mapping[str, Any]) -> bool:
    """Whether a lane's flat settings are plain decoding's."""
    return settings.get("method") == BASELINE


def baseline_of(lanes: Iterable[_Lane]) -> _Lane | None:
    """The first lane of plain decoding, None where there is none."""
    return next((lane for lane in lanes if is_baseline(lane.settings)), None)
