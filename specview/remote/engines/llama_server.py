"""llama-server of llama.cpp. Written against its recorded traffic, speculation off, with a draft model and with n-grams.

A chunk has one token. Its timings tell which tokens came of one pass: predicted_ms and the counts of drafted and accepted tokens
move on with a pass and stand still within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.errors import SpecviewError
from specview.fields import values_of
from specview.remote.client import Client
from specview.remote.counters import Names
from specview.remote.engines.base import (
    Burst,
    Logprob,
    Question,
    Request,
    Server,
    Speculation,
    Told,
    ask,
    ids_of,
    number_of,
    part_of,
    text_of,
)
from specview.remote.engines.openai import model_of

name = "llama-server"
owner = "llamacpp"
names = Names(
    drafts="llamacpp:spec_decode_num_drafts_total",
    drafted="llamacpp:spec_decode_num_draft_tokens_total",
    accepted="llamacpp:spec_decode_num_accepted_tokens_total",
    per_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    generated="llamacpp:tokens_predicted_total",
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
)
_FIELDS = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed",
    "repetition_penalty": "repeat_penalty", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}  # fmt: skip
_OFF = {"mirostat": 0, "dynatemp_range": 0.0}
"""What its command line might do besides, switched off."""
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
_SEEDS = 2**31 - 1
"""Seeds that it takes; it reads one as a signed number of 32 bits."""
_LONG = 32_768
"""Tokens that its penalties look back over where its context is not known."""


def probe(client: Client, models: Sequence[Mapping[str, Any]]) -> Server:
    """The server: properties, slots and models tell all but the draft's name and length."""
    model, all_models = model_of(models)
    props = ask(client, "/props")
    props = props if isinstance(props, dict) else {}
    slots = ask(client, "/slots")
    notes = ["llama-server does not tell the draft model, nor how many tokens it drafts at most."]
    speculation = Speculation()
    if isinstance(slots, list) and slots and isinstance(slots[0], dict) and "speculative" in slots[0]:
        kinds = {text_of(one.get("params"), "speculative.types") for one in slots if isinstance(one, dict)}
        methods = sorted({kind for text in kinds for kind in text.split(",") if kind and kind != "none"})
        on = bool(slots[0]["speculative"])
        speculation = Speculation(on=on, method=", ".join(methods) if on else "")
        notes = notes if on else []
        if on and not methods:
            notes.append("It tells its method once it has answered a request.")
    else:
        notes.append("Its /slots does not answer: whether it drafts is seen in its stream.")
    context = number_of(props.get("default_generation_settings"), "n_ctx")
    return Server(
        name, text_of(props, "build_info"), model or text_of(props, "model_path"), all_models, context, speculation,
        _eos(client, text_of(props, "eos_token")), number_of(props, "total_slots"), tuple(notes),
    )  # fmt: skip


def _eos(client: Client, text: str) -> int | None:
    if not text:
        return None
    try:
        ids = _tokens(client, text, special=True, begin=False)
    except SpecviewError:
        return None
    return ids[0] if len(ids) == 1 else None


def _tokens(client: Client, text: str, *, special: bool, begin: bool) -> tuple[int, ...]:
    found = client.post_json("/tokenize", {"content": text, "parse_special": special, "add_special": begin})
    ids = ids_of(found.get("tokens") if isinstance(found, dict) else None)
    if ids is None:
        raise SpecviewError(f"{client.address} did not tokenize the prompt.")
    return ids


def request(client: Client, server: Server, question: Question) -> Request:
    """A completion of ids: the server renders the chat and tokenizes it, so that ids are known on both sides."""
    if question.chat:
        found = client.post_json("/apply-template", {"messages": [dict(one) for one in question.messages]})
        rendered = text_of(found, "prompt")
        if not rendered:
            raise SpecviewError(f"{client.address} did not render the chat.")
        ids = _tokens(client, rendered, special=True, begin=False)
    else:
        ids = _tokens(client, question.prompt, special=False, begin=True)
    body: dict[str, Any] = {
        "prompt": list(ids), "n_predict": question.max_tokens, "stream": True, "return_tokens": True, "timings_per_token": True,
        "cache_prompt": False, **_OFF,
    }  # fmt: skip
    body |= {_FIELDS[one.name]: value for one, value in values_of(question.sampling) if one.name in _FIELDS}
    body |= {"samplers": list(_SAMPLERS), "seed": question.sampling.seed % _SEEDS}
    if question.sampling.penalised:  # over the whole context, as ours; -1 for that is refused since 2026
        body["repeat_last_n"] = server.context or _LONG
    if question.stop:
        body["stop"] = list(question.stop)
    if question.likeliest:
        body["n_probs"] = question.likeliest
    return Request("/completion", body, (), ids)


class PassReader:
    """Chunks of one token each, gathered into passes by the timings."""

    def __init__(self, server: Server, request: Request) -> None:
        self.told = Told(prompt_ids=request.prompt_ids)
        self._eos = server.eos_id
        self._tokens: list[tuple[int | None, str, Logprob | None]] = []
        self._clock: float | None = None
        self._counts = (0, 0)
        self._of_pass: tuple[int | None, int | None] = (None, None)
        self._seen = 0

    def feed(self, chunk: Mapping[str, Any]) -> list[Burst]:
        """The pass that a chunk completes, and the one before it where that was not told complete."""
        found: list[Burst] = []
        timings = part_of(chunk, "timings")
        clock = timings.get("predicted_ms")
        if timings:
            self.told.prompt_ms = timings.get("prompt_ms")
            self.told.cached_tokens = number_of(timings, "cache_n")
        ids = ids_of(chunk.get("tokens")) or ()
        text = str(chunk.get("content") or "")
        if ids or (text and not chunk.get("stop")):
            if self._tokens and (clock is None or clock != self._clock):
                found.append(self._burst())
            if not self._tokens:
                self._begin(timings, clock)
            logprobs = _logprobs(chunk.get("completion_probabilities"))
            for index, token in enumerate(ids or (None,)):
                last = index == max(0, len(ids) - 1)
                self._tokens.append((token, text if last else "", logprobs[index] if index < len(logprobs) else None))
                self._seen += 1
            accepted = self._of_pass[1]
            if accepted is not None and len(self._tokens) > accepted:
                found.append(self._burst())
        if chunk.get("stop") is True:
            found += self._end(chunk, timings, clock)
        return found

    def close(self) -> list[Burst]:
        """The pass that the stream's end completes."""
        return [self._burst()] if self._tokens else []

    def _begin(self, timings: Mapping[str, Any], clock: float | None) -> None:
        counts = number_of(timings, "draft_n") or 0, number_of(timings, "draft_n_accepted") or 0
        told = clock is not None
        self._of_pass = (counts[0] - self._counts[0], counts[1] - self._counts[1]) if told else (None, None)
        self._counts, self._clock = counts, clock
        self.told.drafted, self.told.accepted = counts if told else (None, None)

    def _burst(self, finish: str = "") -> Burst:
        tokens, self._tokens = self._tokens, []
        ids = [token for token, _, _ in tokens]
        texts = tuple(text for _, text, _ in tokens)
        logprobs = [one for _, _, one in tokens]
        known = tuple(one for one in ids if one is not None)
        whole = tuple(one for one in logprobs if one is not None)
        drafted, accepted = self._of_pass
        return Burst(
            "".join(texts), len(tokens), known if len(known) == len(ids) else None, texts, drafted, accepted,
            whole if len(whole) == len(tokens) else None, self._clock, finish,
        )  # fmt: skip

    def _end(self, chunk: Mapping[str, Any], timings: Mapping[str, Any], clock: float | None) -> list[Burst]:
        """The last chunk has no token: it tells how the output ended, and counts the end's own token."""
        kind = text_of(chunk, "stop_type")
        self.told.output_tokens = number_of(chunk, "tokens_predicted")
        self.told.prompt_tokens = number_of(chunk, "tokens_evaluated")
        word = text_of(chunk, "stopping_word")
        self.told.finish = {"limit": "limit", "eos": "eos", "word": f"stop: {word}"}.get(kind, kind or "eos")
        if kind == "eos" and (self.told.output_tokens or 0) > self._seen:
            found = [self._burst()] if self._tokens and clock != self._clock else []
            if not self._tokens:
                same = clock == self._clock and clock is not None  # the last pass was told complete without its end
                if same:
                    self._of_pass = (0, 0)
                else:
                    self._begin(timings, clock)
            self._tokens.append((self._eos, "", None))
            return [*found, self._burst("eos")]
        return [self._burst(self.told.finish)] if self._tokens else []


def _logprobs(found: Any) -> list[Logprob]:
    result = []
    for one in found if isinstance(found, list) else []:
        if not isinstance(one, dict):
            continue
        top = [each for each in one.get("top_logprobs") or [] if isinstance(each, dict)]
        pairs = tuple((number_of(each, "id"), str(each.get("token", "")), float(each.get("logprob") or 0.0)) for each in top)
        result.append(Logprob(str(one.get("token", "")), float(one.get("logprob") or 0.0), pairs))
    return result


def reader(server: Server, request: Request) -> PassReader:
    """A reader of the answer's chunks."""
    return PassReader(server, request)
