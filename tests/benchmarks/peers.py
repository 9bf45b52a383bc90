"""Our lanes against the libraries' own loops on the same weights: whole calls, interleaved, medians.

    python -m tests.benchmarks.peers --repeats 5 --max-tokens 96 --workload code-edit

Every repeat runs each contender once, in turn, so that a noisy neighbour slows all alike. A call
is prefill and decoding; loading is left out. Prints seconds and ratios (peer / ours: above 1 we are
faster), and writes JSON with --json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from specview.drafting.lanes import checked_lane
from specview.models.loading import load_engine
from specview.racing.lane import Lane
from specview.racing.race import tokenize_prompt
from specview.racing.workloads import load as load_workload
from specview.settings.run import LaneSettings, RunSettings

Call = Callable[[], list[int]]


def lane_call(settings: RunSettings, lane: LaneSettings, target: Any, draft: Any = None) -> Call:
    """A whole call of one of our lanes, observation off."""
    checked = checked_lane(lane, settings.sampling)
    ids = tokenize_prompt(settings, target)

    def call() -> list[int]:
        runner = Lane(checked, settings, ids, target, draft)
        try:
            runner.prefill(settings.max_tokens)
            while runner.step() is not None:
                pass
            return runner.record.token_ids
        finally:
            runner.close()

    return call


def generate_call(model: Any, ids: list[int], max_tokens: int, **options: Any) -> Call:
    """A whole call of transformers' generate, greedy."""
    import torch

    prompt = torch.tensor([ids])

    def call() -> list[int]:
        with torch.inference_mode():
            out = model.generate(prompt, do_sample=False, max_new_tokens=max_tokens, **options)
        return out[0, len(ids) :].tolist()

    return call


def bare_llama_call(path: str, ids: list[int], max_tokens: int, eos_ids: frozenset[int]) -> Call:
    """A whole call of a bare llama.cpp greedy loop: decode, argmax, next."""
    import llama_cpp
    import numpy as np

    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    vocab = llama_cpp.llama_model_get_vocab(model)
    width = llama_cpp.llama_vocab_n_tokens(vocab)

    def call() -> list[int]:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = len(ids) + max_tokens + 8
        params.n_threads = params.n_threads_batch = 2
        context = llama_cpp.llama_init_from_model(model, params)
        try:
            out: list[int] = []
            feed = list(ids)
            while len(out) < max_tokens:
                tokens = (llama_cpp.llama_token * len(feed))(*feed)
                assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(feed))) == 0
                row = llama_cpp.llama_get_logits_ith(context, -1)
                logits = np.ctypeslib.as_array(ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), shape=(width,))
                token = int(logits.argmax())
                out.append(token)
                if token in eos_ids:
                    break
                feed = [token]
            return out
        finally:
            llama_cpp.llama_free(context)

    return call


def transformers_contenders(settings: RunSettings) -> dict[str, Call]:
    """Ours and transformers' loops on the bundled pair, plain, draft-model and prompt lookup, k 4."""
    import torch
    from transformers import AutoModelForCausalLM

    from specview.models.bundled import draft as bundled_draft
    from specview.models.bundled import target_gguf
    from specview.models.converted import find_converted

    target = load_engine("bundled", "transformers")
    draft = load_engine("bundled", "transformers", role="draft")
    folder = find_converted(target_gguf())
    assert folder is not None
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assistant = AutoModelForCausalLM.from_pretrained(bundled_draft("transformers"), dtype=torch.float32).eval()
    config = assistant.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 4, "constant"
    config.assistant_confidence_threshold = 0.0
    ids = tokenize_prompt(settings, target)
    k = 4
    lookup = {"ngram_max": 2, "ngram_min": 1, "match": "first"}
    return {
        "plain": lane_call(settings, LaneSettings("plain"), target),
        "generate": generate_call(peer, ids, settings.max_tokens),
        "draft-model": lane_call(settings, LaneSettings("draft-model", k=k), target, draft),
        "generate(assistant)": generate_call(peer, ids, settings.max_tokens, assistant_model=assistant),
        "prompt-lookup": lane_call(settings, LaneSettings("prompt-lookup", k=k, options=lookup), target),
        "generate(lookup)": generate_call(
            peer, ids, settings.max_tokens, prompt_lookup_num_tokens=k, max_matching_ngram_size=2
        ),
    }


def llama_contenders(settings: RunSettings) -> dict[str, Call]:
    """Our plain lane and a bare loop on the bundled GGUF."""
    from specview.models.bundled import target_gguf

    target = load_engine("bundled", "llama.cpp", threads=2)
    ids = tokenize_prompt(settings, target)
    return {
        "plain": lane_call(settings, LaneSettings("plain"), target),
        "bare loop": bare_llama_call(str(target_gguf()), ids, settings.max_tokens, target.eos_ids),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engine", choices=("transformers", "llama.cpp"), default="transformers")
    parser.add_argument("--workload", default="code-edit")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prompt = load_workload(args.workload).prompts[0]
    settings = RunSettings(
        engine=args.engine,
        prompt=prompt.text,
        system=prompt.system or "",
        max_tokens=args.max_tokens,
        observe="off",
    )
    make = transformers_contenders if args.engine == "transformers" else llama_contenders
    contenders = make(settings)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    outputs: dict[str, list[int]] = {}
    for repeat in range(args.repeats + 1):
        for name, call in contenders.items():
            begin = time.perf_counter()
            outputs[name] = call()
            if repeat:  # the first round warms up
                times[name].append(time.perf_counter() - begin)
    names = list(contenders)
    report: dict[str, Any] = {"workload": args.workload, "seconds": {}, "ratios": {}}
    for ours, peer in zip(names[::2], names[1::2], strict=True):
        ratios = [b / a for a, b in zip(times[ours], times[peer], strict=True)]
        report["seconds"] |= {name: median(times[name]) for name in (ours, peer)}
        report["ratios"][f"{peer} / {ours}"] = [min(ratios), median(ratios), max(ratios)]
        print(
            f"{ours:14} {median(times[ours]):7.3f} s ({len(outputs[ours])} tokens)   {peer:20} "
            f"{median(times[peer]):7.3f} s ({len(outputs[peer])} tokens)   ratio {median(ratios):.2f} "
            f"[{min(ratios):.2f}, {max(ratios):.2f}]   same ids: {outputs[ours] == outputs[peer]}"
        )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
