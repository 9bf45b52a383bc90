"""`specview train`: train a drafter for a target, headless.

With `--progress -` standard output has one JSON object a line, for a window or a script:

    {"event": "stage", "stage": NAME, "text": WORDS, "fraction": F}
    {"event": "step", "step": N, "loss": L, "agreement": A, "learning_rate": R, "seconds": S, "fraction": F}
    {"event": "heldout", "step": N, "alpha": {"1": A, ...}, "tokens_per_target_pass": {"1": T, ...}}
    {"event": "done", "folder": PATH}
    {"event": "stopped", "work": PATH}
    {"event": "error", "text": LINE}

`fraction` is the whole run's, 0 to 1, with `left_seconds` beside it where the clock decides; `seconds` those of training.
NAME is check, answers, text, labels, training or export. `heldout` comes by draft length, of the averaged weights on
prompts that are never trained on; alpha is null where nothing was judged. The last line is done, stopped or error. A
line `stop` on standard input stops the run as Ctrl-C does; the same command goes on from there.
Exit codes: 0 done, 1 failed, 2 usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from specview.commands.arguments import Parser, real, whole
from specview.commands.outputs import Outputs
from specview.commands.running import STOPPED_CODE, StopRequest, stop_on_signals
from specview.commands.terminal import print_report, safe_text
from specview.errors import EngineMissing, SpecviewError, UsageError
from specview.files.report import Report, Table, Text
from specview.files.tables import Column
from specview.models.catalog import path_of
from specview.training.asked import KINDS, TrainSettings, flag_name, flags

_DESCRIPTION = """\
Train a drafter for a target: the target writes text (or labels yours), the drafter learns to say what the target
would, and is measured on prompts it has not seen. Stop with Ctrl-C at any point; the same command goes on from there.
The result loads in specview and in engines that read the same layouts (speculators, vLLM)."""

_EPILOG = (
    "kinds:\n"
    + "\n".join(f"  {name:8} {title}: {what}" for name, (title, what) in KINDS.items())
    + """

examples:
  specview train eagle3 --out my-head --minutes 60
  specview train medusa --target ~/models/TinyLlama --prompts prompts.jsonl --out heads
  specview run --lane "eagle3,draft=my-head"
"""
)
_TOLD_EVERY_S = 5.0


def _layers(text: str) -> tuple[int, ...]:
    """Numbers with commas between."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"layers is {text!r}.", "Write numbers with commas: 2,15,27.") from None


_TYPES: Mapping[str, Callable[[str], Any]] = {"text": str, "path": str, "whole": whole, "real": real, "layers": _layers}


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview train", _DESCRIPTION, _EPILOG)
    parser.usage = "specview train [options] KIND --out FOLDER"
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    groups: dict[str, Any] = {"": parser}
    for one, flag in flags():
        place = groups.get(flag.group) or groups.setdefault(flag.group, parser.add_argument_group(flag.group))
        place.add_argument(
            f"--{flag_name(one)}", dest=one.name, type=_TYPES[flag.sort], metavar=flag.metavar, help=flag.help,
            **({"required": True} if one.default is MISSING else {"default": one.default}),
        )  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write the held-out figures as a JSON document")
    output.add_argument(
        "--progress", metavar="-", choices=("-",), help="- prints progress as JSON lines on standard output"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.progress == "-" and arguments.json == "-":
        raise UsageError("--progress and --json both want standard output.", "Give --json a file.")
    lines = arguments.progress == "-"
    try:
        with Outputs(arguments) as outputs, stop_on_signals() as stop:
            if lines:
                _stop_on_line(stop)
            return _train(_settings(arguments), outputs, stop, lines)
    except SpecviewError as error:
        if lines:
            _print_line({"event": "error", "text": str(error)})
        raise
    except (MemoryError, OSError) as error:
        if lines:
            _print_line({"event": "error", "text": str(error) or "out of memory"})
        raise


def _settings(arguments: argparse.Namespace) -> TrainSettings:
    from specview.models.loading import engine_available

    missing = engine_available("transformers")
    if missing is not None:
        raise EngineMissing(missing)
    if not arguments.out.strip():
        raise UsageError("--out is empty.", "Name a folder.")
    given = {"kind": arguments.kind}
    for one, flag in flags():
        value = getattr(arguments, one.name)
        given[one.name] = path_of(value) if flag.sort == "path" and value is not None else value
    return TrainSettings(**given).checked()


def _train(settings: TrainSettings, outputs: Outputs, stop: StopRequest, lines: bool) -> int:
    from specview.training.job import TrainJob

    job = TrainJob(settings)
    done = job.run(_print_line if lines else Teller(), stop)
    if not done:
        return STOPPED_CODE
    outputs.document(job.document)
    if not lines and not outputs.to_stdout:
        print_report(heldout_report(job.document))
    return 0


_HELDOUT = (
    Column("name", "held-out prompts"), Column("k", "k", digits=0), Column("alpha", "alpha", digits=3),
    Column("tokens_per_target_pass", "tokens per pass", digits=3), Column("before", "before", "alpha before training", digits=3),
)  # fmt: skip


def heldout_report(document: Mapping[str, Any]) -> Report:
    """The held-out figures for people, and where the drafter is."""
    rows = [
        {"name": name, "k": int(k), **kinds["all"], "before": document["before"][name][k]["all"]["alpha"]}
        for name, by_length in document["heldout"].items() for k, kinds in by_length.items()
    ]  # fmt: skip
    return Report("", [Table(_HELDOUT, rows), Text(f"saved to {document['folder']}")], document)


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _print_line(event: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _stop_on_line(stop: StopRequest) -> threading.Thread:
    """Take a line `stop` on standard input for a request to stop; returns the thread that listens."""

    def listen() -> None:
        try:
            for line in sys.stdin:
                if line.strip() == "stop":
                    stop.asked = True
        except (OSError, ValueError):
            pass  # it was closed: there is nobody to ask

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread


class Teller:
    """Tells people on standard error how far a run is: every new stage at once, else a line every few seconds."""

    def __init__(self) -> None:
        self._told = -math.inf
        self._stage = ""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take one event of a run."""
        now, stage = time.monotonic(), str(event.get("stage", self._stage))
        often = event["event"] in ("stage", "step") and stage == self._stage
        if often and now - self._told < _TOLD_EVERY_S:
            return
        text = self._words(event)
        if text:
            self._told, self._stage = now, stage
            sys.stderr.write(f"{safe_text(text)}\n")
            sys.stderr.flush()

    def _words(self, event: Mapping[str, Any]) -> str:
        kind = event["event"]
        if kind in ("stage", "step"):
            left = event.get("left_seconds")
            far = f"{100 * event['fraction']:3.0f}%" + (
                f", {left / 60:.0f} min left" if left is not None else ""
            )
            if kind == "stage":
                return f"{far}  {event['text']}"
            return (
                f"{far}  step {event['step']}: loss {event['loss']:.3f}, agreement {event['agreement']:.3f}, "
                f"learning rate {event['learning_rate']:.1e}"
            )
        if kind == "heldout":
            parts = ", ".join(f"k={k} {_figure(alpha)}" for k, alpha in event["alpha"].items())
            return f"      held-out alpha at step {event['step']}: {parts}"
        if kind == "stopped":
            return f"stopped; the same command goes on from {event['work']}" if event["work"] else "stopped"
        return ""
