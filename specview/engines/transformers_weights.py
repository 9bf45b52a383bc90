"""What a safetensors model folder holds, read from headers alone: names, shapes, types, bytes.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, a JSON header,
then the tensors' bytes).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError
from specview.reading import MAX_TABLE, open_regular, parse_json, read_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_AGAIN = "Download the model again."
_MAX_TENSORS, _MAX_FILES = 1 << 18, 1 << 10  # of a folder
_MAX_DIMENSIONS = 16
_STORED_BYTES: dict[str, float] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_FLOATING = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a weights file: its shape, the type it is stored in, the file it is in."""

    shape: tuple[int, ...]
    dtype: str
    file: Path

    @property
    def numel(self) -> int:
        """Numbers in the tensor."""
        return math.prod(self.shape)


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a model folder.

    Raises SpecviewError where the folder or the file is missing, or is no JSON object.
    """
    if not folder.is_dir():
        raise SpecviewError(f"There is no model folder {folder}.", "Check the path.")
    path = folder / "config.json"
    try:
        config = read_json(path)
    except FileNotFoundError:
        raise SpecviewError(
            f"{folder} is no model folder: it has no config.json.",
            "Choose a folder with config.json and weights.",
        ) from None
    except OSError as error:
        raise SpecviewError(
            f"{path} cannot be read ({error.strerror or error}).", "Check the folder."
        ) from None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise SpecviewError(f"{path} is damaged (not a JSON object).", _AGAIN)
    return config


def indexed_files(index: Path) -> list[Path]:
    """Return the files beside an index file (*.index.json) that it names.

    Raises SpecviewError where it is damaged or one of them is missing.
    """
    try:
        names = dict.fromkeys(read_json(index, MAX_TABLE)["weight_map"].values())
        if len(names) > _MAX_FILES:
            raise ValueError
        # Names are data: only the last part counts, so that none can lead out of the folder.
        files = [index.parent / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise SpecviewError(f"{index} is damaged.", _AGAIN) from None
    for file in files:
        if not _is_file(file):
            raise SpecviewError(f"{index.parent} lacks its weights file {file.name}.", _AGAIN)
    return files


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the model's weights.

    Raises SpecviewError where there are none or one of them is missing.
    """
    index = folder / _INDEX
    if index.is_file():
        return indexed_files(index)
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        mend = "Choose a folder with safetensors weights."
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            mend = "Pickled weights (.bin, .pt) are not loaded, for they can run code: use a safetensors version."
        raise SpecviewError(f"{folder} has no safetensors weights.", mend)
    return files


def read_header(file: Path) -> Mapping[str, StoredTensor]:
    """Return the tensors of one safetensors file by name.

    Raises SpecviewError where the file is damaged or shorter than its header says.
    """
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8) or b"", "little")
            if size < 8 or length > size - 8:
                raise SpecviewError(f"{file} is cut short or no safetensors file.", _AGAIN)
            if length > MAX_TABLE:
                raise SpecviewError(f"{file} is damaged (its header has {length:,} bytes).", _AGAIN)
            header = parse_json(stream.read(length), MAX_TABLE)
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(_shape(entry["shape"]), _name(entry["dtype"]), file) for name, entry in header.items()
        }
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except OSError as error:
        raise SpecviewError(
            f"{file} cannot be read ({error.strerror or error}).", "Check the file."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise SpecviewError(f"{file} is damaged (its header is no safetensors header).", _AGAIN) from None
    missing = 8 + length + end - size
    if missing > 0:
        raise SpecviewError(f"{file} is cut short: {missing} bytes are missing.", _AGAIN)
    return tensors


def _shape(value: Any) -> tuple[int, ...]:
    """A tensor's shape; raises ValueError for what is none."""
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        raise ValueError("no shape")
    if not all(type(length) is int and 0 <= length < 1 << 63 for length in value):
        raise ValueError("no shape")
    return tuple(value)


def _name(value: Any) -> str:
    """The name of a type; raises ValueError for what is none."""
    if not isinstance(value, str) or len(value) > 32:
        raise ValueError("no type")
    return value


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a model folder by name."""
    return gathered(map(read_header, weight_files(folder)))


def gathered(found: Iterable[Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    """Return the tensors of several files together; raises SpecviewError where no model has so many."""
    tensors: dict[str, StoredTensor] = {}
    count = 0
    for files, more in enumerate(found, start=1):
        tensors.update(more)
        count += len(more)
        if count > _MAX_TENSORS or files > _MAX_FILES:
            raise SpecviewError("the folder has more weights files or tensors than any model.", "Choose a model's folder.")
    return tensors


_SIZES = (
    "hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner", "vocab_size", "num_attention_heads", "n_head",
    "num_key_value_heads", "head_dim", "num_experts", "num_local_experts", "n_routed_experts",
)  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def require_sizes(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise SpecviewError where a configuration describes a larger model than the weights can be of."""
    numbers = sum(tensor.numel for tensor in tensors.values())
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for key, most in (*((key, numbers) for key in _SIZES), *((key, len(tensors)) for key in _LAYERS)):
            value = part.get(key)
            for size in value if isinstance(value, list) else [value]:
                if size is not None and (type(size) is not int or not 0 <= size <= most):
                    raise SpecviewError(
                        f"the config.json of {folder} has {str(size)[:40]!r} as {key}, and its weights are {len(tensors):,} "
                        f"tensors of {numbers:,} numbers.",
                        _AGAIN,
                    )


def weight_bytes(folder: str | Path, dtype: str | None = None) -> int:
    """Return the bytes that a folder's weights take once loaded in `dtype` (None: as stored).

    Reads headers only. Raises SpecviewError for a folder without whole safetensors weights.
    """
    total = 0.0
    for tensor in read_headers(Path(folder)).values():
        stored = _STORED_BYTES.get(tensor.dtype, 4)
        each = DTYPE_BYTES.get(dtype or "", stored) if tensor.dtype in _FLOATING else stored
        total += tensor.numel * each
    return int(total)


def stored_dtype(tensors: Iterable[StoredTensor]) -> str:
    """The smallest dtype that holds what is stored as it is: float16 or bfloat16 where all that floats is, else float32."""
    kinds = {tensor.dtype for tensor in tensors if tensor.dtype in _FLOATING}
    return {"F16": "float16", "BF16": "bfloat16"}.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32"


def stored_matrices(tensors: Mapping[str, StoredTensor]) -> str:
    """`stored_dtype` of the weight matrices."""
    return stored_dtype(tensor for tensor in tensors.values() if len(tensor.shape) == 2)
