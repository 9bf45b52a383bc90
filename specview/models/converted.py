"""Model folders that specview dequantized from GGUF files, kept in its cache.

A folder appears whole or not at all: it is written beside its place, synced and renamed. A manifest
in it holds the source's hash and every file's size and hash; a start checks it before use and builds
the folder again when it does not agree. A lock file keeps two starts from doing the same work twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from specview.engines.gguf_file import GgufFile, read_gguf
from specview.errors import SpecviewError
from specview.models import dequantize
from specview.models.cache import (
    ProgressFn,
    ShouldStop,
    cache_dir,
    check_room,
    check_stop,
    clear_write_errors,
    remember_sha256,
    remembered_sha256,
    sha256_of,
    sync_folder,
    write_json,
)
from specview.models.gguf_tokenizer import write_tokenizer

MANIFEST = "specview-manifest.json"
SCHEMA = "specview.converted/1"
WEIGHTS = "model.safetensors"
_PARTIAL = ".partial-"
_SPARE = 64 << 20  # room for the tokenizer and the file system itself


def converted_root() -> Path:
    """The cache's folder of converted models."""
    return cache_dir() / "converted"


def find_converted(source: Path) -> Path | None:
    """Return the verified folder converted from `source`, or None; converts and hashes nothing."""
    sha256 = remembered_sha256(source)
    if sha256 is None:
        return None
    for folder in sorted(converted_root().glob(f"*-{sha256[:12]}-*")):
        if problem_with(folder, sha256) is None and _read_alike(folder, read_gguf(source)):
            return folder
    return None


def _read_alike(folder: Path, gguf: GgufFile) -> bool:
    """Whether a whole folder has the configuration that is made of its file now: an earlier version may have misread it."""
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return dequantize.conversion_problem(gguf) is None and bool(written == dequantize.hf_config(gguf))


def convert(
    source: Path, *, progress: ProgressFn | None = None, should_stop: ShouldStop | None = None
) -> Path:
    """Return a safetensors folder with the dequantized weights and tokenizer of a GGUF file.

    The first call for a file writes it; later ones check and reuse it. Raises SpecviewError for a
    file that cannot be converted, a full disk or a missing permission; Stopped when asked to stop.
    """
    check_stop(should_stop)
    ready = find_converted(source)
    if ready is not None:
        return ready
    gguf = read_gguf(source)
    require_convertible(gguf)
    root = converted_root()
    with clear_write_errors(root, "the converted model"):
        root.mkdir(parents=True, exist_ok=True)
    try:
        sha256 = sha256_of(source, progress=progress, should_stop=should_stop)
    except OSError as error:
        raise SpecviewError(f"{source} cannot be read ({error.strerror or error}).", "Check the disk.") from error
    stem = re.sub(r"[^\w.-]+", "_", source.stem)[:80]
    folder = root / f"{stem}-{sha256[:12]}-{dequantize.target_dtype(gguf)}"
    with _Locked(root, folder.name, progress, should_stop):
        if problem_with(folder, sha256) is None and _read_alike(folder, gguf):
            return folder
        _clear(root, folder)
        check_room(root, dequantize.written_bytes(gguf) + _SPARE, f"converting {source.name}")
        with clear_write_errors(root, "the converted model"):
            facts = source.stat()
            origin = {"path": str(source.resolve()), "size": facts.st_size, "mtime_ns": facts.st_mtime_ns}
            _build(
                folder,
                {**origin, "sha256": sha256},
                lambda partial: _fill(gguf, partial, progress, should_stop),
                should_stop,
            )
    return folder


def _fill(
    gguf: GgufFile, partial: Path, progress: ProgressFn | None, should_stop: ShouldStop | None
) -> dict[str, Any]:
    """Write the files of a converted model; return the weights' manifest entry."""
    entry = _write_weights(gguf, partial / WEIGHTS, progress, should_stop)
    for name, content in (
        ("config.json", dequantize.hf_config(gguf)),
        ("generation_config.json", dequantize.generation_config(gguf)),
    ):
        (partial / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    write_tokenizer(gguf, partial)
    return entry


def require_convertible(gguf: GgufFile) -> None:
    """Raise SpecviewError with the reason when a GGUF file cannot be dequantized for transformers."""
    problem = dequantize.conversion_problem(gguf)
    if problem is not None:
        raise SpecviewError(
            f"{gguf.path.name} cannot be used in transformers: {problem}.",
            "Use the llama.cpp engine for it, or give the model's safetensors folder.",
        )


def problem_with(folder: Path, source_sha256: str) -> str | None:
    """Say why a converted folder cannot be used, or None when it is whole.

    Every file is hashed, the weights when they are not the very file that was hashed before.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA or manifest["source"]["sha256"] != source_sha256:
            return "it was made from another file or by another version"
        files = manifest["files"]
        if WEIGHTS not in files or "config.json" not in files or "tokenizer.json" not in files:
            return "its manifest is incomplete"
        for name, entry in files.items():
            path = folder / Path(name).name
            if path.stat().st_size != entry["size"]:
                return f"{name} has another size"
            if (sha256_of if name == WEIGHTS else _hash)(path) != entry["sha256"]:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "it is incomplete"
    return None


def recorded_sha256(folder: Path) -> str | None:
    """The hash of a converted folder's weights from its manifest, or None for any other folder."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return str(manifest["files"][WEIGHTS]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Locked:
    """Hold the lock of one conversion; while another process holds it, wait and listen for Stop."""

    def __init__(
        self, root: Path, name: str, progress: ProgressFn | None, should_stop: ShouldStop | None
    ) -> None:
        from filelock import FileLock

        self.root, self.progress, self.should_stop = root, progress, should_stop
        self.lock = FileLock(root / f".{name}.lock")

    def __enter__(self) -> None:
        from filelock import Timeout

        while True:
            check_stop(self.should_stop)
            with clear_write_errors(self.root, "a lock file"):
                try:
                    self.lock.acquire(timeout=0.2)
                    return
                except Timeout:  # an OSError too, so caught inside
                    pass
            if self.progress is not None:
                self.progress("Waiting for another specview that converts this model", None)

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _clear(root: Path, folder: Path) -> None:
    """Remove a folder that is not whole, and what an earlier crash left half-written (lock held)."""
    with clear_write_errors(root, "the converted model"):
        if folder.exists():
            shutil.rmtree(folder)
        for stale in root.glob(f"{_PARTIAL}{folder.name}-*"):
            shutil.rmtree(stale, ignore_errors=True)


def remove_partials() -> list[Path]:
    """Remove what killed conversions left half-written; those under way keep theirs. Returns what is gone."""
    from filelock import FileLock, Timeout

    gone = []
    for stale in converted_root().glob(f"{_PARTIAL}*"):
        name = stale.name.removeprefix(_PARTIAL).rpartition("-")[0]
        try:
            with FileLock(converted_root() / f".{name}.lock", timeout=0):
                shutil.rmtree(stale)
                gone.append(stale)
        except (Timeout, OSError):
            continue  # under way, or gone already
    return gone


def with_tokenizer(
    folder: Path, source: Path, *, progress: ProgressFn | None = None, should_stop: ShouldStop | None = None
) -> Path:
    """Return a cached copy of a model folder with the tokenizer of a GGUF file beside its weights.

    For a folder that was made for that very tokenizer and holds none. Checked, locked and rebuilt as
    in `convert`.
    """
    check_stop(should_stop)
    root = converted_root()
    with clear_write_errors(root, "the draft's copy"):
        root.mkdir(parents=True, exist_ok=True)
    config = (folder / "config.json").read_bytes()
    identity = f"{sha256_of(folder / WEIGHTS)} {hashlib.sha256(config).hexdigest()} {sha256_of(source)}"
    key = hashlib.sha256(identity.encode()).hexdigest()
    copy = root / f"{folder.name}-{key[:12]}-copy"
    if problem_with(copy, key) is None:
        return copy

    def fill(partial: Path) -> dict[str, Any]:
        digest = hashlib.sha256()
        with (folder / WEIGHTS).open("rb") as original, _open_weights(partial / WEIGHTS) as file:
            while chunk := original.read(4 << 20):
                check_stop(should_stop)
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        (partial / "config.json").write_bytes(config)
        write_tokenizer(read_gguf(source), partial)
        return _weights_entry(partial / WEIGHTS, digest.hexdigest())

    with _Locked(root, copy.name, progress, should_stop):
        if problem_with(copy, key) is None:
            return copy
        _clear(root, copy)
        check_room(root, (folder / WEIGHTS).stat().st_size + _SPARE, "the draft's copy")
        with clear_write_errors(root, "the draft's copy"):
            _build(copy, {"path": str(folder.resolve()), "sha256": key}, fill, should_stop)
    return copy


def _build(
    folder: Path,
    source: dict[str, Any],
    fill: Callable[[Path], dict[str, Any]],
    should_stop: ShouldStop | None,
) -> None:
    """Let `fill` write everything beside the folder's place, add the manifest, rename it into place.

    fill returns the manifest entry of the weights.
    """
    partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{folder.name}-", dir=folder.parent))
    try:
        files: dict[str, Any] = {WEIGHTS: fill(partial)}
        for path in sorted(partial.iterdir()):
            if path.name != WEIGHTS:
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
                files[path.name] = {"size": path.stat().st_size, "sha256": _hash(path)}
        write_json(partial / MANIFEST, {"schema": SCHEMA, "source": source, "files": files})
        check_stop(should_stop)
        sync_folder(partial)
        os.rename(partial, folder)
        sync_folder(folder.parent)
        remember_sha256(folder / WEIGHTS, files[WEIGHTS]["sha256"])
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _open_weights(path: Path) -> IO[bytes]:
    """Open the weights file; a seam where tests fill the disk."""
    return path.open("wb")


def _write_weights(
    gguf: GgufFile, path: Path, progress: ProgressFn | None, should_stop: ShouldStop | None
) -> dict[str, Any]:
    """Write the weights and return their manifest entry."""
    digest = hashlib.sha256()
    done, total = 0, max(1, dequantize.written_bytes(gguf))

    def on_bytes(piece: bytes | memoryview) -> None:
        nonlocal done
        check_stop(should_stop)
        digest.update(piece)
        done += len(piece)
        if progress is not None:
            progress(f"Converting {gguf.path.name} for transformers (first time only)", min(1.0, done / total))

    with _open_weights(path) as file:
        dequantize.write_weights(gguf, file, on_bytes)
        file.flush()
        os.fsync(file.fileno())
    return _weights_entry(path, digest.hexdigest())


def _weights_entry(path: Path, sha256: str) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256}
