"""Milliseconds of a target pass by its number of rows: what verifying k drafted tokens costs.

    python -m tests.benchmarks.rows --engine llama.cpp
    chrt -f 10 python -m tests.benchmarks.rows --engine transformers      (where others load the machine)
    python -m tests.benchmarks.rows --engine llama.cpp --features 2,15,27 --tree

In every repeat each number of rows comes twice running, in shuffled order. `changed` is the first of the
two, which follows a pass of another number of rows; `same` is the second. llama.cpp lays its graph out anew
where the number changes, so the difference is what that costs. `per row` is what one row more adds to
`same`. Figures are medians over the repeats.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median
from typing import Any

from specview.models import bundled, converted


def load(engine: str, target: str | None, threads: int | None, check_mode: bool) -> Any:
    """The engine over `target`, or the bundled one."""
    if engine == "llama.cpp":
        from specview.engines import llama_cpp_engine

        path = target or bundled.target_gguf()
        return llama_cpp_engine.load(path, threads=threads, check_mode=check_mode)
    from specview.engines import transformers_engine

    folder = target or converted.convert(bundled.target_gguf())
    return transformers_engine.load(folder, device="cpu", threads=threads, check_mode=check_mode)


def shape(rows: int, tree: bool) -> list[int] | None:
    """Parents of a tree of that many rows, in two branches from the first; None for a chain."""
    if not tree:
        return None
    return [-1, 0, 0, *range(1, rows - 2)][:rows]


def one_pass(session: Any, rows: int, tree: bool, features: tuple[Any, ...]) -> float:
    """Seconds of a forward; the session is as it was afterwards."""
    length = session.length
    tokens = [(37 * index + rows) % 1000 + 300 for index in range(rows)]
    begin = time.perf_counter()
    session.forward(tokens, shape(rows, tree), features)
    session.synchronize()
    seconds = time.perf_counter() - begin
    session.truncate(length)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", choices=("llama.cpp", "transformers"), default="llama.cpp")
    parser.add_argument("--target", help="a GGUF file, or a model folder; the bundled one where left out")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rows", type=int, default=12, help="most rows of a pass")
    parser.add_argument("--context", type=int, default=200, help="tokens before them")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--features", default="", help="layers whose hidden states are asked for, as in 2,15,last")
    parser.add_argument("--tree", action="store_true", help="two branches in place of a chain")
    parser.add_argument("--check-mode", action="store_true")
    given = parser.parse_args()
    names = [part for part in given.features.split(",") if part]
    features = tuple(name if name == "last" else int(name) for name in names)

    engine = load(given.engine, given.target, given.threads, given.check_mode)
    session = engine.new_session(given.context + 2 * given.rows + 16, 2)
    session.prefill([index % 900 + 300 for index in range(given.context)])
    counts = list(range(1, given.rows + 1))
    rng = random.Random(1)
    changed: dict[int, list[float]] = {count: [] for count in counts}
    same: dict[int, list[float]] = {count: [] for count in counts}
    for repeat in range(given.repeats + 1):
        rng.shuffle(counts)
        for count in counts:
            times = [one_pass(session, count, given.tree, features) for _ in range(2)]
            if repeat:  # the first warms up
                changed[count].append(1e3 * times[0])
                same[count].append(1e3 * times[1])
    print(f"{engine.name}, {engine.model_name}, {engine.dtype}, {engine.threads} threads")
    print(f"{given.context} tokens before, features {given.features or 'none'}, medians of {given.repeats}, ms\n")
    print("rows   same  changed  per row  v(rows)")
    before = 0.0
    for count in sorted(counts):
        time_ms = median(same[count])
        added = f"{time_ms - before:8.2f}" if before else f"{'':8}"
        print(f"{count:4} {time_ms:6.2f} {median(changed[count]):8.2f} {added} {time_ms / median(same[1]):8.2f}")
        before = time_ms
    engine.close()


if __name__ == "__main__":
    main()
