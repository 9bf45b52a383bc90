"""`specview export`: runs to be shown (a page that plays it, Markdown, plots, picture, animation, video), or as data."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from specview.commands.arguments import Parser
from specview.commands.outputs import Outputs
from specview.commands.run_files import read_all, write_runs
from specview.commands.terminal import ProgressLine
from specview.errors import SpecviewError, UsageError
from specview.files.atomic import OutputFile, cannot_write
from specview.library.exports import FORMS, WRITTEN
from specview.library.library import RunLibrary

_DESCRIPTION = """\
Write runs to files; no model is loaded and no display is needed. A RUN is an id or the beginning of one, a name, `last`,
`last~1`, ... (specview runs list), or a trace file. Several runs go into one file of Markdown or data."""

_EXAMPLES = """\
examples:
  specview export last --html race.html
  specview export last --gif race.gif --speed 0.5 --theme light
  specview export last --video race.mp4 --size 1920x1080 --title "Same model, same text"
  specview export last --svg plots/
  specview export last last~1 --csv rounds.csv"""
DRAWN = tuple(name for name in FORMS if name not in WRITTEN)
LEAST_SIDE, MOST_SIDE = 160, 4096
LEAST_SPEED, MOST_SPEED = 1 / 64, 64.0
Progress = Callable[[str, float], None]


def make_parser(prog: str = "specview export") -> Parser:
    """The command's options."""
    parser = Parser(prog, _DESCRIPTION, _EXAMPLES)
    parser.usage = f"{prog} RUN [RUN ...] --FORM FILE [options]"
    parser.add_argument("runs", nargs="+", metavar="RUN")
    for name, form in FORMS.items():
        endings = f" ({' or '.join(form.endings)})" if len(form.endings) > 1 else ""
        more = "; - is standard output" if form.text else "; a folder takes a file of each" if name == "svg" else ""
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write {form.what}{endings}{more}")
    parser.add_argument("--title", metavar="TEXT", default="", help="what the run is called there (default: its name)")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark", help="of pictures and plots (default dark)")
    parser.add_argument("--size", type=_size, metavar="WxH",
                        help="pixels of a picture (default 1280x720, of a GIF 960x540)")  # fmt: skip
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="X",
                        help="how fast GIF and video play: 1 (default) is true speed, 0.25 a quarter of it")  # fmt: skip
    parser.add_argument("--progress", metavar="-", choices=("-",), help="- prints how far it is as JSON lines on standard output")
    return parser


def main(argv: Sequence[str], prog: str = "specview export") -> int:
    """Run the command; return its exit code."""
    arguments = make_parser(prog).parse_args(argv)
    asked = [name for name in FORMS if getattr(arguments, name) is not None]
    if not asked:
        raise UsageError("no form is given.", f"Give one of {', '.join(f'--{name}' for name in FORMS)} with a file's name.")
    alone = [name for name in asked if not FORMS[name].several]
    if alone and len(arguments.runs) > 1:
        several = ", ".join(f"--{name}" for name, form in FORMS.items() if form.several)
        raise UsageError(f"--{alone[0]} shows one run.", f"Name one, or give one of {several}.")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a window that stops its export: no half file is left
    library = RunLibrary()
    drawn = [name for name in asked if name in DRAWN]
    if set(asked) - set(drawn):
        write_runs(arguments, arguments.runs, library)
    if drawn:
        _draw(arguments, drawn, library)
    return 0


def _draw(arguments: argparse.Namespace, asked: Sequence[str], library: RunLibrary) -> None:
    """Draw a run in these forms; the files are known to be writable before anything is drawn."""
    for name in asked:
        _check_ending(name, getattr(arguments, name))
    with ExitStack() as stack:
        tell = stack.enter_context(_Teller(arguments.progress))
        folder = Path(arguments.svg) if "svg" in asked and not arguments.svg.lower().endswith(".svg") else None
        if folder is not None:
            _make_folder(folder)
        files = [name for name in asked if name != "svg" or folder is None]
        outputs = stack.enter_context(Outputs(arguments, files, (), {name: FORMS[name].menu[:1].lower() + FORMS[name].menu[1:] for name in files}))
        drawing = _drawing()
        (run,) = read_all(arguments.runs, library, asked)
        look = drawing.Look(arguments.theme, arguments.size, arguments.speed, arguments.title)
        for name in asked:
            if name == "svg":
                _write_plots(drawing.draw_plots(run.trace, look), folder, outputs)
            else:
                outputs.write(name, drawing.draw(name, run.trace, run.name, look, Path(getattr(arguments, name)).suffix.lower(), tell))
        tell("Done", 1.0)


def _drawing() -> Any:
    """What draws, with Qt; raises SpecviewError, one line, where Qt cannot be loaded here."""
    try:
        from specview.gui.share import drawing
    except ImportError as error:
        from specview.commands.window import mend_missing

        raise SpecviewError(f"pictures need Qt, which cannot be loaded ({error}).", f"{mend_missing()} --html needs none.") from None
    return drawing


def _write_plots(drawn: Mapping[str, bytes], folder: Path | None, outputs: Outputs) -> None:
    if folder is None:
        outputs.write("svg", drawn[""])
        return
    for name, data in drawn.items():
        if name:
            with OutputFile(folder / name, "plot") as file:
                file.write(data)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, "folder of plots", error) from None


def _check_ending(name: str, file: str) -> None:
    endings = FORMS[name].endings
    if name != "svg" and Path(file).suffix.lower() not in endings:
        raise UsageError(f"--{name} is {file!r}.", f"Give a file that ends in {' or '.join(endings)}.")


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})[xX×](\d{1,5})", text.strip())
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(LEAST_SIDE <= side <= MOST_SIDE for side in size):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 1280x720, each side {LEAST_SIDE} to {MOST_SIDE}")
    return size


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not LEAST_SPEED <= speed <= MOST_SPEED:
        raise argparse.ArgumentTypeError(f"{text!r} is no speed; write a number from 1/64 (0.015625) to 64")
    return speed


class _Teller:
    """Tells how far the drawing is: to a person on standard error, and as JSON lines to a program that asked for them."""

    def __init__(self, file: str | None) -> None:
        self._line = ProgressLine(sys.stderr)
        self._out = sys.stdout if file == "-" else None

    def __enter__(self) -> Progress:
        return self._tell

    def _tell(self, text: str, fraction: float) -> None:
        self._line.show(text, fraction)
        if self._out is not None:
            self._out.write(json.dumps({"text": text, "fraction": round(fraction, 4)}) + "\n")
            self._out.flush()

    def __exit__(self, *_: object) -> None:
        self._line.clear()
