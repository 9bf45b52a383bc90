"""One lane: a session, a drafter and a rule over a shared target; gives one round at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, Engine, LengthPolicy, OnChunk, Session
from specview.decoding.ledger import End, Round, RunRecord
from specview.decoding.loop import Sequence, decode
from specview.decoding.observation import Observer, join_text
from specview.decoding.round_table import RoundTable
from specview.decoding.stopping import Stops
from specview.decoding.verification import resolve_rule
from specview.drafting.lanes import default_k, flat_settings
from specview.drafting.method import DrafterContext, Shape
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.settings.run import LaneSettings, RunSettings

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead


WARM_CONTEXT = 8
"""Tokens of the prompt that a head drafts after when it is warmed up."""


class Lane:
    """A lane of a race. `prefill` first, then `step` until it returns None."""

    continues = True
    """Whether it can go on after its end."""

    def __init__(
        self,
        settings: LaneSettings,
        run: RunSettings,
        prompt_ids: list[int],
        target: Engine,
        draft: Engine | None,
        clock: Callable[[], float] = time.perf_counter,
        costs: Costs | None = None,
        memory: dict[str, Any] | None = None,
        heads: Mapping[str, LoadedHead] | None = None,
    ) -> None:
        self.settings = settings
        self.run = run
        self.target = target
        self.draft = draft
        self.heads = dict(heads or {})
        self.rule = resolve_rule(settings.rule, run.sampling)
        self.k = settings.k or default_k(settings, target.device)[0] or 1
        self.costs = costs or Costs()
        self._memory = {} if memory is None else memory
        self.record = RunRecord(settings.label, {**flat_settings(run, settings), "k": self.k if self.drafts else None})
        self.record.prompt_ids = tuple(prompt_ids)
        self.table = RoundTable()
        given = run.given_ids  # the prompt ends with them, and they are output
        self.sequence = Sequence(list(prompt_ids[: len(prompt_ids) - len(given)]), list(given))
        self._clock = clock
        self._observer = Observer(run.observe, target.tokenizer, given)
        self._stops = Stops(run.stop, target.tokenizer, self._observer, given) if run.stop else None
        self._session: Session | None = None
        self._drafter: Drafter | None = None
        self._policy: LengthPolicy | None = None
        self._capacity = 0
        self._bound: End = "limit"  # what ends the output if the model does not
        self._rounds: Generator[Round, None, End] | None = None

    @property
    def drafts(self) -> bool:
        """Whether this lane drafts at all."""
        return METHODS[self.settings.method].drafts

    @property
    def _shape(self) -> Shape:
        return METHODS[self.settings.method].drafted(self.settings.options)

    @property
    def pass_rows(self) -> int:
        """Most tokens of one target pass beyond the first."""
        return self._shape.rows_at(self.k) if self.drafts else 0

    @property
    def clock(self) -> float:
        """The lane's own time, seconds since the end of prefill."""
        return self.sequence.clock

    def prefill(self, max_tokens: int, on_chunk: OnChunk | None = None) -> None:
        """Open the session and the drafter and fill their caches; sets record.prefill_s (seconds).

        Raises SpecviewError where the model cannot serve this lane, Stopped from on_chunk.
        """
        context = self.sequence.context
        self._release()
        # Room to continue once past the limit without filling the caches anew.
        longest = self.target.context_length
        method = METHODS[self.settings.method]
        rows = self.pass_rows
        self._capacity = min(longest, len(context) + 2 * max_tokens + rows + 1)
        self._session = self.target.new_session(self._capacity, self._shape.leaves)
        if method.make is not None:
            if self.target.rollback_problem:
                raise SpecviewError(
                    f"{self.target.model_name} cannot be drafted for: {self.target.rollback_problem}",
                    "Choose another target, or run plain decoding only.",
                )
            problem = method.problem(self.target) if method.problem is not None else None
            if problem:
                raise SpecviewError(f"{method.name} cannot draft for {self.target.model_name}: {problem}")
            self._drafter = method.make(self.drafter_context(self._capacity, self._session))
            self._policy = POLICIES[self.settings.policy].make(self.settings.policy_options, self.costs)
            self._policy.start(self.k)
        begin = self._clock()
        try:
            layers: tuple[Any, ...] = ()
            if self._drafter is not None:
                self._drafter.written = len(self.sequence.output)
                self._drafter.start(context, self.run.sampling, on_chunk)
                layers = self._drafter.prompt_layers
            if self._drafter is not None and layers:
                self._session.prefill(context[:-1], on_chunk, layers, self._drafter.learn_prompt)
            else:
                self._session.prefill(context[:-1], on_chunk)
            self._session.synchronize()
        except BaseException:
            self._release()  # half a prompt is in a cache: a continuation must fill it anew
            raise
        spent = self._clock() - begin
        if not self.record.rounds:
            self.record.prefill_s = self.table.prefill_s = spent
        self._begin(max_tokens)

    def warm_up(self) -> None:
        """Draft once with the lane's trained head in throw-away sessions: its kernels are chosen and packed then."""
        method = METHODS[self.settings.method]
        if method.head is None or method.make is None:
            return
        context = self.sequence.context[-WARM_CONTEXT:]
        capacity = min(self.target.context_length, len(context) + 2 * self.pass_rows + 2)
        if len(context) < 2 or len(context) + self.pass_rows >= capacity:
            return
        session = self.target.new_session(capacity, self._shape.leaves)
        try:
            drafter = method.make(self.drafter_context(capacity, session))
            try:
                drafter.start(context, self.run.sampling)
                session.prefill(context[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
                drafter.propose(context, self.k)
            finally:
                drafter.close()
        finally:
            session.close()

    def drafter_context(self, max_length: int, session: Session | None = None) -> DrafterContext:
        """What this lane gives a drafter for contexts of up to max_length tokens, drafts included."""
        return DrafterContext(
            options=self.settings.options,
            max_length=max_length,
            vocab_size=self.target.vocab_size,
            draft_engine=self.draft,
            target=self.target,
            session=session,
            rule=self.rule,
            costs=self.costs,
            memory=self._memory,
            heads=self.heads,
        )

    def extend(self, max_tokens: int, on_chunk: OnChunk | None = None) -> None:
        """Go on for max_tokens more after the limit, in the same caches where they have the room."""
        self.record.end = None
        if self._session is None or len(self.sequence.context) + max_tokens + self.pass_rows + 1 > self._capacity:
            self.prefill(max_tokens, on_chunk)
        else:
            self._begin(max_tokens)

    def _begin(self, max_tokens: int) -> None:
        assert self._session is not None
        room = self._capacity - len(self.sequence.context)
        self._bound = "limit" if max_tokens <= room else "context"
        self._rounds = decode(
            self._session,
            self.sequence,
            rule=self.rule,
            sampling=self.run.sampling,
            max_tokens=min(max_tokens, room),
            drafter=self._drafter,
            policy=self._policy,
            eos_ids=self.target.eos_ids,
            stops=self._stops,
            observer=self._observer,
            model_name=self.target.model_name,
            clock=self._clock,
        )

    def step(self) -> Round | None:
        """Make one round; None once the lane has ended (record.end says how)."""
        if self._rounds is None:
            return None
        try:
            round_ = next(self._rounds)
        except StopIteration as stop:
            self.finish(self._bound if stop.value == "limit" else stop.value)
            return None
        self.record.rounds.append(round_)
        self.table.add(round_)
        self.costs.observe(round_)
        return round_

    def finish(self, end: End, error: str = "") -> None:
        """Mark the lane as ended; its caches stay for a continuation."""
        self._rounds = None
        self.record.end = end
        self.record.error = error
        if self.run.observe == "off":
            ids = self.record.token_ids
            tokenizer, given = self.target.tokenizer, self.run.given_ids
            self.record.joined_text = join_text(tokenizer, ids, given) if self._stops is None else self._stops.text()

    def kv_bytes(self) -> int:
        """Bytes of KV cache this lane's sequences may take, target and draft."""
        total = self.target.kv_bytes(self._capacity)
        return total + (self.draft.kv_bytes(self._capacity) if self.draft is not None else 0)

    @property
    def draft_weight_bytes(self) -> int:
        """Bytes of the weights that draft: those of the draft model and of the heads."""
        heads = {id(head): head.weight_bytes for head in self.heads.values()}
        return sum(heads.values()) + (self.draft.weight_bytes if self.draft is not None else 0)

    def _release(self) -> None:
        self._rounds = None
        drafter, session = self._drafter, self._session
        self._drafter = self._session = None
        try:
            if drafter is not None:
                drafter.close()
        finally:
            if session is not None:
                session.close()

    def close(self) -> None:
        """Free the caches."""
        self._release()
