"""Training heads on stored features: EAGLE-3, P-EAGLE and Medusa.

Labels are the target's own distributions over the head's draft vocabulary, one product away from the
stored last hidden states. EAGLE-3 trains as it will draft ("training-time test", Li et al. 2025, arXiv
2503.01840): step s reads the head's own output of step s - 1 in the place of the target's features. P-EAGLE
reads the mask token and its learnt features there instead, all steps at once when it drafts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from specview.heads.blocks import rotary_tables
from specview.heads.eagle import Eagle3Head
from specview.training.evaluate import Acceptance, Results, add_rounds
from specview.training.features import FeatureStore, StoredText
from specview.training.loop import LoopSettings, TrainingLoop, packed_batches

DEVELOPMENT_EVERY = 40  # one sequence in so many is never trained on


@dataclass(frozen=True)
class HeadSettings(LoopSettings):
    """What decides a head's training."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    tokens_per_step: int = 2048
    depth: int = 3  # drafted tokens that training looks ahead
    shallow: float = 0.0  # share of the run that looks one token ahead only, which is several times faster
    decay: float = 0.8  # weight of each further one
    skip: int = 0  # tokens at the start of every sequence that carry no loss (the shared prompt beginning)
    written: float = 1.0  # weights of a token's prediction: the target wrote it as an answer
    invented: float = 0.5  # as a user turn
    read: float = 0.3  # it stands in a prompt or in real text


@dataclass(frozen=True)
class HeadBatch:
    """Padded sequences.

    next_tokens [b, n] are the tokens after each position, states [b, n, layers * hidden] the aux states,
    last [b, n, hidden] the final ones; weights [b, n] are of predicting the token two after a position.
    """

    next_tokens: Tensor
    states: Tensor
    last: Tensor
    weights: Tensor


def make_head_batch(
    store: FeatureStore,
    sequences: Sequence[StoredText],
    settings: HeadSettings,
    extra: int = 0,
    device: torch.device | None = None,
) -> HeadBatch:
    """Read and pad sequences; `extra` unused positions are appended."""
    longest = max(s.length for s in sequences) - 1 + extra
    read = [store.read(s) for s in sequences]
    width, hidden = read[0][1].shape[1] * read[0][1].shape[2], read[0][2].shape[1]
    next_tokens = torch.zeros(len(read), longest, dtype=torch.long)
    states = torch.zeros(len(read), longest, width)
    last = torch.zeros(len(read), longest + 1, hidden)
    weights = torch.zeros(len(read), longest)
    for row, (sequence, (tokens, aux, final)) in enumerate(zip(sequences, read, strict=True)):
        n = sequence.length
        next_tokens[row, : n - 1] = tokens[1:]
        states[row, : n - 1] = aux[:-1].flatten(1)
        last[row, :n] = final
        # Position t predicts the token t + 2: labels are the target's at t + 1.
        answer = n - sequence.written
        weights[row, settings.skip : n - 1] = (
            settings.invented if sequence.kind == "invented" else settings.read
        )
        weights[row, max(answer - 2, 0) : n - 1] = settings.written
    return HeadBatch(*(part.to(device) for part in (next_tokens, states, last, weights)))


class _SoftCrossEntropy(torch.autograd.Function):
    """Weighted soft cross-entropy of a product's logits; the gradient is formed with the loss.

    hidden [n, width], rows [v, width], labels [n, v] probabilities, weights [n, 1].
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, rows: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        low = torch.bfloat16 if torch.is_autocast_enabled(hidden.device.type) else torch.float32
        h, r = hidden.to(low), rows.to(low)
        logits = (h @ r.T).float()
        best = logits.argmax(-1)
        z = logits.logsumexp(-1, keepdim=True)
        loss = ((z - (labels * logits).sum(-1, keepdim=True)) * weights).sum()
        gradient = logits.sub_(z).exp_().sub_(labels).mul_(weights).to(low)
        ctx.save_for_backward((gradient @ r).float(), (gradient.T @ h).float())
        ctx.mark_non_differentiable(best)
        return loss, best

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, rows_gradient = ctx.saved_tensors
        return hidden_gradient * loss_gradient, rows_gradient * loss_gradient, None, None


def chain_outputs(head: Eagle3Head, embedding: Tensor, batch: HeadBatch, depth: int) -> list[Tensor]:
    """The head's outputs [b, n, hidden] for drafted tokens 1 to depth, over whole sequences at once.

    Index t of step s (from 0) is the s-th draft of the chain that starts at position t - s: it sees the
    first step's entries up to t - s, and one entry of every later step of its own chain.
    """
    mask_id = head.shape.mask_token_id
    shape = head.shape
    rows, length = batch.next_tokens.shape
    embedded = embedding[batch.next_tokens]
    positions = torch.arange(length, device=embedded.device)
    cos, sin = (table.to(embedded.device) for table in rotary_tables(shape.frequencies, length))
    g = head.fuse(batch.states)
    if mask_id is not None:
        masked = head.fuse(head.mask_hidden[0, 0]).expand_as(g)
        mask_embedded = embedding[mask_id].expand_as(embedded)
    group = shape.heads // shape.kv_heads
    keys: list[list[Tensor]] = [[] for _ in range(shape.layers)]
    values: list[list[Tensor]] = [[] for _ in range(shape.layers)]
    outputs: list[Tensor] = []
    for step in range(depth):
        if step and mask_id is not None:
            embedded, g = mask_embedded, masked
        elif step:
            g = functional.pad(head.next_hidden(outputs[-1])[:, :-1], (0, 0, 1, 0))
        y = g
        for index, layer in enumerate(head.layers):
            x, residual = layer.enter(embedded, y)
            q, k, v = layer.self_attn.project(x, cos, sin)
            keys[index].append(k.transpose(1, 2))
            values[index].append(v.transpose(1, 2))
            grouped = q.transpose(1, 2).view(rows, shape.kv_heads, group, length, shape.width)
            mixed = _chain_attention(grouped, keys[index], values[index], positions)
            mixed = mixed.reshape(rows, shape.heads, length, shape.width).transpose(1, 2).flatten(2)
            y = layer.leave(residual, mixed)
        outputs.append(y)
    return outputs


def _chain_attention(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], positions: Tensor
) -> Tensor:
    """Attention of step len(keys) - 1: q [b, kv, group, n, width], keys and values [b, kv, n, width] by step."""
    step, length, scale = len(keys) - 1, q.shape[3], q.shape[-1] ** -0.5
    hidden_from = positions[None, :] > positions[:, None] - step
    scores = torch.einsum("bgrtd,bgsd->bgrts", q, keys[0]).float() * scale
    scores = scores.masked_fill(hidden_from, -1e9)  # finite: the first rows of a late step see nothing
    own = []
    for at in range(1, step + 1):
        shifted = functional.pad(keys[at], (0, 0, step - at, 0))[:, :, :length]
        own.append((q * shifted[:, :, None]).sum(-1, keepdim=True).float() * scale)
    shares = torch.softmax(torch.cat([scores, *own], -1), -1).to(q.dtype)
    mixed = torch.einsum("bgrts,bgsd->bgrtd", shares[..., :length], values[0])
    for at in range(1, step + 1):
        shifted = functional.pad(values[at], (0, 0, step - at, 0))[:, :, :length]
        mixed = mixed + shares[..., length + at - 1 : length + at] * shifted[:, :, None]
    return mixed


class HeadKind(Protocol):
    """How one kind of head is trained: its outputs by drafted token, and what scores them."""

    model: nn.Module
    target_ids: Tensor  # the target's ids of the rows that are scored

    def hidden(self, batch: HeadBatch, depth: int) -> list[Tensor]:
        """Per drafted token what the output rows are multiplied with, [b, n, hidden], by the position that is
        named in `aligned`."""
        ...

    def rows(self) -> Tensor:
        """The output rows [v, hidden]."""
        ...

    @property
    def aligned(self) -> bool:
        """Whether index t of token s predicts t + 2 (a chain's), or t + 2 + s (drafted from position t)."""
        ...


class Eagle3Training:
    """EAGLE-3, or P-EAGLE where the head has a mask token."""

    aligned = True

    def __init__(self, head: Eagle3Head, embedding: Tensor) -> None:
        self.model = head
        self.target_ids = head.target_ids if head.target_ids is not None else torch.arange(head.shape.vocab, device=head.fc.weight.device)
        self._head, self._embedding = head, embedding

    def hidden(self, batch: HeadBatch, depth: int) -> list[Tensor]:
        """The normed outputs of each step."""
        return [self._head.norm(y) for y in chain_outputs(self._head, self._embedding, batch, depth)]

    def rows(self) -> Tensor:
        """The head's own output matrix."""
        return self._head.lm_head.weight


class MedusaTraining:
    """Medusa's residual blocks over a shared output matrix of some ids, which is trained too or stays."""

    aligned = False

    def __init__(
        self, heads: nn.Module, blocks: Callable[[Tensor], list[Tensor]], rows: Tensor, ids: Tensor
    ) -> None:
        """blocks gives the heads' hidden states [.., hidden] from the target's last one; rows [v, hidden] of ids."""
        self.model = heads
        self.target_ids = ids
        self._blocks, self._rows = blocks, rows

    def hidden(self, batch: HeadBatch, depth: int) -> list[Tensor]:
        """Each head's transformed state."""
        return self._blocks(batch.last[:, :-1])[:depth]

    def rows(self) -> Tensor:
        """The shared output matrix."""
        return self._rows


class HeadTrainer(TrainingLoop):
    """Trains a head on a feature store; new shards are used from the next epoch on."""

    def __init__(
        self, kind: HeadKind, store: FeatureStore, output: Tensor, state: Path, settings: HeadSettings
    ) -> None:
        """output [v, hidden] are the target's output rows of the kind's target_ids, for the labels.

        Goes on from the file `state` when it exists. Raises FileNotFoundError when the store is empty.
        """
        super().__init__(kind.model, state, settings)
        self.kind, self.settings, self._store = kind, settings, store
        self._output = output.to(self.device, torch.bfloat16 if settings.bfloat16 else output.dtype)
        if not self.resume():
            self.begin_epoch()
        if not store.sequences:
            raise FileNotFoundError(f"no features in {store.folder}")

    def begin_epoch(self) -> None:
        """Take up the sequences of shards that were finished since the last epoch began."""
        self._store.refresh()
        self.progress.shards = len(self._store.sequences)

    def epoch_batches(self) -> list[list[StoredText]]:
        """The epoch's batches of sequences."""
        known = self._store.sequences[: self.progress.shards]
        chosen = [s for index, s in enumerate(known) if index % DEVELOPMENT_EVERY and s.length > 2]
        rng = random.Random(f"{self.settings.seed} {self.progress.epoch}")
        batches = packed_batches([s.length for s in chosen], self.settings.tokens_per_step, rng.shuffle)
        return [[chosen[index] for index in batch] for batch in batches]

    def development(self) -> list[StoredText]:
        """Sequences that are never trained on."""
        return [s for s in self._store.sequences[::DEVELOPMENT_EVERY] if s.length > 2]

    def batch_loss(self, batch: list[StoredText], noise: torch.Generator) -> tuple[Tensor, float, int]:
        """Loss over all drafted tokens; the agreement is that of the first."""
        made = make_head_batch(self._store, batch, self.settings, device=self.device)
        depth = 1 if self.fraction() < self.settings.shallow else self.settings.depth
        loss = torch.zeros((), device=self.device)
        agreement = 0.0
        scale = sum(self.settings.decay**step for step in range(depth))
        weights, last = made.weights, made.last[:, 1:]
        for step, hidden in enumerate(self.kind.hidden(made, depth)):
            if not self.kind.aligned and step:
                # Drafted from position t, the token t + 2 + step: its label stands so much further on.
                weights = functional.pad(made.weights[:, step:], (0, step))
                last = functional.pad(made.last[:, 1 + step :], (0, 0, 0, step))
            if step == 0 or not self.kind.aligned:  # a chain's steps have the same labels
                chosen = weights > 0
                picked = weights[chosen]
                share = (picked / picked.sum())[:, None]
                with torch.no_grad():
                    products = last[chosen].to(self._output.dtype) @ self._output.T
                    labels = torch.softmax(products.float(), -1)
            part, best = _SoftCrossEntropy.apply(hidden[chosen].float(), self.kind.rows(), labels, share)
            loss = loss + part * self.settings.decay**step / scale
            if step == 0:
                agreement = float(((best == labels.argmax(-1)) * share[:, 0]).sum())
        return loss, agreement, int((made.weights > 0).sum())


@torch.inference_mode()
def head_acceptance(
    kind: HeadKind,
    store: FeatureStore,
    answers: Sequence[StoredText],
    lengths: Sequence[int] = (1, 2, 3, 4),
) -> Results:
    """Held-out acceptance of chains under the greedy rule, by draft length and kind; `all` sums them up.

    answers are greedy answers of the target: what a chain drafts is judged only while all before it equals the
    answer, so one pass over the true tokens tells what every chain would have proposed.
    """
    result: Results = {k: {"all": Acceptance()} for k in lengths}
    depth = max(lengths)
    device = next(kind.model.parameters()).device
    for sequence in answers:
        batch = make_head_batch(store, [sequence], HeadSettings(steps=1), depth, device)
        tokens = store.read(sequence)[0].tolist()
        first = sequence.length - sequence.written
        hits: list[list[bool]] = []
        for step, hidden in enumerate(kind.hidden(batch, depth)):
            best = kind.target_ids[(hidden[0] @ kind.rows().T).argmax(-1)].tolist()
            # hits[s][i]: the chain after answer token i has its draft s right, which is answer token i + 1 + s.
            right = []
            for start in range(first, sequence.length - 1):
                at = start + 1 + step
                index = start - 1 + (step if kind.aligned else 0)
                right.append(at < sequence.length and best[index] == tokens[at])
            hits.append(right)
        add_rounds(result, sequence.kind, hits[0], hits)
    return result
