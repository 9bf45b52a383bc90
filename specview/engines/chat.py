"""Text to token ids and back, as both engines do it: the same messages give the same ids in both.

A chat is rendered by the model's own template, and nothing typed by a user becomes a special token. Bytes are joined to
text as soon as they are whole characters.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property

from specview.decoding.interfaces import Declared
from specview.engines import templates
from specview.errors import SpecviewError, UsageError

Encode = Callable[[str], list[int]]
_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class ModelTokenizer:
    """A model's tokenizer (interfaces.Tokenizer); a subclass says how bare text and rendered templates are cut.

    special_tokens are strings that only a template may turn into one token, with their ids. prefix holds the ids that the
    model's ordinary tokenization puts before a text (BOS, as a rule).
    """

    vocab_size: int
    bos_id: int | None
    eos_ids: frozenset[int]
    declared: Declared
    special_tokens: Mapping[str, int]
    prefix: list[int]
    _bos_token: str | None
    _eos_token: str | None

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        """Encode text without a prefix, in which special strings are parsed or stay text."""
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; special tokens give their name, ids without a token nothing."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Encode bare text, without BOS; strings of special tokens stay text."""
        return self._tokenize(text, special=False)

    def encode_raw(self, text: str) -> list[int]:
        """Encode a raw prompt: BOS where the model wants one; an empty prompt becomes BOS.

        Raises UsageError for an empty prompt where the model has no BOS.
        """
        tokens = self.prefix + self.encode(text)
        if tokens:
            return tokens
        if self.bos_id is None:
            raise UsageError("The prompt is empty, and this model has no BOS token.", "Write a prompt.")
        return [self.bos_id]

    def encode_chat(self, messages: Sequence[Mapping[str, str]], template: str | None = None) -> list[int]:
        """Render [{role, content}...] by the model's template of that name, ready for the assistant's turn."""
        return render_chat(
            self.declared.templates,
            messages,
            template=template,
            special_tokens=self.special_tokens,
            encode_text=self.encode,
            bos_token=self._bos_token,
            eos_token=self._eos_token,
            encode_template=lambda text: self._tokenize(text, special=True),
        )

    def token_text(self, token: int) -> str:
        """One token on its own, as text (special tokens by their name)."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    @cached_property
    def _silent(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values()) | self.eos_ids

    def detokenizer(self) -> ByteDetokenizer:
        """Make a new incremental detokenizer. EOS and other control tokens add no text."""
        return ByteDetokenizer(self.token_bytes, self._silent)


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


class ByteDetokenizer:
    """Incremental detokenizer over the bytes that tokens stand for (interfaces.Detokenizer).

    token_bytes gives a token's bytes, with the space that a sentencepiece token begins with; silent
    holds the ids that add no text (EOS and other control tokens). The texts of all added tokens and
    of `flush`, joined, are the bytes of all of them decoded at once, each byte that is no UTF-8
    giving U+FFFD as `bytes.decode(errors="replace")` does.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], silent: Container[int] = frozenset()) -> None:
        self._token_bytes = token_bytes
        self._silent = silent
        self._decoder = _utf8_decoder(errors="replace")

    def _decode(self, decoder: codecs.IncrementalDecoder, token: int) -> str:
        return "" if token in self._silent else decoder.decode(self._token_bytes(token))

    def add(self, token: int) -> str:
        """Append a token and return the text that became complete with it (possibly empty)."""
        return self._decode(self._decoder, token)

    def peek(self, tokens: Sequence[int]) -> list[str]:
        """Texts that these tokens, one after the other, would add, without adding them."""
        decoder = _utf8_decoder(errors="replace")
        decoder.setstate(self._decoder.getstate())
        return [self._decode(decoder, token) for token in tokens]

    def flush(self) -> str:
        """Return what is left incomplete, as replacement characters, and start anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
