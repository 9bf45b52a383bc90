"""A hundred hostile files and more against every way into specview: none costs more than itself, nor much of anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.crafted_gguf import Crafted
from tests.models.hostile_files import CASES, model

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux tells it")

MOST_MB, MOST_S = 100.0, 2.0
"""Of one file, at one surface."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for each case, and a sound model beside them."""
    top = tmp_path_factory.mktemp("hostile")
    places = {}
    for number, (name, make) in enumerate(CASES.items()):
        folder = top / "files" / f"{number:03d}"
        folder.mkdir(parents=True)
        places[name] = os.fspath(make(folder))
    (top / "places.json").write_text(json.dumps(places))
    (top / "sound.gguf").write_bytes(Crafted().bytes())
    (top / "sound").mkdir()
    model(top / "sound")
    yield top
    shutil.rmtree(top)


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies under a folder: size and time of change by name."""
    found = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = os.lstat(os.path.join(here, name))
            found[os.path.join(here, name)] = status.st_size if name in files else 0, status.st_mtime_ns
    return found


def visit(surface: str, top: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Show all cases to a surface in a process of its own; what each cost."""
    places = {"HOME": "home", "SPECVIEW_CACHE": "cache", "SPECVIEW_DATA": "data", "SPECVIEW_CONFIG": "config",
              "HF_HUB_CACHE": "hub", "XDG_DATA_HOME": "share"}  # fmt: skip
    environment = {
        **os.environ, **{key: str(work / name) for key, name in places.items()}, "PYTHONPATH": str(ROOT),
        "SOUND": str(top / "sound.gguf"), "SOUND_FOLDER": str(top / "sound" / "model"), "HF_HUB_OFFLINE": "1",
        "QT_QPA_PLATFORM": "offscreen", "MALLOC_ARENA_MAX": "2",
    }  # fmt: skip
    (work / "here").mkdir()
    command = [sys.executable, "-m", "tests.models.hostile_visits", surface, str(top / "places.json")]
    with (work / "said").open("w") as said, (work / "errors").open("w") as errors:
        try:
            code: object = subprocess.run(
                command, cwd=work / "here", env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=errors,
                timeout=200, check=False
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = "no end"
    lines = [json.loads(line) for line in (work / "said").read_text().splitlines()]
    assert code == 0, f"{code} at {lines[-1:]}: {(work / 'errors').read_text()[-2000:]}"
    assert not list((work / "here").iterdir()), "something was written where the command ran"
    return {line["name"]: line for line in lines if isinstance(line, dict)}


@pytest.mark.parametrize("surface", ["search", "check", "run", "replay", "drop"])
def test_no_file_costs_much_or_is_followed_outside(surface: str, made: Path, tmp_path: Path) -> None:
    before = everything(made)
    costs = visit(surface, made, tmp_path)
    assert everything(made) == before, "a file or folder of theirs was changed, or one added"
    assert not Path("/tmp/gone").exists()
    assert costs.keys() == CASES.keys()
    dear = [f"{name}: {one['mb']:.0f} MB, {one['s']:.1f} s" for name, one in costs.items()
            if one["mb"] > MOST_MB or one["s"] > MOST_S]  # fmt: skip
    assert not dear, "\n".join(dear)
    faults = [f"{name}: {one['said'][:300]}" for name, one in costs.items()
              if "fault of specview" in one["said"] or "Traceback" in one["said"] or "\x1b" in one["said"]]  # fmt: skip
    assert not faults, "\n".join(faults)


def test_none_hides_another(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specview.gui.link import head_checks, library
    from specview.models import catalog

    sound = made / "files" / "zz.gguf"
    sound.write_bytes(Crafted().bytes())
    model(made / "files")
    try:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(catalog, "usual_places", lambda: [made / "files"])
        monkeypatch.setattr(head_checks, "heads_folder", lambda: tmp_path / "none")
        found = {one.ref for one in library.scan(library.Found(), True).models}
    finally:
        sound.unlink()
        shutil.rmtree(made / "files" / "model")
    assert {str(sound), str(made / "files" / "model")} <= found
