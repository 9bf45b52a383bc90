"""Pictures in a row as an animated GIF (Pillow) or as a video (OpenCV, which brings its own encoders). No Qt."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from specview.errors import SpecviewError, UsageError

Pixels = NDArray[Any]
"""A picture: RGB bytes [height, width, 3]."""
Paint = Callable[[float], Pixels]
"""The picture at a moment of the race, seconds."""
Tell = Callable[[str, float], None]
"""Told what is done, and the fraction of it that is."""

VIDEO_MEND = "Install it: pip install 'specview[video]', or pip install opencv-python-headless. A GIF needs nothing."
CODECS = {".webm": "VP80", ".mp4": "mp4v"}
"""By a file's ending: VP8 for browsers, MPEG-4 part 2 for slides and players. VP9 takes six times as long as VP8."""
MOST_SECONDS = 120.0
MOST_PIXELS = 600_000_000
"""Of a GIF's frames together: they are held in memory, a byte each."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When what is shown: the race's length in seconds, how fast it is played, frames a second, and how long its end stands."""

    length: float
    speed: float = 1.0
    fps: float = 25.0
    hold_s: float = 2.5

    def moments(self) -> list[float]:
        """The race's time in every frame; the last ones are its end. Raises UsageError where it takes too long."""
        played = self.length / self.speed
        if played > MOST_SECONDS:
            raise UsageError(
                f"the race takes {played:.0f} s at this speed, and up to {MOST_SECONDS:.0f} s are shown.",
                f"Play it faster: a speed of {self.length / MOST_SECONDS:.1g} or more.",
            )
        count = max(1, round(played * self.fps))
        return [self.length * place / count for place in range(count)] + [self.length] * max(1, round(self.hold_s * self.fps))


def gif(paint: Paint, pace: Pace, tell: Tell) -> bytes:
    """The race as an animated GIF that goes round; one palette for all of it, taken from its middle and its end."""
    from PIL import Image

    moments = pace.moments()
    changing = moments[: moments.index(pace.length) + 1]
    first = paint(0.0)
    if len(changing) * first.shape[0] * first.shape[1] > MOST_PIXELS:
        raise UsageError("a GIF of this size and length is too large.", "Choose a smaller size, a higher speed, or a video.")
    sample = Image.new("RGB", (first.shape[1], 2 * first.shape[0]))
    for place, moment in enumerate((pace.length / 2, pace.length)):
        sample.paste(Image.fromarray(paint(moment)), (0, place * first.shape[0]))
    palette = sample.quantize(255, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)

    def frames() -> Iterator[Any]:
        for place, moment in enumerate(changing):
            tell("Painting", place / len(changing))
            yield Image.fromarray(paint(moment)).quantize(palette=palette, dither=Image.Dither.NONE)

    durations = [round(1000 / pace.fps)] * len(changing)
    durations[-1] = round(1000 * pace.hold_s)
    out, painted = BytesIO(), frames()
    head = next(painted)
    head.save(out, "GIF", save_all=True, append_images=painted, duration=durations, loop=0, disposal=1, optimize=True)
    return out.getvalue()


def png(pixels: Pixels) -> bytes:
    """One picture."""
    from PIL import Image

    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return out.getvalue()


def video(paint: Paint, pace: Pace, ending: str, tell: Tell) -> bytes:
    """The race as a video; `ending` says which: .webm or .mp4. Raises SpecviewError, one line, without OpenCV."""
    cv2 = load_opencv()
    moments = pace.moments()
    with tempfile.TemporaryDirectory(prefix="specview-video-") as folder:
        path = Path(folder, f"race{ending}")
        _encode(cv2, path, paint, pace.fps, moments, tell)
        found = cv2.VideoCapture(str(path))
        kept = round(found.get(cv2.CAP_PROP_FRAME_COUNT)) if found.isOpened() else 0
        found.release()
        if abs(kept - len(moments)) > 1:  # OpenCV says nothing of a disk that is full
            raise SpecviewError("the video could not be written whole.", "Free some space in the folder for temporary files.")
        return path.read_bytes()


def load_opencv() -> Any:
    """Import OpenCV; raise SpecviewError, one line, where it is not installed."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    try:
        return importlib.import_module("cv2")
    except ImportError:
        raise SpecviewError("a video needs OpenCV, which is not installed here.", VIDEO_MEND) from None


def _encode(cv2: Any, path: Path, paint: Paint, fps: float, moments: Sequence[float], tell: Tell) -> None:
    frames: Iterable[Pixels] = _painted(paint, moments, tell)
    first = next(iter(frames))
    high, wide = (side - side % 2 for side in first.shape[:2])
    with _quiet():
        codec = cv2.VideoWriter_fourcc(*CODECS[path.suffix])
        writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, codec, fps, (wide, high))
        try:
            if not writer.isOpened():
                raise SpecviewError("this OpenCV cannot write videos.", VIDEO_MEND)
            for pixels in chain([first], frames):
                writer.write(cv2.cvtColor(pixels[:high, :wide], cv2.COLOR_RGB2BGR))
        finally:
            writer.release()


def _painted(paint: Paint, moments: Sequence[float], tell: Tell) -> Iterator[Pixels]:
    """The picture of every moment; of equal moments it is painted once."""
    before, pixels = -1.0, None
    for place, moment in enumerate(moments):
        tell("Painting", place / len(moments))
        if pixels is None or moment != before:
            before, pixels = moment, paint(moment)
        yield pixels


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what FFmpeg itself prints off the terminal: it calls a tag of its own container unknown."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
