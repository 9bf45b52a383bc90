"""One training run, from a target's name to a folder that loads like a published drafter; resumable at any point.

Stages: check (nothing is trained that cannot be finished), answers (the target answers the held-out prompts), text
(the target writes, or the user's own text is taken), labels (its hidden states, or its likeliest tokens for the small
draft), training, export. Everything a stage has done lies in the work folder; a run with the same settings goes on
there. Data and training share the minutes about evenly; where `tokens` and `steps` are given they decide instead of
the clock, and a run that was stopped after its text was written ends with the very weights of one that was not.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specview.errors import SpecviewError, Stopped, UsageError
from specview.models.cache import cache_dir, clear_write_errors, write_json
from specview.training import starts, texts
from specview.training.chat import load_tokenizer
from specview.training.evaluate import ANSWER_TOKENS, Acceptance
from specview.training.features import (
    FeatureStore,
    FeatureWriter,
    Text,
    bytes_per_token,
    require_room,
)
from specview.training.head_card import HeadFactsForCard, render
from specview.training.heads import (
    Eagle3Training,
    HeadKind,
    HeadSettings,
    HeadTrainer,
    MedusaTraining,
    head_acceptance,
)
from specview.training.loop import Report, TrainingLoop
from specview.training.saving import FILES, eagle3_config, medusa_config, rounded, save_head, target_name
from specview.training.target import TargetModel
from specview.training.teacher import (
    BatchWriter,
    TargetFiles,
    Teacher,
    fast_bfloat16,
    find_target,
    open_teacher,
)

KINDS = ("eagle3", "medusa", "p-eagle", "draft")
LEAST_MINUTES = 1.0
DATA_SHARE = 0.45  # of the minutes, the answers for measuring included
END_SHARE = 0.1  # for the held-out measurements and the export
LEAST_TRAIN_SHARE = 0.2
DEPTHS = {"eagle3": 3, "p-eagle": 4, "medusa": starts.MEDUSA_HEADS}
BATCH = 32  # prompts that `generate` answers at once
LEAST_TOKENS = 200
REPORT_EVERY, SAVE_EVERY = 5, 50
EVALUATE_S = 60.0  # seconds between two held-out measurements, at least
_STAGES = {"check": 0.02, "answers": 0.05, "text": 0.30, "labels": 0.12, "training": 0.45, "export": 0.06}
"""A run's stages and what share of its time each is shown as."""

Emit = Callable[[dict[str, Any]], None]
Stop = Callable[[], bool]
Results = dict[int, dict[str, Acceptance]]


@dataclass(frozen=True)
class TrainSettings:
    """What the user asked for. minutes bound the whole run; tokens and steps count instead of the clock."""

    kind: str
    out: Path
    target: str = "bundled"
    minutes: float = 60.0
    prompts: Path | None = None
    text: Path | None = None
    work: Path | None = None
    feature_budget_gb: float = 4.0
    draft_vocab: int | None = None
    layers: tuple[int, ...] | None = None
    start: Path | None = None
    device: str | None = None
    threads: int | None = None
    seed: int = 0
    answer_tokens: int = 128
    tokens: int | None = None  # answer tokens to write
    steps: int | None = None
    note: str = ""  # a paragraph for the small draft's card

    def checked(self) -> TrainSettings:
        """The settings, if they can work; raises UsageError, one line."""
        if self.kind not in KINDS:
            raise UsageError(f"there is no drafter {self.kind!r} to train.", f"Kinds: {', '.join(KINDS)}.")
        if self.steps is None and not LEAST_MINUTES <= self.minutes <= 60 * 24 * 30:
            raise UsageError(f"minutes is {self.minutes:g}.", f"Use {LEAST_MINUTES:g} or more.")
        if self.prompts is not None and self.text is not None:
            raise UsageError("prompts and text are both given.", "Give one of them.")
        for name, least in (("draft_vocab", 16), ("threads", 1), ("answer_tokens", 8), ("tokens", 1), ("steps", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name.replace('_', '-')} is {value}.", f"Use {least} or more.")
        if self.feature_budget_gb <= 0:
            raise UsageError(f"feature-budget is {self.feature_budget_gb:g} GB.", "Use more than 0.")
        if not 0 <= self.seed < 1 << 31:
            raise UsageError(f"seed is {self.seed}.", "Use 0 to 2147483647.")
        if self.kind in ("medusa", "draft") and self.layers is not None:
            raise UsageError(f"{self.kind} reads no layers of its choice.", "Leave layers out.")
        if self.kind == "draft" and self.draft_vocab is not None:
            raise UsageError("a small draft model has the target's whole vocabulary.", "Leave draft-vocab out.")
        return self


@dataclass
class Ledger:
    """What a work folder's run has spent and decided (job.json)."""

    decides: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    train_minutes: float | None = None
    minutes: float | None = None  # of the run that train_minutes was made for
    texts_done: bool = False
    labels_done: bool = False


class TrainJob:
    """One run. `run` may be called once; the work folder keeps what it did."""

    def __init__(self, settings: TrainSettings) -> None:
        """Raises UsageError for settings that cannot work."""
        self.settings = settings.checked()
        self.document: dict[str, Any] = {}

    # -- the run -------------------------------------------------------------------------------

    def run(self, emit: Emit = lambda event: None, should_stop: Stop = lambda: False) -> bool:
        """Run all stages; False where it was stopped before the export.

        emit gets the events of specview.commands.train. Raises SpecviewError, one line.
        """
        self._emit, self._stop = emit, should_stop
        self._began = time.monotonic()
        before = torch.get_num_threads()
        try:
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
            self.threads = torch.get_num_threads()
            self._run()
        except Stopped:
            emit({"event": "stopped", "work": str(getattr(self, "work", ""))})
            return False
        finally:
            torch.set_num_threads(before)
        emit({"event": "done", "folder": str(self.settings.out)})
        return True

    def _run(self) -> None:
        with self._stage("check", "Checking the target"):
            self._check()
        with self._stage("answers", "The target answers the held-out prompts"):
            self._answer()
        with self._stage("text", "The target writes" if self._material.pieces is None else "Taking the text"):
            self._write()
        with self._stage("labels", "The target labels the text"):
            self._label()
        with self._stage("training", "Training"):
            if self.settings.kind == "draft":
                from specview.training.draft import DraftRun

                run: DraftRun | HeadRun = DraftRun(self)
            else:
                run = HeadRun(self)
            if not run.train():
                raise Stopped
        with self._stage("export", "Measuring and saving"):
            run.export()

    # -- shared by the stages ------------------------------------------------------------------

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
        self._emit({"event": "stage", "stage": self._name, "text": text or self._text, **self.progress(fraction)})

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

    # -- check ---------------------------------------------------------------------------------

    def _check(self) -> None:
        s = self.settings
        check_out(s.out, s.kind)
        for file in (s.prompts, s.text):
            if file is not None and not file.is_file():
                raise SpecviewError(f"there is no file {file}.", "Check the path.")
        self.target = find_target(s.target, s.device, lambda text, fraction: self.tell(0.0, text), self._stop)
        target = self.target
        start = None
        if s.start is not None and s.kind != "draft":
            start = starts.read_start(s.start, s.kind, target)
        self.start = start
        self.layers: tuple[int, ...] = ()
        if s.kind in ("eagle3", "p-eagle"):
            if s.layers is not None:
                self.layers = starts.check_layers(s.layers, target)
            elif start is not None:
                self.layers = starts.start_layers(start, target)
            else:
                self.layers = starts.default_layers(target)
        rows = s.draft_vocab or starts.default_rows(target.hidden, target.vocab)
        self.rows = min(rows, target.vocab)
        try:
            self.tokenizer = load_tokenizer(target.folder)
        except Exception as error:  # a tokenizer may fail in any way
            line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise SpecviewError(f"{target.name} has no tokenizer that transformers loads ({line}).", "Choose another target.") from error
        self._material = texts.material_of(self.tokenizer, s.prompts, s.text, s.seed)
        self.layout = self._material.layout
        self.sets = self._material.sets
        decides = self._decides()
        self.work = s.work or _default_work(s.kind, target, decides)
        if self.work.resolve() == s.out.resolve():
            raise UsageError(f"work and out are both {self.work}.", "Name two folders.")
        self._open_work(decides)
        per_token = bytes_per_token(len(self.layers), target.hidden)
        budget = int(s.feature_budget_gb * 1e9)
        self.budget_tokens = budget // per_token if s.kind != "draft" else 1 << 60
        if self.budget_tokens < LEAST_TOKENS:
            raise UsageError(
                f"a feature budget of {s.feature_budget_gb:g} GB holds {self.budget_tokens} tokens.", "Use a larger one."
            )
        if s.kind != "draft" and not self.ledger.labels_done:
            there = sum(file.stat().st_size for file in (self.work / "features").glob("*.safetensors"))
            # Never more than the writer can fill in its time: ten thousand tokens a second would be a record.
            most = per_token * int(1e4 * 60 * s.minutes) if s.steps is None else budget
            require_room(self.work, min(budget, most) - there)

    def _decides(self) -> dict[str, Any]:
        """The settings that decide data and shapes: a work folder of others is no use."""
        s = self.settings

        def content(file: Path | None) -> str | None:
            return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()

        return {
            "kind": s.kind,
            "target": self.target.sha256,
            "prompts": content(s.prompts),
            "text": content(s.text),
            "layers": list(self.layers),
            "draft-vocab": self.rows if s.kind != "draft" else None,
            "start": None if s.start is None else content(s.start / "model.safetensors") if s.start.is_dir() else content(s.start),
            "answer-tokens": s.answer_tokens,
            "seed": s.seed,
        }

    def _open_work(self, decides: dict[str, Any]) -> None:
        file = self.work / "job.json"
        with clear_write_errors(self.work, "the training state"):
            self.work.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                self.ledger = Ledger(decides)
                self.save_ledger()
                return
        try:
            known = json.loads(file.read_text("utf-8"))
            self.ledger = Ledger(**known)
        except (OSError, ValueError, TypeError):
            raise SpecviewError(f"{file} is damaged.", "Name another work folder, or delete this one.") from None
        other = [name for name, value in decides.items() if self.ledger.decides.get(name) != value]
        if other:
            del self.ledger  # nothing may be written there
            raise SpecviewError(
                f"{self.work} holds a run with another {' and '.join(other)}.", "Name another work folder, or delete this one."
            )

    # -- answers -------------------------------------------------------------------------------

    def _answer(self) -> None:
        folder = self.work / "heldout"
        held = self._material.held_out
        missing = any(not (folder / f"{name}.safetensors").exists() for name in self.sets)
        featured = self.settings.kind == "draft" or all(
            any((folder / name).glob("*.safetensors")) for name in self.sets
        )
        limit = min(ANSWER_TOKENS, 2 * self.settings.answer_tokens)
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1  # once a token, or a prompt
            if asked % 20 == 0:
                self.tell(asked / (len(self.sets) * limit + len(held)))
            return self._stop()

        end = self.layout.end if self._material.pieces is None else None
        if not missing and featured:
            self.answers = texts.answer_held_out(held, _unasked, folder)
            return
        if self.target.fast:
            with open_teacher(self.target, exact=True) as teacher:
                write = texts.greedy_writer(teacher.model, end, limit, stop)  # type: ignore[attr-defined]
                self.answers = texts.answer_held_out(held, write, folder)
                self._held_out_features(teacher)
            return
        if missing:
            writer = BatchWriter(self.target, exact=True)
            self.answers = texts.answer_held_out(held, texts.greedy_writer(writer, end, limit, stop), folder)
            del writer
            gc.collect()
        else:
            self.answers = texts.answer_held_out(held, _unasked, folder)
        if not featured:
            with open_teacher(self.target, exact=True, threads=self.threads, should_stop=self._stop) as teacher:
                self._held_out_features(teacher)

    def _held_out_features(self, teacher: Teacher) -> None:
        if self.settings.kind == "draft":
            return
        for name, answers in self.answers.items():
            folder = self.work / "heldout" / name
            if any(folder.glob("*.safetensors")):
                continue
            # One shard, so that it is there whole or not at all.
            writer = FeatureWriter(teacher, self.layers, folder, shard_tokens=1 << 60)
            for answer in answers:
                if self._stop():
                    raise Stopped
                writer.add(Text(answer.tokens.tolist(), answer.kind, answer.written))
            writer.flush()

    # -- text ----------------------------------------------------------------------------------

    def _write(self) -> None:
        folder = self.work / "texts"
        self.ledger.labels_done = self.ledger.labels_done and not self._more_text()
        if self.ledger.texts_done and not self._more_text():
            return
        folder.mkdir(parents=True, exist_ok=True)
        material = self._material
        if material.pieces is not None:
            if not self.ledger.texts_done:
                texts.copy_pieces(material.pieces, folder, self.budget_tokens)
        else:
            self._write_answers(folder)
        if self._stop():
            raise Stopped
        self.ledger.texts_done = True
        found = sum(1 for _ in texts.texts_of(folder))
        if found < 3:
            raise SpecviewError(
                f"{self.target.name} wrote {found} texts, too few to train on.",
                "Give more minutes or longer prompts.",
            )

    def _more_text(self) -> bool:
        """Whether a finished run's texts may grow: the same run was given more minutes."""
        minutes = self.ledger.minutes
        return (
            self.settings.tokens is None
            and self._material.pieces is None
            and minutes is not None
            and self.settings.minutes > minutes
        )

    def _write_answers(self, folder: Path) -> None:
        s = self.settings
        stored = [(len(text.tokens), text.written) for text in texts.texts_of(folder)]
        total, written_before = sum(n for n, _ in stored), sum(n for _, n in stored)
        if s.tokens is not None and written_before >= s.tokens or total >= self.budget_tokens:
            return
        limit = self._data_seconds()
        share = total / written_before if written_before else 1.6  # tokens of a text for each that is written

        def labelling(written: int) -> float:
            return 0.0 if self.rate is None else share * (written_before + written) / self.rate

        def done(written: int) -> float:
            """How much of the text is there, 0 to 1."""
            parts = [share * (written_before + written) / self.budget_tokens]
            if s.tokens is not None:
                parts.append((written_before + written) / s.tokens)
            else:
                parts.append((self.data_spent() + labelling(written)) / limit)
            return max(parts)

        def enough(written: int) -> bool:
            return self._stop() or done(written) >= 1

        def told(written: int) -> None:
            self.tell(done(written), f"The target writes: {written_before + written:,} tokens")

        if self.target.fast:
            self._write_fast(folder, enough, told)
        else:
            self._write_any(folder, enough, told)

    def _data_seconds(self) -> float:
        return 60 * self.settings.minutes * DATA_SHARE

    rate: float | None = None  # tokens labelled per second

    def _write_fast(self, folder: Path, enough: Callable[[int], bool], told: Callable[[int], None]) -> None:
        s = self.settings
        with open_teacher(self.target) as teacher:
            model = teacher.model  # type: ignore[attr-defined]
            assert isinstance(model, TargetModel)
            self._time_labels(teacher)
            each = 2 * model.shape.layers * model.shape.kv_heads * model.shape.head_dim * model.dtype.itemsize
            lanes = texts.lanes_for(each, self.layout, self.tokenizer, self._material, s.answer_tokens)
            make = texts.prompt_maker(self._material, self.tokenizer, s.seed)
            # One each: a tokenizer's settings are not thread-safe.
            tokenizers = [load_tokenizer(self.target.folder) for _ in range(self.threads)]
            texts.write_in_slots(
                model, self.layout, tokenizers, make, lanes, folder, s.seed, s.answer_tokens, enough, told
            )

    def _write_any(self, folder: Path, enough: Callable[[int], bool], told: Callable[[int], None]) -> None:
        s = self.settings
        writer = BatchWriter(self.target)
        if s.tokens is None:
            self.rate = writer.labels_per_second()
        source = texts.prompt_maker(self._material, self.tokenizer, s.seed)(random.Random(s.seed))
        texts.write_in_batches(
            writer, self.tokenizer, self.layout, source, folder, s.seed, s.answer_tokens, BATCH, enough, told
        )
        del writer
        gc.collect()

    def _time_labels(self, teacher: Teacher) -> None:
        """Measure how fast texts are labelled, so that the writing leaves time for it."""
        if self.settings.tokens is not None or self.settings.kind == "draft":
            return  # nothing is timed, or the writer labels as it writes
        tokens = [token % self.target.vocab for token in range(200)]
        began = time.monotonic()
        with torch.inference_mode():
            for _ in range(2):
                teacher.features(tokens, self.layers)
        self.rate = 400 / max(1e-3, time.monotonic() - began)

    # -- labels --------------------------------------------------------------------------------

    def _label(self) -> None:
        if self.ledger.labels_done:
            return
        if self.settings.kind == "draft":
            from specview.training.draft import label_for_draft

            label_for_draft(self)
        else:
            self._write_features()
        if self._stop():
            raise Stopped
        self.ledger.labels_done = True

    def _write_features(self) -> None:
        folder = self.work / "features"
        found = list(texts.texts_of(self.work / "texts"))
        store = FeatureStore(folder) if folder.exists() else None
        done = len(store.sequences) if store is not None else 0
        tokens = store.tokens if store is not None else 0
        if store is not None and store.sequences and store.layers != self.layers:
            raise SpecviewError(f"{folder} holds features of layers {store.layers}.", "Name another work folder.")
        total = sum(len(text.tokens) for text in found)
        # Late texts are dropped where the machine became slower, but never the first ones.
        timed = self.settings.tokens is None and self.settings.steps is None
        limit = 1.25 * self._data_seconds() if timed else None
        with open_teacher(self.target, threads=self.threads, should_stop=self._stop) as teacher:
            writer = FeatureWriter(teacher, self.layers, folder)
            for text in found[done:]:
                late = limit is not None and self.data_spent() > limit and tokens >= LEAST_TOKENS and done >= 3
                if self._stop() or late or (tokens + len(text.tokens) > self.budget_tokens and done):
                    break
                writer.add(Text(text.tokens.tolist(), text.kind, text.written))
                done, tokens = done + 1, tokens + len(text.tokens)
                if done % 8 == 0:
                    self.tell(tokens / max(1, min(total, self.budget_tokens)), f"The target labels: {tokens:,} tokens")
            writer.flush()

    # -- training, for both kinds of drafter -----------------------------------------------------

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
        """The command that makes this asset."""
        s = self.settings
        parts = ["specview train", s.kind, f"--target {s.target}", f"--out {s.out}"]
        given: dict[str, Any] = {
            "minutes": f"{s.minutes:g}" if s.steps is None else None,
            "prompts": s.prompts,
            "text": s.text,
            "draft-vocab": s.draft_vocab,
            "layers": ",".join(map(str, s.layers)) if s.layers else None,
            "start": s.start,
            "answer-tokens": s.answer_tokens if s.answer_tokens != TrainSettings.answer_tokens else None,
            "tokens": s.tokens,
            "steps": s.steps,
            "seed": s.seed or None,
        }
        parts += [f"--{name} {value}" for name, value in given.items() if value is not None]
        return " ".join(parts)

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
        return len(self.layout.before) if self._material.pieces is None else 0

    def licence(self) -> str:
        """The card's licence line."""
        if self.target.ref.origin == "bundled":
            return "Apache-2.0, as the target's, on whose output it was trained."
        return "that of the target, on whose output it was trained; see the target's own card."

    def source_words(self) -> str:
        """What the training text was made of, in a sentence or two."""
        if self._material.pieces is not None:
            return "The text was given by the user and labelled by the target."
        if self._material.prompts is not None:
            return f"The target answered the user's prompts ({len(self._material.prompts):,}), at temperatures 0, 0.7 and 1."
        return (
            "No text was downloaded. The target answered templates filled at random, user turns of its own invention, and "
            "instructions over Python functions and prose of the installed packages, at temperatures 0, 0.7 and 1."
        )

    def record(self, measured: Mapping[str, Results], before: Mapping[str, Results], loop: TrainingLoop) -> None:
        """Fill `document`, what --json writes."""

        def figures(results: Mapping[str, Results]) -> dict[str, Any]:
            return {
                name: {
                    str(k): {
                        kind: {"alpha": part.alpha, "tokens_per_target_pass": part.tokens_per_target_pass, "judged": part.judged}
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


class HeadRun:
    """Training, measuring and saving of one head (EAGLE-3, P-EAGLE, Medusa)."""

    def __init__(self, job: TrainJob) -> None:
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
        self._settings = HeadSettings(
            steps=s.steps,
            minutes=minutes,
            depth=DEPTHS[s.kind] if s.kind != "medusa" else len(self.head.blocks),
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

    def export(self) -> None:
        """Measure the averaged weights as they are stored, and write the folder."""
        job = self._job
        final = rounded(self._averaged())
        measured = {}
        for index, name in enumerate(job.sets):
            measured[name] = self._measure(final, name)
            job.tell((index + 1) / (2 * len(job.sets) + 1))
        first = self._make()
        before = {name: self._measure(first, name) for name in job.sets}
        job.tell_held_out(self.trainer.progress.step, measured[job.sets[0]])
        save_head(final, self._config(), job.settings.out)
        job.record(measured, before, self.trainer)
        facts = HeadFactsForCard(
            kind=job.settings.kind,
            target=target_name(job.target),
            licence=job.licence(),
            sizes={"layers": ", ".join(map(str, job.layers)), "mask": self._mask, "heads": DEPTHS["medusa"]},
            parameters=sum(parameter.numel() for parameter in final.parameters()),
            draft_vocab=len(self._ids),
            vocab=job.target.vocab,
            progress=self.trainer.progress,
            settings=self._settings,
            data=job.data_counts(job.work / "texts"),
            source=job.source_words(),
            start=self._start_words(),
            measured=measured,
            before=before,
            answers={name: (len(found), sum(a.written for a in found)) for name, found in job.answers.items()},
            used=job.sets[0],
            command=job.command(),
            minutes=job.spent() / 60,
        )
        with clear_write_errors(job.settings.out, "the model card"):
            (job.settings.out / "README.md").write_text(render(facts), "utf-8")

    # -- inside --------------------------------------------------------------------------------

    def _vocabulary(self) -> starts.Vocabulary:
        """Chosen from the first texts there were, and kept: the head's rows must not change under it."""
        file = self._job.work / "vocabulary.json"
        if file.exists():
            known = json.loads(file.read_text("utf-8"))
            return starts.Vocabulary(torch.tensor(known["ids"]), known["mask_token_id"])
        tokenizer = self._job.tokenizer
        special = sorted({*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder} - {self._job.layout.end})
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
            module: nn.Module = starts.start_medusa(job.target.hidden, job.target.vocab, self._output_rows, self._ids, heads)
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
            return MedusaTraining(module, lambda last: list(module(last)), module.lm_head.weight, self._ids.to(self._device))
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


# -- what a run needs of its folders -----------------------------------------------------------------


def check_out(out: Path, kind: str) -> None:
    """Raise SpecviewError where `out` cannot become the drafter's folder: not writable, or something else's."""
    if out.exists() and not out.is_dir():
        raise SpecviewError(f"{out} is a file.", "Name a folder for the result.")
    if out.is_dir():
        others = sorted(entry.name for entry in out.iterdir() if entry.name not in FILES and not entry.name.endswith(".part"))
        if others:
            raise SpecviewError(f"{out} is not empty: it has {others[0]}.", "Name a new folder for the result.")
        held = _kind_there(out)
        if held not in (None, kind):
            raise SpecviewError(f"{out} holds another drafter ({held}).", "Name a new folder for the result.")
    place = out
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise SpecviewError(f"{out} cannot be written.", "Name a folder that you may write to.")
    if shutil.disk_usage(place).free < 64 << 20:
        raise SpecviewError(f"the disk of {out} is full.", "Free some space, or name another folder.")


def _kind_there(folder: Path) -> str | None:
    """The kind of drafter that a folder's config says, None for no config."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return "unreadable"
    said = config.get("speculators_model_type") or config.get("model_type")
    return {"peagle": "p-eagle", "llama": "draft"}.get(said, said)


def _default_work(kind: str, target: TargetFiles, decides: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    name = "".join(char if char.isalnum() or char in "-_." else "_" for char in target.name)[:60]
    return cache_dir() / "training" / f"{kind}-{name}-{digest}"


def _unasked(prompts: Sequence[list[int]]) -> list[list[int]]:
    raise AssertionError("all answers are there")  # pragma: no cover


__all__ = ["KINDS", "HeadRun", "TrainJob", "TrainSettings"]
