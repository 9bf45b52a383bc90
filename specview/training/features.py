"""The target's hidden states of the training texts, kept on disk: training a head never runs the target.

A shard holds, beside the tokens, the hidden states that the head reads, each scaled to unit RMS (heads norm them first,
so the scale is nothing to them, and float16 holds any model's), and the last hidden state, from which the target's own
predictions are one product away.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from specview.errors import SpecviewError
from specview.models.cache import size_words
from specview.training.shards import SHARD_TOKENS, Shards, shard_files

SPARE_BYTES = 512 << 20  # left free on the disk


class FeatureSource(Protocol):
    """A target that gives its hidden states for a text."""

    def features(self, tokens: list[int], layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states after numbers of layers [n, layers, hidden], and the last one, normed, [n, hidden]."""
        ...


@dataclass(frozen=True)
class Text:
    """One training text: its ids, where it came from, how many tokens at its end the target wrote."""

    tokens: list[int]
    kind: str
    written: int


@dataclass(frozen=True)
class StoredText:
    """Where one text's features are: rows start to start + length of a shard."""

    shard: Path
    start: int
    length: int
    kind: str
    written: int


def bytes_per_token(layers: int, hidden: int) -> int:
    """Disk that one token's features take: float16 hidden states and an int32 id."""
    return 2 * (layers + 1) * hidden + 4


def require_room(folder: Path, needed: int) -> None:
    """Raise SpecviewError where the disk under `folder` has no room for so many bytes of features."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free - SPARE_BYTES
    if needed > free:
        raise SpecviewError(
            f"The features need {size_words(needed)} in {folder}, and {size_words(max(0, free))} are free there.",
            "Lower the feature budget, name another folder for the work, or free disk space.",
        )


class FeatureWriter(Shards[tuple[Text, Tensor, Tensor]]):
    """Runs the target over texts and writes shards."""

    def __init__(
        self, source: FeatureSource, layers: Sequence[int], folder: Path, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        super().__init__(folder, "features", shard_tokens)
        self._source, self._layers = source, tuple(layers)

    @torch.inference_mode()
    def add(self, text: Text) -> None:
        """Compute and keep one text's features; a shard is written when there are enough."""
        states, last = self._source.features(text.tokens, self._layers)
        if states.numel():
            states = torch.nn.functional.rms_norm(states.float(), states.shape[-1:])
        self._put((text, states.half(), last.half()), len(text.tokens))

    def _stored(self, pending: list[tuple[Text, Tensor, Tensor]]) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
        texts, states, last = zip(*pending, strict=True)
        tokens = torch.tensor([token for text in texts for token in text.tokens], dtype=torch.int32)
        return (
            {"tokens": tokens, "states": torch.cat(states), "last": torch.cat(last)},
            {"layers": self._layers, "sequences": [[len(text.tokens), text.kind, text.written] for text in texts]},
        )


@dataclass
class FeatureStore:
    """The sequences of all shards in a folder; rows are read when asked for."""

    folder: Path
    layers: tuple[int, ...] = ()
    sequences: list[StoredText] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read what is there; raises SpecviewError where shards were written for other layers."""
        self._files: dict[Path, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take up shards that came since."""
        for path in shard_files(self.folder):
            if path in self._files:
                continue
            file = safe_open(path, "pt").__enter__()
            meta = file.metadata()
            layers = tuple(json.loads(meta["layers"]))
            if self.layers and layers != self.layers:
                raise SpecviewError(
                    f"{path} holds features of layers {layers}, not {self.layers}.", "Use another work folder."
                )
            self.layers, self._files[path] = layers, file
            start = 0
            for length, kind, written in json.loads(meta["sequences"]):
                self.sequences.append(StoredText(path, start, length, kind, written))
                start += length

    @property
    def tokens(self) -> int:
        """Tokens in all sequences."""
        return sum(sequence.length for sequence in self.sequences)

    def read(self, sequence: StoredText) -> tuple[Tensor, Tensor, Tensor]:
        """tokens [n] int64, states [n, layers, hidden] float16, last [n, hidden] float16."""
        rows = slice(sequence.start, sequence.start + sequence.length)
        file = self._files[sequence.shard]
        tokens, states, last = (file.get_slice(name)[rows] for name in ("tokens", "states", "last"))
        return tokens.long(), states, last
