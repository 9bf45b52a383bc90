"""Predicted against measured speedup for every k in 1 to 8: what c and v(k), known before the run, are worth.

    python -m tests.benchmarks.predictions --json predictions.json        # about ten minutes on two quiet cores
    python -m tests.benchmarks.predictions --quick                        # two workloads, few tokens: does it work?
    python -m tests.benchmarks.predictions --engine llama.cpp --json predictions.json --again
    OMP_NUM_THREADS=1 python -m tests.benchmarks.predictions --cpu-time   # one thread, where others load the machine

--cpu-time counts the process's own processor time in place of the wall clock: of one thread that is what the clock
would show on a quiet machine, but for caches and memory that are shared.

For each engine the target's passes of 1 to 9 rows are calibrated first. For each drafter and workload, runs on OTHER
prompts of the workload (k 8 on one, k 2 on the next) give alpha and the draft's cost; nothing of the prompt that is
then raced goes into the prediction. alpha for a length k is accepted / judged over the first k positions of those
drafts. The race of the workload's first prompt is plain decoding beside k = 1 to 4, then beside k = 5 to 8. Predictions:

    c alone      (1 - alpha^(k+1)) / (1 - alpha) / (k c + 1)
    c and v(k)   the same over k c + v(k)
    all costs    tokens x plain round / (draft + pass + rest of a round), from the same calibrations

Prints a Markdown table: the median over workloads of each prediction's error, |predicted / measured - 1|. The JSON file
is written after every cell (engine, drafter, workload); what is in it is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specview.decoding import theory
from specview.decoding.ledger import Round
from specview.files.atomic import OutputFile
from specview.lab.calibrate import calibrate_passes
from specview.lab.measured import MeasuredCosts, measured_costs
from specview.racing import workloads
from specview.racing.compare import CompareResult, compare
from specview.racing.pool import ModelPool
from specview.racing.resolve import checked_run
from specview.settings.run import ENGINES, LaneSettings, RunSettings

LENGTHS = range(1, 9)
DRAFTERS = ("draft-model", "eagle3")
BOUND = 0.15
PREDICTIONS = {"c_alone": "c alone", "c_and_v": "c and v(k)", "all_costs": "all costs"}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=ENGINES, help="repeatable (default: both)")
    parser.add_argument("--drafter", action="append", choices=DRAFTERS, help="repeatable (default: both)")
    parser.add_argument("--workload", action="append", help="repeatable (default: the six English ones)")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="one thread, timed by its processor time")
    parser.add_argument("--json", type=Path, help="results; cells that it holds are not run again")
    parser.add_argument("--again", action="store_true", help="run the chosen cells again")
    parser.add_argument("--quick", action="store_true", help="two workloads, 24 tokens")
    arguments = parser.parse_args()
    chosen = arguments.workload or list(workloads.KINDS)[: 2 if arguments.quick else None]
    tokens = 24 if arguments.quick else arguments.max_tokens
    found = json.loads(arguments.json.read_text("utf-8")) if arguments.json and arguments.json.exists() else {"cells": []}
    cells: list[dict[str, Any]] = found["cells"]
    threads = 1 if arguments.cpu_time else arguments.threads
    clock, timed = (time.process_time, "cpu") if arguments.cpu_time else (time.perf_counter, "wall")
    engines, drafters = arguments.engine or ENGINES, arguments.drafter or DRAFTERS
    begin = time.monotonic()
    for engine in engines:
        pool = ModelPool()
        try:
            for drafter in drafters:
                for workload in chosen:
                    name = {"engine": engine, "drafter": drafter, "workload": workload, "max_tokens": tokens, "clock": timed}
                    old = [cell for cell in cells if name.items() <= cell.items()]
                    if old and not arguments.again:
                        continue
                    cell = {**name, **run_cell(pool, engine, drafter, workload, tokens, threads, clock)}
                    cells[:] = [one for one in cells if one not in old] + [cell]
                    if arguments.json:
                        with OutputFile(arguments.json, "results") as file:
                            file.write(json.dumps({"cells": cells}, indent=1) + "\n")
                    print(f"{time.monotonic() - begin:5.0f} s  {engine} {drafter} {workload}", file=sys.stderr, flush=True)
        finally:
            pool.close()
    asked = [
        cell for cell in cells
        if cell["engine"] in engines and cell["drafter"] in drafters and cell["workload"] in chosen
        and cell["max_tokens"] == tokens and cell["clock"] == timed
    ]  # fmt: skip
    print(report(asked))


def run_cell(
    pool: ModelPool, engine: str, drafter: str, workload: str, tokens: int, threads: int | None,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Calibrate, measure alpha and c on other prompts, race the first prompt; one row a k."""
    prompts = workloads.load(workload).prompts
    base = RunSettings(
        engine=engine, threads=threads, prompt=prompts[0].text, system=prompts[0].system, max_tokens=tokens,
        observe="off", workload=None,
    )  # fmt: skip
    passes = calibrate_passes(pool, checked_run(base), clock=clock)
    before: list[list[Round]] = []
    for k, prompt in zip((max(LENGTHS), 2), (prompts[1 % len(prompts)], prompts[2 % len(prompts)]), strict=True):
        settings = RunSettings(
            engine=engine, threads=threads, prompt=prompt.text, system=prompt.system, max_tokens=tokens, observe="off",
            lanes=(LaneSettings(drafter, k=k),), baseline=False,
        )  # fmt: skip
        before.append(lanes_of(compare(settings, 1, pool, clock=clock, oracles=False))[0].record.rounds)
    rounds = [round_ for part in before for round_ in part]
    costs = measured_costs(rounds, (), passes)
    assert costs is not None
    rows: list[dict[str, Any]] = []
    busy = ""
    for part in (LENGTHS[:4], LENGTHS[4:]):
        settings = RunSettings(
            engine=engine, threads=threads, prompt=prompts[0].text, system=prompts[0].system, max_tokens=tokens, observe="off",
            lanes=(LaneSettings(), *(LaneSettings(drafter, f"k={k}", k=k) for k in part)),
        )  # fmt: skip
        result = compare(settings, 1, pool, clock=clock, oracles=False)
        busy = busy or result.busy
        for k, lane in zip(part, lanes_of(result)[1:], strict=True):
            assert lane.speedup is not None
            rows.append({
                "k": k, "measured": lane.speedup.value, **predict(rounds, costs, k),
                "alpha_here": lane.metrics.acceptance_rate, "c_here": lane.metrics.draft_cost,
                "v_here": lane.metrics.verify_cost, "tokens_per_target_pass": lane.metrics.tokens_per_target_pass,
            })  # fmt: skip
    return {"passes_s": passes, "rows": rows, "busy": busy}


def lanes_of(result: CompareResult) -> list[Any]:
    """A race's lanes; ends the program where one failed."""
    for lane in result.lanes:
        if lane.error:
            raise SystemExit(f"{lane.record.name}: {lane.error}")
    return result.lanes


def alpha_up_to(rounds: Sequence[Round], k: int) -> float:
    """Accepted / judged over the first k positions of the drafts: what drafts of k would have had."""
    judged = sum(token.verdict != "ignored" for round_ in rounds for token in round_.drafted[:k])
    accepted = sum(token.verdict == "accepted" for round_ in rounds for token in round_.drafted[:k])
    return accepted / judged if judged else 0.0


def predict(rounds: Sequence[Round], costs: MeasuredCosts, k: int) -> dict[str, float]:
    """The three predictions for k, and what they rest on."""
    alpha, c, v = alpha_up_to(rounds, k), costs.c_at(k), costs.v(k)
    tokens = theory.expected_tokens(alpha, k)
    return {
        "alpha": alpha, "c": c, "v": v, "c_alone": theory.speedup(alpha, k, c), "c_and_v": theory.speedup(alpha, k, c, v),
        "all_costs": costs.speedup(tokens, k),
    }  # fmt: skip


def report(cells: Sequence[dict[str, Any]]) -> str:
    """The tables: by engine, drafter and k the medians over workloads, and beneath what holds."""
    lines = []
    groups = sorted({(cell["engine"], cell["drafter"]) for cell in cells})
    for engine, drafter in groups:
        own = [cell for cell in cells if (cell["engine"], cell["drafter"]) == (engine, drafter)]
        lines += [
            f"\n{engine}, {drafter}: medians over {len(own)} workloads, {own[0]['max_tokens']} tokens, "
            f"{'processor time of one thread' if own[0]['clock'] == 'cpu' else 'wall clock'}\n",
            "| k | measured | " + " | ".join(f"{title} | error" for title in PREDICTIONS.values()) + " | within 15% |",
            "|---:" * (3 + 2 * len(PREDICTIONS)) + "|",
        ]
        for k in LENGTHS:
            rows = [row for cell in own for row in cell["rows"] if row["k"] == k]
            if not rows:
                continue
            errors = {name: statistics.median(abs(row[name] / row["measured"] - 1) for row in rows) for name in PREDICTIONS}
            cells_ = [str(k), f"{statistics.median(row['measured'] for row in rows):.2f}"]
            for name in PREDICTIONS:
                cells_ += [f"{statistics.median(row[name] for row in rows):.2f}", f"{100 * errors[name]:.0f}%"]
            lines.append(f"| {' | '.join(cells_)} | {'yes' if errors['c_and_v'] <= BOUND else 'no'} |")
        every = [row for cell in own for row in cell["rows"]]
        worst = {name: statistics.median(abs(row[name] / row["measured"] - 1) for row in every) for name in PREDICTIONS}
        lines.append("\nmedian error over all k and workloads: " + ", ".join(
            f"{title} {100 * worst[name]:.0f}%" for name, title in PREDICTIONS.items()))  # fmt: skip
        lines += sorted({f"({cell['busy']})" for cell in own if cell["busy"]})
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
