"""The stand-alone draft: a tiny Llama-architecture model, and what it is trained for.

The model is transformers' `LlamaModel` without a head, so a state dict of `SmallDraft` is a checkpoint of
`LlamaForCausalLM`; training needs the final hidden states and scores only some of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from specview.heads.blocks import rotate
from specview.training.plain import COPY_KINDS
from specview.training.shards import Labelled
from specview.training.target import computed_shape


@dataclass(frozen=True)
class Guide:
    """Where one attention head should look: marks [n, 3] are row, query and wanted key position."""

    layer: int
    head: int
    marks: Tensor


class SmallDraft(nn.Module):
    """A Llama-architecture language model with tied input and output embeddings."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Random weights in the shape that a parsed config.json gives.

        Raises ValueError for an architecture or an option that `draft.gguf` could not hold.
        """
        from transformers import LlamaConfig, LlamaModel

        super().__init__()
        self.config = dict(config)
        self.shape, _ = computed_shape(config)
        if not self.shape.tied:
            raise ValueError("the small draft needs tied embeddings")
        made = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "dtype")}
        self.model = LlamaModel(LlamaConfig(**made, attn_implementation="sdpa"))
        self.longest = int(config["max_position_embeddings"])
        nn.init.normal_(self.embedding, std=0.05)
        for name, parameter in self.model.layers.named_parameters():
            if parameter.dim() == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 if into_residual else 0.6 * parameter.shape[1] ** -0.5)

    @classmethod
    def load(cls, folder: Path) -> SmallDraft:
        """Read config.json and model.safetensors of a LlamaForCausalLM checkpoint, as float32.

        Raises FileNotFoundError or ValueError, RuntimeError when the tensors do not fit the config.
        """
        draft = cls(json.loads((folder / "config.json").read_text("utf-8")))
        weights = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
        head = weights.pop("lm_head.weight", None)
        if head is not None and not torch.equal(head, weights["model.embed_tokens.weight"]):
            raise ValueError("the small draft needs tied embeddings")
        draft.load_state_dict(weights)
        return draft

    @property
    def embedding(self) -> Tensor:
        """The tied embedding, [vocab, hidden]."""
        return self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Final hidden states [batch, length, hidden], normalised, for tokens [batch, length]."""
        return self.model(tokens, use_cache=False).last_hidden_state

    def guided(self, tokens: Tensor, guides: Sequence[Guide]) -> tuple[Tensor, Tensor]:
        """As `forward`, and the summed cross-entropy of the guided heads' attention."""
        made = self.model(tokens, use_cache=False, output_hidden_states=True)
        cos, sin = self.model.rotary_emb(made.last_hidden_state, torch.arange(tokens.shape[1])[None])
        losses = [self._guidance(guide, made.hidden_states[guide.layer], cos[0], sin[0]) for guide in guides if len(guide.marks)]
        return made.last_hidden_state, sum(losses, torch.zeros(()))

    def _guidance(self, guide: Guide, entering: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Cross-entropy of one head's attention against the positions it should look at."""
        layer, width = self.model.layers[guide.layer], self.shape.width
        x = layer.input_layernorm(entering)
        rows, queries, keys = guide.marks.unbind(1)
        head, group = guide.head, guide.head // self.shape.group
        wq = layer.self_attn.q_proj.weight[head * width : (head + 1) * width]
        wk = layer.self_attn.k_proj.weight[group * width : (group + 1) * width]
        q = rotate(F.linear(x[rows, queries], wq), cos[queries], sin[queries])
        used, place = rows.unique(return_inverse=True)
        k = rotate(F.linear(x[used], wk), cos, sin)
        scores = torch.einsum("nd,nsd->ns", q, k[place]) * width**-0.5
        later = torch.arange(x.shape[1])[None] > queries[:, None]
        return F.cross_entropy(scores.masked_fill(later, -torch.inf), keys)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [..., vocab] of hidden states [..., hidden]."""
        return F.linear(hidden, self.embedding)


def project_embedding(embedding: Tensor, width: int, std: float = 0.05) -> Tensor:
    """A [vocab, width] start for a draft's embedding: the target's, on its main directions.

    embedding is [vocab, hidden]; the directions are the right singular vectors with the largest
    singular values. The result is scaled to the given standard deviation.
    """
    values, vectors = torch.linalg.eigh(embedding.T @ embedding)
    projected = embedding @ vectors[:, values.argsort(descending=True)[:width]]
    return projected * (std / projected.std())


@dataclass(frozen=True)
class Weights:
    """How much one token's prediction counts in the loss, by what the token is."""

    written: float = 1.0  # the target wrote it as an answer
    invented: float = 0.8  # the target wrote it as a user turn
    read: float = 0.5  # it stands in a prompt, with the target's labels
    plain: float = 0.25  # real text without labels
    copied: float = 1.0  # the second half of a copy


@dataclass(frozen=True)
class Batch:
    """Padded sequences and the positions that are trained.

    tokens [batch, length]; rows and columns [n] index the trained positions; ids and probabilities
    [n, labels] are what should follow there; weights is [n]. guides may be empty.
    """

    tokens: Tensor
    rows: Tensor
    columns: Tensor
    ids: Tensor
    probabilities: Tensor
    weights: Tensor
    guides: tuple[Guide, ...]


# Copying takes two heads, one above the other: one looks at the token before, the other for a place
# whose token before is the present one (induction, Olsson et al. 2022, arXiv:2209.11895).
PREVIOUS_HEAD, MATCHING_HEAD = (1, 0), (2, 0)


def copy_guides(sequences: Sequence[Labelled], skip: int) -> tuple[Guide, ...]:
    """Marks for the two copying heads in the sequences that end with a copy of an earlier piece.

    The piece is at the beginning, or in a framed copy behind the `skip` tokens that begin a chat.
    """
    previous, matching = [], []
    for row, s in enumerate(sequences):
        if s.kind not in COPY_KINDS:
            continue
        queries = torch.arange(1, len(s.tokens))
        previous.append(torch.stack([torch.full_like(queries, row), queries, queries - 1], 1))
        piece = s.written + 2
        queries = torch.arange(len(s.tokens) - piece, len(s.tokens) - 1)
        source = skip if s.kind == "framed-copy" else 0
        keys = queries - (len(s.tokens) - piece) + source + 1
        matching.append(torch.stack([torch.full_like(queries, row), queries, keys], 1))
    if not previous:
        return ()
    return Guide(*PREVIOUS_HEAD, torch.cat(previous)), Guide(*MATCHING_HEAD, torch.cat(matching))


def make_batch(sequences: list[Labelled], weights: Weights, skip: int) -> Batch:
    """Pad and label sequences; the first `skip` positions, the shared prompt beginning, carry no loss."""
    length = max(len(s.tokens) for s in sequences)
    tokens = torch.zeros(len(sequences), length, dtype=torch.long)
    rows, columns, ids, probabilities, weight = [], [], [], [], []
    labels = max((s.label_ids.shape[1] for s in sequences if s.label_ids is not None), default=1)
    for row, s in enumerate(sequences):
        n = len(s.tokens)
        tokens[row, :n] = s.tokens
        if s.label_ids is None or s.label_logp is None:
            first = n - s.written - 1
            label_ids = torch.zeros(n - 1, labels, dtype=torch.long)
            label_ids[:, 0] = s.tokens[1:]
            p = torch.zeros(n - 1, labels)
            p[:, 0] = 1
            w = torch.full((n - 1,), weights.plain if s.kind == "plain" else weights.copied)
            w[:first] = 0
        else:
            label_ids, p = s.label_ids.long(), s.label_logp.float().exp()
            p = p / p.sum(-1, keepdim=True).clamp_min(1e-9)
            w = torch.full((n,), weights.invented if s.kind == "invented" else weights.read)
            w[: min(skip, n)] = 0
            w[max(n - s.written - 1, 0) :] = weights.written
            w = torch.where(s.label_logp[:, 0].isinf(), 0.0, w)
        keep = w.nonzero().squeeze(1)
        rows.append(torch.full_like(keep, row))
        columns.append(keep)
        ids.append(label_ids[keep])
        probabilities.append(p[keep])
        weight.append(w[keep])
    return Batch(
        tokens,
        torch.cat(rows),
        torch.cat(columns),
        torch.cat(ids),
        torch.cat(probabilities),
        torch.cat(weight),
        copy_guides(sequences, skip),
    )


class _CandidateLoss(torch.autograd.Function):
    """Soft cross-entropy over candidate rows, in blocks that fit the processor's cache.

    The gradient is formed with the loss: probabilities minus labels, never kept for the whole batch.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, rows: Tensor, bias: Tensor, ids: Tensor, p: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden_grad, rows_grad = torch.empty_like(hidden), torch.zeros_like(rows)
        loss, hits = torch.zeros(()), torch.zeros(())
        for at in range(0, len(hidden), 512):
            part = slice(at, at + 512)
            h, w = hidden[part], weights[part, None]
            logits = torch.addmm(bias, h, rows.T)
            z = logits.logsumexp(-1, keepdim=True)
            picked = logits.gather(1, ids[part])
            loss += ((z - (p[part] * picked).sum(-1, keepdim=True)) * w).sum()
            best = ids[part].gather(1, p[part].argmax(-1, keepdim=True))
            hits += ((logits.argmax(-1, keepdim=True) == best) * w).sum()
            grad = logits.sub_(z).exp_().mul_(w).scatter_add_(1, ids[part], -p[part] * w)
            hidden_grad[part] = grad @ rows
            rows_grad.addmm_(grad.T, h)
        ctx.save_for_backward(hidden_grad, rows_grad)
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, rows_grad = ctx.saved_tensors
        return hidden_grad * loss_grad, rows_grad * loss_grad, None, None, None, None


class Objective:
    """Soft cross-entropy against the target's labels over a part of the vocabulary.

    Scoring 49,152 ids would cost five times the rest of the model. Each step scores the frequent
    ids, those that its own labels need, and `negatives` random others whose logits are raised by the
    log of how many ids each stands for (sampled softmax, Jean et al. 2015, arXiv:1412.2007).
    """

    def __init__(self, frequent: Tensor, vocab_size: int, negatives: int, guidance: float) -> None:
        """`frequent` [n] are ids that every step scores; `guidance` weighs the guided heads' loss."""
        self._frequent, self._vocab_size, self._negatives = frequent, vocab_size, negatives
        self._guidance = guidance

    def __call__(self, draft: SmallDraft, batch: Batch, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        """Mean loss, and the share of positions where the draft's best candidate is the label's."""
        hidden, guided = draft.guided(batch.tokens, batch.guides if self._guidance else ())
        hidden = hidden[batch.rows, batch.columns]
        best = batch.ids.gather(1, batch.probabilities.argmax(-1, keepdim=True))
        scored = torch.zeros(self._vocab_size, dtype=torch.bool)
        scored[self._frequent] = True
        scored[best.flatten()] = True
        certain = scored.nonzero().squeeze(1)
        others = (~scored).nonzero().squeeze(1)
        few = min(self._negatives, len(others))
        drawn = others[torch.randint(len(others), (few,), generator=noise)] if few else others
        candidates = torch.cat([certain, drawn])
        bias = torch.zeros(len(candidates))
        if few:
            bias[len(certain) :] = torch.log(torch.tensor(len(others) / few))
        place = torch.full((self._vocab_size,), -1)
        place[certain] = torch.arange(len(certain))
        ids = place[batch.ids]
        p = torch.where(ids >= 0, batch.probabilities, 0.0)
        p = p / p.sum(-1, keepdim=True)
        weights = batch.weights / batch.weights.sum()
        loss, hits = _CandidateLoss.apply(
            hidden, draft.embedding[candidates], bias, ids.clamp_min(0), p, weights
        )
        return loss + self._guidance * guided, hits
