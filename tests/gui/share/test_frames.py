"""Races painted for pictures: at every moment what the lanes had by then, at the end the figures of the end."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from PySide6.QtCore import QSize
from PySide6.QtWidgets import QApplication

from specview.files.reader import Trace, read_trace
from specview.gui.link.open_run import recorded_race
from specview.gui.parts import painted, theme
from specview.gui.share import drawing, frames
from specview.gui.share.drawing import Look, draw, draw_plots, pixels
from specview.gui.share.frames import Frames
from specview.library.share_moving import VIDEO_MEND
from specview.settings.run import LaneSettings
from tests.library.recorded import SETTINGS, write_trace


@pytest.fixture(autouse=True)
def own_theme(qapp: QApplication) -> Iterator[None]:
    yield
    theme.apply(qapp, "dark", 1.0)


@pytest.fixture
def trace(tmp_path) -> Trace:
    return read_trace(write_trace(tmp_path / "a.jsonl", rounds=30))


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """The words that are painted."""
    words: list[str] = []
    paint = painted.words_in
    monkeypatch.setattr(painted, "words_in", lambda painter, area, text, *rest: (words.append(text), paint(painter, area, text, *rest))[1])
    return words


def test_it_shows_the_moment_and_ends_with_the_figures_of_the_end(trace: Trace, said: list[str]) -> None:
    drawing.begin("dark")
    race = recorded_race(trace)
    made = Frames(race, QSize(640, 360), name="a story", speed=0.5)
    middle = pixels(made.at(made.length / 2))
    assert "a story" in said and any("half speed" in text for text in said)
    assert 0 < race.lanes[1].emitted < len(trace.records[1].token_ids)
    said.clear()
    end = pixels(made.at(made.length))
    faster = race.speedup(race.lanes[1])
    assert faster is not None and f"{faster.value:.1f}×" in said and "1×" in said
    assert any(text.startswith(f"{faster.tokens_per_s:.1f} ") for text in said) and any("faster than plain" in text for text in said)
    assert (end != middle).any() and (end == pixels(made.at(made.length))).all()
    made.at(made.length / 2)
    made.restore()
    assert [lane.emitted for lane in race.lanes] == [len(record.token_ids) for record in trace.records]


@pytest.mark.parametrize("size", [(320, 180), (960, 540), (720, 1280), (1920, 1080)])
@pytest.mark.parametrize("lanes", [1, 5])
def test_nothing_is_painted_beyond_the_picture(tmp_path, size: tuple[int, int], lanes: int, monkeypatch) -> None:
    from dataclasses import replace

    more = tuple(LaneSettings("prompt-lookup", k=3 + place) for place in range(4))
    path = write_trace(tmp_path / "a.jsonl", settings=replace(SETTINGS, lanes=(LaneSettings(), *more)[:lanes]))
    boxes = []
    paint = painted.words_in
    monkeypatch.setattr(painted, "words_in", lambda painter, area, *rest: (boxes.append(area), paint(painter, area, *rest))[1])
    drawing.begin("light")
    made = Frames(recorded_race(read_trace(path)), QSize(*size), title="A title that is much too long for a picture " * 4)
    image = made.at(made.length)
    assert (image.width(), image.height()) == size
    sheet = size[0] / size[1] * frames.SHEET
    assert boxes and all(box.left() >= 0 and box.left() <= sheet for box in boxes)


def test_the_smallest_words_are_a_fiftieth_of_the_height(trace: Trace, monkeypatch) -> None:
    sizes = []
    make = frames.font
    monkeypatch.setattr(frames, "font", lambda size, **more: (sizes.append(size), make(size, **more))[1])
    drawing.begin("dark")
    made = Frames(recorded_race(trace), QSize(1280, 720))
    made.at(0.2)
    assert min(size for size in sizes if size != 12) >= 0.02 * frames.SHEET  # 12 is the small "+2" of the legend


def test_a_gif_of_a_race_ends_with_the_painted_end(trace: Trace) -> None:
    told = []
    made = Image.open(BytesIO(draw("gif", trace, "story", Look(size=(480, 270)), ".gif", lambda *news: told.append(news))))
    made.seek(made.n_frames - 1)
    whole = Frames(recorded_race(trace), QSize(480, 270), name="story")
    wanted = pixels(whole.at(whole.length)).astype(int)
    assert np.abs(np.asarray(made.convert("RGB")).astype(int) - wanted).mean() < 3
    assert made.size == (480, 270) and told[-1][1] > 0.9


def test_both_themes_and_a_title(trace: Trace) -> None:
    dark, light = (np.asarray(Image.open(BytesIO(draw("png", trace, "x", Look(name, (480, 270), title="Mine"), ".png", print)))) for name in ("dark", "light"))
    assert dark[2, 2].tolist() == [0x14, 0x16, 0x1B] and light[2, 2].tolist() == [0xF4, 0xF5, 0xF8]


def test_plots_are_drawings_of_every_lane(trace: Trace) -> None:
    trace.records[1].name = "<script>x</script>"
    drawn = draw_plots(trace, Look("light"))
    assert {"acceptance-rate.svg", "tokens-per-target-pass.svg", "speed.svg", ""} < set(drawn) and len(drawn) == 6
    for data in drawn.values():
        names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(data).iter()}
        assert {"svg", "path", "text"} <= names <= {"svg", "title", "desc", "defs", "g", "path", "text", "polyline", "polygon", "rect", "circle", "ellipse"}
    words = [element.text for element in ElementTree.fromstring(drawn["speed.svg"]).iter() if element.tag.endswith("text")]
    assert any("<script>x</script>" in (text or "") for text in words) and any("lookup" in (text or "") for text in words)


def test_a_lossy_rule_is_called_so_beside_its_figures(trace: Trace, said: list[str]) -> None:
    trace.records[1].settings["rule"] = "typical"
    draw("png", trace, "x", Look(size=(320, 180)), ".png", print)
    assert "lossy · " in said


def test_a_race_without_rounds_is_painted(trace: Trace) -> None:
    for record in trace.records:
        record.rounds.clear()
    assert draw("png", trace, "x", Look(size=(320, 180)), ".png", print).startswith(b"\x89PNG")
    assert draw("gif", trace, "x", Look(size=(320, 180)), ".gif", print).startswith(b"GIF")
    assert "pip install" in VIDEO_MEND
