"""Our own forward pass for models of the Llama shape: fewer operations, the same weights.

Pre-norm layers of rotary attention and a gated MLP (Touvron et al. 2023, arXiv 2302.13971): Llama,
Mistral and Qwen2 checkpoints as transformers writes them. Against transformers' modules it joins the
q, k, v products and the MLP's first two, writes keys and values straight into their cache, and on a CPU
takes the short way of transformers_llama_cpu for a few rows. Results agree up to rounding.

The rotary halves of every q and k head are interleaved when weights are loaded, so that the rotation
is one complex product; scores do not change when q and k are reordered alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch.nn import functional

from specview.engines.transformers_linear import Linear, Make, gated, maker, mostly_halves
from specview.engines.transformers_llama_cpu import MAX_ROWS, FewRows, LlamaLayer, Pass
from specview.engines.transformers_llama_shape import (
    EMBEDDING,
    HEAD,
    UNTIED,
    LlamaShape,
    read_shape,
    rotary_frequencies,
)
from specview.engines.transformers_session import CHECK_BLOCK
from specview.engines.transformers_weights import StoredTensor
from specview.engines.tree import Tree, move_together
from specview.errors import SpecviewError

_FIRST_BLOCK = 512


class _Reader:
    """Tensors of a folder by name, on the device and in the dtype wanted, rounded to another before where one is given."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        device: torch.device,
        dtype: torch.dtype,
        rounded: torch.dtype | None,
    ) -> None:
        self._device, self._dtype, self._rounded = device, dtype, rounded
        self._files: dict[Any, Any] = {}
        self._tensors = tensors

    def get(self, name: str) -> torch.Tensor:
        return self.narrow(name).to(self._device, self._dtype)

    def narrow(self, name: str) -> torch.Tensor:
        """The tensor as it is stored or rounded, on the CPU."""
        file = self._tensors[name].file
        if file not in self._files:
            self._files[file] = safe_open(str(file), framework="pt", device="cpu")
        tensor: torch.Tensor = self._files[file].get_tensor(name)
        # A copy: what safetensors gives is the file itself, mapped, which may be evicted, or cut under us.
        return tensor.to(self._rounded or tensor.dtype, copy=True)

    def optional(self, name: str) -> torch.Tensor | None:
        return self.get(name) if name in self._tensors else None


@torch.no_grad()
def load_llama(
    config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    device: torch.device,
    dtype: torch.dtype,
    *,
    rounded: torch.dtype | None = None,
    halves: bool = False,
    timed: bool = True,
    check_mode: bool = False,
    twice: bool = False,
    progress: Callable[[float], None] | None = None,
) -> LlamaRunner:
    """Read the weights of a folder in which own_forward_problem found none and lay them out for this machine.

    config is the resolved one. rounded: weights are rounded to this dtype, while dtype is computed in. halves, timed,
    twice: as in transformers_linear.maker. progress gets fractions 0..1 and may raise to stop. Raises SpecviewError
    when a GPU's memory runs out.
    """
    shape = read_shape(config)
    reader = _Reader(tensors, device, dtype, rounded)
    steps = shape.layers + 2
    try:
        make = maker(device, dtype, halves, timed=timed, twice=twice)
        layers = []
        for index in range(shape.layers):
            layers.append(_load_layer(reader, f"model.layers.{index}.", shape, make))
            if progress is not None:
                progress((index + 1) / steps)
        embedding = reader.narrow(EMBEDDING)
        own_head = reader.narrow(HEAD) if HEAD in tensors else None
        # Both may be stored where the configuration ties them: transformers then ties what is equal.
        tied = own_head is None or (shape.tied and torch.equal(own_head.to(dtype), embedding.to(dtype)))
        if not halves:
            embedding = embedding.to(device, dtype)
        head = make((embedding if own_head is None or tied else own_head).to(device, dtype), None)
        if tied:
            embedding = getattr(head, "weight", embedding)  # where the head keeps it as it is, once
        norm = reader.get("model.norm.weight")
    except torch.OutOfMemoryError:
        raise SpecviewError(
            f"The weights do not fit the memory of {device}.", "Choose a smaller model or device cpu."
        ) from None
    if progress is not None:
        progress((shape.layers + 1) / steps)
    frequencies = torch.tensor(rotary_frequencies(config, shape), dtype=torch.float32)
    runner = LlamaRunner(shape, layers, embedding, norm, head, frequencies, dtype, check_mode=check_mode)
    if shape.tied and not tied:
        runner.weights_note = UNTIED
    return runner


def _load_layer(reader: _Reader, prefix: str, shape: LlamaShape, make: Make) -> LlamaLayer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."

    def product(name: str) -> Linear:
        return make(reader.get(name + ".weight"), reader.optional(name + ".bias"))

    def joined(kind: str, names: Sequence[str]) -> torch.Tensor | None:
        parts = [reader.optional(f"{prefix}{name}_proj.{kind}") for name in names]
        present = [part for part in parts if part is not None]
        return torch.cat(present) if present else None

    def joined_qkv(kind: str) -> torch.Tensor | None:
        found = joined(kind, ("self_attn.q", "self_attn.k", "self_attn.v"))
        return None if found is None else _interleave(found, shape)

    qkv, gate_and_up = joined_qkv("weight"), joined("weight", ("mlp.gate", "mlp.up"))
    assert qkv is not None and gate_and_up is not None
    return LlamaLayer(
        norm=reader.get(prefix + "input_layernorm.weight"),
        qkv=make(qkv, joined_qkv("bias")),
        out=product(attention + "o_proj"),
        mlp_norm=reader.get(prefix + "post_attention_layernorm.weight"),
        gate_and_up=make(gate_and_up, joined("bias", ("mlp.gate", "mlp.up"))),
        down=product(mlp + "down_proj"),
    )


def _interleave(joined: torch.Tensor, shape: LlamaShape) -> torch.Tensor:
    """Put the two rotary halves of each q and k head side by side: rows 0, w/2, 1, w/2 + 1, ..."""
    turned = (shape.heads + shape.kv_heads) * shape.width
    q_and_k = joined[:turned].view(shape.heads + shape.kv_heads, 2, shape.width // 2, *joined.shape[1:])
    return torch.cat([q_and_k.transpose(1, 2).reshape(turned, *joined.shape[1:]), joined[turned:]])


def _turn(heads: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotate heads [n, heads, width], pairs side by side, by unit complex numbers [n, width / 2]."""
    pairs = heads.float().reshape(*heads.shape[:2], -1, 2)
    # Not every release of MPS has complex products.
    turned = _turn_real(pairs, rotation) if pairs.device.type == "mps" else _turn_complex(pairs, rotation)
    return turned.view(heads.shape).to(heads.dtype)


def _turn_complex(pairs: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(pairs) * rotation[:, None])


def _turn_real(pairs: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    cosine, sine = torch.view_as_real(rotation)[:, None].unbind(-1)
    real, imaginary = pairs.unbind(-1)
    return torch.stack((real * cosine - imaginary * sine, real * sine + imaginary * cosine), -1)


class LlamaCache:
    """Keys and values of one sequence: one buffer [layers, 2 kv heads, capacity, width], keys first.

    Of several sequences of one length: [layers, 2 kv heads * sequences, capacity, width], a head's side by side.
    """

    def __init__(
        self, shape: LlamaShape, device: torch.device, dtype: torch.dtype, max_length: int, sequences: int = 1
    ) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype
        self._max_length = max_length
        self.sequences = sequences
        self.length = 0
        self.buffer = self._allocate(min(max_length, _FIRST_BLOCK))

    def _allocate(self, capacity: int) -> torch.Tensor:
        heads = 2 * self._shape.kv_heads * self.sequences
        size = (self._shape.layers, heads, capacity, self._shape.width)
        # Zeros: what a mask hides must still be finite, for 0 times NaN is NaN.
        return torch.zeros(size, device=self._device, dtype=self._dtype)

    def reserve(self, needed: int) -> None:
        """Make room for `needed` tokens, by doubling; keeps what is there."""
        capacity = self.buffer.shape[2]
        if needed > capacity:
            kept = self.buffer  # whole: lower layers may hold tokens beyond the length (early exit)
            self.buffer = self._allocate(max(needed, min(self._max_length, 2 * capacity)))
            self.buffer[:, :, :capacity] = kept

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: a pointer move."""
        self.length = min(self.length, length)

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` tokens and, of those after them, a path's, by index."""
        move_together(self.buffer, 2, start, path)
        self.length = start + len(path)

    def repeated(self, sequences: int) -> LlamaCache:
        """Return a cache of so many sequences, each with what this one's only sequence holds."""
        made = LlamaCache(self._shape, self._device, self._dtype, self._max_length, sequences)
        made.reserve(self.length)
        filled = made.buffer.unflatten(1, (-1, sequences)).narrow(3, 0, self.length)
        filled.copy_(self.buffer.narrow(2, 0, self.length).unsqueeze(2).expand_as(filled))
        made.length = self.length
        return made

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return int(self.buffer.nbytes)


class LlamaRunner:
    """The forward pass over a LlamaCache (a Runner)."""

    free_positions = True  # positions beyond the context length are computed, not looked up

    def __init__(
        self,
        shape: LlamaShape,
        layers: list[LlamaLayer],
        embedding: torch.Tensor,
        norm: torch.Tensor,
        head: Linear,
        frequencies: torch.Tensor,
        dtype: torch.dtype,
        *,
        check_mode: bool = False,
    ) -> None:
        """The embedding may be of a narrower type than dtype, which is computed in."""
        self.shape = shape
        self.device: torch.device = embedding.device
        products = [getattr(layer, name) for layer in layers for name in ("qkv", "out", "gate_and_up", "down")]
        products.append(head)
        self.weight_bytes: int = sum(product.nbytes for product in products)
        self.product_bytes = sum(product.read_bytes for product in products)  # what every pass reads
        if getattr(head, "weight", None) is not embedding:
            self.weight_bytes += embedding.nbytes
        self.keeps_halves = mostly_halves(products)
        self.weights_note = ""
        self.vocab_size = shape.vocab
        self.hidden_size = shape.hidden
        self.layers = shape.layers
        self.features_problem: str | None = None
        self.exit_layers = shape.layers if shape.layers > 1 else 0
        self.exit_problem = None if self.exit_layers else "it has a single layer"
        self.tree_problem: str | None = None
        self._layers = layers
        self._embedding = embedding
        self._norm = norm
        self._head = head
        self._dtype = dtype
        self._frequencies = frequencies
        self._block = CHECK_BLOCK if check_mode else 1
        self._turns = torch.empty(0, 0)
        # Not in check mode: the short way's products round differently when the keys shown grow by a block,
        # torch's attention does not.
        short = self.device.type == "cpu" and self._dtype == torch.float32 and not check_mode
        self._few_rows = FewRows(shape, layers, norm) if short else None

    def new_cache(self, max_length: int) -> LlamaCache:
        """Make an empty cache for up to max_length tokens."""
        return LlamaCache(self.shape, self.device, self._dtype, max_length)

    def close(self) -> None:
        """Free the weights."""
        self._layers = []
        self._few_rows = None
        self._head = self._embedding = self._norm = None  # type: ignore[assignment]

    def _rotation(self, start: int, end: int) -> torch.Tensor:
        """Unit complex numbers [n, width / 2] for positions start..end."""
        if self._turns.shape[0] < end:
            positions = torch.arange(max(end, 2 * self._turns.shape[0], _FIRST_BLOCK), dtype=torch.float32)
            angles = torch.outer(positions, self._frequencies)
            turns = torch.stack((angles.cos(), angles.sin()), -1).to(self.device)
            self._turns = torch.view_as_complex(turns)
        return self._turns[start:end]

    def run(
        self,
        tokens: Sequence[int],
        start: int,
        cache: LlamaCache,
        *,
        logits: bool,
        features: Sequence[Any] = (),
        tree: Tree | None = None,
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run tokens after the `start` that the cache holds; see Runner.run."""
        x = self._embed(tokens)
        return self._to_the_end(x, start, cache, 0, logits=logits, features=features, tree=tree)

    def run_batch(self, tokens: Sequence[Sequence[int]], start: int, cache: LlamaCache) -> torch.Tensor:
        """Run n tokens of each of the cache's sequences, after the `start` that each has: logits [B, n, vocab]."""
        sequences, each = len(tokens), len(tokens[0])
        x = self._embed([token for row in tokens for token in row])
        with torch.inference_mode():
            rows_of = self._pass(each, start)
            rows_of.sequences = sequences
            turns = torch.view_as_real(rows_of.rotation).repeat(sequences, 1, 1)
            rows_of.rotation = torch.view_as_complex(turns)
            last = self._final_norm(self._layers_on(x, cache, rows_of, 0, self.shape.layers), sequences)
        with torch.no_grad():
            return self._head(last).float().unflatten(0, (sequences, each))

    @torch.no_grad()
    def products(self, rows: int) -> None:
        """Do the layers' matrix products alone, for so many rows: what a pass computes beside attention."""
        shape = self.shape
        x, wide = (torch.ones(rows, size, device=self.device, dtype=self._dtype)
                   for size in (shape.hidden, shape.intermediate))  # fmt: skip
        mixed = torch.ones(rows, shape.heads * shape.width, device=self.device, dtype=self._dtype)
        for layer in self._layers:
            for product, given in ((layer.qkv, x), (layer.out, mixed), (layer.gate_and_up, x), (layer.down, wide)):
                product(given)

    def run_lower(
        self, tokens: Sequence[int], start: int, cache: LlamaCache, layer: int, *, logits: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Run tokens through the first `layer` layers, writing those layers' keys and values.

        Returns float logits [n, vocab] of the final norm and head, or None without `logits`, and the
        hidden states [n, hidden].
        """
        with torch.inference_mode():
            hidden = self._layers_on(self._embed(tokens), cache, self._pass(len(tokens), start), 0, layer)
            last = self._final_norm(hidden) if logits else None
        with torch.no_grad():
            return (self._head(last).float() if last is not None else None), hidden

    def run_upper(
        self, hidden: torch.Tensor, start: int, cache: LlamaCache, layer: int, features: Sequence[Any] = ()
    ) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        """Run hidden states [n, hidden] after `layer` layers through the others.

        Returns logits [n, vocab] and the features asked for, none of them of an earlier layer.
        """
        logits, found = self._to_the_end(hidden, start, cache, layer, logits=True, features=features, tree=None)
        assert logits is not None
        return logits, found

    @torch.no_grad()
    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """The embedding's rows of some ids, [n, hidden]."""
        return functional.embedding(torch.tensor(ids, device=self.device), self._embedding).to(self._dtype)

    @torch.no_grad()
    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float logits [n, vocab] of the head alone, of normed hidden states [n, hidden]."""
        return self._head(hidden.to(self.device, self._dtype)).float()

    def _embed(self, tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            return functional.embedding(torch.tensor(tokens, device=self.device), self._embedding).to(self._dtype)

    def _pass(self, rows: int, start: int, features: Sequence[Any] = (), tree: Tree | None = None) -> Pass:
        end = start + rows
        visible = -(-end // self._block) * self._block
        rotation = self._rotation(start, end)
        if tree is not None:
            rotation = self._rotation_of_depths(rotation, tree)
        return Pass(start, visible, rotation, tree, features)

    def _rotation_of_depths(self, rotation: torch.Tensor, tree: Tree) -> torch.Tensor:
        depths = torch.tensor(tree.depths, device=self.device)
        # Taken as real numbers: not every device indexes complex ones.
        return torch.view_as_complex(torch.view_as_real(rotation).index_select(0, depths))

    def _to_the_end(
        self,
        x: torch.Tensor,
        start: int,
        cache: LlamaCache,
        first: int,
        *,
        logits: bool,
        features: Sequence[Any],
        tree: Tree | None,
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run layers from `first` on x [n, hidden], the final norm and, with `logits`, the head."""
        # Inference mode spares bookkeeping per operation; what leaves this function is made outside it, so
        # that callers may change it in place.
        with torch.inference_mode():
            rows_of = self._pass(x.shape[0], start, features, tree)
            last = self._final_norm(self._layers_on(x, cache, rows_of, first, self.shape.layers))
        with torch.no_grad():
            found = rows_of.found
            if "last" in features:
                found["last"] = last
            found = {layer: value.clone() for layer, value in found.items()}
            return (self._head(last).float() if logits else None), found

    def _layers_on(
        self, x: torch.Tensor, cache: LlamaCache, rows_of: Pass, first: int, last: int
    ) -> torch.Tensor:
        """Run layers first..last on x [n, hidden], writing their keys and values."""
        cache.reserve(rows_of.visible)
        if self._few_rows is not None and x.shape[0] <= MAX_ROWS:
            x = self._few_rows.run(x, cache.buffer, rows_of, first, last)
        else:
            x = self._many_rows(x, cache.buffer, rows_of, first, last)
        cache.length = rows_of.start + x.shape[0] // rows_of.sequences
        return x

    def _final_norm(self, x: torch.Tensor, sequences: int = 1) -> torch.Tensor:
        if self._few_rows is not None and x.shape[0] <= MAX_ROWS:
            return self._few_rows.final_norm(x, sequences)
        return self._normed(x, self._norm)

    def _many_rows(
        self, x: torch.Tensor, buffer: torch.Tensor, rows_of: Pass, first: int, last: int
    ) -> torch.Tensor:
        """Run layers first..last on x [n, hidden]."""
        shape, rows, start, visible = self.shape, x.shape[0], rows_of.start, rows_of.visible
        each = rows // rows_of.sequences  # of one sequence
        kv_heads = shape.kv_heads * rows_of.sequences
        turned = shape.heads + shape.kv_heads
        new = buffer.narrow(2, start, each).unbind(0)
        seen = buffer.narrow(2, 0, visible).unbind(0)
        # torch's own mask, which skips half the work
        causal = each > 1 and start == 0 and visible == each and rows_of.tree is None
        mask = None if causal else self._mask(each, rows_of)
        grouped = (rows, shape.kv_heads, shape.group, shape.width)
        side_by_side = (kv_heads, each, shape.width)
        features, found = rows_of.features, rows_of.found
        if first in features:
            found[first] = x
        for index in range(first, last):
            layer = self._layers[index]
            qkv = layer.qkv(self._normed(x, layer.norm)).view(rows, turned + shape.kv_heads, shape.width)
            qk = _turn(qkv[:, :turned], rows_of.rotation)
            new[index][:kv_heads] = qk[:, shape.heads :].transpose(0, 1).reshape(side_by_side)
            new[index][kv_heads:] = qkv[:, turned:].transpose(0, 1).reshape(side_by_side)
            # The heads of a group are the batch, over the same keys and values: no kernel needs to know of
            # grouped heads (with a mask, most do not), and nothing is copied.
            mixed = functional.scaled_dot_product_attention(
                qk[:, : shape.heads].view(grouped).permute(2, 1, 0, 3).reshape(shape.group, *side_by_side),
                seen[index][:kv_heads].expand(shape.group, -1, -1, -1),
                seen[index][kv_heads:].expand(shape.group, -1, -1, -1),
                attn_mask=mask,
                is_causal=causal,
                scale=shape.width**-0.5,
            )
            mixed = mixed.reshape(shape.group, shape.kv_heads, rows, shape.width)
            x = layer.out.plus(mixed.permute(2, 1, 0, 3).reshape(rows, shape.heads * shape.width), x)
            normed = self._normed(x, layer.mlp_norm)
            x = layer.down.plus(gated(layer.gate_and_up, normed), x)
            if index + 1 in features:
                found[index + 1] = x
        return x

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.shape.eps)

    def _mask(self, rows: int, rows_of: Pass) -> torch.Tensor | None:
        """True where a row may look, [n, visible]; None where it may look everywhere."""
        start, visible = rows_of.start, rows_of.visible
        if rows == 1 and visible == start + 1:
            return None
        mask = torch.ones(rows, visible, dtype=torch.bool, device=self.device).tril(start)
        if rows_of.tree is not None:
            mask[:, start : start + rows] = torch.from_numpy(rows_of.tree.sees).to(self.device)
        return mask
