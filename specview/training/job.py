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
import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from specview.disk import new_folder
from specview.errors import SpecviewError, Stopped, UsageError
from specview.heads.files import weights_of
from specview.models.cache import clear_write_errors
from specview.training import starts, texts
from specview.training.chat import load_tokenizer
from specview.training.draft import DraftRun, label_for_draft
from specview.training.evaluate import ANSWER_TOKENS
from specview.training.features import FeatureStore, FeatureWriter, Text, bytes_per_token, require_room
from specview.training.head_run import HeadRun
from specview.training.prompts import Prompts
from specview.training.saving import check_apart, check_out, check_replaceable
from specview.training.shards import ONE_SHARD
from specview.training.state import Emit, Ledger, Stop, TrainState
from specview.training.target import TargetModel
from specview.training.teacher import BatchWriter, TargetFiles, Teacher, find_target, open_teacher
from specview.training.work import work_root

DATA_SHARE = 0.45  # of the minutes, the answers for measuring included
LEAST_TEXT_SHARE = 0.2
MOST_WRITERS = 8
BATCH = 32  # prompts that `generate` answers at once
LEAST_TOKENS, LEAST_TEXTS = 200, 3


class TrainJob(TrainState):
    """One run. `run` may be called once; the work folder keeps what it did."""

    # -- the run -------------------------------------------------------------------------------

    def run(self, emit: Emit = lambda event: None, should_stop: Stop = lambda: False) -> bool:
        """Run all stages; False where it was stopped before the export.

        emit gets the events of specview.commands.train. Raises SpecviewError, one line.
        """
        self._emit, self._stop = emit, should_stop
        self._lock: FileLock | None = None
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
            if self._lock is not None:
                self._lock.release()
        emit({"event": "done", "folder": str(self.settings.out)})
        return True

    def _run(self) -> None:
        with self._stage("check", "Checking the target"):
            self._check()
        with self._stage("answers", "The target answers the held-out prompts"):
            self._answer()
        with self._stage("text", "The target writes" if self.material.pieces is None else "Taking the text"):
            self._write()
        with self._stage("labels", "The target labels the text"):
            self._label()
        with self._stage("training", "Training"):
            run: DraftRun | HeadRun = DraftRun(self) if self.settings.kind == "draft" else HeadRun(self)
            if not run.train():
                raise Stopped
        with self._stage("export", "Measuring and saving"):
            s = self.settings
            with (
                clear_write_errors(s.out, "the drafter"),
                new_folder(s.out, lambda earlier: check_replaceable(earlier, s.kind)) as folder,
            ):
                run.export(folder)

    # -- check ---------------------------------------------------------------------------------

    def _check(self) -> None:
        s = self.settings
        check_out(s.out, s.kind)
        for file in (s.prompts, s.text):
            if file is not None and not file.is_file():
                raise SpecviewError(f"there is no file {file}.", "Check the path.")
        if s.start is not None and not s.start.exists():
            raise SpecviewError(f"there is no file or folder {s.start}.", "Check the path.")
        self.target = find_target(s.target, s.device, lambda text, fraction: self.tell(0.0, text), self._stop)
        target = self.target
        check_apart(s.out, {
            "target": target.folder, "target's file": target.ref.path, "drafter to start from": s.start,
            "prompts": s.prompts, "text": s.text,
        })  # fmt: skip
        start = None
        if s.start is not None and s.kind != "draft":
            start = starts.read_start(s.start, s.kind, target)
        self.start = start
        self.layers = ()
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
            raise SpecviewError(
                f"{target.name} has no tokenizer that transformers loads ({line}).", "Choose another target."
            ) from error
        self.material = texts.material_of(self.tokenizer, s.prompts, s.text, s.seed)
        self.layout = self.material.layout
        self.sets = self.material.sets
        decides = self._decides()
        self.work = s.work or _default_work(s.kind, target, decides)
        check_apart(s.out, {"work folder": self.work})
        self._open_work(decides)
        per_token = bytes_per_token(len(self.layers), target.hidden)
        budget = int(s.feature_budget_gb * 1e9)
        self.budget_tokens = budget // per_token if s.kind != "draft" else 1 << 60
        if self.budget_tokens < LEAST_TOKENS:
            raise UsageError(
                f"a feature budget of {s.feature_budget_gb:g} GB holds {self.budget_tokens} tokens.",
                "Use a larger one.",
            )
        if s.kind != "draft" and not self.ledger.labels_done:
            there = sum(file.stat().st_size for file in (self.work / "features").glob("*.safetensors"))
            # Never more than the writer can fill in its time: ten thousand tokens a second would be a record.
            most = per_token * int(1e4 * 60 * s.minutes) if s.steps is None else budget
            require_room(self.work, min(budget, most) - there)

    def _decides(self) -> dict[str, Any]:
        """The settings that decide data and shapes: a work folder of others is no use."""
        s = self.settings

        def content(*files: Path | None) -> str | None:
            found = hashlib.sha256()
            for file in files:
                if file is None:
                    return None
                found.update(file.read_bytes())
            return found.hexdigest()

        return {
            "kind": s.kind,
            "target": self.target.sha256,
            "prompts": content(s.prompts),
            "text": content(s.text),
            "layers": list(self.layers),
            "draft-vocab": self.rows if s.kind != "draft" else None,
            "start": None if s.start is None else content(*weights_of(s.start)),
            "answer-tokens": s.answer_tokens,
            "seed": s.seed,
        }

    def _open_work(self, decides: dict[str, Any]) -> None:
        file = self.work / "job.json"
        with clear_write_errors(self.work, "the training state"):
            self.work.mkdir(mode=0o700, parents=True, exist_ok=True)  # the user's texts are in it
            others = sorted({entry.name for entry in self.work.iterdir()} - {".lock"})
            if others and not file.exists():
                raise SpecviewError(
                    f"{self.work} is no work folder: it has {others[0]}.", "Name a new folder, or an earlier run's."
                )
            self._lock = FileLock(self.work / ".lock")
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise SpecviewError(
                    f"another training is at work in {self.work}.",
                    "Wait for it or stop it, or name another work folder (--work).",
                ) from None
            if not file.exists():
                self.ledger = Ledger(decides)
                self.save_ledger()
                return
        try:
            known = json.loads(file.read_text("utf-8"))
            self.ledger = Ledger(**known)
        except (OSError, ValueError, TypeError):
            raise SpecviewError(
                f"{file} is damaged.", "Name another work folder, or delete this one."
            ) from None
        other = [name for name, value in decides.items() if self.ledger.decides.get(name) != value]
        if other:
            del self.ledger  # nothing may be written there
            raise SpecviewError(
                f"{self.work} holds a run with another {' and '.join(other)}.",
                "Name another work folder, or delete this one.",
            )

    # -- answers -------------------------------------------------------------------------------

    def _answer(self) -> None:
        folder = self.work / "heldout"
        held = self.material.held_out
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

        end = self.layout.end if self.material.pieces is None else None
        if not missing and featured:
            self.answers = texts.answer_held_out(held, _unasked, folder)
            return
        if self.target.fast:
            with open_teacher(self.target, exact=True) as teacher:
                assert isinstance(teacher, TargetModel)
                write = texts.greedy_writer(teacher, end, limit, stop)
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
            with open_teacher(
                self.target, exact=True, threads=self.threads, should_stop=self._stop
            ) as teacher:
                self._held_out_features(teacher)

    def _held_out_features(self, teacher: Teacher) -> None:
        if self.settings.kind == "draft":
            return
        for name, answers in self.answers.items():
            folder = self.work / "heldout" / name
            if any(folder.glob("*.safetensors")):
                continue
            # One shard, so that it is there whole or not at all.
            writer = FeatureWriter(teacher, self.layers, folder, shard_tokens=ONE_SHARD)
            for answer in answers:
                if self._stop():
                    raise Stopped
                writer.add(Text(answer.tokens.tolist(), answer.kind, answer.written))
            writer.flush()

    # -- text ----------------------------------------------------------------------------------

    def _write(self) -> None:
        folder = self.work / "texts"
        self.ledger.labels_done = self.ledger.labels_done and not self._more_text()
        if self.ledger.texts_done and _first_texts(folder) == LEAST_TEXTS and not self._more_text():
            return
        folder.mkdir(parents=True, exist_ok=True)
        material = self.material
        if material.pieces is not None:
            if not any(folder.glob("*.safetensors")):  # one shard: it is there whole or not at all
                texts.copy_pieces(material.pieces, folder, self.budget_tokens)
        else:
            self._write_answers(folder)
        if self._stop():
            raise Stopped
        found = _first_texts(folder)
        self.ledger.texts_done = found == LEAST_TEXTS
        if not self.ledger.texts_done:
            raise SpecviewError(
                f"{self.target.name} wrote {found} texts, too few to train on.",
                "Give more minutes or longer prompts.",
            )

    def _more_text(self) -> bool:
        """Whether a finished run's texts may grow: the same run was given more minutes."""
        minutes = self.ledger.minutes
        return (
            self.settings.tokens is None
            and self.material.pieces is None
            and minutes is not None
            and self.settings.minutes > minutes
        )

    def _write_answers(self, folder: Path) -> None:
        s = self.settings
        stored = [(len(text.tokens), text.written) for text in texts.texts_of(folder)]
        total, written_before = sum(n for n, _ in stored), sum(n for _, n in stored)
        if s.tokens is not None and written_before >= s.tokens or total >= self.budget_tokens:
            return
        # What came before may have been slow: the writing gets its share in any case.
        before = self.data_spent() - self.ledger.seconds.get("text", 0.0)
        limit = max(self._data_seconds() - before, 60 * s.minutes * LEAST_TEXT_SHARE)
        share = total / written_before if written_before else 1.6  # tokens of a text for each that is written

        def labelling(written: int) -> float:
            return 0.0 if self.rate is None else share * (written_before + written) / self.rate

        def done(written: int) -> float:
            """How much of the text is there, 0 to 1."""
            parts = [share * (written_before + written) / self.budget_tokens]
            if s.tokens is not None:
                parts.append((written_before + written) / s.tokens)
            else:
                parts.append((self.data_spent() - before + labelling(written)) / limit)
            return max(parts)

        half = (1 + done(0)) / 2

        def late() -> bool:
            """Whether half of the time is gone before a word is written."""
            return s.tokens is None and done(0) >= half

        def enough(written: int) -> bool:
            return self._stop() or done(written) >= 1

        def told(written: int) -> None:
            self.tell(done(written), f"The target writes: {written_before + written:,} tokens")

        if self.target.fast:
            self._write_fast(folder, late, enough, told)
        else:
            self._write_any(folder, late, enough, told)

    def _data_seconds(self) -> float:
        return 60 * self.settings.minutes * DATA_SHARE

    rate: float | None = None  # tokens labelled per second

    def _write_fast(
        self, folder: Path, late: Stop, enough: Callable[[int], bool], told: Callable[[int], None]
    ) -> None:
        s = self.settings
        with open_teacher(self.target) as model:
            assert isinstance(model, TargetModel)
            self._time_labels(model)

            def filling(filled: int, slots: int) -> None:
                self.tell(0.0, f"The target reads its first prompts: {filled} of {slots}")

            each = 2 * model.shape.layers * model.shape.kv_heads * model.shape.width * model.dtype.itemsize
            count = min(self.threads, MOST_WRITERS)
            lanes = texts.lanes_for(each * count, self.layout, self.tokenizer, self.material, s.answer_tokens)
            make = self._prompt_maker(late)
            # One each: a tokenizer's settings are not thread-safe.
            tokenizers = [load_tokenizer(self.target.folder) for _ in range(count)]
            texts.write_in_slots(
                model,
                self.layout,
                tokenizers,
                make,
                lanes,
                folder,
                s.seed,
                s.answer_tokens,
                enough,
                told,
                filling,
            )

    def _write_any(
        self, folder: Path, late: Stop, enough: Callable[[int], bool], told: Callable[[int], None]
    ) -> None:
        s = self.settings
        writer = BatchWriter(self.target)
        if s.tokens is None:
            self.rate = writer.labels_per_second()
        source = self._prompt_maker(late)(random.Random(s.seed))
        texts.write_in_batches(
            writer, self.tokenizer, self.layout, source, folder, s.seed, s.answer_tokens, BATCH, enough, told
        )
        del writer
        gc.collect()

    def _prompt_maker(self, late: Stop) -> Callable[[random.Random], Prompts]:
        if self.material.prompts is None:
            self.tell(0.0, "Reading built-in text for the prompts")
        return texts.prompt_maker(self.material, self.tokenizer, self.settings.seed, self._stop, late)

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
            label_for_draft(self)
        else:
            self._write_features()
        if self._stop():
            raise Stopped
        self.ledger.labels_done = True

    def _write_features(self) -> None:
        s, folder = self.settings, self.work / "features"
        found = list(texts.texts_of(self.work / "texts"))
        store = FeatureStore(folder) if folder.exists() else None
        done = len(store.sequences) if store is not None else 0
        tokens = store.tokens if store is not None else 0
        if store is not None and store.sequences and s.kind == "medusa":
            self.layers = store.layers  # it reads none of them
        elif store is not None and store.sequences and store.layers != self.layers:
            raise SpecviewError(
                f"{folder} holds features of layers {store.layers}.", "Name another work folder."
            )
        if done >= len(found):
            return
        total = sum(len(text.tokens) for text in found)
        # Late texts are dropped where the machine became slower, but never the first ones.
        timed = s.tokens is None and s.steps is None
        limit = (
            self.data_spent() + max(self._data_seconds() - self.data_spent(), 6 * s.minutes)
            if timed
            else None
        )
        with open_teacher(self.target, threads=self.threads, should_stop=self._stop) as teacher:
            writer = FeatureWriter(teacher, self.layers, folder)
            for text in found[done:]:
                late = (
                    limit is not None and self.data_spent() > limit and tokens >= LEAST_TOKENS and done >= 3
                )
                if self._stop() or late or (tokens + len(text.tokens) > self.budget_tokens and done):
                    break
                writer.add(Text(text.tokens.tolist(), text.kind, text.written))
                done, tokens = done + 1, tokens + len(text.tokens)
                if done % 8 == 0:
                    self.tell(
                        tokens / max(1, min(total, self.budget_tokens)),
                        f"The target labels: {tokens:,} tokens",
                    )
            writer.flush()


def _default_work(kind: str, target: TargetFiles, decides: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    name = "".join(char if char.isalnum() or char in "-_." else "_" for char in target.name)[:60]
    return work_root() / f"{kind}-{name}-{digest}"


def _unasked(prompts: Sequence[list[int]]) -> list[list[int]]:
    raise AssertionError("all answers are there")  # pragma: no cover


def _first_texts(folder: Path) -> int:
    """How many texts are there, up to LEAST_TEXTS."""
    return sum(1 for _ in islice(texts.texts_of(folder), LEAST_TEXTS))
