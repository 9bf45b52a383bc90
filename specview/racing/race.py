"""The race: lanes side by side on one device, in virtual time.

Lanes share a device, so running them at once would time their contention. Each lane has a clock
that counts only its own compute, and the scheduler always runs one round of the lane whose clock is
furthest behind: on screen all lanes advance together at their true relative speeds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Engine
from specview.decoding.metrics import fold
from specview.decoding.speedup import speedup
from specview.decoding.verification import DecisionRows, NotFiniteError
from specview.drafting.lanes import heads_of, needs_costs, needs_draft
from specview.drafting.plain import is_baseline
from specview.errors import SpecviewError, Stopped
from specview.models.heads import check_before, head_facts
from specview.models.loading import facts as engine_facts
from specview.models.pair_check import check_pair
from specview.racing import workloads
from specview.racing.branching import spelled
from specview.racing.equality import compare_outputs
from specview.racing.lane import Lane
from specview.racing.load_meter import LoadMeter
from specview.racing.messages import messages_of
from specview.racing.oracle import Oracle, oracle_of
from specview.racing.pacer import Pacer
from specview.racing.pool import EngineKey, HeadKey, ModelPool, OnProgress, ShouldStop, draft_key, target_key
from specview.racing.remote_lane import RemoteLane
from specview.racing.resolve import checked_run, is_served
from specview.racing.turns import after
from specview.settings.branch import FACT
from specview.settings.events import (
    Event,
    Failed,
    LaneEnded,
    LanePrefilled,
    LaneRound,
    Phase,
    Progress,
    RaceEnded,
    RaceStarted,
)
from specview.settings.options import WEIGHTS
from specview.settings.run import RunSettings, to_json

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

log = logging.getLogger(__name__)
Emit = Callable[[Event], None]
ORACLE_QUIET_S = 1.0  # how long the search for an oracle says nothing


class Race:
    """One run of several lanes. Use it on the thread that owns the models.

    Nothing here raises for what a user can meet: it becomes a Failed event, or a lane that ended
    with an error while the others go on. oracles False leaves out what takes time when the lanes have ended: the search
    for combined lanes' oracles, and kernel margins that were not measured yet.
    """

    def __init__(
        self,
        settings: RunSettings,
        run_id: int = 0,
        models: ModelPool | None = None,
        clock: Callable[[], float] = time.perf_counter,
        oracles: bool = True,
    ) -> None:
        self.settings = settings
        self.run_id = run_id
        self.models = models or ModelPool()
        self.lanes: list[Lane | RemoteLane] = []
        self.target: Engine | None = None
        self.prompt_ids: list[int] = []
        self.oracles: dict[int, Oracle] = {}
        self.trouble = ""
        self.pacer: Pacer | None = None  # of who looks on
        self._asks_oracles = oracles
        self._owns_models = models is None
        self._lease = self.models.lease()  # it may be continued as long as it is open, whatever runs meanwhile
        self._clock = clock
        self._emit: Emit = lambda event: None
        self._should_stop: ShouldStop = lambda: False

    @property
    def records(self) -> list:
        """The lanes' records so far, plain first."""
        return [lane.record for lane in self.lanes]

    def run(self, emit: Emit, should_stop: ShouldStop = lambda: False) -> None:
        """Load, prefill and race all lanes to their end, telling `emit` as it happens.

        Stop takes effect within one round, and during loading and prefill.
        """
        self._guarded(self._run, emit, should_stop)

    def continue_(self, max_tokens: int, emit: Emit, should_stop: ShouldStop = lambda: False) -> None:
        """Go on with the lanes that ended at the token limit or were stopped."""

        def go_on() -> None:
            for index, lane in enumerate(self.lanes):
                if not lane.continues or lane.record.end not in ("limit", "stopped"):
                    continue
                with self._trouble(index):
                    lane.extend(max_tokens, self._on_chunk("prefill", lane.record.name, index))
            self._race()

        self._guarded(go_on, emit, should_stop)

    @property
    def can_continue(self) -> bool:
        """Whether some lane ended at its limit or was stopped."""
        return any(lane.continues and lane.record.end in ("limit", "stopped") for lane in self.lanes)

    def follow_up(self, text: str) -> RunSettings:
        """Settings of the next turn: the plain lane's reply joins the history, `text` is the prompt."""
        given = self.settings.branch.given if self.settings.branch is not None else ""
        reply = given + (self.lanes[0].record.text if self.lanes else "")
        history = after(self.settings.history, self.settings.prompt, reply)
        return self.settings.next_turn(history, text)

    def close(self) -> None:
        """Free the lanes' caches, and the models if this race loaded them for itself.

        `trouble` then says which lane could not keep what its user asked for (suffix's store).
        """
        self._lease.close()
        for lane in self.lanes:
            try:
                lane.close()
            except SpecviewError as error:
                self.trouble = self.trouble or f"{lane.record.name}: {error}"
                log.warning("%s", self.trouble)
        if self._owns_models:
            self.models.close()

    # -- phases --------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None], emit: Emit, should_stop: ShouldStop) -> None:
        self._emit, self._should_stop = emit, should_stop
        try:
            work()
        except Stopped:
            for lane in self.lanes:
                if lane.record.end is None:
                    lane.finish("stopped")
            self._emit_ends(final=True, measure=False)
            emit(RaceEnded(self.run_id, "stopped"))
        except Exception as error:  # noqa: BLE001 - the window must hear of everything
            for lane in self.lanes:
                if lane.record.end is None:
                    lane.finish("error", one_line(error))
            emit(Failed(self.run_id, one_line(error), isinstance(error, SpecviewError) and error.usage))
            emit(RaceEnded(self.run_id, "error"))

    def _run(self) -> None:
        self.settings = settings = checked_run(self.settings)
        draft_keys = {
            index: draft_key(settings, lane.draft, lane.draft_engine)
            for index, lane in enumerate(settings.lanes)
            if needs_draft(lane)
        }
        head_keys = {
            (index, method): HeadKey(choice, target_key(settings))
            for index, lane in enumerate(settings.lanes)
            for method, choice in heads_of(lane).items()
        }
        names = unique([lane.label for lane in settings.lanes])
        if all(map(is_served, settings.lanes)):
            self._run_served(names)
            return
        keys: set[EngineKey | HeadKey] = {target_key(settings), *draft_keys.values(), *head_keys.values()}
        self._lease.add(keys)
        self.models.keep_only(keys)
        errors = self._check_heads(head_keys)
        self.target = target = self.models.get(
            target_key(settings), self._progress("load", "Loading the target"), self._should_stop
        )
        self._stop_here()
        served, found = self._attach(names, errors)
        self._emit(Progress(self.run_id, "tokenize", "Reading the prompt"))
        if settings.branch is not None:
            self.settings = settings = replace(settings, branch=spelled(settings.branch, target))
        self.prompt_ids = tokenize_prompt(settings, target)
        drafts: dict[int, Engine] = {}
        for index, key in draft_keys.items():
            if index in errors:
                continue
            with self._trouble(index, errors):
                progress = self._progress("load-draft", f"Loading the draft of {names[index]}", index)
                draft = self.models.get(key, progress, self._should_stop)
                text = f"Comparing the tokenizers of target and draft for {names[index]}"
                self._emit(Progress(self.run_id, "load-draft", text, None, index))
                check_pair(target, draft).raise_if_not_ok()
                drafts[index] = draft  # one that does not fit must not be warmed with the target's tokens
            self._stop_here()
        heads = self._load_heads(head_keys, names, errors)
        memory = self.models.memory(target_key(settings))
        own = {
            index: Lane(lane, settings, self.prompt_ids, target, drafts.get(index), self._clock, memory=memory, heads=heads.get(index))
            for index, lane in enumerate(settings.lanes) if index not in served
        }  # fmt: skip
        self.lanes = [served.get(index) or own[index] for index in range(len(settings.lanes))]
        self._start(names, self._facts(drafts, heads) | found)
        self._warm_up([target_key(settings), *(draft_keys[index] for index in drafts)])
        able = {index: lane for index, lane in own.items() if index not in errors}
        self._warm_heads(able, head_keys)
        self._calibrate(list(able.values()))
        self._prefill(errors)
        self._race()

    def _run_served(self, names: list[str]) -> None:
        """Race lanes that servers decode, and nothing here."""
        errors: dict[int, str] = {}
        served, facts = self._attach(names, errors)
        served[0].stand_as_baseline()
        server = served[0].server
        if server is not None:
            facts |= {"target_model_name": server.model, "target_context_length": server.context}
        self.lanes = [served[index] for index in range(len(served))]
        self._start(names, facts | self._run_facts())
        self._prefill(errors)
        self._race()

    def _attach(self, names: Sequence[str], errors: dict[int, str]) -> tuple[dict[int, RemoteLane], dict[str, Any]]:
        """The lanes that servers decode, each asked what its server is, and what they said as facts."""
        served: dict[int, RemoteLane] = {}
        facts: dict[str, Any] = {}
        for index, lane in enumerate(self.settings.lanes):
            if not is_served(lane):
                continue
            served[index] = one = RemoteLane(lane, self.settings, self._stop_here, self._clock)
            self._emit(Progress(self.run_id, "load", f"Asking the server of {names[index]}", None, index))
            with self._trouble(index, errors):
                facts |= {f"server_{index}_{key}": value for key, value in one.attach().items()}
            self._stop_here()
        return served, facts

    def _start(self, names: Sequence[str], facts: dict[str, Any]) -> None:
        flat = tuple(lane.record.settings for lane in self.lanes)
        self._emit(RaceStarted(self.run_id, tuple(self.prompt_ids), self.settings.prompt, tuple(names), flat, facts))
        for lane, name in zip(self.lanes, names, strict=True):
            lane.record.name = name

    def _prefill(self, errors: Mapping[int, str]) -> None:
        """Prefill every lane that can run; the others end with their error."""
        for index, lane in enumerate(self.lanes):
            with self._trouble(index):
                if index in errors:
                    raise SpecviewError(errors[index])
                lane.prefill(self.settings.max_tokens, self._on_chunk("prefill", lane.record.name, index))
            if lane.record.end is None:
                prefill_s = lane.record.prefill_s
                self._emit(LanePrefilled(self.run_id, index, prefill_s, lane.kv_bytes(), lane.draft_weight_bytes))

    def _check_heads(self, keys: Mapping[tuple[int, str], HeadKey]) -> dict[int, str]:
        """Find the heads that cannot serve the target before it is loaded, by lane."""
        errors: dict[int, str] = {}
        for (index, _), key in keys.items():
            choice = key.choice
            if index not in errors and key not in self.models:
                with self._trouble(index, errors):
                    check_before(choice.kind, choice.ref, self.settings.target, self.settings.engine, dict(choice.answers))
        return errors

    def _load_heads(
        self, keys: Mapping[tuple[int, str], HeadKey], names: Sequence[str], errors: dict[int, str]
    ) -> dict[int, dict[str, LoadedHead]]:
        """Load every lane's heads, by lane and method; a lane's trouble goes into `errors`."""
        found: dict[int, dict[str, LoadedHead]] = {}
        for (index, method), key in keys.items():
            if index in errors:
                continue
            with self._trouble(index, errors):
                progress = self._progress("load-draft", f"Loading the {method} head of {names[index]}", index)
                found.setdefault(index, {})[method] = self.models.head(key, progress, self._should_stop)
            self._stop_here()
        return found

    def _race(self) -> None:
        """Run one round at a time of the lane whose clock is furthest behind."""
        meter = LoadMeter()
        begin = self._clock()
        clock_at_begin = [lane.clock for lane in self.lanes]
        running = {index for index, lane in enumerate(self.lanes) if lane.record.end is None}
        if not running and all(lane.record.end == "error" for lane in self.lanes):
            raise SpecviewError(self.lanes[0].record.error or "no lane could run.")
        waited = 0.0
        while running:
            if self.pacer is not None and self.pacer.holds:
                stood = self._clock()
                with meter.left_out():
                    self.pacer.wait(self._should_stop)
                waited += self._clock() - stood
            self._stop_here()
            index = min(running, key=lambda i: (self.lanes[i].clock, i))
            lane, round_ = self.lanes[index], None
            with self._trouble(index):
                round_ = lane.step()
            if round_ is not None:
                self._emit(LaneRound(self.run_id, index, round_))
                continue
            running.discard(index)
            if lane.record.end != "error":
                self._emit_end(index)
        wall = self._clock() - begin - waited
        virtual = max(
            (lane.clock - start for lane, start in zip(self.lanes, clock_at_begin, strict=True)), default=0.0
        )
        busy = meter.busy_text()
        self._ask_oracles()
        self._emit_ends(final=True, measure=self._asks_oracles)
        self._emit(RaceEnded(self.run_id, "done", virtual / wall if wall > 0 else None, busy))

    def _warm_up(self, keys: list) -> None:
        """Run each newly loaded engine once over every row count in use, in throw-away sessions."""
        rows = max((lane.pass_rows for lane in self.lanes), default=0) + 1
        for key in keys:
            if key in self.models.warm or key not in self.models:
                continue
            self._emit(Progress(self.run_id, "warm-up", "Warming up"))
            engine = self.models.get(key)
            session = engine.new_session(min(engine.context_length, 2 * rows + 16))
            try:
                for count in sorted({1, 2, rows}):
                    self._stop_here()
                    if session.length + count <= engine.context_length:
                        # A draft of another tokenizer may not have the target's last token.
                        token = min(self.prompt_ids[-1], engine.vocab_size - 1)
                        forward = session.forward([token] * count)
                        session.synchronize()
                        # The decision's own first call (imports, kernels) is no part of a round either.
                        DecisionRows(forward.logits, self.settings.sampling).choose(0, 0.5)
            except NotFiniteError:
                pass  # the lanes meet it too, and say at which position
            finally:
                session.close()
            self.models.warm.add(key)

    def _warm_heads(self, lanes: Mapping[int, Lane], keys: Mapping[tuple[int, str], HeadKey]) -> None:
        """Draft once with every newly loaded head; what fails here fails in the lane, which says why."""
        for (index, _), key in keys.items():
            lane = lanes.get(index)
            if lane is None:
                continue
            warm = key, str(lane.settings.options.get(WEIGHTS.name, ""))
            if warm in self.models.warm_heads:
                continue
            self._emit(Progress(self.run_id, "warm-up", "Warming up"))
            self._stop_here()
            with self._trouble(index, {}):  # the lane meets it too, and says it
                lane.warm_up()
            self.models.warm_heads.add(warm)

    def _calibrate(self, lanes: list[Lane]) -> None:
        """Measure the target's passes by their rows where a lane chooses by it; each lane learns on from there."""
        lanes = [lane for lane in lanes if needs_costs(lane.settings)]
        if not lanes or self.target is None:
            return

        def tell(fraction: float) -> None:
            self._stop_here()
            self._emit(Progress(self.run_id, "warm-up", "Measuring the target's passes", fraction))

        rows = max(lane.pass_rows for lane in lanes) + 1
        known = self.models.measure_passes(target_key(self.settings), self.prompt_ids, rows, tell, self._clock)
        for lane in lanes:
            lane.costs = Costs(known)

    def _ask_oracles(self) -> None:
        """Find how fast each combined lane could have been; a stop leaves out what is not found yet."""
        self.oracles.clear()
        began = time.monotonic()
        for index, lane in enumerate(self.lanes if self._asks_oracles else ()):

            if isinstance(lane, RemoteLane):
                continue

            def tell(done: int, total: int, index: int = index, lane: Lane = lane) -> None:
                self._stop_here()
                if time.monotonic() - began > ORACLE_QUIET_S:
                    text = f"Looking for the fastest choices of {lane.record.name}"
                    self._emit(Progress(self.run_id, "decode", text, done / total, index))

            try:
                found = oracle_of(lane, tell)
            except Stopped:
                return
            except Exception as error:  # noqa: BLE001 - the lane's own figures stand without it
                log.warning("no oracle for %s: %s", lane.record.name, one_line(error))
                continue
            if found is not None:
                self.oracles[index] = found

    # -- telling -------------------------------------------------------------------------------

    def _stop_here(self) -> None:
        if self._should_stop():
            raise Stopped

    def _progress(self, phase: Phase, text: str, lane: int | None = None) -> OnProgress:
        def tell(detail: str, fraction: float | None) -> None:
            self._emit(Progress(self.run_id, phase, detail or text, fraction, lane))

        return tell

    def _on_chunk(self, phase: Phase, name: str, lane: int) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            self._stop_here()
            text, fraction = f"Prefill of {name}: {done} of {total} tokens", done / total if total else None
            self._emit(Progress(self.run_id, phase, text, fraction, lane))

        return tell

    @contextmanager
    def _trouble(self, index: int, errors: dict[int, str] | None = None) -> Iterator[None]:
        """What goes wrong inside ends this lane, or goes into `errors`, and is not the others'; a stop is everybody's."""
        try:
            yield
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            if errors is None:
                self._fail_lane(index, error)
            else:
                errors[index] = one_line(error)

    def _fail_lane(self, index: int, error: Exception) -> None:
        self.lanes[index].finish("error", one_line(error))
        self._emit_end(index)

    def _emit_ends(self, final: bool = False, measure: bool = True) -> None:
        for index, lane in enumerate(self.lanes):
            if lane.record.end is not None:
                self._emit_end(index, final, measure)

    def _emit_end(self, index: int, final: bool = False, measure: bool = True) -> None:
        lane, plain = self.lanes[index], self.lanes[0]
        held = bool(index and final) and is_baseline(plain.record.settings)  # a server that drafts is nobody's baseline
        faster = speedup(lane.table, plain.table) if held else None
        equality = None
        if held:
            equality = compare_outputs(lane, plain, self.models.kernel_margins, target_key(self.settings), measure)
        assert lane.record.end is not None
        metrics = fold(lane.table, plain_step_s=plain.table.plain_step_s())
        if isinstance(lane, RemoteLane):
            metrics = lane.told(metrics)
        oracle = self.oracles.get(index)
        if oracle is not None and oracle.own_seconds:
            metrics = replace(metrics, oracle_share=oracle.seconds / oracle.own_seconds)
        self._emit(LaneEnded(self.run_id, index, lane.record.end, metrics, lane.record.error, faster, equality))

    def _facts(self, drafts: dict[int, Engine], heads: Mapping[int, Mapping[str, LoadedHead]]) -> dict:
        assert self.target is not None
        found = {
            f"target_{key}" if key in PER_MODEL else key: value
            for key, value in engine_facts(self.target).items()
        }
        for index, draft in drafts.items():
            own = engine_facts(draft)
            found |= {f"draft_{index}_{key}": own[key] for key in PER_MODEL if key in own}
        for index, own_heads in heads.items():
            for method, head in own_heads.items():
                found |= {f"draft_{index}_{method}_{key}": value for key, value in head_facts(head).items()}
        declared = self.target.tokenizer.declared
        found |= {"target_ends": declared.ends_words(), "target_left_out": declared.left_out or None}
        found |= {"target_weights_note": declared.weights_note or None}
        return found | self._run_facts()

    def _run_facts(self) -> dict[str, Any]:
        """What is known of the run itself."""
        found: dict[str, Any] = {}
        if self.settings.history:
            found["history"] = [dict(turn) for turn in self.settings.history]
        if self.settings.branch is not None:
            found[FACT] = to_json(self.settings.branch)
        if self.settings.workload is not None:
            found["workload_sha256"] = workloads.load(self.settings.workload).sha256
        return found


PER_MODEL = (
    "model_name",
    "model_spec",
    "file",
    "sha256",
    "source_file",
    "source_sha256",
    "dtype",
    "weight_bytes",
    "context_length",
    "vocab_size",
)
"""Facts of a model rather than of the machine: prefixed `target_` or `draft_<lane>_` in files."""


def tokenize_prompt(settings: RunSettings, target: Engine) -> list[int]:
    """The prompt's ids: the chat rendered by the model's template, or the raw text; then those of the output that is given.

    Raises SpecviewError for an empty chat prompt and for one that leaves no room in the context.
    """
    if settings.chat:
        ids = target.tokenizer.encode_chat(messages_of(settings), settings.chat_template)
    else:
        ids = target.tokenizer.encode_raw(settings.prompt)
    ids = [*ids, *settings.given_ids]
    if len(ids) >= target.context_length:
        what = f"the prompt and the {len(settings.given_ids)} tokens that the branch gives have" if settings.given_ids else "the prompt has"
        raise SpecviewError(
            f"{what} {len(ids)} tokens and {target.model_name} takes {target.context_length}, output included.",
            "Shorten the prompt, or choose a model with a longer context.",
        )
    return ids


def unique(names: list[str]) -> list[str]:
    """The names, numbered where one occurs again."""
    result: list[str] = []
    for name in names:
        own, number = name, 1
        while own in result or (number > 1 and own in names):  # a number may be another lane's own name
            number += 1
            own = f"{name} {number}"
        result.append(own)
    return result


def one_line(error: BaseException) -> str:
    """An error as one line for the user; what is not ours is logged with its traceback."""
    if isinstance(error, SpecviewError):
        return str(error)
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "There is not enough memory for this run. Close other programs, or use a smaller model or fewer tokens."
    log.error("unexpected error", exc_info=error)
    text = " ".join(str(error).split())
    return f"Unexpected {type(error).__name__}: {text[:300]} (start specview from a terminal to see more)."
