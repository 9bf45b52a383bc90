"""`adaptive` and `auto` against every constant choice, on one recorded cost table and ledger (data/ledger.json).

The real loop, policies and drafters run over the recorded texts of all bundled workloads, on a clock that moves
by the recorded costs (see replay.py; tests/benchmarks/record_ledger.py made the record). The best constant
choice is picked in hindsight, per workload, among 5 methods and 12 lengths.

Run as a module it prints the figures: python -m tests.racing.test_adaptive_replay
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from statistics import mean

import numpy as np
import pytest

from specview.decoding.costs import Costs
from specview.drafting.auto import Auto
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.racing.oracle import accepts, fastest_schedule
from specview.settings.options import resolve
from tests.decoding.toy import FakeClock
from tests.racing.replay import RecordedDraft, Table, Text, Timed, ledger, replay

NAMES = ("prompt-lookup", "ngram-simple", "ngram-map-k", "suffix", "draft-model")
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 48)
LONGEST = 48
MEMBERS = tuple(METHODS["auto"].members({}))
TABLE, TEXTS = ledger()

Q4_1 = replace(  # llama.cpp on the same file, rows dear from the second on
    TABLE,
    passes={1: 0.0104, 2: 0.0189, 3: 0.0272, 4: 0.0296, 5: 0.0360, 9: 0.064, 17: 0.120, 33: 0.232, 65: 0.456},
)
GPU = replace(  # rows free up to 16
    TABLE, passes={1: 0.02, 16: 0.02, 32: 0.024, 64: 0.034, 65: 0.0342}, draft_step=0.003
)


def drafter(name: str, text: Text, table: Table, clock: FakeClock):
    """A method's drafter with its default options; the draft model's guesses are the recorded ones."""
    if name == "draft-model":
        return RecordedDraft(text, table, clock)
    method = METHODS[name]
    return Timed(method.make(DrafterContext(method.resolve({}), 4096, text.vocab)), table, clock)


def policy(name: str, costs: Costs):
    return POLICIES[name].make(resolve(POLICIES[name].options, {}, name), costs)


def plain_s(text: Text, table: Table) -> float:
    return len(text.output) * (table.pass_s(1) + table.other)


def run_s(text: Text, table: Table, name: str, length: int, policy_name: str = "constant") -> float:
    """Seconds that a method takes for a text."""
    clock, costs = FakeClock(), Costs(table.passes)
    replay(text, table, drafter(name, text, table, clock), policy(policy_name, costs), clock, length, costs.observe)
    return clock.now


def auto_s(text: Text, table: Table, costs: Costs | None = None) -> float:
    """Seconds that auto takes for a text."""
    clock, costs = FakeClock(), costs or Costs(table.passes)
    made = [drafter(name, text, table, clock) for name in MEMBERS]
    auto = Auto(made, [name != "draft-model" for name in MEMBERS], costs)
    replay(text, table, auto, policy("constant", costs), clock, LONGEST, costs.observe)
    return clock.now


TABLES = {"cpu": TABLE, "q4": Q4_1, "gpu": GPU}


class AllTables:
    """Every table at once: a constant length drafts the same whatever things cost, so one replay gives the seconds of each."""

    def __init__(self) -> None:
        for name in ("draft_step", "draft_start", "other", "copy"):
            setattr(self, name, np.array([getattr(table, name) for table in TABLES.values()]))

    def pass_s(self, rows: int) -> np.ndarray:
        return np.array([table.pass_s(rows) for table in TABLES.values()])


@cache
def constant_s(method: str, length: int, name: str) -> np.ndarray:
    """Seconds of a constant choice on a workload, by table; method "plain" is plain decoding."""
    text, tables, clock = TEXTS[name], AllTables(), FakeClock()
    if not length:
        return np.array([plain_s(text, table) for table in TABLES.values()])
    replay(text, tables, drafter(method, text, tables, clock), policy("constant", Costs(TABLE.passes)), clock, length)
    return clock.now


@cache
def constants(table_name: str, names: tuple[str, ...] = NAMES) -> dict[tuple[str, int], dict[str, float]]:
    """Seconds of every constant choice on every workload; ("plain", 0) is plain decoding."""
    place = list(TABLES).index(table_name)
    choices = [("plain", 0), *((method, length) for method in names for length in LENGTHS)]
    return {choice: {name: float(constant_s(*choice, name)[place]) for name in TEXTS} for choice in choices}


def shares(seconds: dict[str, float], choices: dict[tuple[str, int], dict[str, float]]) -> tuple[dict, float]:
    """Per workload the speed over the best choice's, and over all workloads together over the best single one's."""
    best = {name: min(times[name] for times in choices.values()) for name in TEXTS}
    single = min(sum(times.values()) for times in choices.values())
    return {name: best[name] / seconds[name] for name in TEXTS}, single / sum(seconds.values())


def of_method(method: str, table_name: str = "cpu") -> dict[tuple[str, int], dict[str, float]]:
    """The constant choices of one method, and plain."""
    return {key: times for key, times in constants(table_name).items() if key[0] in (method, "plain")}


def adaptive(method: str, table_name: str = "cpu") -> tuple[dict[str, float], float]:
    table = TABLES[table_name]
    seconds = {name: run_s(text, table, method, LONGEST, "adaptive") for name, text in TEXTS.items()}
    return shares(seconds, of_method(method, table_name))


def auto(table_name: str = "cpu") -> tuple[dict[str, float], float]:
    table = TABLES[table_name]
    return shares({name: auto_s(text, table) for name, text in TEXTS.items()}, constants(table_name))


def test_the_record_is_what_the_workloads_are():
    from specview.racing import workloads

    assert set(TEXTS) == set(workloads.list_workloads())
    for name in TEXTS:
        assert TEXTS[name].output
        assert len(TEXTS[name].ahead) == len(TEXTS[name].output)


@pytest.mark.parametrize(
    ("method", "together"),
    # What is copied by the two long-key methods and by suffix comes in few drafts, and those nearly always
    # hold: a constant length is then as good, and what adaptive spends on finding out is not earned back.
    [("prompt-lookup", 1.05), ("draft-model", 1.02), ("suffix", 0.97), ("ngram-simple", 0.96), ("ngram-map-k", 0.95)],
)
def test_adaptive_is_near_the_best_constant_length_of_its_method(method, together):
    by_workload, overall = adaptive(method)
    assert sum(share > 0.95 for share in by_workload.values()) >= 10, by_workload
    assert mean(by_workload.values()) > 0.93
    assert overall > together
    if method != "ngram-map-k":  # a key that failed once never drafts more again: which one does is luck
        assert min(by_workload.values()) > 0.88, by_workload


def test_auto_is_near_the_best_choice_of_all_and_ahead_of_every_single_one():
    by_workload, overall = auto()
    assert sum(share > 0.95 for share in by_workload.values()) >= 10, by_workload
    assert min(by_workload.values()) > 0.87, by_workload
    assert mean(by_workload.values()) > 1.03
    assert overall > 1.05


@pytest.mark.parametrize("table_name", ["q4", "gpu"])
def test_auto_holds_on_machines_it_was_not_tuned_on(table_name):
    by_workload, overall = shares(
        {name: auto_s(text, TABLES[table_name]) for name, text in TEXTS.items()},
        constants(table_name, ("prompt-lookup", "draft-model")),
    )
    assert min(by_workload.values()) > 0.85, by_workload
    assert overall > 0.97


@pytest.mark.parametrize("name", ["story", "chat", "code-edit"])
def test_where_rows_are_dear_and_plain_decoding_wins_auto_loses_little(name):
    """Retries of a model that could hardly pay had cost a story 8 in 100."""
    assert auto_s(TEXTS[name], Q4_1) < plain_s(TEXTS[name], Q4_1) * 1.04


def oracle_share(text: Text, table: Table) -> float:
    """Auto's speed over that of the schedule that always picks the right member and length."""
    costs = Costs(table.passes)
    seconds = auto_s(text, table, costs=costs)
    reaches = {
        name: accepts(
            drafter(name, text, table, FakeClock()), name != "draft-model", list(text.prompt), text.output, LONGEST
        )
        for name in MEMBERS
    }
    return fastest_schedule(reaches, len(text.output), LONGEST, costs)[1] / seconds


@pytest.mark.parametrize("name", list(TEXTS))
def test_nobody_beats_the_oracle(name):
    assert 0.3 < oracle_share(TEXTS[name], TABLE) < 1.01  # the costs were learned, so to a hundredth


# -- texts that no model wrote ---------------------------------------------------------------------------


def synthetic(name: str, output: list[int], guesses: float) -> Text:
    """A text whose draft model is right with this chance, and half sure when it is wrong."""
    draws = random.Random(11)
    ahead, sure = [], []
    for position in range(len(output)):
        row, told = [], []
        for place in range(8):
            at = position + place
            right = at < len(output) and draws.random() < guesses
            row.append(output[at] if right else 49)
            told.append(0.8 if right else 0.5)
        ahead.append(tuple(row))
        sure.append(tuple(told))
    return Text(name, (50, 51, 52), tuple(output), tuple(ahead), tuple(sure), 64)


DRAWS = random.Random(5)
RANDOM = synthetic("random", [DRAWS.randrange(40) for _ in range(200)], 0.02)
PERIODIC = synthetic("periodic", [i % 13 for i in range(200)], 0.6)
SWITCH = synthetic("switch", [DRAWS.randrange(40) for _ in range(100)] + [i % 13 for i in range(100)], 0.3)


@pytest.mark.parametrize("table", [TABLE, Q4_1, GPU], ids=["cpu", "q4", "gpu"])
@pytest.mark.parametrize("method", ["prompt-lookup", "draft-model"])
def test_on_a_text_without_pattern_adaptive_and_auto_cost_little(table, method):
    assert run_s(RANDOM, table, method, LONGEST, "adaptive") < plain_s(RANDOM, table) * 1.08
    assert auto_s(RANDOM, table) < plain_s(RANDOM, table) * 1.08


@pytest.mark.parametrize("table", [TABLE, Q4_1, GPU], ids=["cpu", "q4", "gpu"])
def test_on_a_text_that_repeats_they_are_near_the_best(table):
    best = min(run_s(PERIODIC, table, "prompt-lookup", length) for length in LENGTHS)
    assert run_s(PERIODIC, table, "prompt-lookup", LONGEST, "adaptive") < best * 1.15
    assert auto_s(PERIODIC, table) < best * 1.15


@pytest.mark.parametrize("table", [TABLE, Q4_1], ids=["cpu", "q4"])
def test_a_text_that_turns_from_one_to_the_other_is_followed(table):
    best = min(run_s(SWITCH, table, "prompt-lookup", length) for length in LENGTHS)
    assert run_s(SWITCH, table, "prompt-lookup", LONGEST, "adaptive") < best * 1.05
    assert auto_s(SWITCH, table) < best * 1.05


@pytest.mark.parametrize("method", ["prompt-lookup", "ngram-simple", "ngram-map-k", "suffix"])
@pytest.mark.parametrize("length", [4, LONGEST])
@pytest.mark.parametrize("text", ["story", "story-pt"])
def test_off_below_costs_a_draftless_lane_nothing_on_a_story(method, length, text):
    assert run_s(TEXTS[text], TABLE, method, length, "off-below") < plain_s(TEXTS[text], TABLE) / 0.97


def main() -> None:
    """Print every figure, where it misses too."""
    for table_name in TABLES:
        print(f"== {table_name}")
        plain = constants(table_name)["plain", 0]
        rows = [("auto", *auto(table_name), constants(table_name))]
        rows += [(f"adaptive {m}", *adaptive(m, table_name), of_method(m, table_name)) for m in NAMES]
        for label, by_workload, overall, choices in rows:
            misses = {name: round(share, 3) for name, share in by_workload.items() if share < 0.95}
            print(
                f"{label:24} mean {mean(by_workload.values()):.3f} worst {min(by_workload.values()):.3f} "
                f"together {overall:.3f} misses {misses}"
            )
            if label == "auto":
                for name, share in by_workload.items():
                    best = min(choices, key=lambda key, name=name: choices[key][name])
                    speed = plain[name] / choices[best][name]
                    distance = oracle_share(TEXTS[name], TABLES[table_name])
                    print(
                        f"    {name:14} best {best[0]} {best[1]}: {speed:.2f}x, auto {speed * share:.2f}x "
                        f"({share:.3f}), of the oracle {distance:.2f}"
                    )


if __name__ == "__main__":
    main()
