"""Tokens per pass and speedup of every method on every workload, in one engine: medians of interleaved repeats.

    python -m tests.benchmarks.methods --engine transformers --repeats 3 --max-tokens 96 --json out.json
    python -m tests.benchmarks.methods --engine llama.cpp --target /tmp/q4_0.gguf --lane "ngram-simple,k=2"

Lanes race in groups of four beside plain decoding, so every speedup is against a plain lane of its own
race. Prints Markdown: a row per method, a column per workload, "speedup (tokens per pass)"; beneath,
the share of distinct 4-grams of each workload's plain output, which tells where a looping text flatters
drafters that copy, and where a lane's output differs from plain's.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specview.commands.arguments import parse_lane
from specview.decoding.sampling import SamplingParams
from specview.drafting.policies import POLICIES
from specview.racing import workloads
from specview.racing.compare import compare
from specview.racing.pool import ModelPool
from specview.settings.run import MAX_LANES, LaneSettings, RunSettings

LANES = (
    "draft-model",
    "prompt-lookup,k=4",
    "suffix",
    "lookahead",
    "ngram-simple,size_n=4,k=8",
    "ngram-map-k,size_n=4,k=8",
    "ngram-map-k4v,size_n=4,k=8",
    "ngram-mod,preset=text",
    "prompt-lookup,policy=adaptive",
    "suffix,policy=adaptive",
    "cascade",
    "auto",
    "prompt-lookup,policy=off-below",
    "suffix,policy=off-below",
    "ngram-simple,size_n=4,policy=off-below",
    "lookahead,policy=off-below",
    "early-exit",
)


def lane_of(spec: str) -> LaneSettings:
    """Make a lane of a "METHOD,key=value,..." spec, named by it."""
    method, keys = parse_lane(spec)
    policy = keys.pop("policy", "constant")
    policys = {option.name for option in POLICIES[policy].options}
    return LaneSettings(
        method=method,
        name=spec,
        k=int(keys.pop("k")) if "k" in keys else None,
        rule=keys.pop("rule", "auto"),
        policy=policy,
        policy_options={key: keys.pop(key) for key in list(keys) if key in policys},
        options=keys,
    )


def measure(
    engine: str, target: str, names: Sequence[str], specs: Sequence[str], max_tokens: int, repeats: int, pool: ModelPool
) -> list[dict[str, Any]]:
    """One row per workload and lane."""
    rows = []
    for name in names:
        workload = workloads.load(name)
        for begin in range(0, len(specs), MAX_LANES - 1):
            group = specs[begin : begin + MAX_LANES - 1]
            settings = RunSettings(
                engine=engine,
                target=target,
                prompt=workload.prompt,
                system=workload.system,
                workload=name,
                sampling=SamplingParams(),
                max_tokens=max_tokens,
                observe="off",
                lanes=(LaneSettings(), *(lane_of(spec) for spec in group)),
            )
            result = compare(settings, repeats, pool)
            for spec, lane in zip(("plain", *group), result.lanes, strict=True):
                if spec == "plain" and begin:
                    continue
                equality = lane.equality
                rows.append(
                    {
                        "workload": name,
                        "lane": spec,
                        "speedup": 1.0 if spec == "plain" else lane.speedup and lane.speedup.value,
                        "spread": lane.speedup and lane.speedup.spread,
                        "tokens_per_target_pass": lane.metrics.tokens_per_target_pass,
                        "acceptance_rate": lane.metrics.acceptance_rate,
                        "draft_acceptance": lane.metrics.draft_acceptance,
                        "mean_k": lane.metrics.mean_k,
                        "draft_share": lane.metrics.draft_share,
                        "distinct_4grams": lane.metrics.distinct_4grams,
                        "decode_tokens_per_s": lane.metrics.decode_tokens_per_s,
                        "by_drafter": lane.metrics.by_drafter,
                        "oracle_share": lane.metrics.oracle_share,
                        "emitted": lane.metrics.emitted,
                        "first_difference": None if equality is None or equality.equal else equality.first_difference,
                        "busy": result.busy,
                        "error": lane.error,
                    }
                )
                print(json.dumps({key: rows[-1][key] for key in ("workload", "lane", "speedup", "error")}), flush=True)
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of rows."""
    names = list(dict.fromkeys(row["workload"] for row in rows))
    by_lane: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_lane.setdefault(row["lane"], {})[row["workload"]] = row
    lines = [f"| lane | {' | '.join(names)} | all |", f"|---|{'---:|' * (len(names) + 1)}"]
    for lane, found in by_lane.items():
        cells, ratios = [], []
        for name in names:
            row = found.get(name)
            if row is None or row["speedup"] is None or row["error"]:
                cells.append("-")
                continue
            ratios.append(row["speedup"])
            cells.append(f"{row['speedup']:.2f} ({row['tokens_per_target_pass']:.2f})")
        overall = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        lines.append(f"| {lane} | {' | '.join(cells)} | {overall:.2f} |")
    plain = by_lane["plain"]
    distinct = [plain[name]["distinct_4grams"] for name in names]
    shares = " | ".join("-" if share is None else f"{share:.2f}" for share in distinct)
    lines.append(f"| *distinct 4-grams of plain's output* | {shares} | |")
    notes = [
        f"{row['workload']}, {row['lane']}: differs from plain at token {row['first_difference']}"
        for row in rows
        if row["first_difference"] is not None
    ]
    notes += [f"{row['workload']}, {row['lane']}: {row['error']}" for row in rows if row["error"]]
    return "\n".join([*lines, "", *notes])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--target", default="bundled")
    parser.add_argument("--workload", action="append", help="default: all twelve")
    parser.add_argument("--lane", action="append")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.workload or [kind + twin for kind in workloads.KINDS for twin in ("", "-pt")]
    pool = ModelPool()
    try:
        rows = measure(
            arguments.engine,
            arguments.target,
            names,
            arguments.lane or LANES,
            arguments.max_tokens,
            arguments.repeats,
            pool,
        )
    finally:
        pool.close()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(markdown(rows))


if __name__ == "__main__":
    main()
