"""What tuning found: the lanes it considered, the one it confirmed, and both as a table and a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from specview.decoding.metrics import Metrics
from specview.drafting.lanes import flat_settings
from specview.experiments.arms import Unusable
from specview.files.figures import METRICS
from specview.files.schema import Json, number, plain
from specview.files.tables import Column, Row
from specview.library.repeat import lane_text
from specview.racing.intervals import LEAST, Interval, interval_of
from specview.racing.workloads import Workload
from specview.settings.run import LaneSettings, RunSettings

Stage = Literal["screened", "raced", "final", "confirmed", "failed"]
Verdict = Literal["faster", "plain", "unclear", "undecided", "nothing"]
"""faster, plain: the interval lies above or below 1; unclear: it holds 1; undecided: there is none."""
Over = Literal["repeats", "prompts"]


@dataclass(frozen=True, slots=True)
class Shares:
    """A lane's rounds in plain rounds, means over all its races: what a round takes and gives.

    tokens / (draft + verify + other) is its speedup, but for the races' different lengths.
    """

    tokens: float
    draft: float
    verify: float
    other: float
    proposed: float

    @property
    def cost(self) -> float:
        """Plain rounds that a round takes."""
        return self.draft + self.verify + self.other

    @property
    def why(self) -> str:
        """One sentence from the costs."""
        took = f"a round drafts {self.proposed:.1f} tokens, takes {self.cost:.2f} plain rounds"
        took += f" (draft {self.draft:.2f}, verify {self.verify:.2f}, other {self.other:.2f}) and gives {self.tokens:.2f} tokens"
        if self.tokens > self.cost:
            return took
        surplus = {
            "verifying": self.verify - 1,
            "drafting": self.draft,
            "the rest of the round": self.other,
        }
        loss = max(surplus, key=lambda name: surplus[name])
        if self.tokens < 1.15:
            return f"{took}: too little of the drafts is accepted"
        return f"{took}: {loss} costs more than it brings"


@dataclass(slots=True)
class ArmResult:
    """One lane that was considered: predicted, raced or confirmed.

    speedups are those of choosing (its mean is flattered by the choice); fresh those of confirming, which nothing was
    chosen by. predicted is of the screening, None where there was none. runs are its races' metrics and plain's.
    """

    lane: LaneSettings
    predicted: float | None = None
    stage: Stage = "screened"
    speedups: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    shares: Shares | None = None
    acceptance_rate: float | None = None
    error: str = ""
    runs: list[tuple[Metrics, Metrics]] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        """The lane as --lane takes it."""
        return lane_text(self.lane)

    @property
    def chosen_by(self) -> Interval | None:
        """The speedup while choosing."""
        return interval_of(self.speedups)

    @property
    def measured(self) -> Interval | None:
        """The fresh speedup where there is one, else that of choosing."""
        return interval_of(self.fresh) or self.chosen_by

    @property
    def worth(self) -> float | None:
        """What it is ranked by: the measured speedup, else the prediction."""
        found = self.measured
        return found.mean if found is not None else self.predicted

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens of a target pass."""
        return None if self.shares is None else self.shares.tokens

    @property
    def why(self) -> str:
        """One sentence: from its costs, or why it was not raced."""
        if self.error:
            return self.error
        if self.shares is not None:
            return self.shares.why
        if self.predicted is not None:
            return "predicted from acceptance and costs measured here; others promised more"
        return "no time was left for it"

    def add(self, lane: Metrics, base: Metrics) -> None:
        """Count a race of it, and of plain beside it."""
        self.runs.append((lane, base))
        self.shares = shares_of(self.runs)
        judged = sum(one.judged for one, _ in self.runs)
        self.acceptance_rate = sum(one.accepted for one, _ in self.runs) / judged if judged else None


def shares_of(runs: Sequence[tuple[Metrics, Metrics]]) -> Shares | None:
    """Rounds of a lane in rounds of plain, each race's own, weighted by the lane's rounds."""
    totals = [0.0] * 5
    rounds = 0
    for lane, base in runs:
        if not lane.rounds or not base.rounds or not base.decode_tokens_per_s or not lane.decode_tokens_per_s:
            continue
        unit = base.emitted / base.decode_tokens_per_s / base.rounds
        seconds = lane.emitted / lane.decode_tokens_per_s
        parts = [(share or 0.0) * seconds / unit for share in (lane.draft_share, lane.verify_share, lane.other_share)]
        for place, value in enumerate((lane.emitted, *parts, lane.proposed)):
            totals[place] += value
        rounds += lane.rounds
    return Shares(*(total / rounds for total in totals)) if rounds else None


@dataclass(frozen=True, slots=True)
class Observation:
    """One lane in one race: what the decision guide is fed with."""

    workload: str
    method: str
    lane: str
    speedup: float
    acceptance_rate: float | None
    tokens_per_pass: float | None


@dataclass(slots=True)
class TuneResult:
    """What tuning found so far.

    interval is the chosen lane's speedup over fresh races, each a repeat, or each a prompt not used for choosing
    (`over`). tokens is the output length of the races, fewer than asked where the budget is short. copied holds by
    workload and copying method the share of the text's tokens that a replay drafted right. v and c are costs in plain
    passes: of verifying k drafted tokens, and of a draft step by method. untried are methods that no time was left for,
    idle those that copy and found nothing to copy.
    """

    settings: RunSettings
    prompts: Workload
    seconds: float
    arms: list[ArmResult] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    winner: ArmResult | None = None
    interval: Interval | None = None
    over: Over = "repeats"
    verdict: Verdict = "nothing"
    chosen_on: list[str] = field(default_factory=list)
    confirmed_on: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    tokens: int = 0
    spent_s: float = 0.0
    races: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    copied: dict[str, dict[str, float]] = field(default_factory=dict)
    v: dict[int, float] = field(default_factory=dict)
    c: dict[str, float] = field(default_factory=dict)
    plain_pass_s: float | None = None
    end: Literal["done", "stopped"] = "done"
    busy: str = ""

    @property
    def ranking(self) -> list[ArmResult]:
        """The lanes, the confirmed one first, then those that raced longest, the fastest first."""
        order: Mapping[Stage, int] = {"confirmed": 0, "final": 1, "raced": 2, "screened": 3, "failed": 4}
        return sorted(self.arms, key=lambda arm: (order[arm.stage], -(arm.worth or 0.0)))

    @property
    def told(self) -> list[ArmResult]:
        """The ranking as people want it: all that raced, and of what was only predicted each method's best lane."""
        seen: set[str] = set()
        found = []
        for arm in self.ranking:
            if arm.stage != "screened" or (arm.lane.method not in seen and arm.lane.method not in self.idle):
                found.append(arm)
            seen.add(arm.lane.method)
        return found

    @property
    def notes(self) -> list[str]:
        """What to know about the figures: races cut short, a busy machine."""
        short = f"Races of {self.tokens} tokens, not {self.settings.max_tokens}: the budget is short for more."
        cut = self.races and 0 < self.tokens < self.settings.max_tokens
        return [*([short] if cut else []), *([self.busy] if self.busy else [])]

    @property
    def best(self) -> ArmResult | None:
        """The lane to use: the winner, also one that is not confirmed yet; None where plain is as good or better."""
        if self.winner is None or self.verdict not in ("faster", "undecided"):
            return None
        return self.winner if (self.winner.worth or 0.0) > 1 else None

    def snapshot(self) -> TuneResult:
        """A copy that stays as it is while tuning goes on, for another thread."""
        same = [self.settings, self.prompts, *(part for arm in self.arms for part in (arm.lane, arm.runs))]
        return deepcopy(self, {id(one): one for one in same})

    def observe(self, workload: str, arm: ArmResult, speedup: float, metrics: Metrics) -> None:
        """Keep what a race showed of a lane, for the guide."""
        figures = metrics.acceptance_rate, metrics.tokens_per_target_pass
        self.observations.append(Observation(workload, arm.lane.method, arm.name, speedup, *figures))

    def lead(self) -> None:
        """Note the best so far: a stop keeps it."""
        raced = [arm for arm in self.arms if arm.speedups and not arm.error]
        most = max((len(arm.speedups) for arm in raced), default=0)
        longest = [arm for arm in raced if len(arm.speedups) == most]
        self.winner = max(longest, key=lambda arm: arm.worth or 0.0, default=None)
        self.verdict = "undecided" if longest else "nothing"

    def judge(self) -> None:
        """Say what the fresh races show."""
        found = self.interval
        if self.winner is None:
            self.verdict = "nothing"
        elif found is None or found.low is None:
            self.verdict = "undecided"
        else:
            self.winner.stage = "confirmed"
            verdicts: Mapping[str, Verdict] = {"faster": "faster", "slower": "plain", "same": "unclear"}
            self.verdict = verdicts[found.against_plain]

    @property
    def sentence(self) -> str:
        """What came of it, in one sentence."""
        arm, found = self.winner, self.interval
        if arm is None:
            over = self.spent_s >= self.seconds  # what was refused before is not why nothing ran then
            if not self.arms and self.unusable and self.end != "stopped" and not over:
                return f"Nothing to choose among: {self.unusable[0].method}: {self.unusable[0].reason}"
            when = "it was stopped" if self.end == "stopped" else f"the budget of {self.seconds:.0f} s was over"
            return f"Nothing was measured: {when} before the first race ended. Give it more time."
        if self.verdict == "faster" and found is not None:
            return f"Fastest here: {arm.name}, {found.words} times plain decoding ({self.basis})."
        if self.verdict == "plain" and found is not None:
            return f"Plain decoding wins: the best other lane, {arm.name}, runs at {found.words} times plain ({self.basis}); {arm.why}."
        if self.verdict == "unclear" and found is not None:
            more = " More time, or more prompts, would narrow that." if found.mean > 1.02 else ""
            return (
                f"No method is faster than plain here with confidence: the best, {arm.name}, runs at {found.words} times plain "
                f"({self.basis}); {arm.why}.{more}"
            )
        count = len(arm.fresh)
        when = f"over {count} fresh {'race' if count == 1 else 'races'}" if count else "while choosing"
        worth = "" if arm.worth is None else f", {arm.worth:.2f} times plain {when}"
        why = "it was stopped" if self.end == "stopped" else f"fewer than {LEAST} fresh repeats fitted into the budget"
        return f"Not settled: the best so far is {arm.name}{worth}; {why}, so there is no interval."

    @property
    def basis(self) -> str:
        """What the interval is over."""
        count = self.interval.count if self.interval is not None else 0
        if self.over == "prompts":
            return f"95% interval over {count} prompts not used for choosing"
        return f"95% interval over {count} fresh repeats of the same {'prompt' if len(self.confirmed_on) == 1 else 'prompts'}"


# -- the ranking, the report and the document ------------------------------------------------------------

RANKING_COLUMNS = (
    Column("place", "", "Place in the ranking.", 0),
    Column("lane", "lane", "As --lane takes it."),
    Column("stage", "stage", "How far it came: screened (predicted only), raced, final, confirmed (measured anew), failed."),
    Column("speedup", "speedup", "Geometric mean over its races: fresh ones of the confirmed lane, else those of choosing, "
           "which flatter what was chosen by them.", 2, unit="x", spread=("low", "high")),
    Column("low", "95% from", "Lower end of the 95% interval (Student's t on logarithms); none under three races.", 2),
    Column("high", "to", "Upper end of the 95% interval.", 2),
    Column("races", "races", "Races, or prompts, that the speedup is over.", 0),
    Column("predicted", "predicted", "Speedup predicted by the screening from acceptance and costs measured here.", 2, unit="x"),
    METRICS["acceptance_rate"].column(title="alpha"),
    METRICS["tokens_per_target_pass"].column(key="tokens_per_pass"),
    Column("why", "why", "What its rounds cost and give, in plain rounds."),
)  # fmt: skip
"""A row per lane that was considered."""


def ranking_rows(arms: Sequence[ArmResult]) -> list[Row]:
    """Rows of RANKING_COLUMNS, in the order given."""
    own = ("stage", "predicted", "acceptance_rate", "tokens_per_pass", "why")
    spread = {"speedup": "mean", "low": "low", "high": "high", "races": "count"}
    return [
        {
            "place": place,
            "lane": arm.name,
            **{key: getattr(arm, key) for key in own},
            **{key: getattr(arm.measured, name, None) for key, name in spread.items()},
        }
        for place, arm in enumerate(arms, 1)
    ]


def tune_document(result: TuneResult) -> Json:
    """The result as a JSON document.

    Keys: `verdict`, `sentence`, `best` {lane, speedup, interval, over}, `ranking` (as the table, with every race's speedup),
    `unusable` [{method, reason}], `costs`, `prompts`, `budget`, `run`.
    """
    flat = flat_settings(result.settings, result.settings.lanes[0])
    shared = {key: value for key, value in flat.items() if key not in ("method", "draft", "draft_engine", "k", "policy", "rule")}
    found, arm = result.interval, result.winner
    return {
        "verdict": result.verdict,
        "sentence": result.sentence,
        "best": None
        if arm is None
        else {
            "lane": arm.name,
            "pays": result.verdict == "faster",
            "speedup": number(found.mean if found else arm.worth),
            "interval": None if found is None or found.low is None else plain([found.low, found.high]),
            "level": 0.95,
            "over": result.over,
            "count": found.count if found else 0,
            "fresh": plain(arm.fresh),
            "why": arm.why,
        },
        "ranking": [
            {**plain(dict(row)), "choosing": plain(one.speedups)}
            for one, row in zip(result.ranking, ranking_rows(result.ranking), strict=True)
        ],
        "unusable": [{"method": one.method, "reason": one.reason} for one in result.unusable],
        "untried": list(result.untried),
        "costs": {
            "plain_pass_s": number(result.plain_pass_s),
            "v": {str(k): number(value) for k, value in result.v.items()},
            "c": {name: number(value) for name, value in result.c.items()},
        },
        "copied": plain(result.copied),
        "prompts": {
            "name": result.prompts.name,
            "sha256": result.prompts.sha256,
            "count": len(result.prompts.prompts),
            "chosen_on": result.chosen_on,
            "confirmed_on": result.confirmed_on,
            "failed": result.failures,
        },
        "budget": {
            "seconds": number(result.seconds),
            "spent_s": number(result.spent_s),
            "races": result.races,
            "tokens": result.tokens,
            "end": result.end,
        },
        "busy": result.busy,
        "run": plain({**shared, **result.facts}),
    }
