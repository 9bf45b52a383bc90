"""Reading a GGUF file's metadata and tensor table, without its weights.

The `gguf` package's reader makes one numpy view per string, which takes seconds for a vocabulary;
choosing and checking models needs the header in a fraction of one. Sizes of quantized blocks and the
dequantization itself come from that package. Format: the GGUF specification in the ggml repository,
docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from specview.errors import SpecviewError

MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_STRING = 64 << 20
_MAX_DIMS = 8

TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE = 2, 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type` other than 1, a normal token."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape in row-major order (as numpy and torch give it), and where it lies."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the start of the file
    n_bytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file's header: metadata by key, tensors by name."""

    path: Path
    size: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """`general.architecture`, or "unknown"."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def parameters(self) -> int:
        """Numbers in all tensors together."""
        return sum(tensor.elements for tensor in self.tensors.values())

    def hyper(self, key: str, default: Any = None) -> Any:
        """Return `<architecture>.<key>`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


class _CutError(Exception):
    """The file ends inside its header."""


class _MalformedError(Exception):
    """The header says something impossible."""


class _Source:
    """Buffered little-endian reads that never trust a length beyond the file's own size."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise _CutError
        data = self.file.read(count)
        if len(data) != count:
            raise _CutError
        self.at += count
        return data

    def unpack(self, layout: str) -> Any:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))[0]

    def string(self) -> str:
        length = self.unpack("Q")
        if length > _MAX_STRING:
            raise _MalformedError(f"a string of {length} bytes")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.unpack(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth > 2:
            raise _MalformedError(f"a value of type {kind}")
        inner, count = self.unpack("I"), self.unpack("Q")
        if count > self.size - self.at:  # every element takes a byte at least
            raise _CutError
        if inner in _SCALARS:
            layout = _SCALARS[inner]
            data = self.take(count * struct.calcsize("<" + layout))
            return list(struct.unpack(f"<{count}{layout}", data))
        return [self.value(inner, depth + 1) for _ in range(count)]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file.

    Raises SpecviewError when the file is missing, unreadable, no GGUF, or shorter than its own
    tensor table says (a download cut short).
    """
    path = Path(path)
    mend_again = "Download it again."
    try:
        size = path.stat().st_size
        with path.open("rb", buffering=1 << 20) as file:
            return _read(path, _Source(file, size))
    except FileNotFoundError:
        raise SpecviewError(f"there is no file {path}.", "Check the path.") from None
    except IsADirectoryError:
        raise SpecviewError(f"{path} is a folder, not a GGUF file.", "Give the .gguf file itself.") from None
    except PermissionError:
        raise SpecviewError(f"{path} may not be read.", "Give yourself permission to read it.") from None
    except OSError as error:
        raise SpecviewError(f"{path} cannot be read ({error.strerror or error}).", "Check the disk.") from None
    except _CutError:
        raise SpecviewError(f"{path} is cut short: the file ends inside its header.", mend_again) from None
    except (_MalformedError, struct.error) as error:
        raise SpecviewError(f"{path} is damaged ({error} in its header).", mend_again) from None


def _read(path: Path, source: _Source) -> GgufFile:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    start = source.take(min(4, source.size))
    if start != MAGIC:
        raise SpecviewError(f"{path} is not a GGUF file.", "Choose a .gguf file or a model folder.")
    version = source.unpack("I")
    if version not in (2, 3):
        raise SpecviewError(
            f"{path} is GGUF version {version}, of which only 2 and 3 (little-endian) can be read.",
            "Convert the model again with a current llama.cpp.",
        )
    tensor_count, pair_count = source.unpack("Q"), source.unpack("Q")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = source.string()
        metadata[key] = source.value(source.unpack("I"))
    table = []
    for _ in range(tensor_count):
        name = source.string()
        dims = source.unpack("I")
        if dims > _MAX_DIMS:
            raise _MalformedError(f"a tensor of {dims} dimensions")
        shape = tuple(reversed([source.unpack("Q") for _ in range(dims)]))
        table.append((name, shape, source.unpack("I"), source.unpack("Q")))
    alignment = int(metadata.get("general.alignment", 32))
    if alignment <= 0:
        raise _MalformedError(f"alignment {alignment}")
    data_start = -(-source.at // alignment) * alignment
    tensors = {}
    for name, shape, type_id, offset in table:
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type_id)]
        except (ValueError, KeyError):
            raise SpecviewError(
                f"{path} has a tensor of type {type_id}, which the installed gguf package does not know.",
                "Update it: pip install -U gguf.",
            ) from None
        n_bytes = math.prod(shape) // block * block_bytes
        if data_start + offset + n_bytes > source.size:
            missing = data_start + offset + n_bytes - source.size
            raise SpecviewError(
                f"{path} is cut short: its tensor {name} ends {missing} bytes after the file's end.",
                "Download it again.",
            )
        tensors[name] = TensorInfo(name, shape, type_id, data_start + offset, n_bytes)
    return GgufFile(path, source.size, metadata, tensors)
