"""What the serving engines can draft with, and what they call it: one table, by engine and method.

Everything that differs by method stands here as data; launch.py writes commands from it and launch_check.py reads them back.
Each engine names the source and the date that its rows were read from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Key:
    """What an engine calls an option, and what its number counts beyond ours."""

    name: str
    plus: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """How an engine is told to draft as one of our methods does.

    fixed    the keys that say which method, the naming one first
    k        the keys that hold the longest draft
    options  our option -> the engine's key
    draft    the key that names the draft model or head; '' where there is none
    when     option values that this way is for, and that it stands for
    sampled  keys that have a drafter's tokens sampled and judged by their probabilities, as the rule `rejection` does
    policies length policy -> its option -> the engine's key
    joins    of a combined method, whose members' ways go together, the naming keys joined by commas: the option that is k of
             members that run a model
    deep     the option that holds how often a tree grows after its first tokens, where that is what k caps
    least    the option that holds the shortest draft
    unsaid   key -> what it is where it is not given; "=KEY" what another is, and under '' where that is not given either
    notes    what the engine does otherwise
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    k: tuple[Key, ...] = ()
    options: Mapping[str, Key] = field(default_factory=dict)
    draft: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    sampled: Mapping[str, Any] = field(default_factory=dict)
    policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    joins: str = ""
    deep: str = ""
    least: str = ""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Serving:
    """A serving engine.

    program    the words that start it; programs are names that a pasted command may start with
    model      the flag that names the target, '' where it stands first
    formats    what it loads: gguf, or safetensors folders and hub ids
    config     the flag that holds the drafting keys, as JSON or (in_file) by naming a YAML file; '' where they are flags
    implied    what a draft without a word on the method stands for: the naming key's value; heeded says that the engine sees it so;
               named are drafts that are no model but name a method
    hub        the flags for a GGUF file on the Hub: repository and file
    loading    our setting of how a model is loaded -> its flag
    sampling   our sampling setting -> its key; sampling_flag holds them as JSON where they are no flags of their own
    unsampled  the rule that it decodes with above temperature 0 where no probabilities of drafts are asked for
    policies   what it has in place of length policies
    """

    name: str
    label: str
    program: tuple[str, ...]
    programs: tuple[str, ...]
    model: str
    formats: tuple[str, ...]
    source: str
    default_k: str
    config: str = ""
    in_file: bool = False
    implied: str = ""
    heeded: bool = True
    named: Mapping[str, str] = field(default_factory=dict)
    hub: tuple[str, ...] = ()
    loading: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, str] = field(default_factory=dict)
    sampling_flag: str = ""
    unsampled: str = ""
    policies: str = ""
    notes: tuple[str, ...] = ()


ENGINES: Mapping[str, Serving] = {
    one.name: one
    for one in (
        Serving(
            "llama-server", "llama-server (llama.cpp b11434)", ("llama-server",), ("llama-server", "llama-server.exe"), "--model",
            ("gguf",), "llama.cpp b11434: common/arg.cpp, common/speculative.cpp, docs/speculative.md; read 2026-12-01",
            "3 drafted tokens (--spec-draft-n-max)",
            implied="draft-simple", heeded=False, hub=("--hf-repo", "--hf-file"),
            loading={"context": "--ctx-size", "threads": "--threads", "gpu_layers": "--gpu-layers"},
            sampling={"temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "seed": "--seed"},
            unsampled="match",
            policies="a least probability of a drafted token, --spec-draft-p-min, and nothing else",
            notes=(
                "Its own sampling defaults are temperature 0.8, top-k 40, top-p 0.95, min-p 0.05; the command gives the lane's, and a request may give others.",
                "It serves 4 requests at a time unless --parallel says otherwise, with one key-value pool for all. Add --metrics for its counters.",
            ),
        ),
        Serving(
            "vllm", "vLLM 0.32", ("vllm", "serve"), ("vllm",), "", ("safetensors",),
            "vLLM 0.32.0: config/speculative.py, engine/arg_utils.py, v1/worker/gpu_model_runner.py; read 2026-12-01",
            "none: num_speculative_tokens must be given, unless the head's config names it",
            config="--speculative-config", implied="draft_model", named={"ngram": "ngram", "[ngram]": "ngram"},
            loading={"context": "--max-model-len", "dtype": "--dtype"},
            sampling={"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
                      "repetition_penalty": "repetition_penalty"},
            sampling_flag="--override-generation-config",
            policies="draft lengths by batch size, num_speculative_tokens_per_batch_size",
            notes=(
                "Drafts are chains: it verifies no trees. A batch drafts for every request at once, up to --max-num-seqs of them.",
                "Without --generation-config vllm the model's own generation_config.json sets what a request leaves open.",
            ),
        ),
        Serving(
            "sglang", "SGLang 0.5.23", ("sglang", "serve"), ("sglang",), "--model-path", ("safetensors",),
            "SGLang 0.5.23: srt/arg_groups/fields/spec.py, speculative_hook.py, srt/speculative; read 2026-12-01",
            "chosen by the model: 5 steps, top-k 4, 8 tokens for Llama, else 3, 1, 4",
            loading={"context": "--context-length", "dtype": "--dtype"},
            policies="--speculative-adaptive, which chooses the number of steps by the acceptance rate",
            notes=(
                "It lowers --max-running-requests to 48 with speculation unless the flag is given.",
                "No flag sets temperature or top-p: a request gives them, else the model's generation_config.json (--sampling-defaults).",
            ),
        ),
        Serving(
            "tensorrt-llm", "TensorRT-LLM 1.4", ("trtllm-serve",), ("trtllm-serve",), "", ("safetensors",),
            "TensorRT-LLM: llmapi/llm_args.py (2026, commit 0004396), commands/serve.py, docs of 1.4.0rc4; read 2026-12-01, not run here",
            "none: max_draft_len must be given (MTP: from the checkpoint)",
            config="--config", in_file=True,
            loading={"context": "--max_seq_len"},
            unsampled="match",
            policies="draft lengths by batch size, draft_len_schedule, and acceptance_rate_threshold, which ends drafting for good",
            notes=(
                "No flag sets temperature or top-p: a request gives them.",
                "max_concurrency switches drafting off above so many requests; without it every batch drafts.",
            ),
        ),
    )
}

_LLAMA_DRAFT = (Key("spec-draft-n-max"),)
_LLAMA_UNSAID = {"spec-draft-n-max": 3}
_LLAMA_SAMPLED = {"spec-draft-sampling": "probabilistic"}
_LLAMA_POLICY = {"confidence": {"threshold": "spec-draft-p-min"}}
_VLLM_K = (Key("num_speculative_tokens"),)
_VLLM_SAMPLED = {"draft_sample_method": "probabilistic"}
_SGLANG_CHAIN = (Key("speculative-num-steps"), Key("speculative-num-draft-tokens", 1))
_SGLANG_TREE = {"depth": Key("speculative-num-steps", 1), "top_k": Key("speculative-eagle-topk"),
                "total_tokens": Key("speculative-num-draft-tokens")}  # fmt: skip
_SGLANG_DRAFT = "speculative-draft-model-path"
_SGLANG_SAMPLED = {"speculative-use-rejection-sampling": True}
_TRT_K = (Key("max_draft_len"),)
_TRT_SAMPLED = {"use_rejection_sampling": True}


def _llama_ngram(name: str, least: str = "min-hits", notes: tuple[str, ...] = ()) -> Way:
    start = f"spec-{name}-"
    return Way(
        {"spec-type": name},
        options={"size_n": Key(f"{start}size-n"), "size_m": Key(f"{start}size-m"), "min_hits": Key(f"{start}{least}")},
        notes=notes,
    )


WAYS: Mapping[str, Mapping[str, tuple[Way, ...]]] = {
    "llama-server": {
        "plain": (Way(),),
        "draft-model": (
            Way({"spec-type": "draft-simple"}, _LLAMA_DRAFT, draft="spec-draft-model", sampled=_LLAMA_SAMPLED, unsaid=_LLAMA_UNSAID, policies=_LLAMA_POLICY,
                notes=("The draft must have the target's own vocabulary: another is refused.",)),
        ),
        "eagle3": (
            Way({"spec-type": "draft-eagle3"}, _LLAMA_DRAFT, draft="spec-draft-model", when={"tree": "chain"}, sampled=_LLAMA_SAMPLED, unsaid=_LLAMA_UNSAID,
                policies=_LLAMA_POLICY, notes=("It drafts chains, never a dynamic tree.",)),
        ),
        "mtp": (
            Way({"spec-type": "draft-mtp"}, _LLAMA_DRAFT, draft="spec-draft-model", sampled=_LLAMA_SAMPLED, unsaid=_LLAMA_UNSAID, policies=_LLAMA_POLICY,
                notes=("With several modules a draft is never longer than there are modules.",)),
        ),
        "ngram-simple": (_llama_ngram("ngram-simple"),),
        "ngram-map-k": (_llama_ngram("ngram-map-k"),),
        "ngram-map-k4v": (_llama_ngram("ngram-map-k4v"),),
        "ngram-mod": (
            Way({"spec-type": "ngram-mod"},
                options={"n_match": Key("spec-ngram-mod-n-match"), "n_min": Key("spec-ngram-mod-n-min"), "n_max": Key("spec-ngram-mod-n-max")}, least="n_min",
                notes=("All requests share one table: what one said, another drafts from.",)),
        ),
        "cascade": (
            Way({"spec-type": ""}, joins="model_k",
                notes=("The order is its own: n-gram types first (simple, map-k, map-k4v, mod), then the draft.",)),
        ),
    },
    "vllm": {
        "plain": (Way(),),
        "draft-model": (
            Way({"method": "draft_model"}, _VLLM_K, draft="model", sampled=_VLLM_SAMPLED,
                notes=("Both vocabularies must be one; use_heterogeneous_vocab drafts from the shared tokens, greedily.",)),
        ),
        "pard": (
            Way({"method": "draft_model", "parallel_drafting": True}, _VLLM_K, draft="model",
                notes=("The mask token comes from the draft's config.json.",)),
        ),
        "prompt-lookup": (
            Way({"method": "ngram"}, _VLLM_K, {"ngram_max": Key("prompt_lookup_max"), "ngram_min": Key("prompt_lookup_min")},
                unsaid={"prompt_lookup_max": "=prompt_lookup_min", "prompt_lookup_min": "=prompt_lookup_max", "": 5},
                notes=("It copies what followed the earliest of the longest matches. Left out, prompt_lookup_max and prompt_lookup_min are both 5.",)),
        ),
        "suffix": (
            Way({"method": "suffix"}, _VLLM_K,
                {"max_tree_depth": Key("suffix_decoding_max_tree_depth"), "max_spec_factor": Key("suffix_decoding_max_spec_factor"),
                 "min_token_prob": Key("suffix_decoding_min_token_prob"), "max_cached_requests": Key("suffix_decoding_max_cached_requests")},
                unsaid={"num_speculative_tokens": "=suffix_decoding_max_tree_depth", "": 24},
                notes=("It needs pip install arctic-inference==0.1.1.",
                       "It drafts from the answers of other requests too, unless suffix_decoding_max_cached_requests is 0.")),
        ),
        "medusa": (
            Way({"method": "medusa"}, _VLLM_K, draft="model", when={"tree": "chain"},
                notes=("Each head gives one token, its likeliest: k is at most the number of heads.",)),
        ),
        "mtp": (
            Way({"method": "mtp"}, _VLLM_K, draft="model", sampled=_VLLM_SAMPLED,
                notes=("A k above the number of modules must be a multiple of it: the modules run again.",)),
        ),
        "eagle": (Way({"method": "eagle"}, _VLLM_K, draft="model", when={"tree": "chain"}, sampled=_VLLM_SAMPLED),),
        "eagle3": (
            Way({"method": "eagle3"}, _VLLM_K, draft="model", when={"tree": "chain"}, sampled=_VLLM_SAMPLED,
                notes=("It loads the head that specview trains as it lies (seen with the bundled one).",)),
        ),
        "p-eagle": (Way({"method": "eagle3", "parallel_drafting": True}, _VLLM_K, draft="model"),),
    },
    "sglang": {
        "plain": (Way(),),
        "draft-model": (
            Way({"speculative-algorithm": "STANDALONE", "speculative-eagle-topk": 1}, _SGLANG_CHAIN, draft=_SGLANG_DRAFT,
                unsaid={"speculative-num-steps": 3},
                notes=("Not with data-parallel attention (--attn-dp-size above 1).",)),
        ),
        "prompt-lookup": (
            Way({"speculative-algorithm": "NGRAM", "speculative-ngram-max-bfs-breadth": 1}, (Key("speculative-num-draft-tokens", 1),),
                unsaid={"speculative-num-draft-tokens": 12},
                notes=("Its n-grams stand in a tree that all requests fill and read: what one said, another drafts from.",
                       "It drafts trees of up to 10 branches unless --speculative-ngram-max-bfs-breadth is 1; a match and its draft "
                       "are at most 18 tokens (--speculative-ngram-max-trie-depth). Chunked prefill is no longer mixed with decoding.")),
        ),
        "mtp": (
            Way({"speculative-algorithm": "NEXTN", "speculative-eagle-topk": 1}, _SGLANG_CHAIN, draft=_SGLANG_DRAFT,
                sampled=_SGLANG_SAMPLED, notes=("NEXTN runs as EAGLE; DeepSeek and GLM need no draft path.",)),
        ),
        "eagle": (
            Way({"speculative-algorithm": "EAGLE", "speculative-eagle-topk": 1}, _SGLANG_CHAIN, draft=_SGLANG_DRAFT,
                when={"tree": "chain"}, sampled=_SGLANG_SAMPLED),
        ),
        "eagle2": (
            Way({"speculative-algorithm": "EAGLE"}, options=_SGLANG_TREE, deep="depth", draft=_SGLANG_DRAFT,
                notes=("A top-k above 1 needs page size 1, or the flashinfer attention.",)),
        ),
        "eagle3": (
            Way({"speculative-algorithm": "EAGLE3", "speculative-eagle-topk": 1}, _SGLANG_CHAIN, draft=_SGLANG_DRAFT,
                when={"tree": "chain"}, sampled=_SGLANG_SAMPLED),
            Way({"speculative-algorithm": "EAGLE3"}, options=_SGLANG_TREE, deep="depth", draft=_SGLANG_DRAFT, when={"tree": "dynamic"},
                notes=("A top-k above 1 needs page size 1, or the flashinfer attention.",)),
        ),
    },
    "tensorrt-llm": {
        "plain": (Way(),),
        "draft-model": (
            Way({"decoding_type": "Draft_Target"}, _TRT_K, draft="speculative_model", sampled=_TRT_SAMPLED,
                notes=("Its guide writes DraftTarget, its class reads Draft_Target: if one is refused, write the other.",)),
        ),
        "pard": (Way({"decoding_type": "PARD"}, _TRT_K, {"pard_token": Key("mask_token_id")}, draft="speculative_model"),),
        "prompt-lookup": (
            Way({"decoding_type": "NGram", "is_public_pool": False}, _TRT_K, {"ngram_max": Key("max_matching_ngram_size")},
                unsaid={"max_matching_ngram_size": 2},
                notes=("Its n-grams stand in one pool for all requests unless is_public_pool is false, as here.",)),
        ),
        "mtp": (Way({"decoding_type": "MTP"}, _TRT_K, draft="speculative_model", sampled=_TRT_SAMPLED),),
        "eagle3": (
            Way({"decoding_type": "Eagle3"}, _TRT_K, draft="speculative_model", when={"tree": "chain"}, sampled=_TRT_SAMPLED),
            Way({"decoding_type": "Eagle3", "use_dynamic_tree": True},
                options={"depth": Key("max_draft_len", 1), "top_k": Key("dynamic_tree_max_topK"), "total_tokens": Key("max_total_draft_tokens", -1)},
                draft="speculative_model", when={"tree": "dynamic"}, deep="depth",
                notes=("No dynamic trees for models with a sliding window or latent attention (MLA).",)),
        ),
    },
}
"""Engine -> method -> how it is told, the first way whose `when` holds."""

_ALL = ""
NEAREST: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "llama-server": {
        "pard": ("draft-model", "it drafts with a model a token at a time"),
        "prompt-lookup": ("ngram-simple", "it copies what followed the last n-gram of a fixed length"),
        "suffix": ("ngram-map-k", "it counts what followed an n-gram, of a fixed length"),
        "eagle": ("eagle3", "of the EAGLE heads it loads EAGLE-3 alone"),
        "eagle2": ("eagle3", "of the EAGLE heads it loads EAGLE-3 alone, as a chain"),
        "p-eagle": ("eagle3", "its head drafts a token at a time"),
        "medusa": ("eagle3", "it loads no Medusa heads"),
        "mlp-speculator": ("eagle3", "it loads no MLP speculators"),
        "auto": ("cascade", "it has types in a fixed order, not the best one each round"),
        "eagle3": ("eagle3", "it drafts chains: set tree=chain"),
        "cascade": ("cascade", "it joins its own n-gram types and one draft"),
        _ALL: ("ngram-simple", "it needs no second model either"),
    },
    "vllm": {
        "ngram-simple": ("prompt-lookup", "it copies what followed the longest match"),
        "ngram-map-k": ("suffix", "it counts what followed a match, of any length"),
        "ngram-map-k4v": ("suffix", "it counts what followed a match, of any length"),
        "ngram-mod": ("suffix", "it too learns from what was said before"),
        "mlp-speculator": ("eagle3", "the name is still in its list of methods, but no drafter stands behind it any more"),
        "eagle2": ("eagle", "it drafts the same head's chain"),
        "eagle3": ("eagle3", "it drafts chains: set tree=chain"),
        "eagle": ("eagle", "it drafts chains: set tree=chain"),
        "medusa": ("medusa", "it drafts chains: set tree=chain"),
        "cascade": ("suffix", "one method a server"),
        "auto": ("suffix", "one method a server"),
        _ALL: ("prompt-lookup", "it needs no second model either"),
    },
    "sglang": {
        "pard": ("draft-model", "it drafts with a model a token at a time"),
        "suffix": ("prompt-lookup", "its NGRAM tree is shared by all requests"),
        "ngram-simple": ("prompt-lookup", "its NGRAM copies what followed a match"),
        "ngram-map-k": ("prompt-lookup", "its NGRAM copies what followed a match"),
        "ngram-map-k4v": ("prompt-lookup", "its NGRAM copies what followed a match"),
        "ngram-mod": ("prompt-lookup", "its NGRAM tree is shared by all requests"),
        "medusa": ("eagle3", "it loads no Medusa heads"),
        "mlp-speculator": ("eagle3", "it loads no MLP speculators"),
        "p-eagle": ("eagle3", "its head drafts a token at a time"),
        "eagle": ("eagle2", "its trees grow; it takes no fixed ones"),
        "cascade": ("prompt-lookup", "one method a server"),
        "auto": ("prompt-lookup", "one method a server"),
        _ALL: ("prompt-lookup", "it needs no second model either"),
    },
    "tensorrt-llm": {
        "suffix": ("prompt-lookup", "or its own suffix automaton, decoding_type: SA, which counts no frequencies"),
        "ngram-simple": ("prompt-lookup", "its NGram copies what followed a match"),
        "ngram-map-k": ("prompt-lookup", "its NGram copies what followed a match"),
        "ngram-map-k4v": ("prompt-lookup", "its NGram copies what followed a match"),
        "ngram-mod": ("prompt-lookup", "its NGram pool is shared by all requests by default"),
        "medusa": ("eagle3", "Medusa went with its TensorRT backend"),
        "mlp-speculator": ("eagle3", "it loads no MLP speculators"),
        "eagle": ("eagle3", "heads of EAGLE 1 and 2 do not fit it"),
        "eagle2": ("eagle3", "heads of EAGLE 1 and 2 do not fit it; EAGLE-3 drafts the same tree"),
        "p-eagle": ("eagle3", "its head drafts a token at a time"),
        "lookahead": ("prompt-lookup", "Lookahead went with its TensorRT backend"),
        "cascade": ("eagle3", "with sa_config its suffix automaton overrides the head where a match is long"),
        "auto": ("prompt-lookup", "or decoding_type: AUTO, which chooses a draft-free method once"),
        _ALL: ("prompt-lookup", "it needs no second model either"),
    },
}
"""Engine -> method that it lacks -> (what comes nearest, why); under '' what holds for every other."""


def nearest(engine: str, method: str) -> tuple[str, str]:
    """What comes nearest on an engine to a method that it lacks, and why."""
    known = NEAREST[engine]
    return known.get(method, known[_ALL])
