"""The target's forward pass for making data: many sequences at once, weights fused, on the CPU.

A general model class spends much of its time on bookkeeping when it runs a hundred short sequences
of different lengths. This one knows a single architecture (Llama, as `LlamaForCausalLM` defines it)
and keeps one slot of a preallocated KV cache per sequence, so finished sequences are replaced
without touching the others (continuous batching).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from specview.engines.transformers_config import resolved_llama
from specview.engines.transformers_llama_shape import (
    LlamaShape,
    config_problem,
    read_shape,
    rotary_frequencies,
)
from specview.heads.blocks import rotary_tables, rotate


def computed_shape(config: Mapping[str, Any]) -> tuple[LlamaShape, list[float]]:
    """The sizes and rotary frequencies that a parsed config.json gives, as transformers reads it.

    Raises ValueError for another architecture, for biases, and for every other field that this code does not compute.
    """
    read = resolved_llama(dict(config))
    problem = config_problem(read)
    if problem is None and (read["attention_bias"] or read["mlp_bias"]):
        problem = "it has biases"
    if problem is not None:
        raise ValueError(f"this Llama model is not computed here: {problem}")
    shape = read_shape(read)
    return shape, rotary_frequencies(read, shape)


class SlotCache:
    """KV cache of `slots` sequences of at most `capacity` tokens; each slot is overwritten freely."""

    def __init__(
        self, shape: LlamaShape, slots: int, capacity: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """Allocate keys and values, [layers, slots, kv_heads, capacity, width] each."""
        self.slots, self.capacity = slots, capacity
        size = (shape.layers, slots, shape.kv_heads, capacity, shape.width)
        self.keys, self.values = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)

    def put(self, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [layers, kv_heads, n, width] at positions start to start + n."""
        end = start + keys.shape[2]
        self.keys[:, slot, :, start:end] = keys
        self.values[:, slot, :, start:end] = values


@dataclass(frozen=True)
class Prefix:
    """A prompt beginning that many sequences share: its tokens and their cache entries.

    keys and values are [layers, kv_heads, n, width].
    """

    tokens: tuple[int, ...]
    keys: Tensor
    values: Tensor


class TargetModel:
    """A Llama-architecture target read from a folder with config.json and safetensors weights."""

    def __init__(self, folder: Path, longest: int = 1024, dtype: torch.dtype = torch.float32) -> None:
        """Load weights; `longest` bounds every sequence.

        dtype is that of the matrix products (bfloat16 is several times faster where the processor has
        AMX); hidden states and norms are float32 in any case.

        Raises FileNotFoundError where the folder lacks a file, ValueError for another architecture.
        """
        self.shape, frequencies = computed_shape(json.loads((folder / "config.json").read_text("utf-8")))
        self.dtype = dtype
        weights: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights.update(load_file(file))
        if not weights:
            raise FileNotFoundError(f"no safetensors weights in {folder}")

        def tensor(name: str) -> Tensor:
            return weights[f"model.{name}.weight"].float()

        self._embedding = tensor("embed_tokens")
        # The RMS norms' gains are folded into the matrices that follow them.
        # A head that is stored is the one that transformers uses, also where the configuration ties it.
        self.output = weights["lm_head.weight"].float() if "lm_head.weight" in weights else self._embedding
        self.norm_gain = tensor("norm")
        self.head = (self.output * self.norm_gain).to(dtype)
        self.layers: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for index in range(self.shape.layers):
            at = f"layers.{index}."
            qkv = torch.cat([tensor(f"{at}self_attn.{name}_proj") for name in "qkv"])
            gate_up = torch.cat([tensor(f"{at}mlp.{name}_proj") for name in ("gate", "up")])
            self.layers.append(
                (
                    (qkv * tensor(f"{at}input_layernorm")).to(dtype),
                    tensor(f"{at}self_attn.o_proj").to(dtype),
                    (gate_up * tensor(f"{at}post_attention_layernorm")).to(dtype),
                    tensor(f"{at}mlp.down_proj").to(dtype),
                )
            )
        self.cos, self.sin = rotary_tables(frequencies, longest)

    def next_logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [n, vocab] of final hidden states [n, hidden] as `prefill` and `step` give them."""
        return _product(hidden, self.head)

    def logits(self, last: Tensor) -> Tensor:
        """Logits [n, vocab] of last hidden states [n, hidden] as `features` gives them, in float32 (Teacher)."""
        return F.linear(last.float(), self.output)

    def embedding(self) -> Tensor:
        """The embedding [vocab, hidden] (Teacher)."""
        return self._embedding

    def output_rows(self, ids: Tensor) -> Tensor:
        """Rows [n, hidden] of the output matrix (Teacher)."""
        return self.output[ids]

    def prefix(self, tokens: list[int]) -> Prefix:
        """Run `tokens` once so that later prefills can start behind them."""
        keys, values, _ = self.prefill(tokens)
        return Prefix(tuple(tokens), keys, values)

    def features(self, tokens: list[int], layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states of a text: after each of some numbers of layers [n, layers, hidden], and the last [n, hidden].

        The last is after the final norm, gain and all; the others are as they stand between the layers.
        """
        seen: dict[int, Tensor] = {layer: torch.empty(0) for layer in layers}
        last = self.prefill(tokens, None, seen)[2] * self.norm_gain
        if not layers:
            return last.new_zeros(len(tokens), 0, last.shape[1]), last
        return torch.stack([seen[layer] for layer in layers], 1), last

    def prefill(
        self, tokens: list[int], prefix: Prefix | None = None, seen: dict[int, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One pass over `tokens`, which follow `prefix`.

        seen gets the hidden states after the numbers of layers that are its keys.

        Returns keys and values [layers, kv_heads, n, width] of the new tokens, and their final
        hidden states [n, hidden], normalised, without the last norm's gain (it is in the head).
        """
        s, n = self.shape, len(tokens)
        past = len(prefix.tokens) if prefix else 0
        cos, sin = self.cos[past : past + n], self.sin[past : past + n]
        mask = torch.arange(past + n)[None] <= torch.arange(past, past + n)[:, None]
        all_keys, all_values = [], []
        x = self._embedding[torch.tensor(tokens)]
        for index, (qkv_w, o_w, gate_up_w, down_w) in enumerate(self.layers):
            if seen is not None and index in seen:
                seen[index] = x
            q, k, v = self._split(_product(self._norm(x), qkv_w))
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            all_keys.append(k)
            all_values.append(v)
            if prefix:
                k = torch.cat([prefix.keys[index], k], 1)
                v = torch.cat([prefix.values[index], v], 1)
            attended = F.scaled_dot_product_attention(q[None], k[None], v[None], mask, enable_gqa=True)[0]
            x = x + _product(attended.transpose(0, 1).reshape(n, s.heads * s.width), o_w)
            x = x + self._mlp(x, gate_up_w, down_w)
        if seen is not None and s.layers in seen:
            seen[s.layers] = x
        return torch.stack(all_keys), torch.stack(all_values), self._norm(x)

    def step(self, caches: list[SlotCache], tokens: Tensor, positions: Tensor) -> Tensor:
        """Feed one token to every slot of every cache.

        tokens and positions are [sum of slots], cache after cache. Returns final hidden states
        [sum of slots, hidden], normalised as in `prefill`.
        """
        s = self.shape
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        spans, first = [], 0
        for cache in caches:
            rows = slice(first, first + cache.slots)
            reach = min(cache.capacity, int(positions[rows].max()) + 1)
            hidden_from = torch.arange(reach)[None] > positions[rows, None]
            mask = torch.zeros(cache.slots, 1, 1, reach, dtype=cache.keys.dtype)
            mask.masked_fill_(hidden_from[:, None, None], -torch.inf)
            spans.append((cache, rows, reach, mask, torch.arange(cache.slots)))
            first += cache.slots
        group = s.heads // s.kv_heads
        x = self._embedding[tokens]
        for index, (qkv_w, o_w, gate_up_w, down_w) in enumerate(self.layers):
            q, k, v = self._split(_product(self._norm(x), qkv_w))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            attended = []
            for cache, rows, reach, mask, slots in spans:
                keys, values = cache.keys[index], cache.values[index]
                keys[slots, :, positions[rows]] = k[rows].to(keys.dtype)
                values[slots, :, positions[rows]] = v[rows].to(values.dtype)
                # The query heads of one KV head stand in the row dimension: no copies of the keys.
                grouped = q[rows].view(cache.slots, s.kv_heads, group, s.width).to(keys.dtype)
                out = F.scaled_dot_product_attention(
                    grouped, keys[:, :, :reach], values[:, :, :reach], attn_mask=mask
                )
                attended.append(out.reshape(cache.slots, s.heads * s.width).float())
            x = x + _product(torch.cat(attended), o_w)
            x = x + self._mlp(x, gate_up_w, down_w)
        return self._norm(x)

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.shape.eps)

    def _mlp(self, x: Tensor, gate_up_w: Tensor, down_w: Tensor) -> Tensor:
        gate, up = _product(self._norm(x), gate_up_w).chunk(2, -1)
        return _product(F.silu(gate) * up, down_w)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = self.shape
        q, k, v = qkv.split([s.heads * s.width, s.kv_heads * s.width, s.kv_heads * s.width], -1)
        return (
            q.view(-1, s.heads, s.width),
            k.view(-1, s.kv_heads, s.width),
            v.view(-1, s.kv_heads, s.width),
        )


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, in] times a weight [out, in], in the weight's dtype; float32 out."""
    return F.linear(x.to(weight.dtype), weight).float()
