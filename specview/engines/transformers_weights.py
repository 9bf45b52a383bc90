"""What a safetensors model folder holds, read from headers alone: names, shapes, types, bytes.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, a JSON header,
then the tensors' bytes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_AGAIN = "Download the model again."
_MAX_HEADER = 100 << 20
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
        config = json.loads(path.read_text(encoding="utf-8"))
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


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the model's weights.

    Raises SpecviewError where there are none or one of them is missing.
    """
    index = folder / _INDEX
    if index.is_file():
        try:
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            # Names are data: only the last part counts, so that none can lead out of the folder.
            files = [folder / Path(str(name)).name for name in dict.fromkeys(names)]
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise SpecviewError(f"{index} is damaged.", _AGAIN) from None
        for file in files:
            if not file.is_file():
                raise SpecviewError(f"{folder} lacks its weights file {file.name}.", _AGAIN)
        return files
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
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise SpecviewError(f"{file} is cut short or no safetensors file.", _AGAIN)
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(tuple(map(int, entry["shape"])), str(entry["dtype"]), file)
            for name, entry in header.items()
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


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a model folder by name."""
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        tensors.update(read_header(file))
    return tensors


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


def stored_as_halves(tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether every weight matrix is stored in float16."""
    return {tensor.dtype for tensor in tensors.values() if len(tensor.shape) == 2} == {"F16"}
