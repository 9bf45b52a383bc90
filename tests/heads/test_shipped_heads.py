"""The heads that come along: what they say they are, that they fit the bundled target, and that they are worth it."""

from __future__ import annotations

from typing import Any

import pytest

from specview.heads.read import read_head
from specview.models.assets import asset_path
from specview.racing.race import Race
from specview.racing.workloads import load
from specview.settings.run import LaneSettings, RunSettings

LEAST_PER_PASS = {"eagle3": 1.4, "p-eagle": 1.3, "medusa": 1.1}
"""Tokens per target pass on a text that was never looked at, far below what the cards say: no head reaches it unless
features, positions and vocabulary are the right ones."""
LONGEST = 17_000_000


@pytest.mark.parametrize("kind", LEAST_PER_PASS)
def test_a_shipped_head_is_what_its_folder_says(kind: str) -> None:
    folder = asset_path(kind)
    facts = read_head(folder)
    assert facts.kind == kind
    assert (facts.hidden_size, facts.vocab_size) == (576, 49152)
    assert sum(file.stat().st_size for file in folder.iterdir()) < LONGEST
    card = (folder / "README.md").read_text("utf-8")
    assert "Measured acceptance" in card and "Licence: Apache-2.0" in card


@pytest.mark.real_model
@pytest.mark.parametrize("kind", LEAST_PER_PASS)
def test_a_shipped_head_drafts_well_on_the_bundled_target(
    kind: str, engine_name: str, model_pool: Any
) -> None:
    prompt = load("chat").prompts[0]
    settings = RunSettings(
        engine=engine_name, prompt=prompt.text, system=prompt.system, max_tokens=60, observe="off", threads=2,
        lanes=(LaneSettings(kind, k=2),), baseline=False,
    )  # fmt: skip
    race = Race(settings, 1, model_pool)
    race.run(lambda event: None)
    (record,) = race.records
    assert record.error == ""
    drafted = [round_ for round_ in record.rounds if round_.k]
    assert len(record.token_ids) / len(record.rounds) > LEAST_PER_PASS[kind]
    assert len(drafted) >= len(record.rounds) - 2
    race.close()
