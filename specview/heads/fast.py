"""A head of the EAGLE family as it drafts: few rows at a time, where every operation's overhead counts.

q, k and v are one product, products are the fastest that this machine has for few rows, and small operations around
them are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specview.engines.transformers_linear import (
    Linear,
    Make,
    gated,
    has_int8_products,
    int8_maker,
    is_half,
    maker,
)
from specview.heads.blocks import rotary_tables
from specview.heads.eagle import Eagle3Head, EagleHead

_FIRST_POSITIONS, _FIRST_BLOCK = 1024, 256
_WIDE = 64
"""Rows from which torch's fused attention is the faster one."""


_LARGE = 1_000_000
"""Numbers in a head's products from which its weights' bytes are what a step costs."""


def takes_int8(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a head of this device and dtype can draft with 8-bit weights: where the processor is quick at them."""
    return device.type == "cpu" and dtype == torch.float32 and has_int8_products()


def fast_head(module: Any, weights: str = "auto") -> Any:
    """The fast form of a head's module, made once for the weights as they are; other modules as they are.

    weights: int8, stored (as they are), or auto: int8 where the processor is quick at it and the head is large.
    """
    if not isinstance(module, EagleHead):
        return module
    # Training goes on in place.
    changes = (weights, *(0 if one.is_inference() else one._version for one in module.parameters()))
    made = module.__dict__.get("_fast")
    if made is None or made[0] != changes:
        made = module.__dict__["_fast"] = (changes, FastHead(module, weights))
    return made[1]


class LayerCache:
    """Keys and values of one layer of a head, for one sequence: [kv heads, length, width] each."""

    def __init__(self, kv_heads: int, width: int, device: torch.device, dtype: torch.dtype) -> None:
        self.length = 0
        self._keys = torch.zeros(kv_heads, _FIRST_BLOCK, width, device=device, dtype=dtype)
        self._values = torch.zeros_like(self._keys)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [kv heads, n, width]; return all there are, [kv heads, length, width]."""
        end = self.length + keys.shape[1]
        capacity = self._keys.shape[1]
        if end > capacity:
            room = max(end, 2 * capacity) - capacity
            self._keys = functional.pad(self._keys, (0, 0, 0, room))
            self._values = functional.pad(self._values, (0, 0, 0, room))
        self._keys[:, self.length : end] = keys
        self._values[:, self.length : end] = values
        self.length = end
        return self._keys[:, :end], self._values[:, :end]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` entries: a pointer move."""
        self.length = min(self.length, length)


class _Norm:
    """An RMS norm of a few operations; in half precision torch's own, which sums in float32."""

    def __init__(self, norm: Any, size: int, eps: float) -> None:
        weight: Tensor = norm.weight.detach()
        self._weight, self._size, self._eps = weight, size, eps
        self._scaled = weight * size**0.5 if weight.element_size() >= 4 else None
        self._floor = torch.full((1, 1), (size * eps) ** 0.5, dtype=weight.dtype, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        if self._scaled is None:
            return functional.rms_norm(x, (self._size,), self._weight, self._eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x.div(torch.hypot(length, self._floor)).mul_(self._scaled)


def _halves(module: Any) -> bool:
    """Whether all the products' weights are float16 or bfloat16 numbers, as files store them."""
    return all(is_half(part.weight.detach()) for part in module.modules() if isinstance(part, torch.nn.Linear))


def _bias(linear: Any) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach()


class _Layer:
    def __init__(self, layer: Any, shape: Any, make: Make) -> None:
        attention = layer.self_attn
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        biases = [_bias(part) for part in parts]
        bias = None if biases[0] is None else torch.cat([one for one in biases if one is not None])
        self.qkv: Linear = make(torch.cat([part.weight.detach() for part in parts]), bias)
        self.out: Linear = make(attention.o_proj.weight.detach(), _bias(attention.o_proj))
        both = torch.cat([layer.mlp.gate_proj.weight.detach(), layer.mlp.up_proj.weight.detach()])
        self.gate_and_up: Linear = make(both, None)
        self.down: Linear = make(layer.mlp.down_proj.weight.detach(), None)

        def norm(name: str, of: Any, size: int) -> _Norm | None:
            return _Norm(getattr(of, name), size, shape.eps) if hasattr(of, name) else None

        self.input_norm = norm("input_layernorm", layer, shape.hidden)
        self.hidden_norm = norm("hidden_norm", layer, shape.hidden)
        self.mlp_norm = norm("post_attention_layernorm", layer, shape.hidden)
        self.q_norm = norm("q_norm", attention, shape.width)
        self.k_norm = norm("k_norm", attention, shape.width)


class FastHead:
    """An EagleHead or an Eagle3Head for inference; it shares the module's small weights.

    target_ids are the module's. mask_hidden is P-EAGLE's.
    """

    def __init__(self, module: Any, weights: str = "auto") -> None:
        with torch.inference_mode():
            self._make(module, weights)

    def _make(self, module: Any, weights: str) -> None:
        self.shape = shape = module.shape
        where = module.fc.weight
        halves = where.device.type == "cpu" and where.dtype == torch.float32 and _halves(module)
        make = maker(where.device, where.dtype, halves)
        large = sum(part.weight.numel() for part in module.modules() if isinstance(part, torch.nn.Linear)) >= _LARGE
        if takes_int8(where.device, where.dtype) and (weights == "int8" or (weights == "auto" and large)):
            make = int8_maker(make)
        self.target_ids: Tensor | None = module.target_ids
        self._third = isinstance(module, Eagle3Head)  # EAGLE-3; else EAGLE-1
        self._fc: Linear = make(where.detach(), _bias(module.fc))
        self._layers = [_Layer(layer, shape, make) for layer in module.layers]
        self._norm_first = bool(getattr(shape, "norm_before_residual", False))
        if self._third:
            norms = list(module.fc_norm) if shape.fc_norm else [module.input_norm] if shape.norm_before_fc else []
            self._feature_norms = [_Norm(norm, norm.weight.numel(), shape.eps) for norm in norms]
            self.mask_hidden = getattr(module, "mask_hidden", None)
            self._norm = _Norm(module.norm, shape.hidden, shape.eps)
            self._head: Linear = make(module.lm_head.weight.detach(), None)
            self.logits = self._logits
        self._device = where.device
        self._dtype = where.dtype
        self._cos = self._sin = torch.empty(0, 0)

    def new_cache(self) -> list[LayerCache]:
        """An empty cache, one for each layer."""
        s = self.shape
        return [LayerCache(s.kv_heads, s.width, self._device, self._dtype) for _ in self._layers]

    def fuse(self, features: Tensor) -> Tensor:
        """g [..., hidden] from the features side by side (Eagle3Head.fuse); EAGLE-1's are taken as they are."""
        if not self._third:
            return features
        if len(self._feature_norms) == 1:
            features = self._feature_norms[0](features)
        elif self._feature_norms:
            parts = features.chunk(len(self._feature_norms), -1)
            features = torch.cat([norm(part) for norm, part in zip(self._feature_norms, parts, strict=True)], -1)
        return self._fc(features)

    def next_hidden(self, y: Tensor) -> Tensor:
        """What takes the features' place in the step after an output."""
        return self._norm(y) if self._third and self.shape.norm_output else y

    def _logits(self, y: Tensor) -> Tensor:
        """Logits [n, draft vocab] of outputs [n, hidden]."""
        return self._head(self._norm(y))

    def run(
        self,
        embedded: Tensor,
        g: Tensor,
        positions: Sequence[int],
        cache: Sequence[LayerCache],
        sees: Tensor | None = None,
    ) -> Tensor:
        """Feed rows after the cache's end: embedded tokens and g [n, hidden]; give their outputs [n, hidden].

        positions [n] are the rotary ones. sees [n, length] is True where a row may look at the entries, its
        own n last; None is causal.
        """
        s = self.shape
        rows, grouped = len(embedded), s.heads // s.kv_heads
        cos, sin = self._turns(positions)
        y = g if self._third else self._fc(torch.cat([embedded, g], -1))
        for index, (layer, own) in enumerate(zip(self._layers, cache, strict=True)):
            x = residual = y
            if self._third and not index:
                assert layer.hidden_norm is not None and layer.input_norm is not None
                normed = layer.hidden_norm(y)
                x = torch.cat([layer.input_norm(embedded), normed], -1)
                residual = normed if self._norm_first else y
            elif layer.input_norm is not None:
                x = layer.input_norm(y)
            qkv = layer.qkv(x).view(rows, s.heads + 2 * s.kv_heads, s.width)
            qk, v = qkv[:, : s.heads + s.kv_heads], qkv[:, s.heads + s.kv_heads :]
            if layer.q_norm is not None and layer.k_norm is not None:
                qk = torch.cat([layer.q_norm(qk[:, : s.heads]), layer.k_norm(qk[:, s.heads :])], 1)
            low, high = qk.chunk(2, -1)
            qk = qk * cos + torch.cat([high, low], -1) * sin
            q = qk[:, : s.heads].view(rows, s.kv_heads, grouped, s.width)
            keys, values = own.append(qk[:, s.heads :].transpose(0, 1), v.transpose(0, 1))
            mixed = self._attend(q, keys, values, sees)
            y = layer.out.plus(mixed, residual)
            assert layer.mlp_norm is not None
            z = layer.mlp_norm(y)
            y = layer.down.plus(gated(layer.gate_and_up, z), y)
        return y

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, sees: Tensor | None) -> Tensor:
        """Attention [n, heads * width] of q [n, kv heads, group, width] over [kv heads, length, width] each."""
        rows, kv_heads, grouped, width = q.shape
        length = keys.shape[1]
        if sees is None and rows > 1:
            sees = torch.ones(rows, length, dtype=torch.bool, device=q.device).tril_(length - rows)
        if rows >= _WIDE or self._device.type != "cpu":
            mixed = functional.scaled_dot_product_attention(
                q.permute(2, 1, 0, 3),
                keys.expand(grouped, -1, -1, -1),
                values.expand(grouped, -1, -1, -1),
                attn_mask=sees,
            )
            return mixed.permute(2, 1, 0, 3).reshape(rows, -1)
        query = (q * width**-0.5).transpose(0, 1).reshape(kv_heads, rows * grouped, width)
        scores = torch.bmm(query, keys.transpose(1, 2))
        if sees is not None:
            hidden = (~sees).repeat_interleave(grouped, 0) if grouped > 1 else ~sees
            scores.masked_fill_(hidden, -torch.inf)
        mixed = torch.bmm(torch.softmax(scores, -1), values)
        return mixed.view(kv_heads, rows, grouped, width).transpose(0, 1).reshape(rows, -1)

    def _turns(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [n, 1, width] at positions."""
        longest = max(positions) + 1
        if len(self._cos) < longest:
            cos, sin = rotary_tables(self.shape.frequencies, max(longest, 2 * len(self._cos), _FIRST_POSITIONS))
            sin[:, : sin.shape[1] // 2].neg_()
            self._cos, self._sin = (table[:, None].to(self._device, self._dtype) for table in (cos, sin))
        if isinstance(positions, range) or len(positions) == 1:
            first, end = positions[0], positions[-1] + 1
            return self._cos[first:end], self._sin[first:end]
        at = list(positions)
        return self._cos[at], self._sin[at]
