"""The tensors of a head's folder: their names and shapes without loading them, and the weights themselves.

safetensors files are read from their headers. Pickled ones (.bin, .pt, .pth) can run code when a careless program
opens them: here nothing in them is ever called. Names and shapes are read by an unpickler that knows the handful
of names a state dict needs and refuses every other; the weights by torch.load(weights_only=True).
"""

from __future__ import annotations

import json
import math
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specview.engines.transformers_weights import StoredTensor, read_header
from specview.errors import SpecviewError

if TYPE_CHECKING:
    from torch import Tensor

PICKLES = (".bin", ".pt", ".pth")
_NAMES = ("model", "medusa_lm_head", "pytorch_model")
"""Names of weights files in published folders, the likeliest first; safetensors go before pickles."""
_CONVERT = "Convert the weights to safetensors where you trust them, or choose another head."
_AGAIN = "Download it again."
_MAX_PICKLE = 64 << 20


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
                    return _indexed(path, index)
                if path / f"{name}{suffix}" in found:
                    return (path / f"{name}{suffix}",)
        others = tuple(file for file in found if file.suffix in suffixes and not _is_training_state(file.name))
        if others:
            return others
    raise SpecviewError(f"{path} has no weights.", "Choose a folder with a .safetensors, .bin or .pt file in it.")


def _is_training_state(name: str) -> bool:
    """Whether a file is what trainers leave beside the weights."""
    return name.split(".")[0] in ("optimizer", "scheduler", "training_args", "rng_state")


def _indexed(folder: Path, index: Path) -> tuple[Path, ...]:
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        # Names are data: only the last part counts, so that none can lead out of the folder.
        files = tuple(folder / Path(str(name)).name for name in dict.fromkeys(names))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise SpecviewError(f"{index} is damaged.", _AGAIN) from None
    for file in files:
        if not file.is_file():
            raise SpecviewError(f"{folder} lacks its weights file {file.name}.", _AGAIN)
    return files


def stored_tensors(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """Return the tensors of some weights files by name: shape, type and file; loads no weights, runs no code.

    Raises SpecviewError, one line, where a file is damaged or cut short, or wants to run code.
    """
    found: dict[str, StoredTensor] = {}
    for file in files:
        found |= read_header(file) if file.suffix == ".safetensors" else _pickled(file)
    return found


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
            everything = _from_pickle(file)
            loaded |= {name: everything[name] for name in theirs}
    return loaded


def read_map(stored: StoredTensor, name: str) -> list[int]:
    """The whole numbers of one small tensor [n], such as a vocabulary map; of a safetensors file without torch.

    Raises SpecviewError where the file cannot be read, ImportError where a pickle needs torch and it is not here.
    """
    if stored.file.suffix != ".safetensors":
        values: list[int] = _from_pickle(stored.file, in_place=True)[name].long().tolist()
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


def _from_pickle(file: Path, in_place: bool = False) -> dict[str, Tensor]:
    """All tensors of a pickled state dict, through torch's own safe loader; in_place reads only what is looked at."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old pickle protocols: nothing that a user could mend
            mapped = in_place and zipfile.is_zipfile(file)
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:
        raise _runs_code(file) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, ImportError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SpecviewError(f"{file} is damaged or no weights file ({reason}).", _AGAIN) from None
    loaded = _state_dict(loaded)
    if loaded is None:
        raise SpecviewError(f"{file} holds no tensors by name.", "Choose a head's weights file.")
    return {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}


def _state_dict(loaded: Any) -> dict[str, Any] | None:
    """The tensors by name in what a file held: at the top, or under "state_dict" or "model"."""
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        return None
    return loaded


def _runs_code(file: Path) -> SpecviewError:
    return SpecviewError(
        f"{file} is a pickle that holds more than tensors: opening it could run code, so it is not opened.", _CONVERT
    )


# -- names and shapes of a pickle ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What a pickled tensor says of itself."""

    shape: tuple[int, ...]
    dtype: str


def _tensor(storage: Any, _offset: Any = 0, size: Any = (), *_rest: Any) -> _Tensor:
    """Stand in for torch._utils._rebuild_tensor_v2."""
    return _Tensor(tuple(int(length) for length in size), str(storage))


def _parameter(data: Any, *_rest: Any) -> Any:
    """Stand in for torch._utils._rebuild_parameter."""
    return data


_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", storage): dtype for storage, dtype in _STORAGES.items()},
}


class _Unknown(Exception):
    """A pickle names something that a state dict has no need of."""


class _Names(pickle.Unpickler):
    """Reads the outline of a state dict: nothing of torch is imported, and no name but those of _KNOWN resolves."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The stand-in for a name; raises for every name that is not known."""
        try:
            return _KNOWN[module_name, global_name]
        except KeyError:
            raise _Unknown(f"{module_name}.{global_name}") from None

    def persistent_load(self, pid: Any, /) -> Any:
        """A storage's type: ("storage", type, key, location, elements)."""
        return pid[1]


def _pickled(file: Path) -> dict[str, StoredTensor]:
    """Names and shapes of a pickled state dict."""
    try:
        if not zipfile.is_zipfile(file):  # torch's format before 1.6, or no weights file at all
            return {
                name: StoredTensor(tuple(value.shape), _dtype_name(value), file)
                for name, value in _from_pickle(file).items()
            }
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
            if len(entries) != 1 or entries[0].file_size > _MAX_PICKLE:
                raise SpecviewError(f"{file} is no weights file of torch.", "Choose a head's weights file.")
            with archive.open(entries[0]) as stream:
                outline = _Names(stream).load()
    except _Unknown:
        raise _runs_code(file) from None
    except OSError as error:
        raise SpecviewError(f"{file} cannot be read ({error.strerror or error}).", "Check the file.") from None
    except SpecviewError:
        raise
    except Exception:  # noqa: BLE001 - a damaged pickle raises whatever it likes
        raise SpecviewError(f"{file} is damaged or no weights file.", _AGAIN) from None
    tensors = _state_dict(outline)
    if tensors is None:
        raise SpecviewError(f"{file} holds no tensors by name.", "Choose a head's weights file.")
    return {
        name: StoredTensor(value.shape, value.dtype, file) for name, value in tensors.items() if isinstance(value, _Tensor)
    }


def _dtype_name(tensor: Tensor) -> str:
    names: Callable[[str], str | None] = {
        "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
        "bool": "BOOL",
    }.get  # fmt: skip
    return names(str(tensor.dtype).removeprefix("torch.")) or str(tensor.dtype)


def parameters(stored: Mapping[str, StoredTensor]) -> int:
    """Numbers in some tensors."""
    return sum(math.prod(tensor.shape) for tensor in stored.values())
