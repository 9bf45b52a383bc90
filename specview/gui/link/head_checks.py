"""Which trained heads there are, and what one is and whether it fits the target: told before anything is loaded.

Configs and headers are read, no weights; off the Qt thread, see `library` and `background`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.files.folders import data_folder
from specview.gui.link.background import BackgroundAnswers
from specview.settings.options import INSIDE
from specview.settings.run import BUNDLED

if TYPE_CHECKING:
    from specview.heads.layouts import HeadFacts

log = logging.getLogger(__name__)

LATER = "What it is, and whether it fits, is told when it loads."
FETCHED = "It is not on this machine: the race fetches it from the Hub, and checks it then."
_ELSEWHERE = {
    "eagle": "They cannot be trained here (EAGLE-3 heads can); the Hub has some, such as yuhuili/EAGLE-LLaMA3-Instruct-8B.",
    "mlp-speculator": "They cannot be trained here (Medusa and EAGLE-3 heads can); the Hub has some, such as "
                      "ibm-ai-platform/llama3-8b-accelerator.",
}  # fmt: skip
"""Where heads are to be had that train cannot make, by kind."""
_MOST = 200
_MOST_ENTRIES = 20_000  # of a folder
_DEEPEST = 3


@dataclass(frozen=True, slots=True)
class FoundHead:
    """A trained head on this machine: what goes into the settings, its kind, its name, a line about it, and its target."""

    ref: str
    kind: str
    name: str
    detail: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class HeadQuestion:
    """A head, by what names it, for a target: as settings name both. answers are the lane's (option, value)."""

    kind: str
    ref: str
    target: str
    engine: str
    answers: tuple[tuple[str, str], ...] = ()


def has_bundled(kind: str) -> bool:
    """Whether a head of this kind comes with specview."""
    from specview.models.assets import asset_path

    try:
        return (asset_path(kind) / "config.json").is_file()
    except SpecviewError:
        return False


def needs_choice(method: str) -> bool:
    """Whether a lane of this method has to be told its head: none comes with specview, nor surely with the target."""
    info = METHODS.get(method)
    return info is not None and info.head is not None and not has_bundled(info.head)


def heads_for(target: str, engine: str, found: Iterable[FoundHead] = ()) -> set[str]:
    """Kinds of heads that are here for a target: the bundled ones where they pay, those of `found` that name it."""
    if target == BUNDLED:
        kinds = {info.head for info in METHODS.values() if info.head is not None and engine == "transformers"}
        return {kind for kind in kinds if has_bundled(kind)}
    return {head.kind for head in found if head.target and _short(head.target).casefold() == _short(target).casefold()}


def heads_folder() -> Path:
    """Where heads trained in the window go, unless another folder was chosen."""
    return data_folder("heads")


def no_head(kind: str, label: str) -> str:
    """What to do where no head of a kind comes with specview, in a line; label names the method."""
    from specview.training.asked import KINDS as TRAINED_KINDS

    found = f"No head for {label} comes with specview: choose a folder or a hub id"
    return f"{found}, or train one (Race menu)." if kind in TRAINED_KINDS else f"{found}. {_ELSEWHERE.get(kind, '')}".strip()


def find_heads() -> list[FoundHead]:
    """Heads in the hub cache, in the usual places for models and among those trained here; reads headers only."""
    from specview.models import hub
    from specview.models.catalog import usual_places

    found: list[FoundHead] = []
    for repo_id in hub.cached_ids():
        folder = hub.cached_head(repo_id)
        if folder is not None and (made := _try(repo_id, folder, "hub cache", repo_id)) is not None:
            found.append(made)
    for root in [heads_folder(), *usual_places()]:
        for folder in _folders(root, 0):
            if len(found) >= _MOST:
                return found
            if (made := _try(str(folder), folder, str(folder.parent))) is not None:
                found.append(made)
    return found


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders under `folder` that have a config and weights."""
    from specview.heads.files import PICKLES

    try:
        with os.scandir(folder) as inside:
            entries = {entry.name: entry.is_dir(follow_symlinks=False) for entry in islice(inside, _MOST_ENTRIES)}
    except OSError:
        return
    if "config.json" in entries and any(name.endswith((".safetensors", *PICKLES)) for name in entries):
        yield folder
    for name in sorted(name for name, is_folder in entries.items() if is_folder and depth < _DEEPEST):
        yield from _folders(folder / name, depth + 1)


def _try(ref: str, folder: Path, place: str, name: str = "") -> FoundHead | None:
    """The head in a folder; None where it has none. A whole model with MTP modules is a target, and no head to choose."""
    from specview.heads.read import read_head

    try:
        facts = read_head(folder)
    except (SpecviewError, OSError):
        return None
    except Exception:
        log.exception("looking at %s failed", folder)
        return None
    if facts.kind == INSIDE:
        return None
    trained = f"for {_short(facts.target_name)}" if facts.target_name else ""
    return FoundHead(ref, facts.kind, name or folder.name, " · ".join(part for part in (trained, place) if part), facts.target_name)


def head_in(folder: Path) -> FoundHead | None:
    """The trained head in a folder, None where it holds something else."""
    return _try(str(folder), folder, str(folder.parent)) if (folder / "config.json").is_file() else None


def _short(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def facts_words(facts: HeadFacts) -> str:
    """What a head is, in one sentence: kind, layout, size, what it reads, what it was trained for."""
    from specview.heads.layouts import KIND_WORDS

    words = KIND_WORDS.get(facts.kind, facts.kind)
    layout = facts.layout.partition(", ")[2] or facts.layout
    parts = [f"{words[:1].upper()}{words[1:]} ({layout})"]
    if facts.parameters:
        parts.append(f"{facts.parameters / 1e6:,.1f} M parameters")
    if facts.most_tokens is not None:
        parts.append(f"drafts up to {facts.most_tokens} tokens")
    if facts.aux_layers:
        parts.append(f"reads layers {', '.join(map(str, facts.aux_layers))}")
    if facts.draft_vocab_size and facts.vocab_size and facts.draft_vocab_size != facts.vocab_size:
        parts.append(f"drafts {facts.draft_vocab_size:,} of {facts.vocab_size:,} tokens")
    parts.append(f"trained for {facts.target_name}" if facts.target_name else "its config names no target")
    return ", ".join(parts) + "."


def check(question: HeadQuestion) -> tuple[str, str]:
    """Return (kind, words) about a head: what it is, and whether it fits. Kind is 'small' where it does.

    Says what can be told of files here; a head or a target that must be fetched first is told of as that.
    """
    from specview.heads.fit import fits, settle, target_of_files
    from specview.heads.layouts import KIND_WORDS
    from specview.heads.read import read_head
    from specview.models.catalog import resolve
    from specview.models.heads import find_head, head_of_kind

    said = ""
    try:
        # A hub id of the target would need the hub library: see `library`.
        target = resolve(question.target, question.engine, "target") if is_here(question.target) else None
        if question.kind == INSIDE and question.ref in (BUNDLED, "") and (target is None or target.path is None):
            return "small", "The modules are looked for inside the target when it loads."
        path = find_head(question.kind, question.ref, None if target is None else target.path)
        if path is None:
            return "small", FETCHED
        # What is inside the target has no kind to be told apart by: its file says whether it has modules.
        facts = head_of_kind(INSIDE, path) if question.kind == INSIDE else read_head(path)
        said = facts_words(facts)
        if facts.kind != question.kind:
            wanted = KIND_WORDS.get(question.kind, question.kind)
            return "warning", f"{said} This method drafts with {wanted}: choose another head."
        about = None if target is None or target.path is None else target_of_files(target.path, target.name)
        if about is None:
            return "small", f"{said} Whether it fits the target is told when that loads."
        fit = fits(facts, about)
        if fit.reason is not None:
            return "warning", f"{said} It does not fit: {fit.reason}"
        settled = settle(facts, about, dict(question.answers))
        return "small", " ".join((facts_words(settled), f"It fits {about.name}.", *fit.notes))
    except SpecviewError as error:
        return "warning", f"{said} {error}".strip()
    except OSError as error:
        return "warning", f"The head cannot be read: {error.strerror or error}."


def is_here(ref: str) -> bool:
    """Whether a reference is bundled, a file or a folder here: hub ids would need the hub library, see `library`."""
    from specview.models.catalog import path_of

    try:
        return ref == BUNDLED or path_of(ref).exists()
    except OSError:
        return False


class HeadChecks(BackgroundAnswers[HeadQuestion]):
    """Tells of heads what they are and whether they fit."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(lambda question: check(question), "Reading the head's config…", LATER, parent)
