"""Medusa heads (Cai et al. 2024, arXiv 2401.10774) as a torch module.

Head i reads the target's hidden state at position t, after the final norm, and predicts the token at t + 2 + i:

    z = x + silu(W x + b)           one residual block after another, each [hidden, hidden]
    logits = output(z)              an output matrix of its own, one that the heads share, or the target's

The parameters' names are those of vLLM's layout, so that a state dict is a checkpoint: `blocks.{i}.layers.{j}.weight`
and `.bias`, `lm_heads.{i}.weight` (or `lm_head.weight`, shared), `token_map`. layout_medusa.py reads Medusa's own files too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Output = Literal["own", "shared", "target"]
"""Whose output matrix: each head's own, one of theirs that all share, or the target's (Medusa's version 2)."""


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """Sizes and switches of the heads.

    layers are residual blocks per head. draft_vocab is smaller than vocab where the outputs give only some
    of the target's ids (token_map); 0 is the target's own vocabulary.
    """

    hidden: int
    vocab: int
    heads: int
    layers: int = 1
    draft_vocab: int = 0
    output: Output = "own"
    bias: bool = True


class _Blocks(nn.Module):
    """The residual blocks of one head."""

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(shape.hidden, shape.hidden, bias=shape.bias) for _ in range(shape.layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + functional.silu(layer(x))
        return x


class MedusaHeads(nn.Module):
    """All heads of one target."""

    token_map: Tensor

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.draft_vocab or shape.vocab
        self.blocks = nn.ModuleList(_Blocks(shape) for _ in range(shape.heads))
        if shape.output == "own":
            self.lm_heads = nn.ModuleList(
                nn.Linear(shape.hidden, width, bias=False) for _ in range(shape.heads)
            )
        elif shape.output == "shared":
            self.lm_head = nn.Linear(shape.hidden, width, bias=False)
        if width != shape.vocab:
            if shape.output == "target":
                raise ValueError("the target's output gives the target's whole vocabulary")
            self.register_buffer("token_map", torch.arange(width))

    @property
    def target_ids(self) -> Tensor | None:
        """The target's id of every column of the logits [draft vocab]; None where they are the target's own."""
        return self.token_map if "token_map" in self._buffers else None

    def forward(self, hidden: Tensor, heads: int | None = None) -> Tensor:
        """What the first `heads` heads (all, if None) give their outputs, [heads, n, hidden], of hidden [n, hidden]."""
        return torch.stack([blocks(hidden) for blocks in list(self.blocks)[:heads]])

    def logits(self, states: Tensor) -> Tensor | None:
        """Logits [heads, n, draft vocab] of what forward gave; None where the output is the target's."""
        if self.shape.output == "target":
            return None
        if self.shape.output == "shared":
            rows: Tensor = self.lm_head(states)
            return rows
        outputs = list(self.lm_heads)[: len(states)]
        return torch.stack([output(state) for output, state in zip(outputs, states, strict=True)])
