"""A lane that goes on after its limit draws what one longer run draws: the streams follow the output's positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.drafting.lanes import checked_lane
from specview.racing.lane import Lane
from specview.settings.run import LaneSettings, RunSettings
from tests.decoding.toy import FakeEngine, TableModel
from tests.drafting.eagle_toy import FeatureEngine, eagle3_head, eagle_head
from tests.drafting.test_medusa import heads_for
from tests.drafting.test_mlp_speculator import speculator_for
from tests.drafting.test_mtp import modules_for
from tests.drafting.test_universal import pair

WIDE, LIMIT, K = 12, 8, 3
PROMPT = [1, 2, 3, 4, 1, 2]
SAMPLED = SamplingParams(temperature=1.0, seed=5)
FIXED = {"tree": "fixed", "siblings": "sampled"}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_target() -> FeatureEngine:
    target = FeatureEngine(TableModel(WIDE, order=2, scale=3.0), WIDE)
    target.exit_layers, target.exit_model = 8, TableModel(WIDE, order=2, scale=3.0, noise=0.3)
    return target


def make_draft(noise: float = 0.3) -> FakeEngine:
    draft = FakeEngine(TableModel(WIDE, order=2, scale=3.0, noise=noise), WIDE)
    draft.config = {"pard_token": 0}  # type: ignore[attr-defined]
    return draft


HEADS = {
    "eagle": eagle_head,
    "eagle2": eagle_head,
    "eagle3": lambda target: eagle3_head(target, (0, 2, 3, 5, 6, 8)),
    "p-eagle": lambda target: eagle3_head(target, mask_token_id=1),
    "medusa": heads_for,
    "mlp-speculator": speculator_for,
    "mtp": modules_for,
}


def lane_of(method: str, options: dict[str, Any] | None = None, *, rule: str = "rejection", noise: float = 0.3) -> Lane:
    """A lane of fakes that draws at temperature 1."""
    target: Any = make_target()
    draft = make_draft(noise)
    if (options or {}).get("vocabulary") == "intersection":
        target, draft = pair()
    heads = {method: HEADS[method](target)} if method in HEADS else {}
    settings = checked_lane(LaneSettings(method, k=K, rule=rule, options=options or {}), SAMPLED)
    run = RunSettings(observe="light", sampling=SAMPLED)
    return Lane(settings, run, PROMPT, target, draft, heads=heads)


def go_on(lane: Lane, limits: tuple[int, ...], drawn: list[tuple[int, int, float]]) -> dict[tuple[int, int], float]:
    """Run to each limit, the later ones by Continue; by the output position where a round began, and number, what the drafter drew."""
    found: dict[tuple[int, int], float] = {}
    for limit in limits:
        if lane.record.end is None:
            lane.prefill(limit)
        else:
            lane.extend(limit)
        while True:
            position = len(lane.sequence.output)
            drawn.clear()
            if lane.step() is None:
                break
            for _, index, value in drawn:
                found[position, index] = value
    return found


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("draft-model", {}),
        ("draft-model", {"vocabulary": "intersection"}),
        ("pard", {}),
        ("early-exit", {}),
        ("cascade", {"members": "draft-model+prompt-lookup"}),
        ("eagle", {"tree": "chain"}),
        ("eagle", FIXED),
        ("eagle2", {"siblings": "sampled"}),
        ("eagle3", {"preset": "cpu"}),
        ("p-eagle", {}),
        ("medusa", {}),
        ("mlp-speculator", {}),
        ("mtp", {}),
    ],
    ids=str,
)
def test_three_parts_draw_what_one_run_draws(method, options, monkeypatch):
    drawn: list[tuple[int, int, float]] = []

    def recorded(seed, position, purpose, index=0):
        value = uniform(seed, position, purpose, index)
        drawn.append((position, index, value))
        return value

    for module in ("base", "draft_tree"):
        monkeypatch.setattr(f"specview.drafting.{module}.uniform", recorded)
    whole = go_on(lane_of(method, options), (3 * LIMIT,), drawn)
    lane = lane_of(method, options)
    parts = go_on(lane, (LIMIT, LIMIT), drawn)
    session = lane._session
    parts |= go_on(lane, (LIMIT,), drawn)
    assert lane._session is not session, "the second Continue fills the caches anew"
    both = parts.keys() & whole.keys()
    assert len({position for position, _ in parts if position >= 2 * LIMIT}) >= 3
    assert len({position for position, _ in both}) >= 3
    for position, index in parts:
        assert parts[position, index] == uniform(SAMPLED.seed, position, "draft", index)
    assert all(parts[key] == whole[key] for key in both)


def test_a_draft_that_is_always_right_writes_the_same_text_either_way():
    """Of draft and target alike all is accepted: the text is made of the drafter's draws."""
    texts = []
    for limits in ((3 * (K + 1),), (K + 1,) * 3):
        lane = lane_of("draft-model", noise=0.0)
        go_on(lane, limits, [])
        assert all(round_.accepted == K for round_ in lane.record.rounds)
        texts.append(lane.sequence.output)
    assert texts[0] == texts[1]


def test_guesses_are_what_the_drafter_would_have_drawn_in_every_part():
    lane = lane_of("draft-model", rule="match")
    go_on(lane, (limit := 40,) * 3, [])
    draft, output, position, guesses = lane.draft.model, lane.sequence.output, 0, 0

    def expected(at: int) -> int:
        row = draft([*PROMPT, *output[:at]])
        return draw(probabilities(row, SAMPLED), uniform(SAMPLED.seed, at, "draft"))

    for round_ in lane.record.rounds:
        for back, guess in enumerate(reversed(round_.guesses), start=1):
            assert guess.id == expected(position - back)
            guesses += position - back >= 2 * limit
        if round_.drafted:
            assert round_.drafted[0].id == expected(position)
        position += len(round_.emitted)
    assert guesses > 0
