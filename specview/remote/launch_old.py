"""Names that guides still show: what each engine's flags and keys were called before, or are called elsewhere.

Read from llama.cpp b11434 (its list of removed arguments), vLLM 0.32.0 and the guides of 0.6 to 0.10, SGLang 0.5.23, TensorRT-LLM's
llm_args.py and the guides of 0.18 to 1.1; 2026-12-01.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Old:
    """What became of a name: what is written now ('' where nothing is), what key that sets, and a word on it."""

    now: str = ""
    key: str = ""
    why: str = ""


def _names(text: str) -> list[str]:
    return text.split()


OLD_FLAGS: Mapping[str, Mapping[str, Old]] = {
    "llama-server": {
        **dict.fromkeys(("--draft", "--draft-n", "--draft-max"),
                        Old("--spec-draft-n-max", "spec-draft-n-max", "removed; of ngram-mod it is --spec-ngram-mod-n-max")),
        **dict.fromkeys(("--draft-min", "--draft-n-min"), Old("--spec-draft-n-min", "spec-draft-n-min", "removed")),
        "--draft-model": Old("--spec-draft-model", "spec-draft-model", "never a flag of llama-server: other programs call it so"),
        "--spec-ngram-size-n": Old("--spec-ngram-simple-size-n", "spec-ngram-simple-size-n", "removed: each type has its own"),
        "--spec-ngram-size-m": Old("--spec-ngram-simple-size-m", "spec-ngram-simple-size-m", "removed: each type has its own"),
        "--spec-ngram-min-hits": Old("--spec-ngram-simple-min-hits", "spec-ngram-simple-min-hits", "removed: each type has its own"),
        "--ctx-size-draft": Old(why="removed: the draft has the target's context"),
        "-cd": Old(why="removed: the draft has the target's context"),
        "--draft-p-accept": Old("--spec-draft-p-min", "spec-draft-p-min"),
    },
    "vllm": {
        "--speculative-model": Old("--spec-model", "model"),
        "--num-speculative-tokens": Old("--spec-tokens", "num_speculative_tokens"),
        "--speculative-method": Old("--spec-method", "method"),
        "--ngram-prompt-lookup-max": Old("--speculative-config.prompt_lookup_max", "prompt_lookup_max"),
        "--ngram-prompt-lookup-min": Old("--speculative-config.prompt_lookup_min", "prompt_lookup_min"),
        "--speculative-draft-tensor-parallel-size": Old("--speculative-config.draft_tensor_parallel_size", "draft_tensor_parallel_size"),
        "-spec-draft-tp": Old("--speculative-config.draft_tensor_parallel_size", "draft_tensor_parallel_size"),
        "--speculative-max-model-len": Old("--speculative-config.max_model_len", "max_model_len"),
        "--speculative-model-quantization": Old("--speculative-config.quantization", "quantization"),
        "--speculative-disable-by-batch-size": Old(why="removed: num_speculative_tokens_per_batch_size sets lengths by batch size"),
        "--speculative-disable-mqa-scorer": Old(why="removed with the old engine"),
        "--spec-decoding-acceptance-method": Old(why="removed: rejection_sample_method, without typical acceptance"),
        "--typical-acceptance-sampler-posterior-threshold": Old(why="removed: it has no typical acceptance any more"),
        "--typical-acceptance-sampler-posterior-alpha": Old(why="removed: it has no typical acceptance any more"),
        "--disable-logprobs-during-spec-decoding": Old(why="removed"),
        "--use-v2-block-manager": Old(why="removed: there is one block manager"),
        "--draft-model": Old("--spec-model", "model", "never a flag of vLLM"),
    },
    "sglang": {
        "--speculative-draft": Old("--speculative-draft-model-path", "speculative-draft-model-path"),
        "--speculative-algo": Old("--speculative-algorithm", "speculative-algorithm"),
        "--draft-model": Old("--speculative-draft-model-path", "speculative-draft-model-path", "never a flag of SGLang"),
        "--speculative-ngram-min-match-window-size": Old(why="removed: the longest match counts"),
        "--speculative-ngram-max-match-window-size": Old("--speculative-ngram-max-trie-depth", "speculative-ngram-max-trie-depth"),
        "--speculative-ngram-branch-length": Old("--speculative-ngram-max-trie-depth", "speculative-ngram-max-trie-depth"),
    },
    "tensorrt-llm": {
        "--speculative_model": Old("speculative_config.speculative_model", "speculative_model", "it stands in the file that --config names"),
        "--max_draft_len": Old("speculative_config.max_draft_len", "max_draft_len", "it stands in the file that --config names"),
        "--speculative_decoding_mode": Old("speculative_config.decoding_type", why="it was for building engines"),
    },
}
"""Engine -> a flag that it does not know (any more) -> what became of it."""

OLD_KEYS: Mapping[str, Mapping[str, Old]] = {
    "vllm": {
        "speculative_model": Old("model", "model"),
        "disable_by_batch_size": Old(why="removed: num_speculative_tokens_per_batch_size sets lengths by batch size"),
        "disable_logprobs": Old(why="removed"),
        "disable_log_stats": Old(why="removed"),
        "disable_mqa_scorer": Old(why="removed with the old engine"),
        "acceptance_method": Old("rejection_sample_method", why="without typical acceptance"),
        "ngram_prompt_lookup_max": Old("prompt_lookup_max", "prompt_lookup_max"),
        "ngram_prompt_lookup_min": Old("prompt_lookup_min", "prompt_lookup_min"),
    },
    "tensorrt-llm": {
        "speculative_model_dir": Old("speculative_model", "speculative_model", "still read"),
        "pytorch_eagle_weights_path": Old("speculative_model", "speculative_model"),
        "pytorch_weights_path": Old("speculative_model", "speculative_model"),
        "prompt_lookup_num_tokens": Old("max_draft_len", "max_draft_len"),
        "num_nextn_predict_layers": Old("max_draft_len", "max_draft_len", "deprecated"),
        "use_sa_spec": Old("sa_config", why="a block of its own: sa_config: {threshold: 4}"),
        "sa_spec_threshold": Old("sa_config", why="a block of its own: sa_config: {threshold: 4}"),
        "eagle3_one_model": Old(why="ignored: the draft is always part of the model"),
        "mtp_eagle_one_model": Old(why="ignored: the draft is always part of the model"),
        "allow_advanced_sampling": Old(why="without effect: sampling is seen from each request"),
        "eagle_choices": Old("use_dynamic_tree", why="fixed trees go with release 1.4"),
        "greedy_sampling": Old(why="it was for the TensorRT backend"),
        "posterior_threshold": Old(why="it was for the TensorRT backend"),
        "num_eagle_layers": Old(why="it was for the TensorRT backend"),
        "max_ngram_size": Old("max_matching_ngram_size", "max_matching_ngram_size"),
    },
}
"""Engine -> a key of its drafting settings that it does not know (any more) -> what became of it."""

OLD_VALUES: Mapping[str, Mapping[str, Mapping[str, Old]]] = {
    "llama-server": {
        "spec-type": {
            **dict.fromkeys(("draft", "draft-model", "simple"), Old("draft-simple")),
            "eagle3": Old("draft-eagle3"), "mtp": Old("draft-mtp"), "dflash": Old("draft-dflash"),
            "draft-self": Old("draft-mtp", why="the target's own modules draft; without any, ngram-simple needs no second model"),
            "self": Old("ngram-simple", why="it needs no second model"),
            "ngram": Old("ngram-simple"),
        },
    },
    "vllm": {
        "method": {
            "[ngram]": Old("ngram"), "draft-model": Old("draft_model"), "eagle-3": Old("eagle3"), "EAGLE3": Old("eagle3"),
            **dict.fromkeys(_names("deepseek_mtp mimo_mtp mimo_v2_mtp glm4_moe_mtp glm4_moe_lite_mtp ernie_mtp nemotron_h_mtp qwen3_next_mtp "
                                   "qwen3_5_mtp longcat_flash_mtp minimax_m3_mtp pangu_ultra_moe_mtp step3p5_mtp gemma4_mtp"),
                            Old("mtp", why="still read")),
            "nextn": Old("mtp"), "mlp_speculator": Old(why="no drafter stands behind it any more"),
        },
    },
    "sglang": {"speculative-algorithm": {"eagle3": Old("EAGLE3"), "eagle": Old("EAGLE"), "LOOKAHEAD": Old("NGRAM"), "MTP": Old("NEXTN")}},
    "tensorrt-llm": {
        "decoding_type": {
            "DraftTarget": Old("Draft_Target", why="its guide still writes it so"),
            "Eagle": Old("Eagle3", why="still read; heads of EAGLE 1 and 2 do not fit"),
            "EAGLE3": Old("Eagle3"), "Ngram": Old("NGram"), "UserProvided": Old("User_Provided"),
            "Medusa": Old(why="it went with the TensorRT backend"), "Lookahead": Old(why="it went with the TensorRT backend"),
        },
    },
}
"""Engine -> key -> a value that it does not know (any more) -> what became of it."""

ELSEWHERE: Mapping[str, str] = {
    "--draft-model": "mlx_lm.server, LM Studio",
    "--num-draft-tokens": "mlx_lm.server",
    "--assistant-model": "transformers serve",
}
"""Flags of programs that are none of the four."""

JSON_KEYS: Mapping[str, frozenset[str]] = {
    "vllm": frozenset(_names(
        "enforce_eager num_speculative_tokens model method draft_tensor_parallel_size quantization moe_backend attention_backend "
        "kv_cache_dtype max_model_len revision code_revision index_share_for_mtp_iteration disable_padded_drafter_batch "
        "disable_eagle_block_drop use_local_argmax_reduction use_heterogeneous_vocab prompt_lookup_max prompt_lookup_min "
        "parallel_drafting num_speculative_tokens_per_batch_size suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests "
        "suffix_decoding_max_spec_factor suffix_decoding_min_token_prob draft_load_config rejection_sample_method "
        "synthetic_acceptance_rates synthetic_acceptance_length enable_adaptive_verification draft_sample_method dspark_draft_topk"
    )),
    "tensorrt-llm": frozenset(_names(
        "decoding_type max_draft_len max_total_draft_tokens speculative_model moe_backend moe_tactic max_concurrency draft_len_schedule "
        "load_format acceptance_rate_window_size acceptance_rate_threshold use_rejection_sampling advanced_sampling_mode enable_penalty "
        "spec_dec_variant use_dynamic_tree dynamic_tree_max_topK max_non_leaves_per_layer eagle3_layers_to_capture eagle3_model_arch "
        "sa_config max_matching_ngram_size is_keep_all is_use_oldest is_public_pool enable_global_pool global_pool_size "
        "use_relaxed_acceptance_for_thinking relaxed_topk relaxed_delta use_mtp_vanilla draft_lm_head_dtype draft_moe_dtype "
        "begin_thinking_phase_token end_thinking_phase_token mask_token_id target_layer_ids attention_backend block_size markov_rank "
        "markov_head_type context_recompute_tail skip_ctx_buffer_budget_check"
    )),
}
"""Engine -> the keys of its drafting settings."""
VALUES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "llama-server": {
        "spec-type": frozenset(_names(
        "none draft-simple draft-eagle3 draft-dflash draft-dspark draft-mtp ngram-cache ngram-simple "
                               "ngram-map-k ngram-map-k4v ngram-mod"
    )),
        "spec-draft-sampling": frozenset(("greedy", "probabilistic")),
    },
    "vllm": {
        "method": frozenset(_names(
        "ngram ngram_gpu medusa draft_model suffix custom_class eagle eagle3 extract_hidden_states mtp dflash dspark"
    )),
        "draft_sample_method": frozenset(("greedy", "probabilistic")),
        "rejection_sample_method": frozenset(("standard", "synthetic", "block")),
    },
    "sglang": {"speculative-algorithm": frozenset(_names("EAGLE EAGLE3 NEXTN STANDALONE NGRAM DFLASH DSPARK UNO"))},
    "tensorrt-llm": {
        "decoding_type": frozenset(_names("MTP Eagle3 NGram Draft_Target PARD DFlash DSpark SA AUTO SaveState User_Provided")),
    },
}
"""Engine -> key -> the values that it takes."""
