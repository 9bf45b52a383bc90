"""Animations: read back, they are what was painted, as long as it was, and end with the end."""

from __future__ import annotations

import importlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from specview.errors import SpecviewError, UsageError
from specview.library import share_moving
from specview.library.share_moving import Pace, gif, png, video

LENGTH = 1.0


def paint(seconds: float) -> np.ndarray:
    """A bar that grows, of two colours; it is full at the end."""
    picture = np.full((90, 160, 3), (20, 22, 27), np.uint8)
    picture[30:60, : round(160 * seconds / LENGTH)] = (47, 191, 143)
    picture[70:80, :40] = (240, 163, 60)
    return picture


def quiet(text: str, fraction: float) -> None:
    assert 0 <= fraction <= 1


def test_a_gif_takes_as_long_as_the_race_and_stands_at_its_end() -> None:
    pace = Pace(LENGTH, speed=0.5, fps=10, hold_s=1.5)
    made = Image.open(BytesIO(gif(paint, pace, quiet)))
    shown, durations = [], []
    for place in range(made.n_frames):
        made.seek(place)
        durations.append(made.info["duration"])
        shown.append(np.asarray(made.convert("RGB")).astype(int))
    assert sum(durations[:-1]) == pytest.approx(1000 * LENGTH / 0.5, abs=1) and durations[-1] == 1500 and made.info["loop"] == 0
    assert np.abs(shown[-1] - paint(LENGTH)).max() <= 2 and np.abs(shown[0] - paint(0.0)).max() <= 2
    assert np.abs(shown[10] - paint(0.5)).max() <= 2


@pytest.mark.parametrize("ending", [".webm", ".mp4"])
def test_a_video_is_read_back_whole(tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]) -> None:
    cv2 = pytest.importorskip("cv2")
    pace = Pace(LENGTH, fps=20, hold_s=0.5)
    path = tmp_path / f"a{ending}"
    path.write_bytes(video(paint, pace, ending, quiet))
    assert capfd.readouterr() == ("", "")
    found, frames = cv2.VideoCapture(str(path)), []
    assert found.get(cv2.CAP_PROP_FPS) == pytest.approx(20)
    while (read := found.read())[0]:
        frames.append(read[1][:, :, ::-1].astype(int))
    assert len(frames) == len(pace.moments()) == 30
    assert np.abs(frames[-1] - paint(LENGTH)).mean() < 6 and np.abs(frames[0] - paint(0.0)).mean() < 6
    assert np.abs(frames[10] - paint(LENGTH)).mean() > 15


def test_what_is_too_long_or_too_large_is_said_before_anything_is_painted() -> None:
    def never(seconds: float) -> Any:
        raise AssertionError

    with pytest.raises(UsageError, match=r"takes 500 s at this speed.* a speed of 4 or more"):
        gif(never, Pace(500.0), quiet)
    with pytest.raises(UsageError, match="too large"):
        gif(lambda seconds: np.zeros((2000, 4000, 3), np.uint8), Pace(100.0), quiet)


def test_without_opencv_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(SpecviewError, match=r"OpenCV, which is not installed here\. Install it: pip install 'specview\[video\]'"):
        video(paint, Pace(LENGTH), ".webm", quiet)


@pytest.mark.parametrize("make", [gif, lambda paint, pace, tell: video(paint, pace, ".webm", tell)])
def test_stopped_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    pytest.importorskip("cv2")
    monkeypatch.setattr(share_moving.tempfile, "tempdir", str(tmp_path))

    def stop(text: str, fraction: float) -> None:
        if fraction > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(paint, Pace(LENGTH), stop)
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_is_cut_short_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    whole = share_moving._encode

    def cut(cv2: Any, path: Path, *rest: Any) -> None:
        whole(cv2, path, *rest)
        path.write_bytes(path.read_bytes()[:300])

    monkeypatch.setattr(share_moving, "_encode", cut)
    with pytest.raises(SpecviewError, match="could not be written whole"):
        video(paint, Pace(LENGTH), ".mp4", quiet)


def test_a_still_is_exact() -> None:
    assert (np.asarray(Image.open(BytesIO(png(paint(0.3))))) == paint(0.3)).all()
