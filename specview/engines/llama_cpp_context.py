"""llama.cpp's contexts over one loaded model, and the batches that they decode."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Protocol

import numpy as np

from specview.decoding.interfaces import Engine
from specview.engines.gguf_file import TensorInfo
from specview.engines.llama_cpp_library import forget_errors, last_error, llama, pointer
from specview.errors import SpecviewError

INT32_POINTER = ctypes.POINTER(ctypes.c_int32)


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
    """A loaded GGUF model as contexts, sessions and probes see it; llama_cpp_engine.py loads it."""

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


class Context:
    """A llama.cpp context: keys and values of its own over the model's weights. Freed with the model at the latest.

    pointer is the `llama_context *`, memory its cache; settings are fields of llama_context_params.
    """

    def __init__(self, model: LlamaCppModel, cells: int, width: int, what: str, mend: str = "", **settings: Any) -> None:
        """Raises SpecviewError that says `what` could not be made."""
        self._lib = lib = llama()
        self._model = model
        params = lib.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = width
        params.n_threads = params.n_threads_batch = model.threads
        params.offload_kqv = model.gpu_layers != 0
        params.swa_full = True  # a sliding window's cache keeps every cell, so that rollback finds them
        params.no_perf = True
        for name, value in settings.items():
            setattr(params, name, value)
        forget_errors()
        self.pointer: Any = lib.llama_init_from_model(model.model_pointer, params)
        if not self.pointer:
            raise SpecviewError(f"llama.cpp could not make {what}: {last_error()}.", mend)
        model.contexts.add(self.pointer)
        self._release = weakref.finalize(self, model.contexts.free, self.pointer)
        self.memory = lib.llama_get_memory(self.pointer)

    def require_open(self, what: str) -> None:
        """Raise ValueError where it is freed; what is who it serves."""
        if self.pointer not in self._model.contexts:
            raise ValueError(f"the {what} is closed")

    def remove(self, length: int, sequence: int) -> None:
        """Free the cells from position `length` on, of one sequence or of all (-1)."""
        if not self._lib.llama_memory_seq_rm(self.memory, sequence, length, -1):
            raise SpecviewError(
                f"{self._model.model_name} cannot roll its cache back.", "Use plain decoding or another model."
            )

    def synchronize(self) -> None:
        """Wait for the device."""
        self._lib.llama_synchronize(self.pointer)

    def abandon(self) -> None:
        """Leave it to a thread that will never come out of it: it is not freed."""
        self._release.detach()
        self._model.contexts.forget(self.pointer)
        self.pointer = None

    def close(self) -> None:
        """Free it."""
        self._release()
        self.pointer = None


class Batch:
    """A llama_batch for up to `width` tokens, over arrays that llama.cpp reads in place.

    A token's sequences are `counts` of `ids` from an address in `sequences` on: each has the first one alone until that is
    changed. output says whose logits are wanted. raw is llama.cpp's struct.
    """

    def __init__(self, width: int, ids: np.ndarray) -> None:
        self.ids = ids
        self.tokens = np.zeros(width, dtype=np.int32)
        self.positions = np.zeros(width, dtype=np.int32)
        self.counts = np.ones(width, dtype=np.int32)
        self.sequences = np.full(width, ids.ctypes.data, dtype=np.uintp)
        self.output = np.zeros(width, dtype=np.int8)
        self.raw = llama().llama_batch()
        self.raw.token = pointer(self.tokens, ctypes.c_int32)
        self.raw.pos = pointer(self.positions, ctypes.c_int32)
        self.raw.n_seq_id = pointer(self.counts, ctypes.c_int32)
        self.raw.seq_id = ctypes.cast(self.sequences.ctypes.data, ctypes.POINTER(INT32_POINTER))
        self.raw.logits = pointer(self.output, ctypes.c_int8)

    def addresses(self, first: Any) -> np.ndarray:
        """Addresses of ids by their places."""
        return self.ids.ctypes.data + self.ids.itemsize * np.asarray(first, dtype=np.uintp)


def pass_error(tokens: int, code: int, mend: str) -> SpecviewError:
    """A pass of so many tokens that llama_decode refused."""
    return SpecviewError(f"llama.cpp could not run a pass of {tokens} tokens (code {code}): {last_error()}.", mend)
