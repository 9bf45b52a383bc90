"""Lanes on the held-out prompts, by kind: acceptance, tokens per pass and speedup over the plain lane of each race.

    python -m tests.benchmarks.heldout --lane eagle3 --lane "eagle3,tree=dynamic" --kinds chat,explain,story
    python -m tests.benchmarks.heldout --engine llama.cpp --lane eagle3,k=1 --json out.json

Each prompt is one race. alpha and tokens per pass are over all rounds of a kind; the speedup is the median over its
prompts, with the least and the greatest. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from specview.racing.compare import compare
from specview.racing.pool import ModelPool
from specview.settings.run import BUNDLED, LaneSettings, RunSettings
from specview.training.prompts import SETS, held_out
from tests.benchmarks.methods import lane_of


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--set", default="fresh", choices=SETS)
    parser.add_argument("--kinds", help="some of the set's kinds, with commas between (default: all)")
    parser.add_argument("--each", type=int, default=99, help="prompts of each kind, at most")
    parser.add_argument("--lane", action="append", required=True)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    specs = ["plain", *arguments.lane]
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    chosen = arguments.kinds.split(",") if arguments.kinds else None
    taken: dict[str, int] = defaultdict(int)
    pool = ModelPool()
    rows = []
    for prompt in held_out(arguments.set):
        taken[prompt.kind] += 1
        if (chosen and prompt.kind not in chosen) or taken[prompt.kind] > arguments.each:
            continue
        settings = RunSettings(
            engine=arguments.engine, target=arguments.target, prompt=prompt.text, max_tokens=arguments.max_tokens,
            observe="off", lanes=(LaneSettings(), *(lane_of(spec) for spec in arguments.lane)),
        )  # fmt: skip
        result = compare(settings, arguments.repeats, pool)
        for spec, lane in zip(specs, result.lanes, strict=True):
            if lane.error:
                raise SystemExit(f"{spec}: {lane.error}")
            for kind in (prompt.kind, "all"):
                found[kind, spec].append(lane)
            m = lane.metrics
            rows.append(
                {
                    "kind": prompt.kind, "lane": spec, "speedup": lane.speedup and lane.speedup.value, "accepted": m.accepted,
                    "judged": m.judged, "emitted": m.emitted, "rounds": m.rounds, "tokens_per_s": m.decode_tokens_per_s,
                    "draft_share": m.draft_share, "verify_cost": m.verify_cost, "draft_cost": m.draft_cost,
                    "equal": None if lane.equality is None else lane.equality.equal, "busy": result.busy,
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    pool.close()
    kinds = list(dict.fromkeys(kind for kind, _ in found))
    print("\nspeedup, median over prompts [least, greatest] (tokens per pass, alpha)\n")
    print(f"| lane | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for spec in specs[1:]:
        cells = []
        for kind in kinds:
            lanes = found[kind, spec]
            ratios = sorted(lane.speedup.value for lane in lanes if lane.speedup is not None)
            judged = sum(lane.metrics.judged for lane in lanes)
            alpha = sum(lane.metrics.accepted for lane in lanes) / judged if judged else float("nan")
            per_pass = sum(lane.metrics.emitted for lane in lanes) / sum(lane.metrics.rounds for lane in lanes)
            cells.append(
                f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] ({per_pass:.2f}, {alpha:.3f})"
            )
        print(f"| {spec} | {' | '.join(cells)} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), "utf-8")


if __name__ == "__main__":
    main()
