"""`specview exactness`: the toy and a pair on the command line, bad input in one line, what a stop leaves."""

from __future__ import annotations

import json
import os

import pytest

from specview import cli
from specview.commands import exactness as command
from specview.lab import exactness, pair_exactness, policy_exactness
from specview.lab import toy as toys
from tests.racing.world import World
from tests.typed import command_line

PAIR = ("--pair", "--raw", "--prompt", "bcdbc")


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


run = command_line("exactness")


def document(capsys, *argv: str):
    """What --json - writes, and nothing else."""
    code, out, err = run(capsys, *argv, "--json", "-")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_toy_in_words(capsys, tmp_path):
    path = tmp_path / "proof.json"
    code, out, _ = run(capsys, "--samples", "20000", "--seeds", "5", "--json", str(path))
    assert code == 0
    assert json.loads(path.read_text())["samples"] == 20_000
    for words in ("Toy: 4 tokens", "no difference from the target found", "naive (lossy)", "would have been caught",
                  "spread over 0..1", "20,000 samples of 256 outcomes"):  # fmt: skip
        assert words in out
    assert max(map(len, out.split("\n\n")[1].splitlines())) < 160


def test_every_policy_on_the_toy(capsys, tmp_path):
    path = tmp_path / "proof.json"
    code, out, _ = run(capsys, "--policies", "--samples", "100", "--vocab", "3", "--length", "2", "--k", "2", "--seed", "1",
                       "--json", str(path))  # fmt: skip
    assert code == 0
    for words in ("Toy: 3 tokens, length 2, k 2", "128 sequences each", "show no difference from the target"):
        assert words in out
    for name in ("off-below", "adaptive", "auto", "cascade", "nosy"):
        assert sum(f", {name} " in line for line in out.splitlines()) == 2
    found = json.loads(path.read_text())
    assert found["holds"] is True
    assert {(one["rule"], one["policy"]) for one in found["cases"]} >= {("match", "auto"), ("rejection", "off-below")}


def test_sizes_and_seed_are_taken(capsys):
    sizes = ("--vocab", "5", "--length", "3", "--k", "2", "--seed", "4", "--model-seed", "9", "--samples", "1000")
    found = document(capsys, *sizes)
    assert found["toy"] == {"vocab": 5, "length": 3, "k": 2, "model_seed": 9, "outcomes": 125}
    assert found["seed"] == 4
    assert len(found["exact"]["alpha_per_context"]) == 5
    assert list(found["samplers"]) == list(toys.SAMPLERS)
    assert document(capsys, *sizes)["samplers"] == found["samplers"]


def test_a_proof_that_fails_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(toys, "rule_distribution", lambda toy, rows: toys.target_distribution(toy))
    code, out, err = run(capsys, "--samples", "20000")
    assert code == 1
    assert "NOT follow its closed form" in out
    assert err.count("\n") == 1
    assert "not shown" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--samples", "10"], "samples is 10"),
        (["--samples", "1e5"], "whole number"),
        (["--vocab", "100", "--length", "9"], "outcomes"),
        (["--k", "0"], "k is 0"),
        (["--seeds", "2"], "seeds is 2"),
        (["--seed", "-1"], "seed is -1"),
        (["--model-seed", "-1"], "seed is -1"),
        (["--vocab", "4", "--pair"], "--vocab is for the toy"),
        (["--policies", "--temperature", "0.5"], "--policies is for the toy"),
        (["--policies", "--seeds", "50"], "--seeds says nothing"),
        (["--policies", "--samples", "10"], "samples is 10"),
        (["--seeds", "50", "--temperature", "0.5"], "--seeds is for the toy"),
        (["only-one.gguf"], "1 models"),
        (["a", "b", "--target", "c"], "named twice"),
        (["--trace", "x"], "--trace"),
        (["--pair", "--tokens", "1"], "tokens is 1"),
        (["--pair", "--temperature", "nan"], "temperature"),
        (["--pair", "--method", "suffix", "--method", "draft-model"], "lanes to test"),
        (["--pair", "--rule", "greedy"], "greedy"),
        (["--pair", "--max-tokens", "0"], "max tokens is 0"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_input_is_one_line(capsys, world, argv, words):
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_a_pair_in_words(capsys, world):
    code, out, _ = run(capsys, *PAIR, "--samples", "300", "--k", "3", "--check-mode", "--top-k", "0", "--max-tokens", "20")
    assert code == 0
    for words in ("Rule rejection, in check mode: no difference from plain found", "Control naive: lossy", "its closed form",
                  "same bits", "Greedy: all 20 tokens equal", "Computed once per prefix", "permutation p"):  # fmt: skip
        assert words in out


def test_a_pair_as_json_by_names(capsys, world):
    world.models["target", "t.gguf"] = lambda: world.make_target()
    pair = document(capsys, "t.gguf", "other", "--samples", "100", "--raw", "--prompt", "bcdbc", "--tokens", "2")["pair"]
    assert pair["samples"] == 100
    assert pair["rules"]["rejection"]["differs"] is False
    assert (pair["run"]["top_k"], pair["run"]["temperature"]) == (8, 1.0)
    assert {("target", "t.gguf"), ("draft", "other")} <= set(world.loads)


def test_temperature_0_is_the_greedy_check_alone(capsys, world):
    code, out, _ = run(capsys, *PAIR, "--temperature", "0")
    assert code == 0
    assert "Greedy: all 64 tokens equal" in out
    assert "permutation" not in out


def test_a_pair_of_a_model_that_is_not_there(capsys, tmp_path):
    code, out, err = run(capsys, "--target", str(tmp_path / "no.gguf"), "--engine", "llama.cpp")
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert "no.gguf" in err


@pytest.mark.parametrize(
    ("module", "name", "looks", "argv", "says", "not_yet"),
    [
        (exactness, "run_toy", 150, ["--samples", "400000"], "samples each", "400,000"),
        (policy_exactness, "run_policies", 3, ["--policies", "--samples", "100"], "rejection, constant", "heuristic"),
        (pair_exactness, "run_pair", 700, [*PAIR, "--samples", "100000", "--max-tokens", "5"], "Rule rejection", "100,000"),
        (exactness, "run_toy", 0, [], "", "samples"),
    ],
    ids=["toy", "policies", "pair", "at once"],
)
def test_ctrl_c_keeps_what_there_is(capsys, world, monkeypatch, module, name, looks, argv, says, not_yet):
    """Pressed after so many looks."""
    honest, left = getattr(module, name), iter(range(looks))
    monkeypatch.setattr(command, name, lambda *args: honest(*args[:-1], lambda: next(left, None) is None))
    code, out, err = run(capsys, *argv)
    assert code == 130
    assert says in out and not_yet not in out
    assert ("Stopped early" in out) == bool(looks)
    assert looks or (out == "" and "stopped" in err)


@pytest.mark.skipif(os.name == "nt", reason="/dev/full")
def test_a_full_disk_does_not_take_the_table(capsys):
    code, out, err = run(capsys, "--samples", "1000", "--json", "/dev/full")
    assert code == 1
    assert "Toy: 4 tokens" in out
    assert "space" in err


def test_help_names_both_parts(capsys):
    with pytest.raises(SystemExit):
        cli.main(["exactness", "--help"])
    out = capsys.readouterr().out
    assert "--pair" in out and "--vocab" in out and "--trace" not in out
