"""Time of a drafter's round (propose and observe) by the length of the context, and the memory it holds.

    python -m tests.benchmarks.drafter_time --repeats 9
    chrt -f 10 python -m tests.benchmarks.drafter_time        (where others load the machine)

The text is specview's own source, cut into tokens by the bundled tokenizer. Two ways to go on with it:

edit    300 tokens of the last 500 again, one in 90 changed. In the long context the 7,500 tokens before
        those have ids of their own, so that the drafts are the same as after the short one and only the
        length differs.
source  the 300 tokens that follow in the files: a longer past drafts more, and differently.

A drafted token that the text has is accepted, and a round adds one token of its own, as in a greedy run.
Repeats are interleaved; figures are medians over them. The share is of a plain target pass: 38 ms in
transformers, 9 ms in llama.cpp (2 cores, SmolLM2-135M).
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import tracemalloc
from pathlib import Path
from statistics import median
from typing import Any

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting import ngram_index, ngram_map, ngram_mod, ngram_simple, prompt_lookup, suffix
from specview.drafting.base import ModelFreeDrafter
from specview.engines.gguf_file import read_gguf
from specview.engines.transformers_tokenizer import load_tokenizer
from specview.models.bundled import target_gguf
from specview.models.gguf_tokenizer import write_tokenizer

ROOT = Path(__file__).resolve().parents[2] / "specview"
SHORT, LONG, TAIL = 500, 8000, 300
PASS_S = {"transformers": 0.038, "llama.cpp": 0.009}
BUDGET = 64

DRAFTERS: dict[str, Any] = {
    "prompt-lookup": (prompt_lookup.PromptLookup, {}),
    "ngram-simple": (ngram_simple.NgramSimple, {}),
    "ngram-simple text": (ngram_simple.NgramSimple, ngram_index.KEY_PRESETS["text"]),
    "ngram-map-k": (ngram_map.NgramMapK, {}),
    "ngram-map-k4v": (ngram_map.NgramMapK4V, {}),
    "ngram-map-k4v text": (ngram_map.NgramMapK4V, ngram_index.KEY_PRESETS["text"]),
    "ngram-mod": (ngram_mod.NgramMod, {}),
    "ngram-mod text": (ngram_mod.NgramMod, ngram_mod.PRESETS["text"]),
    "suffix": (suffix.Suffix, {}),
}


def source_tokens(count: int) -> list[int]:
    """Tokens of specview's source, in the order of its files' names."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(read_gguf(target_gguf()), Path(folder))
        tokenizer = load_tokenizer(Path(folder), {})
    tokens: list[int] = []
    for path in sorted(ROOT.glob("*/*.py")):
        tokens += tokenizer.encode(path.read_text())
        if len(tokens) >= count:
            break
    return tokens[:count]


def replay(drafter: ModelFreeDrafter, context: list[int], tail: list[int]) -> tuple[list[float], int, int]:
    """Draft `tail` after `context`: seconds of each round, tokens drafted, tokens accepted."""
    drafter.start(context, SamplingParams())
    context, seconds, drafted, accepted = list(context), [], 0, 0
    done = 0
    while done < len(tail):
        begin = time.perf_counter()
        draft = drafter.propose(context, min(BUDGET, len(tail) - done - 1) or 1)
        proposed = time.perf_counter()
        held = 0
        while held < len(draft) and done + held < len(tail) - 1 and draft.tokens[held] == tail[done + held]:
            held += 1
        verdicts = ["accepted"] * held + ["rejected"] + ["ignored"] * len(draft)
        entries = tuple(DraftedToken(token, verdict) for token, verdict in zip(draft.tokens, verdicts, strict=False))
        final = FinalToken(tail[done + held], "plain")
        round_ = Round(0, 0.0, 0.0, 0.0, 0.0, drafter=draft.drafter, drafted=entries, final=final)
        emitted = round_.emitted
        context += emitted
        done += len(emitted)
        observing = time.perf_counter()
        drafter.observe(round_, {})
        seconds.append(time.perf_counter() - observing + proposed - begin)
        drafted, accepted = drafted + len(draft), accepted + held
    return seconds, drafted, accepted


def held_bytes(kind: Any, options: Any, context: list[int]) -> int:
    """Bytes that a drafter holds after the context, by tracemalloc."""
    gc.collect()
    tracemalloc.start()
    drafter = kind(options)
    drafter.start(context, SamplingParams())
    drafter.propose(context, BUDGET)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    drafter.close()
    return held


def scenarios() -> dict[str, tuple[dict[int, list[int]], list[int]]]:
    """Contexts by their length, and the text that follows them."""
    text = source_tokens(LONG + TAIL)
    near = text[LONG - SHORT : LONG]
    foreign = max(text) + 1
    far = [token + foreign for token in text[: LONG - SHORT]]
    edited = near[100 : 100 + TAIL]
    edited[90::90] = [2 * foreign + place for place in range(len(edited[90::90]))]
    return {
        "edit": ({SHORT: near, LONG: far + near}, edited),
        "source": ({SHORT: near, LONG: text[:LONG]}, text[LONG:]),
    }


def measure(contexts: dict[int, list[int]], tail: list[int], repeats: int) -> None:
    """Print a row for every drafter and context."""
    rounds: dict[tuple[str, int], list[list[float]]] = {}
    counts: dict[tuple[str, int], tuple[int, int, int]] = {}
    for _ in range(repeats):
        for name, (kind, options) in DRAFTERS.items():
            for length, context in contexts.items():
                drafter = kind(options)
                gc.collect()
                gc.disable()
                seconds, drafted, accepted = replay(drafter, context, tail)
                gc.enable()
                drafter.close()
                rounds.setdefault((name, length), []).append(seconds)
                counts[name, length] = (len(seconds), drafted, accepted)
    print(
        "drafter              context  rounds drafted accepted   median us   mean us  ratio   longest us"
        "   % of 38 ms   % of 9 ms   MB held"
    )
    for name, (kind, options) in DRAFTERS.items():
        means = {}
        for length, context in contexts.items():
            each = [median(times) for times in zip(*rounds[name, length], strict=True)]  # per round
            mean = means[length] = sum(each) / len(each)
            held = held_bytes(kind, options, context) / 1e6
            shares = "".join(f"{100 * mean / pass_s:13.3f}" for pass_s in PASS_S.values())
            ratio = f"{mean / means[SHORT]:7.2f}" if length != SHORT else " " * 7
            print(
                f"{name:20} {length:8} {counts[name, length][0]:7} {counts[name, length][1]:7} "
                f"{counts[name, length][2]:8} {1e6 * median(each):11.1f} {1e6 * mean:9.1f}{ratio} "
                f"{1e6 * max(each):12.1f}{shares}{held:10.2f}"
            )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    for name, (contexts, tail) in scenarios().items():
        print(f"\n{name}")
        measure(contexts, tail, args.repeats)


if __name__ == "__main__":
    main()
