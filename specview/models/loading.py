"""From a model's name to a loaded engine: resolve, fetch, convert, load."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from specview.decoding.interfaces import Engine
from specview.engines import memory
from specview.engines.gguf_file import gguf_facts, read_gguf
from specview.errors import EngineMissing, UsageError
from specview.models import bundled, converted, dequantize, hub
from specview.models.cache import ProgressFn, ShouldStop, Watch
from specview.models.catalog import BUNDLED, ENGINES, ModelRef, Role, resolve
from specview.models.facts import LoadedFrom, facts, note_origin, where_from
from specview.models.model_folder import has_tokenizer
from specview.settings.run import Loading

__all__ = ["default_device", "engine_available", "facts", "load_engine", "prepare", "where_from"]

MARGIN = 400 << 20
"""Memory for the libraries themselves, activations and a short KV cache."""
LIBRARIES = {"transformers": ("torch", "transformers"), "llama.cpp": ("llama_cpp",)}
"""Modules that an engine imports."""
_MENDS = {
    "transformers": "Install it: pip install torch transformers.",
    "llama.cpp": "Install it: pip install llama-cpp-python (it is compiled here, which takes minutes).",
}


def engine_available(name: str) -> str | None:
    """Return None when an engine's libraries are installed, else the reason; imports none of them."""
    if name not in LIBRARIES:
        return f"there is no engine {name!r}. Engines: {', '.join(ENGINES)}."
    missing = [module for module in LIBRARIES[name] if importlib.util.find_spec(module) is None]
    if not missing:
        return None
    return f"the {name} engine needs {' and '.join(missing)}, which is not installed here. {_MENDS[name]}"


def default_device() -> str:
    """The device transformers uses when none is chosen: cuda, mps or cpu (imports torch)."""
    from specview.engines.transformers_engine import find_device

    return str(find_device(None).type)


def load_engine(
    ref: str | ModelRef,
    engine: str,
    *,
    compute_in_dtype: bool = False,
    role: Role = "target",
    progress: ProgressFn | None = None,
    should_stop: ShouldStop | None = None,
    **how: Any,
) -> Engine:
    """Load a model, doing first whatever it needs: download, conversion, a look at the memory.

    ref is what `--target` or `--draft` takes, or a resolved ModelRef; compute_in_dtype is that of
    transformers_engine.load, `how` the fields of Loading. progress is called with (text, fraction or None). Raises
    EngineMissing, UsageError or SpecviewError, each one line with a mend; Stopped when should_stop says so.
    """
    asked = Loading(engine, **how)
    missing = engine_available(engine)
    if missing is not None:
        raise EngineMissing(missing)
    watch = Watch(progress, should_stop)
    watch.check()
    model = resolve(ref, engine, role) if isinstance(ref, str) else ref
    if engine not in model.engines and model.kind != "gguf":  # a GGUF's reason comes with its conversion
        raise UsageError(
            f"the {engine} engine cannot load {model.name} ({model.architecture or model.kind}).",
            f"Choose the {model.engines[0]} engine for it.",
        )
    model = replace(model, path=_fetch(model, progress, should_stop))
    path = prepare(model, engine, device=asked.device, dtype=asked.dtype, progress=progress, should_stop=should_stop)
    watch.check()
    text = f"Loading {model.name}"
    watch.tell(text)

    loaded = _LOADERS[engine](model, path, asked, compute_in_dtype, watch, text)
    loaded.model_name = model.name  # not that of a cache folder
    note_origin(loaded, LoadedFrom(model, path, asked.threads))
    return loaded


def _load_transformers(
    model: ModelRef, path: Path, asked: Loading, compute_in_dtype: bool, watch: Watch, text: str
) -> Engine:
    from specview.engines import transformers_engine

    return transformers_engine.load(
        path,
        device=asked.device,
        dtype=asked.dtype,
        threads=asked.threads,
        check_mode=asked.check_mode,
        trust_remote_code=asked.trust_remote_code,
        gguf=gguf_facts(model.path) if model.path is not None and model.path.is_file() else None,
        compute_in_dtype=compute_in_dtype,
        progress=partial(watch.tell, text),
        should_stop=watch.should_stop,
    )


def _load_llama_cpp(
    model: ModelRef, path: Path, asked: Loading, compute_in_dtype: bool, watch: Watch, text: str
) -> Engine:
    from specview.engines import llama_cpp_engine
    from specview.models.llama_trial import require_survival

    if model.origin != "bundled":
        require_survival(path, asked.gpu_layers, progress=watch.progress, should_stop=watch.should_stop)
    return llama_cpp_engine.load(
        path,
        threads=asked.threads,
        gpu_layers=asked.gpu_layers,
        context=asked.context,
        check_mode=asked.check_mode,
        progress=partial(watch.tell, text),
        should_stop=watch.should_stop,
    )


_LOADERS = {"transformers": _load_transformers, "llama.cpp": _load_llama_cpp}
"""Engine -> what loads a prepared model in it."""


def prepare(
    model: ModelRef,
    engine: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    progress: ProgressFn | None = None,
    should_stop: ShouldStop | None = None,
) -> Path:
    """Return the file or folder that `engine` loads for a model: downloaded and converted as needed."""
    path = _fetch(model, progress, should_stop)
    if engine == "llama.cpp":
        if path.is_dir():
            raise UsageError(f"llama.cpp loads GGUF files, and {path} is a folder.", "Give a .gguf file.")
        return path
    if path.is_file():
        return _convert(path, dtype, device, progress, should_stop)
    if model.spec == BUNDLED and model.role == "draft" and not has_tokenizer(path):
        # the draft shares the bundled target's tokenizer, which is not stored twice
        return converted.with_tokenizer(path, bundled.target_gguf(), progress=progress, should_stop=should_stop)
    return path


def _fetch(model: ModelRef, progress: ProgressFn | None, should_stop: ShouldStop | None) -> Path:
    """The file or folder of a model, downloaded where it is not on this machine."""
    if model.path is not None:
        return model.path
    assert model.repo_id is not None
    if model.kind == "gguf":
        assert model.repo_file is not None
        return hub.fetch_gguf(model.repo_id, model.repo_file, progress=progress, should_stop=should_stop)
    return hub.fetch(model.repo_id, progress=progress, should_stop=should_stop)


def _convert(
    path: Path, dtype: str | None, device: str | None, progress: ProgressFn | None, should_stop: ShouldStop | None
) -> Path:
    """Dequantize a GGUF file for transformers, unless the result would not fit into memory."""
    ready = converted.find_converted(path)
    if ready is not None:
        return ready
    gguf = read_gguf(path)
    converted.require_convertible(gguf)
    if (device or default_device()) == "cpu":
        each = 4 if (dtype or dequantize.target_dtype(gguf)) == "float32" else 2
        memory.require(path.stem, gguf.parameters * each, margin=MARGIN)
    return converted.convert(path, progress=progress, should_stop=should_stop)
