"""Faster products of a few rows inside any transformers model on a CPU.

A pass of a few rows spends its time in the model's linear layers; each of them is replaced by one that
computes the same product with the kernel that is fastest here (transformers_linear).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specview.engines.transformers_linear import Linear, Make


class _Product(torch.nn.Module):
    """A Linear in place of a module that computes x W^T + b."""

    def __init__(self, product: Linear, out_features: int, in_features: int) -> None:
        super().__init__()
        self.product = product
        self.out_features, self.in_features = out_features, in_features
        # Some models ask a layer's weight for its dtype or device.
        self.register_buffer("weight", torch.empty(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b over the last dimension."""
        if x.dtype != torch.float32:
            raise TypeError(f"packed layers take float32, not {x.dtype}")
        return self.product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], self.out_features)


def pack_linear_layers(model: Any, make: Make) -> list[Linear]:
    """Replace the linear layers of a model; return their products.

    Only plain torch.nn.Linear and transformers' Conv1D (GPT-2) are; what a subclass would compute is
    not known here.
    """
    from transformers.pytorch_utils import Conv1D

    found = []
    for parent in model.modules():
        for name, child in parent.named_children():
            hooked = child._forward_hooks or child._forward_pre_hooks
            if (
                type(child) in (torch.nn.Linear, Conv1D)
                and not hooked
                and child.weight.dtype == torch.float32
            ):
                found.append((parent, name, child))
    made: dict[int, _Product] = {}  # a layer that stands in two places stays one
    for parent, name, child in found:
        if id(child) not in made:
            weight = child.weight.detach()
            if isinstance(child, Conv1D):
                weight = weight.t().contiguous()
            bias = None if child.bias is None else child.bias.detach()
            made[id(child)] = _Product(make(weight, bias), *weight.shape)
        setattr(parent, name, made[id(child)])
    return [module.product for module in made.values()]


def kept_bytes(model: Any, products: Sequence[Linear]) -> int:
    """Bytes of all weights of a packed model, copies included."""
    kept = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    copies = 0
    for product in products:
        weight = getattr(product, "weight", None)  # a plain one, which may be the embedding
        copies += product.nbytes - (weight.nbytes if weight is not None and weight.data_ptr() in kept else 0)
    return sum(kept.values()) + copies
