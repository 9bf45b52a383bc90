"""Server-sent events, as serving engines stream them: bytes in, JSON objects out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from specview.errors import SpecviewError

LONGEST_LINE = 4_000_000
"""Bytes of a line, and of an event, that are taken; a chunk of an engine has some thousand."""
DONE = "[DONE]"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class LineTooLong(SpecviewError):
    """A line or event without an end."""

    def __init__(self) -> None:
        super().__init__(f"a line of the server's stream has more than {LONGEST_LINE:,} bytes: this is no engine's stream.")


class Events:
    """Splits a stream into events: (name, data) each. Lines end with LF, CR or CRLF and may be split anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """The events that these bytes complete. Raises LineTooLong."""
        self._rest += chunk
        found: list[tuple[str, str]] = []
        begin = 0
        for match in _LINE_END.finditer(self._rest, self._searched):
            if match.start() < begin:
                continue
            if match.group() == b"\r" and match.end() == len(self._rest):
                break  # its LF may come with the next bytes
            self._line(bytes(self._rest[begin : match.start()]), found)
            begin = match.end()
        del self._rest[:begin]
        self._searched = max(0, len(self._rest) - 1)
        if len(self._rest) > LONGEST_LINE:
            raise LineTooLong
        return found

    def close(self) -> list[tuple[str, str]]:
        """The event that the stream's end completes: some servers leave out the last empty line."""
        found: list[tuple[str, str]] = []
        if self._rest:
            self._line(bytes(self._rest.rstrip(b"\r")), found)
            self._rest.clear()
        self._line(b"", found)
        return found

    def _line(self, line: bytes, found: list[tuple[str, str]]) -> None:
        if not line:
            if self._data:
                found.append((self._name, "\n".join(self._data)))
            self._name, self._data, self._size = "", [], 0
            return
        self._size += len(line)
        if len(line) > LONGEST_LINE or self._size > LONGEST_LINE:
            raise LineTooLong
        text = line.decode("utf-8", "replace")
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "error":  # llama-server, before it had data: lines for errors
            self._name, self._data = "error", [value]


def payloads(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream, to its [DONE] or its end, whichever comes first.

    Raises SpecviewError, one line, for what is not JSON and for an error that the server reports in the stream.
    """
    events = Events()

    def read(found: list[tuple[str, str]]) -> Iterator[dict[str, Any] | None]:
        for name, data in found:
            if data.strip() == DONE:
                yield None
                return
            yield _payload(name, data)

    for chunk in chunks:
        for one in read(events.feed(chunk)):
            if one is None:
                return
            yield one
    for one in read(events.close()):
        if one is None:
            return
        yield one


def _payload(name: str, data: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise SpecviewError(f"the server's stream has something that is not JSON: {short(data)!r}.") from None
    if not isinstance(found, dict):
        raise SpecviewError(f"the server's stream has something that is no JSON object: {short(data)!r}.")
    if name == "error" or found.get("error") or found.get("object") == "error":
        raise SpecviewError(f"the server reported an error in mid-stream: {error_words(found)}")
    return found


def error_words(found: Any) -> str:
    """What an engine's error object says, in one short line."""
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        for key in ("message", "detail", "msg"):
            if error.get(key):
                return short(str(error[key]))
    return short(error if isinstance(error, str) else json.dumps(error, ensure_ascii=False))


def short(text: str, most: int = 200) -> str:
    """The text on one line, cut."""
    line = " ".join(text[: 4 * most].split())
    line = "".join(char if char.isprintable() else "�" for char in line)
    return line if len(line) <= most else f"{line[:most]}…"
