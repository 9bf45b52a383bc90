"""The files a command was asked to write: opened before the run, so that a closed door is known at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specview.commands.terminal import safe_text, write_document
from specview.disk import same_place
from specview.errors import SpecviewError, UsageError
from specview.files.atomic import OutputFile
from specview.files.schema import dumps
from specview.files.writer import TraceRecorder, TraceWriter
from specview.library.keeping import RunKeeper
from specview.library.library import RunLibrary
from specview.models.catalog import path_of
from specview.settings.events import Event


def add_keep_flag(parser: argparse.ArgumentParser) -> None:
    """Add --no-keep, for commands whose races the runs library keeps."""
    parser.add_argument("--no-keep", dest="keep", action="store_false", default=True,
                        help="do not keep this run in the runs library (specview runs); --observe off keeps none either")  # fmt: skip


LABELS = {"json": "JSON document", "csv": "CSV table", "markdown": "Markdown table"}


class Outputs:
    """--json, --trace, --csv and --markdown of one command, and its part in the runs library.

    forms names other flags in their place, and dash those of them whose file may be `-`, standard output. `to_stdout` says
    that a document goes there, where nothing else may.
    Raises SpecviewError on entering when a file cannot be written, UsageError when two are the same. One that cannot be
    written at the end, on a disk that is full by then, is told on leaving: what took minutes is still printed.
    """

    def __init__(
        self, arguments: argparse.Namespace, forms: Iterable[str] = ("json", "trace", "csv", "markdown"),
        dash: Iterable[str] = ("json",), labels: Mapping[str, str] = LABELS,
    ) -> None:  # fmt: skip
        self._arguments, self._dash, self._labels = arguments, set(dash), labels
        self._names = {what: name for what in forms if (name := getattr(arguments, what, None)) is not None}
        self.to_stdout = "-" in self._names.values()
        self._stack = ExitStack()
        self._files: dict[str, OutputFile] = {}
        self._unwritten: list[SpecviewError] = []
        self._recorder: TraceRecorder | None = None
        # Of a run without a ledger there is nothing worth keeping, and it is to cost nothing.
        self._keeps = getattr(arguments, "keep", False) and getattr(arguments, "observe", None) != "off"
        self._keeper: RunKeeper | None = None

    def __enter__(self) -> Self:
        for what, name in self._names.items():
            if not name or (name == "-" and what not in self._dash):
                raise UsageError(f"--{what} is {name!r}.", "Give a file's name.")
        if list(self._names.values()).count("-") > 1:
            raise UsageError("two exports name standard output.", "Give each its own.")
        need_own_files(self._arguments, self._names)
        with ExitStack() as stack:
            for what, name in self._names.items():
                if what == "trace":
                    writer = stack.enter_context(TraceWriter(name, on_trouble=_warn))
                    self._recorder = TraceRecorder(writer)
                elif name != "-":
                    self._files[what] = stack.enter_context(OutputFile(name, self._labels.get(what, f"{what} export")))
            self._stack = stack.pop_all()
        library = RunLibrary()
        if self._keeps and library.keeps:
            self._keeper = RunKeeper(library, {"source": "command"}, _warn)
            self._stack.callback(self._keeper.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._unwritten and error is None:
            raise self._unwritten[0]
        for unwritten in self._unwritten:
            _warn(str(unwritten))

    def take(self, event: Event) -> None:
        """Write an event to the trace, if there is one."""
        if self._recorder is not None:
            self._recorder.take(event)

    def keep(self, event: Event, part: str = "") -> None:
        """Keep a race's event in the runs library, unless the user does not want it; `part` names one of several."""
        if self._keeper is not None:
            self._keeper.facts["part"] = part
            self._keeper.take(event)

    def document(self, document: Mapping[str, Any]) -> None:
        """Write the JSON document where it was asked for."""
        if self.wants("json"):
            self.write("json", dumps(document, indent=1) + "\n")

    def write(self, what: str, content: str | bytes) -> None:
        """Put what was asked for into its file, or on standard output."""
        if self._names[what] == "-":
            write_document(str(content))
            return
        sys.stdout.flush()
        try:
            self._files[what].write(content)
        except SpecviewError as error:
            self._unwritten.append(error)

    def wants(self, what: str) -> bool:
        """Whether this was asked for."""
        return what in self._names


def need_own_files(arguments: argparse.Namespace, outputs: Mapping[str, str]) -> None:
    """Raise UsageError where an output is also another output, or a file that some argument names.

    outputs: argument -> file name, `-` for standard output. Devices may be shared.
    """
    mine = {what: name for what, name in outputs.items() if name != "-" and not name.startswith("/dev/")}
    named = [(f"--{what}", Path(name)) for what, name in mine.items()]
    for key, value in vars(arguments).items():
        for word in _words(value) if key not in outputs else ():
            if key == "out":
                named.append(("--out", path_of(word)))
            # a file by itself, or one that a lane's settings name
            for name in (word, *(part.partition("=")[2] for part in word.split(","))):
                if name and os.path.isfile(path := path_of(name)):
                    named.append((f"the input {name!r}", path))
    for count, (what, place) in enumerate(named[: len(mine)]):
        for other, path in named[count + 1 :]:
            if same_place(place, path):
                raise UsageError(f"{what} and {other} name the same file.", "Give each its own.")


def _words(value: object) -> Iterator[str]:
    """The strings among an argument's values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _words(part)


def _warn(line: str) -> None:
    sys.stderr.write(f"specview: {safe_text(line)}\n")
