"""SGLang. Written against its source and documentation (2026), and hand-made traffic: not tried with a real server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.remote.client import Client
from specview.remote.counters import Names
from specview.remote.engines.base import Question, Request, Server, Speculation, ask, number_of, text_of
from specview.remote.engines.openai import ChunkReader, model_of, request_of

name = "SGLang"
owner = "sglang"
names = Names(
    drafts="sglang:spec_verify_calls_total",
    generated="sglang:generation_tokens_total",
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
)
"""It counts passes with a draft, and neither drafted nor accepted tokens: those are gauges of its last interval."""


def probe(client: Client, models: Sequence[Mapping[str, Any]]) -> Server:
    """The server: its server_info has the arguments that it was started with."""
    model, all_models = model_of(models)
    info = ask(client, "/server_info") or ask(client, "/get_server_info")
    notes = ["SGLang's counters have no drafted and accepted tokens: per request they are known where it sends meta_info."]
    speculation = Speculation()
    if isinstance(info, dict):
        method = text_of(info, "speculative_algorithm")
        speculation = Speculation(
            on=bool(method), method=method, k=number_of(info, "speculative_num_draft_tokens", "speculative_num_steps"),
            draft=text_of(info, "speculative_draft_model_path"),
        )  # fmt: skip
    else:
        info = {}
        notes.append("Its server_info does not answer: whether it drafts is not known.")
    context = number_of(models[0], "max_model_len") if models else None
    return Server(name, text_of(info, "version"), model or text_of(info, "served_model_name", "model_path"), all_models, context or number_of(info, "context_length"), speculation, notes=tuple(notes))


def request(client: Client, server: Server, question: Question) -> Request:
    """A chat or a completion; ids and figures of the request where this version sends them."""
    more: dict[str, Any] = {"return_token_ids": True}
    if question.chat:
        more |= {"return_meta_info": True, "return_prompt_token_ids": True}
    if question.sampling.top_k == 0:
        more["top_k"] = -1  # off, as SGLang has it
    return request_of(server, question, more)


def reader(server: Server, request: Request) -> ChunkReader:
    """A chunk carries what came since the last one: one pass where its stream interval is 1."""
    return ChunkReader(server, request)
