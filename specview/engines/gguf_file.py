"""What a GGUF file holds: its header, read without llama.cpp, and weights as float32.

The `gguf` package's reader takes seconds on a large vocabulary; this walks the header once, decodes
the small values and keeps long lists (tokens, merges, scores) as bytes until one is asked for. Sizes of
quantized blocks come from that package, and weights are dequantized by it. Format: ggml's docs/gguf.md,
versions 2 and 3, little-endian.
"""

from __future__ import annotations

import glob
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

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


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BYTES = {kind: struct.calcsize("<" + letter) for kind, letter in _SCALARS.items()}
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_MAX_LIST, _MAX_SHORT = 1 << 19, 1 << 16  # items of one list, and of all that are decoded at once
_SHORT_LIST = 512  # per-layer values are decoded at once, vocabularies when asked for


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

    @property
    def file_type(self) -> str:
        """How most weights are stored, such as "Q4_1"; "unknown" where the file does not say."""
        from gguf.constants import LlamaFileType

        number = self.metadata.get("general.file_type")
        try:
            return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        except ValueError:
            return f"type {number}" if isinstance(number, int) else "unknown"

    def require_complete(self) -> None:
        """Raise SpecviewError where the file ends before its last tensor."""
        if self.size < self.expected_bytes:
            cause = f"{self.path.name} is cut short: {self.size:,} of {self.expected_bytes:,} bytes."
            raise SpecviewError(cause, _MEND_SHORT)


def gguf_facts(path: str | os.PathLike[str]) -> GgufFile:
    """Read the header of a GGUF file, whatever the state of the rest.

    Raises SpecviewError where there is no such file, it cannot be read, is no GGUF, or ends within
    its header; a file cut short behind the header is told by `require_complete`.
    """
    path = Path(path)
    _require_whole(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_FIRST_READ) or b""
            if data[:4] != _MAGIC:
                raise SpecviewError(f"{path.name} is not a GGUF file.", "Choose a .gguf file.")
            try:
                return _parse(path, data, size)
            except struct.error:  # a large vocabulary
                return _parse(path, data + file.read(_MAX_HEADER - len(data)), size)
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


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Read the header of a GGUF file whose weights are wanted.

    Raises SpecviewError as `gguf_facts` does, and when the file is shorter than its own tensor table
    says or holds a type that the installed gguf package does not know.
    """
    gguf = gguf_facts(path)
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


def _damaged(path: Path, what: str) -> SpecviewError:
    return SpecviewError(f"{path.name} has a damaged header ({what}).", _MEND_SHORT)


def _parse(path: Path, data: bytes, size: int) -> GgufFile:
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
    return GgufFile(path, size, expected, metadata, tensors)


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


# -- values ----------------------------------------------------------------------------------------------


class LazyList(Sequence[Any]):
    """A list of count items of one type, kept as the file's bytes until an element is asked for."""

    def __init__(self, item: int, count: int, raw: bytes) -> None:
        self._item, self._count, self._raw = item, count, raw

    @cached_property
    def values(self) -> list[Any]:
        """All of them, decoded once."""
        if self._item in _SCALARS:
            return list(struct.unpack(f"<{self._count}{_SCALARS[self._item]}", self._raw))
        unpack, raw, end, texts = _LENGTH.unpack_from, self._raw, 0, []
        for _ in range(self._count):
            start = end + 8
            end = start + unpack(raw, end)[0]
            texts.append(str(raw[start:end], "utf-8", "replace"))
        return texts

    @property
    def kind(self) -> type:
        """What its elements are: int, float, bool or str."""
        letter = _SCALARS.get(self._item, "")
        return str if not letter else float if letter in "fd" else bool if letter == "?" else int

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __eq__(self, other: object) -> bool:
        return self.values == (other.values if isinstance(other, LazyList) else other)


def is_list_of(value: Any, kind: type) -> bool:
    """Whether a value is a list or LazyList of such elements."""
    if isinstance(value, LazyList):
        return value.kind is kind
    return isinstance(value, list) and all(type(one) is kind for one in value)


class Cursor:
    """Reads values one after the other from the place `at`.

    Raises struct.error where the data end within one, ValueError or OverflowError for an impossible one.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at, self._decoded = data, at, 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """Return the numbers of a `struct` layout without byte order, such as "IQ"."""
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def take(self, end: int) -> bytes:
        """Return the bytes up to `end`."""
        if end > len(self.data):
            raise struct.error
        start, self.at = self.at, end
        return self.data[start:end]

    def text(self) -> str:
        """Return a string; bytes that are no UTF-8 become U+FFFD."""
        (length,) = self.numbers("Q")
        return self.take(self.at + length).decode("utf-8", errors="replace")

    def value(self) -> Any:
        """Return a value that its type precedes: a number, bool, string, list or LazyList."""
        (kind,) = self.numbers("I")
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.numbers(_SCALARS[kind])[0]
        if kind != _ARRAY:
            raise ValueError(f"a value of type {kind}")
        item, count = self.numbers("IQ")
        if count > _MAX_LIST:
            raise ValueError(f"a list of {count:,} values")
        end = self.at
        if item in _SCALARS:
            end += count * _BYTES[item]
        elif item == _STRING:
            unpack, data = _LENGTH.unpack_from, self.data  # locals: this loop is most of the reading
            for _ in range(count):
                end += 8 + unpack(data, end)[0]
        else:  # llama.cpp takes no lists of lists either
            raise ValueError(f"a list of type {item}")
        values = LazyList(item, count, self.take(end))
        if count > _SHORT_LIST:
            return values
        self._decoded += count
        if self._decoded > _MAX_SHORT:
            raise ValueError(f"more than {_MAX_SHORT:,} values in short lists")
        return values.values


# -- weights ---------------------------------------------------------------------------------------------


class TensorRows:
    """The rows of one tensor, read from the file when asked for; a vector is one row."""

    def __init__(self, gguf: GgufFile, info: TensorInfo) -> None:
        from gguf.constants import GGMLQuantizationType

        self._file = gguf.path.name
        self._kind = GGMLQuantizationType(info.type_id)
        self._shape = info.shape
        self.count = info.shape[0] if len(info.shape) > 1 else 1
        self._raw: Any = np.memmap(
            gguf.path, np.uint8, "r", offset=info.offset, shape=(self.count, info.n_bytes // self.count)
        )

    @property
    def is_half(self) -> bool:
        """Whether it is stored as float16."""
        return self._kind.name == "F16"

    def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Return rows first..last as float32, in the tensor's row-major shape."""
        return self._values(self._raw[first : self.count if last is None else last])

    def take(self, rows: Sequence[int]) -> np.ndarray:
        """Return rows by index as float32. Raises IndexError where there is no such row."""
        return self._values(self._raw[np.asarray(rows, dtype=np.intp)])

    def _values(self, raw: Any) -> np.ndarray:
        from gguf.quants import dequantize

        plain = self._kind.name in ("F32", "F16")
        try:
            values = dequantize(np.ascontiguousarray(raw) if plain else raw, self._kind)
        except NotImplementedError as error:
            raise SpecviewError(
                f"{self._file} holds {self._kind.name} weights, which the gguf package cannot dequantize.",
                "Choose a file with another quantization.",
            ) from error
        shape = (len(raw), *self._shape[1:]) if len(self._shape) > 1 else self._shape
        return np.asarray(values, dtype=np.float32).reshape(shape)


def dequantized(gguf: GgufFile, info: TensorInfo, first: int = 0, last: int | None = None) -> np.ndarray:
    """Return rows first..last of a tensor as float32, in the tensor's row-major shape."""
    return TensorRows(gguf, info).read(first, last)
