"""A recorded lane that can be asked what other draft lengths and policies would have cost.

Where the text does not depend on what is drafted (greedy decoding, `match`) a round's outcome follows from what the
drafter would have guessed at each place, and that from the trace (what_if_guesses.py) or, of drafters without a
model, from running the drafter again on the recorded ids. Rounds are made by the real rule and the real length
policies (what_if_replay.py) and timed by the run's own measured costs (measured.py). `rejection` above temperature 0
writes another text when other lengths are drafted: there the recorded text is taken as it is, and the figures are
models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, LengthPolicy
from specview.decoding.ledger import FINISHED, Round, RunRecord
from specview.decoding.sampling import SamplingParams
from specview.decoding.speedup import Speedup, speedup
from specview.decoding.verification import RULES
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.lab.measured import Measured, MeasuredCosts, measured_costs
from specview.lab.what_if_figures import Alternative, How, Range, range_of
from specview.lab.what_if_guesses import Answer, GuessTable, RecordedDrafter, Span, length_bounds, table_of
from specview.lab.what_if_replay import OnPosition, replay, text_of
from specview.racing.oracle import Reach, accepts
from specview.racing.settings import MAX_K
from specview.settings.options import resolve

SEEDS = 8
"""Replays with other answers to what the trace leaves open; their mean is the value."""


def never(done: int, total: int) -> None:
    """Tell nobody."""


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
        beside: Mapping[int, Speedup] | None = None,
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
        faster = None if self.settings.get("check_mode") else speedup(record.rounds, self.plain)
        self.measured = Measured(faster, self._modelled(), beside or {})
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
        if self.costs is not None and (doubt := self.costs.doubt(range(2, min(self.k, self.longest) + 2))):
            found.append(doubt)
        if self.costs is None:
            found.append("No one-row pass is in the trace: no times. Record it beside a plain lane.")
        asked = self.settings.get("max_tokens")
        if isinstance(asked, int) and len(self.text.output) > asked:
            found.append("The run was continued; it is replayed as one.")
        if self.record.end not in FINISHED:
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
        policy = str(self.settings.get("policy") or "constant")
        if policy not in POLICIES:
            raise SpecviewError(
                f"the lane {name} has a length policy {policy!r}, which this specview does not know.",
                f"Policies: {', '.join(POLICIES)}.",
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
        if self.method.rides_passes:
            raise SpecviewError(
                f"{self.method.name} guesses in the target's own passes, and what other passes would have found is not in the "
                "trace.",
                "Choose another lane.",
            )
        if not any(round_.k for round_ in rounds):
            raise SpecviewError(f"the lane {name} drafted nothing.", "Choose another lane.")

    def _follows_text(self, facts: Mapping[str, Any]) -> bool:
        if not self.method.follows_text:
            return False
        if self.sampled and self.fixed:
            return False  # a draft draws by numbers of its own round: one that began elsewhere says other things
        vocabulary = self.settings.get("option_vocabulary", "auto")
        if not self.method.needs_draft_model or vocabulary == "same":
            return True
        if vocabulary != "auto":
            return False
        if any(round_.guesses for round_ in self.record.rounds):
            return True  # only a draft with the target's tokens tells its guesses
        sizes = {value for key, value in facts.items() if key in ("target_vocab_size", "draft_vocab_size")}
        return len(sizes) < 2

    def _costs(self, calibrated: Mapping[int, float] | None) -> MeasuredCosts | None:
        costs = measured_costs(self.record.rounds, self.plain, calibrated)
        if costs is None or costs.draft_start_s or not self.method.one_pass:
            return costs
        # One length was recorded, and it says what the pass takes.
        typical = median(round_.k for round_ in self.record.rounds if round_.k)
        return replace(costs, draft_start_s=costs.draft_s(int(typical)), draft_step_s=0.0)

    # -- alternatives --------------------------------------------------------------------------

    def recorded(self) -> Alternative:
        """The run as it was."""
        rounds = self.record.rounds
        seconds = sum(round_.seconds for round_ in rounds)
        times = None if self.measured.own is None else range_of(self.measured.own)
        if times is None and self.costs is not None and seconds > 0:
            times = Range.of(len(self.text.output) * self.costs.plain_round_s / seconds)
        return Alternative(
            name=f"recorded ({self._policy_label(self.policy, self._policy_options(), self.k)})",
            kind="recorded",
            policy=self.policy,
            k=self.k,
            tokens_per_pass=Range.of(len(self.text.output) / len(rounds)),
            rounds=Range.of(len(rounds)),
            drafted=sum(round_.k for round_ in rounds) / len(rounds),
            seconds=Range.of(seconds),
            speedup=times,
            how="measured",
            why="the run itself",
            options=self._policy_options(),
        )

    def length(self, k: int, tell: OnPosition = never) -> Alternative:
        """Every round drafts k tokens."""
        return self.policy_of("constant", {}, k, tell)

    def policy_of(self, name: str, options: Mapping[str, Any], k: int, tell: OnPosition = never) -> Alternative:
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

    def reaches(self, k: int, tell: OnPosition = never) -> tuple[list[Reach], list[Reach], list[Reach]]:
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
        return self.table is not None or (not self.method.learns_lengths and not self.method.combines)

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
        spent = Range(*(one / self.measured.limit for one in (took, *(seconds or (took, took)))))
        plain = None if self.costs is None else tokens * self.costs.plain_round_s
        times = None if plain is None or took <= 0 else Range(plain / spent.value, plain / spent.high, plain / spent.low)
        real = self._measured_as(name, values, k)
        if real is not None and plain is not None:
            why, times = f"{why}; its speedup is as measured", range_of(real)
            own = real is self.measured.own
            whole = sum(round_.seconds for round_ in self.record.rounds) if own else plain / times.value
            spent = Range(whole, whole * times.value / times.high, whole * times.value / times.low)
        return Alternative(
            name=self._policy_label(name, values, k),
            kind="length" if name == "constant" else "policy",
            policy=name,
            k=k,
            tokens_per_pass=Range(tokens / count, tokens / rounds.high, tokens / rounds.low),
            rounds=rounds,
            drafted=sum(round_.k for rounds_ in runs for round_ in rounds_) / sum(map(len, runs)),
            seconds=spent if plain is not None else None,
            speedup=times,
            how=how,
            why=why,
            options=dict(values),
            cost_words=self.cost_words_of({round_.rows for rounds_ in runs for round_ in rounds_}),
        )

    def _measured_as(self, name: str, values: Mapping[str, Any], k: int) -> Speedup | None:
        """What was measured of this very choice, by the lane itself or by one of its race that drafts alike."""
        if (name, k, dict(values)) == (self.policy, self.k, self._policy_options()):
            return self.measured.own
        return self.measured.beside.get(k) if name == "constant" and self.policy == "constant" else None

    def _modelled(self) -> float | None:
        """The speedup that the costs give the recorded rounds: what the replay of the recorded choice would say."""
        costs, rounds = self.costs, self.record.rounds
        if costs is None or costs.plain_round_s <= 0:
            return None
        seconds = sum(costs.draft_s(round_.k) + costs.pass_s(round_.rows) + costs.other_s for round_ in rounds)
        return len(self.text.output) * costs.plain_round_s / seconds if seconds > 0 else None

    def cost_words_of(self, rows: Iterable[int]) -> str:
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
            rounds = self._again(self.policy, self._policy_options(), self.k, never)
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


def _copies(method: MethodInfo, options: Mapping[str, Any]) -> bool:
    """Whether this method needs no model: it can be run again on the recorded ids."""
    members = method.members(options)
    if members:
        return all(name in METHODS and METHODS[name].copies for name in members)
    return method.copies
