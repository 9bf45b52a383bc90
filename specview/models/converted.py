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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from specview.engines.gguf_file import GgufFile, read_gguf
from specview.errors import SpecviewError
from specview.models import dequantize
from specview.models.cache import (
    ProgressFn,
    ShouldStop,
    Watch,
    cache_dir,
    check_room,
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
    watch = Watch(progress, should_stop)
    watch.check()
    ready = find_converted(source)
    if ready is not None:
        return ready
    gguf = read_gguf(source)
    require_convertible(gguf)
    root = _root("the converted model")
    try:
        sha256 = sha256_of(source, watch)
    except OSError as error:
        raise SpecviewError(f"{source} cannot be read ({error.strerror or error}).", "Check the disk.") from error
    stem = re.sub(r"[^\w.-]+", "_", source.stem)[:80]
    found = source.stat()

    def fill(partial: Path) -> str:
        written = _write(partial / WEIGHTS, _dequantized(gguf, watch))
        for name, content in (
            ("config.json", dequantize.hf_config(gguf)),
            ("generation_config.json", dequantize.generation_config(gguf)),
        ):
            (partial / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
        write_tokenizer(gguf, partial)
        return written

    return _made(
        root / f"{stem}-{sha256[:12]}-{dequantize.target_dtype(gguf)}",
        {"path": str(source.resolve()), "size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": sha256},
        ("the converted model", f"converting {source.name}", dequantize.written_bytes(gguf)),
        fill,
        lambda folder: _read_alike(folder, gguf),
        watch,
    )


def with_tokenizer(
    folder: Path, source: Path, *, progress: ProgressFn | None = None, should_stop: ShouldStop | None = None
) -> Path:
    """Return a cached copy of a model folder with the tokenizer of a GGUF file beside its weights.

    For a folder that was made for that very tokenizer and holds none. Checked, locked and rebuilt as
    in `convert`.
    """
    watch = Watch(progress, should_stop)
    watch.check()
    root = _root("the draft's copy")
    config = (folder / "config.json").read_bytes()
    identity = f"{sha256_of(folder / WEIGHTS)} {hashlib.sha256(config).hexdigest()} {sha256_of(source)}"
    key = hashlib.sha256(identity.encode()).hexdigest()

    def fill(partial: Path) -> str:
        written = _write(partial / WEIGHTS, _copied(folder / WEIGHTS, watch))
        (partial / "config.json").write_bytes(config)
        write_tokenizer(read_gguf(source), partial)
        return written

    return _made(
        root / f"{folder.name}-{key[:12]}-copy",
        {"path": str(folder.resolve()), "sha256": key},
        ("the draft's copy", "the draft's copy", (folder / WEIGHTS).stat().st_size),
        fill,
        lambda copy: True,
        watch,
    )


def _root(what: str) -> Path:
    """The folder of converted models, made where it is missing."""
    root = converted_root()
    with clear_write_errors(root, what):
        root.mkdir(parents=True, exist_ok=True)
    return root


def _made(
    folder: Path,
    source: dict[str, Any],
    room: tuple[str, str, int],
    fill: Callable[[Path], str],
    is_right: Callable[[Path], bool],
    watch: Watch,
) -> Path:
    """Return a folder of the cache, made by `fill` unless it is there whole and right.

    source is what the manifest says it was made from. room: what it is, what needs how many bytes of room. fill writes all
    files and returns the hash of the weights.
    """

    def whole() -> bool:
        return problem_with(folder, source["sha256"]) is None and is_right(folder)

    what, asking, size = room
    if whole():
        return folder
    root = folder.parent
    with _Locked(root, folder.name, watch):
        if whole():
            return folder
        with clear_write_errors(root, "the converted model"):
            if folder.exists():
                shutil.rmtree(folder)
            for stale in root.glob(f"{_PARTIAL}{folder.name}-*"):  # what an earlier crash left half-written
                shutil.rmtree(stale, ignore_errors=True)
        check_room(root, size + _SPARE, asking)
        with clear_write_errors(root, what):
            _build(folder, source, fill, watch)
    return folder


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

    def __init__(self, root: Path, name: str, watch: Watch) -> None:
        from filelock import FileLock

        self.root, self.watch = root, watch
        self.lock = FileLock(root / f".{name}.lock")

    def __enter__(self) -> None:
        from filelock import Timeout

        while True:
            self.watch.check()
            with clear_write_errors(self.root, "a lock file"):
                try:
                    self.lock.acquire(timeout=0.2)
                    return
                except Timeout:  # an OSError too, so caught inside
                    pass
            self.watch.tell("Waiting for another specview that converts this model")

    def __exit__(self, *_: object) -> None:
        self.lock.release()


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


def _build(folder: Path, source: dict[str, Any], fill: Callable[[Path], str], watch: Watch) -> None:
    """Let `fill` write everything beside the folder's place, add the manifest, rename it into place."""
    partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{folder.name}-", dir=folder.parent))
    try:
        hashes = {WEIGHTS: fill(partial)}
        for path in sorted(partial.iterdir()):
            if path.name != WEIGHTS:
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
                hashes[path.name] = _hash(path)
        files = {name: {"size": (partial / name).stat().st_size, "sha256": sha256} for name, sha256 in hashes.items()}
        write_json(partial / MANIFEST, {"schema": SCHEMA, "source": source, "files": files})
        watch.check()
        sync_folder(partial)
        os.rename(partial, folder)
        sync_folder(folder.parent)
        remember_sha256(folder / WEIGHTS, hashes[WEIGHTS])
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _open_weights(path: Path) -> IO[bytes]:
    """Open the weights file; a seam where tests fill the disk."""
    return path.open("wb")


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Write all pieces of the weights into a file; return its hash."""
    digest = hashlib.sha256()
    with _open_weights(path) as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _dequantized(gguf: GgufFile, watch: Watch) -> Iterator[bytes | memoryview]:
    """The weights' file, piece by piece."""
    done, total = 0, max(1, dequantize.written_bytes(gguf))
    for piece in dequantize.weight_pieces(gguf):
        watch.check()
        yield piece
        done += len(piece)
        watch.tell(f"Converting {gguf.path.name} for transformers (first time only)", min(1.0, done / total))


def _copied(path: Path, watch: Watch) -> Iterator[bytes]:
    """A file, piece by piece."""
    with path.open("rb") as original:
        while chunk := original.read(4 << 20):
            watch.check()
            yield chunk
