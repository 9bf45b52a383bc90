"""Recorded races drawn without a window: a picture, an animation, a video, plots. For `specview export`.

All of it happens on the thread that calls it, in a process whose theme is then the picture's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QSize
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication

from specview.files.reader import Trace
from specview.gui.link.open_run import recorded_race
from specview.gui.parts import theme
from specview.gui.share.frames import SCALE, Frames
from specview.library.share_moving import Pace, Pixels, Tell, gif, png, video

SIZES = {"png": (1280, 720), "gif": (960, 540), "video": (1280, 720)}
"""Pixels of each form, where nothing else is asked for."""
GIF_FPS, VIDEO_FPS = 12.5, 25.0


@dataclass(frozen=True, slots=True)
class Look:
    """How a picture is to look: theme (dark or light), pixels across and down (None: the form's own), speed, title."""

    theme: str = "dark"
    size: tuple[int, int] | None = None
    speed: float = 1.0
    title: str = ""


def draw(form: str, trace: Trace, name: str, look: Look, ending: str, tell: Tell) -> bytes:
    """The file of a form; name is what the run is called where the look has no title. Raises SpecviewError."""
    begin(look.theme)
    race = recorded_race(trace)
    wide, high = look.size or SIZES[form]
    frames = Frames(race, QSize(wide, high), title=look.title, name=name, speed=look.speed)

    def paint(seconds: float) -> Pixels:
        return pixels(frames.at(seconds))

    if form == "png":
        return png(paint(frames.length))
    if form == "gif":
        return gif(paint, Pace(frames.length, look.speed, GIF_FPS), tell)
    return video(paint, Pace(frames.length, look.speed, VIDEO_FPS), ending, tell)


def draw_plots(trace: Trace, look: Look) -> Mapping[str, bytes]:
    """The plots as SVG by their files' names; all of them together under ''."""
    from specview.gui.share.plots import plots_svg

    begin(look.theme, 1.0)
    return plots_svg(recorded_race(trace))


def begin(name: str, scale: float = SCALE) -> QApplication:
    """Have an application without a screen, dressed in a theme."""
    if sys.platform.startswith("linux") and QApplication.instance() is None:
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
    found = QApplication.instance()
    app = found if isinstance(found, QApplication) else QApplication(["specview"])
    app.setStyle("Fusion")
    theme.apply(app, name, scale)
    return app


def pixels(image: QImage) -> Pixels:
    """A picture's bytes, RGB."""
    high, wide, line = image.height(), image.width(), image.bytesPerLine()
    return np.frombuffer(image.constBits(), np.uint8).reshape(high, line)[:, : 3 * wide].reshape(high, wide, 3).copy()
