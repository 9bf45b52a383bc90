"""Our own forward pass for models of the Llama shape: fewer operations, the same weights.

Pre-norm layers of rotary attention and a gated MLP (Touvron et al. 2023, arXiv 2302.13971): Llama,
Mistral and Qwen2 checkpoints as transformers writes them. Against transformers' modules it joins the q, k, v
and the gate, up products, writes keys and values straight into their cache, and keeps its work
buffers; results agree up to rounding.

The rotary halves of every q and k head are interleaved when weights are loaded, so that the rotation
is one complex product; scores do not change when q and k are reordered alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch.nn import functional

from specview.engines.transformers_linear import RowLinear, can_pack, measure
from specview.engines.transformers_session import CHECK_BLOCK
from specview.engines.transformers_weights import StoredTensor
from specview.errors import SpecviewError

_TYPES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_FLOATS = {"F32", "F16", "BF16"}
_FIRST_BLOCK = 512
_FEW_ROWS = 32  # up to this many rows attention is two batched products; beyond, torch's fused kernel
_SECOND_LAYOUT_BYTES = 2 << 30  # a second layout of the weights may take so much memory,
_SECOND_LAYOUT_SHARE = 0.25  # and no more than this share of what is free


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama-shaped model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    width: int  # of a head
    vocab: int
    eps: float
    tied: bool
    max_positions: int

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads


def supports(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether this forward computes the model that a folder holds: every detail must be known."""
    try:
        shape = read_shape(config, tensors)
        expected = _expected_tensors(config, shape)
    except (KeyError, TypeError, ValueError):
        return False
    if config.get("model_type") not in _TYPES or config.get("quantization_config") is not None:
        return False
    if (config.get("architectures") or [_TYPES[config["model_type"]]]) != [_TYPES[config["model_type"]]]:
        return False
    if config.get("hidden_act", "silu") != "silu" or config.get("pretraining_tp", 1) != 1 or config.get("auto_map"):
        return False
    if _rope(config)[0] not in ("default", "linear", "llama3") or _slides(config):
        return False
    if any(layer != "full_attention" for layer in config.get("layer_types") or ()):
        return False
    ignored = {"lm_head.weight"} if shape.tied else set()
    names = {name for name in tensors if not name.endswith("rotary_emb.inv_freq")} - ignored
    return names == set(expected) and all(
        tensors[name].shape == size and tensors[name].dtype in _FLOATS for name, size in expected.items()
    )


def _slides(config: Mapping[str, Any]) -> bool:
    window = config.get("sliding_window")
    if config["model_type"] == "qwen2":
        return bool(config.get("use_sliding_window", False))
    return config["model_type"] == "mistral" and ("sliding_window" not in config or window is not None)


def _rope(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The rotary type and its parameters, as transformers 5 or 4 writes them."""
    new = config.get("rope_parameters")
    parameters: dict[str, Any] = dict(new if isinstance(new, Mapping) else config.get("rope_scaling") or {})
    parameters.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return str(parameters.get("rope_type", parameters.get("type", "default"))), parameters


def read_shape(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> LlamaShape:
    """Return the sizes that config.json gives, with the defaults of transformers' configuration."""
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    tied = bool(config.get("tie_word_embeddings", False))
    shape = LlamaShape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        width=int(config.get("head_dim") or hidden // heads),
        vocab=int(config["vocab_size"]),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        tied=tied,
        max_positions=int(config["max_position_embeddings"]),
    )
    if shape.heads % shape.kv_heads or shape.width % 2:
        raise ValueError("head counts do not divide")
    return shape


def _biases(config: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Whether the q, k, v products, the output product and the MLP have biases."""
    if config["model_type"] == "qwen2":
        return True, False, False
    if config["model_type"] == "mistral":
        return False, False, False
    attention = bool(config.get("attention_bias", False))
    return attention, attention, bool(config.get("mlp_bias", False))


def _expected_tensors(config: Mapping[str, Any], shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    qkv_bias, out_bias, mlp_bias = _biases(config)
    names: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not shape.tied:
        names["lm_head.weight"] = (shape.vocab, shape.hidden)
    products = {
        "self_attn.q_proj": (shape.heads * shape.width, shape.hidden, qkv_bias),
        "self_attn.k_proj": (shape.kv_heads * shape.width, shape.hidden, qkv_bias),
        "self_attn.v_proj": (shape.kv_heads * shape.width, shape.hidden, qkv_bias),
        "self_attn.o_proj": (shape.hidden, shape.heads * shape.width, out_bias),
        "mlp.gate_proj": (shape.intermediate, shape.hidden, mlp_bias),
        "mlp.up_proj": (shape.intermediate, shape.hidden, mlp_bias),
        "mlp.down_proj": (shape.hidden, shape.intermediate, mlp_bias),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        names[prefix + "input_layernorm.weight"] = (shape.hidden,)
        names[prefix + "post_attention_layernorm.weight"] = (shape.hidden,)
        for name, (rows, columns, bias) in products.items():
            names[prefix + name + ".weight"] = (rows, columns)
            if bias:
                names[prefix + name + ".bias"] = (rows,)
    return names


@dataclass(slots=True)
class _Layer:
    norm: torch.Tensor
    qkv: Any
    out: Any
    mlp_norm: torch.Tensor
    gate_up: Any
    down: Any


class _Plain:
    """x W^T + b by torch's own choice: GPUs, and dtypes without packed kernels."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class _Reader:
    """Tensors of a folder by name, on the device and in the dtype wanted."""

    def __init__(self, tensors: Mapping[str, StoredTensor], device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._files: dict[Any, Any] = {}
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def get(self, name: str) -> torch.Tensor:
        file = self._tensors[name].file
        if file not in self._files:
            self._files[file] = safe_open(str(file), framework="pt", device="cpu")
        tensor: torch.Tensor = self._files[file].get_tensor(name)
        return tensor.to(self._device, self._dtype)

    def joined(self, names: Sequence[str]) -> torch.Tensor | None:
        return torch.cat([self.get(name) for name in names]) if names[0] in self else None


@torch.no_grad()
def load_llama(
    config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    device: torch.device,
    dtype: torch.dtype,
    *,
    check_mode: bool = False,
    progress: Callable[[float], None] | None = None,
) -> LlamaRunner:
    """Read the weights of a folder that `supports` accepted and lay them out for this machine.

    progress gets fractions 0..1 and may raise to stop. Raises SpecviewError when a GPU's memory runs out.
    """
    shape = read_shape(config, tensors)
    reader = _Reader(tensors, device, dtype)
    make = _linear_maker(tensors, device, dtype, check_mode)
    try:
        layers = []
        for index in range(shape.layers):
            layers.append(_load_layer(reader, f"model.layers.{index}.", shape, make))
            if progress is not None:
                progress((index + 1) / (shape.layers + 2))
        embedding = reader.get("model.embed_tokens.weight")
        head = make(embedding if shape.tied else reader.get("lm_head.weight"), None)
        norm = reader.get("model.norm.weight")
    except torch.OutOfMemoryError:
        raise SpecviewError(
            f"The weights do not fit the memory of {device}.", "Choose a smaller model or device cpu."
        ) from None
    if progress is not None:
        progress((shape.layers + 1) / (shape.layers + 2))
    runner = LlamaRunner(shape, layers, embedding, norm, head, _frequencies(config, shape), check_mode=check_mode)
    if isinstance(head, RowLinear):
        groups: list[list[RowLinear]] = [[head]]
        groups += [[getattr(layer, name) for layer in layers] for name in ("gate_up", "down", "qkv", "out")]
        runner.chosen_kernels = measure(groups)
    return runner


def _linear_maker(
    tensors: Mapping[str, StoredTensor], device: torch.device, dtype: torch.dtype, check_mode: bool
) -> Callable[[torch.Tensor, torch.Tensor | None], Any]:
    if device.type != "cpu" or dtype != torch.float32 or not can_pack():
        return _Plain
    import psutil

    total = 4 * sum(tensor.numel for tensor in tensors.values())
    room = min(_SECOND_LAYOUT_BYTES, _SECOND_LAYOUT_SHARE * psutil.virtual_memory().available)
    both = total <= room and not check_mode

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> RowLinear:
        return RowLinear(weight, bias, packed=True, transposed=both)

    return make


def _load_layer(
    reader: _Reader, prefix: str, shape: LlamaShape, make: Callable[[torch.Tensor, torch.Tensor | None], Any]
) -> _Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."

    def optional(name: str) -> torch.Tensor | None:
        return reader.get(name) if name in reader else None

    def qkv(kind: str) -> torch.Tensor | None:
        joined = reader.joined([f"{attention}{name}_proj.{kind}" for name in "qkv"])
        return joined if joined is None else _interleave(joined, shape)

    weight = qkv("weight")
    gate_up = reader.joined([mlp + "gate_proj.weight", mlp + "up_proj.weight"])
    assert weight is not None and gate_up is not None
    return _Layer(
        norm=reader.get(prefix + "input_layernorm.weight"),
        qkv=make(weight, qkv("bias")),
        out=make(reader.get(attention + "o_proj.weight"), optional(attention + "o_proj.bias")),
        mlp_norm=reader.get(prefix + "post_attention_layernorm.weight"),
        gate_up=make(gate_up, reader.joined([mlp + "gate_proj.bias", mlp + "up_proj.bias"])),
        down=make(reader.get(mlp + "down_proj.weight"), optional(mlp + "down_proj.bias")),
    )


def _interleave(joined: torch.Tensor, shape: LlamaShape) -> torch.Tensor:
    """Put the two rotary halves of each q and k head side by side: rows 0, w/2, 1, w/2 + 1, ..."""
    turned = (shape.heads + shape.kv_heads) * shape.width
    q_and_k = joined[:turned].view(shape.heads + shape.kv_heads, 2, shape.width // 2, *joined.shape[1:])
    return torch.cat([q_and_k.transpose(1, 2).reshape(turned, *joined.shape[1:]), joined[turned:]])


def _frequencies(config: Mapping[str, Any], shape: LlamaShape) -> torch.Tensor:
    """The rotary frequencies [width / 2] (Su et al. 2021, arXiv 2104.09864), scaled as the type says."""
    kind, parameters = _rope(config)
    exponents = torch.arange(0, shape.width, 2, dtype=torch.float32) / shape.width
    frequencies = 1.0 / float(parameters["rope_theta"]) ** exponents
    if kind == "linear":
        return frequencies / float(parameters["factor"])
    if kind == "llama3":
        return _llama3(frequencies, parameters)
    return frequencies


def _llama3(frequencies: torch.Tensor, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1's scaling: slow rotations divided by `factor`, fast ones kept, a blend between."""
    factor, low, high = (float(parameters[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(parameters["original_max_position_embeddings"]) * frequencies / (2 * torch.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (blend + (1 - blend) / factor)


class LlamaCache:
    """Keys and values of one sequence: two buffers [layers, kv heads, capacity, width]."""

    def __init__(self, shape: LlamaShape, device: torch.device, dtype: torch.dtype, max_length: int) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype
        self._max_length = max_length
        self.length = 0
        self.keys, self.values = self._allocate(min(max_length, _FIRST_BLOCK))

    def _allocate(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = (self._shape.layers, self._shape.kv_heads, capacity, self._shape.width)
        # Zeros: what a mask hides must still be finite, for 0 times NaN is NaN.
        keys, values = (torch.zeros(size, device=self._device, dtype=self._dtype) for _ in range(2))
        return keys, values

    def reserve(self, needed: int) -> None:
        """Make room for `needed` tokens, by doubling; keeps what is there."""
        capacity = self.keys.shape[2]
        if needed <= capacity:
            return
        old = self.keys, self.values
        self.keys, self.values = self._allocate(max(needed, min(self._max_length, 2 * capacity)))
        for new, kept in zip((self.keys, self.values), old, strict=True):
            new[:, :, : self.length] = kept[:, :, : self.length]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: a pointer move."""
        self.length = min(self.length, length)

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return int(self.keys.nbytes + self.values.nbytes)


class LlamaRunner:
    """The forward pass over a LlamaCache (a Runner)."""

    free_positions = True  # positions beyond the context length are computed, not looked up

    def __init__(
        self,
        shape: LlamaShape,
        layers: list[_Layer],
        embedding: torch.Tensor,
        norm: torch.Tensor,
        head: Any,
        frequencies: torch.Tensor,
        *,
        check_mode: bool = False,
    ) -> None:
        self.shape = shape
        self.device: torch.device = embedding.device
        self.vocab_size = shape.vocab
        self.layers = shape.layers
        self.chosen_kernels: dict[tuple[int, int], dict[int, str]] = {}
        self._layers = layers
        self._embedding = embedding
        self._norm = norm
        self._head = head
        self._dtype = embedding.dtype
        self._frequencies = frequencies
        self._block = CHECK_BLOCK if check_mode else 1
        self._turns = torch.empty(0, 0)

    def new_cache(self, max_length: int) -> LlamaCache:
        """Make an empty cache for up to max_length tokens."""
        return LlamaCache(self.shape, self.device, self._dtype, max_length)

    def close(self) -> None:
        """Free the weights."""
        self._layers = []
        self._head = self._embedding = self._norm = None  # type: ignore[assignment]

    def _rotation(self, start: int, end: int) -> torch.Tensor:
        """Unit complex numbers [n, heads + 2 kv heads, width / 2] for positions start..end; 1 for values."""
        if self._turns.shape[0] < end:
            positions = torch.arange(max(end, 2 * self._turns.shape[0], _FIRST_BLOCK), dtype=torch.float32)
            angles = torch.outer(positions, self._frequencies)
            self._turns = torch.polar(torch.ones_like(angles), angles).to(self.device)
        shape = self.shape
        turned = shape.heads + shape.kv_heads
        rotation = torch.ones(
            (end - start, turned + shape.kv_heads, shape.width // 2), dtype=torch.complex64, device=self.device
        )
        rotation[:, :turned] = self._turns[start:end, None]
        return rotation

    @torch.no_grad()
    def run(
        self, tokens: Sequence[int], start: int, cache: LlamaCache, *, logits: bool, features: Sequence[Any] = ()
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run tokens after the `start` that the cache holds; see Runner.run."""
        shape, rows = self.shape, len(tokens)
        end = start + rows
        visible = -(-end // self._block) * self._block
        cache.reserve(visible)
        keys = cache.keys.narrow(2, 0, visible).unbind(0)
        values = cache.values.narrow(2, 0, visible).unbind(0)
        rotation = self._rotation(start, end)
        attend = self._attention(rows, start, visible)
        x = functional.embedding(torch.tensor(tokens, device=self.device), self._embedding)
        found = self._collect(features, {}, 0, x)
        kv_at, split = shape.heads + shape.kv_heads, (rows, shape.heads + 2 * shape.kv_heads, shape.width)
        for index, layer in enumerate(self._layers):
            qkv = self._rotate(layer.qkv(self._normed(x, layer.norm)).view(split), rotation)
            key, value = keys[index], values[index]
            key.narrow(1, start, rows).copy_(qkv[:, shape.heads : kv_at].transpose(0, 1))
            value.narrow(1, start, rows).copy_(qkv[:, kv_at:].transpose(0, 1))
            x = x + layer.out(attend(qkv[:, : shape.heads], key, value))
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, -1)
            x = x + layer.down(functional.silu(gate).mul_(up))
            if features:
                self._collect(features, found, index + 1, x)
        cache.length = end
        if not logits and not features:
            return None, found
        last = self._normed(x, self._norm)
        if "last" in features:
            found["last"] = last
        return (self._head(last).float() if logits else None), found

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.shape.eps)

    def _rotate(self, qkv: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(qkv.float().view(*qkv.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotation).view(qkv.shape).to(qkv.dtype)

    def _attention(
        self, rows: int, start: int, visible: int
    ) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
        """Causal attention of q [n, heads, width] over keys and values [kv heads, visible, width]."""
        shape = self.shape
        mask = self._mask(rows, start, visible)
        scale = shape.width**-0.5
        if self.device.type == "cpu" and rows <= _FEW_ROWS:
            # Query heads of a group, and rows, are the rows of one product per key-value head.
            stacked = rows * shape.group
            repeated = None if mask is None else mask.repeat_interleave(shape.group, 0)
            bias = torch.zeros(()) if repeated is None else repeated
            beta = 0 if repeated is None else 1

            def few(q: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
                q = q.reshape(rows, shape.kv_heads, shape.group, shape.width).transpose(0, 1)
                q = q.reshape(shape.kv_heads, stacked, shape.width)
                scores = torch.baddbmm(bias, q, key.transpose(1, 2), beta=beta, alpha=scale)
                mixed = torch.bmm(torch.softmax(scores, -1), value)
                mixed = mixed.view(shape.kv_heads, rows, shape.group, shape.width).transpose(0, 1)
                return mixed.reshape(rows, shape.heads * shape.width)

            return few

        grouped = shape.group > 1

        def many(q: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            mixed = functional.scaled_dot_product_attention(
                q.transpose(0, 1)[None], key[None], value[None], attn_mask=mask, scale=scale, enable_gqa=grouped
            )
            return mixed[0].transpose(0, 1).reshape(rows, shape.heads * shape.width)

        return many

    def _mask(self, rows: int, start: int, visible: int) -> torch.Tensor | None:
        """0 where row i (position start + i) may look, -inf elsewhere; None where it may look everywhere."""
        if rows == 1 and visible == start + 1:
            return None
        allowed = torch.ones(rows, visible, dtype=torch.bool, device=self.device).tril(start)
        return torch.zeros(rows, visible, dtype=self._dtype, device=self.device).masked_fill_(~allowed, -torch.inf)

    def _collect(
        self, features: Sequence[Any], found: dict[Any, torch.Tensor], layers: int, x: torch.Tensor
    ) -> dict[Any, torch.Tensor]:
        if layers in features:
            found[layers] = x
        return found
