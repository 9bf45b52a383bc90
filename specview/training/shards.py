"""Training text with the target's labels, stored as safetensors shards.

A shard holds sequences end to end. Row i of the labels is what the target predicts after token i:
its likeliest next tokens and their log-probabilities. A row whose log-probabilities are all -inf has
no label. Training reads shards only: it never runs the target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

LABELS_PER_TOKEN = 32


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


def top_labels(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest ids [n, LABELS_PER_TOKEN] and log-probabilities, from logits [n, vocab]."""
    top = logits.topk(min(LABELS_PER_TOKEN, logits.shape[-1]), -1)
    return top.indices, top.values - logits.logsumexp(-1, keepdim=True)


class ShardWriter:
    """Collects sequences and writes a shard whenever `tokens_per_shard` have come together."""

    def __init__(self, folder: Path, name: str, tokens_per_shard: int = 20_000) -> None:
        """Shards are named `name`-00000 and so on, after the ones that are there already."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._limit = folder, name, tokens_per_shard
        self._pending: list[Labelled] = []
        self._next = len(list(folder.glob(f"{name}-*.safetensors")))

    def add(self, sequence: Labelled) -> None:
        """Keep one sequence, and write a shard when there are enough."""
        self._pending.append(sequence)
        if sum(len(s.tokens) for s in self._pending) >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Write what is pending. The file appears whole or not at all."""
        if not self._pending:
            return
        labelled = [s for s in self._pending if s.label_ids is not None]
        plain = [s for s in self._pending if s.label_ids is None]
        ordered = labelled + plain
        tensors = {"tokens": torch.cat([s.tokens for s in ordered]).to(torch.int32)}
        if labelled:
            # uint16 through int32: safetensors stores it, and half the size matters here.
            ids = torch.cat([s.label_ids for s in labelled if s.label_ids is not None])
            logp = torch.cat([s.label_logp for s in labelled if s.label_logp is not None])
            narrow = torch.uint16 if int(ids.max()) < 1 << 16 else torch.int32
            tensors["label_ids"] = ids.to(narrow)
            tensors["label_logp"] = logp.to(torch.float16)
        meta = [[len(s.tokens), s.kind, s.written, s.label_ids is not None] for s in ordered]
        path = self._folder / f"{self._name}-{self._next:05d}.safetensors"
        part = path.with_suffix(".part")
        save_file(tensors, part, metadata={"sequences": json.dumps(meta)})
        os.replace(part, path)
        self._pending, self._next = [], self._next + 1


def read_shard(path: Path) -> Iterator[Labelled]:
    """The sequences of one shard, in the types that `Labelled` documents."""
    with safe_open(path, "pt") as file:
        meta = json.loads(file.metadata()["sequences"])
        names = set(file.keys())
        tokens = file.get_tensor("tokens").long()
        ids = file.get_tensor("label_ids") if "label_ids" in names else None
        logp = file.get_tensor("label_logp") if "label_logp" in names else None
    start = 0
    for length, kind, written, has_labels in meta:
        rows = slice(start, start + length)
        start += length
        if has_labels and ids is not None and logp is not None:
            yield Labelled(tokens[rows], ids[rows], logp[rows], kind, written)
        else:
            yield Labelled(tokens[rows], None, None, kind, written)
