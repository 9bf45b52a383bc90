"""A recorded lane that can be asked what other draft lengths and policies would have cost.

Where the text does not depend on what is drafted (greedy decoding, `match`) a round's outcome follows from what the
drafter would have guessed at each place, and that from the trace (what_if_guesses.py) or, of drafters without a
model, from running the drafter again on the recorded ids. Rounds are made by the real loop, rule and length
policies (what_if_replay.py) and timed by the run's own measured costs (measured.py). `rejection` above temperature 0
writes another text when other lengths are drafted: there the recorded text is taken as it is, and the figures are
models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, LengthPolicy
from specview.decoding.ledger import Round, RunRecord, finished
from specview.decoding.sampling import SamplingParams
from specview.decoding.speedup import Speedup, speedup
from specview.decoding.verification import RULES, is_lossy
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.lab.measured import Measured, MeasuredCosts, measured_costs
from specview.lab.what_if_figures import Alternative, How, Range, policy_words, range_of
from specview.lab.what_if_guesses import Answer, GuessTable, RecordedDrafter, length_bounds, table_of
from specview.lab.what_if_replay import OnPosition, never, replay, text_of
from specview.racing.oracle import Reach, accepts
from specview.settings.options import resolve
from specview.settings.run import MAX_K

SEEDS = 8
"""Replays with other answers to what the trace leaves open; their mean is the value."""

_BY_TIME = "it decides by measured times, which are never twice the same"
_ANOTHER_TEXT = "as if other drafts had led to the same text"


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
        self.record, self.name, self.settings = record, record.name, record.settings
        method = str(self.settings.get("method") or "")
        if method not in METHODS:
            raise SpecviewError(f"the lane's method {method!r} is not known to this specview.", "Use a newer one.")
        self.method = METHODS[method]
        self.text = text_of(record)
        self.rule = str(self.settings.get("rule") or "greedy")
        self.sampled = float(self.settings.get("temperature") or 0.0) > 0
        self.policy = str(self.settings.get("policy") or "constant")
        runs_again = _copies(self.method, self._options())
        self._check(runs_again)
        self.k = int(self.settings.get("k") or self._longest_draft)
        self.costs = self._costs(plain, calibrated)
        faster = None if self.settings.get("check_mode") else speedup(record.rounds, plain)
        self.measured = Measured(faster, self._modelled(), beside or {})
        self.table: GuessTable | None = None
        if not runs_again:
            self.table = table_of(
                self.text, record.rounds, follows_text=self._follows_text(facts or {}), fixed=self.fixed, k=self.k,
                constant=self.policy == "constant",
            )  # fmt: skip
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
    def lengths_up_to(self) -> int:
        """The longest draft of the run, or of its settings, as far as it can be asked about."""
        return min(max(self.k, self._longest_draft), self.longest)

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
        if not finished(self.record.end):
            found.append("The run was cut short; the replay ends where it did.")
        return tuple(found)

    @property
    def _longest_draft(self) -> int:
        return max(round_.k for round_ in self.record.rounds)

    def _options(self) -> dict[str, Any]:
        return {
            key.removeprefix("option_"): value for key, value in self.settings.items() if key.startswith("option_")
        }

    def _check(self, runs_again: bool) -> None:
        """Refuse a lane that cannot be replayed."""
        name, method, rounds = self.name, self.method, self.record.rounds
        missing = "and what other passes would have found is not in the trace"
        refused = (
            (not method.drafts, f"the lane {name} is plain decoding: it drafts nothing.", "Choose another lane."),
            (not rounds or not self.text.output, f"the lane {name} has no rounds.", "Record a run that gets further."),
            (self.sampled and (is_lossy(self.rule) or self.rule not in RULES),
             f"the rule {self.rule} is lossy: with other drafts it writes another text, which is not in the trace.",
             "Record a greedy run, or one with rule match."),
            (self.policy not in POLICIES,
             f"the lane {name} has a length policy {self.policy!r}, which this specview does not know.",
             f"Policies: {', '.join(POLICIES)}."),
            (not runs_again and method.combines,
             f"{method.name} has a member that drafts with a model, and a trace has only the drafts that were chosen.",
             "Record the member in a lane of its own."),
            (not runs_again and any(round_.parents is not None or round_.riders for round_ in rounds),
             f"the lane {name} drafts trees: one of another depth has other branches, and their guesses are not in the trace.",
             "Record the method with a chain, or a method without a model."),
            (not runs_again and method.rides_passes, f"{method.name} guesses in the target's own passes, {missing}.",
             "Choose another lane."),
            (not runs_again and not any(round_.k for round_ in rounds), f"the lane {name} drafted nothing.",
             "Choose another lane."),
        )  # fmt: skip
        for bad, cause, mend in refused:
            if bad:
                raise SpecviewError(cause, mend)

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

    def _costs(self, plain: Sequence[Round], calibrated: Mapping[int, float] | None) -> MeasuredCosts | None:
        costs = measured_costs(self.record.rounds, plain, calibrated)
        if costs is None or costs.draft_start_s or not self.method.one_pass:
            return costs
        # One length was recorded, and it says what the pass takes.
        typical = median(round_.k for round_ in self.record.rounds if round_.k)
        return replace(costs, draft_start_s=costs.draft_s(int(typical)), draft_step_s=0.0)

    def _modelled(self) -> float | None:
        """The speedup that the costs give the recorded rounds: what the replay of the recorded choice would say."""
        costs, rounds = self.costs, self.record.rounds
        if costs is None or costs.plain_round_s <= 0:
            return None
        seconds = sum(costs.draft_s(round_.k) + costs.pass_s(round_.rows) + costs.other_s for round_ in rounds)
        return len(self.text.output) * costs.plain_round_s / seconds if seconds > 0 else None

    # -- alternatives --------------------------------------------------------------------------

    def recorded(self) -> Alternative:
        """The run as it was."""
        rounds = self.record.rounds
        seconds = sum(round_.seconds for round_ in rounds)
        times = None if self.measured.own is None else range_of(self.measured.own)
        if times is None and self.costs is not None and seconds > 0:
            times = Range.of(len(self.text.output) * self.costs.plain_round_s / seconds)
        options = self._policy_options()
        return Alternative(
            name=f"recorded ({policy_words(self.policy, options, self.k)})",
            kind="recorded",
            policy=self.policy,
            k=self.k,
            tokens_per_pass=Range.of(len(self.text.output) / len(rounds)),
            rounds=Range.of(len(rounds)),
            drafted=fmean(round_.k for round_ in rounds),
            seconds=Range.of(seconds),
            speedup=times,
            how="measured",
            why="the run itself",
            options=options,
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
        how, why = self._again_words(name)
        return self._alternative(name, values, k, [self._again(name, values, k, tell)], how, why)

    def reaches(self, k: int, tell: OnPosition = never) -> tuple[list[Reach], list[Reach], list[Reach]]:
        """Per output place how many tokens a draft has at most and how many hold: at least, likely, at most."""
        text, table = self.text, self.table
        total = len(text.output)
        if table is None:
            drafter = self._drafter(self._learner())
            found = accepts(drafter, True, list(text.prompt), text.output, k, lambda done: tell(done, total))
            return found, found, found
        least: list[Reach] = []
        likely: list[Reach] = []
        most: list[Reach] = []
        guesser = RecordedDrafter(table)
        context = list(text.prompt)
        for start, token in enumerate(text.output):
            tell(start, total)
            drafted = table.most(start, min(k, total - start - 1))
            low, high = table.reach(start, drafted)
            held = low
            if low != high:
                draft = guesser.propose(context, drafted)
                agree = [ours == theirs for ours, theirs in zip(draft.tokens, text.output[start:], strict=False)]
                held = agree.index(False) if False in agree else len(agree)
            for reach, holds in ((least, low), (likely, held), (most, high)):
                reach.append((drafted, holds))
            context.append(token)
        return least, likely, most

    @property
    def reaches_are_exact(self) -> bool:
        """Whether what a copying drafter says at a place does not depend on the rounds before."""
        return self.table is not None or (not self.method.learns_lengths and not self.method.combines)

    def _by_table(
        self, table: GuessTable, name: str, values: Mapping[str, Any], k: int, tell: OnPosition
    ) -> Alternative:
        def run(answer: Answer, seed: int = 0) -> tuple[list[Round], RecordedDrafter]:
            drafter, learned = RecordedDrafter(table, answer, seed, f"{name} of {self.method.name}"), self._learner()
            return replay(self.text, drafter, _policy(name, values, k, learned), self.costs, learned, tell), drafter

        first, asked = run("middle")
        rounds: tuple[float, float] | None = None
        seconds: tuple[float, float] | None = None
        open_ = bool(asked.doubts or asked.unsure)
        if name == "constant":
            rounds, seconds = length_bounds(table, k, self.costs)
            open_ = rounds[0] != rounds[1] or (seconds is not None and seconds[1] - seconds[0] > 1e-9 * seconds[1])
        runs = [first]
        if open_:
            runs += [run("middle", seed)[0] for seed in range(1, SEEDS)]
            if rounds is None:
                ends = [run("low")[0], run("high")[0], *runs]
                taken = [sum(round_.seconds for round_ in one) for one in ends]
                rounds = min(map(len, ends)), max(map(len, ends))
                seconds = (min(taken), max(taken)) if self.costs is not None else None
        how, why = self._table_words(table, name, open_, asked)
        return self._alternative(name, values, k, runs, how, why, rounds if open_ else None, seconds if open_ else None)

    def _table_words(self, table: GuessTable, name: str, open_: bool, asked: RecordedDrafter) -> tuple[How, str]:
        if not self.fixed:
            return "modelled", _ANOTHER_TEXT
        if self._by_time(name):
            return "modelled", _BY_TIME
        if not open_:
            return "exact", "every guess that it needs is in the trace"
        if name != "constant":
            what = f"{asked.doubts} guesses" if asked.doubts else f"the drafter's confidence in {asked.unsure} tokens"
            return "modelled", f"the trace lacks {what}: answered by the drafter's record, and both ways for the range"
        if table.follows_text:
            return "bounds", f"the trace lacks the drafter's guess at {asked.doubts} of {len(self.text.output)} places"
        return "bounds", (
            f"{asked.doubts} guesses would have come from drafts that began elsewhere, where this drafter says other things; "
            "the value takes them as recorded at other depths"
        )

    def _again_words(self, name: str) -> tuple[How, str]:
        why = "the drafter was run again on the recorded ids"
        differing, compared = self._self_check()
        if not self.fixed:
            return "modelled", f"{why}, {_ANOTHER_TEXT}"
        if self._by_time(name):
            return "modelled", f"{why}; {_BY_TIME}"
        if not differing:
            return "exact", why
        learned = ": it had learned from earlier runs" if self.settings.get("option_tie") else ""
        return "modelled", f"{why}, where it drafted otherwise than recorded in {differing} of {compared} rounds{learned}"

    def _alternative(
        self,
        name: str,
        values: Mapping[str, Any],
        k: int,
        runs: Sequence[Sequence[Round]],
        how: How,
        why: str,
        bounds: tuple[float, float] | None = None,
        seconds: tuple[float, float] | None = None,
    ) -> Alternative:
        tokens = len(self.text.output)
        every = [round_ for rounds in runs for round_ in rounds]
        count = len(every) / len(runs)
        rounds = Range(count, *(bounds or (count, count)))
        took = sum(round_.seconds for round_ in every) / len(runs)
        spent = Range(*(one / self.measured.limit for one in (took, *(seconds or (took, took)))))
        plain = None if self.costs is None else tokens * self.costs.plain_round_s
        times = None if plain is None or took <= 0 else spent.under(plain)
        real = self._measured_as(name, values, k)
        if real is not None and plain is not None:
            why, times = f"{why}; its speedup is as measured", range_of(real)
            own = real is self.measured.own
            whole = sum(round_.seconds for round_ in self.record.rounds) if own else plain / times.value
            spent = times.under(whole * times.value)
        return Alternative(
            name=policy_words(name, values, k),
            kind="length" if name == "constant" else "policy",
            policy=name,
            k=k,
            tokens_per_pass=rounds.under(tokens),
            rounds=rounds,
            drafted=fmean(round_.k for round_ in every),
            seconds=spent if plain is not None else None,
            speedup=times,
            how=how,
            why=why,
            options=dict(values),
            cost_words=self.cost_words_of({round_.rows for round_ in every}),
        )

    def _measured_as(self, name: str, values: Mapping[str, Any], k: int) -> Speedup | None:
        """What was measured of this very choice, by the lane itself or by one of its race that drafts alike."""
        if (name, k, dict(values)) == (self.policy, self.k, self._policy_options()):
            return self.measured.own
        return self.measured.beside.get(k) if name == "constant" and self.policy == "constant" else None

    def cost_words_of(self, rows: Iterable[int]) -> str:
        """Where the passes' times come from, the weakest first."""
        if self.costs is None:
            return ""
        sources = {self.costs.source(count) for count in rows}
        return next(one for one in ("extrapolated", "interpolated", "calibrated", "measured") if one in sources)

    # -- drafters and policies -----------------------------------------------------------------

    def _learner(self) -> Costs:
        """What policies and drafters choose by: it learns from the replayed rounds."""
        return Costs(self.costs.passes if self.costs is not None else None)

    def _drafter(self, learned: Costs) -> Drafter:
        """The lane's drafter without a model, anew, with its prompt."""
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
        return drafter

    def _again(self, name: str, values: Mapping[str, Any], k: int, tell: OnPosition) -> list[Round]:
        learned = self._learner()
        return replay(self.text, self._drafter(learned), _policy(name, values, k, learned), self.costs, learned, tell)

    def _self_check(self) -> tuple[int, int]:
        """Rounds in which the drafter, run again as it was recorded, drafts otherwise, and rounds in all."""
        if self._same is None:
            again = self._again(self.policy, self._policy_options(), self.k, never)
            ours, theirs = ([[token.id for token in one.drafted] for one in rounds] for rounds in (again, self.record.rounds))
            differing = sum(one != other for one, other in zip(ours, theirs, strict=False))
            self._same = differing + abs(len(ours) - len(theirs)), len(theirs)
        return self._same

    def _by_time(self, policy: str) -> bool:
        return POLICIES[policy].needs_costs or self.method.needs_costs

    def _policy_options(self) -> dict[str, Any]:
        info = POLICIES[self.policy]
        given = {option.name: self.settings.get(f"policy_{option.name}") for option in info.options}
        return dict(resolve(info.options, {name: value for name, value in given.items() if value is not None}, info.name))


def _policy(name: str, values: Mapping[str, Any], k: int, learned: Costs) -> LengthPolicy:
    policy = POLICIES[name].make(values, learned)
    policy.start(k)
    return policy


def _copies(method: MethodInfo, options: Mapping[str, Any]) -> bool:
    """Whether this method needs no model: it can be run again on the recorded ids."""
    members = method.members(options)
    if members:
        return all(name in METHODS and METHODS[name].copies for name in members)
    return method.copies
