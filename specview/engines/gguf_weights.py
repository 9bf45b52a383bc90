"""Weights of a GGUF file as float32: whole tensors or some of their rows, dequantized by the `gguf` package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specview.engines.gguf_file import GgufFile, TensorInfo
from specview.errors import SpecviewError


class TensorRows:
    """The rows of one tensor, read from the file when asked for; a vector is one row."""

    def __init__(self, gguf: GgufFile, info: TensorInfo) -> None:
        from gguf.constants import GGMLQuantizationType

        self._file = gguf.path.name
        self._kind = GGMLQuantizationType(info.type_id)
        self._shape = info.shape
        self.count = info.shape[0] if len(info.shape) > 1 else 1
        self._raw: Any = np.memmap(
            gguf.path, np.uint8, "r", offset=info.offset, shape=(self.count, info.n_bytes // self.count)
        )

    @property
    def is_half(self) -> bool:
        """Whether it is stored as float16."""
        return self._kind.name == "F16"

    def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Return rows first..last as float32, in the tensor's row-major shape."""
        return self._values(self._raw[first : self.count if last is None else last])

    def take(self, rows: Sequence[int]) -> np.ndarray:
        """Return rows by index as float32. Raises IndexError where there is no such row."""
        return self._values(self._raw[np.asarray(rows, dtype=np.intp)])

    def _values(self, raw: Any) -> np.ndarray:
        from gguf.quants import dequantize

        plain = self._kind.name in ("F32", "F16")
        try:
            values = dequantize(np.ascontiguousarray(raw) if plain else raw, self._kind)
        except NotImplementedError as error:
            raise SpecviewError(
                f"{self._file} holds {self._kind.name} weights, which the gguf package cannot dequantize.",
                "Choose a file with another quantization.",
            ) from error
        shape = (len(raw), *self._shape[1:]) if len(self._shape) > 1 else self._shape
        return np.asarray(values, dtype=np.float32).reshape(shape)


def dequantized(gguf: GgufFile, info: TensorInfo, first: int = 0, last: int | None = None) -> np.ndarray:
    """Return rows first..last of a tensor as float32, in the tensor's row-major shape."""
    return TensorRows(gguf, info).read(first, last)
