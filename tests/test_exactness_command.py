"""`specview exactness`: the toy and a pair on the command line, bad input in one line, what a stop leaves."""

from __future__ import annotations

import json
import os

import pytest

from specview import cli
from specview.commands import exactness as command
from specview.lab import exactness, pair_exactness, policy_exactness
from specview.lab.toy import SAMPLERS
from tests.racing.world import World


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def run(capsys, *argv: str):
    code = cli.main(["exactness", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_toy_as_json(capsys):
    """The keys that issue 5 names, and the literature's values."""
    code, out, err = run(capsys, "--samples", "100000", "--json", "-")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["samples"] == 100_000
    assert document["exact"]["alpha_per_context"] == pytest.approx([0.672, 0.692, 0.856, 0.863], abs=5e-4)
    assert document["exact"]["naive_tv"] == pytest.approx(0.106, abs=5e-4)
    assert list(document["samplers"]) == list(SAMPLERS)
    for name, one in document["samplers"].items():
        assert {"tv", "chi2_p"} <= set(one)
        assert (one["tv"] < 0.02) == (name not in ("naive", "typical"))
    assert document["samplers"]["naive"]["tv"] == pytest.approx(0.106, abs=0.01)
    assert document["holds"] is True


def test_the_toy_in_words(capsys):
    code, out, _ = run(capsys, "--samples", "20000", "--seeds", "6")
    assert code == 0
    assert "no difference from the target found" in out
    assert "naive (lossy)" in out
    assert "would have been caught" in out
    assert "spread over 0..1" in out
    assert "20,000 samples of 256 outcomes" in out
    assert max(map(len, out.split("\n\n")[1].splitlines())) < 160


def test_every_policy_on_the_toy(capsys):
    argv = ("--policies", "--samples", "100", "--vocab", "3", "--length", "2", "--k", "2", "--seed", "1")
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert "Toy: 3 tokens, length 2, k 2" in out
    assert "128 sequences each" in out
    for name in ("off-below", "adaptive", "auto", "cascade", "nosy"):
        assert sum(f", {name} " in line for line in out.splitlines()) == 2
    assert "show no difference from the target" in out
    code, out, err = run(capsys, *argv, "--json", "-")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["holds"] is True
    assert {(one["rule"], one["policy"]) for one in document["cases"]} >= {("match", "auto"), ("rejection", "off-below")}


def test_sizes_and_seed_are_taken(capsys):
    code, out, _ = run(
        capsys, "--vocab", "5", "--length", "3", "--k", "2", "--seed", "4", "--model-seed", "9", "--samples", "5000",
        "--json", "-",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0
    assert document["toy"] == {"vocab": 5, "length": 3, "k": 2, "model_seed": 9, "outcomes": 125}
    assert document["seed"] == 4
    assert len(document["exact"]["alpha_per_context"]) == 5
    again = json.loads(run(capsys, "--vocab", "5", "--length", "3", "--k", "2", "--seed", "4", "--model-seed", "9",
                           "--samples", "5000", "--json", "-")[1])  # fmt: skip
    assert again["samplers"] == document["samplers"]


def test_a_file_is_written(capsys, tmp_path):
    path = tmp_path / "proof.json"
    code, out, _ = run(capsys, "--samples", "1000", "--json", str(path))
    assert code == 0
    assert "Toy: 4 tokens" in out
    assert json.loads(path.read_text())["samples"] == 1000


def test_a_proof_that_fails_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(
        exactness, "rule_distribution", lambda toy, rows, k=None: exactness.target_distribution(toy)
    )
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
        (["--samples", "99999999999"], "samples"),
        (["--vocab", "1"], "vocabulary is 1"),
        (["--vocab", "100", "--length", "9"], "outcomes"),
        (["--length", "0"], "length is 0"),
        (["--k", "0"], "k is 0"),
        (["--k", "99"], "k is 99"),
        (["--seeds", "2"], "seeds is 2"),
        (["--seed", "-1"], "seed is -1"),
        (["--model-seed", "-1"], "seed is -1"),
        (["--vocab", "4", "--pair"], "--vocab is for the toy"),
        (["--policies", "--pair"], "--policies is for the toy"),
        (["--policies", "--temperature", "0.5"], "--policies is for the toy"),
        (["--policies", "--seeds", "50"], "--seeds says nothing"),
        (["--policies", "--samples", "10"], "samples is 10"),
        (["--seeds", "50", "--temperature", "0.5"], "--seeds is for the toy"),
        (["only-one.gguf"], "1 models"),
        (["a", "b", "--target", "c"], "named twice"),
        (["--trace", "x"], "--trace"),
        (["--pair", "--tokens", "1"], "tokens is 1"),
        (["--pair", "--samples", "5"], "samples is 5"),
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
    code, out, _ = run(capsys, "--pair", "--samples", "600", "--raw", "--prompt", "bcdbc", "--k", "3", "--check-mode",
                       "--top-k", "0", "--max-tokens", "20")  # fmt: skip
    assert code == 0
    assert "Rule rejection, in check mode: no difference from plain found" in out
    assert "Control naive: lossy" in out
    assert "its closed form" in out
    assert "same bits" in out
    assert "Greedy: all 20 tokens equal" in out
    assert "Computed once per prefix" in out
    assert "permutation p" in out


def test_a_pair_as_json(capsys, world):
    code, out, err = run(capsys, "--method", "draft-model", "--samples", "400", "--raw", "--prompt", "bcdbc",
                         "--tokens", "2", "--json", "-")  # fmt: skip
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["pair"]["samples"] == 400
    assert document["pair"]["rules"]["rejection"]["differs"] is False
    assert document["pair"]["run"]["top_k"] == 8
    assert document["pair"]["run"]["temperature"] == 1.0


def test_models_by_their_names(capsys, world):
    world.models["target", "t.gguf"] = lambda: world.make_target()
    code, _, err = run(capsys, "t.gguf", "other", "--samples", "100", "--raw", "--prompt", "bcdbc", "--tokens", "2")
    assert (code, err) == (0, "")
    assert ("target", "t.gguf") in world.loads
    assert ("draft", "other") in world.loads


def test_temperature_0_is_the_greedy_check_alone(capsys, world):
    code, out, _ = run(capsys, "--pair", "--temperature", "0", "--raw", "--prompt", "bcdbc")
    assert code == 0
    assert "Greedy: all 64 tokens equal" in out
    assert "permutation" not in out


def test_a_pair_of_a_model_that_is_not_there(capsys, monkeypatch, tmp_path):
    code, out, err = run(capsys, "--target", str(tmp_path / "no.gguf"), "--engine", "llama.cpp")
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert "no.gguf" in err


def stopping(monkeypatch, module, name: str, after: int) -> None:
    """Press Ctrl-C after so many looks."""
    honest = getattr(module, name)

    def asked(*args, **kwargs):
        left = [after]

        def stop():
            left[0] -= 1
            return left[0] < 0

        return honest(*args[:-1], stop, **kwargs)

    monkeypatch.setattr(command, name, asked)


def test_ctrl_c_keeps_what_the_toy_has(capsys, monkeypatch):
    stopping(monkeypatch, exactness, "run_toy", 150)
    code, out, _ = run(capsys, "--samples", "400000")
    assert code == 130
    assert "Stopped early" in out
    assert "samples each" in out


def test_ctrl_c_keeps_what_the_policies_have(capsys, monkeypatch):
    stopping(monkeypatch, policy_exactness, "run_policies", 3)
    code, out, _ = run(capsys, "--policies", "--samples", "100")
    assert code == 130
    assert "Stopped early" in out
    assert "rejection, constant" in out and "heuristic" not in out


def test_ctrl_c_at_once_says_stopped(capsys, monkeypatch):
    stopping(monkeypatch, exactness, "run_toy", 0)
    code, out, err = run(capsys)
    assert (code, out) == (130, "")
    assert "stopped" in err


def test_ctrl_c_keeps_what_the_pair_has(capsys, world, monkeypatch):
    stopping(monkeypatch, pair_exactness, "run_pair", 1200)
    code, out, _ = run(capsys, "--pair", "--raw", "--prompt", "bcdbc", "--samples", "100000", "--max-tokens", "5")
    assert code == 130
    assert "Stopped early" in out
    assert "Rule rejection" in out


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
    assert "--pair" in out
    assert "--vocab" in out
    assert "--trace" not in out
