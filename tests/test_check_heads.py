"""`specview check TARGET HEAD`: what a trained head is, whether it fits, one exit code, from files alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview.commands import check
from specview.errors import SpecviewError, UsageError
from specview.models import heads
from tests.heads import fabricate as make
from tests.models.conftest import cache, make_gguf  # noqa: F401 - fixtures
from tests.test_check_command import run

Make = Callable[..., Path]
VOCAB = 266  # of the small GGUF files


@pytest.fixture(autouse=True)
def own_cache(cache: Path) -> None:  # noqa: F811
    """No test here sees the user's models."""


def write_target(folder: Path, **config: Any) -> Path:
    """A model folder of the sizes that the fabricated heads are for."""
    tensors = make.llama_layer(make.Weights(0), "model.layers.0", make.HIDDEN)
    config = {**make.LLAMA, "num_hidden_layers": make.LAYERS, **config}
    make.write(folder, config, tensors)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}), encoding="utf-8")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "toy-target")


def rows_of(out: str) -> dict[str, list[str]]:
    """The table's rows by their first words."""
    lines = out.split("\n\n", 1)[1].splitlines()
    return {line[:12].strip(): line[12:].split() for line in lines if line.startswith(tuple("mkltphvd"))}


def test_a_head_that_fits(capsys: Any, target: Path, tmp_path: Path) -> None:
    head = make.write(tmp_path / "head", make.speculators_config(), make.eagle3_state(first="layers.0"))
    code, out = run(capsys, target, head)
    assert code == 0
    assert out.startswith("yes: head can draft for toy-target.\n")
    rows = rows_of(out)
    assert rows["kind"] == ["llama", "EAGLE-3", "head"]
    assert rows["trained for"] == ["-", "lab/toy-target"]
    assert rows["layers"] == ["8", "after", "2,", "4,", "5"]
    assert rows["drafts"] == ["-", "12", "of", "them"]
    code, out = run(capsys, target, head, "--json", "-")
    found = json.loads(out)
    assert found["ok"] and found["mode"] == "head" and found["reason"] is None and found["question"] is None
    assert found["head"] == {
        "name": "head",
        "kind": "eagle3",
        "layout": "EAGLE-3, speculators layout",
        "trained_for": "lab/toy-target",
        "hidden_size": make.HIDDEN,
        "reads_layers": [2, 4, 5],
        "vocabulary": make.VOCAB,
        "draft_vocabulary": make.DRAFT_VOCAB,
        "most_tokens": None,
        "own_embedding": False,
        "own_output": True,
        "parameters": sum(t.numel() for n, t in make.eagle3_state().items() if n not in ("d2t", "t2d")),
        "file_bytes": (head / "model.safetensors").stat().st_size,
    }
    assert (found["target"]["hidden_size"], found["target"]["layers"], found["target"]["vocab_size"]) == (16, 8, 40)


def test_a_file_in_place_of_a_folder(capsys: Any, target: Path, tmp_path: Path) -> None:
    head = make.write(tmp_path / "m", {"medusa_num_heads": 3}, make.medusa_state(), "medusa_lm_head.pt")
    code, out = run(capsys, target, head / "medusa_lm_head.pt")
    assert code == 0
    rows = rows_of(out)
    assert rows["kind"] == ["llama", "Medusa", "heads"] and rows["most tokens"] == ["-", "3"]
    assert rows["layers"] == ["8", "the", "last"] and rows["drafts"] == ["-", "all", "of", "them"]


def test_a_head_for_another_target(capsys: Any, make_gguf: Make, tmp_path: Path) -> None:  # noqa: F811
    head = make.write(tmp_path / "head", make.speculators_config(), make.eagle3_state(first="layers.0"))
    code, out = run(capsys, make_gguf("target.gguf"), head)
    assert code == 1
    assert out.startswith("no: head holds an EAGLE-3 head for lab/toy-target that reads hidden states of 16 numbers, and ")
    code, out = run(capsys, make_gguf("target.gguf"), head, "--json", "-")
    assert code == 1 and json.loads(out)["ok"] is False and json.loads(out)["head"]["kind"] == "eagle3"


def test_a_gguf_target_that_fits(capsys: Any, make_gguf: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for name, size in (("HIDDEN", 64), ("VOCAB", VOCAB)):
        monkeypatch.setattr(make, name, size)
    head = make.write(tmp_path / "m", {"medusa_num_heads": 3}, make.medusa_state(), "medusa_lm_head.safetensors")
    code, out = run(capsys, make_gguf("target.gguf"), head)
    assert (code, out.splitlines()[0]) == (0, "yes: m can draft for target.")


def test_a_question_is_told_and_is_no_refusal(capsys: Any, target: Path, tmp_path: Path) -> None:
    config = make.midlayer_config(eagle_aux_hidden_state_layer_ids=[1, 4, 6])
    head = make.write(tmp_path / "head", config, make.eagle3_state())
    code, out = run(capsys, target, head)
    assert code == 0
    assert out.startswith("yes, once you say how to read it: the config.json of ")
    assert "Set the lane's option aux_ids=entering or output." in out.splitlines()[0]
    assert rows_of(out)["layers"] == ["8", "-"]


@pytest.mark.parametrize("damage", ["cut", "missing", "pickle"])
def test_a_damaged_head_is_a_line_and_exit_code_1(capsys: Any, target: Path, tmp_path: Path, damage: str) -> None:
    tensors = make.eagle3_state()
    if damage == "missing":
        del tensors["norm.weight"]
    head = make.write(tmp_path / "head", make.midlayer_config(), tensors)
    if damage == "cut":
        (head / "model.safetensors").write_bytes(b"123")
    if damage == "pickle":
        import pickle

        (head / "model.safetensors").unlink()
        (head / "model.bin").write_bytes(pickle.dumps(print))
    code, out = run(capsys, target, head)
    assert code == 1
    assert out.startswith("no: ") and out.count("\n") == 1 and str(head) in out


def test_the_modules_inside_a_target(capsys: Any, tmp_path: Path) -> None:
    config = {**make.LLAMA, "model_type": "mimo", "num_hidden_layers": make.LAYERS}
    mimo = make.write(tmp_path / "mimo", config, make.mimo_state())
    (mimo / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}), encoding="utf-8")
    code, out = run(capsys, mimo, mimo)
    assert code == 0 and "MTP in the target's checkpoint, MiMo layout" in out
    other = write_target(tmp_path / "other")
    code, out = run(capsys, other, mimo)  # as another's draft it is a model
    assert "they have the same tokenizer" in out


def test_a_bundled_head_by_its_kind(capsys: Any, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "asset_path", lambda name: tmp_path / "assets" / name)
    make.write(tmp_path / "assets" / "eagle3", make.midlayer_config(), make.eagle3_state())
    code, out = run(capsys, target, "eagle3")
    assert (code, out.splitlines()[0]) == (0, "yes: eagle3 can draft for toy-target.")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", b"{", "config.json is damaged"),
        ("config.json", b"[1]", "config.json is damaged"),
        ("config.json", b"\xff\xfe", "config.json is damaged"),
        ("model.safetensors", b"\xff" * 64, "is cut short or no safetensors file"),
        ("pytorch_model.bin", b"garbage", "pytorch_model.bin"),
    ],
)
def test_a_damaged_head_is_told_as_a_head(
    capsys: Any, target: Path, tmp_path: Path, file: str, content: bytes, said: str
) -> None:
    head = make.write(tmp_path / "head", make.LLAMA, make.eagle1_state())
    if file == "pytorch_model.bin":
        (head / "model.safetensors").unlink()
    (head / file).write_bytes(content)
    code, out = run(capsys, target, head)
    assert code == 1 and out.startswith("no: ") and out.count("\n") == 1
    assert said in out and "tokenizer" not in out


def test_an_engine_for_a_head_is_refused(capsys: Any, target: Path, tmp_path: Path) -> None:
    head = make.write(tmp_path / "head", make.speculators_config(), make.eagle3_state(first="layers.0"))
    with pytest.raises(UsageError, match="a head runs beside its target. Leave it out."):
        run(capsys, target, head, "--draft-engine", "llama.cpp")
    with pytest.raises(UsageError, match="llama.cpp loads GGUF files"):
        run(capsys, target, head, "--engine", "llama.cpp")


@pytest.mark.parametrize("question", [False, True])
def test_load_loads_the_target_and_the_head(
    capsys: Any, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: bool
) -> None:
    config = make.speculators_config(norm_before_residual=None if question else False)
    head = make.write(tmp_path / "head", config, make.eagle3_state(first="layers.0"))
    engine: Any = make.FakeTarget()
    engine.rollback_problem, closed, loaded = None, [], []
    engine.close = lambda: closed.append(True)
    monkeypatch.setattr(check, "load_engine", lambda *_, **__: engine)
    real = check.load_head
    monkeypatch.setattr(check, "load_head", lambda *a, **k: loaded.append(real(*a, **k)))
    code, out = run(capsys, target, head, "--load")
    assert code == 0 and out.startswith("yes") and len(loaded) == (not question) and closed == [True]
    engine.features_problem = "its graph has no layer outputs."
    code, out = run(capsys, target, head, "--load")
    assert code == 1 and closed == [True] * 2
    assert out.startswith("no: toy-target cannot be drafted for: its graph has no layer outputs.")
    engine.features_problem = None
    if not question:
        engine.project = lambda hidden: hidden
        monkeypatch.setattr(check, "load_head", lambda *_, **__: (_ for _ in ()).throw(SpecviewError("it is broken.")))
        assert run(capsys, target, head, "--load")[1].startswith("no: it is broken.")
