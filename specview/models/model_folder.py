"""Looking at a Hugging Face model folder before it is chosen: is it one, is it whole, how large."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.drafting.registry import methods_for
from specview.engines.transformers_weights import read_config, read_headers, weight_files
from specview.errors import SpecviewError
from specview.heads.layouts import KIND_WORDS, HeadFacts
from specview.heads.read import read_head

_LONGEST_NAME = 64
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What a model folder holds."""

    path: Path
    model_type: str
    file_bytes: int
    parameters: int
    config: Mapping[str, Any]


def looks_like_model(folder: Path) -> bool:
    """Whether a folder has a configuration and safetensors weights (their content unread)."""
    try:
        return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    except OSError:
        return False


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer file of a known name."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def refuse_links_out(folder: Path) -> None:
    """Raise SpecviewError where a file of a model folder is a link to something of the user's that is no part of it.

    What is read from there would go into whatever is made of the model. Links to where the weights lie are the model's
    own: the hub's cache is made of them.
    """
    own = {Path(os.path.realpath(folder)), *(Path(os.path.realpath(file)).parent for file in weight_files(folder))}
    for path in (*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")):
        real = Path(os.path.realpath(path))
        if path.suffix != ".safetensors" and own.isdisjoint(real.parents):
            raise SpecviewError(f"{path} is a link that leads out of the model, to {real}.", "Put the file itself there.")


def inspect_folder(folder: Path, *, needs_tokenizer: bool = True) -> FolderFacts:
    """Check a folder and return what it holds; reads headers, no weights.

    Raises SpecviewError for a folder that is no model (naming what was looked for), for weights in
    pickle files only, and for a weights file that is missing or cut short.
    """
    if not folder.is_dir():
        raise SpecviewError(f"there is no folder {folder}.", "Check the path.")
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise SpecviewError(f"{folder} cannot be read ({error.strerror or error}).", "Check its permissions.") from None
    missing = []
    if "config.json" not in names:
        missing.append("config.json")
    if not any(name.endswith(".safetensors") for name in names):
        missing.append("*.safetensors")
    if needs_tokenizer and not names.intersection(TOKENIZER_FILES):
        missing.append(" or ".join(TOKENIZER_FILES[:2]))
    if missing:
        head = _head_in(folder)
        if head is not None:
            method = " or ".join(methods_for(head.kind))
            raise SpecviewError(
                f"{folder} holds {KIND_WORDS[head.kind]}, no model.", f"Choose the method {method} to draft with it."
            )
        raise SpecviewError(f"{folder} is no model folder: it has no {', no '.join(missing)}.", _mend(names))
    config = read_config(folder)
    parameters = sum(tensor.numel for tensor in read_headers(folder).values())
    file_bytes = sum(path.stat().st_size for path in weight_files(folder))
    said = config.get("model_type")
    model_type = said if isinstance(said, str) and len(said) <= _LONGEST_NAME else "unknown"
    return FolderFacts(folder, model_type, file_bytes, parameters, config)


def _head_in(folder: Path) -> HeadFacts | None:
    """The trained head that a folder holds; None where it holds none, or none that can be read."""
    try:
        return read_head(folder)
    except SpecviewError:
        return None


def _mend(names: set[str]) -> str:
    """Say what to do about a folder that is no model."""
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs:
        return f"Give the GGUF file in it: {ggufs[0]}."
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        return "Pickled weights (.bin, .pt) are not loaded, for they can run code: use a safetensors version."
    return "Choose a folder with config.json, safetensors weights and a tokenizer, or a .gguf file."
