"""Training the small draft: batches out of labelled shards (the loop itself is in loop.py)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specview.training.loop import LoopSettings, TrainingLoop, packed_batches
from specview.training.shards import Labelled, read_shard, shard_files
from specview.training.small_draft import Objective, SmallDraft, Weights, make_batch

DEVELOPMENT_EVERY = 40  # one written sequence in so many is never trained on


@dataclass(frozen=True)
class Settings(LoopSettings):
    """What decides a training run of the small draft."""

    tokens_per_step: int = 2048
    plain_share: float = 0.5  # of the tokens of an epoch, at most
    frequent_ids: int = 4096
    negatives: int = 1024
    guidance: float = 0.3  # weight of the loss that teaches two heads to copy
    skip: int = 0  # tokens at the start of every labelled sequence that carry no loss
    weights: Weights = Weights()


class Trainer(TrainingLoop):
    """Trains one draft on the shards of a folder; new shards are used from the next epoch on."""

    def __init__(self, draft: SmallDraft, shards: Path, state: Path, settings: Settings) -> None:
        """Goes on from the file `state` when it exists.

        Raises FileNotFoundError when `shards` holds none.
        """
        super().__init__(draft, state, settings)
        self.draft, self.settings = draft, settings
        self._shards = shards
        self._read: dict[Path, list[Labelled]] = {}
        if not self.resume():
            self.begin_epoch()
        if not shard_files(self._shards):
            raise FileNotFoundError(f"no training shards in {shards}")
        self._objective = self._make_objective()

    def averaged(self) -> SmallDraft:
        """A copy of the draft with the averaged weights, which are what is exported."""
        copy = SmallDraft(self.draft.config)
        self.load_average(copy)
        return copy

    def development(self) -> list[Labelled]:
        """Written sequences that are never trained on."""
        return self._split()[1]

    def begin_epoch(self) -> None:
        """Take up the shards that were finished since the last epoch began."""
        self.progress.shards = len(shard_files(self._shards))

    def batch_loss(self, batch: list[Labelled], noise: torch.Generator) -> tuple[Tensor, float, int]:
        """Loss, agreement and trained positions of some sequences."""
        made = make_batch(batch, self.settings.weights, self.settings.skip)
        loss, hits = self._objective(self.draft, made, noise)
        return loss, hits.item(), len(made.rows)

    def epoch_batches(self) -> list[list[Labelled]]:
        """The epoch's batches: what the target wrote, and plain text up to its share."""
        s, rng = self.settings, random.Random(f"{self.settings.seed} {self.progress.epoch}")
        training, _ = self._split()
        labelled = [x for x in training if x.label_ids is not None]
        plain = [x for x in training if x.label_ids is None]
        rng.shuffle(plain)
        if labelled:
            budget = sum(len(x.tokens) for x in labelled) * s.plain_share / (1 - s.plain_share)
            taken = 0
            for count, x in enumerate(plain):
                taken += len(x.tokens)
                if taken > budget:
                    plain = plain[:count]
                    break
        chosen = labelled + plain
        batches = packed_batches([len(x.tokens) for x in chosen], s.tokens_per_step, rng.shuffle)
        return [[chosen[index] for index in batch] for batch in batches]

    def _split(self) -> tuple[list[Labelled], list[Labelled]]:
        """Training and development sequences of the epoch's shards."""
        training: list[Labelled] = []
        development: list[Labelled] = []
        for path in shard_files(self._shards)[: self.progress.shards]:
            if path not in self._read:
                self._read[path] = list(read_shard(path))
            for index, sequence in enumerate(self._read[path]):
                held = sequence.label_ids is not None and index % DEVELOPMENT_EVERY == 0
                (development if held else training).append(sequence)
        return training, development

    def _make_objective(self) -> Objective:
        vocab = self.draft.shape.vocab
        counts = torch.zeros(vocab)
        for sequence in self._split()[0]:
            ids = sequence.tokens if sequence.label_ids is None else sequence.label_ids[:, 0].long()
            counts += torch.bincount(ids, minlength=vocab) * (0.2 if sequence.label_ids is None else 1.0)
        frequent = counts.argsort(descending=True, stable=True)[: self.settings.frequent_ids]
        return Objective(frequent, vocab, self.settings.negatives, self.settings.guidance)
