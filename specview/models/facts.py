"""Flat facts about a loaded engine and this machine, as they stand in files."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from specview import __version__
from specview.decoding.interfaces import Engine
from specview.models.cache import remembered_sha256, sha256_of
from specview.models.catalog import ModelRef
from specview.models.converted import recorded_sha256

HASH_LIMIT_BYTES = 2 << 30
"""Larger weights are hashed only when `weights_sha256` is asked to: it would take long here."""


@dataclass(frozen=True, slots=True)
class LoadedFrom:
    """Where a loaded engine's model came from; path is the file or folder that was loaded."""

    ref: ModelRef
    path: Path
    threads: int | None


_loaded: WeakKeyDictionary[Any, LoadedFrom] = WeakKeyDictionary()


def note_origin(engine: Engine, origin: LoadedFrom) -> None:
    """Remember where a loaded engine came from, as long as it lives."""
    _loaded[engine] = origin


def where_from(engine: Engine) -> LoadedFrom | None:
    """Return where an engine loaded by `load_engine` came from."""
    return _loaded.get(engine)


def versions() -> dict[str, str | None]:
    """Versions of specview and of what it runs on; None for what is not installed. Imports nothing."""
    found: dict[str, str | None] = {"specview": __version__, "python": platform.python_version()}
    for key, package in (
        ("torch", "torch"),
        ("transformers", "transformers"),
        ("tokenizers", "tokenizers"),
        ("llama_cpp_python", "llama-cpp-python"),
        ("numpy", "numpy"),
    ):
        try:
            found[key] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[key] = None
    return found


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def device_name(device: str) -> str:
    """The name of the device a model runs on: the GPU's where it is one, else the processor's."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(torch.device(device)))
    return cpu_model()


def weights_sha256(path: Path, *, hash_limit_bytes: int | None = None) -> str | None:
    """SHA-256 of a GGUF file or of a folder's weights, remembered by size and change time.

    Several weight files count as the hash of their lines "sha256  name". None when the weights are
    larger than hash_limit_bytes and their hash is not known yet, or cannot be read.
    """
    if path.is_dir():
        recorded = recorded_sha256(path)
        if recorded is not None:
            return recorded
        files = sorted(path.glob("*.safetensors"))
    else:
        files = [path]
    try:
        unknown = sum(file.stat().st_size for file in files if remembered_sha256(file) is None)
        if not files or (hash_limit_bytes is not None and unknown > hash_limit_bytes):
            return None
        hashes = [sha256_of(file) for file in files]
    except OSError:
        return None
    if len(files) == 1:
        return hashes[0]
    listing = "".join(f"{sha256}  {file.name}\n" for sha256, file in zip(hashes, files, strict=True))
    return hashlib.sha256(listing.encode()).hexdigest()


def facts(engine: Engine, *, hash_limit_bytes: int | None = HASH_LIMIT_BYTES) -> dict[str, Any]:
    """Return flat facts about an engine, the model in it, and this machine.

    Hashes the weights the first time (about 0.2 s for the bundled model): call it off the clock.
    """
    source = where_from(engine)
    model: dict[str, Any] = {
        "model_name": engine.model_name,
        "file": source.path.name if source else None,
        "sha256": weights_sha256(source.path, hash_limit_bytes=hash_limit_bytes) if source else None,
        "source_file": source.ref.path.name if source and source.ref.path else None,
        "source_sha256": None,
        "engine": engine.name,
        "device": engine.device,
        "dtype": engine.dtype,
        "weight_bytes": engine.weight_bytes,
        "context_length": engine.context_length,
        "vocab_size": engine.vocab_size,
    }
    if source and source.ref.path is not None and source.ref.path != source.path and source.ref.path.is_file():
        model["source_sha256"] = remembered_sha256(source.ref.path)
    threads = getattr(engine, "threads", None) or (source.threads if source else None)
    machine = {
        "threads": threads,
        "device_name": device_name(engine.device),
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
    }
    return model | machine | {f"version_{name}": version for name, version in versions().items()}
