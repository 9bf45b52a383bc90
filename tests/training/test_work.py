"""Work folders of trainings in the cache: told of by doctor, removed by doctor --clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from specview import cli
from specview.commands import doctor
from specview.models.converted import converted_root
from specview.training import work
from tests.training.tiny import run, settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def cleaned(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    assert cli.main(["doctor", "--clean", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    return {key: sorted(Path(one["path"]).name for one in document[key]) for key in ("removed", "kept")}


@pytest.mark.usefixtures("quick")
def test_what_a_training_keeps_is_listed_and_removed(
    tiny_target: Path, story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(tiny_target, tmp_path / "out", "medusa", text=story)
    assert run(given)[0]
    (folder,) = work.work_folders()
    assert folder.kind == "medusa" and folder.path.parent == work.work_root() and folder.size_bytes > 10_000
    told = doctor._trainings()
    assert told.state == "note" and folder.path.name in told.text and "doctor --clean" in told.mend
    assert folder.path.stat().st_mode & 0o077 == 0, "the user's texts are in it"
    assert cleaned(capsys) == {"removed": [folder.path.name], "kept": []}
    assert not folder.path.exists() and (tmp_path / "out" / "model.safetensors").is_file()
    assert cleaned(capsys) == {"removed": [], "kept": []}
    assert run(given)[0], "it begins anew"


def test_what_is_at_work_or_of_others_stays(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = work.work_root()
    for name in ("busy", "done"):
        (root / name / "texts").mkdir(parents=True)
        (root / name / "job.json").write_text("not json")
    (root / "photos").mkdir()
    own = tmp_path / "own"
    own.mkdir()
    (own / "job.json").write_text("{}")
    (root / "link").symlink_to(own)
    for name in ("busy", "gone"):
        (converted_root() / f".partial-{name}-abc12").mkdir(parents=True)
    with FileLock(root / "busy" / ".lock"), FileLock(converted_root() / ".busy.lock"):
        assert cleaned(capsys) == {"removed": [".partial-gone-abc12", "done"], "kept": ["busy"]}
    assert sorted(path.name for path in root.iterdir()) == ["busy", "link", "photos"]
    assert (own / "job.json").is_file() and (converted_root() / ".partial-busy-abc12").is_dir()
    assert cli.main(["doctor", "--clean"]) == 0
    assert "removed" in capsys.readouterr().out
    assert cli.main(["doctor", "--clean"]) == 0
    assert capsys.readouterr().out == "There is nothing to remove.\n"
