"""Models named by a Hugging Face id: found in the local cache, or downloaded when the user says so.

Nothing is fetched unless the user named that very id as target or draft.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError, Stopped
from specview.heads.files import PICKLES, weights_of
from specview.models.cache import ProgressFn, ShouldStop, Watch, check_room, clear_write_errors
from specview.models.model_folder import inspect_folder
from specview.reading import read_text

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
GGUF_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)/([\w./-]+\.gguf)")

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
"""Files of a model that are fetched: never pickles, never code."""
_MAX_REF = 1 << 10  # bytes of a file that names a commit
_SKIPPED = ("*/*", "consolidated*.safetensors")  # other layouts of the same weights


def is_repo_id(text: str) -> bool:
    """Whether `text` has the form owner/name of a model on the Hub."""
    return REPO_ID.fullmatch(text) is not None and ".." not in text and not text.endswith((".gguf", "/", ".git"))


def split_gguf_id(text: str) -> tuple[str, str] | None:
    """Split owner/name/file.gguf into its id and file, or None for another form."""
    match = GGUF_ID.fullmatch(text)
    return (match[1], match[2]) if match and ".." not in text else None


def hub_cache() -> Path:
    """The Hugging Face cache folder, from the environment variables that its library reads."""
    for name, inside in (
        ("HF_HUB_CACHE", ()),
        ("HUGGINGFACE_HUB_CACHE", ()),
        ("HF_HOME", ("hub",)),
        ("XDG_CACHE_HOME", ("huggingface", "hub")),
    ):
        value = os.environ.get(name)
        if value:
            return Path(os.path.expanduser(value)).joinpath(*inside)
    return Path.home() / ".cache" / "huggingface" / "hub"


def cached_ids() -> list[str]:
    """Ids of the models in the cache, complete or not."""
    try:
        names = sorted(entry.name for entry in hub_cache().iterdir())
    except OSError:
        return []
    parts = [name.split("--") for name in names if name.startswith("models--")]
    return [f"{part[1]}/{'--'.join(part[2:])}" for part in parts if len(part) >= 3]


def _snapshots(repo_id: str) -> list[Path]:
    """Cached snapshots of a repository: the one that `main` names first, then the newest."""
    repo = hub_cache() / f"models--{repo_id.replace('/', '--')}"
    try:
        folders = [(folder.stat().st_mtime, folder) for folder in (repo / "snapshots").iterdir()]
    except OSError:
        return []
    try:
        main = read_text(repo / "refs" / "main", _MAX_REF).strip()
    except (OSError, ValueError):
        main = ""
    return [folder for _, folder in sorted(folders, key=lambda entry: (entry[1].name != main, -entry[0]))]


def cached_folder(repo_id: str) -> Path | None:
    """Return a complete cached snapshot of a model, or None; asks no network."""
    for folder in _snapshots(repo_id):
        with suppress(SpecviewError, OSError):
            inspect_folder(folder)
            return folder
    return None


def cached_head(repo_id: str) -> Path | None:
    """Return a cached snapshot of a trained head's repository, or None; asks no network."""
    for folder in _snapshots(repo_id):
        with suppress(SpecviewError, OSError):
            weights_of(folder)
            if (folder / "config.json").is_file():
                return folder
    return None


def cached_gguf(repo_id: str, file: str) -> Path | None:
    """Return a cached GGUF file of a model repository, or None; asks no network."""
    for folder in _snapshots(repo_id):
        with suppress(OSError):
            if (folder / file).is_file():
                return folder / file
    return None


def cached_gguf_files(repo_id: str) -> list[str]:
    """Names of the GGUF files of a repository that are cached."""
    found: set[str] = set()
    for folder in _snapshots(repo_id):
        with suppress(OSError):
            found.update(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))
    return sorted(found)


def fetch(repo_id: str, *, progress: ProgressFn | None = None, should_stop: ShouldStop | None = None) -> Path:
    """Return the folder of a model, downloading the files that are missing (those whole already are kept).

    Raises SpecviewError when the Hub cannot be reached, knows no such model or holds no safetensors;
    Stopped within one network chunk when asked to stop.
    """
    ready = cached_folder(repo_id)
    if ready is not None:
        return ready
    hub = _Repository(repo_id, Watch(progress, should_stop))
    wanted = [
        name
        for name in hub.sizes
        if any(fnmatch(name, pattern) for pattern in PATTERNS) and not any(fnmatch(name, skip) for skip in _SKIPPED)
    ]
    if not any(name.endswith(".safetensors") for name in wanted):
        mend = f"For llama.cpp name one file: {repo_id}/{hub.ggufs[0]}." if hub.ggufs else "Choose a model that has them."
        raise SpecviewError(f"{repo_id} has no safetensors weights.", mend)
    # a broken weights file must not be found without its small files, so those come first
    return hub.download(sorted(wanted, key=lambda name: (name.endswith(".safetensors"), name))).parent


def fetch_head(
    repo_id: str,
    check: Callable[[Path], None] | None = None,
    *,
    progress: ProgressFn | None = None,
    should_stop: ShouldStop | None = None,
) -> Path:
    """Return the folder of a trained head, downloading it where it is not cached; as `fetch`.

    check is called with the folder once its config.json is there, and raises SpecviewError to fetch no more. Pickles
    are fetched only where there are no safetensors: they are never opened by what could run them.
    """
    ready = cached_head(repo_id)
    if ready is not None:
        return ready
    hub = _Repository(repo_id, Watch(progress, should_stop))
    names = [name for name in hub.sizes if "/" not in name]
    weights = [name for name in names if name.endswith(".safetensors")]
    weights = sorted(weights or [name for name in names if name.endswith(PICKLES)])
    if "config.json" not in names or not weights:
        lacking = "weights" if "config.json" in names else "config.json"
        raise SpecviewError(f"{repo_id} is no trained head: it has no {lacking}.", "Choose another head.")
    small = sorted(name for name in names if name.endswith(".json"))
    folder = hub.download(small).parent
    if check is not None:
        check(folder)
    return hub.download(weights).parent


def fetch_gguf(
    repo_id: str, file: str, *, progress: ProgressFn | None = None, should_stop: ShouldStop | None = None
) -> Path:
    """Return one GGUF file of a repository, downloading it where it is not cached; as `fetch`."""
    ready = cached_gguf(repo_id, file)
    if ready is not None:
        return ready
    hub = _Repository(repo_id, Watch(progress, should_stop))
    if file not in hub.sizes:
        mend = f"It has: {', '.join(hub.ggufs[:6])}." if hub.ggufs else "It has no GGUF file."
        raise SpecviewError(f"{repo_id} has no file {file}.", mend)
    return hub.download([file])


class _Repository:
    """A repository on the Hub: file names and sizes, asked for when it is made, and downloads."""

    def __init__(self, repo_id: str, watch: Watch) -> None:
        from huggingface_hub import HfApi

        self._id, self._watch = repo_id, watch
        watch.check()
        watch.tell(f"Asking the Hugging Face Hub for {repo_id}")
        try:
            info = HfApi().model_info(repo_id, files_metadata=True, timeout=20)
        except Exception as error:
            raise _explained(repo_id, error) from error
        watch.check()
        self.sizes: Mapping[str, int] = {entry.rfilename: int(entry.size or 0) for entry in info.siblings or ()}
        self.ggufs = sorted(name for name in self.sizes if name.endswith(".gguf"))

    def download(self, names: Sequence[str]) -> Path:
        """Download files one after another; return the path of the last one in its snapshot."""
        from huggingface_hub import hf_hub_download

        total = max(1, sum(self.sizes[name] for name in names))
        check_room(hub_cache(), total, f"downloading {self._id}")
        done = 0
        path = ""
        for name in names:
            bar = self._bar(done, total)
            self._watch.check()
            try:
                with clear_write_errors(hub_cache(), self._id):
                    path = hf_hub_download(self._id, name, tqdm_class=bar)
            except (Stopped, SpecviewError):
                raise
            except Exception as error:
                self._watch.check()  # a stop inside the download may come out as its library's error
                raise _explained(self._id, error) from error
            done += self.sizes[name]
        self._watch.check()
        return Path(path)

    def _bar(self, before: int, total: int) -> Any:
        """A tqdm class that draws nothing, reports bytes, and raises Stopped from inside the download."""
        from huggingface_hub.utils import tqdm

        watch, repo_id = self._watch, self._id

        class Bar(tqdm):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.pop("name", None)
                kwargs["disable"] = True
                super().__init__(*args, **kwargs)
                self.here = int(kwargs.get("initial") or 0)

            def update(self, n: float | None = 1) -> bool | None:
                watch.check()
                self.here += int(n or 0)
                at = before + self.here
                watch.tell(f"Downloading {repo_id}: {at / 1e6:.0f} of {total / 1e6:.0f} MB", min(1.0, at / total))
                return None

        return Bar


def _explained(repo_id: str, error: Exception) -> SpecviewError:
    """One line for what went wrong with the Hub."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return SpecviewError(
            f"{repo_id} asks for your consent on huggingface.co.", "Accept its terms there, then run: hf auth login."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return SpecviewError(f"the Hugging Face Hub has no model {repo_id}.", "Check the id (owner/name).")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return SpecviewError(f"the Hugging Face Hub answered {status} for {repo_id}.", "Try again later.")
    return SpecviewError(
        f"{repo_id} is not in the local cache and the Hugging Face Hub cannot be reached ({type(error).__name__}).",
        "Go online, or give a path to a model on this machine.",
    )
