"""`specview train` as a program: what it prints, how it is stopped, its exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from specview import cli
from specview.commands import train
from specview.commands.running import StopRequest
from tests.training.tiny import make_target, quicken


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    quicken(monkeypatch)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A run on a user's text that takes a second or two."""
    target = make_target(tmp_path / "tiny")
    (tmp_path / "text.txt").write_text("a hen and an egg and a hen. " * 60)
    return [
        "train", "eagle3", "--target", str(target), "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"),
        "--steps", "6", "--threads", "1", "--answer-tokens", "12",
    ]  # fmt: skip


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_progress_for_a_window_is_json_lines(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main([*arguments, "--progress", "-", "--json", str(tmp_path / "figures.json")]) == 0
    out, err = capsys.readouterr()
    events = lines(out)
    assert err == "" and events[-1] == {"event": "done", "folder": str(tmp_path / "out")}
    assert {event["event"] for event in events} == {"stage", "step", "heldout", "done"}
    assert [event["stage"] for event in events if event["event"] == "stage"][-1] == "export"
    step = next(event for event in events if event["event"] == "step")
    assert set(step) == {"event", "step", "loss", "agreement", "learning_rate", "seconds", "fraction"}
    held = [event for event in events if event["event"] == "heldout"]
    assert held[-1]["step"] == 6 and set(held[-1]["alpha"]) == {"1", "2", "3", "4"}
    document = json.loads((tmp_path / "figures.json").read_text())
    assert document["steps"] == 6 and document["kind"] == "eagle3"
    assert document["heldout"]["held-out"]["2"]["all"]["alpha"] == held[-1]["alpha"]["2"]


def test_a_run_that_is_stopped_says_where_it_goes_on(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[StopRequest] = []
    monkeypatch.setattr(train, "_stop_on_line", requests.append)
    real = train._print_line

    def print_line(event: Any) -> None:
        real(event)
        requests[0].asked = requests[0].asked or event.get("stage") == "training"

    monkeypatch.setattr(train, "_print_line", print_line)
    assert cli.main([*arguments, "--progress", "-"]) == 130
    events = lines(capsys.readouterr().out)
    assert events[-1]["event"] == "stopped" and Path(events[-1]["work"]).is_dir()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "asked"), [("go on\n stop \n", True), ("do not stop\n", False), ("", False)]
)
def test_a_line_on_standard_input_is_a_request_to_stop(
    given: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    request = StopRequest()
    train._stop_on_line(request).join()
    assert request.asked is asked


def test_errors_are_events_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(
            [
                "train",
                "eagle3",
                "--out",
                str(tmp_path / "o"),
                "--target",
                str(tmp_path / "no"),
                "--progress",
                "-",
            ]
        )
        == 1
    )
    out, err = capsys.readouterr()
    assert lines(out)[-1]["event"] == "error" and "there is no file or folder" in lines(out)[-1]["text"]
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing", "--out", "x"], "no drafter 'nothing'"),
        (["eagle3"], "--out"),
        (["eagle3", "--out", ""], "--out is empty"),
        (["eagle3", "--out", "x", "--layers", "a,b"], "layers is 'a,b'"),
        (["eagle3", "--out", "x", "--layers", "1,2"], "layers are 1, 2, and an EAGLE head reads three"),
        (["eagle3", "--out", "x", "--answer-tokens", "2000"], "Use 512 or less"),
        (["eagle3", "--out", "x", "--device", "tpu"], "There is no device 'tpu'"),
        (["eagle3", "--out", "x", "--minutes", "nan"], "not a number"),
        (["eagle3", "--out", "x", "--progress", "-", "--json", "-"], "both want standard output"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_people_are_told_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    tell = train.Teller()
    tell(
        {
            "event": "stage",
            "stage": "text",
            "text": "The target writes",
            "fraction": 0.1,
            "left_seconds": 120.0,
        }
    )
    tell({"event": "heldout", "step": 3, "alpha": {"1": 0.5, "2": None}, "tokens_per_target_pass": {}})
    tell({"event": "stopped", "work": "/w"})
    told = capsys.readouterr().err.splitlines()
    assert told[0] == " 10%, 2 min left  The target writes"
    assert told[1].endswith("held-out alpha at step 3: k=1 0.500, k=2 none")
    assert "goes on from /w" in told[2]


def test_every_kind_is_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.make_parser().parse_args(["--help"])
    text = capsys.readouterr().out
    assert all(kind in text for kind in train.KINDS) and "specview train [options] KIND" in text
