"""`specview replay` as a user types it: the window on recorded runs, or their figures as text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specview import cli
from specview.library.library import RunLibrary
from tests.library.recorded import SETTINGS, keep, write_trace
from tests.test_runs_command import typed


@pytest.fixture
def library() -> RunLibrary:
    return RunLibrary()


def test_replay_prints_text_and_json(capsys: pytest.CaptureFixture[str], library: RunLibrary, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl")
    run_id = keep(library)
    code, out, _ = typed(capsys, "replay", str(path), "--text")
    assert code == 0 and "prompt-lookup" in out and "1 (baseline)" in out
    assert typed(capsys, "replay", run_id, "--text")[1].startswith("run ")
    code, out, _ = typed(capsys, "replay", "last", "--json", "-")
    assert code == 0 and json.loads(out)["id"] == run_id
    single = write_trace(tmp_path / "b.jsonl", settings=replace(SETTINGS, lanes=SETTINGS.lanes[1:2], baseline=False))
    assert "decode tok/s" in typed(capsys, "replay", str(single), "--text")[1]


@pytest.mark.parametrize(("content", "says"), [
    (b"", "is empty"), (b"\x00", "not the header"), (b'{"schema": "specview.trace/3"}\n', "specview.trace/3"),
])  # fmt: skip
@pytest.mark.parametrize("form", [(), ("--text",), ("--json", "-")])
def test_replay_of_what_is_no_trace_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, says: str, form: tuple[str, ...]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    code, out, err = typed(capsys, "replay", str(path), *form)
    assert code == 1 and out == "" and says in err and err.count("\n") == 1


def test_replay_without_a_display_names_the_text_form(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl")
    without = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")}
    done = subprocess.run([sys.executable, "-m", "specview", "replay", str(path)], env=without, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "there is no display" in done.stderr and f"specview replay {path} --text" in done.stderr


def test_replay_opens_the_window_on_the_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: RunLibrary) -> None:
    from specview.commands import window

    opened: list = []
    monkeypatch.setattr(window, "check_display", lambda: None)
    monkeypatch.setattr(window, "open_window", lambda traces, present=False: (opened.append(list(traces)), 0)[1])
    run_id, path = keep(library), write_trace(tmp_path / "a.jsonl")
    assert cli.main(["replay", "last", str(path)]) == 0
    assert opened == [[library.folder / f"{run_id}.jsonl", path]]


def test_replay_presents_the_traces_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: RunLibrary) -> None:
    from specview.commands import window

    opened: list = []
    monkeypatch.setattr(window, "check_display", lambda: None)
    monkeypatch.setattr(window, "open_window", lambda traces, present=False: (opened.append((list(traces), present)), 0)[1])
    paths = [write_trace(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    assert cli.main(["replay", "--present", *map(str, paths)]) == 0
    assert opened == [(paths, True)]
