"""Every command on fixed small inputs: what it answers is what was frozen (SPECVIEW_FREEZE=1 freezes anew)."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview import cli
from tests.engines.transformers_tiny import save_model, tiny
from tests.frozen import net
from tests.library.recorded import write_trace

TRACE = net.DATA / "race.jsonl"
Answer = Callable[..., tuple[Any, str]]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random target and a random draft of one tokenizer."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("pair")
    for name, kind in (("target", "llama-deep"), ("draft", "llama")):
        (folder / name).mkdir()
        save_model(folder / name, tiny(kind))
    return folder


@pytest.fixture
def answer(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    """Run a command: TARGET, DRAFT, TRACE and OUT in its words are paths; return its document and its text."""

    def run(*words: str, timed: bool = True, code: int = 0) -> tuple[Any, str]:
        places = {"TARGET": str(pair / "target"), "DRAFT": str(pair / "draft"), "TRACE": str(TRACE), "OUT": str(tmp_path / "out")}
        argv = list(words)
        for name, path in places.items():
            argv = [word.replace(name, path) for word in argv]
        document = tmp_path / "document.json"
        told = cli.main([*argv, "--json", str(document)])
        out, err = capsys.readouterr()
        assert told == code, err
        folders = {str(pair): "(models)", str(net.DATA): "(data)", str(tmp_path): "(folder)"}
        found = json.loads(document.read_text(encoding="utf-8"))
        return net.stripped(found, folders, timed=timed), net.settled(out, folders)

    return run


MODELS = ("--target", "TARGET", "--draft", "DRAFT", "--dtype", "float32", "--raw", "--prompt", "one two one two one", "--check-mode",
          "--no-keep", "--observe", "light")  # fmt: skip
RACES = {
    "run": ("run", *MODELS, "--max-tokens", "12", "--method", "draft-model", "--k", "3"),
    "run-sampled": ("run", *MODELS, "--max-tokens", "12", "--method", "draft-model", "--temperature", "0.8", "--top-k", "20",
                    "--seed", "5"),
    "compare": ("compare", *MODELS, "--max-tokens", "16", "--lane", "draft-model,k=3", "--lane", "prompt-lookup,k=4",
                "--lane", "suffix,policy=heuristic", "--lane", "cascade,members=ngram-simple+draft-model"),
    "compare-rules": ("compare", *MODELS, "--max-tokens", "12", "--temperature", "0.9", "--seed", "3",
                      *(word for rule in ("rejection", "match", "typical", "naive") for word in ("--lane", f"draft-model,k=2,rule={rule}"))),
    "compare-repeats": ("compare", *MODELS[:2], *MODELS[4:], "--max-tokens", "8", "--repeats", "2", "--lane", "lookahead", "--lane", "early-exit,k=2"),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_races(name: str, answer: Answer) -> None:
    document, _ = answer(*RACES[name])
    net.check(name, document)


def test_a_sweep(answer: Answer) -> None:
    words = [word for word in MODELS if word not in ("--no-keep", "--observe", "light")]
    document, _ = answer("sweep", *words, "--max-tokens", "8", "--k", "1,2", "--lane", "draft-model", "--out", "OUT")
    net.check("sweep", document)


def shape(value: Any) -> Any:
    """The kinds of a document's values: what stays of one whose every figure, and how many, a clock decides."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else "(value)"


TIMED = {
    "tune": ("tune", *MODELS[:9], "--max-tokens", "8", "--seconds", "20", "--methods", "draft-model,prompt-lookup"),
    "concurrency": ("concurrency", "--target", "TARGET", "--draft", "DRAFT", "--dtype", "float32", "--batch", "1,2", "--k", "0,1",
                    "--context", "16", "--repeats", "2", "--acceptance", "0.6", "--raw", "--prompt", "one two"),
    "scan": ("scan", *MODELS[:2], *MODELS[4:9], "--tokens", "8", "--k", "2"),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMED)
def test_what_a_clock_decides_has_its_shape(name: str, answer: Answer) -> None:
    document, _ = answer(*TIMED[name])
    net.check(name, shape(document))


READ = {
    "explain": ("explain", "TRACE"),
    "what-if": ("what-if", "TRACE", "--lane", "1", "--k", "1-4", "--threshold", "0.3"),
    "theory": ("theory", "--alpha", "0.6,0.8", "--k", "1,4", "--c", "0.1", "--v-per-row", "0.1"),
    "theory-trace": ("theory", "--trace", "TRACE", "--k", "1,2,4"),
    "replay": ("replay", "TRACE"),
    "exactness": ("exactness", "--samples", "4000", "--seeds", "5"),
}


@pytest.mark.parametrize("name", READ)
def test_what_needs_no_model(name: str, answer: Answer) -> None:
    document, text = answer(*READ[name], timed=name == "exactness")
    net.check(name, {"document": document, "text": text.split("\n") if name != "exactness" else []})


def test_the_runs_library(answer: Answer, tmp_path: Path) -> None:
    shutil.copy(TRACE, tmp_path / "race.jsonl")
    assert cli.main(["runs", "import", str(tmp_path / "race.jsonl")]) == 0
    document, _ = answer("runs", "show", "last", timed=False)
    net.check("runs-show", document)
    for kind in ("csv", "markdown"):
        assert cli.main(["runs", "export", "last", f"--{kind}", str(tmp_path / kind)]) == 0
        net.check(f"runs-export-{kind}", net.settled((tmp_path / kind).read_text(encoding="utf-8"), {str(tmp_path): "(folder)"}).split("\n"))


def test_check(answer: Answer) -> None:
    document, _ = answer("check", "TARGET", "DRAFT")
    net.check("check", document)


def test_doctor_has_its_sections(answer: Answer) -> None:
    document, _ = answer("doctor")
    net.check("doctor", sorted(document) if isinstance(document, dict) else len(document))


def test_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command's --help: its flags, their defaults and what they are said to do."""
    found = {}
    for command in cli.COMMANDS:
        with contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
        found[command] = " ".join(capsys.readouterr().out.split())
    net.check("help", found)


def test_the_trace_is_frozen_too() -> None:
    """The trace that the others read: written once, by a seed (SPECVIEW_FREEZE=1 writes it where it is missing)."""
    if net.FREEZE and not TRACE.exists():
        net.DATA.mkdir(exist_ok=True)
        write_trace(TRACE, rounds=10)
    assert TRACE.read_text(encoding="utf-8").count("\n") == 1 + 3 * 10 + 3
