"""`specview tune` end to end: over fake engines, and with a small budget over the bundled target."""

from __future__ import annotations

import csv
import json
import shlex
import signal

import pytest

from specview import cli
from specview.commands import run as run_command
from specview.commands import tune as tune_command
from specview.commands.arguments import prompts_of, settings_of
from specview.commands.tune import command_of
from specview.drafting.lanes import checked_lane
from specview.experiments import tuning
from specview.experiments.tune_result import ArmResult
from specview.racing.resolve import checked_run
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import LaneSettings, RunSettings
from tests.racing.world import World

ARGUMENTS = ["tune", "--prompt", "bcdbcdbcdbcd", "--raw", "--max-tokens", "24", "--seconds", "1200",
             "--methods", "draft-model,prompt-lookup,eagle"]  # fmt: skip


@pytest.fixture
def world(monkeypatch):
    world = World(monkeypatch, row_cost=0.05)
    real = tuning.tune
    monkeypatch.setattr(tuning, "tune", lambda *given, **options: real(*given, **options, clock=world.clock))
    return world


def test_it_prints_a_ranking_reasons_a_sentence_and_the_command(world, capsys):
    assert cli.main(ARGUMENTS) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[2].split() == ["lane", "stage", "speedup", "races", "predicted", "alpha", "tok/pass"]
    assert lines[3].split()[0] == "1" and lines[3].split()[2] == "confirmed"
    assert "Cannot run here\n  eagle: eagle has no bundled head" in out
    assert "Fastest here: " in out and "95% interval over" in out
    assert "Which families to try, by what was measured here\n  " in out
    words = shlex.split(lines[lines.index("Use it:") + 1])
    assert words[:2] == ["specview", "run"]
    settings = settings_of(run_command.make_parser().parse_args(words[2:]), ())
    assert settings.prompt == "bcdbcdbcdbcd" and not settings.chat
    assert checked_lane(settings.lanes[0], settings.sampling).method in ("draft-model", "prompt-lookup")


def test_files_hold_the_ranking(world, capsys, tmp_path):
    files = {kind: tmp_path / f"t.{kind}" for kind in ("json", "csv", "markdown")}
    flags = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    assert cli.main([*ARGUMENTS, *flags]) == 0
    document = json.loads(files["json"].read_text())
    rows = list(csv.DictReader(files["csv"].open(encoding="utf-8")))
    assert [row["lane"] for row in rows] == [row["lane"] for row in document["ranking"]]
    assert document["sentence"] in files["markdown"].read_text()
    assert document["command"].startswith("specview run") and document["verdict"] == "faster"
    assert document["guide"] and document["budget"]["spent_s"] <= 1200


def test_a_set_is_chosen_on_some_prompts_and_confirmed_on_others(world, capsys, tmp_path):
    file = tmp_path / "mine.jsonl"
    texts = ("bcdbcdbcd", "cdecdecde", "abcabcabc", "bdbdbdbd", "dedededede", "bcbcbc", "cecece", "bebebe")
    file.write_text("\n".join(json.dumps({"prompt": text, "name": text, "kind": "copy"}) for text in texts))
    arguments = ["tune", "--prompts", str(file), *ARGUMENTS[3:], "--seconds", "1800", "--json", "-"]
    assert cli.main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    prompts = document["prompts"]
    assert prompts["count"] == 8 and document["best"]["over"] == "prompts"
    assert not set(prompts["chosen_on"]) & set(prompts["confirmed_on"])
    assert document["command"].endswith("--prompt-file FILE") and document["best"]["count"] >= 3


def test_ctrl_c_keeps_what_there_is(world, capsys, monkeypatch):
    made = world.load
    spends = [0]

    def load(*given, **options):
        engine = made(*given, **options)
        spend = engine.spend

        def press(seconds):
            spends[0] += 1
            if spends[0] == 900:
                signal.raise_signal(signal.SIGINT)
            spend(seconds)

        engine.spend = press
        return engine

    monkeypatch.setattr("specview.racing.pool.load_engine", load)
    assert cli.main(ARGUMENTS) == 130
    assert "Not settled: the best so far is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--seconds", "1"], "the time budget is 1 s. Use 5 seconds to 24 hours."),
        (["--minutes", "nan"], "is not a number"),
        (["--minutes", "1", "--seconds", "60"], "not allowed with argument"),
        (["--methods", "plain"], "there is no method 'plain' to try"),
        (["--methods", ","], "--methods names none"),
        (["--methods", "guess"], "there is no method 'guess' to try"),
        (["--rule", "fair"], "there is no rule 'fair'"),
        (["--rule", "greedy", "--temperature", "1"], "greedy"),
        (["--max-tokens", "0"], "max tokens is 0"),
        (["--prompt", " "], "the prompt is empty"),
        (["--workload", "poems"], "there is no workload 'poems'"),
        (["--k", "3"], "unrecognized arguments: --k"),
    ],
)
def test_bad_flags_are_one_line(world, capsys, flags, line):
    assert cli.main(["tune", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err
    assert not world.loads


@pytest.mark.parametrize(("flag", "line"), [("--draft", "no file or folder '/no/such/model.gguf'"), ("--target", "/no/such/model.gguf")])
def test_a_model_that_is_not_there_is_one_line_and_no_silent_bundled_one(capsys, flag, line):
    assert cli.main([*ARGUMENTS[:3], "--seconds", "5", flag, "/no/such/model.gguf"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err


def test_the_command_names_what_is_not_the_default():
    arm = ArmResult(checked_lane(LaneSettings("prompt-lookup", k=8), RunSettings().sampling))
    settings = RunSettings(engine="llama.cpp", target="/m/a b.gguf", threads=2, workload="chat", max_tokens=64)
    words = shlex.split(command_of(settings, Workload("chat", (Prompt("x"), Prompt("y")), "0"), arm))
    assert words == ["specview", "run", "--engine", "llama.cpp", "--target", "/m/a b.gguf", "--threads", "2",
                     "--max-tokens", "64", "--lane", "prompt-lookup,k=8", "--workload", "chat"]  # fmt: skip


def test_races_end_at_a_stop_string_and_the_command_has_it(world, capsys, tmp_path):
    assert cli.main([*ARGUMENTS, "--stop", "dd", "--stop=-x", "--json", str(tmp_path / "a.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = shlex.split(lines[lines.index("Use it:") + 1])
    assert settings_of(run_command.make_parser().parse_args(words[2:]), ()).stop == ("dd", "-x")
    assert json.loads((tmp_path / "a.json").read_text())["run"]["stop"] == ["dd", "-x"]


def told(*flags: str) -> RunSettings:
    """The settings that the command for these flags' prompt runs with."""
    arguments = tune_command.make_parser().parse_args(list(flags))
    settings = checked_run(settings_of(arguments, ("plain",)))
    arm = ArmResult(checked_lane(LaneSettings("prompt-lookup", k=8), settings.sampling))
    words = shlex.split(command_of(settings, prompts_of(arguments), arm))
    assert words[:2] == ["specview", "run"]
    return settings_of(run_command.make_parser().parse_args(words[2:]), ())


@pytest.mark.parametrize(
    "flags",
    [
        ("--workload", "chat", "--system", "Answer in one word."),
        ("--prompt", "Why?", "--system", "Answer in one word."),
        ("--prompt", "Why?", "--system=-1"),
        ("--prompt=-5C?",),
        ("--prompt", "Why?"),
        (),
    ],
)
def test_the_command_s_prompt_is_the_one_that_was_tuned(flags):
    arguments = tune_command.make_parser().parse_args(list(flags))
    tuned = settings_of(arguments, ("plain",))
    found = told(*flags)
    assert (found.prompt, found.system, found.workload) == (tuned.prompt, tuned.system, tuned.workload)


def test_the_command_for_a_file_of_prompts(tmp_path):
    file = tmp_path / "mine.jsonl"
    arm = ArmResult(checked_lane(LaneSettings("prompt-lookup", k=8), RunSettings().sampling))

    def command(*lines, flags=()):
        file.write_text("\n".join(map(json.dumps, lines)))
        arguments = tune_command.make_parser().parse_args(["--prompts", str(file), *flags])
        words = shlex.split(command_of(settings_of(arguments, ("plain",)), prompts_of(arguments), arm))
        return words[words.index("prompt-lookup,k=8") + 1 :]

    one = {"prompt": "Why?", "system": "Be brief."}
    assert command(one) == ["--prompt", "Why?", "--system", "Be brief."]
    assert command(one, {"prompt": "b", "system": "Be brief."}) == ["--prompt-file", "FILE", "--system", "Be brief."]
    assert command(one, {"prompt": "b"}) == ["--prompt-file", "FILE"], "no system text is that of all"
    assert command(one, {"prompt": "b"}, flags=["--system", "x"]) == ["--prompt-file", "FILE", "--system", "x"]
    assert command(one, flags=["--raw"]) == ["--prompt", "Why?"], "a bare prompt has none"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert command({"messages": turns}) == ["--prompt-file", "FILE"], "a command line gives no turns before it"


@pytest.mark.real_model
def test_the_bundled_target_within_a_small_budget(capsys, monkeypatch, loaded_once):
    """Speeds are this machine's; what must hold on any: races were run, every method is accounted for.

    The caps, not the budget, end it: a busy machine makes it slow, not red.
    """
    monkeypatch.setattr(tuning, "MOST_FINALS", 1)
    monkeypatch.setattr(tuning, "MOST_FRESH", 3)
    monkeypatch.setattr(tuning, "MOST_ARMS", 4)
    text = "Repeat exactly: one hen, two eggs. one hen, two eggs. one hen, two eggs."
    arguments = ["tune", "--prompt", text, "--max-tokens", "16", "--seconds", "200", "--threads", "1",
                 "--methods", "prompt-lookup,draft-model,eagle", "--json", "-"]  # fmt: skip
    assert cli.main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["budget"]["races"] >= 3 and document["verdict"] in ("faster", "plain", "unclear")
    assert document["best"]["count"] == 3
    ranked = {row["lane"].split(",")[0] for row in document["ranking"]}
    assert {"prompt-lookup", "draft-model"} <= ranked
    assert [one["method"] for one in document["unusable"]] == ["eagle"]
    raced = [row for row in document["ranking"] if row["speedup"] is not None]
    assert raced and all(0 < row["speedup"] < 100 for row in raced)
    assert document["costs"]["v"]["4"] > 0.3 and document["costs"]["plain_pass_s"] > 0
