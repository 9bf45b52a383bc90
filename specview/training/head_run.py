"""Training, measuring and saving of one head: EAGLE-3, P-EAGLE or Medusa (job.py runs the stages before)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specview.engines.transformers_linear import fast_bfloat16
from specview.errors import SpecviewError
from specview.models.cache import clear_write_errors, write_json
from specview.training import starts, texts
from specview.training.card import head_words
from specview.training.evaluate import Results
from specview.training.features import FeatureStore
from specview.training.heads import (
    Eagle3Training,
    HeadKind,
    HeadSettings,
    HeadTrainer,
    MedusaTraining,
    head_acceptance,
)
from specview.training.saving import eagle3_config, medusa_config, rounded, save_head, target_name
from specview.training.state import TrainState
from specview.training.teacher import open_teacher

DEPTHS = {"eagle3": 3, "p-eagle": 4}
"""Drafted tokens that training looks ahead."""
SHORT_MINUTES, SHALLOW = 30.0, 0.5


class HeadRun:
    """Training, measuring and saving of one head (EAGLE-3, P-EAGLE, Medusa)."""

    def __init__(self, job: TrainState) -> None:
        self._job = job
        s = job.settings
        self._store = FeatureStore(job.work / "features")
        if len(self._store.sequences) < 3:
            raise SpecviewError("there is too little text to train on.", "Give more minutes, or more text.")
        self._held = {name: FeatureStore(job.work / "heldout" / name) for name in job.sets}
        vocabulary = self._vocabulary()
        self._ids, self._mask = vocabulary.ids, vocabulary.mask_token_id
        with open_teacher(job.target, exact=True, threads=job.threads, should_stop=job.stop) as teacher:
            output = teacher.output_rows(self._ids).clone()
            embedding = teacher.embedding() if s.kind != "medusa" else torch.empty(0)
        self._device = torch.device(job.target.device)
        self._embedding, self._output_rows = embedding.to(self._device), output
        self.head = self._make()
        minutes = job.train_minutes()
        # A short run needs many steps more than exact ones, and the first token more than those after it.
        short = s.steps is None and s.minutes <= SHORT_MINUTES
        self._settings = HeadSettings(
            steps=s.steps,
            minutes=minutes,
            depth=DEPTHS.get(s.kind) or len(self.head.blocks),
            tokens_per_step=1024 if short else 2048,
            shallow=SHALLOW if short and s.kind == "eagle3" else 0.0,
            skip=job.skip(),
            bfloat16=fast_bfloat16(),
            seed=s.seed,
        )
        self.trainer = HeadTrainer(
            self._kind(self.head), self._store, output, job.work / "state.safetensors", self._settings
        )

    def train(self) -> bool:
        """Train to the end; False where it was stopped."""
        watched = self._job.sets[0]
        self._job.tell_held_out(self.trainer.progress.step, self._measure(self._averaged(), watched))
        return self._job.watch(self.trainer, lambda: self._measure(self._averaged(), watched))

    def export(self, out: Path) -> None:
        """Measure the averaged weights as they are stored, and fill the folder `out`."""
        job = self._job
        final = rounded(self._averaged())
        measured = {}
        for index, name in enumerate(job.sets):
            measured[name] = self._measure(final, name)
            job.tell((index + 1) / (2 * len(job.sets) + 1))
        first = self._make()
        before = {name: self._measure(first, name) for name in job.sets}
        job.tell_held_out(self.trainer.progress.step, measured[job.sets[0]])
        save_head(final, self._config(), out, job.settings.kind)
        job.record(measured, before, self.trainer)
        s, weights = self._settings, sum(parameter.numel() for parameter in final.parameters())
        what, layout, reads = head_words(
            job.settings.kind, layers=", ".join(map(str, job.layers)), mask=self._mask, heads=s.depth
        )
        shallow = f" (the first alone for {100 * s.shallow:.0f}% of the run)" if s.shallow else ""
        text = job.card(
            measured, before, self.trainer, s, job.work / "texts",
            title=f"{job.settings.kind} for {target_name(job.target)}",
            about=f"""{what} for {target_name(job.target)}.
{reads}
{weights / 1e6:.1f}M parameters; it drafts {len(self._ids):,} of the target's {job.target.vocab:,} tokens. It is of no use by itself.""",
            files=[f"`config.json`, `model.safetensors`: float16, {layout}."],
            start=self._start_words(),
            objective=f"""Soft cross-entropy against the target's own predictions over the head's {len(self._ids):,} tokens, for
{s.depth} drafted tokens, each weighing {s.decay:g} of the one before{shallow}.""",
            used=job.sets[0],
        )  # fmt: skip
        (out / "README.md").write_text(text, "utf-8")

    # -- inside --------------------------------------------------------------------------------

    def _vocabulary(self) -> starts.Vocabulary:
        """Chosen from the first texts there were, and kept: the head's rows must not change under it."""
        file = self._job.work / "vocabulary.json"
        if file.exists():
            known = json.loads(file.read_text("utf-8"))
            return starts.Vocabulary(torch.tensor(known["ids"]), known["mask_token_id"])
        tokenizer = self._job.tokenizer
        special = sorted(
            {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder} - {self._job.layout.end}
        )
        found = starts.choose_vocabulary(
            texts.texts_of(self._job.work / "texts"), self._job.rows, self._job.target.vocab, special
        )
        with clear_write_errors(self._job.work, "the training state"):
            write_json(file, {"ids": found.ids.tolist(), "mask_token_id": found.mask_token_id})
        return found

    def _make(self) -> nn.Module:
        """The head as training begins with it."""
        job, s = self._job, self._job.settings
        if s.kind == "medusa":
            heads = int(job.start.sizes["heads"]) if job.start is not None else starts.MEDUSA_HEADS
            module: nn.Module = starts.start_medusa(
                job.target.hidden, job.target.vocab, self._output_rows, self._ids, heads
            )
        else:
            mask = self._mask if s.kind == "p-eagle" else None
            if job.start is not None:
                shape = starts.shape_of_start(job.start, job.layers, len(self._ids), mask)
            else:
                shape = starts.eagle3_shape(job.target, job.layers, len(self._ids), mask)
            mean = self._mean_feature() if mask is not None else None
            module = starts.start_eagle3(shape, job.target, self._output_rows, self._ids, mean, s.seed)
        if job.start is not None:
            starts.copy_start(module, job.start)
        return module.to(self._device)

    def _mean_feature(self) -> Tensor:
        """The mean of the first texts' features [aux * hidden]."""
        rows = [self._store.read(sequence)[1].float().flatten(1) for sequence in self._store.sequences[:50]]
        return torch.cat(rows).mean(0)

    def _kind(self, module: Any) -> HeadKind:
        if self._job.settings.kind == "medusa":
            return MedusaTraining(
                module, lambda last: list(module(last)), module.lm_head.weight, self._ids.to(self._device)
            )
        return Eagle3Training(module, self._embedding)

    def _averaged(self) -> nn.Module:
        copy = self._make()
        self.trainer.load_average(copy)
        return copy.eval()

    def _measure(self, module: nn.Module, name: str) -> Results:
        store = self._held[name]
        lengths = tuple(range(1, 1 + max(4, self._settings.depth)))
        if self._job.settings.kind == "medusa":
            lengths = tuple(range(1, 1 + self._settings.depth))
        return head_acceptance(self._kind(module), store, store.sequences, lengths)

    def _config(self) -> dict[str, Any]:
        module: Any = self.head
        if self._job.settings.kind == "medusa":
            return medusa_config(module.shape, self._job.target)
        return eagle3_config(module.shape, self._job.target, self._settings.depth)

    def _start_words(self) -> str:
        job = self._job
        if job.settings.start is not None:
            return f"`{job.settings.start}`"
        if job.settings.kind == "medusa":
            return "residual blocks at zero, over the target's own output rows"
        if job.target.llama_like:
            return "the target's own last layer and output rows"
        return "random weights, over the target's own output rows"
