"""What all stages of a training run share: its settings, clock and work folder, and how it tells of itself."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specview.errors import Stopped
from specview.heads.layouts import HeadFacts
from specview.models.cache import clear_write_errors, write_json
from specview.training import texts
from specview.training.asked import TrainSettings
from specview.training.card import Card, render
from specview.training.chat import ChatLayout
from specview.training.evaluate import Results
from specview.training.loop import LoopSettings, Report, TrainingLoop
from specview.training.saving import target_name
from specview.training.shards import Labelled
from specview.training.teacher import TargetFiles

END_SHARE = 0.1  # of the minutes, for the held-out measurements and the export
LEAST_TRAIN_SHARE = 0.2
REPORT_EVERY, SAVE_EVERY = 5, 50
EVALUATE_S = 60.0  # seconds between two held-out measurements, at least
_STAGES = {"check": 0.02, "answers": 0.05, "text": 0.30, "labels": 0.12, "training": 0.45, "export": 0.06}
"""A run's stages and what share of its time each is shown as."""

Emit = Callable[[dict[str, Any]], None]
Stop = Callable[[], bool]


@dataclass
class Ledger:
    """What a work folder's run has spent and decided (job.json)."""

    decides: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    train_minutes: float | None = None
    minutes: float | None = None  # of the run that train_minutes was made for
    texts_done: bool = False
    labels_done: bool = False


class TrainState:
    """A run as its stages see it.

    target    the model that is drafted for, with its tokenizer
    work      the folder with data and state; ledger is its job.json
    material  what training text is made of; sets the names of its held-out parts, answers the target's, by set
    layers    whose outputs a head reads; rows of its own logits; start the head to begin from, or None
    """

    target: TargetFiles
    tokenizer: Any
    work: Path
    ledger: Ledger
    material: texts.Material
    layout: ChatLayout
    sets: tuple[str, ...]
    answers: dict[str, list[Labelled]]
    layers: tuple[int, ...]
    rows: int
    start: HeadFacts | None
    threads: int
    _emit: Emit
    _stop: Stop
    _began: float

    def __init__(self, settings: TrainSettings) -> None:
        """Raises UsageError for settings that cannot work."""
        self.settings = settings.checked()
        self.document: dict[str, Any] = {}

    @contextmanager
    def _stage(self, name: str, text: str) -> Iterator[None]:
        if self._stop():
            raise Stopped
        self._name, self._text = name, text
        self._stage_began = time.monotonic()
        self.tell(0.0)
        try:
            yield
        finally:
            if hasattr(self, "ledger"):
                spent = time.monotonic() - self._stage_began
                self.ledger.seconds[name] = self.ledger.seconds.get(name, 0.0) + spent
                self._stage_began = time.monotonic()
                self.save_ledger()

    def tell(self, fraction: float, text: str = "") -> None:
        """Say how far the stage is, 0 to 1."""
        self._emit(
            {"event": "stage", "stage": self._name, "text": text or self._text, **self.progress(fraction)}
        )

    def progress(self, fraction: float) -> dict[str, float]:
        """The run's own fraction, and the seconds left where the clock decides, from the stage's fraction."""
        names = list(_STAGES)
        done = sum(_STAGES[name] for name in names[: names.index(self._name)])
        found = {"fraction": round(min(1.0, done + _STAGES[self._name] * min(1.0, max(0.0, fraction))), 4)}
        if self.settings.steps is None:
            found["left_seconds"] = round(max(0.0, 60 * self.settings.minutes - self.spent()), 1)
        return found

    def spent(self) -> float:
        """Seconds spent on this run, those of earlier runs in this work folder included."""
        if not hasattr(self, "ledger"):
            return time.monotonic() - self._began
        return sum(self.ledger.seconds.values()) + time.monotonic() - self._stage_began

    def data_spent(self) -> float:
        """Seconds of those before training."""
        later = sum(self.ledger.seconds.get(name, 0.0) for name in ("training", "export"))
        return self.spent() - later

    def stop(self) -> bool:
        """Whether the user asked to stop."""
        return self._stop()

    def save_ledger(self) -> None:
        """Write job.json."""
        with clear_write_errors(self.work, "the training state"):
            write_json(self.work / "job.json", asdict(self.ledger))

    def train_minutes(self) -> float | None:
        """Minutes of training, decided when it first begins; None where steps decide."""
        s = self.settings
        if s.steps is not None:
            return None
        if self.ledger.train_minutes is None or self.ledger.minutes != s.minutes:
            left = s.minutes * (1 - END_SHARE) - self.data_spent() / 60
            self.ledger.train_minutes = max(LEAST_TRAIN_SHARE * s.minutes, left)
            self.ledger.minutes = s.minutes
            self.save_ledger()
        return self.ledger.train_minutes

    def watch(self, loop: TrainingLoop, measure: Callable[[], Results]) -> bool:
        """Run a training loop, telling of its steps and, now and then, of the held-out acceptance."""
        told = [time.monotonic()]
        every = max(EVALUATE_S, 60 * self.settings.minutes / 12)

        def report(r: Report) -> None:
            self._emit({
                "event": "step",
                "step": r.progress.step,
                "loss": r.loss,
                "agreement": r.agreement,
                "learning_rate": r.learning_rate,
                "seconds": r.progress.seconds,
                **self.progress(loop.fraction()),
            })  # fmt: skip
            if time.monotonic() - told[0] > every:
                self.tell_held_out(r.progress.step, measure())
                told[0] = time.monotonic()

        return loop.run(self._stop, report, REPORT_EVERY, SAVE_EVERY)

    def tell_held_out(self, step: int, results: Results) -> None:
        """Say what was measured, by draft length."""
        self._emit({
            "event": "heldout",
            "step": step,
            "alpha": {str(k): found["all"].alpha for k, found in results.items()},
            "tokens_per_target_pass": {str(k): found["all"].tokens_per_target_pass for k, found in results.items()},
        })  # fmt: skip

    def command(self) -> str:
        """The command that makes this drafter."""
        s = self.settings
        return "specview " + shlex.join(s.arguments(leaving_out=("work", "note", "steps" if s.steps is None else "minutes")))

    def card(
        self, measured: Mapping[str, Results], before: Mapping[str, Results], loop: TrainingLoop, settings: LoopSettings,
        texts_in: Path, **own: Any,
    ) -> str:
        """The model card; `own` are the fields of Card that only the kind of drafter knows, texts_in where its data is."""
        return render(Card(
            licence=self.licence(), measured=measured, before=before, data=self.data_counts(texts_in),
            answers={name: (len(found), sum(a.written for a in found)) for name, found in self.answers.items()},
            source=self.source_words(), settings=settings, progress=loop.progress, minutes=self.spent() / 60,
            command=self.command(), note=self.settings.note, **own,
        ))  # fmt: skip

    def data_counts(self, folder: Path) -> dict[str, Counter[str]]:
        """By kind of text: `sequences`, `tokens`, and `written` (tokens the target wrote as answers)."""
        counts: dict[str, Counter[str]] = {}
        for text in texts.texts_of(folder):
            kind = counts.setdefault(text.kind, Counter())
            kind["sequences"] += 1
            kind["tokens"] += len(text.tokens)
            kind["written"] += text.written
        return counts

    def skip(self) -> int:
        """Tokens at the start of every text that carry no loss: those that all chats begin with."""
        return len(self.layout.before) if self.material.pieces is None else 0

    def licence(self) -> str:
        """The card's licence line."""
        if self.target.ref.origin == "bundled":
            return "Apache-2.0, as the target's, on whose output it was trained."
        return "that of the target, on whose output it was trained; see the target's own card."

    def source_words(self) -> str:
        """What the training text was made of, in a sentence or two."""
        if self.material.pieces is not None:
            return "The text was given by the user and labelled by the target."
        if self.material.prompts is not None:
            return f"The target answered the user's prompts ({len(self.material.prompts):,}), at temperatures 0, 0.7 and 1."
        return (
            "No text was downloaded. The target answered templates filled at random, user turns of its own invention, and "
            "instructions over Python functions and prose of the installed packages, at temperatures 0, 0.7 and 1."
        )

    def record(
        self, measured: Mapping[str, Results], before: Mapping[str, Results], loop: TrainingLoop
    ) -> None:
        """Fill `document`, what --json writes."""

        def figures(results: Mapping[str, Results]) -> dict[str, Any]:
            return {
                name: {
                    str(k): {
                        kind: {
                            "alpha": part.alpha,
                            "tokens_per_target_pass": part.tokens_per_target_pass,
                            "judged": part.judged,
                        }
                        for kind, part in kinds.items()
                    }
                    for k, kinds in result.items()
                }
                for name, result in results.items()
            }

        p = loop.progress
        self.document = {
            "schema": "specview.train/1",
            "kind": self.settings.kind,
            "target": target_name(self.target),
            "target_sha256": self.target.sha256,
            "folder": str(self.settings.out),
            "work": str(self.work),
            "command": self.command(),
            "steps": p.step,
            "trained_tokens": p.tokens,
            "train_seconds": p.seconds,
            "seconds": self.spent(),
            "seconds_by_stage": dict(self.ledger.seconds),
            "threads": self.threads,
            "before": figures(before),
            "heldout": figures(measured),
        }
