"""The training loop: batches out of shards, AdamW, averaged weights, resumable at any step."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specview.training.shards import Labelled, read_shard
from specview.training.small_draft import Batch, Objective, SmallDraft, Weights, make_batch

DEVELOPMENT_EVERY = 40  # one written sequence in so many is never trained on


@dataclass(frozen=True)
class Settings:
    """What decides a training run. It ends after `steps`, or after `minutes` of training time."""

    steps: int | None = None
    minutes: float | None = None
    learning_rate: float = 1.5e-3
    final_rate: float = 0.03  # share of the learning rate at the end of the cosine
    warmup_steps: int = 20
    weight_decay: float = 0.02
    tokens_per_step: int = 2048
    plain_share: float = 0.5  # of the tokens of an epoch, at most
    average: float = 0.995  # decay of the averaged weights, per step
    frequent_ids: int = 4096
    negatives: int = 1024
    guidance: float = 0.3  # weight of the loss that teaches two heads to copy
    skip: int = 0  # tokens at the start of every labelled sequence that carry no loss
    seed: int = 0
    weights: Weights = Weights()

    def __post_init__(self) -> None:
        """Raises ValueError unless exactly one end is set."""
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("set steps or minutes")


@dataclass
class Progress:
    """How far a run is; saved with the weights."""

    step: int = 0
    tokens: int = 0  # trained positions
    seconds: float = 0.0
    epoch: int = 0
    batch: int = 0  # within the epoch
    shards: int = 0  # how many shards the epoch was drawn from


@dataclass(frozen=True)
class Report:
    """Averages since the last report, for display."""

    progress: Progress
    loss: float
    agreement: float  # share of trained positions, by weight, where draft and label agree
    learning_rate: float


class Trainer:
    """Trains one draft on the shards of a folder; new shards are used from the next epoch on."""

    def __init__(self, draft: SmallDraft, shards: Path, state: Path, settings: Settings) -> None:
        """Goes on from the file `state` when it exists.

        Raises FileNotFoundError when `shards` holds none.
        """
        self.draft, self.settings = draft, settings
        self._shards, self._state = shards, state
        self._read: dict[Path, list[Labelled]] = {}
        self.progress = Progress()
        decayed = [p for p in draft.parameters() if p.dim() == 2]
        gains = [p for p in draft.parameters() if p.dim() != 2]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": gains, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.average = {name: p.detach().clone() for name, p in draft.named_parameters()}
        if state.exists():
            self._load()
        else:
            self.progress.shards = len(self._files())
        if not self._files():
            raise FileNotFoundError(f"no training shards in {shards}")
        self._objective = self._make_objective()

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        report: Callable[[Report], None] = lambda r: None,
        report_every: int = 25,
        save_every: int = 200,
    ) -> bool:
        """Train to the end or until `stop()`; saves the state either way. True when at the end."""
        s, progress = self.settings, self.progress
        losses, hits = [], []
        batches = self._epoch_batches()
        while self.fraction() < 1 and not stop():
            began = time.monotonic()
            if progress.batch >= len(batches):
                progress.epoch, progress.batch = progress.epoch + 1, 0
                progress.shards = len(self._files())
                batches = self._epoch_batches()
            batch = make_batch(batches[progress.batch], s.weights, s.skip)
            loss, agreement = self._step(batch)
            progress.batch += 1
            progress.step += 1
            progress.tokens += len(batch.rows)
            progress.seconds += time.monotonic() - began
            losses.append(loss)
            hits.append(agreement)
            if progress.step % report_every == 0:
                mean = sum(losses) / len(losses), sum(hits) / len(hits)
                report(Report(progress, *mean, self._rate()))
                losses, hits = [], []
            if progress.step % save_every == 0:
                self.save()
        self.save()
        return self.fraction() >= 1

    def fraction(self) -> float:
        """How much of the run is done, 0 to 1."""
        if self.settings.steps is not None:
            return min(1.0, self.progress.step / self.settings.steps)
        assert self.settings.minutes is not None
        return min(1.0, self.progress.seconds / (60 * self.settings.minutes))

    def averaged(self) -> SmallDraft:
        """A copy of the draft with the averaged weights, which are what is exported."""
        copy = SmallDraft(self.draft.config)
        copy.load_state_dict(self.average)
        return copy

    def development(self) -> list[Labelled]:
        """Written sequences that are never trained on."""
        return self._split()[1]

    def save(self) -> None:
        """Write the state file; it is replaced whole."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.draft.named_parameters():
            tensors[f"weight.{name}"] = parameter.detach()
            tensors[f"average.{name}"] = self.average[name]
            moments = self._optimizer.state.get(parameter, {})
            for key in ("exp_avg", "exp_avg_sq"):
                if key in moments:
                    tensors[f"{key}.{name}"] = moments[key]
        part = self._state.with_suffix(".part")
        self._state.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, part, metadata={"progress": json.dumps(vars(self.progress))})
        os.replace(part, self._state)

    def _load(self) -> None:
        with safe_open(self._state, "pt") as file:
            self.progress = Progress(**json.loads(file.metadata()["progress"]))
            names = set(file.keys())
            for name, parameter in self.draft.named_parameters():
                parameter.data.copy_(file.get_tensor(f"weight.{name}"))
                self.average[name] = file.get_tensor(f"average.{name}")
                if f"exp_avg.{name}" in names:
                    self._optimizer.state[parameter] = {
                        "step": torch.tensor(float(self.progress.step)),
                        "exp_avg": file.get_tensor(f"exp_avg.{name}"),
                        "exp_avg_sq": file.get_tensor(f"exp_avg_sq.{name}"),
                    }

    def _step(self, batch: Batch) -> tuple[float, float]:
        # Draws depend on the step alone, so a resumed run repeats an uninterrupted one.
        noise = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.progress.step)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.zero_grad()
        loss, hits = self._objective(self.draft, batch, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        self._optimizer.step()
        decay = min(self.settings.average, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            for name, parameter in self.draft.named_parameters():
                self.average[name].lerp_(parameter, 1 - decay)
        return loss.item(), hits.item()

    def _rate(self) -> float:
        s = self.settings
        warm = min(1.0, (self.progress.step + 1) / s.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * self.fraction()))
        return s.learning_rate * warm * (s.final_rate + (1 - s.final_rate) * cosine)

    def _files(self) -> list[Path]:
        # In the order they were finished: a resumed epoch finds its own shards first again.
        files = self._shards.glob("*.safetensors")
        return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _split(self) -> tuple[list[Labelled], list[Labelled]]:
        """Training and development sequences of the epoch's shards."""
        training: list[Labelled] = []
        development: list[Labelled] = []
        for path in self._files()[: self.progress.shards]:
            if path not in self._read:
                self._read[path] = list(read_shard(path))
            for index, sequence in enumerate(self._read[path]):
                held = sequence.label_ids is not None and index % DEVELOPMENT_EVERY == 0
                (development if held else training).append(sequence)
        return training, development

    def _epoch_batches(self) -> list[list[Labelled]]:
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
        rng.shuffle(chosen)
        batches: list[list[Labelled]] = []
        # Sorting within a window keeps padding low and batches varied.
        for at in range(0, len(chosen), 256):
            batch: list[Labelled] = []
            for sequence in sorted(chosen[at : at + 256], key=lambda x: len(x.tokens)):
                if batch and len(sequence.tokens) * (len(batch) + 1) > s.tokens_per_step:
                    batches.append(batch)
                    batch = []
                batch.append(sequence)
            batches.append(batch)
        rng.shuffle(batches)
        return batches

    def _make_objective(self) -> Objective:
        vocab = self.draft.shape.vocab_size
        counts = torch.zeros(vocab)
        for sequence in self._split()[0]:
            ids = sequence.tokens if sequence.label_ids is None else sequence.label_ids[:, 0].long()
            counts += torch.bincount(ids, minlength=vocab) * (0.2 if sequence.label_ids is None else 1.0)
        frequent = counts.argsort(descending=True, stable=True)[: self.settings.frequent_ids]
        return Objective(frequent, vocab, self.settings.negatives, self.settings.guidance)
