"""Model text made drawable: control characters as symbols, tool tips that are never HTML."""

from __future__ import annotations

import html
import re
import unicodedata
from itertools import cycle, groupby

# Joiners and variation selectors shape emoji and Indic text; every other format character (bidi
# overrides, zero-width spaces, tags) would act on its neighbours unseen, so it is shown by its number.
_SHAPING = {0x200C, 0x200D, 0xFE0E, 0xFE0F}
_NAMES = ["NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "HT", "LF", "VT", "FF", "CR", "SO", "SI", "DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US"]
_BLANKS = {
    " ": "space", "\n": "newline", "\t": "tab", "\r": "carriage return", "\x00": "null", "\x07": "bell", "\x08": "backspace",
    "\x0b": "vertical tab", "\x0c": "form feed", "\x1b": "escape", "\x7f": "delete", "\x85": "next line",
}  # fmt: skip
_SPACES = re.compile(r"( {2,}|^ $| $)")
_PLAIN = re.compile(r"[\x20-\x7e]*\Z")


def is_plain(text: str) -> bool:
    """Whether every character is printable ASCII, one cell wide in a fixed-width font."""
    return _PLAIN.match(text) is not None


def symbol(char: str) -> str:
    """Return what to draw for one character: itself, or a visible stand-in for a control.

    Newline and tab get their own marks too: whether they act or are drawn is the caller's choice.
    """
    code = ord(char)
    if char == "\n":
        return "↵"
    if char == "\t":
        return "⇥"
    if code < 0x20:
        return f"‹{_NAMES[code]}›"  # not U+2400 and on: few fonts have those
    if code < 0x7F:
        return char
    if code == 0x7F:
        return "‹DEL›"
    category = unicodedata.category(char)
    if category == "Cs":
        return "\ufffd"
    if category in ("Cc", "Zl", "Zp") or (category == "Cf" and code not in _SHAPING):
        return f"‹{code:04X}›"
    return char


def visible(text: str) -> str:
    """Return one line to draw for `text`: controls, newlines and tabs as symbols."""
    return text if is_plain(text) else "".join(symbol(char) for char in text)


def quoted(text: str, limit: int = 40) -> str:
    """Return `text` in double quotes on one line, cut in the middle where it is longer than `limit`; blanks by their names."""
    blank = bool(text) and text.isspace()
    shown = ", ".join(_blanks(char, len(list(run))) for char, run in groupby(text)) if blank else visible(text)
    if len(shown) > limit:
        half = max(1, (limit - 1) // 2)
        shown = f"{shown[:half]}…{shown[-half:]}"
    return shown if blank else f'"{shown}"'


def spelled(text: str, limit: int = 60) -> str:
    """Return `text` for a reader: what cannot be seen by its name, the rest in quotes: newline, 4 spaces, "return"."""
    parts: list[str] = []
    for spaces, piece in zip(cycle((False, True)), _SPACES.split(text), strict=False):
        if spaces:
            parts.append(_blanks(" ", len(piece)))
            continue
        for unseen, run in groupby(piece, key=_unseen):
            chars = "".join(run)
            if unseen:
                parts += [_blanks(char, len(list(same))) for char, same in groupby(chars)]
            else:
                parts.append(f'"{chars}"')
    shown = ", ".join(parts)
    if len(shown) > limit:
        half = max(1, (limit - 1) // 2)
        shown = f"{shown[:half]}…{shown[-half:]}"
    return shown


def _unseen(char: str) -> bool:
    """Whether a character other than a space is blank, would act and not be seen, or has no picture."""
    return symbol(char) != char or not (char.isprintable() or ord(char) in _SHAPING)


def _blanks(char: str, count: int) -> str:
    """So many of one character that cannot be seen, in words: newline, 4 spaces."""
    code = ord(char)
    name = _BLANKS.get(char) or (f"{_NAMES[code]} control character" if code < 0x20 else unicodedata.name(char, "").lower())
    name = name or f"U+{code:04X}"
    return name if count == 1 else f"{count} {name}s"


def tooltip(text: str) -> str:
    """Return a tool tip that shows exactly this text; Qt would otherwise guess that '<b>' is HTML."""
    lines = (html.escape(visible(line)) for line in text.split("\n"))
    return f"<qt>{'<br>'.join(lines)}</qt>" if text else ""


def clipboard(text: str) -> str:
    """Return `text` as it can be encoded: lone surrogates become replacement characters."""
    return text.encode("utf-8", "replace").decode("utf-8") if any(0xD800 <= ord(c) < 0xE000 for c in text) else text


def brief(name: str, limit: int = 24) -> str:
    """Return a name, cut in the middle where it is longer than `limit`."""
    return name if len(name) <= limit else f"{name[: limit * 2 // 3].rstrip()}…{name[-(limit // 3 - 1) :].lstrip()}"
