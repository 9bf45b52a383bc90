"""Where a trained drafter goes: whole or not at all, and never over or around what it was trained from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from specview.errors import SpecviewError
from specview.training import saving, state
from specview.training.saving import check_apart
from tests.training.tiny import make_target, refusal, run, settings

pytestmark = pytest.mark.usefixtures("quick")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target whose folder has only what a trained draft's has too."""
    folder = make_target(tmp_path / "models" / "tgt")
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("kind", ["draft", "medusa", "eagle3"])
def test_the_target_is_never_the_result(target: Path, story: Path, tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    before = content(target)
    link = tmp_path / "link"
    link.symlink_to(target)
    monkeypatch.chdir(target)
    for out in (target, link, Path(), target / "head", link / "new" / "head", target.parent, target / ".." / "tgt"):
        refusal(settings(target, out, kind, text=story))
    assert content(target) == before and [path.name for path in target.parent.iterdir()] == ["tgt"]


def test_a_target_that_was_trained_here_is_no_result_either(target: Path, story: Path, tmp_path: Path) -> None:
    """It has the mark of what may be replaced."""
    own = tmp_path / "own"
    assert run(settings(target, own, "draft", text=story))[0]
    before = content(own)
    assert "is the target" in refusal(settings(own, own, "draft", text=story))
    assert "is the drafter to start from" in refusal(settings(target, own, "draft", text=story, start=own))
    assert content(own) == before


def test_a_model_that_others_trained_is_not_replaced(target: Path, story: Path, tmp_path: Path) -> None:
    other = make_target(tmp_path / "other", seed=1)
    (other / "generation_config.json").unlink(missing_ok=True)
    before = content(other)
    assert "without the mark of one trained here" in refusal(settings(target, other, "draft", text=story))
    assert content(other) == before


def test_what_a_run_reads_is_neither_inside_nor_around_its_result(tmp_path: Path) -> None:
    folder, file = tmp_path / "a" / "model", tmp_path / "a" / "text.txt"
    folder.mkdir(parents=True)
    file.write_text("x")
    check_apart(tmp_path / "a" / "head", {"target": folder, "text": file, "prompts": None})
    check_apart(tmp_path / "a" / "model2", {"target": folder})
    for out, what in ((folder, "is the target"), (folder / "x" / "y", "lies inside"), (tmp_path / "a", "lies around")):
        with pytest.raises(SpecviewError, match=what):
            check_apart(out, {"target": folder})
    with pytest.raises(SpecviewError, match="lies around the text"):
        check_apart(tmp_path / "a", {"text": file})
    for work in (tmp_path / "out", tmp_path / "out" / "work", tmp_path):  # none is there yet
        with pytest.raises(SpecviewError, match="work folder"):
            check_apart(tmp_path / "out", {"work folder": work})


def test_a_folder_of_other_things_is_no_work_folder(target: Path, story: Path, tmp_path: Path) -> None:
    """Data and state have names there that a model may have too."""
    own = tmp_path / "quants"
    own.mkdir()
    (own / "Q8_0.gguf").write_text("hours of work")
    for work in (own, target):
        before = content(work)
        assert "is no work folder" in refusal(settings(target, tmp_path / "out", "draft", text=story, work=work))
        assert content(work) == before


def test_the_earlier_result_stays_until_the_new_one_is_whole(
    target: Path, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "real"
    link = tmp_path / "link"
    assert run(settings(target, out, text=story))[0]
    link.symlink_to(out)
    before = content(out)

    def broken(*arguments: Any) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(state, "render", broken)
        assert "disk is full" in refusal(settings(target, link, text=story, seed=1))
    real = os.rename

    def rename(source: Any, to: Any) -> None:
        if Path(to) == out and "part" in str(source):
            raise PermissionError(13, "Permission denied")
        real(source, to)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", rename)
        assert "no permission" in refusal(settings(target, link, text=story, seed=1))
    assert content(out) == before and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    assert run(settings(target, link, text=story, seed=1))[0]
    assert content(out) != before and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_came_into_the_result_meanwhile_is_not_lost(
    target: Path, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    real = saving.save_drafter

    def meanwhile(*arguments: Any) -> None:
        real(*arguments)
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")

    monkeypatch.setattr(saving, "save_drafter", meanwhile)
    assert "thesis.tex" in refusal(settings(target, out, text=story))
    assert content(out) == {"thesis.tex": b"years of work"}


def test_a_link_out_of_the_target_is_not_followed(target: Path, story: Path, tmp_path: Path) -> None:
    secret = tmp_path / ".ssh" / "id_rsa"
    secret.parent.mkdir()
    secret.write_text("a private key")
    for name in ("chat_template.jinja", "merges.txt", "added_tokens.json"):
        (target / name).unlink(missing_ok=True)
        (target / name).symlink_to(secret)
        line = refusal(settings(target, tmp_path / "out", "draft", text=story))
        assert name in line and "leads out of the model" in line
        (target / name).unlink()
    assert not (tmp_path / "out").exists()


def test_a_snapshot_of_the_hubs_cache_is_made_of_links(target: Path, story: Path, tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--o--n"
    snapshot, blobs = repo / "snapshots" / "abc", repo / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(target.iterdir())):
        shutil.copyfile(path, blobs / f"{number:040x}")
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / f"{number:040x}")
    before = content(blobs)
    assert run(settings(snapshot, tmp_path / "out", "draft", text=story))[0]
    made = tmp_path / "out" / "tokenizer.json"
    assert made.is_file() and not made.is_symlink()
    for out in (snapshot, blobs, repo):
        refusal(settings(snapshot, out, "draft", text=story))
    assert content(blobs) == before
