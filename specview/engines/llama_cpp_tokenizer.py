"""The tokenizer inside a GGUF file, through llama.cpp itself (interfaces.Tokenizer)."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

from specview.engines.chat import ModelTokenizer
from specview.engines.declared import of_gguf
from specview.engines.gguf_file import GgufFile
from specview.engines.llama_cpp_library import llama
from specview.errors import SpecviewError

_ATTR_UNKNOWN, _ATTR_CONTROL = 1 << 0, 1 << 3  # enum llama_token_attr


class LlamaCppTokenizer(ModelTokenizer):
    """Text to ids and back with the vocabulary of a loaded model.

    It lives as long as the model that it was made from.
    """

    def __init__(self, model: int, facts: GgufFile) -> None:
        lib = llama()
        self._lib = lib
        self._vocab = lib.llama_model_get_vocab(model)
        self._piece_buffer = ctypes.create_string_buffer(256)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size: int = lib.llama_vocab_n_tokens(self._vocab)
        bos = lib.llama_vocab_bos(self._vocab)
        self.bos_id: int | None = bos if bos >= 0 else None
        adds_bos = lib.llama_vocab_get_add_bos(self._vocab) and self.bos_id is not None
        self.prefix = [bos] if adds_bos else []
        eos = lib.llama_vocab_eos(self._vocab)
        self._bos_token, self._eos_token = (self.token_text(token) if token >= 0 else None for token in (bos, eos))
        # Not llama.cpp's own ends, which are the ones of its file and, where that names none, of GPT-2.
        self.declared = of_gguf(facts, adds_bos=adds_bos)
        self.eos_ids = self.declared.eos_ids

    @cached_property
    def special_tokens(self) -> dict[str, int]:  # type: ignore[override]
        """Strings that only a template may turn into one token, with their ids."""
        attr = self._lib.llama_vocab_get_attr
        ids = [
            token for token in range(self.vocab_size) if attr(self._vocab, token) & (_ATTR_UNKNOWN | _ATTR_CONTROL)
        ]
        return {name: token for token in ids if (name := self.token_text(token))}

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        raw = text.encode("utf-8", errors="replace")
        room = len(raw) + 8
        for _ in range(2):
            tokens = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(self._vocab, raw, len(raw), tokens, room, False, special)
            if count >= 0:
                return list(tokens[:count])
            room = -count
        raise SpecviewError("llama.cpp could not tokenize the text.", "Try a shorter one.")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; special tokens give their name, ids beyond the vocabulary none."""
        if (known := self._bytes.get(token)) is None:
            known = self._bytes[token] = self._piece(token)
        return known

    def _piece(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            return b""
        buffer: Any = self._piece_buffer
        size = self._lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = self._lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return bytes(buffer.raw[: max(size, 0)])
