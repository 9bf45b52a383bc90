"""A requantized copy of the bundled target, and what verifying a draft costs in it: v(k) of both files.

    python -m tests.benchmarks.requantize /tmp/target-Q4_0.gguf --type Q4_0 --pure

v(k) is the time of a pass of k + 1 rows over that of one row (DESIGN section 6). Passes of both files and
all widths take turns, so that a busy machine slows them alike; figures are medians.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from specview.engines.llama_cpp_engine import LlamaCppEngine, load
from specview.engines.llama_cpp_library import forget_errors, last_error, llama
from specview.engines.llama_cpp_session import LlamaCppSession
from specview.errors import SpecviewError, UsageError
from specview.models import bundled

LONGEST_K = 8


def file_types() -> dict[str, int]:
    """Types that llama.cpp can write, by their names."""
    lib, prefixes = llama(), ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_")
    return {
        name.removeprefix(prefix): getattr(lib, name)
        for prefix in prefixes
        for name in dir(lib)
        if name.startswith(prefix)
    }


def requantize(source: Path, target: Path, kind: str, pure: bool = False) -> None:
    """Write a copy of a GGUF file with its matrices of another type.

    pure: all of them; else llama.cpp keeps some, as the output matrix, at a finer type. Raises UsageError for an unknown type, SpecviewError where llama.cpp cannot write it.
    """
    types = file_types()
    if kind not in types:
        raise UsageError(f"there is no type {kind}.", f"Choose one of {', '.join(sorted(types))}.")
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the source itself.", "Choose another name.")
    lib = llama()
    params = lib.llama_model_quantize_default_params()
    params.ftype = types[kind]
    params.pure = pure
    params.allow_requantize = True  # the source is quantized already: its rounding stays, and ours is added
    unfinished = target.with_name(target.name + ".part")
    forget_errors()
    failed = lib.llama_model_quantize(os.fsencode(source), os.fsencode(unfinished), ctypes.byref(params))
    if failed:
        unfinished.unlink(missing_ok=True)
        raise SpecviewError(f"llama.cpp cannot write {target.name} as {kind}: {last_error()}.", "Try another type.")
    unfinished.replace(target)


def pass_seconds(
    engines: list[LlamaCppEngine], widths: list[int], *, context: int, repeats: int
) -> list[dict[int, list[float]]]:
    """Seconds of passes of each width after `context` tokens, per engine: {rows: [seconds]}."""
    rng = random.Random(0)
    tokens = [rng.randrange(100, min(engine.vocab_size for engine in engines)) for _ in range(context + max(widths))]
    sessions: list[LlamaCppSession] = []
    for engine in engines:
        session = engine.new_session(len(tokens))
        session.prefill(tokens[:context])
        sessions.append(session)
    seconds: list[dict[int, list[float]]] = [{rows: [] for rows in widths} for _ in engines]
    for repeat in range(repeats + 1):
        for rows in widths:
            for session, found in zip(sessions, seconds, strict=True):
                begin = perf_counter()
                session.forward(tokens[context : context + rows])
                session.truncate(context)
                if repeat:  # the first round warms up
                    found[rows].append(perf_counter() - begin)
    for session in sessions:
        session.close()
    return seconds


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="requantize the bundled target and measure v(k) of both files")
    parser.add_argument("out", type=Path, help="the GGUF file to write")
    parser.add_argument("--type", default="Q4_0", help="Q4_0, Q8_0, F16, IQ4_NL, ...")
    parser.add_argument("--pure", action="store_true", help="the output matrix too, which llama.cpp keeps finer")
    parser.add_argument("--threads", type=int, help="of a pass; the physical cores where left out")
    parser.add_argument("--context", type=int, default=256, help="tokens in the cache before each pass")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--measure-only", action="store_true", help="take OUT as it is")
    args = parser.parse_args()
    try:
        source = bundled.target_gguf()
        if not args.measure_only:
            requantize(source, args.out, args.type, args.pure)
        engines = [load(path, threads=args.threads) for path in (source, args.out)]
    except (SpecviewError, UsageError) as error:
        print(error, file=sys.stderr)
        return 1
    ks = range(1, LONGEST_K + 1)
    seconds = pass_seconds(engines, [1, *(k + 1 for k in ks)], context=args.context, repeats=args.repeats)
    print(f"{engines[0].threads} threads, {args.context} tokens of context, medians of {args.repeats}")
    print(f"{'':28}{'MB':>7}{'ms':>8}  " + "".join(f"v({k})".rjust(7) for k in ks))
    for path, found in zip((source, args.out), seconds, strict=True):
        one = median(found[1])
        # Each round's own ratio: what slows the machine for a while slows both passes of it.
        costs = "".join(f"{median(a / b for a, b in zip(found[k + 1], found[1], strict=True)):7.2f}" for k in ks)
        print(f"{path.name[:28]:28}{path.stat().st_size / 1e6:7.1f}{one * 1000:8.1f}  {costs}")
    for engine in engines:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
