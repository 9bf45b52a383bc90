"""vLLM. Written against 0.32: recorded traffic, and its documentation of per-request acceptance metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.remote.client import Client
from specview.remote.counters import Names, samples
from specview.remote.engines.base import Question, Request, Server, Speculation, ask, number_of, page, text_of
from specview.remote.engines.openai import ChunkReader, model_of, request_of

name = "vLLM"
owner = "vllm"
names = Names(
    drafts="vllm:spec_decode_num_drafts_total",
    drafted="vllm:spec_decode_num_draft_tokens_total",
    accepted="vllm:spec_decode_num_accepted_tokens_total",
    per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    generated="vllm:generation_tokens_total",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
)


def probe(client: Client, models: Sequence[Mapping[str, Any]]) -> Server:
    """The server: its counters tell whether it drafts and how many tokens at most, nothing tells by which method."""
    model, all_models = model_of(models)
    text = page(client, names.path)
    found = samples(text)
    notes = []
    speculation = Speculation()
    if text:
        places = [int(dict(labels).get("position", -1)) for labels in found.get(names.per_position, {}) if dict(labels).get("position", "").isdigit()]
        speculation = Speculation(on=names.drafts in found, k=max(places) + 1 if places else None)
        if speculation.on:
            notes.append("vLLM does not tell which method drafts.")
    else:
        notes.append("Its /metrics does not answer: whether it drafts is not known before it streams.")
    return Server(name, text_of(ask(client, "/version"), "version"), model, all_models, number_of(models[0], "max_model_len") if models else None, speculation, notes=tuple(notes))


def request(client: Client, server: Server, question: Question) -> Request:
    """A chat or a completion that shows the tokens' ids."""
    return request_of(server, question, {"return_token_ids": True})


def reader(server: Server, request: Request) -> ChunkReader:
    """A chunk of its stream carries the tokens of one pass."""
    return ChunkReader(server, request)
