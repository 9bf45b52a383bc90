"""Which exit layer pays on this prompt: acceptance and cost of every one, then races of the best few.

The target continues the prompt greedily. At every token of that text each exit is asked what it would have
drafted: the share it gets right is its acceptance rate under the greedy rule. What drafting and verifying
cost is measured here, interleaved; the closed forms of `decoding.theory` say what that is worth for each k.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median, median_low
from typing import Any

import numpy as np

from specview.decoding import theory
from specview.decoding.interfaces import EarlyExitSession, Engine
from specview.decoding.ledger import Array
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams, likeliest_ids
from specview.drafting.early_exit import METHOD, problem
from specview.drafting.lanes import flat_settings
from specview.errors import SpecviewError, Stopped, UsageError
from specview.experiments.runner import Clock, Pace, Runner
from specview.files.report import Block, Report, Table, Text
from specview.files.schema import Json, plain
from specview.files.tables import Column, Row
from specview.models.loading import facts
from specview.racing.load_meter import LoadMeter
from specview.racing.pool import ModelPool, OnProgress, ShouldStop
from specview.racing.race import tokenize_prompt
from specview.settings.run import MAX_K, LaneSettings, RunSettings

REPEATS = 5
"""Measurements of each cost, interleaved; medians count."""
CONFIRMED = 3
"""Exits with the best predictions that are raced."""
CONFIRM_REPEATS = 2
MAX_TOKENS = 4096
_CHUNK = 64
_PLAIN_EVERY = 8  # one plain step among so many other measurements


@dataclass(frozen=True, slots=True)
class ConfirmedRun:
    """Races of one exit beside plain decoding: speedups, and the figures of the last one."""

    k: int
    speedups: tuple[float, ...]
    acceptance_rate: float | None
    tokens_per_target_pass: float | None

    @property
    def speedup(self) -> float:
        """Median over the repeats, of an even number the lower of the two in the middle."""
        return median_low(self.speedups)


@dataclass(frozen=True, slots=True)
class ExitFigures:
    """One exit: after `layer` layers.

    agreed of judged tokens are the target's own; draft_cost is c, a draft step in plain steps; verify_cost
    and predicted hold v(k) and the predicted speedup for k = 1, 2, ...; v(k) is that of a pass which takes
    the drafted tokens up at this layer, measured at some layers and linear between them.
    """

    layer: int
    agreed: int
    judged: int
    draft_cost: float
    verify_cost: tuple[float, ...]
    predicted: tuple[float, ...]
    confirmed: ConfirmedRun | None = None

    @property
    def acceptance_rate(self) -> float:
        """Share of the target's own tokens that this exit drafts right."""
        return self.agreed / self.judged

    @property
    def best_k(self) -> int:
        """The draft length with the highest predicted speedup; the shortest of equals."""
        return 1 + max(range(len(self.predicted)), key=lambda place: self.predicted[place])

    @property
    def predicted_speedup(self) -> float:
        """The predicted speedup at best_k."""
        return self.predicted[self.best_k - 1]

    @property
    def worth(self) -> float:
        """The measured speedup where there is one, else the predicted."""
        return self.predicted_speedup if self.confirmed is None else self.confirmed.speedup

    def as_dict(self) -> Json:
        """The figures as JSON values."""
        found = plain(asdict(self)) | {"acceptance_rate": self.acceptance_rate, "best_k": self.best_k}
        found["predicted_speedup"] = found.pop("predicted")
        if self.confirmed is not None:
            found["confirmed"]["speedup"] = self.confirmed.speedup
        return found


@dataclass(frozen=True, slots=True)
class ExitScan:
    """What a scan found. exits are in the order of their layers; plain_step_s is in seconds.

    busy says that other programs took the machine meanwhile, '' where none did; run is what was asked, and facts.
    """

    model_name: str
    layers: int
    prompt_tokens: int
    tokens: int
    plain_step_s: float
    exits: tuple[ExitFigures, ...]
    busy: str = ""
    prompt: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> ExitFigures:
        """The exit worth most: among those that were raced where there are any."""
        right = [one for one in self.exits if one.agreed] or list(self.exits)
        confirmed = [one for one in right if one.confirmed is not None]
        return max(confirmed or right, key=lambda one: one.worth)

    @property
    def pays(self) -> bool:
        """Whether the best exit beats plain decoding: in every race, and by more than a noisy clock.

        An exit that is never right cannot.
        """
        best = self.best
        if not best.agreed:
            return False
        return best.worth > 1 if best.confirmed is None else min(best.confirmed.speedups) > 1

    @property
    def sentence(self) -> str:
        """One plain sentence that says which exit is best, or that plain decoding wins."""
        best = self.best
        how = "predicted" if best.confirmed is None else "measured"
        where = f"layer {best.layer} of {self.layers} with k {best.best_k}"
        if self.pays:
            return f"Best: leave after {where}, {best.worth:.2f} times plain decoding ({how})."
        worth = f"{best.worth:.2f} times its speed ({how})"
        return f"Plain decoding wins: the best exit, {where}, runs at {worth}."

    @property
    def about(self) -> str:
        """What was measured, in one sentence."""
        return (
            f"Measured on {self.model_name}, {self.layers} layers: {self.tokens} greedy tokens after a prompt of {self.prompt_tokens}; "
            f"a plain step takes {1000 * self.plain_step_s:.1f} ms."
        )

    def as_dict(self) -> Json:
        """The document: settings and facts (`run`), the prompt, and the figures."""
        best = self.best
        return {
            "run": plain(self.run),
            "prompt": self.prompt,
            "model": self.model_name,
            "layers": self.layers,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "plain_step_s": self.plain_step_s,
            "acceptance": "greedy agreement with the target's own continuation",
            "exits": [one.as_dict() for one in self.exits],
            "best": {"layer": best.layer, "k": best.best_k, "speedup": best.worth, "pays": self.pays},
            "sentence": self.sentence,
            "busy": self.busy,
        }


COLUMNS = (
    Column("layer", "E", "Exit layer: the target's first E layers draft.", 0),
    Column("acceptance_rate", "acceptance α", "Share of the target's own greedy tokens, on this prompt, that the exit drafts right.", 3),
    Column("draft_cost", "cost c", "Time of one draft step / of one plain target step, measured.", 3),
    Column("best_k", "best k", "The draft length with the highest predicted speedup.", 0),
    Column("verify_cost", "v(k)", "Time of a pass that verifies k drafted tokens / of one plain target step, at the best k.", 2),
    Column("predicted_speedup", "predicted", "Speedup (1 - α^(k+1)) / ((1 - α)(k c + v)) at the best k: below 1 it is slower than plain.",
           2, unit="×"),
    Column("speedup", "measured", "Speedup of races of this exit and its best k beside plain: median. Only the exits with the best "
           "predictions are raced.", 2, unit="×", spread=("speedup_low", "speedup_high")),
    Column("best", "", "The exit that is worth most."),
)  # fmt: skip
"""A row per exit."""


def exit_rows(found: ExitScan) -> list[Row]:
    """Rows of COLUMNS, in the order of the layers."""
    own = ("layer", "acceptance_rate", "draft_cost", "best_k", "predicted_speedup")
    return [
        {
            **{key: getattr(one, key) for key in own},
            "verify_cost": one.verify_cost[one.best_k - 1],
            "speedup": None if one.confirmed is None else one.confirmed.speedup,
            "speedup_low": None if one.confirmed is None else min(one.confirmed.speedups),
            "speedup_high": None if one.confirmed is None else max(one.confirmed.speedups),
            "best": "best" if one is found.best and found.pays else "",
        }
        for one in found.exits
    ]


def scan_report(found: ExitScan) -> Report:
    """A line per exit, the best one marked, and what the scan says in a sentence."""
    blocks: list[Block] = [
        Text(found.about),
        Table(COLUMNS, exit_rows(found), name="exit layers", identity="layer"),
        Text("acceptance: greedy agreement with the target's own text; c: a draft step, v(k): a verifying pass, in plain steps; "
             "predicted, measured: times plain decoding", "note"),
        Text(found.sentence),
    ]  # fmt: skip
    if found.busy:
        blocks.append(Text(found.busy, "warning"))
    return Report("Exit layers", blocks, found.as_dict())


def scan_exits(
    settings: RunSettings,
    tokens: int = 64,
    k: int = 8,
    models: ModelPool | None = None,
    should_stop: ShouldStop = lambda: False,
    on_progress: OnProgress = lambda text, fraction: None,
    *,
    repeats: int = REPEATS,
    confirm: int = CONFIRMED,
    clock: Clock = time.perf_counter,
) -> ExitScan:
    """Measure every exit of the target on the prompt: its acceptance over `tokens` greedy tokens, c, and v(1..k).

    The `confirm` exits with the best predictions are then raced beside plain decoding. Fewer tokens and a smaller k
    are taken where the text ends or the context has no more room. Raises SpecviewError, one line, where the
    target cannot exit early, UsageError on figures out of range, Stopped where should_stop said so.
    """
    if not 1 <= tokens <= MAX_TOKENS:
        raise UsageError(f"tokens is {tokens}.", f"Use 1 to {MAX_TOKENS}.")
    if not 1 <= k <= MAX_K:
        raise UsageError(f"k is {k}.", f"Use 1 to {MAX_K}.")
    settings = replace(settings, sampling=SamplingParams(), lanes=(LaneSettings(),), baseline=True, observe="off")

    def tell(text: str, fraction: float | None) -> None:
        if should_stop():
            raise Stopped
        on_progress(text, fraction)

    pace = Pace(lambda news: tell(news.text, news.fraction), CONFIRM_REPEATS, tokens * (1 + confirm), clock)
    with Runner(settings, (), models, should_stop=should_stop, on_event=pace.take, clock=clock) as runner:
        engine = runner.pool.get(runner.target, tell, should_stop)
        reason = engine.rollback_problem or problem(engine)
        if reason is not None:
            raise SpecviewError(f"{engine.model_name} has no exits to scan: {reason.rstrip('.')}.")
        prompt = tokenize_prompt(settings, engine)
        meter = LoadMeter()
        scan = _Scan(engine, prompt, min(engine.context_length, len(prompt) + max(tokens, k) + 1), tell, clock)
        try:
            plain_s, text, figures = scan.run(tokens, k, repeats)
        finally:
            scan.session.close()
        best = sorted(figures, key=lambda one: -one.predicted_speedup)[:confirm]
        raced = _raced(runner, replace(settings, max_tokens=len(text)), best, pace)
        figures = [replace(one, confirmed=raced.get(one.layer)) for one in figures]
        flat = flat_settings(settings, settings.lanes[0])
        asked = {key: flat[key] for key in ("engine", "target", "threads", "workload", "chat", "chat_template", "system")}
        return ExitScan(
            engine.model_name, engine.exit_layers, len(prompt), len(text), plain_s, tuple(figures), meter.busy_text(),
            settings.prompt, {**asked, **facts(engine)},
        )  # fmt: skip


def _raced(runner: Runner, settings: RunSettings, best: Sequence[ExitFigures], pace: Pace) -> dict[int, ConfirmedRun]:
    """Races of these exits beside plain decoding, by layer; raises Stopped."""
    lanes = [LaneSettings(METHOD.name, f"layer {one.layer}", k=one.best_k, options={"exit_layer": one.layer}) for one in best]
    settings = replace(settings, lanes=(LaneSettings(), *lanes))
    speedups: dict[int, tuple[float, ...]] = {}
    found: dict[int, ConfirmedRun] = {}
    for repeat in range(CONFIRM_REPEATS if best else 0):
        layers = ", ".join(str(one.layer) for one in best)
        pace.begin(f"Exits {layers} beside plain decoding, run {repeat + 1} of {CONFIRM_REPEATS}")
        outcome = runner.race(settings)
        if outcome.end == "stopped":
            raise Stopped
        pace.end()
        for one, lane in zip(best, outcome.lanes[1:], strict=True):
            if lane.speedup is not None:
                times = speedups[one.layer] = (*speedups.get(one.layer, ()), lane.speedup.value)
                own = lane.metrics
                found[one.layer] = ConfirmedRun(one.best_k, times, own.acceptance_rate, own.tokens_per_target_pass)
    return found


class _Scan:
    """What is measured in one session, whose cache holds the prompt but its last token between measurements."""

    def __init__(self, engine: Engine, prompt: list[int], length: int, tell: OnProgress, clock: Clock) -> None:
        self.engine, self.prompt, self.tell, self.clock = engine, prompt, tell, clock
        self.room = length - len(prompt)
        self.session: Any = engine.new_session(length)
        assert isinstance(self.session, EarlyExitSession)

    def run(self, tokens: int, k: int, repeats: int) -> tuple[float, list[int], list[ExitFigures]]:
        """Seconds of a plain step, the target's own text, and every exit's figures."""
        tokens, k = min(tokens, self.room), min(k, self.room)
        self.tell("Prefill", 0.0)
        self.session.prefill(self.prompt[:-1], lambda done, total: self.tell("Prefill", done / max(total, 1)))
        sequence = TokenSequence(list(self.prompt))
        for _ in decode(
            self.session, sequence, rule="greedy", sampling=SamplingParams(), max_tokens=tokens, eos_ids=self.engine.eos_ids,
            model_name=self.engine.model_name, clock=self.clock,
        ):  # fmt: skip
            self.tell("The target's own text", len(sequence.output) / tokens)
        self.rewind()
        text = sequence.output
        exits = range(1, self.engine.exit_layers)
        agreed = {layer: self.agreement(layer, text) for layer in self.told("Acceptance by exit", exits)}
        plain_s, draft_s, verify_s = self.costs(exits, text, k, repeats)
        figures = []
        for layer in exits:
            c = draft_s[layer] / plain_s
            v = [between(verify_s, layer, drafted) / plain_s for drafted in range(1, k + 1)]
            alpha = agreed[layer] / len(text)
            predicted = [theory.speedup(alpha, drafted, c, v[drafted - 1]) for drafted in range(1, k + 1)]
            figures.append(ExitFigures(layer, agreed[layer], len(text), c, tuple(v), tuple(predicted)))
        return plain_s, text, figures

    def agreement(self, layer: int, text: Sequence[int]) -> int:
        """Tokens of the text that this exit would have drafted right, each after the true ones before it."""
        fed = [self.prompt[-1], *text[:-1]]
        right = 0
        for begin in range(0, len(fed), _CHUNK):
            guesses = likeliest_ids(self.session.forward_exit(fed[begin : begin + _CHUNK], layer))
            right += sum(
                guess == token for guess, token in zip(guesses, text[begin : begin + _CHUNK], strict=True)
            )
        self.rewind()
        return right

    def costs(
        self, exits: range, text: Sequence[int], k: int, repeats: int
    ) -> tuple[float, dict[int, float], dict[int, dict[int, float]]]:
        """Median seconds of a plain step, of a draft step by layer, of a verifying pass by layer and k."""
        fed = [self.prompt[-1], *(list(text) * (1 + k // len(text)))[:k]]
        anchors = sorted({exits[0], exits[len(exits) // 2], exits[-1]})
        jobs: list[tuple[int, int]] = [(layer, 0) for layer in exits]  # (layer, drafted; 0 is a draft step)
        jobs += [(layer, drafted) for layer in anchors for drafted in range(1, k + 1)]
        # The first pass of a shape may pack weights or choose kernels: it is thrown away.
        for drafted in range(1, k + 1):
            self.verify_s(exits[0], fed[: 1 + drafted])
        self.plain_s(fed)
        steps: list[float] = []
        taken: dict[tuple[int, int], list[float]] = {job: [] for job in jobs}
        rounds = [job for _ in range(max(repeats, 1)) for job in jobs]
        for number, (layer, drafted) in enumerate(self.told("Costs, interleaved", rounds)):
            if number % _PLAIN_EVERY == 0:
                steps.append(self.plain_s(fed))
            spent = self.verify_s(layer, fed[: 1 + drafted]) if drafted else self.draft_s(layer, fed)
            taken[layer, drafted].append(spent)
        verify = {layer: {drafted: median(taken[layer, drafted]) for drafted in range(1, k + 1)} for layer in anchors}
        return median(steps), {layer: median(taken[layer, 0]) for layer in exits}, verify

    def plain_s(self, fed: Sequence[int]) -> float:
        """Seconds of a plain step."""
        return self.timed(lambda: self.session.forward(fed[:1]).logits)

    def draft_s(self, layer: int, fed: Sequence[int]) -> float:
        """Seconds of a draft step."""
        return self.timed(lambda: self.session.forward_exit(fed[:1], layer))

    def verify_s(self, layer: int, fed: Sequence[int]) -> float:
        """Seconds of the pass that verifies what was drafted at this layer: all of `fed` but the first."""
        self.session.forward_exit(fed[:-1], layer)
        return self.timed(lambda: self.session.forward(fed).logits)

    def timed(self, work: Callable[[], Array]) -> float:
        """Seconds of a pass and the argmax of its rows, the device's own work included; then rewinds."""
        self.session.synchronize()
        begin = self.clock()
        likeliest_ids(work())
        self.session.synchronize()
        spent = self.clock() - begin
        self.rewind()
        return spent

    def rewind(self) -> None:
        """Back to the prompt; drops what is pending."""
        self.session.truncate(len(self.prompt) - 1)

    def told(self, what: str, items: Sequence[Any]) -> Iterator[Any]:
        """Go through items, telling how far it is."""
        for number, item in enumerate(items):
            self.tell(what, number / len(items))
            yield item


def between(seconds: Mapping[int, Mapping[int, float]], layer: int, drafted: int) -> float:
    """A verifying pass's seconds at a layer, linear between the layers that were measured."""
    return float(np.interp(layer, list(seconds), [own[drafted] for own in seconds.values()]))
