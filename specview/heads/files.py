"""The tensors of a head's folder: their names and shapes without loading them, and the weights themselves.

safetensors files are read from their headers, pickled ones (.bin, .pt, .pth) as pickles.py says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specview.engines.transformers_weights import StoredTensor, gathered, indexed_files, read_header
from specview.errors import SpecviewError
from specview.heads.pickles import load_pickled, read_outline

if TYPE_CHECKING:
    from torch import Tensor

PICKLES = (".bin", ".pt", ".pth")
_NAMES = ("model", "medusa_lm_head", "pytorch_model")
"""Names of weights files in published folders, the likeliest first; safetensors go before pickles."""
_AGAIN = "Download it again."
_MAX_MAP = 1 << 20  # tokens of a vocabulary map


def weights_of(path: Path) -> tuple[Path, ...]:
    """Return the weights files that a head's file or folder has.

    A folder with safetensors files is read from those, else from .bin or .pt files. Raises SpecviewError where
    there are none, or one that an index names is missing.
    """
    if path.is_file():
        if path.suffix not in (".safetensors", *PICKLES):
            raise SpecviewError(f"{path} holds no head's weights.", "Give a folder, a .safetensors, .bin or .pt file.")
        return (path,)
    try:
        found = sorted(entry for entry in path.iterdir() if entry.suffix in (".safetensors", *PICKLES))
    except OSError as error:
        raise SpecviewError(f"{path} cannot be read ({error.strerror or error}).", "Check the path.") from None
    for suffixes in ((".safetensors",), PICKLES):
        for name in _NAMES:
            for suffix in suffixes:
                index = path / f"{name}{suffix}.index.json"
                if index.is_file():
                    return tuple(indexed_files(index))
                if path / f"{name}{suffix}" in found:
                    return (path / f"{name}{suffix}",)
        others = tuple(file for file in found if file.suffix in suffixes and not _is_training_state(file.name))
        if others:
            return others
    raise SpecviewError(f"{path} has no weights.", "Choose a folder with a .safetensors, .bin or .pt file in it.")


def _is_training_state(name: str) -> bool:
    """Whether a file is what trainers leave beside the weights."""
    return name.split(".")[0] in ("optimizer", "scheduler", "training_args", "rng_state")


def stored_tensors(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """Return the tensors of some weights files by name: shape, type and file; loads no weights, runs no code.

    Raises SpecviewError, one line, where a file is damaged or cut short, or wants to run code.
    """
    return gathered(read_header(file) if file.suffix == ".safetensors" else read_outline(file) for file in files)


def load_tensors(stored: Mapping[str, StoredTensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Load some tensors, as they are stored, on the CPU. Raises SpecviewError where a file cannot be read."""
    wanted: dict[Path, list[str]] = {}
    for name in names:
        wanted.setdefault(stored[name].file, []).append(name)
    loaded: dict[str, Tensor] = {}
    for file, theirs in wanted.items():
        if file.suffix == ".safetensors":
            loaded |= _from_safetensors(file, theirs)
        else:
            loaded |= load_pickled(file, theirs)
    return loaded


def read_map(stored: StoredTensor, name: str) -> list[int]:
    """The whole numbers of one small tensor [n], such as a vocabulary map; of a safetensors file without torch.

    Raises SpecviewError where the file cannot be read or it is too long, ImportError where a pickle needs torch and it is
    not here.
    """
    if stored.numel > _MAX_MAP:
        raise SpecviewError(f"{stored.file} has a map of {stored.numel:,} tokens.", "Choose another head.")
    if stored.file.suffix != ".safetensors":
        values: list[int] = load_pickled(stored.file, [name])[name].long().tolist()
        return values
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(stored.file, framework="np") as opened:
            return [int(value) for value in opened.get_tensor(name)]
    except (SafetensorError, OSError) as error:
        raise SpecviewError(f"{stored.file} cannot be read ({error}).", _AGAIN) from None


def _from_safetensors(file: Path, names: Iterable[str]) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise SpecviewError(f"{file} cannot be read ({error}).", _AGAIN) from None


def parameters(stored: Mapping[str, StoredTensor]) -> int:
    """Numbers in some tensors."""
    return sum(math.prod(tensor.shape) for tensor in stored.values())
