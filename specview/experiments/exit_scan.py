"""Which exit layer pays on this prompt: acceptance and cost of every one, then real runs of the best few.

The target continues the prompt greedily. At every token of that text each exit is asked what it would have
drafted: the share it gets right is its acceptance rate under the greedy rule. What drafting and verifying
cost is measured here, interleaved; the closed forms of `decoding.theory` say what that is worth for each k.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import Any

from specview.decoding import theory
from specview.decoding.interfaces import EarlyExitSession, Engine, Session
from specview.decoding.ledger import Array, Round
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.metrics import Metrics, fold
from specview.decoding.sampling import SamplingParams, likeliest_ids
from specview.decoding.speedup import speedup
from specview.drafting.early_exit import EarlyExit, problem
from specview.drafting.policies import Constant
from specview.errors import SpecviewError, Stopped, UsageError
from specview.racing.load_meter import LoadMeter
from specview.racing.pool import OnProgress, ShouldStop
from specview.settings.run import MAX_K

REPEATS = 5
"""Measurements of each cost, interleaved; medians count."""
CONFIRMED = 3
"""Exits with the best predictions that are run for real."""
CONFIRM_REPEATS = 2
MAX_TOKENS = 4096
_CHUNK = 64
_PLAIN_EVERY = 8  # one plain step among so many other measurements


@dataclass(frozen=True, slots=True)
class ConfirmedRun:
    """Real runs of the loop with one exit: speedup over a plain run beside it, that of the run with the median of `speedups`."""

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


@dataclass(frozen=True, slots=True)
class ExitScan:
    """What a scan found. exits are in the order of their layers; plain_step_s is in seconds.

    busy says that other programs took the machine meanwhile, '' where none did.
    """

    model_name: str
    layers: int
    prompt_tokens: int
    tokens: int
    plain_step_s: float
    exits: tuple[ExitFigures, ...]
    busy: str = ""

    @property
    def best(self) -> ExitFigures:
        """The exit worth most: among those run for real where there are any."""
        right = [one for one in self.exits if one.agreed] or list(self.exits)
        confirmed = [one for one in right if one.confirmed is not None]
        return max(confirmed or right, key=lambda one: one.worth)

    @property
    def pays(self) -> bool:
        """Whether the best exit beats plain decoding: in every real run, and by more than a noisy clock.

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

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        best = self.best
        return {
            "model": self.model_name,
            "layers": self.layers,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "plain_step_s": self.plain_step_s,
            "acceptance": "greedy agreement with the target's own continuation",
            "exits": [_exit_as_dict(one) for one in self.exits],
            "best": {"layer": best.layer, "k": best.best_k, "speedup": best.worth, "pays": self.pays},
            "sentence": self.sentence,
            "busy": self.busy,
        }


def scan_exits(
    engine: Engine,
    prompt_ids: Sequence[int],
    tokens: int = 64,
    k: int = 8,
    should_stop: ShouldStop = lambda: False,
    on_progress: OnProgress | None = None,
    *,
    repeats: int = REPEATS,
    confirm: int = CONFIRMED,
    clock: Callable[[], float] = time.perf_counter,
) -> ExitScan:
    """Measure every exit of `engine` on a prompt: its acceptance over `tokens` greedy tokens, c, and v(1..k).

    The `confirm` exits with the best predictions are then run by the real loop. Fewer tokens and a smaller k
    are taken where the text ends or the context has no more room. Raises SpecviewError, one line, where the
    engine cannot exit early, UsageError on figures out of range, Stopped where should_stop said so.
    """
    if not 1 <= tokens <= MAX_TOKENS:
        raise UsageError(f"tokens is {tokens}.", f"Use 1 to {MAX_TOKENS}.")
    if not 1 <= k <= MAX_K:
        raise UsageError(f"k is {k}.", f"Use 1 to {MAX_K}.")
    reason = engine.rollback_problem or problem(engine)
    if reason is not None:
        raise SpecviewError(f"{engine.model_name} has no exits to scan: {reason.rstrip('.')}.")
    length = min(engine.context_length, len(prompt_ids) + max(tokens, k) + 1)
    if not 0 < len(prompt_ids) < length:
        raise SpecviewError(
            f"the prompt has {len(prompt_ids)} tokens and {engine.model_name} takes {engine.context_length}.",
            "Shorten the prompt.",
        )
    session = engine.new_session(length)
    try:
        assert isinstance(session, EarlyExitSession)
        scan = _Scan(engine, session, list(prompt_ids), length, should_stop, on_progress, clock)
        return scan.run(tokens, k, repeats, confirm)
    finally:
        session.close()


class _Scan:
    """One scan over one session, whose cache holds the prompt but its last token between measurements."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        prompt: list[int],
        max_length: int,
        should_stop: ShouldStop,
        on_progress: OnProgress | None,
        clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.session: Any = session  # an EarlyExitSession too
        self.prompt = prompt
        self.base = len(prompt) - 1
        self.max_length = max_length
        self.should_stop = should_stop
        self.on_progress = on_progress
        self.clock = clock

    def run(self, tokens: int, k: int, repeats: int, confirm: int) -> ExitScan:
        """Do all of it."""
        meter = LoadMeter()
        layers = self.engine.exit_layers
        self.tell("Prefill", 0.0)
        self.session.prefill(self.prompt[:-1], lambda done, total: self.tell("Prefill", done / max(total, 1)))
        room = self.max_length - len(self.prompt)
        tokens, k = min(tokens, room), min(k, room)
        sequence = TokenSequence(list(self.prompt))
        for _ in self.decoding(self.session, sequence, tokens):
            self.tell("The target's own text", len(sequence.output) / tokens)
        self.rewind()
        text = sequence.output
        exits = range(1, layers)
        agreed = {layer: self.agreement(layer, text) for layer in self.told("Acceptance by exit", exits)}
        plain_s, draft_s, verify_s = self.costs(exits, text, k, repeats)
        figures = []
        for layer in exits:
            c = draft_s[layer] / plain_s
            v = [_between(verify_s, layer, drafted) / plain_s for drafted in range(1, k + 1)]
            alpha = agreed[layer] / len(text)
            predicted = [theory.speedup(alpha, drafted, c, v[drafted - 1]) for drafted in range(1, k + 1)]
            figures.append(ExitFigures(layer, agreed[layer], len(text), c, tuple(v), tuple(predicted)))
        figures = self.confirmed(figures, len(text), confirm)
        return ExitScan(
            self.engine.model_name,
            layers,
            len(self.prompt),
            len(text),
            plain_s,
            tuple(figures),
            meter.busy_text() or "",
        )

    # -- measurements --------------------------------------------------------------------------

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
        plain: list[float] = []
        taken: dict[tuple[int, int], list[float]] = {job: [] for job in jobs}
        rounds = [job for _ in range(max(repeats, 1)) for job in jobs]
        for number, (layer, drafted) in enumerate(self.told("Costs, interleaved", rounds)):
            if number % _PLAIN_EVERY == 0:
                plain.append(self.plain_s(fed))
            spent = self.verify_s(layer, fed[: 1 + drafted]) if drafted else self.draft_s(layer, fed)
            taken[layer, drafted].append(spent)
        verify: dict[int, dict[int, float]] = {layer: {} for layer in anchors}
        for (layer, drafted), times in taken.items():
            if drafted:
                verify[layer][drafted] = median(times)
        return median(plain), {layer: median(taken[layer, 0]) for layer in exits}, verify

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

    # -- real runs -----------------------------------------------------------------------------

    def confirmed(self, figures: list[ExitFigures], tokens: int, count: int) -> list[ExitFigures]:
        """The figures, those with the best predictions run for real, beside plain decoding."""
        best = sorted(figures, key=lambda one: -one.predicted_speedup)[:count]
        speedups: dict[int, list[float]] = {one.layer: [] for one in best}
        figures_of: dict[int, Metrics] = {}
        sessions: list[Any] = [self.session]
        try:
            for _ in best:
                sessions.append(self.engine.new_session(self.max_length))
                sessions[-1].prefill(
                    self.prompt[:-1], lambda done, total: self.tell("Prefill", done / max(total, 1))
                )
            for repeat in range(CONFIRM_REPEATS if best else 0):
                layers = ", ".join(str(one.layer) for one in best)
                what = f"Exits {layers} beside plain decoding, run {repeat + 1} of {CONFIRM_REPEATS}"
                plain, *others = self.raced(what, sessions, tokens, best)
                for one, rounds in zip(best, others, strict=True):
                    figures_of[one.layer] = fold(rounds)
                    faster = speedup(rounds, plain)
                    if faster is not None:
                        speedups[one.layer].append(faster.value)
        finally:
            for session in sessions[1:]:
                session.close()
        found = []
        for one in figures:
            if speedups.get(one.layer):
                run = figures_of[one.layer]
                times = tuple(speedups[one.layer])
                measured = ConfirmedRun(one.best_k, times, run.acceptance_rate, run.tokens_per_target_pass)
                one = replace(one, confirmed=measured)
            found.append(one)
        return found

    def raced(
        self, what: str, sessions: Sequence[Any], tokens: int, exits: Sequence[ExitFigures]
    ) -> list[list[Round]]:
        """Rounds of plain decoding and of each exit, always that furthest behind, so that noise is shared."""
        sequences = [TokenSequence(list(self.prompt)) for _ in sessions]
        runs = []
        for session, sequence, one in zip(sessions, sequences, (None, *exits), strict=True):
            runs.append(self.decoding(session, sequence, tokens, one))
        rounds: list[list[Round]] = [[] for _ in runs]
        running = set(range(len(runs)))
        while running:
            index = min(running, key=lambda run: (sequences[run].clock, run))
            self.tell(what, sum(len(one.output) for one in sequences) / (len(runs) * tokens))
            round_ = next(runs[index], None)
            if round_ is None:
                running.discard(index)
            else:
                rounds[index].append(round_)
        for session in sessions:
            session.truncate(self.base)
        return rounds

    def decoding(
        self, session: Any, sequence: TokenSequence, tokens: int, one: ExitFigures | None = None
    ) -> Iterator[Round]:
        """Rounds of greedy decoding from the prompt on, plain or with an exit."""
        sampling = SamplingParams()
        drafter, policy = None, None
        if one is not None:
            drafter = EarlyExit(session, one.layer, self.max_length)
            drafter.start(self.prompt, sampling)
            policy = Constant({})
            policy.start(one.best_k)
        return decode(
            session,
            sequence,
            rule="greedy",
            sampling=sampling,
            max_tokens=tokens,
            drafter=drafter,
            policy=policy,
            eos_ids=self.engine.eos_ids,
            model_name=self.engine.model_name,
            clock=self.clock,
        )

    def rewind(self) -> None:
        """Back to the prompt; drops what is pending."""
        self.session.truncate(self.base)

    # -- telling -------------------------------------------------------------------------------

    def told(self, what: str, items: Sequence[Any]) -> Iterator[Any]:
        """Go through items, telling how far it is."""
        for number, item in enumerate(items):
            self.tell(what, number / len(items))
            yield item

    def tell(self, text: str, fraction: float) -> None:
        """Report progress; raise Stopped where that is wanted."""
        if self.should_stop():
            raise Stopped
        if self.on_progress is not None:
            self.on_progress(text, fraction)


def _between(seconds: dict[int, dict[int, float]], layer: int, drafted: int) -> float:
    """A verifying pass's seconds at a layer, linear between the layers that were measured."""
    low = max(known for known in seconds if known <= layer)
    high = min(known for known in seconds if known >= layer)
    if low == high:
        return seconds[low][drafted]
    share = (layer - low) / (high - low)
    return seconds[low][drafted] + share * (seconds[high][drafted] - seconds[low][drafted])


def _exit_as_dict(one: ExitFigures) -> dict[str, Any]:
    run = one.confirmed
    return {
        "layer": one.layer,
        "acceptance_rate": one.acceptance_rate,
        "agreed": one.agreed,
        "judged": one.judged,
        "draft_cost": one.draft_cost,
        "verify_cost": list(one.verify_cost),
        "predicted_speedup": list(one.predicted),
        "best_k": one.best_k,
        "confirmed": None
        if run is None
        else {
            "k": run.k,
            "speedup": run.speedup,
            "speedups": list(run.speedups),
            "acceptance_rate": run.acceptance_rate,
            "tokens_per_target_pass": run.tokens_per_target_pass,
        },
    }
