"""What-if replay of one k = 8 greedy trace against real runs of smaller k, in check mode: tokens per target pass.

    python -m tests.benchmarks.what_if                             # both engines, every workload: about 20 minutes
    python -m tests.benchmarks.what_if --engine llama.cpp --workload story --max-tokens 64

Prints per engine, workload, method and k what was predicted, what a real run gave, the difference and what the
prediction rests on; then per method the largest difference. Nothing is timed: it may run beside other programs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import median

from specview.drafting.lanes import checked_lane
from specview.errors import SpecviewError
from specview.lab.what_if_lane import Replay
from specview.racing import workloads
from specview.racing.pool import ModelPool
from specview.racing.race import Race
from specview.settings.events import Failed
from specview.settings.run import ENGINES, LaneSettings, RunSettings

LONGEST = 8
LENGTHS = (1, 2, 3, 4)
METHODS = ("draft-model", "prompt-lookup", "suffix", "ngram-simple", "eagle3", "early-exit")
POLICIES = (("heuristic", {}), ("confidence", {"threshold": 0.4}), ("off-below", {}))
HEADING = f"{'engine':13}{'workload':12}{'method':14}{'asked':16}{'predicted':>10}{'range':>14}{'real':>8}{'off':>8}  how"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="what-if against real runs")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--workload", action="append", help=f"default: {', '.join(workloads.KINDS)}")
    parser.add_argument("--method", action="append", help=f"default: {', '.join(METHODS)}")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--policies", action="store_true", help="length policies too")
    args = parser.parse_args()
    off: dict[tuple[str, str], list[float]] = {}
    print(HEADING)
    for engine in args.engine or ENGINES:
        pool = ModelPool()
        for name in args.workload or workloads.KINDS:
            prompt = workloads.load(name).prompts[0]
            for method in args.method or METHODS:
                settings = RunSettings(
                    engine=engine, check_mode=True, observe="light", baseline=False, max_tokens=args.max_tokens,
                    threads=args.threads, prompt=prompt.text, system=prompt.system,
                )  # fmt: skip
                found = compare(settings, method, pool, args.policies)
                off.setdefault((engine, method), []).extend(show(engine, name, method, found))
        pool.close()
    print("\nengine, method: asked, median and largest difference of tokens per target pass")
    for (engine, method), values in off.items():
        if values:
            print(f"{engine:13}{method:14}{len(values):4}  {median(values):7.2%} {max(values):7.2%}")


def compare(settings: RunSettings, method: str, pool: ModelPool, policies: bool) -> list[tuple]:  # type: ignore[type-arg]
    """(label, alternative, real tokens per pass) of every question."""
    asked = [(f"k {k}", LaneSettings(method, k=k)) for k in LENGTHS]
    if policies:
        asked += [(name, LaneSettings(method, k=LONGEST, policy=name, policy_options=options)) for name, options in POLICIES]
    try:
        record = run(settings, LaneSettings(method, k=LONGEST), pool)
        replayed = Replay(record)
    except SpecviewError as error:
        print(f"{settings.engine:13}{'':12}{method:14}{error}", flush=True)
        return []
    found = []
    for label, lane in asked:
        checked = checked_lane(lane, settings.sampling)
        predicted = replayed.policy_of(checked.policy, checked.policy_options, checked.k or LONGEST)
        real = run(settings, lane, pool)
        assert real.token_ids == record.token_ids, "check mode did not keep the text"
        found.append((label, predicted, len(real.token_ids) / len(real.rounds)))
    return found


def show(engine: str, workload: str, method: str, found: list[tuple]) -> list[float]:  # type: ignore[type-arg]
    """Print the rows; return the relative differences."""
    values = []
    for label, predicted, real in found:
        figure = predicted.tokens_per_pass
        span = "" if figure.known else f"{figure.low:.2f}-{figure.high:.2f}"
        values.append(abs(figure.value / real - 1))
        print(
            f"{engine:13}{workload:12}{method:14}{label:16}{figure.value:10.3f}{span:>14}{real:8.3f}{values[-1]:8.2%}"
            f"  {predicted.how}",
            flush=True,
        )
    return values


def run(settings: RunSettings, lane: LaneSettings, pool: ModelPool):  # type: ignore[no-untyped-def]
    """The record of one lane alone."""
    failures: list[str] = []
    race = Race(replace(settings, lanes=(lane,)), 0, pool)
    race.run(lambda event: failures.append(event.message) if isinstance(event, Failed) else None)
    race.close()
    record = race.records[0] if race.records else None
    if failures or record is None or record.error:
        raise SpecviewError((failures or [record.error if record is not None else "no run"])[0])
    return record


if __name__ == "__main__":
    main()
