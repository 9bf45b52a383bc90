"""A chat to token ids: the model's own template, and nothing typed by a user becomes a special token.

Both engines render and cut here, so that the same messages give the same ids in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from specview.engines import templates
from specview.errors import SpecviewError

Encode = Callable[[str], list[int]]


def render_chat(
    named: Mapping[str, str],
    messages: Sequence[Mapping[str, str]],
    *,
    template: str | None = None,
    special_tokens: Mapping[str, int],
    encode_text: Encode,
    bos_token: str | None,
    eos_token: str | None,
    encode_template: Encode | None = None,
) -> list[int]:
    """Render [{role, content}...] by one of a model's chat templates, up to the assistant's turn.

    named are the templates by name, template the name of the one to take (None: the default one).
    special_tokens gives the ids of the strings that must come from the template alone. encode_text
    encodes bare text in which no string is special. encode_template, where given, is the model's
    ordinary tokenization of a rendered chat, which does parse special tokens (and knows their habits,
    such as swallowing the space after them): it takes every stretch in which no user typed a special
    string, so that ordinary chats get exactly the ids of ordinary tokenization. No BOS is added to
    what the template writes.

    Raises SpecviewError where there is no such template, it refuses these messages or exceeds its limits.
    """
    chosen = templates.choose(named, template)
    special = _longest_first(special_tokens)
    marker = _unused_character([chosen, *special, *(value for message in messages for value in message.values())])
    marked = [
        {key: value if key == "role" else mark_special(value, special, marker) for key, value in message.items()}
        for message in messages
    ]
    try:
        rendered = templates.render_chat_text(chosen, marked, bos_token, eos_token, template)
    except templates.TemplateRefusal as refusal:
        mend = "Send the prompt raw (--raw)."
        if any(message.get("role") == "system" for message in messages):
            mend = "Leave the system text out, or send the prompt raw (--raw)."
        raise SpecviewError(f"The model's chat template refuses this chat: {refusal}.", mend) from refusal
    return _encode_rendered(rendered, marker, special_tokens, special, encode_text, encode_template)


def mark_special(text: str, special: Sequence[str], marker: str) -> str:
    """Put `marker` before each place of a user's text where a special string begins, or could.

    It could where the text's end is the beginning of one, or the text's beginning is the end of one,
    or all of it is inside one, and the template supplies the rest.
    """
    places: set[int] = set()
    start = len(text) - len(text.lstrip())
    for end in {len(text), len(text.rstrip())}:
        for name in special:
            for length in range(1, min(len(name), end + 1)):
                if text.endswith(name[:length], 0, end):
                    places.add(end - length)
    for name in special:
        at = text.find(name)
        while at >= 0:
            places.add(at)
            at = text.find(name, at + 1)
        for first in {0, start}:
            if any(text.startswith(name[at:], first) for at in range(1, len(name))):
                places.add(first)
        if text.strip() and text.strip() in name:
            places.add(start)
    pieces, last = [], 0
    for at in sorted(places):
        pieces += [text[last:at], marker]
        last = at
    return "".join([*pieces, text[last:]])


def _encode_rendered(
    rendered: str,
    marker: str,
    ids: Mapping[str, int],
    special: Sequence[str],
    encode_text: Encode,
    encode_template: Encode | None,
) -> list[int]:
    # Odd items are special strings that the template wrote, even ones the stretches between them.
    pattern = f"(?<!{re.escape(marker)})({'|'.join(map(re.escape, special))})"
    parts = re.split(pattern, rendered) if special else [rendered]
    tokens: list[int] = []
    waiting = ""  # stretches free of a user's special strings, for encode_template in one go
    for index, part in enumerate(parts):
        if index % 2:
            if encode_template is None:
                tokens.append(ids[part])
            else:
                waiting += part
        elif encode_template is not None and marker not in part:
            waiting += part
        else:
            if waiting and encode_template is not None:
                tokens += encode_template(waiting)
                waiting = ""
            if part:
                tokens += encode_text(part.replace(marker, ""))
    if waiting and encode_template is not None:
        tokens += encode_template(waiting)
    return tokens


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted((name for name in names if name), key=lambda name: (-len(name), name))


def _unused_character(texts: Iterable[str]) -> str:
    """Return a private-use character that none of the texts has (Unicode has 137,468 of them)."""
    used = set().union(*map(set, texts))
    for first, last in ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)):
        for code in range(first, last + 1):
            if chr(code) not in used:
                return chr(code)
    raise SpecviewError("The prompt holds every private-use character of Unicode.", "Send it raw (--raw).")
