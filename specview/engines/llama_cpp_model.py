"""A loaded GGUF model as sessions, modules and probes see it; llama_cpp_engine.py loads it and makes them."""

from __future__ import annotations

from typing import Any, Protocol

from specview.decoding.interfaces import Engine
from specview.engines.gguf_file import TensorInfo


class Contexts:
    """The live contexts of one model, so that all are freed before it."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, context: int | None) -> bool:
        return context in self._live

    def add(self, context: int) -> None:
        """Take charge of a context."""
        self._live.add(context)

    def forget(self, context: int) -> None:
        """Give up the charge of a context that cannot be freed."""
        self._live.discard(context)

    def free(self, context: int) -> None:
        """Free a context unless that was done."""
        if context in self._live:
            self._live.remove(context)
            self._lib.llama_free(context)

    def free_all(self) -> None:
        """Free all that are left."""
        for context in list(self._live):
            self.free(context)


class LlamaCppModel(Engine, Protocol):
    """What a llama.cpp context must know of the model that it is over."""

    contexts: Contexts
    threads: int
    gpu_layers: int
    heads: int
    mtp_modules: int
    tensors: dict[str, TensorInfo]
    stream_nodes: dict[int, bytes]  # of llama.cpp's graph, by feature
    keeps_layer_inputs: bool  # whether its contexts can

    @property
    def model_pointer(self) -> int:
        """The `llama_model *`; raises ValueError when the engine is closed."""
        ...
