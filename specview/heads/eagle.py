"""Heads of the EAGLE family as torch modules: EAGLE-1 and 2, EAGLE-3, and P-EAGLE's parallel ones.

EAGLE-1 (Li et al. 2024, arXiv 2401.15077), which EAGLE-2 (arXiv 2406.16858) drafts with too: row t pairs the target's
last hidden state at position t with the token at t + 1, and predicts the target's last hidden state at t + 1; the target's
own output matrix makes the token at t + 2 of it. The parameters' names are the published ones. The first layer has no norm
before its attention, and there is none before the output matrix; the next step's f is u itself:

    u = fc([E(x); f]); u = u + attention(u); u = u + mlp(post_attention_layernorm(u)); logits = head(u)

EAGLE-3 (Li et al. 2025, arXiv 2503.01840): row t pairs the target's features at position t with the token at t + 1, and
predicts the token at t + 2. The parameters' names are those of the `speculators` layout:

    g = fc([low; mid; high])        after input_norm (over all) or fc_norm (one for each), where there is one
    e = input_layernorm(E(x)), n = hidden_norm(g), r = n if norm_before_residual else g
    y = r + attention([e; n]); y = y + mlp(post_attention_layernorm(y)); logits = lm_head(norm(y))

The next step's g is y itself (norm(y) with norm_output): no fc. In P-EAGLE the later rows of a draft are
fed at once, with the mask token and fc(mask_hidden) in the features' place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specview.heads.blocks import Attention, Mlp, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape:
    """Sizes and switches of a head; frequencies are the rotary ones [head width / 2]."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    width: int
    vocab: int
    eps: float
    frequencies: tuple[float, ...]
    layers: int = 1
    fc_bias: bool = True
    attention_bias: bool = False
    qk_norm: bool = False
    own_embedding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Shape(EagleShape):
    """Those of an EAGLE-3 or P-EAGLE head.

    aux_layers are the target's hidden states that the head reads: after so many layers (0 is the embedding).
    mask_token_id is P-EAGLE's.
    """

    target_hidden: int
    draft_vocab: int
    aux_layers: tuple[int, ...]
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    mask_token_id: int | None = None


class EagleLayer(nn.Module):
    """A Llama layer. EAGLE-1's first has no norm before its attention; EAGLE-3's first reads the embedding beside the features."""

    def __init__(self, shape: EagleShape, first: bool) -> None:
        super().__init__()
        third = isinstance(shape, Eagle3Shape)
        if third or not first:
            self.input_layernorm = Norm(shape.hidden, shape.eps)
        if third and first:
            self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(
            2 * shape.hidden if third and first else shape.hidden,
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.width,
            bias=shape.attention_bias,
            output_bias=third and shape.attention_bias and not shape.qk_norm,
            qk_eps=shape.eps if shape.qk_norm else None,
        )
        self.mlp = Mlp(shape.hidden, shape.intermediate)
        self._norm_before_residual = bool(getattr(shape, "norm_before_residual", False))

    def enter(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The attention's input and the residual, from [..., hidden] each; embedded is for EAGLE-3's first layer."""
        if hasattr(self, "hidden_norm"):
            normed = self.hidden_norm(g)
            return torch.cat([self.input_layernorm(embedded), normed], -1), normed if self._norm_before_residual else g
        return self.input_layernorm(g) if hasattr(self, "input_layernorm") else g, g

    def leave(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output from the residual and what attention mixed [..., heads * width]."""
        y = residual + self.self_attn.o_proj(mixed)
        out: Tensor = y + self.mlp(self.post_attention_layernorm(y))
        return out


class EagleHead(nn.Module):
    """An EAGLE-1 or EAGLE-2 head. Its logits are the target's output matrix times its outputs."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = shape
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.fc = nn.Linear(self._fused, shape.hidden, bias=shape.fc_bias)
        self.layers = nn.ModuleList(EagleLayer(shape, index == 0) for index in range(shape.layers))

    @property
    def _fused(self) -> int:
        """Numbers that fc reads."""
        return 2 * self.shape.hidden

    @property
    def target_ids(self) -> Tensor | None:
        """The target's id of every row of the logits [draft vocab]; None where they are the target's own."""
        return None


class Eagle3Head(EagleHead):
    """An EAGLE-3 or P-EAGLE head."""

    shape: Eagle3Shape
    d2t: Tensor
    t2d: Tensor

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__(shape)
        if shape.norm_before_fc:
            self.input_norm = Norm(self._fused, shape.eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(shape.target_hidden, shape.eps) for _ in shape.aux_layers)
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)
        if shape.mask_token_id is not None:
            self.mask_hidden = nn.Parameter(torch.randn(1, 1, self._fused))
        if shape.draft_vocab != shape.vocab:
            self.register_buffer("d2t", torch.zeros(shape.draft_vocab, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(shape.vocab, dtype=torch.bool))

    @property
    def _fused(self) -> int:
        return len(self.shape.aux_layers) * self.shape.target_hidden

    @property
    def target_ids(self) -> Tensor | None:
        """The target's ids, by d2t, which holds offsets: the target's id of row i is i + d2t[i]."""
        if self.shape.draft_vocab == self.shape.vocab:
            return None
        return torch.arange(self.shape.draft_vocab, device=self.d2t.device) + self.d2t

    def set_target_ids(self, ids: Tensor) -> None:
        """Say which target ids the rows of lm_head stand for: rising ids [draft vocab]."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    def fuse(self, features: Tensor) -> Tensor:
        """g [..., hidden] from the aux layers' hidden states side by side [..., aux * target hidden]."""
        if self.shape.norm_before_fc:
            features = self.input_norm(features)
        if self.shape.fc_norm:
            parts = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        g: Tensor = self.fc(features)
        return g

    def next_hidden(self, y: Tensor) -> Tensor:
        """What takes the features' place in the step after an output."""
        return self.norm(y) if self.shape.norm_output else y
