"""A Llama-shaped pass of a few rows on a CPU in float32, where every operation's overhead counts.

At one row a layer's products take well under a millisecond, so that forty small operations around them
would cost a tenth of the pass. Here they are about twenty: work buffers and their views are made once
per number of rows, steps join their products, and attention is two batched products over the key-value
heads (torch's fused attention is slower for few rows; measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specview.engines.transformers_linear import Linear, gated
from specview.engines.transformers_llama_shape import LlamaShape
from specview.engines.tree import Tree

MAX_ROWS = 32
"""Passes of more rows take the general way."""


@dataclass(slots=True)
class LlamaLayer:
    """One layer's weights, ready for their products."""

    norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate_and_up: Linear
    down: Linear


@dataclass(slots=True)
class Pass:
    """Some rows on their way through layers.

    start      tokens that the cache holds before them
    visible    keys that attention is shown, the rows' own included
    rotation   unit complex numbers [n, width / 2] of their positions
    tree       who of them sees whom; None for a chain
    features   layers whose output is put into `found`
    sequences  so many have their rows in this pass, one sequence's after the other's; start and visible are each's
    """

    start: int
    visible: int
    rotation: torch.Tensor
    tree: Tree | None = None
    features: Sequence[Any] = ()
    found: dict[Any, torch.Tensor] = field(default_factory=dict)
    sequences: int = 1


class FewRows:
    """Runs layers of a model on up to MAX_ROWS rows."""

    def __init__(self, shape: LlamaShape, layers: Sequence[LlamaLayer], norm: torch.Tensor) -> None:
        self._shape = shape
        self._layers = layers
        root = shape.hidden**0.5
        self._norms = [(layer.norm * root, layer.mlp_norm * root) for layer in layers]
        self._last_norm = norm * root
        self._work: dict[tuple[int, int], _Work] = {}

    def run(
        self, x: torch.Tensor, buffer: torch.Tensor, rows_of: Pass, first: int, last: int
    ) -> torch.Tensor:
        """Run layers first..last on x [n, hidden]; buffer is a LlamaCache's. Features are put into rows_of."""
        shape, rows, sequences = self._shape, x.shape[0], rows_of.sequences
        work = self._work.get((rows, sequences))
        if work is None:
            work = self._work[rows, sequences] = _Work(shape, rows, sequences)
        work.turn(rows_of.rotation)
        each = rows // sequences
        mask = _mask(each, shape.group, rows_of)
        places = buffer.narrow(2, rows_of.start, each)
        new = (places if sequences == 1 else places.unflatten(1, (-1, sequences))).unbind(0)
        seen_keys, seen_values = buffer.narrow(2, 0, rows_of.visible).split(shape.kv_heads * sequences, 1)
        keys, values = seen_keys.transpose(2, 3).unbind(0), seen_values.unbind(0)
        rotation, turned, new_kv = work.rotation, work.turned, work.new_kv
        features, found = rows_of.features, rows_of.found
        if first in features:
            found[first] = x
        for index in range(first, last):
            layer = self._layers[index]
            norm, mlp_norm = self._norms[index]
            qkv = layer.qkv(work.normed(x, norm))
            torch.mul(qkv.view(torch.complex64), rotation, out=turned)
            new[index].copy_(new_kv)
            query = work.query()
            scores = (
                torch.bmm(query, keys[index]) if mask is None else torch.baddbmm(mask, query, keys[index])
            )
            mixed = torch.bmm(torch.softmax(scores, -1), values[index])
            x = layer.out.plus(work.side_by_side(mixed), x)
            normed = work.normed(x, mlp_norm)
            x = layer.down.plus(gated(layer.gate_and_up, normed), x)
            if index + 1 in features:
                found[index + 1] = x
        return x

    def final_norm(self, x: torch.Tensor, sequences: int = 1) -> torch.Tensor:
        """The norm before the head, of x [n, hidden]."""
        return self._work[x.shape[0], sequences].normed(x, self._last_norm)


def _mask(rows: int, group: int, rows_of: Pass) -> torch.Tensor | None:
    """0 where a row may look, -inf elsewhere, [n * group, visible]; None where all may look everywhere."""
    start, visible = rows_of.start, rows_of.visible
    if rows == 1 and visible == start + 1:
        return None
    hidden = torch.full((rows, visible), -torch.inf).triu_(start + 1)
    if rows_of.tree is not None:
        hidden[:, start : start + rows].masked_fill_(~torch.from_numpy(rows_of.tree.sees), -torch.inf)
    return hidden if group == 1 else hidden.repeat_interleave(group, 0)


class _Work:
    """Buffers and views of a pass of `rows` rows, which are those of `sequences` sequences."""

    def __init__(self, shape: LlamaShape, rows: int, sequences: int = 1) -> None:
        self._shape, self._rows = shape, rows
        heads, kv_heads, width = shape.heads, shape.kv_heads, shape.width
        self._floor = torch.full((rows, 1), (shape.hidden * shape.eps) ** 0.5)
        # Values are "turned" too, by 1, so that one product covers q, k and v.
        self._all = torch.ones(rows, heads + 2 * kv_heads, width // 2, dtype=torch.complex64)
        self.rotation = self._all.view(rows, -1)
        self.turned = torch.empty_like(self.rotation)
        split = self.turned.view(torch.float32).view(rows, heads + 2 * kv_heads, width)
        self.new_kv = split[:, heads:].transpose(0, 1)
        if sequences > 1:
            self.new_kv = self.new_kv.unflatten(1, (sequences, -1))
        self._query = split[:, :heads].view(rows, kv_heads, shape.group, width).transpose(0, 1)
        if rows == 1:
            self._stacked = self._query.view(kv_heads, shape.group, width)
        else:
            self._gathered = torch.empty(kv_heads, rows, shape.group, width)
            self._stacked = self._gathered.view(kv_heads * sequences, -1, width)

    def turn(self, rotation: torch.Tensor) -> None:
        """Set the rotation of this pass; queries also take the scale of attention."""
        heads, kv_heads = self._shape.heads, self._shape.kv_heads
        torch.mul(rotation[:, None], self._shape.width**-0.5, out=self._all[:, :1])
        self._all[:, 1:heads] = self._all[:, :1]
        self._all[:, heads : heads + kv_heads] = rotation[:, None]

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The RMS norm of x [n, hidden] (Zhang and Sennrich 2019, arXiv 1910.07467), by its definition:

        x w / sqrt(mean(x^2) + eps) = x (w sqrt(hidden)) / hypot(|x|, sqrt(hidden eps)); `weight` is
        w sqrt(hidden), which FewRows makes once.
        """
        size = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._floor)
        return torch.div(x, size).mul_(weight)

    def query(self) -> torch.Tensor:
        """Queries [kv heads * sequences, rows of one * group, width] of the layer just turned."""
        if self._rows > 1:
            self._gathered.copy_(self._query)
        return self._stacked

    def side_by_side(self, mixed: torch.Tensor) -> torch.Tensor:
        """[kv heads * sequences, rows of one * group, width] as [n, heads * width]."""
        shape, rows = self._shape, self._rows
        if rows == 1:
            return mixed.view(1, shape.heads * shape.width)
        mixed = mixed.view(shape.kv_heads, rows, shape.group, shape.width).transpose(0, 1)
        return mixed.reshape(rows, shape.heads * shape.width)
