"""The `specview` command: finds the subcommand, and turns every error into one line and an exit code.

Exit codes: 0 done, 1 the run failed, 2 usage, 130 stopped by Ctrl-C. Nothing heavy is imported here:
the window must be up before torch or llama.cpp is loaded.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from specview import __version__
from specview.engines.openmp import limit_spinning
from specview.errors import SpecviewError, Stopped, UsageError
from specview.files.atomic import os_reason

COMMANDS = {
    "run": "one prompt, one method, headless: text, summary",
    "compare": "several lanes and plain on one prompt: a table",
    "explain": "why each lane is fast or slow: from a trace, or from a race that it runs",
    "what-if": "what a recorded run would have cost with other draft lengths and policies; no model",
    "sweep": "methods over k, temperature and workloads: measured and predicted, resumable",
    "theory": "the closed forms: expected tokens, speedup, best k, break-even; measured lanes among them",
    "concurrency": "what speculation is worth as more sequences share the device, from measured passes",
    "tune": "the fastest method, k and policy for this prompt or prompt set, here",
    "exactness": "the proof that output is still the target's: toy model, or a real pair",
    "scan": "early exit: acceptance and cost of every exit layer on a prompt",
    "check": "can this draft serve this target, how, and why not",
    "train": "train a drafter for a target: an EAGLE-3, P-EAGLE or Medusa head, or a small draft",
    "export": "a run as a page that plays it, Markdown, plots, a picture, an animation, a video, or data",
    "runs": "the library of kept runs: list, show, rename, note, delete, restore",
    "replay": "the window on a recorded run, no model loaded; --text for its figures",
    "serve-command": "what starts llama-server, vLLM, SGLang or TensorRT-LLM with a lane",
    "check-command": "such a command read back: old names, faults, the lane it stands for",
    "doctor": "what works here: Qt, display, torch, CUDA, llama.cpp, memory",
}

_HELP = """\
usage: specview
       specview COMMAND [options]

A desktop playground for speculative decoding. Without a command it opens the window.

commands:
{commands}

Each has its own --help.

  --version   print the version
  --help      print this
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code.

    Prints no traceback: a SpecviewError is one line on standard error. SPECVIEW_TRACEBACK=1 lets it
    through, for developers.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # a process of our own: what it starts takes no modules from the current folder either
        os.environ["PYTHONSAFEPATH"] = "1"
    limit_spinning()  # it must come before torch, whoever imports that first
    _open_streams()
    if os.environ.get("SPECVIEW_TRACEBACK") == "1":
        return _dispatch(arguments)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except SpecviewError as error:
        return _fail(str(error), 2 if error.usage else 1)
    except (KeyboardInterrupt, Stopped):
        return _fail("stopped.", 130)
    except BrokenPipeError:
        _silence(sys.stdout)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return _fault(error)
        return _fail(f"the output cannot be written: {os_reason(error)}. Write it to another place.", 1)
    except MemoryError:
        return _fail("there is not enough memory. Close other programs or choose a smaller model.", 1)
    except Exception as error:  # noqa: BLE001 - the user gets one line, never a traceback
        return _fault(error)


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
        sys.stdout.write(_HELP.format(commands=commands))
        return 0
    if first == "--version":
        sys.stdout.write(f"specview {__version__}\n")
        return 0
    if first in COMMANDS:
        _quiet_libraries()
        return int(importlib.import_module(f"specview.commands.{first.replace('-', '_')}").main(arguments[1:]))
    if first and not first.startswith("-"):
        near = difflib.get_close_matches(first, COMMANDS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Commands: {', '.join(COMMANDS)}."
        raise UsageError(f"there is no command {first!r}.", hint)
    from specview.commands import window

    return window.main(arguments)


def _quiet_libraries() -> None:
    """Keep logs, warnings and other programs' progress bars off the terminal: a command prints one line."""
    if os.environ.get("SPECVIEW_TRACEBACK") == "1":
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger().addHandler(logging.NullHandler())
    sys.unraisablehook = lambda unraisable: None  # a second Ctrl-C may fall into a library's callback
    warnings.simplefilter("ignore")


def _open_streams() -> None:
    """Make the standard streams take whatever is written to them.

    A program started without them (`>&-`) gets ones that lead nowhere; where the terminal's encoding has
    no such character (ASCII, Latin-1), it shows as `?`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - lives as long as we do
    for stream in (sys.stdout, sys.stderr):
        if "utf" not in (stream.encoding or "").lower() and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _fault(error: Exception) -> int:
    return _fail(
        f"unexpected {type(error).__name__}: {error}. This is a fault of specview: please report it "
        "(SPECVIEW_TRACEBACK=1 shows where).",
        1,
    )


def _fail(line: str, code: int) -> int:
    text = "".join(char if char.isprintable() else " " for char in f"specview: {line}")
    try:
        sys.stdout.flush()
    except OSError:
        _silence(sys.stdout)
    try:
        sys.stderr.write(text.encode("utf-8", "replace").decode("utf-8") + "\n")
    except UnicodeEncodeError:
        sys.stderr.write(text.encode("ascii", "replace").decode("ascii") + "\n")
    except OSError:
        _silence(sys.stderr)  # nobody can be told; the exit code still says it
    return code


def _silence(stream: TextIO) -> None:
    """Let the interpreter's last flush of a stream that is closed or full go nowhere instead of complaining."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass  # the stream has no descriptor (under a test)


if __name__ == "__main__":
    sys.exit(main())
