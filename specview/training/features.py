"""The target's hidden states of the training texts, kept on disk: training a head never runs the target.

A shard holds sequences end to end: their tokens, the hidden states that the head reads, each scaled to
unit RMS (heads norm them first, so the scale is nothing to them, and float16 holds any model's), and the
last hidden state, from which the target's own predictions are one product away.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specview.errors import SpecviewError
from specview.models.cache import size_words

SHARD_TOKENS = 20_000
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


class FeatureWriter:
    """Runs the target over texts and writes shards."""

    def __init__(
        self,
        source: FeatureSource,
        layers: Sequence[int],
        folder: Path,
        name: str = "features",
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        """Shards are named `name`-00000 and so on, after those that are there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._shard_tokens = shard_tokens
        self._source, self._layers, self._folder, self._name = source, tuple(layers), folder, name
        self._next = len(list(folder.glob(f"{name}-*.safetensors")))
        self._parts: list[tuple[Text, Tensor, Tensor]] = []

    @torch.inference_mode()
    def add(self, text: Text) -> None:
        """Compute and keep one text's features; a shard is written when there are enough."""
        states, last = self._source.features(text.tokens, self._layers)
        if states.numel():
            states = torch.nn.functional.rms_norm(states.float(), states.shape[-1:])
        self._parts.append((text, states.half(), last.half()))
        if sum(len(part[0].tokens) for part in self._parts) >= self._shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write what is pending; the file appears whole or not at all. Raises SpecviewError on a full disk."""
        if not self._parts:
            return
        tensors = {
            "tokens": torch.tensor(
                [token for text, _, _ in self._parts for token in text.tokens], dtype=torch.int32
            ),
            "states": torch.cat([states for _, states, _ in self._parts]),
            "last": torch.cat([last for _, _, last in self._parts]),
        }
        meta = {
            "layers": json.dumps(self._layers),
            "sequences": json.dumps(
                [[len(text.tokens), text.kind, text.written] for text, _, _ in self._parts]
            ),
        }
        path = self._folder / f"{self._name}-{self._next:05d}.safetensors"
        part = path.with_suffix(".part")
        try:
            save_file(tensors, part, metadata=meta)
            os.replace(part, path)
        except Exception as error:
            part.unlink(missing_ok=True)
            raise SpecviewError(
                f"The features could not be written to {self._folder}: {error}.",
                "Free disk space, or name another folder for the work.",
            ) from error
        self._parts, self._next = [], self._next + 1


@dataclass
class FeatureStore:
    """The sequences of all shards in a folder; rows are read when asked for."""

    folder: Path
    layers: tuple[int, ...] = ()
    sequences: list[StoredText] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read what is there; raises SpecviewError where shards were written for other layers."""
        self._known: set[Path] = set()
        self._files: dict[Path, object] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Take up shards that came since; True where there were any."""
        # In the order they were finished: a resumed epoch finds its own shards first again.
        files = sorted(
            self.folder.glob("*.safetensors"), key=lambda path: (path.stat().st_mtime_ns, path.name)
        )
        new = [path for path in files if path not in self._known]
        for path in new:
            with safe_open(path, "pt") as file:
                meta = file.metadata()
            layers = tuple(json.loads(meta["layers"]))
            if self.layers and layers != self.layers:
                raise SpecviewError(
                    f"{path} holds features of layers {layers}, not {self.layers}.",
                    "Use another work folder.",
                )
            self.layers = layers
            start = 0
            for length, kind, written in json.loads(meta["sequences"]):
                self.sequences.append(StoredText(path, start, length, kind, written))
                start += length
            self._known.add(path)
        return bool(new)

    @property
    def tokens(self) -> int:
        """Tokens in all sequences."""
        return sum(sequence.length for sequence in self.sequences)

    def read(self, sequence: StoredText) -> tuple[Tensor, Tensor, Tensor]:
        """tokens [n] int64, states [n, layers, hidden] float16, last [n, hidden] float16."""
        file = self._files.get(sequence.shard)
        if file is None:
            file = self._files[sequence.shard] = safe_open(sequence.shard, "pt").__enter__()
        rows = slice(sequence.start, sequence.start + sequence.length)
        tokens, states, last = (file.get_slice(name)[rows] for name in ("tokens", "states", "last"))  # type: ignore[attr-defined]
        return tokens.long(), states, last
