"""Which model a name means, and which models this machine has."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Literal

from specview.engines.gguf_file import read_gguf
from specview.errors import SpecviewError, UsageError
from specview.models import bundled, hub
from specview.models.model_folder import inspect_folder, looks_like_model
from specview.settings.run import BUNDLED, ENGINES

Kind = Literal["gguf", "folder", "hub"]
Role = Literal["target", "draft"]
Origin = Literal["bundled", "path", "hub cache", "hub", "found"]

_MAX_DEPTH = 4
_MAX_FOUND = 500
_MAX_LOOKED_AT = 20_000  # entries of a folder, and models of a place

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model by what `--target` or `--draft` would call it.

    spec is that text; path is its file or folder (None for a hub id that is not cached yet); engines
    are those that can load it; origin says where it was found.
    """

    spec: str
    kind: Kind
    path: Path | None
    name: str
    origin: Origin
    engines: tuple[str, ...]
    architecture: str = ""
    size_bytes: int | None = None
    role: Role | None = None
    repo_id: str | None = None
    repo_file: str | None = None

    @property
    def label(self) -> str:
        """Name, architecture and size on one line."""
        size = f"{self.size_bytes / 1e9:.2f} GB" if self.size_bytes else ""
        return ", ".join(part for part in (self.name, self.architecture, size) if part)


def path_of(text: str) -> Path:
    """The path that a user wrote; ~ is the home folder, ~name only where there is such a user."""
    return Path(os.path.expanduser(text))


def existing(text: str) -> Path | None:
    """The file or folder that a user wrote, or None; raises SpecviewError where the way to it is closed."""
    path = path_of(text)
    try:
        return path if path.exists() else None
    except OSError as error:
        raise SpecviewError(f"{text} cannot be read ({error.strerror or error}).", "Check its permissions.") from None


def resolve(spec: str, engine: str, role: Role = "target") -> ModelRef:
    """Return the model that `spec` names for `engine`; asks no network and reads no weights.

    spec is "bundled", a .gguf file, a model folder, a hub id (owner/name) or a GGUF file on the Hub
    (owner/name/file.gguf). Raises SpecviewError naming what was looked for, or UsageError when the
    engine cannot load that kind.
    """
    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}.", f"Engines: {', '.join(ENGINES)}.")
    text = spec.strip()
    if not text:
        raise UsageError(f"no {role} is named.", "Give bundled, a .gguf file, a model folder or a hub id.")
    if text == BUNDLED:
        return _bundled(engine, role)
    path = existing(text)
    if path is not None:
        found = _ref(text, path, "path")
        if engine == "llama.cpp" and found.kind == "folder":
            raise UsageError(
                f"llama.cpp loads GGUF files, and {path} is a folder of safetensors.",
                "Give a .gguf file, or choose the transformers engine.",
            )
        return found
    gguf_id = hub.split_gguf_id(text)
    if gguf_id is not None and not path_of(text).is_absolute() and not text.startswith("."):
        repo_id, file = gguf_id
        cached = hub.cached_gguf(repo_id, file)
        if cached is not None:
            return _ref(text, cached, "hub cache", repo_id)
        name = Path(file).stem
        return ModelRef(text, "gguf", None, name, "hub", ENGINES, repo_id=repo_id, repo_file=file)
    if hub.is_repo_id(text):
        if engine == "llama.cpp":
            raise UsageError(
                f"llama.cpp loads GGUF files, and {text} is the id of a whole repository.",
                f"Name one file in it: {text}/FILE.gguf.",
            )
        folder = hub.cached_folder(text)
        if folder is not None:
            return _ref(text, folder, "hub cache", text)
        return ModelRef(text, "hub", None, text.split("/")[1], "hub", ("transformers",), repo_id=text)
    raise SpecviewError(
        f"there is no file or folder {text}.", "Check the path, or give bundled or a hub id (owner/name)."
    )


def _bundled(engine: str, role: Role) -> ModelRef:
    if role == "target":
        path = bundled.target_gguf()
        return ModelRef(
            BUNDLED, "gguf", path, path.stem, "bundled", ENGINES, "llama", path.stat().st_size, role="target"
        )
    path = bundled.draft(engine)
    size = path.stat().st_size if path.is_file() else (path / "model.safetensors").stat().st_size
    kind: Kind = "gguf" if path.is_file() else "folder"
    return ModelRef(BUNDLED, kind, path, "specview draft", "bundled", (engine,), "llama", size, role="draft")


def _ref(spec: str, path: Path, origin: Origin = "found", repo_id: str | None = None) -> ModelRef:
    """The model in a file or folder; raises SpecviewError where there is none, or it is damaged."""
    if path.is_dir():
        facts = inspect_folder(path)
        name = repo_id.split("/")[1] if repo_id else path.resolve().name
        return ModelRef(
            spec, "folder", path, name, origin, ("transformers",), facts.model_type, facts.file_bytes, repo_id=repo_id
        )
    from specview.models.dequantize import conversion_problem

    gguf = read_gguf(path)
    engines = ENGINES if conversion_problem(gguf) is None else ("llama.cpp",)
    return ModelRef(spec, "gguf", path, path.stem, origin, engines, gguf.architecture, gguf.size, repo_id=repo_id)


def list_models(extra: Iterable[Path] = ()) -> list[ModelRef]:
    """Return the bundled models, the Hugging Face cache's, and files and folders in the usual places.

    Folders that cannot be read, and files that are no models or are cut short, are left out. Reads
    headers only; call it when the list is wanted, for it walks folders.
    """
    found: list[ModelRef] = []
    roles: tuple[Role, ...] = ("target", "draft")
    for engine, role in product(ENGINES, roles):
        found += [ref for ref in _try(partial(_bundled, engine, role), BUNDLED) if ref not in found]
    found += _hub_models()
    seen = {ref.path.resolve() for ref in found if ref.path is not None}
    for root in [*usual_places(), *extra]:
        for path in islice(_walk(root, 0), _MAX_LOOKED_AT):
            if len(found) >= _MAX_FOUND:
                return found
            try:
                place = path.resolve()
            except (OSError, RuntimeError):  # a link that leads round in a circle
                continue
            if place in seen:
                continue
            seen.add(place)
            found += _try(partial(_ref, str(path), path), path)
    return found


def usual_places() -> list[Path]:
    """Folders where programs keep models on this machine (those that exist)."""
    home = Path.home()
    places = [
        home / "models",
        home / ".lmstudio" / "models",
        home / ".cache" / "lm-studio" / "models",
        home / ".cache" / "llama.cpp",
        home / "Library" / "Caches" / "llama.cpp",
    ]
    custom = os.environ.get("LLAMA_CACHE")
    if custom:
        places.append(path_of(custom))
    present = []
    for place in places:
        try:
            if place.is_dir():
                present.append(place)
        except OSError:
            continue
    return present


def _try(look: Callable[[], ModelRef | None], at: str | Path) -> list[ModelRef]:
    """The model that `look` finds at a place, if any; what lies there costs itself alone."""
    try:
        found = look()
    except (SpecviewError, OSError):
        return []
    except Exception:
        log.exception("looking at %s failed", at)
        return []
    return [] if found is None else [found]


def _cached(spec: str, find: Callable[[], Path | None], repo_id: str) -> ModelRef | None:
    path = find()
    return None if path is None else _ref(spec, path, "hub cache", repo_id)


def _is_first_gguf(name: str) -> bool:
    """Whether a file name is that of a model: no projector, no later part of a split one."""
    return name.endswith(".gguf") and "mmproj" not in name and ("-of-" not in name or "-00001-of-" in name)


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Model folders and GGUF files under `folder`: the first file of a split one, no projectors."""
    try:
        with os.scandir(folder) as inside:
            entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(inside, _MAX_LOOKED_AT))
    except OSError:
        return
    if looks_like_model(folder):
        yield folder
    for name, is_folder in entries:
        if is_folder:
            if depth < _MAX_DEPTH:
                yield from _walk(folder / name, depth + 1)
        elif _is_first_gguf(name):
            yield folder / name


def _hub_models() -> list[ModelRef]:
    """Complete safetensors models and GGUF files in the Hugging Face cache.

    The cache's layout is walked directly: importing its library would cost most of a second.
    """
    refs: list[ModelRef] = []
    for repo_id in hub.cached_ids():
        refs += _try(partial(_cached, repo_id, partial(hub.cached_folder, repo_id), repo_id), repo_id)
        for file in filter(_is_first_gguf, hub.cached_gguf_files(repo_id)):
            refs += _try(partial(_cached, f"{repo_id}/{file}", partial(hub.cached_gguf, repo_id, file), repo_id), file)
    return refs
