"""A head loaded for one target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specview.decoding.interfaces import Engine
from specview.decoding.ledger import Array
from specview.heads.layouts import HeadFacts


class LoadedHead:
    """A head's module beside the target whose features it reads; lanes share it.

    module is in evaluation mode, without gradients, on `device`. What the head does not bring (embedding,
    output matrix) is the target's.
    """

    def __init__(self, facts: HeadFacts, module: Any, target: Engine) -> None:
        self.facts = facts
        self.module = module
        parameter = next(module.parameters())
        self.device: torch.device = parameter.device
        self.dtype: torch.dtype = parameter.dtype
        self.vocab_size = target.vocab_size
        self._target = target

    @property
    def weight_bytes(self) -> int:
        """Bytes of the head's own weights."""
        return sum(tensor.nbytes for tensor in self.module.state_dict().values())

    def tensor(self, array: Array) -> Tensor:
        """A session's features, numpy or torch, as a tensor of the head's device and dtype."""
        return torch.as_tensor(array, device=self.device, dtype=self.dtype)

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Embedding rows [n, hidden]: the head's own, else the target's.

        Of an id beyond its own table (a token that the target got later) the head reads the first row: only its
        guesses suffer.
        """
        if self.facts.own_embedding:
            table = self.module.embed_tokens
            rows = table.num_embeddings
            found: Tensor = table(torch.tensor([token if token < rows else 0 for token in ids], device=self.device))
            return found
        return self.tensor(self._target.embed(ids))

    def project(self, hidden: Tensor) -> Tensor:
        """The target's output matrix times hidden states [n, hidden]: logits [n, vocab]."""
        rows = hidden if self._target.name == "transformers" else hidden.float().cpu().numpy()
        return self.tensor(self._target.project(rows))

    def spread(self, rows: Tensor, fill: float = -torch.inf) -> Tensor:
        """Rows [..., own ids] over the target's vocabulary [..., vocab]: cut, or `fill` where the head has no column."""
        width, ids = self.vocab_size, getattr(self.module, "target_ids", None)
        if ids is None and rows.shape[-1] == width:
            return rows
        full = rows.new_full((*rows.shape[:-1], width), fill)
        if ids is None:
            full[..., : rows.shape[-1]] = rows[..., :width]
        else:
            full[..., ids] = rows
        return full
