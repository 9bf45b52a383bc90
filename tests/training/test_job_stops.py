"""Training runs that are stopped anywhere and taken up again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specview.training import job, texts
from specview.training.job import TrainJob
from tests.training.tiny import (
    GPT_NEOX,
    LLAMA,
    make_target,
    run,
    same_weights,
    settings,
    weights,
)

pytestmark = pytest.mark.usefixtures("quick")


class StopAt:
    """Asks to stop once an event of a kind was seen some number of times."""

    def __init__(self, stage: str, after: int = 1) -> None:
        self.events: list[dict[str, Any]] = []
        self._stage, self._after = stage, after

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def asked(self) -> bool:
        return sum(self._stage in (e.get("stage"), e["event"]) for e in self.events) >= self._after


EVERYWHERE = [
    ("check", 1),
    ("answers", 1),
    ("text", 1),
    ("labels", 1),
    ("training", 1),
    ("step", 1),
    ("step", 2),
    ("export", 1),
]


@pytest.mark.parametrize(
    ("kind", "stops"),
    [("eagle3", EVERYWHERE), ("draft", EVERYWHERE), ("p-eagle", [("step", 2)]), ("medusa", [("step", 2)])],
    ids=["eagle3", "draft", "p-eagle", "medusa"],
)
def test_a_run_stopped_at_every_stage_ends_as_one_that_was_not(
    kind: str,
    stops: list[tuple[str, int]],
    tiny_target: Path,
    story: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specview.training.state.REPORT_EVERY", 1)
    whole = settings(tiny_target, tmp_path / "whole", kind, text=story, work=tmp_path / "w1")
    assert run(whole)[0]
    stopped = settings(tiny_target, tmp_path / "stopped", kind, text=story, work=tmp_path / "w2")
    ended = 0
    for stage, after in stops:
        seen = StopAt(stage, after)
        if TrainJob(stopped).run(seen, seen.asked):
            ended += 1
        else:
            assert seen.events[-1]["event"] == "stopped" and not (tmp_path / "stopped").exists()
    assert ended <= 1  # the last stop may come when all is done
    assert TrainJob(stopped).run()
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    state = load_file(tmp_path / "w1" / "state.safetensors"), load_file(tmp_path / "w2" / "state.safetensors")
    assert all(torch.equal(state[0][name], state[1][name]) for name in state[0])


@pytest.mark.parametrize("config", [LLAMA, GPT_NEOX], ids=["llama", "gpt_neox"])
def test_text_goes_on_after_a_stop(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "BATCH", 4)
    target = make_target(tmp_path / "tiny", config)
    given = settings(target, tmp_path / "out", work=tmp_path / "w", tokens=300)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        there = list((tmp_path / "w" / "texts").glob("*"))
        calls += bool((tmp_path / "w" / "texts").exists())
        return bool(there) or calls > 40

    assert not run(given, stop)[0]
    before = [text.tokens.tolist() for text in texts.texts_of(tmp_path / "w" / "texts")]
    assert run(given)[0]
    after = [text.tokens.tolist() for text in texts.texts_of(tmp_path / "w" / "texts")]
    assert after[: len(before)] == before and len(after) > len(before)
    assert sum(text.written for text in texts.texts_of(tmp_path / "w" / "texts")) >= 300


def test_a_finished_run_only_exports_again(tiny_target: Path, story: Path, tmp_path: Path) -> None:
    given = settings(tiny_target, tmp_path / "out", text=story)
    assert run(given)[0]
    before = weights(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    done, events = run(given)
    assert done and not any(event["event"] == "step" for event in events)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(tmp_path / "out").items())
