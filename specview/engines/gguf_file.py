"""What a GGUF file holds, read from its header without loading a weight or llama.cpp.

The `gguf` package's reader takes seconds on a large vocabulary; this walks the header once, decodes
the small values and keeps long lists (tokens, merges, scores) as bytes until one is asked for
(gguf_values.py). Sizes of quantized blocks come from that package. Format: ggml's docs/gguf.md,
versions 2 and 3, little-endian.
"""

from __future__ import annotations

import glob
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from specview.engines.gguf_values import Cursor, is_list_of
from specview.errors import SpecviewError
from specview.reading import open_regular

TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED = 2, 3, 4, 5
"""Values of `tokenizer.ggml.token_type` other than 1, a normal token."""

_MAGIC = b"GGUF"
_MEND_SHORT = "Download or copy it again."
_FIRST_READ, _MAX_HEADER = 4 << 20, 32 << 20  # bytes; the largest vocabularies known take 12 MB
_MAX_PAIRS, _MAX_TENSORS, _MAX_DIMS = 1 << 10, 1 << 16, 4
_ALIGNMENT = 32  # where the file does not say
_LONGEST_NAME, _MAX_TEMPLATE = 64, 1 << 20
_PIECE = re.compile(r"(.+\.gguf)(?:\.part(\d{1,2})of(\d{1,2})|(?:\.part-?|[.-]split-?|\.0)\w{1,3})", re.IGNORECASE)
_Header = TypeVar("_Header", bound="GgufFile")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape in row-major order (as numpy and torch give it), and where it lies.

    n_bytes is 0 for a type that the installed gguf package does not know.
    """

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
    """A GGUF file's header: metadata by key, tensors by name.

    size is the file's on disk, expected_bytes what its table of tensors needs. A long list among the
    metadata is decoded when an element is first asked for; its length costs nothing.
    """

    path: Path
    size: int
    expected_bytes: int
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, TensorInfo] = field(repr=False)

    @property
    def architecture(self) -> str:
        """`general.architecture`, or "unknown"."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def parameters(self) -> int:
        """Numbers in all tensors together."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def context_length(self) -> int | None:
        """Tokens the model was trained on at once; None where the file does not say."""
        length = self.hyper("context_length")
        return length if _is_size(length) else None

    def hyper(self, key: str, default: Any = None) -> Any:
        """Return the architecture's own value, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def require_complete(self) -> None:
        """Raise SpecviewError where the file ends before its last tensor."""
        if self.size < self.expected_bytes:
            cause = f"{self.path.name} is cut short: {self.size:,} of {self.expected_bytes:,} bytes."
            raise SpecviewError(cause, _MEND_SHORT)


@dataclass(frozen=True, slots=True)
class GgufFacts(GgufFile):
    """A header with names for what describes the model; None where the file does not say."""

    hparam = GgufFile.hyper

    @property
    def file_bytes(self) -> int:
        """Size on disk."""
        return self.size

    @property
    def file_type(self) -> str:
        """How most weights are stored, such as "Q4_1"; "unknown" where the file does not say."""
        from gguf.constants import LlamaFileType

        number = self.metadata.get("general.file_type")
        try:
            return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        except ValueError:
            return f"type {number}" if isinstance(number, int) else "unknown"


def gguf_facts(path: str | os.PathLike[str]) -> GgufFacts:
    """Read the header of a GGUF file, whatever the state of the rest.

    Raises SpecviewError where there is no such file, it cannot be read, is no GGUF, or ends within
    its header; a file cut short behind the header is told by `require_complete`.
    """
    return _open(Path(path), GgufFacts)


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Read the header of a GGUF file whose weights are wanted.

    Raises SpecviewError as `gguf_facts` does, and when the file is shorter than its own tensor table
    says or holds a type that the installed gguf package does not know.
    """
    gguf = _open(Path(path), GgufFile)
    if unknown := {tensor.type_id for tensor in gguf.tensors.values()} - _block_sizes().keys():
        cause = f"{gguf.path.name} has tensors of type {min(unknown)}, which the installed gguf package does not know."
        raise SpecviewError(cause, "Update it: pip install -U gguf.")
    gguf.require_complete()
    return gguf


def split_parts(gguf: GgufFile) -> list[Path]:
    """Return all files of a model that was split over several, the given one among them.

    Raises SpecviewError where it is not the first, which llama.cpp wants, the names do not fit, or one is missing.
    """
    count = gguf.metadata.get("split.count", 0)
    if not isinstance(count, int) or count < 2:
        return [gguf.path]
    if (match := re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", gguf.path.name)) is None:
        raise SpecviewError(f"{gguf.path.name} is one of {count} files.", "Name them NAME-00001-of-00002.gguf ...")
    if int(match[3]) != count:
        raise SpecviewError(
            f"{gguf.path.name} is one of {count} files, and its name says of {int(match[3])}.", "Give it its own name again."
        )
    first = f"{match[1]}-00001-of-{match[3]}.gguf"
    if gguf.path.name != first:
        raise SpecviewError(f"{gguf.path.name} is a later part of a split model.", f"Choose {first}.")
    parts: list[Path] = []
    for part in range(1, count + 1):  # only as many as there are: the count is the file's own word
        path = gguf.path.with_name(f"{match[1]}-{part:05d}-of-{match[3]}.gguf")
        if not path.is_file():
            raise SpecviewError(f"{path.name} is missing, one of {count} parts.", "Put all of them into one folder.")
        parts.append(path)
    return parts


def _require_whole(path: Path) -> None:
    """Raise SpecviewError for a piece of a file that was cut up for uploading, told by its name."""
    if (match := _PIECE.fullmatch(path.name)) is None:
        return
    whole, _, count = match.groups()
    if count:
        names = [f"{whole}.part{part}of{count}" for part in range(1, int(count) + 1)]
    else:
        names = sorted(found.name for found in path.parent.glob(f"{glob.escape(whole)}[.-]*") if _PIECE.fullmatch(found.name))
    command = f"copy /b {' + '.join(names)} {whole}" if os.name == "nt" else f"cat {' '.join(names)} > {whole}"
    raise SpecviewError(
        f"{path.name} is one piece of a GGUF file.",
        f"Join them all ({command}) and give {whole}. Only parts named ...-00001-of-{len(names):05d}.gguf are loaded as they are.",
    )


def _open(path: Path, kind: type[_Header]) -> _Header:
    _require_whole(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_FIRST_READ) or b""
            if data[:4] != _MAGIC:
                raise SpecviewError(f"{path.name} is not a GGUF file.", "Choose a .gguf file.")
            try:
                return _parse(path, data, size, kind)
            except struct.error:  # a large vocabulary
                return _parse(path, data + file.read(_MAX_HEADER - len(data)), size, kind)
    except struct.error:
        if size > _MAX_HEADER:
            raise _damaged(path, f"more than {_MAX_HEADER:,} bytes") from None
        cause = f"{path.name} is cut short: it ends at {size:,} bytes, within its header."
        raise SpecviewError(cause, _MEND_SHORT) from None
    except FileNotFoundError:
        raise SpecviewError(f"There is no file {path}.", "Choose a GGUF file that exists.") from None
    except OSError as error:
        if path.is_dir():  # Windows says permission denied
            raise SpecviewError(f"{path} is a folder.", "Choose the GGUF file in it.") from None
        if isinstance(error, PermissionError):
            raise SpecviewError(f"{path} cannot be read: permission denied.", "Change its permissions.") from None
        raise SpecviewError(f"{path} cannot be read: {error.strerror or error}.", "Check the disk.") from None
    except (ValueError, OverflowError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, what: str) -> SpecviewError:
    return SpecviewError(f"{path.name} has a damaged header ({what}).", _MEND_SHORT)


def _parse(path: Path, data: bytes, size: int, kind: type[_Header]) -> _Header:
    cursor = Cursor(data, len(_MAGIC))
    (version,) = cursor.numbers("I")
    if version >= 1 << 16:
        raise SpecviewError(f"{path.name} is a big-endian GGUF.", "Convert it for this machine.")
    if version not in (2, 3):
        raise SpecviewError(f"{path.name} is a GGUF of version {version}.", "Convert it to version 3.")
    tensor_count, pair_count = cursor.numbers("QQ")
    if pair_count > _MAX_PAIRS or tensor_count > _MAX_TENSORS:
        raise ValueError(f"{pair_count:,} values and {tensor_count:,} tensors")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text()
        if key in metadata:
            raise ValueError(f"{_shown(key)} stands in it twice")
        metadata[key] = cursor.value()
    _check_kinds(metadata)
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {_shown(alignment)}, which is no power of two")
    tensors, expected = _tensor_table(cursor, tensor_count, alignment)
    return kind(path, size, expected, metadata, tensors)


_TEXTS = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre", "*.rope.scaling.type")
_WHOLE = (
    *(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "unknown", "padding")),
    *(f"*.attention.{name}" for name in ("head_count", "head_count_kv", "key_length", "value_length", "kv_lora_rank")),
    *(f"*.{name}" for name in ("block_count", "embedding_length", "feed_forward_length", "rope.dimension_count",
                               "expert_count", "nextn_predict_layers")),
)  # fmt: skip
_REAL = ("*.rope.freq_base", "*.rope.scaling.factor", "*.attention.layer_norm_rms_epsilon")
_LISTS = {"tokens": str, "merges": str, "scores": float, "token_type": int}


def _check_kinds(metadata: Mapping[str, Any]) -> None:
    """Raise ValueError where a value that a model is built by is of another kind than the format has it."""
    architecture = metadata.get("general.architecture")

    def wrong(keys: Iterable[str], fits: Callable[[Any], bool]) -> None:
        for key in keys:
            key = key.replace("*", str(architecture)[:_LONGEST_NAME])
            if key in metadata and not fits(metadata[key]):
                raise ValueError(f"{key} is {_shown(metadata[key])}")

    wrong(_TEXTS, lambda value: isinstance(value, str) and len(value) <= _LONGEST_NAME)
    wrong(["tokenizer.chat_template"], lambda value: not isinstance(value, str) or len(value) <= _MAX_TEMPLATE)
    wrong(_WHOLE, lambda value: all(map(_is_size, value)) if isinstance(value, list) else _is_size(value))
    wrong(_REAL, lambda value: type(value) in (int, float) and 0 < value < 3e38)
    for name, kind in _LISTS.items():
        wrong([f"tokenizer.ggml.{name}"], partial(is_list_of, kind=kind))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _tensor_table(cursor: Cursor, count: int, alignment: int) -> tuple[dict[str, TensorInfo], int]:
    """Return the tensors by name, and where the last of them ends in the file.

    They must lie one after the other, each at a multiple of the alignment, as llama.cpp has it.
    """
    table: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name, (dims,) = cursor.text(), cursor.numbers("I")
        if dims > _MAX_DIMS:
            raise ValueError(f"a tensor of {dims} dimensions")
        *columns_first, type_id, offset = cursor.numbers(f"{dims}QIQ")
        if name in table:
            raise ValueError(f"two tensors {_shown(name)}")
        table[name] = tuple(reversed(columns_first)), type_id, offset
    start = -(-cursor.at // alignment) * alignment
    expected, tensors = cursor.at, {}
    at: int | None = 0  # unknown behind a tensor of a type that is
    for name, (shape, type_id, offset) in table.items():
        if math.prod(shape) >= 1 << 63:
            raise ValueError(f"tensor {_shown(name)} of {' x '.join(map(str, shape))} numbers")
        block, block_bytes = _block_sizes().get(type_id, (1, 0))
        if shape and shape[-1] % block:
            raise ValueError(f"tensor {_shown(name)} with rows of {shape[-1]} numbers, no multiple of {block}")
        n_bytes = math.prod(shape) // block * block_bytes
        if at is not None and offset != at:
            raise ValueError(
                f"tensor {_shown(name)} lies at {offset:,}, and not at {at:,} as general.alignment {alignment} has it"
            )
        at = -(-(offset + n_bytes) // alignment) * alignment if block_bytes else None
        tensors[name] = TensorInfo(name, shape, type_id, start + offset, n_bytes)
        expected = max(expected, start + offset + n_bytes)
    return tensors, expected


def _shown(value: Any) -> str:
    """A value of the file for a message, never long."""
    return f"{str(value)[:60]!r}" if isinstance(value, str) else str(value)[:60]


@cache
def _block_sizes() -> dict[int, tuple[int, int]]:
    """Numbers and bytes per block, by tensor type."""
    from gguf.constants import GGML_QUANT_SIZES

    return {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
