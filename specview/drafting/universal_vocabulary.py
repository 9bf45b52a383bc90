"""Two vocabularies side by side: the same tokenizer or not, and which tokens stand for the same text.

Tokens are compared by the bytes that they stand for in the middle of a text, so that a byte-level BPE
("Ġthe"), a metaspace vocabulary ("▁the") and byte-fallback tokens ("<0x0A>") meet. Rows of logits padded
to different widths do not matter (152064 against 151936): padding stands for no token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from specview.decoding.interfaces import Engine, Tokenizer

MIN_SAME = 0.9
"""The share of ids that both must have for two vocabularies to count as one tokenizer's."""

_PADDING = re.compile(
    r"\[PAD\d*\]|<(?:unused|extra_id_|reserved_|dummy)[^>]*>|\[unused\d+\]|<\|(?:dummy|unused)_?\d+\|>"
)
_PADDING_STARTS = b"[<"


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of a tokenizer stand for, padding left out.

    tokens: id -> its bytes in the middle of a text, or the name of a special token. silent gives the ids of
    those that add no text (BOS, end of text, end of turn); ends are those among them that end an answer.
    encode, where given, is the tokenizer's own: of several tokens with the same bytes it says which one a
    text gets.
    """

    tokens: Mapping[int, bytes]
    silent: Callable[[], Container[int]] = frozenset
    ends: frozenset[int] = frozenset()
    encode: Callable[[str], list[int]] | None = None

    @cached_property
    def specials(self) -> dict[int, bytes]:
        """Id -> name of the tokens that add no text."""
        silent = self.silent()
        return {token: name for token, name in self.tokens.items() if token in silent}

    @cached_property
    def texts(self) -> dict[int, bytes]:
        """Id -> bytes of the tokens that stand for text."""
        specials = self.specials
        return {token: text for token, text in self.tokens.items() if token not in specials}

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Bytes -> the one id that stands for them, of several the one that the tokenizer itself uses.

        (A vocabulary with byte fallback has "\\n" twice, as a piece and as <0x0A>.)
        """
        found: dict[bytes, int] = {}
        twice: dict[bytes, list[int]] = {}
        for token, text in self.texts.items():
            if found.setdefault(text, token) != token:
                twice.setdefault(text, [found[text]]).append(token)
        for text, candidates in twice.items():
            found[text] = self._used(text, candidates)
        return found

    def _used(self, text: bytes, candidates: Sequence[int]) -> int:
        if self.encode is None:
            return min(candidates)
        try:
            encoded = self.encode(text.decode())
        except UnicodeDecodeError:
            return min(candidates)
        return next((token for token in encoded if token in candidates), min(candidates))

    @cached_property
    def longest(self) -> int:
        """The length in bytes of the longest token."""
        return max(map(len, self.ids), default=0)


def is_padding(name: str) -> bool:
    """Whether a token of this name only fills a vocabulary up."""
    return _PADDING.fullmatch(name) is not None


_vocabularies: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(engine: Engine) -> Vocabulary:
    """The vocabulary of a loaded engine's tokenizer, read once per engine (about a second for 262,144 tokens)."""
    known = _vocabularies.get(engine)
    if known is None:
        size = min(engine.tokenizer.vocab_size, engine.vocab_size)
        known = _vocabularies[engine] = _read(engine.tokenizer, range(size), engine.eos_ids)
    return known


def _read(tokenizer: Tokenizer, ids: Iterable[int], ends: frozenset[int]) -> Vocabulary:
    tokens: dict[int, bytes] = {}
    token_bytes = tokenizer.token_bytes
    for token in ids:
        try:
            value = token_bytes(token)
        except (KeyError, IndexError, ValueError, TypeError):  # an id that stands for nothing
            continue
        if value and not (value[0] in _PADDING_STARTS and is_padding(value.decode("utf-8", errors="replace"))):
            tokens[token] = value

    def silent() -> frozenset[int]:
        detokenizer = tokenizer.detokenizer()
        add, flush = detokenizer.add, detokenizer.flush  # part of a character comes out with the flush
        return frozenset(token for token in tokens if token in ends or not (add(token) or flush()))

    return Vocabulary(tokens, silent, ends & tokens.keys(), tokenizer.encode)


@dataclass(frozen=True)
class Pairing:
    """How a draft's vocabulary relates to its target's.

    same: one tokenizer, so that ids mean the same on both sides. compared: ids that both have; different:
    those of them that stand for something else.
    """

    target: Vocabulary
    draft: Vocabulary

    @cached_property
    def compared(self) -> int:
        """How many ids both have."""
        return len(self.target.tokens.keys() & self.draft.tokens.keys())

    @cached_property
    def different(self) -> list[int]:
        """The ids that both have and that stand for different things, in order."""
        target, draft = self.target.tokens, self.draft.tokens
        return sorted(token for token in target.keys() & draft.keys() if target[token] != draft[token])

    @property
    def same(self) -> bool:
        """Whether the two are one tokenizer's; a few tokens more on one side do not matter."""
        most = max(len(self.target.tokens), len(self.draft.tokens), 1)
        return not self.different and self.compared >= MIN_SAME * most

    @cached_property
    def counterparts(self) -> dict[int, int]:
        """Target id -> draft id, one to one, of the tokens that stand for the same bytes.

        Special tokens meet by name; ends of text, whose names differ, are paired by `ends_of`.
        """
        theirs = self.draft.ids
        found = {token: theirs[text] for text, token in self.target.ids.items() if text in theirs}
        named = {name: token for token, name in self.draft.specials.items()}
        return found | {
            token: named[name] for token, name in self.target.specials.items() if name in named
        }

    @cached_property
    def shared_texts(self) -> int:
        """How many different texts are one token in both."""
        return len(self.target.ids.keys() & self.draft.ids.keys())

    @property
    def shared_share(self) -> float:
        """shared_texts over the different texts that are one token of the target."""
        return self.shared_texts / max(len(self.target.ids), 1)

    def end_for(self, prompt: Sequence[int]) -> int | None:
        """The target's end that an end drafted by the draft stands for; None where one side has none.

        Of several: the one that the prompt itself uses last (a chat's end of turn), else the lowest.
        """
        if not self.draft.ends or not self.target.ends:
            return None
        return next((token for token in reversed(prompt) if token in self.target.ends), min(self.target.ends))


_pairings: WeakKeyDictionary[Any, WeakKeyDictionary[Any, Pairing]] = WeakKeyDictionary()


def pairing_of(target: Engine, draft: Engine) -> Pairing:
    """The pairing of two loaded engines, made once."""
    own = _pairings.setdefault(target, WeakKeyDictionary())
    known = own.get(draft)
    if known is None:
        known = own[draft] = Pairing(vocabulary_of(target), vocabulary_of(draft))
    return known
