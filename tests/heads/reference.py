"""Test helper: the heads' forward passes in plain numpy (float64), written from the papers' formulas and the public layouts.

Nothing here is shared with specview: tensors are taken by their published names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Rows = np.ndarray
State = Mapping[str, Any]


def array(state: State, name: str) -> Rows:
    """A tensor as float64."""
    return np.asarray(state[name].float().numpy(), dtype=np.float64)


def rms(x: Rows, gain: Rows | float, eps: float = 1e-5) -> Rows:
    """Root-mean-square norm."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def silu(x: Rows) -> Rows:
    """x times its sigmoid."""
    return x / (1 + np.exp(-x))


def sigmoid(x: Rows) -> Rows:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def gelu(x: Rows) -> Rows:
    """x times the normal distribution function."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def turned(x: Rows, positions: Sequence[int], theta: float, factors: Any = None) -> Rows:
    """Rotary positions over rows [n, heads, width]: pairs (i, i + width / 2)."""
    width = x.shape[-1]
    speeds = np.array([theta ** (-2 * i / width) for i in range(width // 2)])
    if factors is not None:
        speeds = speeds * factors
    angles = np.asarray(positions)[:, None] * speeds[None]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = x[..., : width // 2], x[..., width // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


class Layer:
    """Attention and MLP of a decoder layer with its own keys and values, by names below a prefix."""

    share = 1.0  # of a head that is turned

    def __init__(self, state: State, prefix: str, config: Mapping[str, Any]) -> None:
        self.state, self.prefix, self.config = state, prefix, config
        self.heads, self.kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.theta = float(config.get("rope_theta", 10000.0))
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.keys: list[Rows] = []
        self.values: list[Rows] = []

    def get(self, name: str) -> Rows:
        """A tensor of this layer."""
        return array(self.state, f"{self.prefix}.{name}")

    def norm(self, name: str, x: Rows) -> Rows:
        """One of the layer's norms."""
        return rms(x, self.get(f"{name}.weight"), self.eps)

    def product(self, name: str, x: Rows) -> Rows:
        """One of attention's products, with its bias where it has one."""
        out = x @ self.get(f"self_attn.{name}_proj.weight").T
        key = f"{self.prefix}.self_attn.{name}_proj.bias"
        return out + array(self.state, key) if key in self.state else out

    def attention(self, x: Rows, positions: Sequence[int]) -> Rows:
        """Causal attention of rows x, each after those before it, over all rows so far."""
        q = self.product("q", x).reshape(len(x), self.heads, -1)
        k = self.product("k", x).reshape(len(x), self.kv, -1)
        v = self.product("v", x).reshape(len(x), self.kv, -1)
        if f"{self.prefix}.self_attn.q_norm.weight" in self.state:
            q, k = self.norm("self_attn.q_norm", q), self.norm("self_attn.k_norm", k)
        wide = int(self.share * q.shape[-1])
        q, k = (np.concatenate([turned(x[..., :wide], positions, self.theta), x[..., wide:]], -1) for x in (q, k))
        out = np.zeros((len(x), self.heads, q.shape[-1]))
        for row in range(len(x)):
            self.keys.append(k[row])
            self.values.append(v[row])
            for head in range(self.heads):
                own = head // (self.heads // self.kv)
                scores = np.array([key[own] @ q[row, head] for key in self.keys]) / math.sqrt(q.shape[-1])
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                out[row, head] = sum(s * value[own] for s, value in zip(shares, self.values, strict=True))
        return self.product("o", out.reshape(len(x), -1))

    def mlp(self, x: Rows) -> Rows:
        """The gated MLP."""
        gate, up = x @ self.get("mlp.gate_proj.weight").T, x @ self.get("mlp.up_proj.weight").T
        return (silu(gate) * up) @ self.get("mlp.down_proj.weight").T


class Eagle1:
    """EAGLE-1's draft model."""

    def __init__(self, state: State, config: Mapping[str, Any], layers: int = 1) -> None:
        self.state = state
        self.layers = [Layer(state, f"layers.{index}", config) for index in range(layers)]

    def rows(self, embedded: Rows, features: Rows, positions: Sequence[int]) -> Rows:
        """Outputs of rows that pair embeddings with features; the target's output makes logits of them."""
        u = np.concatenate([embedded, features], -1) @ array(self.state, "fc.weight").T
        if "fc.bias" in self.state:
            u = u + array(self.state, "fc.bias")
        for index, layer in enumerate(self.layers):
            u = u + layer.attention(layer.norm("input_layernorm", u) if index else u, positions)
            u = u + layer.mlp(layer.norm("post_attention_layernorm", u))
        return u


class Eagle3:
    """EAGLE-3's draft model; config is that of its layer."""

    def __init__(
        self,
        state: State,
        config: Mapping[str, Any],
        first: str = "midlayer",
        layers: int = 1,
        norm_before_residual: bool = False,
        norm_output: bool = False,
    ) -> None:
        self.state, self.eps = state, config.get("rms_norm_eps", 1e-6)
        names = [first, *(f"layers.{index}" for index in range(1, layers))]
        self.layers = [Layer(state, name, config) for name in names]
        self.norm_before_residual, self.norm_output = norm_before_residual, norm_output

    def fuse(self, parts: Sequence[Rows]) -> Rows:
        """g from the target's hidden states, low to high."""
        if "fc_norm.0.weight" in self.state:
            parts = [rms(p, array(self.state, f"fc_norm.{i}.weight"), self.eps) for i, p in enumerate(parts)]
        joined = np.concatenate(parts, -1)
        if "input_norm.weight" in self.state:
            joined = rms(joined, array(self.state, "input_norm.weight"), self.eps)
        return joined @ array(self.state, "fc.weight").T

    def rows(self, embedded: Rows, g: Rows, positions: Sequence[int]) -> Rows:
        """Outputs of rows."""
        first = self.layers[0]
        e, n = first.norm("input_layernorm", embedded), first.norm("hidden_norm", g)
        residual = n if self.norm_before_residual else g
        y = residual + first.attention(np.concatenate([e, n], -1), positions)
        y = y + first.mlp(first.norm("post_attention_layernorm", y))
        for layer in self.layers[1:]:
            y = y + layer.attention(layer.norm("input_layernorm", y), positions)
            y = y + layer.mlp(layer.norm("post_attention_layernorm", y))
        return y

    def logits(self, y: Rows, output: Rows | None = None) -> Rows:
        """Logits over the draft vocabulary."""
        output = array(self.state, "lm_head.weight") if output is None else output
        return rms(y, array(self.state, "norm.weight"), self.eps) @ output.T

    def next_g(self, y: Rows) -> Rows:
        """What the next step reads."""
        return rms(y, array(self.state, "norm.weight"), self.eps) if self.norm_output else y


def medusa_states(state: State, hidden: Rows, heads: int, layers: int, name: str) -> list[Rows]:
    """Each Medusa head's state before its output; name is a format of head and layer."""
    found = []
    for head in range(heads):
        x = hidden
        for layer in range(layers):
            place = name.format(head=head, layer=layer)
            bias = array(state, f"{place}.bias") if f"{place}.bias" in state else 0.0
            x = x + silu(x @ array(state, f"{place}.weight").T + bias)
        found.append(x)
    return found


def speculator(
    state: State, hidden: Rows, tokens: Sequence[int], *, lstm: bool = False, tied: bool = False, scale_input: bool = False,
    prefix: str = "speculator.",
) -> list[Rows]:  # fmt: skip
    """Logits of every step of IBM's MLP speculator or Arctic's LSTM one, the tokens fed being given."""

    def get(name: str) -> Rows:
        return array(state, f"{prefix}{name}")

    def normed(name: str, x: Rows) -> Rows:
        return rms(x, get(f"{name}.weight"), 1e-6) + get(f"{name}.bias")

    inner = get("forget_emb.0.weight" if lstm else "emb.0.weight").shape[1]
    weight = 0.5 ** (0.5 / len(tokens))
    scale = math.sqrt((1 - weight * weight) * inner / 2) / weight
    s = rms(hidden, 1.0, 1e-6) / math.sqrt(2) if scale_input else hidden
    cell, found = np.zeros((len(hidden), inner)), []
    for step, token in enumerate(tokens):
        once, twice = (0, min(step, 1)) if tied or lstm else (step, step)

        def mixed(gate: str, s: Rows = s, token: int = token, once: int = once, twice: int = twice) -> Rows:
            return s @ get(f"{gate}proj.{twice}.weight").T + scale * get(f"{gate}emb.{once}.weight")[token]

        if lstm:
            f, i, o, c = (mixed(f"{gate}_") for gate in ("forget", "input", "output", "cell"))
            cell = sigmoid(f) * cell + sigmoid(i) * gelu(normed("cell_ln.0", c))
            s = sigmoid(o) * gelu(normed("state_ln.0", cell))
        else:
            s = gelu(normed(f"ln.{once}", mixed("")))
        found.append(s @ get(f"head.{once}.weight").T)
    return found


class QwenLayer(Layer):
    """One of Qwen3-Next: gains are 1 + w, a gate beside each query, a quarter of a head turned."""

    share = 0.25

    def norm(self, name: str, x: Rows) -> Rows:
        """One of the layer's norms."""
        return rms(x, 1 + self.get(f"{name}.weight"), self.eps)

    def product(self, name: str, x: Rows) -> Rows:
        """One of attention's products; q comes with the gate of what o reads."""
        out = super().product(name, x * self.gate if name == "o" else x)
        if name == "q":
            out, gate = np.split(out.reshape(len(x), self.heads, -1), 2, -1)
            self.gate = sigmoid(gate.reshape(len(x), -1))
        return out


def module(
    kind: str, state: State, config: Mapping[str, Any], embedded: Rows, hidden: Rows, positions: Sequence[int]
) -> Rows:
    """What MiMo's or Qwen's module gives its output; MiMo projects the hidden state first, Qwen the embedding."""
    mimo = kind == "mimo"
    top, own = ("model.mtp_layers.0", "model.mtp_layers.0") if mimo else ("mtp", "mtp.layers.0")
    names = ("hidden_layernorm", "token_layernorm", "input_proj", "final_layernorm") if mimo else (
        "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"
    )  # fmt: skip
    ends, layer = ((Layer if mimo else QwenLayer)(state, place, config) for place in (top, own))
    parts = zip(names, (hidden, embedded) if mimo else (embedded, hidden), strict=False)
    u = np.concatenate([ends.norm(name, part) for name, part in parts], -1) @ ends.get(f"{names[2]}.weight").T
    u = u + layer.attention(layer.norm("input_layernorm", u), positions)
    u = u + layer.mlp(layer.norm("post_attention_layernorm", u))
    return ends.norm(names[3], u)
