"""A GGUF model's two ends, used alone: its embedding and its output head, read from its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specview.engines import memory
from specview.engines.gguf_file import GgufFile, TensorInfo, TensorRows
from specview.engines.output_step import OutputStep, output_step
from specview.errors import SpecviewError

_ROWS_AT_ONCE = 8192
_EMBEDDING, _OUTPUT, _OUTPUT_BIAS = "token_embd.weight", "output.weight", "output.bias"
_SCALES, _CAPS = ("logit_scale",), ("final_logit_softcapping",)

Trial = Callable[[Sequence[int]], tuple[Any, Any, Any]]
"""Runs tokens through the model: logits [n, vocab], what its first layer reads and its last hidden states."""


class ModelEnds:
    """The embedding, row by row, and the head's product over a float32 copy made at first use.

    What else the model does at its ends (a scale of the embedding, a scale or cap of the logits) is found
    from one trial pass.
    """

    def __init__(self, parts: Sequence[GgufFile], trial: Trial) -> None:
        self._parts = parts
        self._trial = trial
        self._rows: TensorRows | None = None
        self._scale = 1.0
        self._product: Callable[[np.ndarray], np.ndarray] | None = None
        self._step = OutputStep()

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        """Embedding rows float32 [n, hidden], as the first layer gets them, positions apart."""
        if self._rows is None:
            rows = self._read(_EMBEDDING)
            trial = _trial_tokens(rows.count)
            self._scale = _scale_of(rows.take(trial), self._trial(trial)[1])
            self._rows = rows
        found = self._rows.take(ids)
        return found if self._scale == 1.0 else found * np.float32(self._scale)

    def project(self, hidden: np.ndarray) -> np.ndarray:
        """Logits float32 [n, vocab] of hidden states [n, hidden] after the final norm."""
        if self._product is None:
            self._make_product()
        assert self._product is not None
        logits: np.ndarray = self._step(self._product(np.ascontiguousarray(hidden, dtype=np.float32)))
        return logits

    def _make_product(self) -> None:
        """Read the head; raises SpecviewError where the model's logits do not follow from it."""
        rows = self._read(_OUTPUT if self._find(_OUTPUT) is not None else _EMBEDDING)
        bias = self._read(_OUTPUT_BIAS).read() if self._find(_OUTPUT_BIAS) is not None else None
        product = self._product_of(rows, bias)
        logits, _, last = self._trial(_trial_tokens(rows.count))
        facts = self._parts[0]
        step = output_step(product(last), logits, _numbers(facts, _SCALES), _numbers(facts, _CAPS))
        if step is None:
            raise SpecviewError(
                f"The logits of {facts.path.name} do not follow from its output weights and last hidden state.",
                "Choose a head with an output matrix of its own, or another method.",
            )
        self._product, self._step = product, step

    def _product_of(self, rows: TensorRows, bias: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
        first = rows.read(0, 1)
        memory.require("The output matrix as float32", 2 * first.nbytes * rows.count)
        weight = np.empty((rows.count, first.shape[1]), dtype=np.float32)
        for start in range(0, rows.count, _ROWS_AT_ONCE):
            weight[start : start + _ROWS_AT_ONCE] = rows.read(start, min(start + _ROWS_AT_ONCE, rows.count))
        try:
            import torch
        except ImportError:
            added = np.float32(0) if bias is None else bias
            return lambda hidden: hidden @ weight.T + added
        from specview.engines.transformers_linear import maker

        # A packed product of a few rows is several times faster than numpy's.
        make = maker(torch.device("cpu"), torch.float32, rows.is_half, timed=False)
        with torch.no_grad():
            linear = make(torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias))

        def product(hidden: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                found: np.ndarray = linear(torch.from_numpy(hidden)).numpy()
                return found

        return product

    def _find(self, name: str) -> tuple[GgufFile, TensorInfo] | None:
        return next(((part, part.tensors[name]) for part in self._parts if name in part.tensors), None)

    def _read(self, name: str) -> TensorRows:
        found = self._find(name)
        if found is None:
            raise SpecviewError(f"{self._parts[0].path.name} has no tensor {name!r}.", "Choose another model.")
        return TensorRows(*found)


def _trial_tokens(vocab: int) -> list[int]:
    """Three tokens well inside the vocabulary: the ends often hold tokens that were never trained."""
    return [vocab // 4, vocab // 3, vocab // 2]


def _scale_of(rows: np.ndarray, read: np.ndarray) -> float:
    """What a model multiplies its embedding by; 1 where what its first layer reads is no multiple of it."""
    wide = rows.astype(np.float64)
    scale = float((wide * read).sum() / max(float((wide * wide).sum()), 1e-30))
    close = 1e-3 * float(np.abs(read).max())
    if float(np.abs(wide * scale - read).max()) > close or abs(scale - 1.0) < 1e-4:
        return 1.0
    return scale


def _numbers(facts: GgufFile, keys: Sequence[str]) -> list[float]:
    values = [facts.hyper(key) for key in keys]
    return [float(value) for value in values if isinstance(value, (int, float))]
