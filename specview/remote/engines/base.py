"""What every engine's file gives: the server as it says it is, the request of a lane, and the stream's chunks as bursts."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specview.decoding.ledger import Candidate
from specview.decoding.sampling import SamplingParams
from specview.errors import SpecviewError
from specview.remote.client import Client
from specview.remote.counters import Names


@dataclass(frozen=True, slots=True)
class Speculation:
    """Whether the server drafts, and how, as far as it tells: on None where it does not say."""

    on: bool | None = None
    method: str = ""
    k: int | None = None
    draft: str = ""

    @property
    def words(self) -> str:
        """In a few words."""
        if self.on is None:
            return "speculation: not told"
        if not self.on:
            return "no speculation"
        more = [f"k {self.k}" if self.k else "", f"draft {self.draft}" if self.draft else ""]
        return ", ".join(["speculation on", self.method or "method not told", *filter(None, more)])


@dataclass(frozen=True, slots=True)
class Server:
    """What answers at an address. context is in tokens; notes say, a line each, what it cannot tell."""

    engine: str
    version: str
    model: str
    models: tuple[str, ...] = ()
    context: int | None = None
    speculation: Speculation = Speculation()
    eos_id: int | None = None
    slots: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """In one line."""
        context = f", context {self.context:,}" if self.context else ""
        return f"{self.engine} {self.version}".strip() + f": {self.model}{context}, {self.speculation.words}"


@dataclass(frozen=True, slots=True)
class Question:
    """What a lane asks, whoever answers: a chat (messages) or a raw prompt."""

    prompt: str
    messages: tuple[Mapping[str, str], ...] = ()
    sampling: SamplingParams = SamplingParams()
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    likeliest: int = 0

    @property
    def chat(self) -> bool:
        """Whether it is a chat."""
        return bool(self.messages)


@dataclass(frozen=True, slots=True)
class Request:
    """A streamed request. ignored: what of the settings the engine has no field for, in words; prompt_ids where they are known."""

    path: str
    body: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's logarithm of its probability, at temperature 1 as engines give it, and the likeliest ones: (id or None, text, logprob)."""

    text: str
    logprob: float
    top: tuple[tuple[int | None, str, float], ...] = ()
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Burst:
    """Tokens that came out of one pass, or as one chunk where passes do not show.

    token_ids None: the engine does not show them; count is how many they are all the same. drafted and accepted are of this pass, None
    where they are not told. pass_ms is the server's own clock at the pass's end, since its first token, where it tells. finish is how
    the output ended, in this burst's last token: "eos", "limit", "stop", or "".
    """

    text: str
    count: int
    token_ids: tuple[int, ...] | None = None
    texts: tuple[str, ...] | None = None
    drafted: int | None = None
    accepted: int | None = None
    logprobs: tuple[Logprob, ...] | None = None
    pass_ms: float | None = None
    finish: str = ""


@dataclass(slots=True)
class Told:
    """What the server told of a whole request by its end: counts, times and its own figures of speculation."""

    prompt_ids: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_ms: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    finish: str = ""
    more: dict[str, Any] = field(default_factory=dict)


class Reader(Protocol):
    """Reads one stream: chunks in, bursts out, what was told gathered."""

    told: Told

    def feed(self, chunk: Mapping[str, Any]) -> list[Burst]:
        """The bursts that a chunk completes."""

    def close(self) -> list[Burst]:
        """The burst that the stream's end completes."""


class Adapter(Protocol):
    """One engine. Its module is one: `name`, `names`, and these three."""

    name: str
    names: Names

    def probe(self, client: Client, models: Sequence[Mapping[str, Any]]) -> Server:
        """The server, from what it says of itself; models are the entries of its /v1/models."""

    def request(self, client: Client, server: Server, question: Question) -> Request:
        """The streamed request of a question; it may ask the server to render the chat first."""

    def reader(self, server: Server, request: Request) -> Reader:
        """A reader of the answer's chunks."""


# -- shared by the engines' files -------------------------------------------------------------------------------------


def ask(client: Client, path: str) -> Any:
    """The JSON behind a path, or None where the server has no such page or it is not JSON."""
    try:
        return client.get_json(path)
    except SpecviewError:
        return None


def page(client: Client, path: str) -> str:
    """The text behind a path, or "" where the server has no such page."""
    try:
        return client.get(path)
    except SpecviewError:
        return ""


def part_of(found: Any, key: str) -> Mapping[str, Any]:
    """The object behind a key; an empty one where there is none."""
    value = found.get(key) if isinstance(found, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def text_of(found: Any, *keys: str) -> str:
    """The first of some keys that has a text or number, as text; "" where none has."""
    for key in keys:
        value = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value):
            return str(value)
    return ""


def number_of(found: Any, *keys: str) -> int | None:
    """The first of some keys that has a whole number; None where none has."""
    for key in keys:
        value = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value)
    return None


def ids_of(found: Any) -> tuple[int, ...] | None:
    """A list of ids, or None where it is none."""
    if isinstance(found, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        return tuple(found)
    return None


def split_text(text: str, logprobs: Sequence[Logprob] | None, count: int) -> tuple[str, ...]:
    """A burst's text by its tokens, as far as the log-probabilities' own texts tell; else all of it with the last one."""
    if count == 1:
        return (text,)
    if logprobs is not None and len(logprobs) == count:
        pieces = list(_pieces(logprobs))
        for kept in (pieces, [*pieces[:-1], ""]):  # a text's end has no text of its own
            if "".join(kept) == text:
                return tuple(kept)
    return (*("" for _ in range(count - 1)), text) if count else ()


def _pieces(logprobs: Sequence[Logprob]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for index, one in enumerate(logprobs):
        raw = one.raw if one.raw is not None else one.text.encode("utf-8", "replace")
        yield decoder.decode(raw, index == len(logprobs) - 1)


def candidates(one: Logprob) -> tuple[Candidate, ...]:
    """The likeliest tokens as the ledger has them: those whose ids are known."""
    return tuple((-1 if token is None else token, text, math.exp(logprob)) for token, text, logprob in one.top)
