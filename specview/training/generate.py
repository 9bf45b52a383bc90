"""Text written by the target itself, with its own predictions as labels.

A drafter is accepted when it says what the target would say after the target's own words, so this
text counts most. Sequences run in slots (continuous batching): a slot whose answer is complete is
given a new prompt while the others go on. A third of the user turns are invented by the target too,
by letting it go on after the bare header of a user turn (Xu et al. 2024, "Magpie",
arXiv:2406.08464).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specview.errors import SpecviewError, Stopped
from specview.training.chat import ChatLayout
from specview.training.prompts import LONG_KINDS, SHORT_KINDS, Prompt, Prompts
from specview.training.shards import LABELS_PER_TOKEN, Labelled, ShardWriter, top_labels
from specview.training.target import Prefix, SlotCache, TargetModel

# Temperature of an answer and its share: most product runs are greedy or near it.
TEMPERATURES = {0.0: 0.5, 0.7: 0.3, 1.0: 0.2}
USER_TURN_TOKENS = (4, 64)
USER_TURN_MIN_P = 0.02
OWN_TEXTS = 3000
REDRAWS = 5000  # prompts in a row that may be too long for a lane
LEAST_ANSWER = 0.6  # share of an answer's longest length that every prompt leaves room for


@dataclass(frozen=True)
class Lane:
    """One cache's worth of slots: which prompts go there and how long a sequence may become."""

    slots: int
    capacity: int
    kinds: dict[str, float]
    invented: float  # share of user turns that the target invents


# Reading the caches is half the work of a step, so lanes are no longer than their prompts need.
LANES = (Lane(116, 192, SHORT_KINDS, 0.35), Lane(28, 400, LONG_KINDS, 0.0))


@dataclass
class _Slot:
    kind: str
    temperature: float
    tokens: list[int]
    label_ids: list[Tensor]
    label_logp: list[Tensor]
    next_token: int
    answer_start: int | None = None  # None while the target still writes the user turn
    forced: list[int] = field(default_factory=list)
    kept: bool = False


class Writer:
    """Runs the target over many slots and hands finished sequences to a shard writer."""

    def __init__(
        self,
        target: TargetModel,
        tokenizer: Any,
        prompts: Prompts,
        output: ShardWriter,
        seed: int,
        lanes: tuple[Lane, ...] = LANES,
        answer_tokens: int = 128,
        layout: ChatLayout | None = None,
    ) -> None:
        """`answer_tokens` bounds an answer; `seed` decides prompts, temperatures and draws.

        layout is read from the tokenizer where none is given.
        """
        self._target, self._tokenizer, self._prompts, self._output = target, tokenizer, prompts, output
        self._layout = layout or ChatLayout.of(tokenizer)
        self._lanes, self._answer_tokens = lanes, answer_tokens
        self._rng, self._noise = random.Random(seed), torch.Generator().manual_seed(seed)
        self._prefix = target.prefix(list(self._layout.before))
        self._header_logits = target.next_logits(target.prefill([self._layout.before[-1]], self._shorter())[2])
        self.written = 0
        self.filled = 0  # slots that have had their first prompt
        self.kinds: Counter[str] = Counter()

    @torch.inference_mode()
    def run(self, stop: Callable[[], bool], progress: Callable[[str], None]) -> None:
        """Write until `stop()`; answers that are then under way are kept up to where they are.

        Raises SpecviewError where no prompt leaves room for an answer.
        """
        slots: list[list[_Slot]] = [[] for _ in self._lanes]
        try:
            self._run(slots, stop, progress)
        except Stopped:
            pass
        for slot in (slot for lane in slots for slot in lane):
            if slot.answer_start is not None and not slot.kept and len(slot.tokens) - slot.answer_start >= 24:
                self._keep(slot)
        self._output.flush()

    def _run(
        self, slots: list[list[_Slot]], stop: Callable[[], bool], progress: Callable[[str], None]
    ) -> None:
        """Fill the lanes' slots and let them go on; raises Stopped, or returns, once `stop()`."""
        shape = self._target.shape
        caches = [SlotCache(shape, lane.slots, lane.capacity, self._target.dtype) for lane in self._lanes]
        for lane, cache, lane_slots in zip(self._lanes, caches, slots, strict=True):
            for i in range(lane.slots):
                lane_slots.append(self._fill(lane, cache, i, stop))
                self.filled += 1
        began = told = time.monotonic()
        steps = 0
        while not stop():
            steps += 1
            flat = [slot for lane in slots for slot in lane]
            positions = torch.tensor([len(slot.tokens) for slot in flat])
            hidden = self._target.step(caches, torch.tensor([s.next_token for s in flat]), positions)
            logits = self._target.next_logits(hidden)
            ids, logp = top_labels(logits)
            chosen = self._choose(logits, flat)
            for i, slot in enumerate(flat):
                slot.tokens.append(slot.next_token)
                slot.label_ids.append(ids[i : i + 1])
                slot.label_logp.append(logp[i : i + 1])
            row = 0
            for lane, cache, lane_slots in zip(self._lanes, caches, slots, strict=True):
                for i, slot in enumerate(lane_slots):
                    if self._finished(slot, chosen[row], lane.capacity):
                        lane_slots[i] = self._fill(lane, cache, i, stop)
                    row += 1
            if time.monotonic() - told > 30:
                told = time.monotonic()
                rate = steps * len(flat) / (told - began)
                progress(f"written {self.written} tokens; {rate:.0f} steps of one slot per second")

    def _shorter(self) -> Prefix:
        """The shared prefix without its last token, to have that token's logits from a prefill."""
        p = self._prefix
        return Prefix(p.tokens[:-1], p.keys[:, :, :-1], p.values[:, :, :-1])

    def _fill(self, lane: Lane, cache: SlotCache, index: int, stop: Callable[[], bool]) -> _Slot:
        """Start a new sequence in slot `index` of `cache`; raises Stopped where `stop()`."""
        if stop():
            raise Stopped
        before = list(self._layout.before)
        cache.put(index, 0, self._prefix.keys, self._prefix.values)
        temperature = self._rng.choices(list(TEMPERATURES), list(TEMPERATURES.values()))[0]
        if self._rng.random() < lane.invented:
            drawn = self._draw(self._header_logits, torch.tensor([1.0]), torch.tensor([USER_TURN_MIN_P]))
            blank_ids, blank_logp = _unlabelled(len(before))
            return _Slot("invented", temperature, before, [blank_ids], [blank_logp], int(drawn))
        prompt, tokens = self._draw_prompt(lane, stop)
        keys, values, hidden = self._target.prefill(tokens[len(before) :], self._prefix)
        cache.put(index, len(before), keys, values)
        # Labels are worth their price on real text in a prompt, not on our own templates.
        first = len(tokens) - 1 if prompt.kind in SHORT_KINDS else len(before)
        logits = self._target.next_logits(hidden[first - len(before) :])
        ids, logp = top_labels(logits)
        blank_ids, blank_logp = _unlabelled(first)
        slot = _Slot(prompt.kind, temperature, tokens, [blank_ids, ids], [blank_logp, logp], 0, len(tokens))
        slot.next_token = self._choose(logits[-1:], [slot])[0]
        return slot

    def _draw_prompt(self, lane: Lane, stop: Callable[[], bool]) -> tuple[Prompt, list[int]]:
        """A prompt, and its tokens, that leaves room for an answer in a lane."""
        for _ in range(REDRAWS):
            if stop():
                raise Stopped
            prompt = self._prompts.draw(lane.kinds)
            tokens = self._layout.render(self._tokenizer, prompt.text)
            if len(tokens) + LEAST_ANSWER * self._answer_tokens <= lane.capacity:
                return prompt, tokens
        raise SpecviewError(
            f"none of {REDRAWS:,} prompts leaves room for an answer of {self._answer_tokens} tokens.",
            "Lower answer-tokens, or give your own prompts.",
        )

    def _finished(self, slot: _Slot, chosen: int, capacity: int) -> bool:
        """Advance a slot whose pending token was just fed; true when the slot is free again."""
        last = slot.tokens[-1]
        if slot.forced:
            slot.next_token = slot.forced.pop(0)
        elif slot.answer_start is None:
            turn = len(slot.tokens) - len(self._layout.before)
            if chosen == self._layout.end or chosen == 0 or turn >= USER_TURN_TOKENS[1]:
                text = self._tokenizer.decode(slot.tokens[len(self._layout.before) :])
                if turn < USER_TURN_TOKENS[0] or self._prompts.is_held_out(text):
                    return True
                slot.next_token, *slot.forced = self._layout.between
                slot.answer_start = len(slot.tokens) + len(self._layout.between)
            else:
                slot.next_token = chosen
        elif len(slot.tokens) <= slot.answer_start:
            slot.next_token = chosen
        else:
            written = len(slot.tokens) - slot.answer_start
            full = written >= self._answer_tokens or len(slot.tokens) >= capacity - 1
            if last == self._layout.end or full:
                self._keep(slot)
                return True
            slot.next_token = chosen
        return False

    def _keep(self, slot: _Slot) -> None:
        assert slot.answer_start is not None
        slot.kept = True
        written = len(slot.tokens) - slot.answer_start
        self._output.add(
            Labelled(
                torch.tensor(slot.tokens),
                torch.cat(slot.label_ids),
                torch.cat(slot.label_logp),
                slot.kind,
                written,
            )
        )
        self.written += written
        self.kinds[slot.kind] += written
        if 60 < written < self._answer_tokens and slot.kind not in LONG_KINDS:
            text = self._tokenizer.decode(slot.tokens[slot.answer_start :], skip_special_tokens=True)
            text = text[:600].rpartition(".")[0].strip()
            own = self._prompts.own_texts
            if len(text) > 150:
                if len(own) >= OWN_TEXTS:
                    own.pop(self._rng.randrange(len(own)))
                own.append(text + ".")

    def _choose(self, logits: Tensor, slots: list[_Slot]) -> list[int]:
        """The next token of every slot, from logits [slots, vocab]."""
        chosen = logits.argmax(-1)
        drawn = [i for i, s in enumerate(slots) if s.answer_start is None or s.temperature > 0]
        if drawn:
            user = [slots[i].answer_start is None for i in drawn]
            heat = [1.0 if u else slots[i].temperature for i, u in zip(drawn, user, strict=True)]
            floor = [USER_TURN_MIN_P if u else 0.0 for u in user]
            chosen[drawn] = self._draw(logits[drawn], torch.tensor(heat), torch.tensor(floor))
        return chosen.tolist()

    def _draw(self, logits: Tensor, temperature: Tensor, min_p: Tensor) -> Tensor:
        """Sample ids [n] from logits [n, vocab] at temperature [n] and min-p [n]."""
        p = torch.softmax(logits / temperature[:, None], -1)
        p = torch.where(p < min_p[:, None] * p.amax(-1, keepdim=True), 0.0, p)
        total = p.cumsum(-1)
        u = torch.rand(len(p), 1, generator=self._noise) * total[:, -1:]
        return torch.searchsorted(total, u, right=True).squeeze(1).clamp_(max=logits.shape[-1] - 1)


def _unlabelled(n: int) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(n, LABELS_PER_TOKEN, dtype=torch.int64)
    return ids, torch.full((n, LABELS_PER_TOKEN), -torch.inf)
