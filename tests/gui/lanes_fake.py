"""Test helper: made-up lanes to feed a page or a window with."""

from __future__ import annotations

import random

from PySide6.QtWidgets import QApplication

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.decoding.speedup import speedup
from specview.settings.events import LaneEnded, LanePrefilled, LaneRound, RaceEnded, RaceStarted

PASS_S = 0.05
BASE = {"engine": "transformers", "target": "bundled", "device": None, "dtype": None, "threads": None, "gpu_layers": 0,
        "check_mode": False}  # fmt: skip
PLAIN = {**BASE, "method": "plain", "rule": "greedy"}
DRAFT = {**BASE, "method": "draft-model", "k": 4, "rule": "rejection", "policy": "constant"}


def lane_rounds(count: int, k: int = 4, alpha: float = 0.5, v: float = 1.6, c: float = 0.05, seed: int = 1) -> list[Round]:
    """Rounds that accept each token with alpha and cost c a drafted token, v a pass, in plain passes."""
    rng, t, made = random.Random(seed), 0.0, []
    for index in range(count):
        accepted = 0
        while accepted < k and rng.random() < alpha:
            accepted += 1
        verdicts = ["accepted"] * accepted + ["rejected"] * (accepted < k) + ["ignored"] * (k - accepted - 1)
        tokens = tuple(DraftedToken(i, verdict, entropy=0.3 + i, text="a") for i, verdict in enumerate(verdicts))
        draft_s, verify_s, other_s = k * c * PASS_S, PASS_S * (v if k else 1.0), 0.001
        t += draft_s + verify_s + other_s
        kind = "plain" if not k else "bonus" if accepted == k else "corrected"
        made.append(Round(index, t, draft_s, verify_s, other_s, drafter="m" if k else "", drafted=tokens,
                          final=FinalToken(9, kind, "b")))  # fmt: skip
    return made


def standard(count=60, **draft):
    """A plain lane and one of a draft model, as `feed` takes them."""
    return [("plain", PLAIN, lane_rounds(200, k=0)), ("draft-model", DRAFT, lane_rounds(count, **draft))]


def feed(place, lanes, run_id=1000, end=True):
    """Play a race of (name, settings, rounds) into the model of a window or bench."""
    controller = place.controller
    race = controller.race
    race.begin(run_id)
    race.apply(RaceStarted(run_id, (1, 2, 3), "hello", tuple(name for name, _, _ in lanes),
                           tuple(settings for _, settings, _ in lanes), {"target_weight_bytes": 98_000_000}))  # fmt: skip
    for index, (_, _, rounds) in enumerate(lanes):
        race.apply(LanePrefilled(run_id, index, 0.4, 12_000_000, 9_000_000))
        for round_ in rounds:
            race.apply(LaneRound(run_id, index, round_))
    if end:
        for index, (_, _, rounds) in enumerate(lanes):
            faster = speedup(rounds, lanes[0][2]) if index else None
            race.apply(LaneEnded(run_id, index, "limit", fold(rounds, 0.4, PASS_S), "", faster))
        race.apply(RaceEnded(run_id, "done", 0.9))
    controller.lanes_changed.emit()
    controller.text_tick.emit()
    controller.number_tick.emit()


def settle() -> None:
    """Let single-shot redraws happen: the page's, then the charts'."""
    for _ in range(4):
        QApplication.processEvents()
