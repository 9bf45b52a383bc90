"""Processes of our own: this very interpreter and this very specview, and no module of the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of specview."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """The environment to run it in, with `more`: it finds the specview that this one is, installed or not."""
    made = {**os.environ, **more}
    home, library = str(Path(__file__).parent.parent), os.path.dirname(os.__file__)
    named = sys.path[: sys.path.index(library)] if library in sys.path else []  # to this process, or its current folder
    if home in map(os.path.abspath, named):
        made["PYTHONPATH"] = os.pathsep.join(filter(None, (home, made.get("PYTHONPATH"))))
    return made


def start(module: str, *arguments: str, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Run a module of specview in a process group of its own: a Ctrl-C in the terminal is for this program alone."""
    apart: dict[str, Any] = {"process_group": 0}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return subprocess.Popen(command(module, *arguments), env=env, **apart, **options)
