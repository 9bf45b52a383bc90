"""EAGLE-1 heads (Li et al. 2024, arXiv 2401.15077), which EAGLE-2 (arXiv 2406.16858) drafts with too.

Row t pairs the target's last hidden state at position t with the token at t + 1, and predicts the target's
last hidden state at t + 1; the target's own output matrix makes the token at t + 2 of it. The parameters'
names are those of the published checkpoints, so that a state dict is one:

    u = fc([E(x); f]); u = u + attention(u); u = u + mlp(post_attention_layernorm(u)); logits = head(u)

The first layer has no norm before its attention, and there is none before the output matrix. The next
step's f is u itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specview.heads.blocks import LayerCache, Rotary, attend, new_caches
from specview.heads.eagle3 import Attention, Mlp, Norm


@dataclass(frozen=True, slots=True)
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
    qkv_bias: bool = False
    own_embedding: bool = False


class EagleLayer(nn.Module):
    """A Llama layer, the first of which has no norm before its attention."""

    def __init__(self, shape: EagleShape, first: bool) -> None:
        super().__init__()
        if not first:
            self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(
            shape.hidden, shape.hidden, shape.heads, shape.kv_heads, shape.width, bias=shape.qkv_bias
        )
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape.hidden, shape.intermediate)
        self._first = first

    def run(self, u: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, sees: Tensor | None) -> Tensor:
        """Rows [n, hidden] through the layer, after the cache's end (EagleHead.run)."""
        x = u if self._first else self.input_layernorm(u)
        q, k, v = self.self_attn.project(x, cos, sin)
        keys, values = cache.append(k.transpose(0, 1), v.transpose(0, 1))
        u = u + self.self_attn.o_proj(attend(q, keys, values, sees))
        out: Tensor = u + self.mlp(self.post_attention_layernorm(u))
        return out


class EagleHead(nn.Module):
    """An EAGLE-1 or EAGLE-2 head. Its logits are the target's output matrix times its outputs."""

    target_ids: Tensor | None = None  # its ids are the target's

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = shape
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=shape.fc_bias)
        self.layers = nn.ModuleList(EagleLayer(shape, index == 0) for index in range(shape.layers))
        self.rotary = Rotary(shape.frequencies)

    def fuse(self, features: Tensor) -> Tensor:
        """The features as they are: the target's last hidden states [..., hidden]."""
        return features

    def next_hidden(self, u: Tensor) -> Tensor:
        """What takes the features' place in the step after an output: the output itself."""
        return u

    def new_cache(self) -> list[LayerCache]:
        """An empty cache, one for each layer."""
        return new_caches(self.shape.layers, self.shape.kv_heads, self.fc.weight, self.shape.width)

    def run(
        self,
        embedded: Tensor,
        g: Tensor,
        positions: Tensor,
        cache: Sequence[LayerCache],
        sees: Tensor | None = None,
    ) -> Tensor:
        """Feed rows after the cache's end: embedded tokens and g [n, hidden]; give their outputs [n, hidden].

        positions [n] are the rotary ones. sees [n, length] is True where a row may look at the entries, its
        own n last; None is causal.
        """
        cos, sin = self.rotary.tables(positions)
        u: Tensor = self.fc(torch.cat([embedded, g], -1))
        for layer, own in zip(self.layers, cache, strict=True):
            u = layer.run(u, cos, sin, own, sees)
        return u
