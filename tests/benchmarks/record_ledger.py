"""Record what tests/racing/test_adaptive_replay.py replays: texts, the draft's guesses, a cost table.

    python -m tests.benchmarks.record_ledger

For every bundled workload: the prompt's ids, the bundled target's greedy output (transformers), and at
each output position the bundled draft's greedy next 8 tokens with their probabilities in percent. The
cost table has seconds of a target pass by its rows, of a draft step, and of the rest of a plain round:
medians of interleaved repeats at 400 tokens of context. Writes tests/racing/data/ledger.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from specview.decoding.interfaces import Engine, Session
from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams, softmax
from specview.models.loading import facts, load_engine
from specview.racing import workloads

AHEAD = 8
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 17, 21, 25, 29, 33, 41, 49, 57, 65)
CONTEXT = 400
OUT = Path(__file__).resolve().parents[1] / "racing" / "data" / "ledger.json"


def record_text(target: Engine, draft: Engine, name: str, max_tokens: int) -> dict[str, Any]:
    """One workload's prompt, greedy output, and the draft's guesses at each output position."""
    work = workloads.load(name)
    system = [{"role": "system", "content": work.system}] if work.system else []
    prompt = target.tokenizer.encode_chat([*system, {"role": "user", "content": work.prompt}])
    session = target.new_session(len(prompt) + max_tokens + 1)
    session.prefill(prompt[:-1])
    sequence = Sequence(list(prompt))
    rounds = decode(
        session,
        sequence,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=max_tokens,
        eos_ids=target.eos_ids,
    )
    others = [round_.other_s for round_ in rounds]
    session.close()
    output = sequence.output
    own = draft.new_session(len(prompt) + max_tokens + AHEAD + 1)
    own.prefill(prompt[:-1])
    ahead: list[list[int]] = []
    sure: list[list[int]] = []
    for position in range(len(output)):
        length = len(prompt) + position - 1
        feed = ([*prompt, *output])[length]
        tokens, percents = [], []
        for _ in range(AHEAD):
            row = np.asarray(own.forward([feed]).logits)[-1]
            feed = int(row.argmax())
            tokens.append(feed)
            percents.append(round(100 * float(softmax(row)[feed])))
        own.truncate(length)
        own.forward([([*prompt, *output])[length]])
        ahead.append(tokens)
        sure.append(percents)
    own.close()
    return {
        "sha256": work.sha256,
        "prompt": prompt,
        "output": output,
        "ahead": ahead,
        "sure": sure,
        "other_s": median(others),
    }


def pass_seconds(session: Session, context: int, rows: tuple[int, ...], repeats: int) -> dict[int, float]:
    """Median seconds of a pass of each row count, interleaved, at `context` tokens."""
    times: dict[int, list[float]] = {count: [] for count in rows}
    for repeat in range(repeats + 1):
        for count in rows:
            begin = time.perf_counter()
            session.forward([100 + i for i in range(count)])
            session.synchronize()
            spent = time.perf_counter() - begin
            session.truncate(context)
            if repeat:  # the first warms up
                times[count].append(spent)
    return {count: round(median(spent), 6) for count, spent in times.items()}


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description="record the ledger that the adaptive tests replay")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    target, draft = (load_engine("bundled", "transformers", role=role) for role in ("target", "draft"))
    session = target.new_session(CONTEXT + max(ROWS) + 1)
    session.prefill([100] * CONTEXT)
    passes = pass_seconds(session, CONTEXT, ROWS, args.repeats)
    session.close()
    session = draft.new_session(CONTEXT + 8)
    session.prefill([100] * CONTEXT)
    steps = pass_seconds(session, CONTEXT, (1, 2, 3), 3 * args.repeats)
    session.close()
    texts = {name: record_text(target, draft, name, args.max_tokens) for name in workloads.list_workloads()}
    known = facts(target)
    document = {
        "facts": {key: known[key] for key in ("model_name", "dtype", "device", "threads") if key in known},
        "pass_s": passes,
        "draft_step_s": steps[1],
        "draft_start_s": round(max(0.0, steps[2] - steps[1]), 6),
        "other_s": round(median(text.pop("other_s") for text in texts.values()), 6),
        "copy_s": 2e-5,
        "texts": texts,
    }
    OUT.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    print(OUT, OUT.stat().st_size, {key: value for key, value in document.items() if key != "texts"})


if __name__ == "__main__":
    main()
