"""A lane in a race against the same lane alone: decode tok/s, interleaved, medians.

    python -m tests.benchmarks.alone --repeats 5 --max-tokens 96

Prints the ratio (in the race / alone) of each lane; 1 means that racing costs nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import median

from specview.decoding.metrics import fold
from specview.racing.pool import ModelPool
from specview.racing.race import Race
from specview.racing.workloads import load as load_workload
from specview.settings.run import LaneSettings, RunSettings


def speeds(settings: RunSettings, pool: ModelPool) -> list[float]:
    """Decode tok/s of each lane of one race."""
    race = Race(settings, 0, pool)
    race.run(lambda event: None)
    race.close()
    rates = [fold(lane.table).decode_tokens_per_s for lane in race.lanes]
    assert all(rates), [record.error for record in race.records]
    return [rate for rate in rates if rate is not None]


class KeepingPool(ModelPool):
    """Keeps the draft loaded while lanes that need none run alone."""

    def keep_only(self, keys: set) -> None:  # type: ignore[type-arg]
        """Keep everything."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="a lane in a race against itself alone")
    parser.add_argument("--engine", choices=("transformers", "llama.cpp"), default="transformers")
    parser.add_argument("--workload", default="code-edit")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    prompt = load_workload(args.workload).prompts[0]
    lanes = (LaneSettings(), LaneSettings("draft-model"), LaneSettings("prompt-lookup"))
    race = RunSettings(
        engine=args.engine, prompt=prompt.text, system=prompt.system, max_tokens=args.max_tokens, lanes=lanes
    )
    alone = [replace(race, lanes=(lane,), baseline=False) for lane in lanes]
    pool = KeepingPool()
    together: list[list[float]] = []
    single: list[list[float]] = []
    for repeat in range(args.repeats + 1):
        rates = speeds(race, pool)
        own = [speeds(settings, pool)[0] for settings in alone]
        if repeat:  # the first round warms up
            together.append(rates)
            single.append(own)
    for index, lane in enumerate(lanes):
        ratios = [a[index] / b[index] for a, b in zip(together, single, strict=True)]
        print(
            f"{lane.method:14} in the race {median(r[index] for r in together):6.2f} tok/s, alone "
            f"{median(r[index] for r in single):6.2f}, ratio {median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
        )


if __name__ == "__main__":
    main()
