"""What a GGUF file says of itself, read from its header without loading a weight or llama.cpp.

The `gguf` package's reader takes seconds on a large vocabulary; this walks the header once, keeps the
small values and steps over token lists. Format: ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError

_MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_SMALL_ARRAY = 4096  # per-layer values are kept, vocabularies are not
_MEND_SHORT = "Download or copy it again."


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """The header of one GGUF file.

    file_bytes is its size on disk, expected_bytes what its table of tensors needs; vocab_size counts
    the tokenizer's tokens; metadata holds every value but long lists. parameters counts weights.
    """

    path: Path
    file_bytes: int
    expected_bytes: int
    architecture: str
    name: str
    file_type: str
    vocab_size: int | None
    tokenizer_model: str
    tokenizer_pre: str
    context_length: int | None
    chat_template: str | None
    parameters: int
    tensors: int
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)

    def hparam(self, name: str, default: Any = None) -> Any:
        """Return the architecture's own value, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def require_complete(self) -> None:
        """Raise SpecviewError where the file ends before its last tensor."""
        if self.file_bytes < self.expected_bytes:
            raise SpecviewError(
                f"{self.path.name} is cut short: {self.file_bytes:,} of {self.expected_bytes:,} bytes.", _MEND_SHORT
            )


def gguf_facts(path: str | os.PathLike[str]) -> GgufFacts:
    """Read the header of a GGUF file.

    Raises SpecviewError where there is no such file, it cannot be read, is no GGUF, or ends within
    its header; a file cut short behind the header is told by `GgufFacts.require_complete`.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise SpecviewError(f"{path.name} is not a GGUF file.", "Choose a file that ends in .gguf.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except FileNotFoundError:
        raise SpecviewError(f"There is no file {path}.", "Choose a GGUF file that exists.") from None
    except IsADirectoryError:
        raise SpecviewError(f"{path} is a folder.", "Choose the GGUF file in it.") from None
    except PermissionError:
        if path.is_dir():  # how Windows refuses to open a folder
            raise SpecviewError(f"{path} is a folder.", "Choose the GGUF file in it.") from None
        raise SpecviewError(f"{path} cannot be read: permission denied.", "Change its permissions.") from None
    except OSError as error:
        raise SpecviewError(f"{path} cannot be read: {error.strerror or error}.", "Check the disk.") from None


def split_parts(facts: GgufFacts) -> list[Path]:
    """Return all files of a model that was split over several, the given one among them.

    Raises SpecviewError where it is not the first, which llama.cpp wants, or the names do not fit.
    """
    count = int(facts.metadata.get("split.count", 0) or 0)
    if count < 2:
        return [facts.path]
    if (match := re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", facts.path.name)) is None:
        raise SpecviewError(f"{facts.path.name} is one of {count} files.", "Name them NAME-00001-of-00002.gguf ...")
    names = [f"{match[1]}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
    if facts.path.name != names[0]:
        raise SpecviewError(f"{facts.path.name} is a later part of a split model.", f"Choose {names[0]}.")
    return [facts.path.with_name(name) for name in names]


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = len(_MAGIC)

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        length = self.number("<Q")
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise struct.error
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """Read a value; a long list gives its length as `range(n)`."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"value type {kind}")
        item, count = self.number("<I"), self.number("<Q")
        if count > len(self.data):
            raise struct.error
        if count <= _SMALL_ARRAY:
            return [self.value(item) for _ in range(count)]
        if item == _STRING:
            unpack, data, at = struct.Struct("<Q").unpack_from, self.data, self.at
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
            self.at = at
        elif item in _SCALARS:
            self.at += count * struct.calcsize(_SCALARS[item])
        else:
            raise ValueError(f"a list of type {item}")
        return range(count)


def _parse(path: Path, data: mmap.mmap) -> GgufFacts:
    cursor = _Cursor(data)
    try:
        version = cursor.number("<I")
        if version >= 1 << 16:
            raise SpecviewError(f"{path.name} is a big-endian GGUF.", "Convert it for this machine.")
        if version not in (2, 3):
            raise SpecviewError(f"{path.name} is a GGUF of version {version}.", "Convert it to version 3.")
        tensors, pairs = cursor.number("<Q"), cursor.number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = cursor.text()
            metadata[key] = cursor.value(cursor.number("<I"))
        needed, parameters = _tensor_table(cursor, tensors)
    except struct.error:
        raise SpecviewError(
            f"{path.name} is cut short: it ends at {len(data):,} bytes, within its header.", _MEND_SHORT
        ) from None
    except (ValueError, OverflowError) as error:
        raise SpecviewError(f"{path.name} has a damaged header ({error}).", _MEND_SHORT) from None
    alignment = int(metadata.get("general.alignment", 32)) or 32
    start = -(-cursor.at // alignment) * alignment
    architecture = str(metadata.get("general.architecture", ""))
    tokens = metadata.get("tokenizer.ggml.tokens")
    context = metadata.get(f"{architecture}.context_length")
    return GgufFacts(
        path=path,
        file_bytes=len(data),
        expected_bytes=start + needed if tensors else cursor.at,
        architecture=architecture,
        name=str(metadata.get("general.name", "")),
        file_type=_file_type(metadata.get("general.file_type")),
        vocab_size=None if tokens is None else len(tokens),
        tokenizer_model=str(metadata.get("tokenizer.ggml.model", "")),
        tokenizer_pre=str(metadata.get("tokenizer.ggml.pre", "")),
        context_length=None if context is None else int(context),
        chat_template=metadata.get("tokenizer.chat_template"),
        parameters=parameters,
        tensors=tensors,
        metadata=metadata,
    )


def _tensor_table(cursor: _Cursor, tensors: int) -> tuple[int, int]:
    """Return (bytes of tensor data up to the last tensor's end, number of weights)."""
    from gguf.constants import GGML_QUANT_SIZES

    sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    needed = parameters = 0
    for _ in range(tensors):
        cursor.text()
        shape = [cursor.number("<Q") for _ in range(cursor.number("<I"))]
        kind, offset = cursor.number("<I"), cursor.number("<Q")
        count = math.prod(shape)
        parameters += count
        # A type newer than the gguf package: at least where the tensor begins is known.
        block, block_bytes = sizes.get(kind, (1, 0))
        needed = max(needed, offset + count // block * block_bytes)
    return needed, parameters


def _file_type(number: Any) -> str:
    if number is None:
        return "unknown"
    from gguf.constants import LlamaFileType

    try:
        return LlamaFileType(int(number)).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return f"type {number}"
