"""Where the target's context is full, and where a draft's own is: told apart, by place and reason, everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specview import cli
from specview.decoding.metrics import draft_full_words, fold
from specview.drafting.cascade import Cascade
from specview.drafting.pard import Pard
from specview.files.reader import read_trace
from specview.lab.explain import explain
from specview.settings.events import LaneEnded
from specview.settings.run import LaneSettings
from tests.decoding.toy import FakeEngine, TableModel
from tests.drafting.test_universal import pair
from tests.models.conftest import cache, make_gguf  # noqa: F401 - fixtures
from tests.racing.world import VOCAB, World, of_kind, race_end

Make = Callable[..., Path]
DRAFTED = LaneSettings(method="draft-model", k=3)


def test_the_words() -> None:
    assert draft_full_words(None, None) == ""
    assert draft_full_words(0, 128) == "The draft's own context of 128 tokens is full: from the start it drafts nothing."
    assert "from output token 61 on it drafts nothing" in draft_full_words(60, 128)


def test_the_limit_that_was_asked_for_is_not_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, context_length=20)
    race, events = world.run(DRAFTED, prompt="bc" * 6, max_tokens=8)
    assert race_end(events).end == "done"
    assert [record.end for record in race.records] == ["limit", "limit"], "exactly what was asked for"
    race, events = world.run(DRAFTED, prompt="bc" * 6, max_tokens=9)
    assert [record.end for record in race.records] == ["context", "context"]
    assert {ended.equality.equal for ended in of_kind(events, LaneEnded) if ended.equality} == {True}
    assert of_kind(events, LaneEnded)[-1].speedup is not None


@pytest.mark.parametrize("method", ["draft-model", "cascade", "auto"])
def test_a_draft_whose_context_ends_is_told_in_the_ledger(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    world = World(monkeypatch)
    world.models["draft", "bundled"] = lambda: world.make_draft(noise=0.0, context_length=24)
    options = {} if method == "draft-model" else {"members": "draft-model" if method == "cascade" else "prompt-lookup+draft-model"}
    race, events = world.run(LaneSettings(method=method, k=3, options=options), prompt="bcdefgbadc", max_tokens=30)
    assert race_end(events).end == "done"
    metrics = of_kind(events, LaneEnded)[-1].metrics
    assert metrics.draft_context == 24 and metrics.draft_full_at is not None
    assert 14 <= metrics.draft_full_at <= (14 + 3 if method != "auto" else 30)
    rounds = race.records[1].rounds
    assert fold(rounds).draft_full_at == metrics.draft_full_at
    if method != "auto":
        assert not any(round_.k for round_ in rounds if round_.full_context)
        told = explain(rounds, race.records[0].rounds, race.records[1].settings)
        assert [banner.text for banner in told.banners if banner.kind == "draft-full"] == [
            draft_full_words(metrics.draft_full_at, 24)
        ]
    assert not any(round_.full_context for round_ in race.records[0].rounds)


def test_one_that_never_drafts_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.models["draft", "bundled"] = lambda: world.make_draft(context_length=8)
    race, _ = world.run(DRAFTED, prompt="bcdefgbadc", max_tokens=6)
    told = explain(race.records[1].rounds, race.records[0].rounds, race.records[1].settings)
    assert told.sentence.endswith("The draft's own context of 8 tokens is full: from the start it drafts nothing.")


def test_pard_foreign_drafts_and_members_tell_too() -> None:
    from specview.decoding.sampling import SamplingParams
    from specview.drafting import universal

    prompt = [1, 2, 3, 4, 5, 6]
    engine = FakeEngine(TableModel(VOCAB), VOCAB, context_length=8)
    pard = Pard(engine.new_session(8), VOCAB, 8, 0)
    pard.start(prompt, SamplingParams())
    assert pard.propose([*prompt, 1], 3) and not pard.full_context
    assert not pard.propose([*prompt, 1, 1], 3) and pard.full_context == 8
    assert Cascade([pard]).full_context == 8
    for approach in ("re-encode", "intersection"):
        target, draft = pair(context_length=4)
        foreign = universal.make("draft-model", approach, target, draft, 64, target.vocab_size)
        context = target.tokenizer.encode("ab ba ab ba")
        foreign.start(context, SamplingParams())
        assert not foreign.propose(context, 3) and foreign.full_context == 4


@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
def test_both_ends_in_files_tables_and_why(
    engine: str, make_gguf: Make, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    pytest.importorskip("llama_cpp" if engine == "llama.cpp" else "torch")
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "data"))
    target = make_gguf("target.gguf", seed=0)
    draft = make_gguf("draft.gguf", seed=0, extra={"llama.context_length": 128})
    out, trace = tmp_path / "out.json", tmp_path / "trace.jsonl"
    context = ("--context", "256") if engine == "llama.cpp" else ()
    code = cli.main([
        "compare", "--engine", engine, "--target", str(target), "--draft", str(draft), "--method", "draft-model", "--raw",
        "--prompt", "hello world 12 " * 4, "--max-tokens", "500", "--json", str(out), "--trace", str(trace), *context,
    ])  # fmt: skip
    said = capsys.readouterr().out
    assert code == 0
    plain, lane = json.loads(out.read_text())["lanes"]
    prompt = plain["run"]["prompt_tokens"]
    assert {plain["output"]["end"], lane["output"]["end"]} == {"context"}
    assert len(plain["output"]["token_ids"]) == plain["run"]["target_context_length"] - prompt
    at = lane["metrics"]["draft_full_at"]
    assert lane["metrics"]["draft_context"] == 128 and abs(at - (128 - prompt)) <= 3
    words = draft_full_words(at, 128)
    assert f"draft-model: {words}" in said and "ended where the target's context was full" in said
    read = read_trace(trace)
    assert [record.end for record in read.records] == ["context", "context"]
    assert fold(read.records[1].rounds).draft_full_at == at
    assert cli.main(["explain", str(trace)]) == 0
    assert f"! {words}" in capsys.readouterr().out
