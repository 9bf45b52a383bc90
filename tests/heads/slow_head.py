"""Test helper: an EAGLE head's rows by its module's own parts, the whole context at once and without a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specview.heads.blocks import rotary_tables


def module_rows(module: Any, embedded: Tensor, g: Tensor) -> Tensor:
    """Outputs [n, hidden] of embedded tokens and g [n, hidden], each row seeing those before it."""
    shape, rows = module.shape, len(g)
    cos, sin = rotary_tables(shape.frequencies, rows)
    y = g if hasattr(module, "lm_head") else module.fc(torch.cat([embedded, g], -1))
    for layer in module.layers:
        x, residual = layer.enter(embedded, y)
        q, k, v = (part.transpose(0, 1) for part in layer.self_attn.project(x, cos, sin))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True
        )
        y = layer.leave(residual, mixed[0].transpose(0, 1).flatten(1))
    return y


def module_logits(head: Any, tokens: list[int], features: Tensor) -> Tensor:
    """Logits [n, draft vocab] of rows that pair features with the tokens after them."""
    module = head.module
    third = hasattr(module, "lm_head")
    y = module_rows(module, head.embed(tokens), module.fuse(features) if third else features)
    return module.lm_head(module.norm(y)) if third else head.project(y)
