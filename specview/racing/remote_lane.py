"""A lane that a serving engine decodes: its bursts as rounds, timed as they arrive. No shared device, no virtual time.

A burst is what one pass gave. Where the engine tells how many tokens it drafted, rejected ones are counted as such and their
texts are unknown; where it shows bursts alone, all but the last token of one must have been drafted: such rounds say `inferred`.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specview.decoding.ledger import (
    UNKNOWN,
    UNKNOWN_TEXT,
    Candidate,
    DraftedToken,
    End,
    FinalKind,
    FinalToken,
    Round,
    RunRecord,
    end_kind,
)
from specview.decoding.metrics import Metrics
from specview.decoding.round_table import RoundTable
from specview.drafting.lanes import flat_settings
from specview.drafting.plain import BASELINE
from specview.drafting.served import METHOD, URL
from specview.errors import SpecviewError, Stopped, UsageError
from specview.settings.run import LaneSettings, RunSettings

if TYPE_CHECKING:
    from specview.decoding.interfaces import OnChunk
    from specview.remote.client import Client
    from specview.remote.counters import Counted
    from specview.remote.engines.base import Adapter, Burst, Logprob, Question, Reader, Server

_POLL_S = 0.05
_JOIN_S = 10.0
_LIKELIEST: Mapping[str, int] = {"off": 0, "light": 1, "full": 5}
"""Likely tokens asked for, by what is observed; one is enough to tell a burst's texts apart."""
_AT_ONCE = 16
"""Bursts from which on their times are looked at: a buffer between gives all of them at once."""


class RemoteLane:
    """A lane of a race whose tokens a server sends. `attach` and `prefill` first, then `step` until it returns None.

    stop_here raises Stopped where the user asked to stop: it is asked while the server is waited for.
    """

    continues = False
    """Whether it can go on after its end: a server keeps nothing of a request that ended."""
    pass_rows = 0
    draft_weight_bytes = 0

    def __init__(
        self, settings: LaneSettings, run: RunSettings, stop_here: Callable[[], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.settings, self.run = settings, run
        self.record = RunRecord(settings.label, flat_settings(run, settings))
        self.table = RoundTable()
        self.server: Server | None = None
        self.counted: Counted | None = None
        self._stop_here, self._clock = stop_here, clock
        self._client: Client | None = None
        self._adapter: Adapter | None = None
        self._reader: Reader | None = None
        self._thread: threading.Thread | None = None
        self._news: queue.SimpleQueue[tuple[float, Burst | Exception | None]] = queue.SimpleQueue()
        self._held: tuple[float, Burst | Exception | None] | None = None  # the first of them, that prefill waited for
        self._ready: list[Round] = []
        self._ignored: tuple[str, ...] = ()
        self._start = 0.0
        self._last = 0.0

    @property
    def clock(self) -> float:
        """Seconds since its first token arrived."""
        return self.table.end_s

    def kv_bytes(self) -> int:
        """Not this machine's."""
        return 0

    # -- attaching -----------------------------------------------------------------------------

    def attach(self) -> dict[str, Any]:
        """Ask the server what it is; return that as facts. Raises SpecviewError, one line, where it cannot serve this lane."""
        from specview.remote.client import Client
        from specview.remote.engines.known import attach

        url = str(self.settings.options.get(URL.name) or "")
        if not url:
            raise UsageError(f"the lane {self.settings.label} names no server.", 'Write "server,url=http://HOST:PORT", or give it as --target.')
        if self.run.branch is not None:
            raise UsageError("a server cannot go on from a branch's tokens.", "Leave out the server's lane.")
        self._client = client = Client(url)
        self._adapter, self.server = self._stoppable(lambda: attach(client))
        server = self.server
        return {
            "engine": f"{server.engine} {server.version}".strip(), "model": server.model, "context": server.context,
            "address": self._client.address.url, "speculation": server.speculation.words, "notes": list(server.notes),
            "clock": "wall-clock time, as the tokens arrive" + (": the server shares this machine" if self._client.address.loopback else ""),
        }  # fmt: skip

    def _stoppable(self, work: Callable[[], Any]) -> Any:
        """Do short work of the client on a thread, so that a stop ends it at once."""
        found: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def do() -> None:
            try:
                found.put(work())
            except Exception as error:  # noqa: BLE001 - raised below
                found.put(error)

        thread = threading.Thread(target=do, name="attach to a server", daemon=True)
        thread.start()
        while True:
            try:
                answer = found.get(timeout=_POLL_S)
                break
            except queue.Empty:
                try:
                    self._stop_here()
                except Stopped:
                    self.finish("stopped")
                    raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stand_as_baseline(self) -> None:
        """Be what the others are held against, where this server decodes plainly."""
        if self.server is not None and self.server.speculation.on is False:
            self.record.settings["method"] = BASELINE

    @property
    def question(self) -> Question:
        """What it asks the server."""
        from specview.racing.messages import messages_of
        from specview.remote.engines.base import Question

        run = self.run
        messages = tuple(messages_of(run)) if run.chat else ()
        return Question(run.prompt, messages, run.sampling, run.max_tokens, run.stop, _LIKELIEST[run.observe])

    # -- decoding ------------------------------------------------------------------------------

    def prefill(self, max_tokens: int, on_chunk: OnChunk | None = None) -> None:
        """Send the request and wait for its first token; sets record.prefill_s: the time to it, the way there and back in it."""
        if self._client is None or self._adapter is None or self.server is None:
            raise SpecviewError(f"{self.settings.label} is not attached to a server.")
        asked = replace(self.question, max_tokens=max_tokens)
        self._thread = threading.Thread(
            target=self._listen, args=(self._client, self._adapter, self.server, asked), name=f"lane of {self._client.address}", daemon=True
        )
        self._thread.start()
        arrived, first = self._next()
        self._held = arrived, first
        if isinstance(first, Exception):
            raise first
        self.record.prefill_s = self.table.prefill_s = max(0.0, arrived - self._start)
        self._last = arrived
        assert self._reader is not None
        self.record.prompt_ids = self._reader.told.prompt_ids

    def step(self) -> Round | None:
        """The next round, waited for where it has not come; None once the lane has ended (record.end says how)."""
        if self.record.end is not None:
            return None
        while not self._ready:
            arrived, news = self._held or self._next()
            self._held = None
            if isinstance(news, Exception):
                raise news
            if news is None:
                self.finish(self._end())
                return None
            self._ready = list(self._rounds(news, arrived))
        round_ = self._ready.pop(0)
        self.record.rounds.append(round_)
        self.table.add(round_)
        return round_

    def extend(self, max_tokens: int, on_chunk: OnChunk | None = None) -> None:
        """Not possible: see `continues`."""
        raise SpecviewError("a server's output cannot be continued.", "Run it again with more tokens.")

    def finish(self, end: End, error: str = "") -> None:
        """Mark the lane as ended, and end the request where it still runs."""
        self.record.end, self.record.error = end, error
        if self._client is not None:
            self._client.stop()

    def close(self) -> None:
        """End the request and its thread."""
        if self._client is not None:
            self._client.close()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            self._thread = None

    def told(self, metrics: Metrics) -> Metrics:
        """The figures with what the server itself counted, and without those that only it could know and does not tell."""
        told = self._reader.told if self._reader is not None else None
        found: dict[str, Any] = {}
        if told is not None and told.drafted is not None:
            found = {"source": "the request's own figures", "drafted": told.drafted, "accepted": told.accepted}
        if self.counted is not None:
            count, inferred = self.counted, any(round_.inferred for round_ in self.record.rounds)
            mixed = count.generated is not None and count.generated > len(self.record.token_ids)
            counters = {"drafts": count.drafts, "drafted": count.drafted, "accepted": count.accepted, "generated": count.generated}
            found = {"source": "counters", **counters, **found, "mixed": mixed, "began_anew": count.began_anew, "absent": list(count.absent)}
            if inferred and not mixed and not count.began_anew and found["drafted"] is not None and count.drafts:
                held, drafted, drafts = int(found["accepted"] or 0), int(found["drafted"]), count.drafts
                metrics = replace(
                    metrics, proposed=drafted, accepted=held, draft_acceptance=held / drafted if drafted else None,
                    mean_accepted_length=1 + held / drafts, position_acceptance=tuple(one / drafts for one in count.positions),
                )  # fmt: skip
        if self._ignored:
            found["ignored"] = list(self._ignored)
        if self._came_at_once():
            found["at_once"] = "all of it came at once: something between buffers, and the times say nothing"
        return replace(metrics, draft_share=None, verify_share=None, other_share=None, server=found)

    # -- the request, on a thread of its own ---------------------------------------------------

    def _listen(self, client: Client, adapter: Adapter, server: Server, asked: Question) -> None:
        from specview.remote.engines.known import between, read_counters

        try:
            before = read_counters(client, adapter)
            request = adapter.request(client, server, asked)
            self._ignored = request.ignored
            self._reader = reader = adapter.reader(server, request)
            self._start = self._clock()
            with client.stream(request.path, request.body) as chunks:
                for chunk in chunks:
                    arrived = self._clock()
                    for burst in reader.feed(chunk):
                        self._news.put((arrived, burst))
            for burst in reader.close():
                self._news.put((self._clock(), burst))
            if not reader.told.finish:
                raise SpecviewError(f"{client.address} ended the stream in the middle of its answer.", "Look at the server's log.")
            self.counted = between(adapter, before, read_counters(client, adapter))
            self._news.put((self._clock(), None))
        except Exception as error:  # noqa: BLE001 - the lane says it, on its own thread
            self._news.put((self._clock(), error))

    def _next(self) -> tuple[float, Burst | Exception | None]:
        while True:
            try:
                arrived, news = self._news.get(timeout=_POLL_S)
            except queue.Empty:
                self._stop_here()
                continue
            if isinstance(news, Stopped):
                self._stop_here()
                raise SpecviewError("the request to the server was ended.")
            return arrived, news

    def _end(self) -> End:
        finish = self._reader.told.finish if self._reader is not None else ""
        if not end_kind(finish):
            raise SpecviewError(f"the server ended the output for a reason of its own: {finish!r}.", "Look at the server's log.")
        return finish

    def _came_at_once(self) -> bool:
        rounds = self.record.rounds
        return len(rounds) >= _AT_ONCE and self.clock < 0.001 * len(rounds) and self.clock < 0.05 * self.record.prefill_s

    # -- bursts as rounds ----------------------------------------------------------------------

    def _rounds(self, burst: Burst, arrived: float) -> Iterator[Round]:
        assert self.server is not None
        seconds = max(0.0, arrived - self._last)
        self._last = max(self._last, arrived)
        done = sum(one.other_s for one in self._ready)
        tokens = _tokens(burst)
        speculation = self.server.speculation
        index, t = len(self.record.rounds), self.table.end_s + done
        if burst.drafted is None and (speculation.on is False or not tokens):
            each = seconds / max(1, len(tokens))  # several plain passes that came as one chunk
            for place, (id_, text, top) in enumerate(tokens):
                yield Round(index + place, t + each * (place + 1), 0.0, 0.0, each, final=FinalToken(id_, "plain", text, p_top=top))
            return
        held = len(tokens) - 1 if burst.accepted is None else min(burst.accepted, len(tokens))
        drafted = [DraftedToken(id_, "accepted", text=text, p_top=top) for id_, text, top in tokens[:held]]
        lost = 0 if burst.drafted is None else max(0, burst.drafted - held)
        cut = held == len(tokens)  # by the end of the output: nothing after it was judged
        drafted += [DraftedToken(UNKNOWN, "ignored" if place or cut else "rejected", text=UNKNOWN_TEXT) for place in range(lost)]
        final = None if cut else FinalToken(tokens[held][0], _kind(burst, held, speculation.k), tokens[held][1], p_top=tokens[held][2])
        drafter = METHOD.name if drafted else ""
        yield Round(
            index, t + seconds, 0.0, 0.0, seconds, drafter=drafter, drafted=tuple(drafted), final=final, inferred=burst.drafted is None and index > 0
        )  # fmt: skip


def _kind(burst: Burst, held: int, k: int | None) -> FinalKind:
    """What the last token of a burst is: told where the engine counts its drafts, else the likelier."""
    drafted = burst.drafted if burst.drafted is not None else (k if held else 0)
    if not drafted:
        return "plain" if not held else "corrected"
    return "bonus" if held >= drafted else "corrected"


def _tokens(burst: Burst) -> list[tuple[int, str, tuple[Candidate, ...]]]:
    """A burst's tokens: id, text and the likeliest ones. An id that is not shown is made of the text, below UNKNOWN."""
    texts = burst.texts or ("",) * (burst.count - 1) + (burst.text,)
    ids = burst.token_ids or tuple(map(_stand_in, texts))
    found = []
    for place, (id_, text) in enumerate(zip(ids, texts, strict=True)):
        one: Logprob | None = burst.logprobs[place] if burst.logprobs is not None and place < len(burst.logprobs) else None
        top = tuple(
            (id_ if other == one.text else _stand_in(other) if token is None else token, other, math.exp(min(0.0, value)))
            for token, other, value in one.top
        ) if one is not None else ()  # fmt: skip
        found.append((id_, text, top))
    return found


def _stand_in(text: str) -> int:
    return UNKNOWN - 1 - zlib.crc32(text.encode("utf-8", "replace"))
