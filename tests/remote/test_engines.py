"""Each engine's file: what it reads off a server, what it asks, and what it makes of the stream."""

from __future__ import annotations

import pytest

from specview.decoding.sampling import SamplingParams
from specview.errors import SpecviewError
from specview.remote.client import Client
from specview.remote.engines import llama_server, openai, sglang, tensorrt_llm, vllm
from specview.remote.engines.base import Burst, Question, Request, Server
from specview.remote.engines.known import ADAPTERS, attach, between, read_counters
from tests.remote import hand_made
from tests.remote.server import Call, llama, objects, serving
from tests.remote.server import vllm as vllm_server

_SERVER = Server("any", "1", "smol", eos_id=2)
_CHAT = Question("Hello", ({"role": "user", "content": "Hello"},), max_tokens=32, likeliest=3)
_ODD = SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, seed=7, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3)


def bursts(reader: object, chunks: list[dict]) -> list[Burst]:
    found = [burst for chunk in chunks for burst in reader.feed(chunk)]
    return found + reader.close()


# -- llama-server, recorded ---------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "on", "method"), [("plain", False, ""), ("draft-simple", True, "draft-simple"), ("ngram-simple", True, "ngram-simple")])
def test_llama_server_tells_itself(kind: str, on: bool, method: str) -> None:
    with serving(llama(kind)) as server, Client(server.url) as client:
        adapter, found = attach(client)
        assert adapter is llama_server
        assert (found.context, found.slots, found.eos_id) == (1024, 2, 2)
        assert (found.speculation.on, found.speculation.method) == (on, method)
        assert found.model in found.models and found.model in found.words
        counters = read_counters(client, adapter)
        told = between(adapter, {}, counters)
    assert told.generated == 74 and not told.absent
    assert (told.drafted, told.accepted) == {"plain": (0, 0), "draft-simple": (139, 33), "ngram-simple": (39, 10)}[kind]


@pytest.mark.parametrize("kind", ["plain", "draft-simple", "ngram-simple"])
def test_llama_servers_chunks_become_the_passes_that_its_counts_tell(kind: str) -> None:
    chunks = objects(f"llama-{kind}.completion.sse")
    reader = llama_server.reader(_SERVER, Request("/completion", {}))
    found = bursts(reader, chunks)
    assert "".join(one.text for one in found) == "".join(chunk["content"] for chunk in chunks)
    assert sum(one.count for one in found) == reader.told.output_tokens == 32
    assert [token for one in found for token in one.token_ids] == [token for chunk in chunks for token in chunk["tokens"]]
    last = chunks[-1]["timings"]
    assert (sum(one.drafted for one in found), sum(one.accepted for one in found)) == (last.get("draft_n", 0), last.get("draft_n_accepted", 0))
    assert all(one.count == one.accepted + 1 for one in found[:-1])  # a pass adds one token of the target's own
    assert found[-1].count <= found[-1].accepted + 1  # the limit may cut the last
    assert reader.told.finish == "limit" and reader.told.prompt_ms > 0


def test_the_end_of_text_of_llama_server_is_a_token_of_its_last_pass() -> None:
    chunks = objects("llama-draft-simple.completion.sse")
    told = chunks[-1] | {"stop_type": "eos", "tokens_predicted": 33, "timings": chunks[-1]["timings"] | {"predicted_ms": 1e6}}
    found = bursts(llama_server.reader(_SERVER, Request("/completion", {})), [*chunks[:-1], told])
    assert found[-1].token_ids == (2,) and found[-1].text == "" and found[-1].finish == "eos"


def test_llama_server_is_asked_with_ids_and_its_own_samplers_are_off() -> None:
    with serving(llama("plain")) as server, Client(server.url) as client:
        _, found = attach(client)
        asked = llama_server.request(client, found, Question(**_as_dict(_CHAT), sampling=_ODD))
        raw = llama_server.request(client, found, Question("Once upon a time", max_tokens=4))
        (token_call,) = [call for call in server.asked("/tokenize") if "Once" in call.body["content"]]
    assert asked.path == "/completion" and asked.body["prompt"] == list(asked.prompt_ids) and asked.prompt_ids
    fields = {key: asked.body[key] for key in ("temperature", "top_k", "top_p", "min_p", "seed", "repeat_penalty", "presence_penalty", "frequency_penalty")}
    assert fields == {
        "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 7, "repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
    }  # fmt: skip
    assert asked.body["repeat_last_n"] == 1024 and "repeat_last_n" not in raw.body  # -1, for the whole context, is refused
    assert 0 <= asked.body["seed"] < 2**31
    assert asked.body["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"] and not asked.ignored
    assert token_call.body["parse_special"] is False and len(raw.prompt_ids) == 4


# -- vLLM, recorded -----------------------------------------------------------------------------


def test_vllm_tells_itself_and_its_counters_agree_with_the_chunks() -> None:
    with serving(vllm_server) as server, Client(server.url) as client:
        adapter, found = attach(client)
        assert adapter is vllm and found.version == "0.32.0" and found.context == 1024
        assert (found.speculation.on, found.speculation.k) == (True, 4)
        before = read_counters(client, adapter)
        asked = adapter.request(client, found, _CHAT)
        with client.stream(asked.path, asked.body) as chunks:
            reader = adapter.reader(found, asked)
            got = bursts(reader, list(chunks))
        told = between(adapter, before, read_counters(client, adapter))
    assert (told.drafts, told.drafted, told.accepted, told.generated) == (2, 8, 4, 53)
    assert told.positions == (1, 1, 1, 1) and told.draft_acceptance == 0.5 and told.mean_accepted_length == 3
    assert sum(one.count for one in got) == told.generated == reader.told.output_tokens
    assert sum(one.count - 1 for one in got) == told.accepted
    assert len(reader.told.prompt_ids) == reader.told.prompt_tokens == 50
    assert got[-1].finish == "eos" and got[-1].token_ids == (2,)


def test_a_bursts_text_is_split_by_its_tokens() -> None:
    found = bursts(vllm.reader(_SERVER, Request("", {})), objects("vllm-stream.sse"))
    assert all("".join(one.texts) == one.text and len(one.texts) == one.count for one in found)
    (several,) = [one for one in found if one.count > 1]
    assert len(several.texts) == 5 and all(several.texts[:4])
    assert len(several.logprobs) == 5 and len(several.logprobs[0].top) == 3


def test_a_letter_split_over_tokens_goes_with_its_last() -> None:
    content = [{"token": "�", "bytes": [0xC3], "logprob": -1}, {"token": "�", "bytes": [0xBC], "logprob": -1}, {"token": "<|im_end|>", "logprob": -1}]
    chunk = {"choices": [{"delta": {"content": "ü"}, "logprobs": {"content": content}, "token_ids": [1, 2, 3]}]}
    (one,) = vllm.reader(_SERVER, Request("", {})).feed(chunk)
    assert one.texts == ("", "ü", "")


def test_the_completions_form_is_read_too() -> None:
    choice = {"text": " a b", "token_ids": [1, 2], "prompt_token_ids": [9], "finish_reason": "stop", "stop_reason": "END",
              "logprobs": {"tokens": [" a", " b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{" a": -0.1}, {" b": -0.2, " c": -3}]}}  # fmt: skip
    reader = vllm.reader(_SERVER, Request("", {}))
    (one,) = reader.feed({"choices": [choice]})
    assert one.texts == (" a", " b") and one.finish == "stop: END" and reader.told.prompt_ids == (9,)
    assert one.logprobs[1].top == ((None, " b", -0.2), (None, " c", -3.0))


def test_vllms_own_figures_of_a_request_are_taken_where_it_sends_them() -> None:
    reader = vllm.reader(_SERVER, Request("", {}))
    reader.feed({"choices": [], "usage": {"completion_tokens": 9}, "metrics": {"speculative_decoding": {"num_draft_tokens": 12, "num_accepted_draft_tokens": 5}}})
    assert (reader.told.drafted, reader.told.accepted) == (12, 5)


# -- SGLang and TensorRT-LLM, by hand -----------------------------------------------------------


def test_sglang_by_hand() -> None:
    def answer(call: Call) -> None:
        pages = {"/v1/models": hand_made.SGLANG_MODELS, "/server_info": hand_made.SGLANG_INFO}
        if call.path in pages:
            call.json(pages[call.path])
        elif call.path == "/metrics":
            call.send(hand_made.SGLANG_METRICS, "text/plain")
        else:
            call.begin()
            call.write(hand_made.events(hand_made.SGLANG_CHUNKS))

    with serving(answer) as server, Client(server.url) as client:
        adapter, found = attach(client)
        assert adapter is sglang
        assert (found.version, found.context, found.speculation.method, found.speculation.k) == ("0.5.9", 32768, "EAGLE3", 4)
        told = between(adapter, {}, read_counters(client, adapter))
        assert (told.drafts, told.drafted, told.generated, told.running) == (400, None, 1000, 1)
        asked = adapter.request(client, found, _CHAT)
        assert asked.body["top_k"] == -1
        with client.stream(asked.path, asked.body) as chunks:
            reader = adapter.reader(found, asked)
            got = bursts(reader, list(chunks))
    assert [one.token_ids for one in got] == [(7,), (8, 9), (10, 2)]
    assert (reader.told.drafted, reader.told.accepted, reader.told.finish) == (6, 2, "eos")


def test_tensorrt_llm_by_hand() -> None:
    def answer(call: Call) -> None:
        if call.path == "/v1/models":
            call.json(hand_made.TRT_MODELS)
        elif call.path == "/version":
            call.json({"version": "1.3.0"})
        elif call.path == "/prometheus/metrics":
            call.send(hand_made.TRT_METRICS, "text/plain")
        elif call.path == "/v1/chat/completions":
            call.begin()
            call.write(hand_made.events(hand_made.TRT_CHUNKS))
        else:
            call.json({"detail": "Not Found"}, 404)

    with serving(answer) as server, Client(server.url) as client:
        adapter, found = attach(client)
        assert adapter is tensorrt_llm
        assert (found.version, found.speculation.on, found.speculation.method, found.speculation.k) == ("1.3.0", True, "Eagle3", 3)
        told = between(adapter, {}, read_counters(client, adapter))
        assert (told.drafted, told.accepted, told.drafts) == (60, 30, None)
        asked = adapter.request(client, found, _CHAT)
        with client.stream(asked.path, asked.body) as chunks:
            reader = adapter.reader(found, asked)
            got = bursts(reader, list(chunks))
    assert [one.texts for one in got] == [("The",), (" sky", " is")] and got[0].token_ids is None
    assert (reader.told.drafted, reader.told.accepted, reader.told.finish) == (3, 1, "limit")


# -- any ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [vllm, sglang, tensorrt_llm], ids=lambda one: one.name)
def test_every_sampling_setting_has_a_field_or_is_said_to_be_ignored(adapter: object, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = adapter.request(None, _SERVER, Question(**_as_dict(_CHAT), sampling=_ODD, stop=("END",)))
    sent = {key: asked.body.get(key) for key in ("temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty")}
    assert sent == {name: getattr(_ODD, name) for name in sent}
    assert asked.body["stop"] == ["END"] and asked.ignored == ()
    monkeypatch.setattr(openai, "_FIELDS", {"temperature"})
    asked = openai.request_of(_SERVER, Question("x", sampling=_ODD))
    assert "top-k 40" in asked.ignored and "min_p" not in asked.body and len(asked.ignored) == 7


def test_what_is_none_of_the_engines_is_said() -> None:
    with serving(lambda call: call.json({"data": [{"id": "gpt", "owned_by": "somebody"}]})) as server, Client(server.url) as client, pytest.raises(SpecviewError, match="somebody"):
        attach(client)
    assert set(ADAPTERS) == {"llama-server", "vLLM", "SGLang", "TensorRT-LLM"}


def _as_dict(question: Question) -> dict:
    return {"prompt": question.prompt, "messages": question.messages, "max_tokens": question.max_tokens, "likeliest": question.likeliest}
