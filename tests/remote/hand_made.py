"""Traffic of SGLang and TensorRT-LLM, written by hand from their sources and documentation: no real server was recorded."""

from __future__ import annotations

import json

SGLANG_MODELS = {"object": "list", "data": [{"id": "qwen", "owned_by": "sglang", "max_model_len": 32768}]}
SGLANG_INFO = {
    "model_path": "/models/qwen", "served_model_name": "qwen", "version": "0.5.9", "context_length": None,
    "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
    "speculative_draft_model_path": "/models/qwen-eagle3", "internal_states": [{"avg_spec_accept_length": 2.1}],
}  # fmt: skip
SGLANG_METRICS = """\
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{engine_type="unified",model_name="qwen"} 1000.0
sglang:spec_verify_calls_total{engine_type="unified",model_name="qwen"} 400.0
sglang:num_running_reqs{tp_rank="0"} 1.0
sglang:num_queue_reqs{tp_rank="0"} 0.0
sglang:spec_accept_length{tp_rank="0"} 2.5
sglang:spec_accept_rate{tp_rank="0"} 0.7
"""
SGLANG_CHUNKS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": "The"}, "token_ids": [7], "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": " sky is"}, "token_ids": [8, 9], "finish_reason": None}]},
    {
        "choices": [
            {
                "index": 0, "delta": {"content": " blue"}, "token_ids": [10, 2], "finish_reason": "stop", "matched_stop": 2,
                "meta_info": {"spec_verify_ct": 2, "spec_accept_token_num": 2, "spec_draft_token_num": 6, "completion_tokens": 5},
            }
        ]
    },
    {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}},
]  # fmt: skip

TRT_MODELS = {"object": "list", "data": [{"id": "llama", "object": "model", "owned_by": "tensorrt_llm"}]}
TRT_METRICS = """\
trtllm_spec_decode_num_draft_tokens_total{engine_type="trtllm",model_name="llama"} 60.0
trtllm_spec_decode_num_accepted_tokens_total{engine_type="trtllm",model_name="llama"} 30.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="llama"} 50.0
trtllm_num_requests_running{model_name="llama"} 0.0
trtllm_speculative_config_info{decoding_type="Eagle3",max_draft_len="3",model_name="llama"} 1.0
"""
TRT_CHUNKS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
    {"choices": [{"index": 0, "delta": {"content": "The"}, "logprobs": {"content": [{"token": "The", "logprob": -0.1, "bytes": [84, 104, 101]}]}}]},
    {
        "choices": [
            {
                "index": 0, "delta": {"content": " sky is"}, "finish_reason": "length", "avg_decoded_tokens_per_iter": 2.0,
                "logprobs": {"content": [{"token": " sky", "logprob": -0.2}, {"token": " is", "logprob": -0.3}]},
                "speculative_decoding": {
                    "acceptance_rate": 0.5, "total_accepted_draft_tokens": 1, "total_draft_tokens": 3, "num_spec_steps": 1,
                    "acceptance_histogram": [0, 1, 0, 0], "num_spec_tokens": 3,
                },
            }
        ]
    },
]  # fmt: skip


def events(chunks: list[dict]) -> bytes:
    """The chunks as a stream."""
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"
