"""What the tests of races share."""

from __future__ import annotations

import pytest

from tests.racing.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A race's surroundings: fake engines and a fake clock."""
    return World(monkeypatch)
