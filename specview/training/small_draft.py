"""The stand-alone draft: a tiny Llama-architecture model, and what it is trained for.

Parameter names are those of `transformers.LlamaForCausalLM`, so a state dict of `SmallDraft` is a
checkpoint of that class. The forward pass is written out here because training needs the final
hidden states and scores only some of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from specview.training.plain import COPY_KINDS
from specview.training.shards import Labelled
from specview.training.target import LlamaShape, rope_tables, rotate


class _Attention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self._shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        dim = self._shape.head_dim
        q = rotate(self.q_proj(x).view(batch, length, -1, dim).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(batch, length, -1, dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, length, -1, dim).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def guidance(self, x: Tensor, cos: Tensor, sin: Tensor, head: int, marks: Tensor) -> Tensor:
        """Cross-entropy of one head's attention against the positions it should look at.

        x is what `forward` gets; marks [n, 3] are row, query position and wanted key position.
        """
        batch, length, _ = x.shape
        dim = self._shape.head_dim
        group = head // (self._shape.heads // self._shape.kv_heads)
        rows, queries, keys = marks.unbind(1)
        wq = self.q_proj.weight[head * dim : (head + 1) * dim]
        wk = self.k_proj.weight[group * dim : (group + 1) * dim]
        q = rotate(F.linear(x[rows, queries], wq), cos[queries], sin[queries])
        used, place = rows.unique(return_inverse=True)
        k = rotate(F.linear(x[used], wk), cos, sin)
        scores = torch.einsum("nd,nsd->ns", q, k[place]) * dim**-0.5
        later = torch.arange(length)[None] > queries[:, None]
        return F.cross_entropy(scores.masked_fill(later, -torch.inf), keys)


class _Mlp(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = _Attention(shape)
        self.mlp = _Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Body(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)


@dataclass(frozen=True)
class Guide:
    """Where one attention head should look: marks [n, 3] are row, query and wanted key position."""

    layer: int
    head: int
    marks: Tensor


class SmallDraft(nn.Module):
    """A Llama-architecture language model with tied input and output embeddings."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Random weights in the shape that a parsed config.json gives.

        Raises ValueError for an architecture or an option this code does not compute.
        """
        super().__init__()
        self.config = dict(config)
        self.shape = LlamaShape.from_config(config)
        if not self.shape.tied:
            raise ValueError("the small draft needs tied embeddings")
        self.model = _Body(self.shape)
        self.longest = int(config["max_position_embeddings"])
        self._cos, self._sin = rope_tables(self.shape, self.longest)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.05)
        for name, parameter in self.model.layers.named_parameters():
            if parameter.dim() == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 if into_residual else 0.6 * parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=std)

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
        return self.guided(tokens, ())[0]

    def guided(self, tokens: Tensor, guides: Sequence[Guide]) -> tuple[Tensor, Tensor]:
        """As `forward`, and the summed cross-entropy of the guided heads' attention."""
        length = tokens.shape[1]
        cos, sin = self._cos[:length], self._sin[:length]
        x = self.model.embed_tokens(tokens)
        loss = torch.zeros(())
        for index, layer in enumerate(self.model.layers):
            for guide in guides:
                if guide.layer == index and len(guide.marks):
                    seen = layer.input_layernorm(x)
                    loss = loss + layer.self_attn.guidance(seen, cos, sin, guide.head, guide.marks)
            x = layer(x, cos, sin)
        return self.model.norm(x), loss

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
