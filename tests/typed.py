"""A command line typed in a test, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specview import cli

Typed = Callable[..., tuple[int, str, str]]


def command_line(*first: str) -> Typed:
    """A command to type: `run(capsys, *words)` gives the exit code, standard output and standard error."""

    def run(capsys: Any, *words: object) -> tuple[int, str, str]:
        code = cli.main([*first, *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


typed = command_line()
