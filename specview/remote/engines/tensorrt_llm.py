"""TensorRT-LLM (trtllm-serve). Written against its source (2026), and hand-made traffic: not tried with a real server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.remote.client import Client
from specview.remote.counters import Names, samples
from specview.remote.engines.base import Question, Request, Server, Speculation, ask, number_of, page, text_of
from specview.remote.engines.openai import ChunkReader, model_of, request_of

name = "TensorRT-LLM"
owner = "tensorrt_llm"
names = Names(
    drafted="trtllm_spec_decode_num_draft_tokens_total",
    accepted="trtllm_spec_decode_num_accepted_tokens_total",
    generated="trtllm_generation_tokens_total",
    running="trtllm_num_requests_running",
    waiting="trtllm_num_requests_waiting",
    path="/prometheus/metrics",
)
_CONFIG = "trtllm_speculative_config_info"


def probe(client: Client, models: Sequence[Mapping[str, Any]]) -> Server:
    """The server: where its Prometheus page is on, that has the configuration of its speculation."""
    model, all_models = model_of(models)
    found = samples(page(client, names.path))
    notes = ["TensorRT-LLM shows no token ids in a stream: tokens are told apart by their texts."]
    speculation = Speculation()
    if not found:
        notes.append("Its /prometheus/metrics does not answer (return_perf_metrics switches it on): whether it drafts is not known.")
    elif _CONFIG in found:
        facts = dict(next(iter(found[_CONFIG])))
        method = text_of(facts, "speculative_decoding_type", "decoding_type", "spec_type", "method")
        k = text_of(facts, "max_draft_len", "max_draft_tokens", "max_total_draft_tokens")
        speculation = Speculation(on=method.lower() not in ("none", "null"), method=method, k=int(k) if k.isdigit() else None)
    else:
        speculation = Speculation(on=True if samples_of(found, names.drafted) else None)
    return Server(name, text_of(ask(client, "/version"), "version"), model, all_models, number_of(models[0], "max_model_len") if models else None, speculation, notes=tuple(notes))


def samples_of(found: Mapping[str, Mapping[Any, float]], counter: str) -> float:
    """A counter's sum, 0 where it is absent."""
    return sum(found.get(counter, {}).values())


def request(client: Client, server: Server, question: Question) -> Request:
    """A chat or a completion."""
    return request_of(server, question)


def reader(server: Server, request: Request) -> ChunkReader:
    """A chunk carries what came since the last one; the last chunk has the request's own figures where the server has them on."""
    return ChunkReader(server, request)
