"""The `specview` command: finds the subcommand, and turns every error into one line and an exit code.

Exit codes: 0 done, 1 the run failed, 2 usage, 130 stopped by Ctrl-C. Nothing heavy is imported here:
the window must be up before torch or llama.cpp is loaded.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence

from specview import __version__
from specview.errors import SpecviewError, Stopped, UsageError

COMMANDS = {
    "run": "one prompt, one method, headless: text, summary",
    "compare": "several lanes and plain on one prompt: a table",
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
        _silence_stdout()
        return 1
    except MemoryError:
        return _fail("there is not enough memory. Close other programs or choose a smaller model.", 1)
    except Exception as error:  # noqa: BLE001 - the user gets one line, never a traceback
        return _fail(
            f"unexpected {type(error).__name__}: {error}. This is a fault of specview: please report it "
            "(SPECVIEW_TRACEBACK=1 shows where).",
            1,
        )


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
        return int(importlib.import_module(f"specview.commands.{first}").main(arguments[1:]))
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
    warnings.simplefilter("ignore")


def _fail(line: str, code: int) -> int:
    text = "".join(char if char.isprintable() else " " for char in f"specview: {line}")
    try:
        sys.stdout.flush()
        sys.stderr.write(text.encode("utf-8", "replace").decode("utf-8") + "\n")
    except BrokenPipeError:
        _silence_stdout()
    except UnicodeEncodeError:
        sys.stderr.write(text.encode("ascii", "replace").decode("ascii") + "\n")
    return code


def _silence_stdout() -> None:
    """Let the interpreter's last flush of a closed pipe go nowhere instead of complaining."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # standard output has no descriptor (under a test)


if __name__ == "__main__":
    sys.exit(main())
