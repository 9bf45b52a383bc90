"""What one recorded run would have cost with other draft lengths: no model is loaded.

Where the text does not depend on what is drafted (greedy decoding, `match`) a round's outcome follows from what the
drafter would have guessed at each place, and that from the trace (what_if_guesses.py) or, of drafters without a
model, from running the drafter again on the recorded ids. Rounds are made by the real rule and the real length
policies (what_if_replay.py) and timed by the run's own measured costs (measured.py). `rejection` above temperature 0
writes another text when other lengths are drafted: there the recorded text is taken as it is, and the figures are
models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Literal

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, LengthPolicy
from specview.decoding.ledger import Round, RunRecord
from specview.decoding.metrics import speedup as measured_speedup
from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES
from specview.drafting.options import resolve
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS, DrafterContext, MethodInfo
from specview.errors import SpecviewError, UsageError
from specview.lab.measured import ENOUGH, MeasuredCosts, measured_costs
from specview.lab.what_if_guesses import Answer, GuessTable, RecordedDrafter, Span, length_bounds, table_of
from specview.lab.what_if_replay import OnPosition, replay, text_of
from specview.racing.oracle import Reach, accepts, fastest_by_times
from specview.racing.settings import MAX_K

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
POLICIES_ASKED = tuple(name for name in POLICIES if name not in ("constant", "confidence"))
SEEDS = 8
"""Replays with other answers to what the trace leaves open; their mean is the value."""

_FOLLOW_TEXT = ("draft-model", "early-exit")
"""Methods whose guess at a place depends on the text before it alone, wherever the draft began."""
_ONE_PASS = ("pard", "p-eagle")
"""Methods that draft all their tokens in one pass: its time hardly depends on how many."""
_LEARN_LENGTHS = ("ngram-map-k", "ngram-map-k4v", "ngram-mod")
"""Copying methods that learn from how their drafts fared: asked at every place they would say other things."""

How = Literal["measured", "exact", "modelled", "bounds"]
Kind = Literal["recorded", "length", "policy", "oracle"]
NEVER: OnPosition = lambda done, total: None  # noqa: E731 - a default


@dataclass(frozen=True, slots=True)
class Range:
    """A figure: its value, and the least and the greatest that it can be."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float) -> Range:
        """A figure that is known."""
        return cls(value, value, value)

    @property
    def known(self) -> bool:
        """Whether there is nothing between low and high."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Alternative:
    """What one way to choose the draft length would have cost.

    tokens_per_pass  emitted / target passes;  drafted  tokens drafted a round
    seconds, speedup  by measured costs, over plain decoding; None where the costs are not known
    how  measured (the run itself), exact, modelled, or bounds (the true figure lies between low and high)
    why  what that rests on;  cost_words  where the passes' times come from
    """

    name: str
    kind: Kind
    policy: str
    k: int
    tokens_per_pass: Range
    rounds: Range
    drafted: float
    seconds: Range | None
    speedup: Range | None
    how: How
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    cost_words: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A lane's recorded run, what else it could have been, and the lane's costs.

    best is the fastest alternative that can be had (no oracle), None where no times are known.
    """

    lane: str
    method: str
    tokens: int
    recorded: Alternative
    alternatives: tuple[Alternative, ...]
    costs: MeasuredCosts | None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Alternative | None:
        """The fastest that is no oracle."""
        real = [one for one in self.alternatives if one.kind != "oracle" and one.speedup is not None]
        return max(real, key=lambda one: one.speedup.value if one.speedup else 0.0, default=None)

    @property
    def sentence(self) -> str:
        """What to take from it, in plain words."""
        best, run = self.best, self.recorded
        if best is None or best.speedup is None:
            return "Times are not known: record the run beside a plain lane (specview compare --trace)."
        same = next(
            (one for one in self.alternatives if (one.policy, one.k, one.options) == (run.policy, run.k, run.options)), run
        )
        now = same.speedup
        if best.speedup.value < 1:
            return f"No draft length would have paid here: the best, {best.name}, predicts {best.speedup.value:.2f}x."
        if now is None or best.speedup.value <= 1.02 * now.value:
            beside = "" if best is same else f"; {best.name} comes to {best.speedup.value:.2f}x"
            told = "" if now is None else f", {now.value:.2f}x by these costs"
            return f"The recorded choice is about the best of these{told}{beside}."
        return (
            f"{best.name} would have been fastest: {best.speedup.value:.2f}x, where the recorded choice comes to "
            f"{now.value:.2f}x by the same costs."
        )


class Replay:
    """A recorded lane, ready to be asked. Raises SpecviewError, one line, where it cannot be replayed.

    plain       the rounds of plain decoding in the same race
    calibrated  {rows: seconds} of target passes, of other lanes or of a calibration
    facts       the trace's: they tell a draft with other tokens than the target's
    """

    def __init__(
        self,
        record: RunRecord,
        plain: Sequence[Round] = (),
        calibrated: Mapping[int, float] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.record, self.plain = record, tuple(plain)
        self.settings = record.settings
        self.name = record.name
        self.method = self._method()
        self.text = text_of(record)
        self.rule = str(self.settings.get("rule") or "greedy")
        self.sampled = float(self.settings.get("temperature") or 0.0) > 0
        self.runs_again = _copies(self.method, self._options())
        self._check()
        longest = max(round_.k for round_ in record.rounds)
        self.k = int(self.settings.get("k") or longest)
        self.policy = str(self.settings.get("policy") or "constant")
        self.costs = self._costs(calibrated)
        self.table: GuessTable | None = None
        if not self.runs_again:
            self.table = table_of(
                self.text,
                record.rounds,
                follows_text=self._follows_text(facts or {}),
                fixed=self.fixed,
                k=self.k,
                constant=self.policy == "constant",
            )
        self._same: tuple[int, int] | None = None

    # -- what is known -------------------------------------------------------------------------

    @property
    def fixed(self) -> bool:
        """Whether the text does not depend on what is drafted."""
        return not self.sampled or self.rule == "match"

    @property
    def longest(self) -> int:
        """The longest draft that can be asked about."""
        if self.table is None or self.table.follows_text:
            return MAX_K
        return max((len(chain) for chain in self.table.chains.values()), default=self.k)

    @property
    def knows_confidence(self) -> bool:
        """Whether the drafter's confidence is known: without it no policy can ask for it."""
        return self.table is None or self.table.knows_confidence

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of all figures."""
        found = []
        if not self.fixed:
            found.append(
                f"{self.rule} above temperature 0: other drafts lead to another text. The recorded one is taken as it "
                "is, so all figures are models."
            )
        if self.settings.get("check_mode"):
            found.append("Recorded in check mode, where one-row passes are padded: no times to go by.")
        elif self.table is not None and self.fixed:
            found.append("Exact up to the engine's kernels: near-ties of logits can fall otherwise in a pass of other rows.")
        if self.costs is None:
            found.append("No one-row pass is in the trace: no times. Record it beside a plain lane.")
        asked = self.settings.get("max_tokens")
        if isinstance(asked, int) and len(self.text.output) > asked:
            found.append("The run was continued; it is replayed as one.")
        if self.record.end not in ("eos", "limit"):
            found.append("The run was cut short; the replay ends where it did.")
        return tuple(found)

    def _method(self) -> MethodInfo:
        name = str(self.settings.get("method") or "")
        if name not in METHODS:
            raise SpecviewError(f"the lane's method {name!r} is not known to this specview.", "Use a newer one.")
        return METHODS[name]

    def _options(self) -> dict[str, Any]:
        return {
            key.removeprefix("option_"): value for key, value in self.settings.items() if key.startswith("option_")
        }

    def _check(self) -> None:
        name, rounds = self.name, self.record.rounds
        if not self.method.drafts:
            raise SpecviewError(f"the lane {name} is plain decoding: it drafts nothing.", "Choose another lane.")
        if not rounds or not self.text.output:
            raise SpecviewError(f"the lane {name} has no rounds.", "Record a run that gets further.")
        if not RULES.get(self.rule, False) and self.sampled:
            raise SpecviewError(
                f"the rule {self.rule} is lossy: with other drafts it writes another text, which is not in the trace.",
                "Record a greedy run, or one with rule match.",
            )
        if self.runs_again:
            return
        if self.method.combines:
            raise SpecviewError(
                f"{self.method.name} has a member that drafts with a model, and a trace has only the drafts that were "
                "chosen.",
                "Record the member in a lane of its own.",
            )
        if any(round_.parents is not None or round_.riders for round_ in rounds):
            raise SpecviewError(
                f"the lane {name} drafts trees: one of another depth has other branches, and their guesses are not in "
                "the trace.",
                "Record the method with a chain, or a method without a model.",
            )
        if self.method.name == "lookahead":
            raise SpecviewError(
                "lookahead guesses in the target's own passes, and what other passes would have found is not in the "
                "trace.",
                "Choose another lane.",
            )
        if not any(round_.k for round_ in rounds):
            raise SpecviewError(f"the lane {name} drafted nothing.", "Choose another lane.")

    def _follows_text(self, facts: Mapping[str, Any]) -> bool:
        if self.method.name not in _FOLLOW_TEXT:
            return False
        vocabulary = self.settings.get("option_vocabulary", "auto")
        if self.method.name != "draft-model" or vocabulary == "same":
            return True
        if vocabulary != "auto":
            return False
        if any(round_.guesses for round_ in self.record.rounds):
            return True  # only a draft with the target's tokens tells its guesses
        sizes = {value for key, value in facts.items() if key in ("target_vocab_size", "draft_vocab_size")}
        return len(sizes) < 2

    def _costs(self, calibrated: Mapping[int, float] | None) -> MeasuredCosts | None:
        costs = measured_costs(self.record.rounds, self.plain, calibrated)
        if costs is not None:
            costs = _steady(costs, (*self.record.rounds, *self.plain), calibrated or {})
        if costs is None or costs.draft_start_s or self.method.name not in _ONE_PASS:
            return costs
        # One length was recorded, and it says what the pass takes.
        typical = median(round_.k for round_ in self.record.rounds if round_.k)
        return replace(costs, draft_start_s=costs.draft_s(int(typical)), draft_step_s=0.0)

    # -- alternatives --------------------------------------------------------------------------

    def recorded(self) -> Alternative:
        """The run as it was."""
        rounds = self.record.rounds
        seconds = sum(round_.seconds for round_ in rounds)
        times = measured_speedup(rounds, self.plain) if self.plain else None
        if times is None and self.costs is not None and seconds > 0:
            times = len(self.text.output) * self.costs.plain_round_s / seconds
        return Alternative(
            name=f"recorded ({self._policy_label(self.policy, self._policy_options(), self.k)})",
            kind="recorded",
            policy=self.policy,
            k=self.k,
            tokens_per_pass=Range.of(len(self.text.output) / len(rounds)),
            rounds=Range.of(len(rounds)),
            drafted=sum(round_.k for round_ in rounds) / len(rounds),
            seconds=Range.of(seconds),
            speedup=None if times is None else Range.of(times),
            how="measured",
            why="the run itself",
            options=self._policy_options(),
        )

    def length(self, k: int, tell: OnPosition = NEVER) -> Alternative:
        """Every round drafts k tokens."""
        return self.policy_of("constant", {}, k, tell)

    def policy_of(self, name: str, options: Mapping[str, Any], k: int, tell: OnPosition = NEVER) -> Alternative:
        """A length policy with options of its own, from or up to k.

        Raises UsageError on values that do not fit, SpecviewError where the trace cannot say.
        """
        info = POLICIES.get(name)
        if info is None:
            raise UsageError(f"there is no length policy {name!r}.", f"Policies: {', '.join(POLICIES)}.")
        if not 1 <= k <= MAX_K:
            raise UsageError(f"k is {k}.", f"Use 1 to {MAX_K} drafted tokens a round.")
        values = resolve(info.options, options, name)
        if k > self.longest:
            raise SpecviewError(
                f"k {k} cannot be replayed: {self.method.name} was recorded with drafts of up to {self.longest}, and "
                "what it would have drafted after them is not in the trace.",
                f"Use k up to {self.longest}, or record a run with a larger k.",
            )
        if name == "confidence" and not self.knows_confidence:
            raise SpecviewError(
                "the trace does not say how sure the drafter was.", "Record it with --observe light or full."
            )
        if self.table is not None:
            return self._by_table(self.table, name, values, k, tell)
        rounds = self._again(name, values, k, tell)
        how: How = "exact"
        differing, compared = self._self_check()
        why = "the drafter was run again on the recorded ids"
        if not self.fixed:
            how, why = "modelled", why + ", as if other drafts had led to the same text"
        elif self._by_time(name):
            how, why = "modelled", why + "; it decides by measured times, which are never twice the same"
        elif differing:
            how = "modelled"
            why += f", where it drafted otherwise than recorded in {differing} of {compared} rounds" + (
                ": it had learned from earlier runs" if self.settings.get("option_tie") else ""
            )
        return self._alternative(name, values, k, [rounds], how, why)

    def oracle(self, k: int | None = None, tell: OnPosition = NEVER) -> Alternative | None:
        """The right length in every round, up to k; None where no times are known."""
        return best_of([self], k, tell)

    def reaches(self, k: int, tell: OnPosition = NEVER) -> tuple[list[Reach], list[Reach], list[Reach]]:
        """Per output place how many tokens a draft has at most and how many hold: at least, likely, at most."""
        if self.table is None:
            drafter, _ = self._drafter()
            output = self.text.output
            found = accepts(
                drafter, True, list(self.text.prompt), output, k, lambda done: tell(done, len(output))
            )
            return found, found, found
        table, total = self.table, len(self.text.output)
        least, likely, most = [], [], []
        guesser = RecordedDrafter(table)
        context = list(self.text.prompt)
        for start in range(total):
            tell(start, total)
            budget = min(k, total - start - 1)
            drafted = table.most(start, budget)
            low, high = table.reach(start, drafted)
            held = low
            if low != high:
                draft = guesser.propose(context, drafted)
                output = self.text.output[start : start + len(draft)]
                agree = [ours == theirs for ours, theirs in zip(draft.tokens, output, strict=False)]
                held = agree.index(False) if False in agree else len(agree)
            least.append((drafted, low))
            likely.append((drafted, held))
            most.append((drafted, high))
            context.append(self.text.output[start])
        return least, likely, most

    @property
    def reaches_are_exact(self) -> bool:
        """Whether what a copying drafter says at a place does not depend on the rounds before."""
        return self.table is not None or (self.method.name not in _LEARN_LENGTHS and not self.method.combines)

    def _by_table(
        self, table: GuessTable, name: str, values: Mapping[str, Any], k: int, tell: OnPosition
    ) -> Alternative:
        label = f"{name} of {self.method.name}"

        def run(answer: Answer, seed: int = 0) -> tuple[list[Round], int, int]:
            drafter = RecordedDrafter(table, answer, seed, label)
            policy, learned = self._make_policy(name, values, k)
            rounds = replay(self.text, drafter, policy, self.costs, learned, tell)
            return rounds, drafter.doubts, drafter.unsure

        first, doubts, unsure = run("middle")
        span: Span | None = None
        seconds: Span | None = None
        if name == "constant":
            span, seconds = length_bounds(table, k, self.costs)
            open_ = span.low != span.high or (seconds is not None and seconds.high - seconds.low > 1e-9 * seconds.high)
        else:
            open_ = bool(doubts or unsure)
        runs = [first]
        if open_:
            more = [run("middle", seed) for seed in range(1, SEEDS)]
            runs += [rounds for rounds, _, _ in more]
            if span is None:
                ends = [run("low")[0], run("high")[0], *runs]
                span = Span(min(map(len, ends)), max(map(len, ends)))
                taken = [sum(round_.seconds for round_ in rounds) for rounds in ends]
                seconds = Span(min(taken), max(taken)) if self.costs is not None else None
        how, why = self._table_words(name, open_, doubts, unsure)
        return self._alternative(name, values, k, runs, how, why, span if open_ else None, seconds if open_ else None)

    def _table_words(self, name: str, open_: bool, doubts: int, unsure: int) -> tuple[How, str]:
        places = len(self.text.output)
        if not self.fixed:
            return "modelled", "as if other drafts had led to the same text"
        if self._by_time(name):
            return "modelled", "it decides by measured times, which are never twice the same"
        if not open_:
            return "exact", "every guess that it needs is in the trace"
        if name != "constant":
            what = f"{doubts} guesses" if doubts else f"the drafter's confidence in {unsure} tokens"
            return "modelled", f"the trace lacks {what}: answered by the drafter's record, and both ways for the range"
        assert self.table is not None
        if self.table.follows_text:
            return "bounds", f"the trace lacks the drafter's guess at {doubts} of {places} places"
        return "bounds", (
            f"{doubts} guesses would have come from drafts that began elsewhere, where this drafter says other things; "
            "the value takes them as recorded at other depths"
        )

    def _alternative(
        self,
        name: str,
        values: Mapping[str, Any],
        k: int,
        runs: Sequence[Sequence[Round]],
        how: How,
        why: str,
        span: Span | None = None,
        seconds: Span | None = None,
    ) -> Alternative:
        tokens = len(self.text.output)
        count = sum(map(len, runs)) / len(runs)
        rounds = Range(count, *(span or (count, count)))
        took = sum(round_.seconds for rounds_ in runs for round_ in rounds_) / len(runs)
        spent = Range(took, *(seconds or (took, took)))
        plain = None if self.costs is None else tokens * self.costs.plain_round_s
        return Alternative(
            name=self._policy_label(name, values, k),
            kind="length" if name == "constant" else "policy",
            policy=name,
            k=k,
            tokens_per_pass=Range(tokens / count, tokens / rounds.high, tokens / rounds.low),
            rounds=rounds,
            drafted=sum(round_.k for rounds_ in runs for round_ in rounds_) / sum(map(len, runs)),
            seconds=spent if plain is not None else None,
            speedup=None if plain is None or took <= 0 else Range(plain / took, plain / spent.high, plain / spent.low),
            how=how,
            why=why,
            options=dict(values),
            cost_words=self._cost_words({round_.rows for rounds_ in runs for round_ in rounds_}),
        )

    def _cost_words(self, rows: Iterable[int]) -> str:
        """Where the passes' times come from, the weakest first."""
        if self.costs is None:
            return ""
        sources = {self.costs.source(count) for count in rows}
        return next(one for one in ("extrapolated", "interpolated", "calibrated", "measured") if one in sources)

    # -- drafters and policies -----------------------------------------------------------------

    def _make_policy(self, name: str, values: Mapping[str, Any], k: int) -> tuple[LengthPolicy, Costs]:
        learned = Costs(self.costs.passes if self.costs is not None else None)
        policy = POLICIES[name].make(values, learned)
        policy.start(k)
        return policy, learned

    def _drafter(self, learned: Costs | None = None) -> tuple[Drafter, Costs]:
        """The lane's drafter without a model, anew, with its prompt."""
        learned = learned or Costs(self.costs.passes if self.costs is not None else None)
        options = {key: value for key, value in self._options().items() if key.split(".")[-1] not in ("tie", "store")}
        text = self.text
        assert self.method.make is not None
        drafter = self.method.make(
            DrafterContext(
                options=self.method.resolve(options),
                max_length=len(text.prompt) + text.limit + MAX_K + 1,
                vocab_size=1 + max((*text.prompt, *text.output)),
                rule=self.rule,
                costs=learned,
            )
        )
        drafter.start(text.prompt, SamplingParams())
        return drafter, learned

    def _again(self, name: str, values: Mapping[str, Any], k: int, tell: OnPosition) -> list[Round]:
        policy, learned = self._make_policy(name, values, k)
        drafter, _ = self._drafter(learned)
        return replay(self.text, drafter, policy, self.costs, learned, tell)

    def _self_check(self) -> tuple[int, int]:
        """Rounds in which the drafter, run again as it was recorded, drafts otherwise, and rounds in all."""
        if self._same is None:
            rounds = self._again(self.policy, self._policy_options(), self.k, NEVER)
            ours = [tuple(token.id for token in round_.drafted) for round_ in rounds]
            theirs = [tuple(token.id for token in round_.drafted) for round_ in self.record.rounds]
            differing = sum(one != other for one, other in zip(ours, theirs, strict=False))
            self._same = differing + abs(len(ours) - len(theirs)), len(theirs)
        return self._same

    def _by_time(self, policy: str) -> bool:
        return POLICIES[policy].needs_costs or self.method.needs_costs

    def _policy_options(self) -> dict[str, Any]:
        info = POLICIES.get(self.policy, POLICIES["constant"])
        given = {
            option.name: self.settings[f"policy_{option.name}"]
            for option in info.options
            if f"policy_{option.name}" in self.settings
        }
        return dict(resolve(info.options, given, info.name))

    @staticmethod
    def _policy_label(name: str, values: Mapping[str, Any], k: int) -> str:
        if name == "constant":
            return f"k {k}"
        if name == "confidence":
            return f"confidence {values['threshold']:g}, up to {k}"
        if name == "off-below":
            return f"off-below {values['threshold']:g}, k {k}"
        return f"{name} {'from' if name == 'heuristic' else 'up to'} {k}"


def _steady(costs: MeasuredCosts, rounds: Sequence[Round], calibrated: Mapping[int, float]) -> MeasuredCosts:
    """Leave out passes that one or two rounds had (the limit's last ones), where enough others are known."""
    counts = Counter(round_.rows for round_ in rounds)
    kept = {
        rows: seconds
        for rows, seconds in costs.passes.items()
        if rows == 1 or rows in calibrated or counts[rows] >= ENOUGH
    }
    return costs if len(kept) < 2 else replace(costs, passes=kept, measured=costs.measured & kept.keys())


def _copies(method: MethodInfo, options: Mapping[str, Any]) -> bool:
    """Whether this method needs no model: it can be run again on the recorded ids."""
    members = method.members(options)
    if members:
        return all(name in METHODS and METHODS[name].family == "n-gram" for name in members)
    return method.drafts and method.family == "n-gram"


def best_of(replays: Sequence[Replay], k: int | None = None, tell: OnPosition = NEVER) -> Alternative | None:
    """An oracle: the right length in every round and, of several lanes of one prompt, the right method.

    Plain steps are among its choices. Of several lanes, over the text that they have in common. None where no times
    are known.
    """
    usable = [one for one in replays if one.costs is not None]
    if not usable or any(one.text.prompt != usable[0].text.prompt for one in usable):
        return None
    common = _common([one.text.output for one in usable])
    if not common:
        return None
    first = usable[0]
    assert first.costs is not None
    longest: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    reaches: list[dict[str, list[Reach]]] = [{}, {}, {}]
    for index, one in enumerate(usable):
        costs = one.costs
        assert costs is not None
        name = one.name if len({other.name for other in usable}) == len(usable) else f"{index}"
        longest[name] = min(k or max(one.k, *(round_.k for round_ in one.record.rounds)), one.longest)
        times[name] = [costs.plain_round_s, *(costs.round_s(drafted) for drafted in range(1, longest[name] + 1))]
        for found, by_place in zip(reaches, one.reaches(longest[name], tell), strict=True):
            found[name] = [_cut(reach, common - place - 1) for place, reach in enumerate(by_place[:common])]
    plain = first.costs.plain_round_s
    answers = [fastest_by_times(found, common, times, plain) for found in reaches]
    schedule, seconds = answers[1]
    slowest, fastest = answers[0][1], answers[2][1]
    counts = [len(made) for made, _ in answers]
    fixed = all(one.fixed for one in usable)
    exact = fixed and slowest == fastest and all(one.reaches_are_exact for one in usable)
    several = len(usable) > 1
    why = "plain steps, or the right length of the right lane, in every round" if several else (
        "the right length in every round, 0 (a plain step) among them"
    )
    if several and any(len(one.text.output) != common for one in usable):
        why += f"; over the first {common} tokens, where the lanes' texts agree"
    return Alternative(
        name="oracle: method" if several else "oracle: length",
        kind="oracle",
        policy="",
        k=max(longest.values()),
        tokens_per_pass=Range(common / counts[1], common / max(counts), common / min(counts)),
        rounds=Range(counts[1], min(counts), max(counts)),
        drafted=sum(choice.length for choice in schedule) / len(schedule),
        seconds=Range(seconds, fastest, slowest),
        speedup=Range(common * plain / seconds, common * plain / slowest, common * plain / fastest),
        how="exact" if exact else "bounds" if fixed and slowest != fastest else "modelled",
        why=why + "; nothing can draft so",
        cost_words=first._cost_words({1 + choice.length for choice in schedule}) if not several else "",
    )


def _cut(reach: Reach, most: int) -> Reach:
    return min(reach[0], most), min(reach[1], most)


def _common(texts: Sequence[Sequence[int]]) -> int:
    """Tokens that all texts begin with."""
    for place in range(min(map(len, texts))):
        if any(text[place] != texts[0][place] for text in texts):
            return place
    return min(map(len, texts))


def passes_of(records: Iterable[RunRecord]) -> dict[int, float]:
    """Median seconds of a target pass by its rows, over all lanes of a race whose passes are whole ones.

    A count that fewer than three rounds had is left out.
    """
    times: dict[int, list[float]] = {}
    for record in records:
        if record.settings.get("method") == "early-exit":
            continue  # its passes take up what the first layers have done
        for round_ in record.rounds:
            if round_.verify_s > 0:
                times.setdefault(round_.rows, []).append(round_.verify_s)
    return {rows: median(seconds) for rows, seconds in sorted(times.items()) if len(seconds) >= ENOUGH}


def replay_of_lane(
    records: Sequence[RunRecord],
    lane: int,
    facts: Mapping[str, Any] | None = None,
    calibrated: Mapping[int, float] | None = None,
) -> Replay:
    """Make ready a lane of a race; its pass times come from itself, the plain lane, the other lanes, a calibration."""
    plain = next((record.rounds for record in records if record.settings.get("method") == "plain"), [])
    own = {
        key.replace(f"draft_{lane}_", "draft_", 1): value for key, value in (facts or {}).items()
    }
    known = {**(calibrated or {}), **passes_of(records)}
    if records[lane].settings.get("method") == "early-exit":
        known = {}  # its passes are shorter ones
    return Replay(records[lane], plain, known, own)


def default_lengths(replayed: Replay) -> list[int]:
    """The draft lengths to show where none are named: up to the recorded one."""
    most = min(max(replayed.k, *(round_.k for round_ in replayed.record.rounds)), replayed.longest)
    return sorted({k for k in LENGTHS if k <= most} | {min(replayed.k, replayed.longest)})


def what_if(
    replayed: Replay,
    *,
    lengths: Sequence[int] | None = None,
    thresholds: Sequence[float] | None = None,
    policies: Sequence[tuple[str, Mapping[str, Any], int | None]] | None = None,
    others: Sequence[Replay] = (),
    tell: Callable[[str, float], None] = lambda text, fraction: None,
) -> WhatIf:
    """Everything at once: lengths, thresholds of the confidence policy, the other policies, and the oracles.

    lengths, thresholds and policies (name, options, k) None are a good choice; others are further lanes of the same
    race, for the oracle of the method. tell is called with (what, fraction) and raises Stopped to stop.
    """
    k = min(replayed.k, replayed.longest)
    wanted: list[tuple[str, Mapping[str, Any], int]] = [
        ("constant", {}, one) for one in (default_lengths(replayed) if lengths is None else lengths)
    ]
    notes = list(replayed.notes)
    if thresholds is None and not replayed.knows_confidence:
        notes.append("The trace does not say how sure the drafter was: no confidence policy. Use --observe light.")
    else:
        asked = THRESHOLDS if thresholds is None else thresholds
        wanted += [("confidence", {"threshold": one}, k) for one in asked]
    chosen = [(name, {}, None) for name in POLICIES_ASKED] if policies is None else policies
    wanted += [(name, options, k if own is None else own) for name, options, own in chosen]
    found: list[Alternative] = []
    steps = len(wanted) + 2
    for index, (name, options, length) in enumerate(wanted):

        def told(done: int, total: int, index: int = index, name: str = name) -> None:
            if done % 64 == 0 or done == total:
                tell(f"Replaying {name}", (index + done / max(total, 1)) / steps)

        found.append(replayed.policy_of(name, options, length, told))
    ends: Iterable[tuple[int, Sequence[Replay]]] = enumerate(([replayed], [replayed, *others]))
    for index, lanes in ends:
        if index and len(lanes) == 1:
            continue

        def looked(done: int, total: int, index: int = index) -> None:
            if done % 64 == 0:
                tell("Looking for the best choices", (len(wanted) + index + done / max(total, 1)) / steps)

        oracle = best_of(lanes, None, looked)
        if oracle is not None:
            found.append(oracle)
        elif index:
            notes.append("No oracle of the method: the lanes have no text, or no times, in common.")
    return WhatIf(
        replayed.name,
        replayed.method.name,
        len(replayed.text.output),
        replayed.recorded(),
        tuple(found),
        replayed.costs,
        tuple(notes),
    )
