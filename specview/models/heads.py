"""From a trained head's name to a loaded head: find, fetch, check against the target, load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import Engine
from specview.drafting.registry import methods_for
from specview.engines import memory
from specview.engines.gguf_file import gguf_facts
from specview.engines.llama_cpp_mtp import modules_in
from specview.errors import EngineMissing, SpecviewError, UsageError
from specview.heads.files import PICKLES
from specview.heads.fit import TargetFacts, config_problem, fits, settle, target_of_engine, target_of_files
from specview.heads.layouts import KIND_WORDS, HeadFacts
from specview.heads.read import NoHead, WholeModel, claims_head, read_head
from specview.models import hub
from specview.models.assets import asset_path
from specview.models.cache import ProgressFn, ShouldStop, Watch
from specview.models.catalog import BUNDLED, existing, path_of, resolve
from specview.models.facts import weights_sha256, where_from
from specview.models.loading import MARGIN, engine_available
from specview.models.model_folder import has_tokenizer
from specview.settings.options import INSIDE

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

_LOADING_BYTES = 8  # a float32 and, for a moment, the copy that is read from the file



def load_head(
    kind: str,
    ref: str,
    target: Engine,
    answers: Mapping[str, str] | None = None,
    *,
    progress: ProgressFn | None = None,
    should_stop: ShouldStop | None = None,
) -> LoadedHead:
    """Load the head of a kind (specview.heads.layouts) that `ref` names, for a loaded target.

    ref is "bundled", a folder, a weights file beside its config.json, or a hub id, which is downloaded where it
    is not cached. answers settle what a layout leaves open, by option. Raises SpecviewError, one line with the
    mend, before any weights are loaded where the head cannot serve the target; Stopped when should_stop says so.
    """
    if target.features_problem:
        raise SpecviewError(f"no head can draft for {target.model_name}: {target.features_problem}")
    if engine_available("transformers") is not None:
        raise EngineMissing("trained heads need torch, which is not installed here. Install it: pip install torch.")
    if kind == INSIDE and ref.strip() in (BUNDLED, "") and getattr(target, "mtp_modules", False):
        from specview.heads.mtp_gguf import gguf_head

        return gguf_head(target)
    origin = where_from(target)
    path = find_head(kind, ref, origin.path if origin is not None else None)
    if path is None:

        def check(folder: Path) -> None:
            reason = None if kind == INSIDE else config_problem(folder, target_of_engine(target))
            if reason is not None:
                raise SpecviewError(f"{ref.strip()}: {reason}")

        path = hub.fetch_head(ref.strip(), check, progress=progress, should_stop=should_stop)
    watch = Watch(progress, should_stop)
    watch.check()
    facts = checked_head(kind, path, target_of_engine(target), answers)
    if target.device == "cpu":
        memory.require(facts.folder.name, facts.parameters * _LOADING_BYTES, margin=MARGIN)
    watch.tell(f"Loading the head {facts.folder.name}")
    from specview.heads.modules import load

    return load(facts, target)


def checked_head(
    kind: str, path: Path, target: TargetFacts, answers: Mapping[str, str] | None = None
) -> HeadFacts:
    """What a head's folder or file holds, with nothing left open; raises SpecviewError where it cannot serve."""
    facts = head_of_kind(kind, path)
    fit = fits(facts, target)
    if fit.reason is not None:
        raise SpecviewError(fit.reason)
    return replace(settle(facts, target, answers), notes=fit.notes)


def head_of_kind(kind: str, path: Path) -> HeadFacts:
    """What a folder or file holds; raises SpecviewError where that is no head, or one of another kind."""
    if kind == INSIDE:
        return _modules_inside(path)
    facts = read_head(path)
    if facts.kind != kind:
        wanted = KIND_WORDS.get(kind, kind)
        raise UsageError(
            f"{path} holds {KIND_WORDS[facts.kind]}, and this lane drafts with {wanted}.",
            f"Use method {' or '.join(methods_for(facts.kind))}, or name another head: draft=FOLDER (or "
            f"{kind}.head=FOLDER in a combined method).",
        )
    return facts


def _modules_inside(path: Path) -> HeadFacts:
    """The modules in a target's own checkpoint."""
    mend = "Choose a target whose checkpoint has them, or a folder with draft=FOLDER."
    if path.is_file() and path.suffix == ".gguf":
        count, about = modules_in(gguf_facts(path)), target_of_files(path)
        if not count or about is None:
            raise SpecviewError(f"{path.name} has no next-token-prediction modules.", mend)
        layout, vocab = "MTP in the target's GGUF file", about.vocab_size
        return HeadFacts(
            "mtp", layout, path, about.hidden_size, vocab, vocab, (), about.layers, about.name, most_tokens=count
        )
    try:
        facts = read_head(path)
    except NoHead as error:
        raise SpecviewError(f"{path.resolve().name} has no next-token-prediction modules.", mend) from error
    if facts.kind != INSIDE:
        raise SpecviewError(f"{path} holds {KIND_WORDS[facts.kind]}, no next-token-prediction modules.", mend)
    return facts


def check_before(kind: str, ref: str, target: str, engine: str, answers: Mapping[str, str] | None = None) -> None:
    """Raise SpecviewError where a head cannot serve a target that is not loaded yet, as far as files here say.

    target and engine are as settings name them. Says nothing of a head or a target that must be fetched first.
    """
    found = resolve(target, engine, "target")
    path = find_head(kind, ref, found.path)
    if path is None or found.path is None:
        return
    facts = target_of_files(found.path, found.name)
    if facts is not None:
        checked_head(kind, path, facts, answers)


def find_head(kind: str, ref: str, target: Path | None = None) -> Path | None:
    """The folder or file that `ref` names; None where it is a hub id that is not cached. Asks no network.

    target is the target's own folder, for heads that ship inside it. Raises SpecviewError where there is none.
    """
    text = ref.strip()
    if text in (BUNDLED, ""):
        return _bundled(kind, target)
    path = existing(text)
    if path is not None:
        return path
    if hub.is_repo_id(text) and not text.startswith("."):
        return hub.cached_head(text)
    raise SpecviewError(f"there is no file or folder {text}.", "Check the path, or give bundled or a hub id (owner/name).")


def _bundled(kind: str, target: Path | None) -> Path:
    if kind == INSIDE:
        if target is None:
            raise SpecviewError("the target is not on this machine yet.", "Run it once, which downloads it.")
        return target
    mend = f"Name one: draft=FOLDER (or {kind}.head=FOLDER in a combined method)."
    try:
        folder = asset_path(kind)
    except SpecviewError:
        folder = None
    if folder is None or not (folder / "config.json").is_file():
        raise SpecviewError(f"{kind} has no bundled head.", mend)
    return folder


def named_head(spec: str, target: Path | None = None) -> Path | None:
    """The folder or file of the head that a user names, or None where `spec` names no head on this machine.

    spec is a folder, a weights file, a cached hub id or the kind of a bundled head ("eagle3"). A model's own folder is
    a head only beside itself: then its next-token-prediction modules are meant. A folder without a tokenizer is no model:
    whatever it holds, or holds damaged, is to be told as a head's.
    """
    text = spec.strip()
    path = path_of(text)
    try:
        if not path.exists():
            if text in KIND_WORDS and text != INSIDE:
                return _bundled(text, None)
            cached = hub.cached_head(text) if hub.is_repo_id(text) else None
            return cached if cached is not None and _is_head(cached) else None
        if path.is_file():
            return path if path.suffix in (".safetensors", *PICKLES) else None
        if not path.is_dir():  # a pipe, a device
            return None
        if target is not None and path.resolve() == target.resolve():
            return path if _is_head(path, INSIDE) else None
    except OSError:
        return None
    return path if _is_head(path) else None


def _is_head(folder: Path, kind: str = "") -> bool:
    """Whether a folder holds a head, be it a damaged one; of that kind, or of any but those inside a target."""
    try:
        found = read_head(folder).kind
        return found == kind if kind else found != INSIDE or not has_tokenizer(folder)
    except WholeModel:
        return False
    except NoHead:
        return not kind and not has_tokenizer(folder)
    except SpecviewError:
        return not kind and (claims_head(folder) or (not has_tokenizer(folder) and _has_parts(folder)))


def _has_parts(folder: Path) -> bool:
    """Whether a folder has a config or weights."""
    return any(file.name == "config.json" or file.suffix in (".safetensors", *PICKLES) for file in folder.iterdir())


def head_facts(head: LoadedHead) -> dict[str, Any]:
    """Flat facts about a loaded head, as they stand in files."""
    facts = head.facts
    files = sorted({stored.file for _, stored in facts.tensors.values()})
    return {
        "head": facts.folder.name,
        "layout": facts.layout,
        "trained_for": facts.target_name or None,
        "reads_layers": ",".join(map(str, facts.aux_layers)) or "last",
        "sha256": weights_sha256(files[0]) if len(files) == 1 else None,
        "weight_bytes": head.weight_bytes,
    }
