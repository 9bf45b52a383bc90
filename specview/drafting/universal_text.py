"""Text between two tokenizers, exactly: bytes to ids, and a target's context as its draft reads it.

Nothing here goes through lossy text: a character that is split over tokens, a space that a tokenizer puts
before a text, an unusual segmentation all keep their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from specview.decoding.interfaces import Tokenizer
from specview.drafting.universal_vocabulary import Pairing, Vocabulary

SETTLED_TOKENS = 8
"""Context tokens at the end that are always re-encoded: what follows may yet change how they are split."""

LONGEST_TAIL = 64
"""Most context tokens that are re-encoded in a round to find a boundary between words."""


class TextCoder:
    """Bytes to ids of one tokenizer; the ids' own bytes, joined, are exactly what was asked for."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._texts = vocabulary.texts
        # SentencePiece vocabularies of the Llama 2 kind put a space before every text.
        self._adds_space = self._joined(tokenizer.encode("a")) == b" a"

    def _joined(self, ids: Sequence[int]) -> bytes | None:
        """The bytes of ids; None where one stands for no text (an unknown character's)."""
        texts = self._texts
        try:
            return b"".join([texts[token] for token in ids])
        except KeyError:
            return None

    def encode(self, data: bytes, before: bytes = b"") -> list[int] | None:
        """Ids of `data` as the tokenizer splits it where it follows `before`; None where it has no such bytes.

        A token that would span the boundary gives way to shorter ones after it.
        """
        if not data:
            return []
        whole = self._natural(before + data)
        if whole is None:
            return self.spell(data)
        at = -len(before)
        found: list[int] = []
        for token in whole:
            end = at + len(self._texts[token])
            if at >= 0:
                found.append(token)
            elif end > 0:
                rest = self.spell(data[:end])
                if rest is None:
                    return None
                found += rest
            at = end
        return found

    def spell(self, data: bytes) -> list[int] | None:
        """Ids of `data` by the longest token at each place; None where a byte has none."""
        ids, longest = self._vocabulary.ids, self._vocabulary.longest
        found: list[int] = []
        at = 0
        while at < len(data):
            for end in range(min(len(data), at + longest), at, -1):
                token = ids.get(data[at:end])
                if token is not None:
                    found.append(token)
                    at = end
                    break
            else:
                return None
        return found

    def _natural(self, data: bytes) -> list[int] | None:
        """The tokenizer's own ids of `data`; bytes that are no UTF-8 are spelled."""
        found: list[int] = []
        while data:
            try:
                text, broken, data = data.decode(), b"", b""
            except UnicodeDecodeError as error:
                text = data[: error.start].decode()
                broken, data = data[error.start : error.end], data[error.end :]
            for part in (self._of_text(text) if text else [], self.spell(broken)):
                if part is None:
                    return None
                found += part
        return found

    def _of_text(self, text: str) -> list[int] | None:
        data = text.encode()
        ids = self._tokenizer.encode(text[1:] if self._adds_space and text[0] == " " else text)
        joined = self._joined(ids)
        if joined == data:
            return ids
        if joined == b" " + data and ids:
            first = self.spell(self._texts[ids[0]][1:])
            return None if first is None else first + ids[1:]
        return self.spell(data)  # a tokenizer that changes its text (normalization, unknown characters)


class Mirror:
    """The target's context in the draft's vocabulary, kept up round by round.

    The text is re-encoded as the draft itself would split it; special tokens are those of the same name,
    else left out. Only a tail is read anew in a round: what lies before a boundary that both share, well
    before the end, is settled.
    """

    def __init__(self, pairing: Pairing, coder: TextCoder, prefix: Sequence[int] = ()) -> None:
        """prefix: what the draft's own tokenizer puts before a prompt (BOS)."""
        self._texts = pairing.target.texts
        self._counterparts = pairing.counterparts
        self._coder = coder
        self._draft_texts = pairing.draft.texts
        self._prefix = list(prefix)
        self._ids: list[int] = []
        self._read = 0  # context tokens that are settled
        self.settled = 0  # draft ids that stand for them: they never change again

    def start(self) -> None:
        """Begin a run."""
        self._ids = list(self._prefix)
        self._read, self.settled = 0, len(self._ids)

    def follow(self, context: Sequence[int]) -> list[int] | None:
        """The draft's ids of `context`, which goes on from that of the last call; do not change the list.

        None where the draft has no tokens for some of its bytes.
        """
        tail = context[self._read :]
        ids: list[int] = []
        boundaries = [(0, 0)]  # (tail tokens, ids) up to which both have the same bytes
        done, run = 0, b""
        lengths: list[int] = []
        for place, token in enumerate([*tail, None]):
            if token is not None and token in self._texts:
                text = self._texts[token]
                run += text
                lengths.append(len(text))
                continue
            if run:
                encoded = self._coder.encode(run)
                if encoded is None:
                    return None
                boundaries += self._boundaries(done, lengths, len(ids), encoded)
                ids += encoded
            run, lengths, done = b"", [], place + 1
            if token is not None:
                own = self._counterparts.get(token)
                is_first = self._read + place == 0  # the draft's own BOS stands there already
                if own is not None and not (is_first and self._prefix == [own]):
                    ids.append(own)
                boundaries.append((done, len(ids)))
        del self._ids[self.settled :]
        self._ids += ids
        self._settle(tail, boundaries)
        return self._ids

    def _boundaries(
        self, done: int, lengths: Sequence[int], first: int, encoded: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Where a token of the target and one of the draft end at the same byte of a run of text."""
        ends, at = {}, 0
        for index, token in enumerate(encoded, first + 1):
            at += len(self._draft_texts[token])
            ends[at] = index
        found, at = [], 0
        for index, length in enumerate(lengths, done + 1):
            at += length
            if at in ends:
                found.append((index, ends[at]))
        return found

    def _settle(self, tail: Sequence[int], boundaries: Sequence[tuple[int, int]]) -> None:
        """Settle what lies before the last word boundary that is well before the end."""
        candidates = [boundary for boundary in boundaries if 0 < boundary[0] <= len(tail) - SETTLED_TOKENS]
        # A word that begins with its space is split alike on its own and after others.
        words = (boundary for boundary in reversed(candidates) if self._texts.get(tail[boundary[0]], b" ")[:1] == b" ")
        found = next(words, None)
        if candidates and len(tail) - (found[0] if found else 0) > LONGEST_TAIL:
            found = candidates[-1]
        if found is not None:
            self._read += found[0]
            self.settled += found[1]


def complete(data: bytes) -> bytes:
    """`data` without the bytes of a last character that is not whole yet."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # a leading byte: it asks for 2, 3 or 4 in all
            return data[:-back] if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else data
        if byte < 0x80:
            break
    return data


def prefix_of(tokenizer: Tokenizer) -> list[int]:
    """What a tokenizer puts before every raw prompt: BOS, as a rule."""
    bare, raw = tokenizer.encode("a"), tokenizer.encode_raw("a")
    return raw[: len(raw) - len(bare)] if bare and raw[-len(bare) :] == bare else []
