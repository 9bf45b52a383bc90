"""`specview sweep`: flags to a grid, the question before a long one, resume, outputs."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
from contextlib import contextmanager

import pytest

from specview.commands import sweep as command
from specview.errors import SpecviewError
from specview.experiments import sweep as sweep_module
from specview.experiments.sweep_file import read_sweep
from specview.experiments.sweep_results import COLUMNS
from tests.racing.world import PROMPT, World
from tests.typed import command_line

RAW = ("--raw", "--prompt", PROMPT, "--max-tokens", "16")


@pytest.fixture
def world(monkeypatch, tmp_path) -> World:
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "data"))
    return World(monkeypatch)


run = command_line("sweep")


def grid(*argv: str):
    return command.grid_of(command.make_parser().parse_args(argv))


def stop_after(monkeypatch, calls: int) -> None:
    """Ctrl-C once the sweep has asked so many times whether to stop."""
    asked = iter(range(10**9))

    @contextmanager
    def signals():
        yield lambda: next(asked) >= calls

    monkeypatch.setattr("specview.commands.running.stop_on_signals", signals)


def test_flags_make_the_grid():
    made = grid(
        "--k", "1..8:2", "--temperature", "0,0.7", "--workload", "story,extract", "--repeats", "3", "--seed", "4",
        "--lane", "draft-model,rule=match", "--lane", "prompt-lookup,k=9", "--method", "plain", "--max-tokens", "20",
    )  # fmt: skip
    assert made.ks == (1, 3, 5, 7)
    assert made.temperatures == (0.0, 0.7)
    assert [prompt.group for prompt in made.prompts] == ["story", "extract"]
    assert [(lane.method, lane.k, lane.rule) for lane in made.lanes] == [("draft-model", None, "match"), ("prompt-lookup", 9, "auto")]
    assert (made.repeats, made.settings.max_tokens, made.settings.sampling.seed) == (3, 20, 4)
    assert made.cell_count == (4 + 1) * 2 * 2


def test_the_defaults_are_the_bundled_pair_and_a_sweep_takes_more_methods_than_a_race():
    made = grid()
    assert [lane.method for lane in made.lanes] == ["draft-model"]
    assert (made.ks, made.temperatures) == (tuple(range(1, 9)), (0.0,))
    assert [prompt.group for prompt in made.prompts] == ["chat"]
    methods = ("draft-model", "prompt-lookup", "ngram-simple", "suffix", "lookahead", "ngram-mod")
    made = grid(*(item for method in methods for item in ("--method", method)))
    assert tuple(lane.method for lane in made.lanes) == methods
    made = grid("--lane", "draft-model", "--lane", "draft-model,rule=match")
    assert len({made.lane_name(0), made.lane_name(1)}) == 2, "lanes that differ are named by it"


def test_a_file_of_prompts(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "workload": "w"}\n{"prompt": "b"}\n')
    made = grid("--prompts", str(file), "--system", "be brief")
    assert [(prompt.group, prompt.text, prompt.system) for prompt in made.prompts] == [("w", "a", "be brief"), ("p.jsonl", "b", "be brief")]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--k", ""), "the grid is empty: no k"),
        (("--k", "nan"), "k is 'nan'"),
        (("--k", "1..8", "--temperature", "inf"), "temperature is 'inf'"),
        (("--k", "5..2"), "holds nothing"),
        (("--temperature", "nan"), "temperature is 'nan'"),
        (("--temperature", ","), "the grid is empty: no temperature"),
        (("--workload", ","), "the grid is empty: no prompt"),
        (("--workload", "poem"), "no workload 'poem'"),
        (("--method", "plain"), "the grid is empty: no lane drafts"),
        (("--repeats", "0"), "repeats is 0"),
        (("--repeats", "x"), "not a whole number"),
        (("--k", "1,2", "--lane", "draft-model,k=3"), "--k has no effect"),
        (("--prompts", "no-such.jsonl"), "cannot read the prompts"),
        (("--workload", "chat", "--prompt", "x"), "not allowed with"),
        (("--trace", "x"), "--trace is for one race"),
        (("--observe", "full"), "--observe is for one race"),
        (("--resume",), "--resume needs the sweep's file"),
        (("--rule", "greedy", "--temperature", "0.5"), "greedy"),
        (("--k", "1..64", "--temperature", "0..9:0.01", "--repeats", "1000"), "races"),
        (("--out", "/no/such/folder/x.jsonl"), "no folder"),
    ],
)
def test_bad_flags_are_one_line(world, capsys, argv, words):
    code, out, err = run(capsys, *argv)
    assert code in (1, 2) and out == ""
    assert words in err and err.count("\n") == 1 and err.startswith("specview: ")
    assert world.loads == []


def test_a_sweep_prints_a_table_and_keeps_a_file(world, capsys, tmp_path):
    path = tmp_path / "s.jsonl"
    code, out, err = run(capsys, *RAW, "--k", "1..3", "--repeats", "2", "--out", str(path))
    assert code == 0
    assert "3 cells × 2 = 6 races, about" in err and str(path) in err
    heading, *lines = out.splitlines()[2:]
    assert heading.split()[:4] == ["lane", "workload", "T", "k"]
    assert [line.split()[3] for line in lines[:3]] == ["1", "2", "3"]
    assert sum("best k" in line or "plain wins" in line for line in lines[:3]) == 1
    assert "draft-model · prompt: " in out and "predicted: modelled" in out
    assert len(read_sweep(path).runs) == 6
    assert "\x1b" not in out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_or_a_folder_is_no_place_for_a_sweep_and_nothing_waits(world, capsys, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (str(pipe), str(tmp_path)):
        for resume in ((), ("--resume",)):
            code, out, err = run(capsys, *RAW[: 0 if resume else None], "--out", place, *resume)
            assert code in (1, 2) and out == "" and err.count("\n") == 1, (place, resume)
    assert world.loads == []


def test_without_out_it_is_kept_in_the_data_folder_for_the_user_alone(world, capsys, tmp_path):
    folder = tmp_path / "data" / "sweeps"
    folder.mkdir(parents=True)
    folder.chmod(0o755)  # as an earlier version left it
    code, _, err = run(capsys, *RAW, "--k", "2")
    (path,) = folder.iterdir()
    assert code == 0 and path.name in err and len(read_sweep(path).runs) == 1
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_every_output(world, capsys, tmp_path):
    files = {what: tmp_path / f"s.{what}" for what in ("csv", "markdown")}
    code, out, _ = run(
        capsys, *RAW, "--k", "1,2", "--json", "-", "--csv", str(files["csv"]), "--markdown", str(files["markdown"])
    )
    assert code == 0
    document = json.loads(out)
    assert document["schema"] == "specview.sweep/1"
    assert [row["k"] for row in document["rows"]] == [1, 2]
    assert document["series"][0]["best_k"] in (1, 2)
    read = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert [row["k"] for row in read] == ["1", "2"]
    assert set(read[0]) == {column.key for column in COLUMNS}
    assert float(read[0]["speedup"]) == pytest.approx(document["rows"][0]["speedup"], rel=1e-6)
    assert files["markdown"].read_text().count("\n|") == 4


def test_stop_and_resume(world, capsys, tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    flags = (*RAW, "--k", "1..3", "--repeats", "2", "--out", str(path))
    with monkeypatch.context() as patch:
        stop_after(patch, 220)
        code, out, err = run(capsys, *flags)
    done = len(read_sweep(path).runs)
    assert 0 < done < 6
    assert code == 130
    assert f"stopped after {done} of 6 races" in err and f"--resume --out {path}" in err
    assert "draft-model" in out
    assert run(capsys, *flags)[0] == 2  # not over what is there
    code, out, err = run(capsys, *RAW, "--k", "1..4", "--repeats", "2", "--out", str(path), "--resume")
    assert code == 2 and "another grid: k were 1, 2, 3 and are 1, 2, 3, 4" in err
    code, out, err = run(capsys, "--resume", "--out", str(path))  # with the grid of the file
    assert code == 0 and f" = 6 races, {6 - done} left, about " in err
    assert len(read_sweep(path).runs) == 6
    loads = len(world.loads)
    assert run(capsys, *flags, "--resume")[0] == 0
    assert len(world.loads) == loads, "a finished sweep loads nothing"


def test_a_stop_while_failed_races_are_run_again_is_a_stop(world, capsys, tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    flags = (*RAW, "--k", "1,2", "--lane", "draft-model", "--lane", "draft-model,draft=missing,name=bad", "--out", str(path))
    assert run(capsys, *flags)[0] == 0
    assert [bool(one.error) for one in read_sweep(path).runs.values()] == [False, False, True, True]
    with monkeypatch.context() as patch:
        stop_after(patch, 25)
        code, _, err = run(capsys, "--resume", "--yes", "--out", str(path))
    assert code == 130
    assert f"stopped after 2 of 4 races; go on with: specview sweep --resume --out {path}" in err and "kept in" not in err
    code, _, err = run(capsys, "--resume", "--yes", "--out", str(path))  # they fail again, and that is the end of it
    assert code == 0 and "kept in" in err and "stopped" not in err


@pytest.mark.parametrize("grid_too", [True, False])
def test_trust_in_a_model_s_code_is_given_anew_to_resume(world, capsys, tmp_path, monkeypatch, grid_too):
    made, path = world.load, tmp_path / "my sweep.jsonl"

    def load(ref, engine, *, role, trust_remote_code=False, **options):
        if role == "target" and not trust_remote_code:
            raise SpecviewError("it comes with code.", "Give --trust-remote-code.")
        return made(ref, engine, role=role, **options)

    monkeypatch.setattr("specview.racing.pool.load_engine", load)
    flags = (*RAW, "--k", "1..3", "--out", str(path))
    with monkeypatch.context() as patch:
        stop_after(patch, 100)
        code, _, err = run(capsys, *flags, "--trust-remote-code")
    assert code == 130
    again = shlex.split(err.partition("go on with: ")[2])
    assert again == ["specview", "sweep", "--resume", "--out", str(path), "--trust-remote-code"], "a line to paste"
    assert 0 < len(read_sweep(path).runs) < 3 and b"trust" not in path.read_bytes()
    resume = (*(flags if grid_too else ("--out", str(path))), "--resume")
    code, _, err = run(capsys, *resume)
    assert code == 1 and "it comes with code" in err
    assert run(capsys, *resume, "--trust-remote-code")[0] == 0
    assert len(read_sweep(path).runs) == 3


def test_a_strangers_sweep_is_asked_about_before_it_loads_or_writes_anything(world, capsys, tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    flags = (*RAW, "--k", "1,2", "--out", str(path))
    with monkeypatch.context() as patch:
        stop_after(patch, 25)
        assert run(capsys, *flags)[0] == 130
    header, *lines = path.read_text().splitlines()
    grid = json.loads(header)
    grid["grid"]["settings"] |= {"target": "owner/name", "trust_remote_code": True}
    grid["grid"]["lanes"][0] |= {"method": "suffix", "options": {"store": str(tmp_path / "written.npz"), "max_tree_depth": 9}}
    path.write_text("\n".join([json.dumps(grid), *lines]) + "\n")
    before = path.read_bytes()
    loaded = []
    monkeypatch.setattr("specview.racing.pool.load_engine", lambda ref, engine, **options: loaded.append((ref, options)) or 1 / 0)
    code, _, err = run(capsys, "--resume", "--out", str(path))
    assert code == 2 and "names models: owner/name (target); and nobody is here to be asked" in err and err.count("\n") == 1
    monkeypatch.setattr("specview.commands.sweep.is_terminal", lambda stream: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, _, err = run(capsys, "--resume", "--out", str(path))
    assert code == 1 and "owner/name" in err and "not run" in err and not loaded and path.read_bytes() == before
    resumed = read_sweep(path).grid
    assert not resumed.settings.trust_remote_code and resumed.lanes[0].options["max_tree_depth"] == 9
    assert resumed.lanes[0].options["store"] == ""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    run(capsys, "--resume", "--out", str(path))
    assert [ref for ref, options in loaded] == ["owner/name"] and not loaded[0][1].get("trust_remote_code")
    assert not (tmp_path / "written.npz").exists()


def test_resume_of_what_is_no_sweep(world, capsys, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("hello\n")
    code, _, err = run(capsys, "--resume", "--out", str(path))
    assert code == 1 and "is no sweep" in err and err.count("\n") == 1
    assert path.read_text() == "hello\n"
    code, _, err = run(capsys, "--resume", "--out", str(tmp_path / "none"))
    assert code == 1 and "no such file" in err


MANY = (*RAW, "--k", "1..50", "--temperature", "0..0.2:0.01")
"""1,050 races: a few more than are run without a question."""


@pytest.fixture
def ran(monkeypatch):
    """Whether a sweep was run, without running it."""
    files = []
    monkeypatch.setattr(sweep_module, "run_sweep", lambda file, *_: files.append(file.results.total))
    return files


@pytest.mark.parametrize(
    ("answer", "flags", "runs"),
    [("y\n", (), True), ("YES\n", (), True), ("\n", (), False), ("n\n", (), False), ("", (), False), (None, (), False), (None, ("--yes",), True)],
)
def test_more_than_a_thousand_cells_ask_first_with_an_estimate(world, capsys, ran, tmp_path, monkeypatch, answer, flags, runs):
    """answer None: nobody is there to be asked."""
    monkeypatch.setattr(command, "is_terminal", lambda stream: stream is sys.stdin and answer is not None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer or ""))
    path = tmp_path / "s.jsonl"
    code, out, err = run(capsys, *MANY, *flags, "--out", str(path))
    assert "1,050 cells, one race each, about " in err and ("[y/N]" in err) == (answer is not None)
    assert ran == ([1050] if runs else [])
    assert path.exists() == runs
    if answer is None and not runs:
        assert code == 2 and out == "" and "--yes" in err and err.count("\n") == 1
    elif not runs:
        assert code == 1 and "not run" in err


def test_an_estimate_beyond_an_hour_asks_too(world, capsys, ran, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_module, "estimate", lambda *_: sweep_module.Estimate(0.01, 400.0))
    code, _, err = run(capsys, *RAW, "--k", "1", "--out", str(tmp_path / "s.jsonl"))
    assert code == 2 and ran == [] and "about 67 min" in err


@pytest.mark.parametrize("others", [(), ("--lane", "prompt-lookup")])
def test_a_cell_that_fails_is_said_and_the_others_run(world, capsys, tmp_path, others):
    """Where nothing ran the command fails."""
    lanes = ("--lane", "draft-model,draft=missing,name=bad", *others)
    code, out, err = run(capsys, *RAW, "--k", "2", *lanes, "--out", str(tmp_path / "s.jsonl"))
    assert "bad, k 2, prompt, temperature 0: " in err and "failed: " in out
    assert (code, "no race ran: " in err) == ((0, False) if others else (1, True))


def test_a_full_disk_in_an_export_leaves_the_old_file(world, capsys, tmp_path, monkeypatch):
    old = tmp_path / "s.csv"
    old.write_text("old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, out, err = run(capsys, *RAW, "--k", "2", "--csv", str(old), "--out", str(tmp_path / "s.jsonl"))
    assert code == 1 and "no space left" in err
    assert old.read_bytes() == b"old"
    assert "draft-model" in out, "the table is printed all the same"
    assert sorted(os.listdir(tmp_path)) == ["s.csv", "s.jsonl"]


@pytest.mark.real_model
def test_a_tiny_grid_on_the_bundled_pair(capsys, tmp_path, loaded_once):
    path = tmp_path / "s.jsonl"
    code, out, err = run(
        capsys, "--k", "1,3", "--temperature", "0,0.8", "--workload", "extract", "--max-tokens", "12", "--out", str(path)
    )
    assert code == 0, err
    rows = read_sweep(path).rows()
    assert [(row["temperature"], row["k"]) for row in rows] == [(0, 1), (0, 3), (0.8, 1), (0.8, 3)]
    assert all(row["speedup"] > 0 and row["predicted"] > 0 and row["verify_cost"] > 0 for row in rows)
    assert [row["equal_to_plain"] for row in rows[2:]] == [None, None]
    assert "draft-model" in out
