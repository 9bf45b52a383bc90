"""Matrix products of few rows on a CPU: every weight in the layouts whose kernels are fastest here.

Which kernel computes y = x W^T fastest depends on the number of rows (FACTS.md): for one row a product
with the weight stored transposed, for several rows oneDNN's product with a packed weight. Which one is
taken for how many rows is measured when a model is loaded, with the model's own weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Kernel = Callable[[torch.Tensor], torch.Tensor]

MEASURED_ROWS = (1, 2, 4, 8, 16)
"""Row counts that are measured; a pass takes the kernel of the smallest one that is not below its own."""
_PREFERRED = 0.85  # another kernel than the usual one must be this much faster: timing is noisy
_ROUNDS = 3


def can_pack() -> bool:
    """Whether torch's oneDNN product with a packed weight is here."""
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class RowLinear:
    """y = x W^T + b for x [n, in] on a CPU, float32; a kernel per number of rows.

    packed: oneDNN's own layout; transposed: [in, out]; plain: [out, in]. Only the layouts given are
    kept in memory.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, packed: bool, transposed: bool, plain: bool = False
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.kernels: dict[str, Kernel] = {}
        if packed:
            # The row count is a hint for the layout: one for a few rows serves all of them.
            self.kernels["packed"] = _packed(torch.ops.mkldnn._reorder_linear_weight(weight, 4), bias)
        if transposed:
            self.kernels["transposed"] = _transposed(weight.t().contiguous(), bias)
        if plain or not self.kernels:
            self.kernels["plain"] = _plain(weight, bias)
        self._by_rows: list[Kernel] = []
        self.choose({})

    def choose(self, fastest: dict[int, str]) -> None:
        """Take the kernel named for each of MEASURED_ROWS; the usual one where none is named."""
        self._by_rows = []
        last = 0
        for rows in MEASURED_ROWS:
            kernel = self.kernels[fastest.get(rows) or self.usual(rows)]
            self._by_rows += [kernel] * (rows - last)
            last = rows
        self._many = self.kernels[self.usual(last + 1)]

    def usual(self, rows: int) -> str:
        """The kernel that is fastest on most machines."""
        order = ("transposed", "packed", "plain") if rows == 1 else ("packed", "plain", "transposed")
        return next(name for name in order if name in self.kernels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b, [n, out]."""
        rows = x.shape[0]
        return (self._by_rows[rows - 1] if rows <= len(self._by_rows) else self._many)(x)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    linear = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: linear(x, weight, bias, "none", [], "")


def _transposed(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    if bias is None:
        return lambda x: torch.mm(x, weight)
    return lambda x: torch.addmm(bias, x, weight)


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    return lambda x: torch.nn.functional.linear(x, weight, bias)


@torch.no_grad()
def measure(groups: Sequence[Sequence[RowLinear]], budget_s: float = 0.6) -> dict[tuple[int, int], dict[int, str]]:
    """Time the kernels of each group of equally shaped products and choose per row count.

    A timing runs through several weights of the group, as a pass does, so that they do not all come
    from the cache. Returns what was chosen by shape (out, in). Stops measuring (and keeps the usual
    kernels) when budget_s is used up: on a busy machine timings say little.
    """
    chosen: dict[tuple[int, int], dict[int, str]] = {}
    end = time.perf_counter() + budget_s
    for group in groups:
        first = group[0]
        fastest: dict[int, str] = {}
        if len(first.kernels) > 1:
            for rows in MEASURED_ROWS:
                if time.perf_counter() > end:
                    break
                fastest[rows] = _fastest(group[:6], rows, end)
        for linear in group:
            linear.choose(fastest)
        chosen[(first.out_features, first.in_features)] = fastest
    return chosen


def _fastest(group: Sequence[RowLinear], rows: int, end: float) -> str:
    x = torch.zeros(rows, group[0].in_features)
    times: dict[str, float] = dict.fromkeys(group[0].kernels, float("inf"))
    for _ in range(_ROUNDS):
        for name in times:
            begin = time.perf_counter()
            for linear in group:
                linear.kernels[name](x)
            times[name] = min(times[name], time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    usual = group[0].usual(rows)
    best = min(times, key=lambda name: times[name])
    return best if times[best] < _PREFERRED * times[usual] else usual


class RowLinearModule(torch.nn.Module):
    """A RowLinear in place of torch.nn.Linear inside a transformers model."""

    def __init__(self, linear: RowLinear, weight: Any) -> None:
        super().__init__()
        self.linear = linear
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b over the last dimension."""
        rows = self.linear(x.reshape(-1, x.shape[-1]))
        return rows.view(*x.shape[:-1], rows.shape[-1])
