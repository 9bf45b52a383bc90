"""`--branch` as a user types it: another run's place, token and settings; what cannot be gone on from is one line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from specview.commands.branching import Asked, asked_of
from specview.errors import UsageError
from specview.files.reader import Trace, read_trace
from specview.library.library import RunLibrary
from specview.racing.branching import alternatives
from specview.settings.branch import branch_of
from tests.racing.world import PROMPT, World
from tests.typed import typed

SAMPLED = ("--temperature", "0.8", "--seed", "3", "--stop", "zz")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def parent(capsys: pytest.CaptureFixture[str], *more: str) -> Trace:
    """A run with plain, a draft model and prompt lookup, kept in the library."""
    words = ("compare", "--raw", "--prompt", PROMPT, "--max-tokens", "24", "--observe", "full", "--lane", "draft-model,k=3,name=A: b@2", *more)
    assert typed(capsys, *words, "--lane", "prompt-lookup,k=4")[0] == 0
    return newest()


def newest(back: int = 0) -> Trace:
    library = RunLibrary()
    return library.read(library.scan()[back])


def test_it_takes_place_token_and_settings_from_the_run(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before, entry = parent(capsys, *SAMPLED), RunLibrary().scan()[0]
    code, _, err = typed(capsys, "compare", "--branch", "last:A: b@2@5", "--max-tokens", "18")
    assert (code, err) == (0, "")
    after = newest()
    branch = branch_of(after.run)
    assert branch is not None and (branch.run, branch.lane, branch.position) == (entry.id, "A: b@2", 5)
    assert after.prompt_ids == (*before.prompt_ids, *before.records[1].token_ids[:6]) and after.prompt_text == PROMPT
    assert [record.name for record in after.records] == ["plain", "A: b@2", "prompt-lookup"]
    for old, new in zip(before.records, after.records, strict=True):
        assert {**new.settings, "max_tokens": 24, "observe": "full"} == old.settings
    same = read_trace(entry.path).records[0].token_ids[6:] == after.records[0].token_ids
    assert same == (before.records[0].token_ids[:6] == before.records[1].token_ids[:6])
    shown = typed(capsys, "runs", "show", "last")[1]
    assert f"continues {entry.id} from position 5 of lane A: b@2 with " in " ".join(shown.split())
    listed = json.loads(typed(capsys, "runs", "list", "--json", "-")[1])["runs"][0]
    assert listed["parent"] == entry.id and "position 5" in listed["continues"] and "a branch" in listed["name"]
    assert typed(capsys, "runs", "export", "last", "--markdown", str(tmp_path / "a.md"))[0] == 0
    assert "output that was given" in (tmp_path / "a.md").read_text()


def test_flags_stand_in_place_of_the_runs_own(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    parent(capsys, *SAMPLED)
    assert typed(capsys, "compare", "--branch", "last@3", "--temperature", "0", "--k", "2", "--stop", "yy")[0] == 0
    records = newest().records
    assert [record.settings["k"] for record in records] == [None, 2, 2] and records[1].name == "A: b@2"
    assert records[0].settings["temperature"] == 0 and records[0].settings["stop"] == ["yy"] and records[0].settings["seed"] == 3
    assert typed(capsys, "compare", "--branch", "last~1@3", "--lane", "suffix", "--rule", "match")[0] == 0
    assert [record.settings["method"] for record in newest().records] == ["plain", "suffix"]
    assert typed(capsys, "run", "--branch", "last~2:A: b@2@3")[0] == 0
    assert [(record.name, record.settings["k"]) for record in newest().records] == [("A: b@2", 3)]
    assert typed(capsys, "run", "--branch", "last@0")[0] == 0
    branch = branch_of(newest().run)
    assert branch is not None and len(branch.token_ids) == 5 and branch.position == 0, "a branch of a branch"


def test_another_token_by_id_or_by_its_text(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = parent(capsys)
    other = alternatives(before.records[0].rounds, 4)[1]
    run = RunLibrary().scan()[0].id
    for token in (str(other.id), other.text, f"'{other.text}'"):
        assert typed(capsys, "compare", "--branch", f"{run}@4={token}")[0] == 0
        branch = branch_of(newest().run)
        assert branch is not None and branch.token_ids == (*before.records[0].token_ids[:4], other.id) and branch.token == other.text


def test_the_command_that_repeats_it_needs_no_parent(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    parent(capsys, *SAMPLED)
    assert typed(capsys, "compare", "--branch", "last:A: b@2@5", "--temperature", "0")[0] == 0
    first = newest()
    document = json.loads(typed(capsys, "runs", "export", "last", "--json", "-")[1])
    assert document["lanes"][0]["run"]["branch"]["position"] == 5
    shown = typed(capsys, "runs", "show", "last")[1]
    command = next(line for line in shown.splitlines() if line.strip().startswith("specview compare"))
    library = RunLibrary()
    library.delete([entry.id for entry in library.scan()])
    assert typed(capsys, *shlex.split(command)[1:])[0] == 0
    again = newest()
    assert branch_of(again.run) == branch_of(first.run)
    assert [record.token_ids for record in again.records] == [record.token_ids for record in first.records]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--branch", "last"), "branch is 'last'"),
        (("--branch", "@3"), "names no run"),
        (("--branch", "last@3="), "names no token"),
        (("--branch", "nothing@3"), "no run 'nothing'"),
        (("--branch", "nothing:plain@3"), "no run 'nothing'"),
        (("--branch", "gone.jsonl@3"), "there is no file 'gone.jsonl'"),
        (("--branch", "last:B@3"), "no lane 'B'"),
        (("--branch", "last@24"), "no position 24 in the output of plain"),
        (("--branch", "last@3=?"), "no one token '?' is known at position 3"),
        (("--branch", "last@3=99"), "the branch has tokens that fake-target has not"),
        (("--branch", "last@3", "--prompt", "b"), "--prompt gives another prompt"),
        (("--branch", "last@3", "--workload", "chat"), "--workload gives another prompt"),
        (("--branch", "last@3", "--chat"), "--chat gives another prompt"),
        (("--branch", "last@3", "--prompts", "a.jsonl"), "--prompts makes many"),
        (("--branch", "last@3", "--max-tokens", "0"), "max tokens is 0"),
    ],
)
def test_what_does_not_fit_is_one_line(world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str) -> None:
    parent(capsys)
    code, _, err = typed(capsys, "compare", *words)
    assert code == 2 and says in err and err.count("\n") == 1


def test_a_model_of_the_hub_that_a_file_names_is_not_asked_for(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parent(capsys)
    text = RunLibrary().scan()[0].path.read_text()
    path = tmp_path / "a.jsonl"
    path.write_text(text.replace('"target": "bundled"', '"target": "some/model"'))
    code, _, err = typed(capsys, "compare", "--branch", f"{path}@3")
    assert code == 2 and "names some/model (target)" in err and "--target some/model" in err
    world.models["target", "some/model"] = world.models["target", "bundled"]
    assert typed(capsys, "compare", "--branch", f"{path}@3", "--target", "some/model")[0] == 0
    assert typed(capsys, "compare", "--branch", f"{path}:plain@3", "--target", "bundled")[0] == 0
    code, _, err = typed(capsys, "compare", "--branch", f"{path}@3", "--target", "bundled", "--json", str(path))
    assert code == 2 and "name the same file" in err and path.read_text().startswith("{")


def test_the_flag_is_read_whatever_the_names_hold() -> None:
    cases: dict[str, Any] = {
        "last@3": Asked("last", 3),
        "last:a@3@12": Asked("last:a@3", 12),
        "last:a@3=b@12=@5=x": Asked("last:a", 3, "b@12=@5=x"),
        "C:\\a.jsonl:b@0= cat": Asked("C:\\a.jsonl:b", 0, " cat"),
        "@2=[1,2,3]": Asked("", 2, ids=(1, 2, 3)),
        "last:x@2=[1,2,x]": Asked("last:x", 2, "[1,2,x]"),
    }
    for text, wanted in cases.items():
        assert asked_of(text) == wanted
    for bad in ("", "last", "@1", "last@x", "last@", "last@1="):
        with pytest.raises(UsageError):
            asked_of(bad)


def test_the_given_text_stands_dim_before_the_rest_on_a_terminal(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = parent(capsys)
    with monkeypatch.context() as context:
        context.setattr("specview.commands.run.wants_colour", lambda stream: True)
        _, out, _ = typed(capsys, "run", "--branch", "last@5")
    assert out.startswith(f"\x1b[2m{before.records[0].text[:6]}\x1b[0m")
    _, out, _ = typed(capsys, "run", "--branch", "last~1@5")
    assert out.startswith(before.records[0].text[6:20])
