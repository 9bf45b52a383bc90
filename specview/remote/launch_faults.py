"""What does not go together in an engine's drafting keys, as its own source says it: it refuses them, or drafts otherwise than one thinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Fault = tuple[Literal["bad", "warning", "note"], str, str]
Keys = Mapping[str, Any]


def faults(engine: str, keys: Keys, others: Mapping[str, str]) -> Iterator[Fault]:
    """What is wrong with the keys; others are the command's other flags."""
    yield from _CHECKS[engine](keys, others)


def _number(keys: Keys, name: str) -> float | None:
    try:
        return float(keys[name])
    except (KeyError, TypeError, ValueError):
        return None


def _whole(keys: Keys, *names: str) -> Iterator[Fault]:
    """Keys that are given and are no whole number above 0."""
    for name in names:
        if name in keys and not (str(keys[name]).isdecimal() and int(str(keys[name])[:9]) > 0):
            yield "bad", name, f"{str(keys[name])[:60]!r} is no whole number above 0."


def _llama(keys: Keys, others: Mapping[str, str]) -> Iterator[Fault]:
    types = str(keys.get("spec-type", "none")).split(",")
    drafts = [one for one in types if one.startswith("draft-")]
    draft = keys.get("spec-draft-model") or keys.get("spec-draft-hf")
    if "none" in types and draft:
        yield "warning", "spec-type", "the draft is loaded and never drafts: --spec-type is none unless it is given."
    elif "none" in types and any(key.startswith("spec-") and key != "spec-type" for key in keys):
        yield "warning", "spec-type", "nothing drafts: --spec-type is none unless it is given."
    if len(types) > 1 and "none" in types:
        yield "bad", "spec-type", "none beside another type switches all of them off."
    if drafts and drafts != ["draft-mtp"] and not draft:
        yield "bad", drafts[0], "it needs a draft: --spec-draft-model FILE."
    if draft and not str(draft).lower().endswith(".gguf") and "spec-draft-hf" not in keys:
        yield "warning", "spec-draft-model", "it is to be a GGUF file."
    if len(drafts) > 1:
        yield "warning", "spec-type", "there is one draft model for all of the draft- types."
    least, most = _number(keys, "spec-ngram-mod-n-min"), _number(keys, "spec-ngram-mod-n-max")
    if least is not None and most is not None and least > most:
        yield "warning", "spec-ngram-mod-n-min", "it is above --spec-ngram-mod-n-max: nothing is ever drafted."
    least, most = _number(keys, "spec-draft-n-min"), _number(keys, "spec-draft-n-max")
    if least is not None and most is not None and least > most:
        yield "warning", "spec-draft-n-min", "it is above --spec-draft-n-max: drafts are thrown away."
    if any(one.startswith("ngram-") for one in types) and not drafts and "spec-draft-n-max" in keys:
        yield "note", "spec-draft-n-max", "n-gram types do not read it: their own size-m or n-max caps a draft."
    for name in ("spec-draft-n-max", "spec-ngram-mod-n-max", "spec-ngram-simple-size-m", "spec-ngram-simple-size-n"):
        yield from _whole(keys, name)
    if str(keys.get("spec-synth-len", "")) or str(keys.get("spec-synth-rates", "")):
        yield "warning", "spec-synth-len", "synthetic acceptance: the output is not the model's."


def _vllm(keys: Keys, others: Mapping[str, str]) -> Iterator[Fault]:
    if not keys:
        return
    method = keys.get("method")
    least, most = _number(keys, "prompt_lookup_min"), _number(keys, "prompt_lookup_max")
    if least is not None and most is not None and least > most:
        yield "bad", "prompt_lookup_min", f"{least:g} is above prompt_lookup_max {most:g}."
    yield from _whole(keys, "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
    if method is None and keys.get("model"):
        yield "note", "method", "it is not given: the engine guesses it from the model, and takes it for a draft model where it cannot."
    elif method is None:
        yield "bad", "method", "neither a method nor a model is given."
    if "num_speculative_tokens" not in keys and method not in ("suffix", "mtp"):
        yield "warning", "num_speculative_tokens", "it must be given, unless the draft's config says n_predict."
    if method in ("draft_model", "eagle", "eagle3", "medusa") and not keys.get("model"):
        yield "bad", str(method), "it needs a model: the draft's or the head's folder or id."
    if "tensor_parallel_size" in keys:
        yield "bad", "tensor_parallel_size", "it is draft_tensor_parallel_size here."
    if keys.get("use_heterogeneous_vocab") and (method != "draft_model" or keys.get("draft_sample_method", "greedy") != "greedy"):
        yield "bad", "use_heterogeneous_vocab", "it is for draft_model with greedy drafts alone."
    if keys.get("rejection_sample_method") == "synthetic":
        yield "warning", "rejection_sample_method", "synthetic acceptance: the output is not the model's."
    elif "synthetic_acceptance_rates" in keys or "synthetic_acceptance_length" in keys:
        yield "bad", "synthetic_acceptance_rates", "only with rejection_sample_method synthetic."
    if method == "suffix":
        yield "note", "suffix", "it needs pip install arctic-inference==0.1.1."
    if str(keys.get("model", "")).lower().endswith(".gguf"):
        yield "warning", "model", "a GGUF file: drafts and heads are folders of safetensors here."


def _sglang(keys: Keys, others: Mapping[str, str]) -> Iterator[Fault]:
    if not keys:
        return
    algorithm = keys.get("speculative-algorithm")
    three = [f"speculative-{name}" for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    given = [name for name in three if name in keys]
    if algorithm is None:
        yield "warning", "speculative-algorithm", "nothing drafts without it."
        return
    steps, top, tokens = (_number(keys, name) for name in three)
    if algorithm in ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE") and 0 < len(given) < 3:
        missing = ", ".join(f"--{name}" for name in three if name not in given)
        yield "bad", f"--{given[0]}", f"give all three or none: without {missing}."
    if steps is not None and top == 1 and tokens is not None and tokens != steps + 1:
        yield "warning", "--speculative-num-draft-tokens", f"with top-k 1 it becomes steps + 1, {steps + 1:g}."
    if steps is not None and top is not None and top > 1 and tokens is not None and tokens > top * (top * max(steps - 1, 0) + 1) + 1:
        yield "warning", "--speculative-num-draft-tokens", "more than the tree can have."
    if algorithm in ("EAGLE", "EAGLE3", "STANDALONE") and not keys.get("speculative-draft-model-path"):
        yield "bad" if algorithm == "STANDALONE" else "warning", "--speculative-draft-model-path", (
            "it needs a draft; only models with modules of their own (DeepSeek, GLM, MiMo) go without.")
    if algorithm == "NGRAM" and given and "speculative-num-steps" in given:
        yield "note", "--speculative-num-steps", "NGRAM does not read it."
    if keys.get("speculative-use-rejection-sampling") and (algorithm not in ("EAGLE", "EAGLE3", "NEXTN") or (top or 1) > 1):
        yield "bad", "--speculative-use-rejection-sampling", "for EAGLE and EAGLE3 with top-k 1 alone."
    for name in ("speculative-accept-threshold-single", "speculative-accept-threshold-acc"):
        value = _number(keys, name)
        if value is not None and value < 1:
            yield "warning", f"--{name}", "below 1 the output is no longer the model's: it accepts what the model would not."
    for name in given:
        yield from _whole(keys, name)


def _trtllm(keys: Keys, others: Mapping[str, str]) -> Iterator[Fault]:
    if not keys:
        return
    kind = keys.get("decoding_type")
    if kind is None:
        yield "bad", "decoding_type", "it says which method drafts, and is missing."
    if kind in ("Eagle3", "NGram", "Draft_Target", "SA", "PARD") and "max_draft_len" not in keys:
        yield "bad", "max_draft_len", "it must be given."
    if kind in ("Eagle3", "Draft_Target", "PARD") and not keys.get("speculative_model"):
        yield "bad", "speculative_model", "it must be given: the draft's or the head's folder or id."
    yield from _whole(keys, "max_draft_len", "max_matching_ngram_size" if kind == "NGram" else "dynamic_tree_max_topK")
    longest, top, total = (_number(keys, name) for name in ("max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens"))
    if keys.get("use_dynamic_tree"):
        if top is None:
            yield "bad", "dynamic_tree_max_topK", "use_dynamic_tree needs it."
        elif longest is not None and total is not None and not longest <= total <= top * longest:
            yield "bad", "max_total_draft_tokens", f"it must lie between max_draft_len and {top * longest:g}."
    elif top is not None:
        yield "warning", "dynamic_tree_max_topK", "ignored without use_dynamic_tree: true."
    if "max_concurrency" in keys and "draft_len_schedule" in keys:
        yield "bad", "max_concurrency", "not beside draft_len_schedule."
    if keys.get("use_rejection_sampling") and keys.get("sa_config") is not None:
        yield "bad", "use_rejection_sampling", "not beside sa_config."


_CHECKS = {"llama-server": _llama, "vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _trtllm}
