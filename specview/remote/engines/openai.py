"""What vLLM, SGLang and TensorRT-LLM share: OpenAI's chat and completion requests, and chunks that may hold several tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.fields import values_of
from specview.remote.engines.base import (
    Burst,
    Logprob,
    Question,
    Request,
    Server,
    Told,
    ids_of,
    number_of,
    part_of,
    split_text,
)

_FIELDS = frozenset({"temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty"})
"""The sampling settings that all three take, by these names."""
_FINISH = {"length": "limit"}
_LOGPROB_LIMIT = 20


def request_of(server: Server, question: Question, more: Mapping[str, Any] | None = None) -> Request:
    """The request for a chat or a completion, and what of the sampling settings it has no field for; `more` wins."""
    sampling = question.sampling
    body: dict[str, Any] = {"model": server.model, "max_tokens": question.max_tokens, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if question.chat:
        body["messages"] = [dict(one) for one in question.messages]
        if question.likeliest:
            body |= {"logprobs": True, "top_logprobs": min(question.likeliest, _LOGPROB_LIMIT)}
    else:
        body["prompt"] = question.prompt
        if question.likeliest:
            body["logprobs"] = min(question.likeliest, _LOGPROB_LIMIT)
    ignored = []
    for one, value in values_of(sampling):
        if one.name in _FIELDS:
            body[one.name] = value
        elif value != one.default:
            ignored.append(f"{one.words} {value:g}")
    if question.stop:
        body["stop"] = list(question.stop)
    path = "/v1/chat/completions" if question.chat else "/v1/completions"
    return Request(path, {**body, **(more or {})}, tuple(ignored))


class ChunkReader:
    """Chunks of a chat or a completion: each one that has text or ids is a burst."""

    def __init__(self, server: Server, request: Request) -> None:
        self.told = Told(prompt_ids=request.prompt_ids)
        self._eos = server.eos_id

    def feed(self, chunk: Mapping[str, Any]) -> list[Burst]:
        """The bursts that a chunk completes."""
        if usage := chunk.get("usage"):
            self.told.prompt_tokens = number_of(usage, "prompt_tokens")
            self.told.output_tokens = number_of(usage, "completion_tokens")
            self.told.cached_tokens = number_of(part_of(usage, "prompt_tokens_details"), "cached_tokens")
        self._whole(chunk)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if ids := ids_of(chunk.get("prompt_token_ids")) or (ids_of(choice.get("prompt_token_ids")) if choice else None):
            self.told.prompt_ids = ids
        if choice is None:
            return []
        self._whole(choice)
        delta = part_of(choice, "delta")
        text = "".join(str(delta.get(key) or "") for key in ("reasoning_content", "reasoning", "content")) or str(choice.get("text") or "")
        finish = str(choice.get("finish_reason") or "")
        ids_here = ids_of(choice.get("token_ids"))
        if ids_here is None:
            ids_here = ids_of(choice.get("output_token_ids"))
        logprobs = _logprobs(choice.get("logprobs"))
        if finish:
            self.told.finish = self._finish(finish, choice)
        if not text and not ids_here and not logprobs:
            return []
        count = len(ids_here) if ids_here else len(logprobs) if logprobs else 1
        return [
            Burst(
                text, count, ids_here or None, split_text(text, logprobs, count), logprobs=logprobs or None,
                finish=self.told.finish if finish else "",
            )
        ]  # fmt: skip

    def close(self) -> list[Burst]:
        """The burst that the stream's end completes: none."""
        return []

    def _finish(self, finish: str, choice: Mapping[str, Any]) -> str:
        if finish == "stop":
            why = next((choice[key] for key in ("stop_reason", "matched_stop") if isinstance(choice.get(key), str)), "")
            return f"stop: {why}" if why else "eos"
        return _FINISH.get(finish, finish)

    def _whole(self, found: Mapping[str, Any]) -> None:
        """Take an engine's own figures of the whole request."""
        figures = found.get("speculative_decoding")
        metrics = found.get("metrics")
        if isinstance(metrics, dict):
            figures = metrics.get("speculative_decoding") or figures
        meta = found.get("meta_info")
        if isinstance(meta, dict) and "spec_verify_ct" in meta:
            figures = meta
        if isinstance(figures, dict):
            self.told.drafted = number_of(figures, "num_draft_tokens", "total_draft_tokens", "spec_draft_token_num", "spec_num_proposed_drafts")
            self.told.accepted = number_of(
                figures, "num_accepted_draft_tokens", "num_accepted_tokens", "total_accepted_draft_tokens", "spec_accept_token_num", "spec_num_correct_drafts"
            )
            self.told.more |= {key: value for key, value in figures.items() if isinstance(value, (int, float, list))}


def _logprobs(found: Any) -> tuple[Logprob, ...]:
    """A chunk's log-probabilities, in the chat's form or the completion's."""
    if not isinstance(found, dict):
        return ()
    content = found.get("content")
    if isinstance(content, list):
        return tuple(_chat_logprob(one) for one in content if isinstance(one, dict))
    tokens, values, tops = (found.get(key) or [] for key in ("tokens", "token_logprobs", "top_logprobs"))
    result = []
    for index, text in enumerate(tokens):
        value = values[index] if index < len(values) else None
        top = tops[index] if index < len(tops) and isinstance(tops[index], dict) else {}
        pairs = tuple((None, str(key), float(one)) for key, one in top.items() if isinstance(one, (int, float)))
        result.append(Logprob(str(text), float(value) if isinstance(value, (int, float)) else 0.0, pairs))
    return tuple(result)


def _chat_logprob(one: Mapping[str, Any]) -> Logprob:
    top = one.get("top_logprobs") or []
    pairs = tuple(
        (number_of(each, "id"), str(each.get("token", "")), float(each.get("logprob") or 0.0)) for each in top if isinstance(each, dict)
    )
    raw = ids_of(one.get("bytes"))
    whole = bytes(raw) if raw is not None and all(0 <= byte < 256 for byte in raw) else None
    return Logprob(str(one.get("token", "")), float(one.get("logprob") or 0.0), pairs, whole)


def model_of(models: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The first model's name, and all of them."""
    names = tuple(str(one["id"]) for one in models if isinstance(one.get("id"), str))
    return (names[0] if names else ""), names
