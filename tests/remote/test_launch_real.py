"""The real llama-server takes the flags: where SPECVIEW_LLAMA_SERVER names one (b11434). It parses them and prints its help; no model is loaded."""

from __future__ import annotations

import os
import subprocess

import pytest

from specview.decoding.sampling import SamplingParams
from specview.drafting.registry import METHODS
from specview.remote.launch import launch
from specview.remote.launch_check import check_command
from specview.remote.launch_old import OLD_FLAGS
from specview.remote.launch_table import ENGINES, WAYS
from specview.settings.run import LaneSettings, RunSettings

PROGRAM = os.environ.get("SPECVIEW_LLAMA_SERVER", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="SPECVIEW_LLAMA_SERVER names no llama-server")


def taken(words: list[str]) -> bool:
    """Whether the program takes the words: it reads them all before it prints its help."""
    return subprocess.run([PROGRAM, *words, "--help"], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("method", WAYS["llama-server"])
def test_every_way_is_taken(method: str) -> None:
    options = {"members": "ngram-mod+draft-model"} if METHODS[method].combines else {}
    run = RunSettings(sampling=SamplingParams(temperature=0.8), threads=2, context=512)
    assert taken(list(launch(ENGINES["llama-server"], run, LaneSettings(method, options=options)).words[1:]))


@pytest.mark.parametrize("flag", OLD_FLAGS["llama-server"])
def test_every_old_flag_is_refused_and_its_new_name_taken(flag: str) -> None:
    assert not taken([flag, "3"])
    now = OLD_FLAGS["llama-server"][flag].now
    assert not now or taken([now, "3"])


def test_a_mended_command_is_taken() -> None:
    checked = check_command("llama-server -m t.gguf -md d.gguf --draft-max 8 --draft-min 1")
    assert taken(checked.mended.split()[1:])
