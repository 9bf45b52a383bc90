"""`specview export` as a user types it: every form, no display, one line where it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specview import child, cli
from specview.files.reader import read_trace
from specview.library.exports import FORMS
from specview.library.library import RunLibrary
from specview.library.share_moving import Pace
from tests import browser
from tests.library.recorded import keep, write_trace
from tests.typed import command_line

typed = command_line("export")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_trace(tmp_path / "story.jsonl"))


def test_a_page_markdown_and_data_of_a_kept_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_id = keep(RunLibrary())
    RunLibrary().describe(run_id, name="my race")
    names = {form: str(tmp_path / f"a{FORMS[form].endings[0]}") for form in ("html", "markdown", "json", "csv")}
    words = [word for form, name in names.items() for word in (f"--{form}", name)]
    assert typed(capsys, "last", *words) == (0, "", "")
    assert '"title": "my race"' in Path(names["html"]).read_text(encoding="utf-8")
    assert Path(names["markdown"]).read_text(encoding="utf-8").startswith("# my race\n\n**")
    assert json.loads(Path(names["json"]).read_text(encoding="utf-8"))["id"] == run_id
    assert typed(capsys, "last", "--html", names["html"], "--title", "<b>another</b>") == (0, "", "")
    assert '"title": "\\u003cb>another\\u003c/b>"' in Path(names["html"]).read_text(encoding="utf-8")
    code, out, err = typed(capsys, "last", "--markdown", "-")
    assert (code, err) == (0, "") and out == Path(names["markdown"]).read_text(encoding="utf-8")
    assert cli.main(["runs", "export", "last", "--markdown", "-"]) == 0 and capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no form is given. Give one of --html"),
        (("--video", "a.avi"), "--video is 'a.avi'. Give a file that ends in .webm or .mp4."),
        (("--gif", "-"), "--gif is '-'. Give a file that ends in .gif."),
        (("--png", "a.png", "--size", "9x9"), "'9x9' is no size"),
        (("--gif", "a.gif", "--speed", "0"), "'0' is no speed"),
        (("--html", "a.html", "--svg", "a.html/b"), "cannot write"),
        (("--html", "a.html", "--markdown", "a.html"), "name the same file"),
        (("another", "--html", "a.html"), "--html shows one run."),
        (("--html", "no/such/folder/a.html"), "cannot write the html export"),
        (("--png", "no/such/folder/a.png"), "cannot write the picture"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed(capsys, trace, *words)
    assert code in (1, 2) and out == "" and err.startswith("specview: ") and err.count("\n") == 1 and said in err
    assert not list(tmp_path.glob("a.[gpm]*"))


def test_without_a_display_in_a_process_of_its_own(tmp_path: Path, trace: str) -> None:
    pytest.importorskip("cv2")
    env = {key: value for key, value in child.environment().items() if key not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")}
    files = {"png": "a.png", "gif": "a.gif", "video": "a.webm"}
    words = [word for form, name in files.items() for word in (f"--{form}", str(tmp_path / name))]
    command = child.command("specview", "export", trace, *words, "--svg", str(tmp_path / "plots"), "--size", "320x180",
                            "--speed", "4", "--progress", "-")  # fmt: skip
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told[-1] == {"text": "Done", "fraction": 1.0} and all(0 <= one["fraction"] <= 1 for one in told)
    heads = {"a.png": b"\x89PNG", "a.gif": b"GIF89a", "a.webm": b"\x1aE\xdf\xa3"}
    assert {name: (tmp_path / name).read_bytes()[: len(head)] for name, head in heads.items()} == heads
    assert len(list((tmp_path / "plots").glob("*.svg"))) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_stopped_it_leaves_no_file(tmp_path: Path, trace: str) -> None:
    command = child.command("specview", "export", trace, "--gif", str(tmp_path / "a.gif"), "--speed", "0.02", "--progress", "-")
    process = subprocess.Popen(command, env=child.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "Painting" in process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "specview: stopped.\n"
    assert sorted(os.listdir(tmp_path)) == ["story.jsonl"]


def test_a_browser_plays_the_video_and_the_gif_to_their_ends(tmp_path: Path, trace: str) -> None:
    pytest.importorskip("cv2")
    if browser.CHROMIUM is None:
        pytest.skip(browser.MISSING)
    files = str(tmp_path / "a.webm"), str(tmp_path / "a.gif")
    command = child.command("specview", "export", trace, "--video", files[0], "--gif", files[1], "--size", "320x180", "--speed", "2")
    subprocess.run(command, env=child.environment(), check=True, timeout=120)
    (tmp_path / "player.html").write_text("<video src=a.webm muted></video><img src=a.gif>", encoding="utf-8")
    with browser.browser() as chromium:
        page = chromium.page()
        page.open(tmp_path / "player.html")
        page.evaluate("(window.video = document.querySelector('video')).play()")
        page.wait("video.ended")
        assert page.evaluate("[video.videoWidth, video.videoHeight]") == [320, 180]
        assert page.evaluate("document.images[0].complete && document.images[0].naturalWidth") == 320
        last = max(record.rounds[-1].t for record in read_trace(trace).records)
        assert page.evaluate("video.duration") == pytest.approx(last / 2 + Pace(1.0).hold_s, abs=0.1)
