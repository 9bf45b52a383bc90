"""Matrix products of a few rows on a CPU, each weight in the layout that is fastest here.

torch's own product of few rows is slow in float32: MKL's kernel for up to three rows reads a weight about as fast as
memory gives it, its kernel for more packs the whole weight anew at every call, so that a pass of four rows takes half
as long again as one of three (FACTS.md). With the weight packed once, beforehand, the jump goes. oneDNN's product with
a packed weight takes little more for eight rows than for one, but more for one than MKL's; where a checkpoint stores
float16 or bfloat16, fbgemm's product reads half the bytes, exactly, and sums in float32.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional

_PACK_ROWS = 4  # the layout oneDNN makes for about this many rows serves 1 to 16 best (measured)
_ADVANTAGE = 0.85  # another product than the usual one must be this much faster: timing is noisy
_TIMED_NUMBERS = 8_000_000  # of larger weights only the first outputs are timed
_TIMED_LEAST = 32_768  # which product of a smaller weight is faster is noise, and what a load keeps would be too
_TIMED_TURNS = 6
_TIMED_ROWS = (1, 2, 3, 4, 6)  # what plain decoding and short drafts ask for
_CHECKED_NUMBERS = 1_000_000  # looked at in one go: a large weight is not copied whole to be checked
_CACHE_NUMBERS = 4_000_000  # read between two timings: a pass finds no weight in the cores' own caches


class Linear(Protocol):
    """y = x W^T + b for x [n, in], and y joined to another tensor [n, out] in the same step where the kernel can."""

    nbytes: int  # of the weight as it is kept, copies included
    read_bytes: int  # of it that a product of few rows reads

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y."""
        ...

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return y + other."""
        ...


class _Unfused:
    """The joined step for a product that knows only y."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return y + other."""
        return self(x).add_(other)


class PlainLinear(_Unfused):
    """torch's own choice of kernel: GPUs, and dtypes without packed products."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self._bias = weight, bias
        self.nbytes = self.read_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y."""
        return functional.linear(x, self.weight, self._bias)


class PackedLinear:
    """oneDNN's product with a packed float32 weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        self._bias = bias
        self.nbytes = self.read_bytes = weight.nbytes
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y."""
        return self._unary(x, self._weight, self._bias, "none", [], "")

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return y + other."""
        return self._binary(x, other, self._weight, self._bias, "add")


class MklLinear(_Unfused):
    """MKL's product with a packed float32 weight.

    MKL allocates more for a packed weight than it fills; what it fills is what the weight takes.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
        self._shape_only = weight.new_empty(1).expand(weight.shape)  # the operator asks it for its shape alone
        self._bias = bias
        self.nbytes = self.read_bytes = weight.nbytes
        self._product = torch.ops.mkl._mkl_linear.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y."""
        # The operator takes the packed weight where it is told that it was packed for as many rows as there are;
        # MKL's own packing does not depend on their number (cblas_sgemm_pack: only the layout must be the same).
        return self._product(x, self._packed, self._shape_only, self._bias, len(x))


class TwiceKeptLinear(_Unfused):
    """torch's own product of up to FEW rows with the weight as it is, MKL's of more with a packed copy."""

    FEW = 3

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._few, self._more = PlainLinear(weight, bias), MklLinear(weight, bias)
        self.weight = weight
        self.read_bytes = self._few.nbytes
        self.nbytes = self._few.nbytes + self._more.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y."""
        return self._few(x) if len(x) <= self.FEW else self._more(x)


class HalfLinear:
    """fbgemm's product of float32 rows with a weight kept as float16, summed in float32; none of the weight is rounded.

    float16 has all the digits of bfloat16 but not its range, so a weight in bfloat16 is kept times a power of 2 that
    puts its largest number at float16's upper end. Raises ValueError for a weight that cannot be kept so.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        shift = _half_shift(weight)
        if shift is None:
            raise ValueError("the weight is neither float16 nor bfloat16")
        kept = weight.float()
        if shift:
            kept, bias = kept * 2.0**shift, None if bias is None else bias * 2.0**shift
        self._packed = torch.ops.quantized.linear_prepack_fp16(kept, bias)
        self._scale = 2.0**-shift
        self.nbytes = self.read_bytes = 2 * weight.numel()
        self._product = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y."""
        y: torch.Tensor = self._product(x, self._packed)
        return y if self._scale == 1.0 else y.mul_(self._scale)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return y + other."""
        return torch.add(other, self._product(x, self._packed), alpha=self._scale)


def _half_shift(weight: torch.Tensor) -> int | None:
    """The n for which weight * 2^n is as good in float16 as it is; None where there is none.

    What lies more than 2^32 below the largest number may lose digits, as long as they are beyond float32's of the
    largest in its row: sums in float32 do not see them.
    """
    blocks = weight.split(max(1, _CHECKED_NUMBERS // weight.shape[1]))
    if all(torch.equal(block.half().to(block.dtype), block) for block in blocks):
        return 0
    largest = max(float(block.abs().max()) for block in blocks)
    if not math.isfinite(largest):
        return None
    shift = 15 - math.frexp(largest)[1]
    for block in blocks:
        exact = block.float()
        lost = (exact * 2.0**shift).half().float().mul_(2.0**-shift).sub_(exact)
        if bool((lost.abs_().amax(1) > 2.0**-24 * exact.abs().amax(1)).any()):
            return None
    return shift


class Int8Linear(_Unfused):
    """A product of at most FEW rows with an 8-bit weight, one scale per output; of more rows, with another's.

    It reads half the bytes of a float16 weight, which is what few rows cost. A weight is rounded to a 127th of its
    row's largest value, that step and the rows to bfloat16: right for a drafter, whose probabilities are whatever it
    draws from, never for a target.
    """

    FEW = 4

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, wide: Linear) -> None:
        scale = weight.abs().amax(1).clamp_(min=1e-12) / 127
        self._weight = (weight / scale[:, None]).round_().to(torch.int8).contiguous()
        self._scale = scale.bfloat16()
        self._bias, self._wide = bias, wide
        self.read_bytes = weight.numel()
        self.nbytes = self.read_bytes + wide.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y."""
        if len(x) > self.FEW:
            return self._wide(x)
        y = torch._weight_int8pack_mm(x.bfloat16(), self._weight, self._scale).float()
        return y if self._bias is None else y.add_(self._bias)


Make = Callable[[torch.Tensor, torch.Tensor | None], Linear]


def gated(gate_and_up: Linear, x: torch.Tensor) -> torch.Tensor:
    """silu(a) * b, a and b being the halves of y: a gated MLP's first two products as one (Shazeer 2020, arXiv 2002.05202).

    One product of twice the outputs takes up to a tenth less than two for three rows (measured).
    """
    gate, up = gate_and_up(x).chunk(2, -1)
    return functional.silu(gate).mul_(up)


def is_half(weight: torch.Tensor) -> bool:
    """Whether HalfLinear can keep a weight: its numbers are those of float16 or bfloat16."""
    return _half_shift(weight) is not None


def has_half_products() -> bool:
    """Whether float16 and bfloat16 weights can be multiplied as they are on this CPU, with float32 sums."""
    return _works(HalfLinear)


def mostly_halves(products: Iterable[Linear]) -> bool:
    """Whether most of what a pass reads is kept in half of float32's bytes."""
    found = list(products)
    return 2 * sum(one.read_bytes for one in found if isinstance(one, HalfLinear)) > sum(one.read_bytes for one in found)


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices faster than float32 ones (AMX, AVX512-BF16)."""
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)


def has_int8_products() -> bool:
    """Whether 8-bit weights can be multiplied with few rows on this CPU, faster than wider ones."""
    if not fast_bfloat16():
        return False
    try:
        weight, scale = torch.ones(32, 32, dtype=torch.int8), torch.ones(32, dtype=torch.bfloat16)
        torch._weight_int8pack_mm(torch.ones(1, 32, dtype=torch.bfloat16), weight, scale)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


def int8_maker(wide: Make) -> Make:
    """Return what makes 8-bit products of few rows, and `wide`'s of more."""
    return lambda weight, bias: Int8Linear(weight, bias, wide(weight, bias))


def maker(
    device: torch.device, dtype: torch.dtype, halves: bool, *, timed: bool = True, twice: bool = False
) -> Make:
    """Return what makes the fastest product here for each weight of a model.

    dtype is what is computed in. halves: the weights' numbers are those of float16 or bfloat16, which may be kept so.
    Without `timed` the usual product is taken, so that two loads of one model compute the same bits, whatever
    the number of rows beyond one. twice: there is memory to keep a weight in two layouts where that is faster.
    """
    if device.type != "cpu" or dtype != torch.float32:
        return PlainLinear
    # The usual order of merit for weights that do not fit a cache.
    of_mkl = [TwiceKeptLinear if twice else MklLinear] if timed else []
    kinds: list[Any] = [HalfLinear] if halves and has_half_products() else []
    kinds += [kind for kind in (*of_mkl, PackedLinear) if _works(kind)]
    if timed:
        return _Chooser([*kinds, PlainLinear])
    usual = (kinds or [PlainLinear])[0]
    return lambda weight, bias: _made(usual, weight, bias)


def _made(kind: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """A product of this kind, or torch's own where this weight cannot be kept so."""
    try:
        made: Linear = kind(weight, bias)
    except ValueError:
        made = PlainLinear(weight, bias)
    return made


class _Chooser:
    """Makes the kind of product that is fastest for a weight's shape, found by timing the first of its shape."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        self._kinds = kinds
        self._chosen: dict[tuple[int, ...], Any] = {}

    @torch.no_grad()
    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        shape = tuple(weight.shape)
        if shape not in self._chosen:
            self._chosen[shape] = self._fastest(weight[: max(1, _TIMED_NUMBERS // shape[1])])
        return _made(self._chosen[shape], weight, bias)

    def _fastest(self, weight: torch.Tensor) -> Any:
        if weight.numel() < _TIMED_LEAST:
            return self._kinds[0]
        products = {kind: _made(kind, weight, None) for kind in self._kinds}
        others = torch.ones(_CACHE_NUMBERS)
        seconds = dict.fromkeys(products, 0.0)
        for rows in _TIMED_ROWS:
            x = torch.ones(rows, weight.shape[1])
            least = dict.fromkeys(products, float("inf"))
            for _ in range(_TIMED_TURNS):  # in turns: what a busy machine adds is noise, and falls on all alike
                for kind, product in products.items():
                    others.sum()
                    begin = time.perf_counter()
                    product(x)
                    least[kind] = min(least[kind], time.perf_counter() - begin)
            for kind, took in least.items():
                seconds[kind] += took
        best = min(seconds, key=lambda kind: seconds[kind])
        return best if seconds[best] < _ADVANTAGE * seconds[self._kinds[0]] else self._kinds[0]


def _works(kind: Any) -> bool:
    """Whether this build of torch has the product on this processor."""
    try:
        kind(torch.ones(8, 8), None)(torch.ones(1, 8))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


# -- inside any transformers model -----------------------------------------------------------------------


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
    """Replace the linear layers of a model, where a pass of a few rows spends its time; return their products.

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
