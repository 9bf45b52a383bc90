"""GGUF files over which llama.cpp would end its process: found before it gets them, told in one line, in both engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specview import cli
from specview.engines.gguf_file import gguf_facts, read_gguf
from specview.errors import SpecviewError, Stopped
from specview.models import llama_trial
from specview.models.dequantize import conversion_problem
from specview.models.llama_trial import require_survival
from specview.models.loading import load_engine
from tests.models.gguf_mutations import GOOD, MUTATIONS

pytest.importorskip("llama_cpp")

DEADLY = (
    "block_count 0", "block_count 1000", "expert_count 3", "expert_count 600000", "more experts used than there are",
    "rope scaling strange 4.0", "nextn of all", "pooling", "norm in blocks", "inner norm in blocks",
    "embedding of type 26", "queries of type 26",
)  # fmt: skip
"""llama.cpp 0.3.36's asserts, aborts and one crash by a signal (the last)."""
REFUSED = ("context_length 0", "attention__head_count 0", "no heads by layer", "tokens more", "weights nan", "merges missing")
TOKENS = [1, 2, 3]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(llama_trial, "_survived", set())
    yield


def write(folder: Path, name: str) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(MUTATIONS[name].bytes())
    return path


def logits(path: Path, engine: str) -> np.ndarray:
    """Of three tokens, by an engine loaded as the window and the commands load it."""
    loaded = load_engine(str(path), engine, threads=1)
    try:
        session = loaded.new_session(8)
        rows = np.asarray(session.forward(TOKENS).logits, dtype=np.float32)
        session.close()
        return rows
    finally:
        loaded.close()


@pytest.mark.parametrize("name", DEADLY)
def test_what_llama_cpp_ends_its_process_over_is_told_in_one_line(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    for _ in range(2):  # nor is it forgotten that it did not go well
        with pytest.raises(SpecviewError) as caught:
            load_engine(str(path), "llama.cpp")
    text = str(caught.value)
    assert text.startswith("llama.cpp ends its process over model.gguf (") and "\n" not in text
    assert "tmp/pip" not in text and len(text) < 400, "the place in llama.cpp's source, not that of its build"
    assert not list(tmp_path.glob("core*"))


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses_in_good_order_is_told_as_before(name: str, tmp_path: Path) -> None:
    try:
        rows = logits(write(tmp_path, name), "llama.cpp")
    except SpecviewError as error:
        assert "ends its process" not in str(error) and "\n" not in str(error)
    else:
        assert name == "weights nan" and not np.isfinite(rows).all()


def test_the_command_says_it_and_lives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "block_count 1000")
    given = ["--target", str(path), "--engine", "llama.cpp", "--raw", "--prompt", "a", "--max-tokens", "4"]
    assert cli.main(["run", "--method", "plain", *given]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 or "ends its process over model.gguf" in said[-1]


@pytest.mark.parametrize("value", [8, 16, 64, 128])
def test_every_alignment_that_the_format_allows_runs_alike(value: int, tmp_path: Path) -> None:
    expected = logits(write(tmp_path, "alignment 32"), "llama.cpp")
    path = write(tmp_path, f"alignment {value}")
    assert value % 32 == 0 or any(tensor.offset % 32 for tensor in gguf_facts(path).tensors.values())
    assert np.array_equal(logits(path, "llama.cpp"), expected)
    assert np.allclose(logits(path, "transformers"), expected, atol=2e-2)


def test_bytes_behind_the_last_tensor_are_left_alone(tmp_path: Path) -> None:
    expected = logits(write(tmp_path, "alignment 32"), "llama.cpp")
    path = write(tmp_path, "trailing")
    assert np.allclose(logits(path, "llama.cpp"), expected, atol=1e-3)
    assert np.allclose(logits(path, "transformers"), expected, atol=2e-2)


@pytest.mark.parametrize(("name", "reason"), [
    ("alignment 24", "general.alignment is 24, which is no power of two"),
    ("alignment said 24 laid 32", "general.alignment is 24, which is no power of two"),
    ("alignment 0", "general.alignment is 0, which is no power of two"),
    ("tensors in disorder", "lies at 4, and not at 0 as general.alignment 32 has it"),
    ("tensors that overlap", "lies at 0, and not at"),
    ("a name twice", "two tensors 'output_norm.weight'"),
    ("a key twice", "'llama.block_count' stands in it twice"),
])
@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_a_table_of_tensors_that_is_wrong_is_named(name: str, reason: str, engine: str, tmp_path: Path) -> None:
    with pytest.raises(SpecviewError, match="damaged header") as caught:
        load_engine(str(write(tmp_path, name)), engine)
    assert reason in str(caught.value)


def test_for_transformers_every_change_is_sound_or_one_line(tmp_path: Path) -> None:
    sound = set()
    for name in MUTATIONS:
        try:
            problem = conversion_problem(read_gguf(write(tmp_path, name)))
        except SpecviewError as error:
            problem = str(error)
        if problem is None:
            sound.add(name)
        else:
            assert "\n" not in problem and len(problem) < 400, name
    assert set(GOOD) - {"rope factors"} <= sound
    assert not sound & {"queries too wide", "norm of one", "embedding turned", "blk__1__attn_q__weight missing", "experts"}


@pytest.mark.parametrize("name", ["merges unknown", "merges no space"])
def test_a_vocabulary_that_its_library_refuses_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecviewError, match="cannot be used in transformers: its vocabulary is unsound"):
        load_engine(str(write(tmp_path, name)), "transformers")


def test_a_header_that_was_survived_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "alignment 32")
    require_survival(path)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it was tried again"))
    require_survival(path)
    monkeypatch.setattr(llama_trial, "_survived", set())  # a new start
    require_survival(path)
    with pytest.raises(pytest.fail.Exception):
        require_survival(write(tmp_path, "alignment 64"))


def test_a_trial_can_be_stopped_and_its_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def sleeper(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        children.append(real([sys.executable, "-c", "import time; time.sleep(600)"], **options))  # type: ignore[call-overload]
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    with pytest.raises(Stopped):
        require_survival(write(tmp_path, "alignment 32"), should_stop=lambda: bool(children))
    assert children[0].poll() is not None


def test_no_file_of_the_current_folder_runs_in_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "alignment 32")
    for module in ("json", "llama_cpp", "struct"):
        (tmp_path / f"{module}.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    require_survival(path)
    assert not (tmp_path / "ran").exists()
