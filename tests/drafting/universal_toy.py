"""Test helpers: tokenizers over chosen pieces, and models that agree on text across tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from specview.decoding.interfaces import Declared
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.engines.chat import ByteDetokenizer
from tests.decoding.toy import FakeEngine, TableModel

Piece = bytes | str | None


class Pieces:
    """A tokenizer of given pieces that takes the longest match.

    bytes are text, a str is a special token of that name, None stands for nothing. adds_space: a space is
    put before every text, as SentencePiece vocabularies of the Llama 2 kind do. A byte without a piece
    becomes <unk>, or is dropped where there is none.
    """

    declared = Declared()

    def __init__(
        self, pieces: Sequence[Piece], ends: Iterable[str] = (), bos: str | None = None, adds_space: bool = False
    ) -> None:
        self.pieces = list(pieces)
        self.vocab_size = len(self.pieces)
        self.eos_ids = frozenset(self.pieces.index(end) for end in ends)
        self.bos_id = None if bos is None else self.pieces.index(bos)
        self.adds_space = adds_space
        self.encoded: list[str] = []
        self._ids: dict[bytes, int] = {}
        for token, piece in enumerate(self.pieces):
            if isinstance(piece, bytes):
                self._ids[piece] = token  # the last of several is the one in use
        self._longest = max((len(piece) for piece in self._ids), default=0)

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        data = (b" " if self.adds_space else b"") + text.encode()
        found, at = [], 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                if data[at:end] in self._ids:
                    found.append(self._ids[data[at:end]])
                    at = end
                    break
            else:
                found += [self.pieces.index("<unk>")] if "<unk>" in self.pieces else []
                at += 1
        return found

    def encode_raw(self, text: str) -> list[int]:
        return ([] if self.bos_id is None else [self.bos_id]) + (self.encode(text) if text else [])

    def encode_chat(self, messages: Sequence[Any], template: str | None = None) -> list[int]:
        return [token for message in messages for token in self.encode(message["content"])]

    def token_bytes(self, token: int) -> bytes:
        piece = self.pieces[token]
        return b"" if piece is None else piece.encode() if isinstance(piece, str) else piece

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def detokenizer(self) -> ByteDetokenizer:
        silent = {token for token, piece in enumerate(self.pieces) if isinstance(piece, str)}
        return ByteDetokenizer(self.token_bytes, silent)

    def text(self, tokens: Sequence[int]) -> bytes:
        """The bytes of tokens, special ones left out."""
        return b"".join(piece for token in tokens if isinstance(piece := self.pieces[token], bytes))


def letters_model(tokenizer: Pieces, seed: int = 0, noise: float = 0.0, sharpness: float = 6.0) -> Any:
    """Logits of tokens from one table of what letter follows which: two tokenizers' models agree on text.

    A token's logit is the mean score of its letters, each after the one before it; specials get -4.
    """
    scores = np.random.default_rng([seed, 7]).normal(size=(256, 256))
    scores += noise * np.random.default_rng([seed, 8]).normal(size=(256, 256))
    table = np.full((256, tokenizer.vocab_size), -4.0, dtype=np.float32)
    for token, piece in enumerate(tokenizer.pieces):
        if isinstance(piece, bytes):
            rows = np.array([[last, *piece] for last in range(256)])
            table[:, token] = sharpness * scores[rows[:, :-1], rows[:, 1:]].mean(axis=1)

    def model(prefix: Sequence[int]) -> np.ndarray:
        last = next((p[-1] for t in reversed(prefix) if isinstance(p := tokenizer.pieces[t], bytes)), 0)
        return table[last]

    return model


def engine_of(
    tokenizer: Pieces, model: Callable[[Sequence[int]], np.ndarray] | None = None, name: str = "fake", **options: Any
) -> FakeEngine:
    """An engine over a tokenizer of pieces; without a model, one that depends on its whole context."""
    size = tokenizer.vocab_size
    return FakeEngine(
        model or TableModel(size, seed=len(name)), size, tokenizer=tokenizer, eos_ids=tokenizer.eos_ids,
        model_name=name, **options,
    )  # type: ignore[arg-type]  # fmt: skip


def foreign_drafter(
    target: FakeEngine, draft: FakeEngine, vocabulary: str = "auto", rule: str = "greedy", max_length: int = 1000
) -> Any:
    """The drafter that the registry's method makes for this pair."""
    make = METHODS["draft-model"].make
    assert make is not None
    return make(
        DrafterContext(
            {"vocabulary": vocabulary}, max_length, target.vocab_size, draft_engine=draft, target=target, rule=rule
        )
    )  # type: ignore[arg-type]
