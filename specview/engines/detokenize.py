"""Tokens to text, one at a time: bytes are joined and come out as soon as they are whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Sequence

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


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
