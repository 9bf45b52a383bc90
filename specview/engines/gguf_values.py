"""Values as a GGUF file writes them: little-endian numbers, strings, and lists decoded when asked for."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BYTES = {kind: struct.calcsize("<" + letter) for kind, letter in _SCALARS.items()}
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_MAX_LIST, _MAX_SHORT = 1 << 19, 1 << 16  # items of one list, and of all that are decoded at once
_SHORT_LIST = 512  # per-layer values are decoded at once, vocabularies when asked for


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
