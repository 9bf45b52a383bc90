"""From a name to a loaded engine, and the facts about it; the engines themselves are stood in for."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import specview.engines
from specview.engines import memory
from specview.errors import EngineMissing, SpecviewError, Stopped, UsageError
from specview.models import bundled, llama_trial, loading
from specview.models import cache as cache_module
from specview.models import facts as facts_module
from specview.models.converted import converted_root
from specview.models.loading import engine_available, facts, load_engine, where_from

Make = Callable[..., Path]


class Loaded:
    """What a stand-in engine gives back."""

    def __init__(self, name: str, path: Path, options: dict[str, Any]) -> None:
        self.name, self.path, self.options = name, path, options
        self.model_name = path.name
        self.device, self.dtype, self.weight_bytes, self.context_length, self.vocab_size = "cpu", "f", 7, 64, 9


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Put stand-ins where the two engines are."""
    for module_name, name in (("transformers_engine", "transformers"), ("llama_cpp_engine", "llama.cpp")):
        module = ModuleType(f"specview.engines.{module_name}")

        def load(path: Path, *, _name: str = name, progress: Any = None, should_stop: Any = None, **options: Any) -> Loaded:
            progress(0.5)
            return Loaded(_name, path, options)

        module.load = load  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(specview.engines, module_name, module, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: SimpleNamespace(name=name))
    monkeypatch.setattr(llama_trial, "require_survival", lambda *_, **__: None)  # test_llama_trial.py has the real one


def test_a_gguf_in_llama_cpp(engines: None, make_gguf: Make) -> None:
    path = make_gguf()
    seen: list[tuple[str, float | None]] = []
    engine: Any = load_engine(
        str(path), "llama.cpp", threads=3, gpu_layers=2, context=128, check_mode=True,
        progress=lambda text, fraction: seen.append((text, fraction)),
    )  # fmt: skip
    assert engine.path == path
    assert engine.options == {"threads": 3, "gpu_layers": 2, "context": 128, "check_mode": True}
    assert seen == [("Loading tiny", None), ("Loading tiny", 0.5)]
    origin = where_from(engine)
    assert origin is not None and origin.path == path and origin.threads == 3


def test_a_gguf_in_transformers_is_converted_first(engines: None, make_gguf: Make) -> None:
    path = make_gguf()
    seen: list[str] = []
    engine: Any = load_engine(
        str(path), "transformers", device="cpu", dtype="float32", progress=lambda text, _: seen.append(text)
    )
    assert engine.path.parent == converted_root()
    assert engine.model_name == "tiny"
    assert engine.options["device"] == "cpu" and engine.options["trust_remote_code"] is False
    assert [text.split()[0] for text in dict.fromkeys(seen)] == ["Checking", "Converting", "Loading"]


def test_a_gguf_that_transformers_cannot_take_says_why(engines: None, make_gguf: Make) -> None:
    path = make_gguf(architecture="mamba")
    with pytest.raises(SpecviewError, match="architecture is 'mamba'.* Use the llama.cpp engine"):
        load_engine(str(path), "transformers", device="cpu")


def test_memory_is_asked_before_the_conversion(
    engines: None, make_gguf: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf()
    monkeypatch.setattr(memory, "free", lambda place: 1 << 20)
    with pytest.raises(SpecviewError, match=r"tiny needs 0\.4 GB of memory, and 0\.0 GB are free") as caught:
        load_engine(str(path), "transformers", device="cpu")
    assert "smaller" in str(caught.value)
    assert not converted_root().exists()


def test_free_memory_is_what_the_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "memory.max": "4000000000\n",
        "memory.current": "3000000000\n",
        "memory.stat": "anon 5\nactive_file 100000000\ninactive_file 200000000\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: files[self.name])
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**12))
    assert memory.free() == 1_300_000_000
    files["memory.max"] = "max\n"
    assert memory.free() == 10**12


def test_what_an_engine_cannot_load(engines: None, make_folder: Make) -> None:
    with pytest.raises(UsageError, match=r"llama\.cpp loads GGUF files"):
        load_engine(str(make_folder()), "llama.cpp")
    with pytest.raises(SpecviewError, match="there is no file or folder"):
        load_engine("absent.gguf", "llama.cpp")


def test_stop(engines: None, make_gguf: Make) -> None:
    path = make_gguf()
    with pytest.raises(Stopped):
        load_engine(str(path), "llama.cpp", should_stop=lambda: True)
    calls = iter([False, False] + [True] * 1000)
    with pytest.raises(Stopped):
        load_engine(str(path), "transformers", device="cpu", should_stop=lambda: next(calls))


def test_a_missing_engine_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "llama_cpp" else object())
    assert engine_available("transformers") is None
    reason = engine_available("llama.cpp")
    assert reason is not None and "llama_cpp" in reason and "pip install llama-cpp-python" in reason
    with pytest.raises(EngineMissing, match="pip install llama-cpp-python"):
        load_engine("bundled", "llama.cpp")
    assert "there is no engine" in (engine_available("mlx") or "")


def test_the_bundled_draft_gets_its_tokenizer(
    engines: None, make_folder: Make, make_gguf: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("draft", tokenizer=False)
    source = make_gguf()
    monkeypatch.setattr(bundled, "asset_path", lambda name: tmp_path / name)
    monkeypatch.setattr(bundled, "find_target", lambda: source)
    engine: Any = load_engine("bundled", "transformers", role="draft")
    assert engine.path != folder and (engine.path / "tokenizer.json").is_file()
    assert engine.model_name == "specview draft"
    shutil.copy(engine.path / "tokenizer.json", folder)
    again: Any = load_engine("bundled", "transformers", role="draft")
    assert again.path == folder, "a draft with a tokenizer is loaded where it is"


def test_facts_are_flat_and_hashes_cost_once(
    engines: None, make_gguf: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    path = make_gguf()
    engine: Any = load_engine(str(path), "llama.cpp", threads=2)
    found = facts(engine)
    assert found["file"] == "tiny.gguf"
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found["threads"] == 2
    assert found["version_specview"] and found["version_python"] and found["cpu"]
    assert all(value is None or isinstance(value, (str, int, float, bool)) for value in found.values())
    monkeypatch.setattr(hashlib, "sha256", lambda *_: pytest.fail("hashed again"))
    assert facts(engine)["sha256"] == found["sha256"]


def test_hash_of_a_converted_model_is_its_manifests(engines: None, make_gguf: Make) -> None:
    import hashlib

    path = make_gguf()
    engine: Any = load_engine(str(path), "transformers", device="cpu")
    found = facts(engine)
    assert found["sha256"] == hashlib.sha256((engine.path / "model.safetensors").read_bytes()).hexdigest()
    assert found["source_file"] == "tiny.gguf"
    assert found["source_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_large_weights_are_not_hashed_on_the_way(engines: None, make_gguf: Make, make_folder: Make) -> None:
    path = make_gguf()
    assert facts_module.weights_sha256(path, hash_limit_bytes=10) is None
    known = facts_module.weights_sha256(path)
    assert facts_module.weights_sha256(path, hash_limit_bytes=10) == known
    folder = make_folder()
    one = facts_module.weights_sha256(folder)
    shutil.copy(folder / "model.safetensors", folder / "more.safetensors")
    assert facts_module.weights_sha256(folder) not in (None, one)


def test_a_changed_file_is_hashed_again(cache: Path, tmp_path: Path) -> None:
    import os

    file = tmp_path / "weights"
    file.write_bytes(b"a")
    first = cache_module.sha256_of(file)
    assert cache_module.remembered_sha256(file) == first
    file.write_bytes(b"b")
    os.utime(file, ns=(1, 1))
    assert cache_module.remembered_sha256(file) is None
    assert cache_module.sha256_of(file) != first


def test_a_cache_that_cannot_be_written_only_costs_hashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    monkeypatch.setenv("SPECVIEW_CACHE", str(blocked))
    assert len(cache_module.sha256_of(blocked)) == 64
    assert cache_module.remembered_sha256(blocked) is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path))
    assert cache_module.cache_dir() == tmp_path
    monkeypatch.delenv("SPECVIEW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform.startswith("linux"):
        assert cache_module.cache_dir() == tmp_path / "xdg" / "specview"


def test_default_device_is_one_torch_has() -> None:
    pytest.importorskip("torch")
    assert loading.default_device() in ("cpu", "cuda", "mps")
