"""What tuning says: its ranking, and a short decision guide: which families of methods to try for which content, each line with the number that says so.

Everything in it was measured by tuning on this machine, for these prompts; what was not tried is said too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from specview.decoding import theory
from specview.drafting.registry import METHODS
from specview.experiments.prompt_set import ALL, NO_WORKLOAD
from specview.experiments.tune_result import (
    RANKING_COLUMNS,
    Observation,
    TuneResult,
    ranking_rows,
    tune_document,
)
from specview.files.report import Block, Report, Section, Table, Text
from specview.racing.intervals import Interval, interval_of

COPIES_WELL = 0.3
"""Of a text's tokens, drafted right by a copying method: above it copying is the first thing to try."""
COPIES_BADLY = 0.1
STEEP = 1.5
"""v(4) above which verifying a few tokens is dear."""
FLAT = 1.2
SAME = 0.04
"""How far from 1 a speedup must lie to be called a gain or a loss."""
DEAR_DRAFT = 0.25
"""c, a draft step in plain passes, above which drafting many tokens does not pay."""

_PRINTED = ("place", "lane", "stage", "speedup", "races", "predicted", "acceptance_rate", "tokens_per_pass")
SHOWN_REASONS = 6

Topic = Literal["copying", "running", "combined", "verify", "draft", "temperature", "machine", "untried"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One line: what to try and why, with the figure that says so. measured False: it is of the literature alone."""

    topic: Topic
    text: str
    figure: float | None = None
    measured: bool = True

    def as_dict(self) -> dict[str, Any]:
        """As in files."""
        return {"topic": self.topic, "text": self.text, "figure": self.figure, "measured": self.measured}


def guide(result: TuneResult) -> tuple[Advice, ...]:
    """The guide that a tuning's measurements make; empty where nothing was measured."""
    if not result.races:
        return ()
    lines = [
        *_copying(result),
        *_running(result),
        *_combined(result.observations),
        *_verify(result),
        *_drafting(result),
        *_temperature(result),
        *_machine(result),
        *_untried(result),
    ]
    return tuple(lines)


def tune_report(result: TuneResult, command: str | None) -> Report:
    """The ranking, why, what could not run, the sentence and the guide; command runs the lane to use."""
    told = result.told
    blocks: list[Block] = []
    if told:
        blocks.append(Table(RANKING_COLUMNS, ranking_rows(told), name="ranking", identity="lane", printed=_PRINTED))
        more = len(result.arms) - len(told)
        if more:
            blocks.append(Text(f"and {more} lanes more, predicted only: --json or --csv hold them.", "note"))
        blocks.append(
            Text(
                "speedup: geometric mean over races beside plain, with its 95% interval; that of the confirmed lane is from fresh "
                "races, the others' from those that they were chosen by. predicted: from acceptance and costs measured here. "
                "plain is 1.",
                "note",
            )
        )
        why = [Text(f"{arm.name}: {arm.why}") for arm in told if arm.shares is not None or arm.error]
        if why:
            blocks.append(Section("Why, in plain rounds", why[:SHOWN_REASONS]))
    if result.idle:
        blocks.append(Text(f"found nothing to copy in this text, so they would be plain decoding: {', '.join(result.idle)}"))
    if result.untried:
        blocks.append(Text(f"no time was left to try {', '.join(dict.fromkeys(result.untried))}."))
    blocks += [Text(f"not used: {line}", "warning") for line in result.failures]
    blocks += [Text(line, "warning") for line in result.notes]
    blocks.append(Text(f"{result.races} races in {result.spent_s:.0f} s of {result.seconds:.0f} s."))
    blocks.append(Text(result.sentence))
    if command is not None:
        blocks += [Text("Use it:"), Text(command, "code")]
    document = tune_document(result) | {"command": command, "guide": [line.as_dict() for line in guide(result)]}
    return Report("Tuning", [*blocks, *guide_sections(result)], document)


def guide_sections(result: TuneResult) -> list[Block]:
    """The guide, and what could not run here."""
    lines = [Text(line.text) for line in guide(result)] or [Text("The guide comes with the first results.")]
    found: list[Block] = [Section("Which families to try, by what was measured here", lines)]
    if result.unusable:
        found.append(Section("Cannot run here", [Text(f"{one.method}: {one.reason}") for one in result.unusable]))
    return found


def _in(workload: str) -> str:
    """ "on code-edit: ", or nothing where there is one prompt."""
    return "" if workload in (ALL, NO_WORKLOAD) else f"{workload}: "


def _copying(result: TuneResult) -> Iterable[Advice]:
    """Text that repeats its prompt or itself: look-ups, which cost no model."""
    measured = _speedups(result.observations, "n-gram")
    for workload, shares in result.copied.items():
        if not shares:
            continue
        method, share = max(shares.items(), key=lambda item: item[1])
        raced = measured.get(workload, {})
        words = f"{_in(workload)}{share:.0%} of the output's tokens can be copied from the text before them ({method}, replayed)"
        fastest = max(raced.items(), key=lambda item: item[1].mean, default=None)
        ran = f"; {fastest[0]} ran at {fastest[1].words} times plain" if fastest is not None else "; not raced"
        says = None if fastest is None else fastest[1].against_plain
        if says == "slower" and share >= COPIES_BADLY:
            text = f"{words}{ran}: for all that can be copied, look-up methods did not pay here."
        elif says != "slower" and fastest is not None and share < COPIES_BADLY and fastest[1].mean > 1:
            text = f"{words}{ran}: there is little to copy here, " + (
                "and yet it paid." if says == "faster" else "and it is not told apart from plain."
            )
        elif share >= COPIES_WELL:
            text = f"{words}{ran}: for text like this try prompt-lookup and suffix first, they need no model."
        elif share >= COPIES_BADLY:
            text = f"{words}{ran}: copying helps now and then, so use it with policy off-below or in auto."
        else:
            text = f"{words}{ran}: there is little to copy here, so look-up methods will not pay on such text."
        yield Advice("copying", text, share)


def _running(result: TuneResult) -> Iterable[Advice]:
    """Free text: something must predict it, a trained head or a draft model."""
    for workload, speeds in _speedups(result.observations, "draft model", "trained head").items():
        method, found = max(speeds.items(), key=lambda item: item[1].mean)
        speed, says = found.mean, found.against_plain
        alphas = [
            one.acceptance_rate
            for one in result.observations
            if one.method == method and one.workload == workload and one.acceptance_rate is not None
        ]
        alpha = f" at acceptance {fmean(alphas):.2f}" if alphas else ""
        c = result.c.get(method)
        cost = f", a drafted token for {c:.2f} plain passes" if c is not None else ""
        words = f"{_in(workload)}of the methods that run a model, {method} did best: {found.words} times plain{alpha}{cost}"
        chosen = result.winner is not None and method == result.winner.lane.method
        settled = result.verdict == "faster" if chosen else says == "faster"
        if abs(speed - 1) < SAME:
            text = f"{words}: no faster than plain on free text; a draft or head trained on this target may be (specview train)."
        elif speed > 1 and settled:
            text = f"{words}: for free text, which has nothing to copy, it is the one to use here."
        elif speed > 1:
            text = f"{words}: not faster than plain with confidence, so measure longer before using it."
        else:
            text = f"{words}: free text is not worth drafting for with what is here; a draft or head trained on this target is (specview train)."
        yield Advice("running", text, speed)


def _combined(observations: Sequence[Observation]) -> Iterable[Advice]:
    """Mixed content: methods that change drafters."""
    for workload, speeds in _speedups(observations, "combined").items():
        method, found = max(speeds.items(), key=lambda item: item[1].mean)
        families = ("n-gram", "draft model", "trained head", "self")
        single = max(
            _speedups(observations, *families).get(workload, {}).values(),
            key=lambda one: one.mean,
            default=Interval(1.0, 1.0, 1.0, 0),
        )
        words = (
            f"{_in(workload)}{method}, which changes drafters from round to round, ran at {found.words} times plain, the best single "
            f"method at {single.words}"
        )
        if not found.apart(single):
            text = f"{words}: the races do not tell them apart."
        elif found.mean > single.mean and found.against_plain == "faster":
            text = f"{words}: with mixed content it is the safe choice."
        else:
            text = f"{words}: the text is of one kind, so one method is enough."
        yield Advice("combined", text, found.mean)


def _verify(result: TuneResult) -> Iterable[Advice]:
    """How steeply verifying grows settles k."""
    if 4 not in result.v:
        return
    v = result.v
    known = ", ".join(f"{k} token{'' if k == 1 else 's'} {v[k]:.2f}" for k in (1, 2, 4, 8) if k in v)
    words = f"verifying costs, in plain passes: {known}"
    if v[4] >= STEEP:
        need = theory.break_even_alpha(4, 0.0, v[4])
        more = f": four drafted tokens pay only above acceptance {need:.2f}, even if drafting were free" if need is not None else (
            ": four drafted tokens cannot pay, even if all were accepted"
        )
        text = f"{words}{more}; {_lengths(result, 'keep k small (1 to 3) and let policy adaptive stop drafts', 1, 3)}."
    elif v[4] <= FLAT:
        text = f"{words}: checking more tokens is nearly free here, so long drafts and trees cost little."
    else:
        text = f"{words}: {_lengths(result, 'middling lengths (2 to 4) are worth trying; longer ones need high acceptance', 2, 4)}."
    yield Advice("verify", text, v[4])


def _drafting(result: TuneResult) -> Iterable[Advice]:
    """What a drafted token costs, cheapest and dearest."""
    costs = {name: c for name, c in result.c.items() if math.isfinite(c)}
    if not costs:
        return
    cheap = min(costs, key=lambda name: costs[name])
    known = ", ".join(f"{name} {c:.2f}" for name, c in sorted(costs.items(), key=lambda item: item[1]))
    words = f"a drafted token costs, in plain passes (k 2): {known}"
    if costs[cheap] > DEAR_DRAFT:
        text = f"{words}: all drafters that run a model are dear here; {_lengths(result, 'a smaller draft or a head would serve better, with k 1 or 2', 1, 2)}."
    elif max(costs.values()) > DEAR_DRAFT:
        dear = ", ".join(name for name, c in costs.items() if c > DEAR_DRAFT)
        text = f"{words}: {dear} must be right most of the time to pay; {cheap} may guess more freely."
    else:
        text = f"{words}: drafting is cheap here, so acceptance and verifying settle the length."
    yield Advice("draft", text, costs[cheap])


def _temperature(result: TuneResult) -> Iterable[Advice]:
    """What sampling does to acceptance."""
    sampling = result.settings.sampling
    if sampling.greedy:
        yield Advice(
            "temperature",
            "measured at temperature 0; above it look-ups lose most, since a copied token is only accepted with the target's own "
            "probability of it: tune again with --temperature before using one there.",
            0.0,
            measured=False,
        )
        return
    alphas = [one.acceptance_rate for one in result.observations if one.acceptance_rate is not None]
    level = f" (mean acceptance of all races {fmean(alphas):.2f})" if alphas else ""
    yield Advice(
        "temperature",
        f"measured at temperature {sampling.temperature:g}{level}: drafters that give their probabilities (models, heads with rule "
        "rejection) keep more of their acceptance than copies do.",
        fmean(alphas) if alphas else None,
    )


def _machine(result: TuneResult) -> Iterable[Advice]:
    """What kind of machine this is, by what a further row costs."""
    if result.plain_pass_s is None or 8 not in result.v:
        return
    row = (result.v[8] - 1) / 8
    step = f"a plain pass takes {1000 * result.plain_pass_s:.1f} ms and each further row {row:.0%} of it"
    device = result.facts.get("device") or "this device"
    if row >= 0.1:
        text = f"{step} on {device}: computing rules here, not memory, as on small machines; short drafts, and none where acceptance is low."
    elif row >= 0.03:
        text = f"{step} on {device}: there is some room to check drafts in the same pass."
    else:
        text = f"{step} on {device}: passes wait for memory, so drafts ride along nearly free while one user is served."
    yield Advice("machine", text, row)


def _untried(result: TuneResult) -> Iterable[Advice]:
    """What this says nothing about."""
    raced = {one.method for one in result.observations}
    methods = dict.fromkeys(arm.lane.method for arm in result.arms)
    predicted = [name for name in methods if name not in raced and name not in result.idle]
    cannot = list(dict.fromkeys(one.method for one in result.unusable if one.method not in raced))
    parts = []
    if predicted:
        parts.append(f"predicted only, others promised more: {', '.join(predicted)}")
    if result.idle:
        parts.append(f"nothing to copy for {', '.join(result.idle)}")
    if result.untried:
        parts.append(f"no time was left for {', '.join(dict.fromkeys(result.untried))}")
    if cannot:
        parts.append(f"cannot run here: {', '.join(cannot)}")
    if parts:
        yield Advice("untried", f"not raced: {'; '.join(parts)}.", float(len(predicted) + len(cannot)))


def _lengths(result: TuneResult, advice: str, least: int, most: int) -> str:
    """Advice on k that costs alone give; where a lane of another k was confirmed as faster than plain, that instead."""
    arm = result.winner if result.verdict == "faster" else None
    if arm is None or arm.lane.k is None or least <= arm.lane.k <= most:
        return advice
    return f"measured, k {arm.lane.k} was the fastest all the same ({arm.name})"


def _speedups(observations: Sequence[Observation], *families: str) -> Mapping[str, Mapping[str, Interval]]:
    """By workload and method of these families the best lane's geometric mean speedup, with its interval."""
    by_lane: dict[tuple[str, str, str], list[float]] = {}
    for one in observations:
        if METHODS[one.method].family in families and one.speedup > 0:
            by_lane.setdefault((one.workload, one.method, one.lane), []).append(one.speedup)
    found: dict[str, dict[str, Interval]] = {}
    for (workload, method, _), speedups in by_lane.items():
        own, interval = found.setdefault(workload, {}), interval_of(speedups)
        if interval is not None and (method not in own or interval.mean > own[method].mean):
            own[method] = interval
    return found
