"""Training text on disk as safetensors shards, so that training reads data and never runs the target.

A shard holds sequences end to end, described by its metadata. One sort of shard carries the target's labels: row i is
what the target predicts after token i, its likeliest next tokens and their log-probabilities (all -inf: no label). The
other sort (features.py) carries hidden states.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specview.models.cache import clear_write_errors

LABELS_PER_TOKEN = 32
SHARD_TOKENS = 20_000
ONE_SHARD = 1 << 60
"""As a shard's tokens: all goes into one, which is there whole or not at all."""

Sequence = TypeVar("Sequence")


@dataclass(frozen=True)
class Labelled:
    """One sequence with labels.

    tokens is [n] int64. label_ids [n, LABELS_PER_TOKEN] int64 and label_logp [n, LABELS_PER_TOKEN]
    float32 are both None for plain text, whose only label is its own next token. kind says where the
    sequence came from; written counts the tokens at its end that the target itself wrote.
    """

    tokens: Tensor
    label_ids: Tensor | None
    label_logp: Tensor | None
    kind: str
    written: int


def unlabelled(tokens: list[int], kind: str, written: int) -> Labelled:
    """A sequence without labels."""
    return Labelled(torch.tensor(tokens), None, None, kind, written)


def top_labels(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest ids [n, LABELS_PER_TOKEN] and log-probabilities, from logits [n, vocab]."""
    top = logits.topk(min(LABELS_PER_TOKEN, logits.shape[-1]), -1)
    return top.indices, top.values - logits.logsumexp(-1, keepdim=True)


def shard_files(folder: Path) -> list[Path]:
    """A folder's shards in the order they were finished, in which a resumed run finds them again."""
    return sorted(folder.glob("*.safetensors"), key=lambda path: (path.stat().st_mtime_ns, path.name))


class Shards(Generic[Sequence]):
    """Collects sequences and writes a shard whenever `tokens_per_shard` have come together."""

    def __init__(self, folder: Path, name: str, tokens_per_shard: int = SHARD_TOKENS) -> None:
        """Shards are named `name`-00000 and so on, after the ones that are there already."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._limit = folder, name, tokens_per_shard
        self._pending: list[Sequence] = []
        self._tokens = 0
        self._next = len(list(folder.glob(f"{name}-*.safetensors")))

    def _put(self, sequence: Sequence, tokens: int) -> None:
        self._pending.append(sequence)
        self._tokens += tokens
        if self._tokens >= self._limit:
            self.flush()

    def _stored(self, pending: list[Sequence]) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
        """The tensors of a shard and what describes them."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what is pending; the file appears whole or not at all. Raises SpecviewError, on a full disk say."""
        if not self._pending:
            return
        tensors, described = self._stored(self._pending)
        path = self._folder / f"{self._name}-{self._next:05d}.safetensors"
        part = path.with_suffix(".part")
        with clear_write_errors(self._folder, "training data"):
            try:
                save_file(tensors, part, metadata={key: json.dumps(value) for key, value in described.items()})
                os.replace(part, path)
            except Exception as error:
                part.unlink(missing_ok=True)
                raise error if isinstance(error, OSError) else OSError(str(error)) from error  # safetensors' own
        self._pending, self._tokens, self._next = [], 0, self._next + 1


class ShardWriter(Shards[Labelled]):
    """Writes sequences with labels, and those without behind them."""

    def add(self, sequence: Labelled) -> None:
        """Keep one sequence, and write a shard when there are enough."""
        self._put(sequence, len(sequence.tokens))

    def _stored(self, pending: list[Labelled]) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
        ordered = sorted(pending, key=lambda s: s.label_ids is None)
        tensors = {"tokens": torch.cat([s.tokens for s in ordered]).to(torch.int32)}
        labels = [(s.label_ids, s.label_logp) for s in ordered if s.label_ids is not None and s.label_logp is not None]
        if labels:
            # uint16 through int32: safetensors stores it, and half the size matters here.
            ids, logp = (torch.cat(side) for side in zip(*labels, strict=True))
            tensors["label_ids"] = ids.to(torch.uint16 if int(ids.max()) < 1 << 16 else torch.int32)
            tensors["label_logp"] = logp.to(torch.float16)
        return tensors, {"sequences": [[len(s.tokens), s.kind, s.written, s.label_ids is not None] for s in ordered]}


def read_shard(path: Path) -> Iterator[Labelled]:
    """The sequences of one shard, in the types that `Labelled` documents."""
    with safe_open(path, "pt") as file:
        meta = json.loads(file.metadata()["sequences"])
        names = set(file.keys())
        tokens = file.get_tensor("tokens").long()
        ids, logp = (file.get_tensor(name) if name in names else None for name in ("label_ids", "label_logp"))
    start = 0
    for length, kind, written, has_labels in meta:
        rows = slice(start, start + length)
        start += length
        if has_labels and ids is not None and logp is not None:
            yield Labelled(tokens[rows], ids[rows], logp[rows], kind, written)
        else:
            yield Labelled(tokens[rows], None, None, kind, written)
