"""Processes of our own, and the Ctrl-C that is for the program that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specview.engines import templates
from specview.models import llama_trial
from tests.models.gguf_mutations import MUTATIONS


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_a_ctrl_c_in_the_terminal_does_not_reach_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template's process that is ended so was taken for one over its limits, a trial for a file that llama.cpp dies of."""
    groups: list[int] = []
    real = subprocess.Popen

    def noted(*line: object, **options: object) -> subprocess.Popen[bytes]:
        made = real(*line, **options)  # type: ignore[call-overload]
        groups.append(os.getpgid(made.pid))
        return made  # type: ignore[no-any-return]

    pytest.importorskip("llama_cpp")
    path = tmp_path / "tiny.gguf"
    path.write_bytes(MUTATIONS["alignment 32"].bytes())
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(llama_trial, "_survived", set())
    templates.stop()
    monkeypatch.setattr(subprocess, "Popen", noted)
    assert templates.render("a", {}) == "a"
    llama_trial.require_survival(path)
    assert len(groups) == 2 and os.getpgid(0) not in groups


def test_a_ctrl_c_while_modules_are_read_is_no_traceback() -> None:
    code = (
        "import sys, runpy\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'specview.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('specview', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "specview: stopped.\n")
