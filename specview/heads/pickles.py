"""Pickled weights (.bin, .pt, .pth), read without torch's loader: nothing in them is called, nothing in them is unpacked.

Such a file can run code when a careless program opens it, and a few bytes of it can make lists without end. Here its
outline alone is read, by an unpickler with the handful of operations and names that a state dict needs: which tensor lies
where in which storage. A tensor's bytes are then read from the file itself, once they are known to be there. torch.save
writes a zip archive without compression; before version 1.6, pickles one after the other and the storages behind them.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Self

from specview.engines.transformers_weights import StoredTensor
from specview.errors import SpecviewError
from specview.reading import open_regular

if TYPE_CHECKING:
    from torch import Tensor

_CONVERT = "Convert the weights to safetensors where you trust them, or choose another head."
_AGAIN = "Download it again."
_MAX_PICKLE = 1 << 18
"""Bytes of an outline: those of a head's few tensors are some thousand, of a large model's layers a hundred thousand."""
_MAX_DIMENSIONS = 16
_MAX_DIRECTORY, _MAX_ENTRIES = 4 << 20, 1 << 14  # of an archive
_MAGIC = 0x1950A86A20F9469CFC6C  # the first of the pickles that torch wrote before version 1.6
_DTYPES = {
    "DoubleStorage": ("F64", "float64", 8), "FloatStorage": ("F32", "float32", 4), "HalfStorage": ("F16", "float16", 2),
    "BFloat16Storage": ("BF16", "bfloat16", 2), "LongStorage": ("I64", "int64", 8), "IntStorage": ("I32", "int32", 4),
    "ShortStorage": ("I16", "int16", 2), "CharStorage": ("I8", "int8", 1), "ByteStorage": ("U8", "uint8", 1),
    "BoolStorage": ("BOOL", "bool", 1),
}  # fmt: skip
"""Storage class -> the type's name in safetensors files, its name in torch, bytes of a number."""


class _Storage(NamedTuple):
    """Numbers of one type that tensors are cut out of; key names it in the file."""

    kind: str
    key: str
    numbers: int


class _Piece(NamedTuple):
    """A tensor: the numbers of a storage from `offset` on, by shape and strides."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Unknown(Exception):
    """A pickle names something that a state dict has no need of."""


def read_outline(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a pickled state dict by name: shape, type and file.

    Raises SpecviewError, one line, where the file is damaged, packed, holds more than tensors or says that they are
    larger than it.
    """
    with _Opened(file) as opened:
        return {
            name: StoredTensor(piece.shape, _DTYPES[piece.storage.kind][0], file) for name, piece in opened.pieces.items()
        }


def load_pickled(file: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Load some tensors of a pickled state dict on the CPU. Raises SpecviewError as `read_outline`."""
    import torch

    loaded: dict[str, Tensor] = {}
    with _Opened(file) as opened:
        for name in names:
            piece = opened.pieces[name]
            _, dtype, size = _DTYPES[piece.storage.kind]
            end = piece.offset + _extent(piece)
            data = bytearray(opened.read(piece.storage.key, piece.offset * size, end * size))
            flat = torch.frombuffer(data, dtype=getattr(torch, dtype)) if data else torch.empty(0, dtype=getattr(torch, dtype))
            loaded[name] = flat.as_strided(piece.shape, piece.strides).contiguous()
    return loaded


def _extent(piece: _Piece) -> int:
    """How many numbers of its storage a tensor spans."""
    if 0 in piece.shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(piece.shape, piece.strides, strict=True))


class _Opened:
    """A weights file that is open: its tensors by name, its storages' places. Every error leaves as SpecviewError."""

    def __init__(self, path: Path) -> None:
        self.pieces: dict[str, _Piece] = {}
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}  # storage -> where its bytes begin and end in the file

    def __enter__(self) -> Self:
        try:
            self._file = open_regular(self._path)
            try:
                self._look()
            except BaseException:
                self._file.close()
                raise
        except _Unknown:
            raise SpecviewError(
                f"{self._path} is a pickle that holds more than tensors: opening it could run code, so it is not opened.",
                _CONVERT,
            ) from None
        except OSError as error:
            raise SpecviewError(f"{self._path} cannot be read ({error.strerror or error}).", "Check the file.") from None
        except SpecviewError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged pickle raises whatever it likes
            reason = f" ({error})" if isinstance(error, _Unsound) else ""
            raise SpecviewError(f"{self._path} is damaged or no weights file{reason}.", _AGAIN) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, key: str, first: int, last: int) -> bytes:
        """Return a storage's bytes first..last. Raises SpecviewError where the disk does not give them."""
        begin, _ = self._places[key]
        try:
            self._file.seek(begin + first)
            data = self._file.read(last - first)
        except OSError as error:
            raise SpecviewError(f"{self._path} cannot be read ({error.strerror or error}).", "Check the file.") from None
        if len(data) != last - first:
            raise SpecviewError(f"{self._path} became shorter while it was read.", _AGAIN)
        return data

    def _look(self) -> None:
        outline = self._archive() if zipfile.is_zipfile(self._file) else self._pickles()
        found = _state_dict(outline)
        if found is None:
            raise SpecviewError(f"{self._path} holds no tensors by name.", "Choose a head's weights file.")
        self.pieces = {name: value for name, value in found.items() if isinstance(value, _Piece)}
        for name, piece in self.pieces.items():
            begin, end = self._places.get(piece.storage.key, (0, 0))
            there = piece.storage.numbers
            if (
                there * _DTYPES[piece.storage.kind][2] > end - begin
                or piece.offset + _extent(piece) > there
                or math.prod(piece.shape) > there
            ):
                raise _Unsound(f"tensor {name[:80]!r} is larger than what is stored of it")

    def _archive(self) -> Any:
        """The outline in a zip archive; notes where its storages are."""
        with zipfile.ZipFile(_Sparing(self._file)) as archive:
            entries = archive.infolist()
            if len(entries) > _MAX_ENTRIES:
                raise _Unsound(f"{len(entries):,} entries")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise _Unsound("it is compressed, as torch.save never does it")
            outlines = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if len(outlines) != 1 or outlines[0].file_size > _MAX_PICKLE:
                raise SpecviewError(f"{self._path} is no weights file of torch.", "Choose a head's weights file.")
            inside = outlines[0].filename.removesuffix("data.pkl") + "data/"
            for entry in entries:
                if entry.filename.startswith(inside):
                    begin = self._begin(entry)
                    self._places[entry.filename.removeprefix(inside)] = begin, begin + entry.file_size
        self._file.seek(self._begin(outlines[0]))
        return _Outline(self._file.read(outlines[0].file_size)).load()

    def _begin(self, entry: zipfile.ZipInfo) -> int:
        """Where an entry's bytes begin: behind its own header, whose name and extra field have lengths of their own."""
        self._file.seek(entry.header_offset)
        header = self._file.read(30)
        name, extra = struct.unpack_from("<HH", header, 26)
        begin = entry.header_offset + 30 + name + extra
        if header[:4] != b"PK\3\4" or begin + entry.file_size > _size(self._file):
            raise _Unsound("an entry beyond its end")
        return int(begin)

    def _pickles(self) -> Any:
        """The outline in a file of torch's format before 1.6; notes where its storages are."""
        self._file.seek(0)
        data = self._file.read(_MAX_PICKLE)
        stream = io.BytesIO(data)
        magic, version, _system = (_Outline(stream).load() for _ in range(3))
        if magic != _MAGIC or version != 1001:
            raise ValueError
        reader = _Outline(stream)
        outline = reader.load()
        keys = _Outline(stream).load()
        counts = {storage.key: storage for storage in reader.storages}
        if not isinstance(keys, list) or not all(isinstance(key, str) and key in counts for key in keys):
            raise ValueError
        at = stream.tell()
        for key in keys:
            self._file.seek(at)
            (count,) = struct.unpack("<q", self._file.read(8))
            if count != counts[key].numbers:
                raise _Unsound("a storage of another size than it says")
            end = at + 8 + count * _DTYPES[counts[key].kind][2]
            if end > _size(self._file):
                raise _Unsound("it is cut short")
            self._places[key] = at + 8, end
            at = end
        return outline


class _Sparing:
    """A file as the reader of archives sees it: one that does not give a directory of any size at once."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._file = file.seek, file.tell, file

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes; all that follow for -1."""
        data = self._file.read(size if 0 <= size <= _MAX_DIRECTORY else _MAX_DIRECTORY + 1)
        if len(data) > _MAX_DIRECTORY:
            raise _Unsound("a directory without end")
        return data


class _Unsound(ValueError):
    """What a file says cannot be; its text is for the user."""


def _size(file: BinaryIO) -> int:
    return file.seek(0, io.SEEK_END)


def _state_dict(loaded: Any) -> dict[str, Any] | None:
    """The tensors by name in what a file held: at the top, or under "state_dict" or "model"."""
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        return None
    return loaded


# -- the outline of a pickle ---------------------------------------------------------------------------


class _Mapping(dict[Any, Any]):
    """Stand-in for dict and OrderedDict: made empty, as copies of copies would have no end."""

    def __init__(self) -> None:
        super().__init__()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take an item by text or number: the hash of tuples in tuples would run over the stack."""
        if type(key) not in (str, int):
            raise TypeError
        super().__setitem__(key, value)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError
    return value


def _tuple(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > _MAX_DIMENSIONS:
        raise ValueError
    return tuple(map(_whole, value))


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_rest: Any) -> _Piece:
    """Stand-in for torch._utils._rebuild_tensor_v2."""
    if not isinstance(storage, _Storage):
        raise TypeError
    piece = _Piece(storage, _whole(offset), _tuple(shape), _tuple(strides))
    if len(piece.shape) != len(piece.strides):
        raise ValueError
    return piece


def _parameter(data: Any, *_rest: Any) -> Any:
    """Stand-in for torch._utils._rebuild_parameter."""
    return data


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Mapping,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", kind): kind for kind in _DTYPES},
}
_OPERATIONS = [
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD,
    pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET,
    pickle.BINPERSID, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2,
    pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.EMPTY_TUPLE, pickle.TUPLE1,
    pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT,
    pickle.SETITEM, pickle.SETITEMS,
]  # fmt: skip
"""What torch.save writes of a state dict and of numbers and texts beside it."""


class _Outline(pickle._Unpickler):
    """Reads one pickle; Python's own, as the one in C allocates whatever an operation says that it needs."""

    stack: list[Any]
    append: Any
    dispatch: ClassVar[dict[int, Any]] = {operation[0]: pickle._Unpickler.dispatch[operation[0]] for operation in _OPERATIONS}

    def __init__(self, data: bytes | BinaryIO) -> None:
        super().__init__(io.BytesIO(data) if isinstance(data, bytes) else data)
        self.storages: list[_Storage] = []

    def load_empty_mapping(self) -> None:
        """A dict, as one that is checked."""
        self.append(_Mapping())

    def load_no_state(self) -> None:
        """Leave out what torch hangs on a state dict; nothing else may be given attributes."""
        self.stack.pop()
        if not isinstance(self.stack[-1], _Mapping):
            raise TypeError

    dispatch[pickle.EMPTY_DICT[0]] = load_empty_mapping
    dispatch[pickle.BUILD[0]] = load_no_state

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The stand-in for a name; raises for every name that is not known."""
        try:
            return _KNOWN[module_name, global_name]
        except KeyError:
            raise _Unknown from None

    def persistent_load(self, pid: Any, /) -> _Storage:
        """A storage, by ("storage", class, key, location, numbers) and, before 1.6, what of it is meant."""
        _, kind, key, _location, count, *view = pid
        if not isinstance(kind, str) or kind not in _DTYPES or not isinstance(key, str) or any(view):
            raise ValueError
        storage = _Storage(kind, key, _whole(count))
        self.storages.append(storage)
        return storage
