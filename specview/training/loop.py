"""The training loop that every drafter's training shares: AdamW, a cosine, averaged weights, resumable at any step."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class LoopSettings:
    """What decides a run of the loop. It ends after `steps`, or after `minutes` of training time."""

    steps: int | None = None
    minutes: float | None = None
    learning_rate: float = 1.5e-3
    final_rate: float = 0.03  # share of the learning rate at the end of the cosine
    warmup_steps: int = 20
    weight_decay: float = 0.02
    average: float = 0.995  # decay of the averaged weights, per step
    bfloat16: bool = False  # matrix products in bfloat16: several times faster where the processor has AMX
    seed: int = 0

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


class TrainingLoop:
    """Trains a model step by step; a subclass says what a batch is and what it costs."""

    def __init__(self, model: nn.Module, state: Path, settings: LoopSettings) -> None:
        """Goes on from the file `state` when it exists, once `resume` is called."""
        self.model, self.loop_settings = model, settings
        self._state = state
        self.progress = Progress()
        self.device: torch.device = next(model.parameters()).device  # tested on the CPU only
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._named = named
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for _, p in named if p.dim() == 2], "weight_decay": settings.weight_decay},
                {"params": [p for _, p in named if p.dim() != 2], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.average = {name: p.detach().clone() for name, p in named}

    # -- what a subclass says ------------------------------------------------------------------

    def epoch_batches(self) -> Sequence[Any]:
        """The batches of epoch `progress.epoch`, in order; the same ones whenever it is asked."""
        raise NotImplementedError

    def begin_epoch(self) -> None:
        """Take up data that came since the last epoch began."""

    def batch_loss(self, batch: Any, noise: torch.Generator) -> tuple[Tensor, float, int]:
        """Loss of one batch, the agreement of draft and label in it, and its trained positions."""
        raise NotImplementedError

    # -- the loop ------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Read the state file; False where there is none."""
        if not self._state.exists():
            return False
        with safe_open(self._state, "pt") as file:
            self.progress = Progress(**json.loads(file.metadata()["progress"]))
            names = set(file.keys())
            for name, parameter in self._named:
                parameter.data.copy_(file.get_tensor(f"weight.{name}"))
                self.average[name] = file.get_tensor(f"average.{name}").to(self.device)
                if f"exp_avg.{name}" in names:
                    self._optimizer.state[parameter] = {
                        "step": torch.tensor(float(self.progress.step), device=self.device),
                        "exp_avg": file.get_tensor(f"exp_avg.{name}").to(self.device),
                        "exp_avg_sq": file.get_tensor(f"exp_avg_sq.{name}").to(self.device),
                    }
        return True

    def save(self) -> None:
        """Write the state file; it is replaced whole."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._named:
            tensors[f"weight.{name}"] = parameter.detach()
            tensors[f"average.{name}"] = self.average[name]
            moments = self._optimizer.state.get(parameter, {})
            for key in ("exp_avg", "exp_avg_sq"):
                if key in moments:
                    tensors[f"{key}.{name}"] = moments[key]
        part = self._state.with_suffix(".part")
        self._state.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, part, metadata={"progress": json.dumps(asdict(self.progress))})
        os.replace(part, self._state)

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        report: Callable[[Report], None] = lambda r: None,
        report_every: int = 25,
        save_every: int = 200,
    ) -> bool:
        """Train to the end or until `stop()`; saves the state either way. True when at the end."""
        progress = self.progress
        losses: list[float] = []
        hits: list[float] = []
        batches = self.epoch_batches()
        while self.fraction() < 1 and not stop():
            began = time.monotonic()
            if progress.batch >= len(batches):
                progress.epoch, progress.batch = progress.epoch + 1, 0
                self.begin_epoch()
                batches = self.epoch_batches()
            loss, agreement, trained = self._step(batches[progress.batch])
            progress.batch += 1
            progress.step += 1
            progress.tokens += trained
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
        s = self.loop_settings
        if s.steps is not None:
            return min(1.0, self.progress.step / s.steps)
        assert s.minutes is not None
        return min(1.0, self.progress.seconds / (60 * s.minutes))

    def load_average(self, model: nn.Module) -> None:
        """Put the averaged weights, which are what is exported, into a model of the same parameters."""
        model.load_state_dict(self.average, strict=False)

    def _step(self, batch: Any) -> tuple[float, float, int]:
        s = self.loop_settings
        # Draws depend on the step alone, so a resumed run repeats an uninterrupted one.
        noise = torch.Generator().manual_seed(s.seed * 1_000_003 + self.progress.step)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=s.bfloat16):
            loss, agreement, trained = self.batch_loss(batch, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in self._named], 1.0)
        self._optimizer.step()
        decay = min(s.average, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            for name, parameter in self._named:
                self.average[name].lerp_(parameter, 1 - decay)
        return loss.item(), agreement, trained

    def _rate(self) -> float:
        s = self.loop_settings
        warm = min(1.0, (self.progress.step + 1) / s.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * self.fraction()))
        return s.learning_rate * warm * (s.final_rate + (1 - s.final_rate) * cosine)


def packed_batches(
    lengths: Sequence[int], tokens_per_step: int, shuffle: Callable[[list], None]
) -> list[list[int]]:
    """Indices 0..n-1 in batches of at most so many padded tokens (a longer sequence has one of its own).

    Sorting within a window keeps padding low and batches varied.
    """
    order = list(range(len(lengths)))
    shuffle(order)
    batches: list[list[int]] = []
    for at in range(0, len(order), 256):
        batch: list[int] = []
        for index in sorted(order[at : at + 256], key=lambda i: lengths[i]):
            if batch and lengths[index] * (len(batch) + 1) > tokens_per_step:
                batches.append(batch)
                batch = []
            batch.append(index)
        batches.append(batch)
    shuffle(batches)
    return batches
