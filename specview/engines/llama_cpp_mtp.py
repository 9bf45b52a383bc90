"""Next-token-prediction modules inside a GGUF file, run by llama.cpp: a context of a kind of its own over the model.

llama.cpp computes them where the architecture's file has an MTP graph (GLM-4.5 and others; LLAMA_CONTEXT_TYPE_MTP). Its
calls for them are not in llama.h: llama-cpp-python binds them as experimental (`llama_cpp_ext`).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from specview.engines.gguf_file import GgufFacts
from specview.engines.llama_cpp_layer_inputs import survives
from specview.engines.llama_cpp_library import forget_errors, ggml, last_error, llama, pointer
from specview.engines.llama_cpp_model import LlamaCppModel
from specview.engines.llama_cpp_session import LlamaCppSession
from specview.errors import SpecviewError

PASS_TOKENS = 256
_CLOSE = 1e-2


def modules_in(facts: GgufFacts) -> int:
    """How many modules a GGUF file has; 0 where it names some that it does not hold."""
    said = facts.hparam("nextn_predict_layers")
    if not isinstance(said, int) or said < 1:
        return 0
    there = sum(name.endswith(".nextn.eh_proj.weight") for name in facts.tensors)
    return said if there == said or "split.count" in facts.metadata else 0


def _calls() -> Any:
    """llama-cpp-python's experimental calls; None where this version, or its library, has none."""
    try:
        from llama_cpp import llama_cpp_ext
    except (ImportError, AttributeError):
        return None
    return llama_cpp_ext if hasattr(llama_cpp_ext, "llama_set_nextn_layer_offset") else None


def mtp_problem(engine: LlamaCppModel) -> str | None:
    """Say why llama.cpp cannot draft with this model's modules, or None; found by trying."""
    if not engine.mtp_modules:
        return "its file has no next-token-prediction modules"
    calls = _calls()
    if calls is None or not hasattr(llama(), "LLAMA_CONTEXT_TYPE_MTP"):
        return "this llama-cpp-python has no calls for them"
    tokens = [0, 1, 2]
    session = LlamaCppSession(engine, len(tokens))
    try:
        # The modules must read the state that sessions give as "last": some architectures' read another one.
        calls.llama_set_embeddings_nextn(session.context_pointer, True, False)
        last = session.forward(tokens, features=("last",)).features["last"]
        theirs = _rows(calls.llama_get_embeddings_nextn(session.context_pointer), len(tokens), engine.hidden_size)
    finally:
        session.close()
    if theirs is None or np.abs(theirs - last).max() > _CLOSE * np.abs(last).max():
        return "they read another hidden state than the one after the final norm"
    if ggml().set_abort_callback is None:
        return "this llama.cpp ends the process over modules that it does not run, so they are not tried"

    def trial() -> None:
        for module in range(engine.mtp_modules):
            context = MtpContext(engine, module, 8)
            context.run(tokens, last)
            context.close()

    try:
        alive = survives(trial)
    except SpecviewError:
        alive = False
    return None if alive else "llama.cpp does not run those of this model"


class MtpContext:
    """One module's keys and values for one sequence, in a llama.cpp context of its own.

    first is the position of its first entry, length the number of entries.
    """

    def __init__(self, engine: LlamaCppModel, module: int, max_length: int) -> None:
        self.first = module + 1
        self.length = 0
        self._lib = lib = llama()
        self._calls = _calls()
        self._hidden, self._vocab = engine.hidden_size, engine.vocab_size
        params = lib.llama_context_default_params()
        params.n_ctx = max_length + 1
        params.n_batch = params.n_ubatch = min(PASS_TOKENS, max_length + 1)
        params.n_threads = params.n_threads_batch = engine.threads
        params.offload_kqv = engine.gpu_layers != 0
        params.swa_full = True
        params.no_perf = True
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        if not engine.gpu_layers:
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        forget_errors()
        context = lib.llama_init_from_model(engine.model_pointer, params)
        if not context:
            raise SpecviewError(f"llama.cpp could not make a context for {engine.model_name}'s modules: {last_error()}.")
        self._context = context
        engine.contexts.add(context)
        self._release = weakref.finalize(self, engine.contexts.free, context)
        self._memory = lib.llama_get_memory(context)
        self._width = int(params.n_batch)
        self._calls.llama_set_embeddings_nextn(context, True, False)
        self._calls.llama_set_nextn_layer_offset(context, module)
        # A batch has tokens and hidden states both.
        self._tokens = np.zeros(self._width, dtype=np.int32)
        self._states = np.zeros((self._width, self._hidden), dtype=np.float32)
        self._positions = np.zeros(self._width, dtype=np.int32)
        self._counts = np.ones(self._width, dtype=np.int32)
        self._sequence = np.zeros(1, dtype=np.int32)
        self._sequences = np.full(self._width, self._sequence.ctypes.data, dtype=np.uintp)
        self._output = np.zeros(self._width, dtype=np.int8)
        self._batch = batch = lib.llama_batch()
        batch.token = pointer(self._tokens, ctypes.c_int32)
        batch.embd = pointer(self._states, ctypes.c_float)
        batch.pos = pointer(self._positions, ctypes.c_int32)
        batch.n_seq_id = pointer(self._counts, ctypes.c_int32)
        batch.seq_id = ctypes.cast(self._sequences.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        batch.logits = pointer(self._output, ctypes.c_int8)

    def run(self, tokens: Sequence[int], hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Feed tokens after the entries there are, with the states [n, hidden] that they are paired with.

        Returns the outputs [n, hidden], and the logits [vocab] of what follows the last one. Raises
        SpecviewError where llama.cpp fails.
        """
        found = []
        for begin in range(0, len(tokens), self._width):
            count = len(tokens[begin : begin + self._width])
            self._tokens[:count] = tokens[begin : begin + count]
            self._states[:count] = hidden[begin : begin + count]
            at = self.first + self.length
            self._positions[:count] = np.arange(at, at + count)
            self._output[:count] = 0
            self._output[count - 1] = 1
            self._batch.n_tokens = count
            code = self._lib.llama_decode(self._context, self._batch)
            if code != 0:
                raise SpecviewError(f"llama.cpp could not run the target's modules (code {code}): {last_error()}.")
            rows = _rows(self._calls.llama_get_embeddings_nextn(self._context), count, self._hidden)
            assert rows is not None
            found.append(rows)
            self.length += count
        logits = _rows(self._lib.llama_get_logits_ith(self._context, -1), 1, self._vocab)
        assert logits is not None
        return np.concatenate(found), logits[0]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` entries."""
        if length < self.length:
            if not self._lib.llama_memory_seq_rm(self._memory, 0, self.first + length, -1):
                raise SpecviewError("llama.cpp cannot roll the cache of the target's modules back.")
            self.length = length

    def close(self) -> None:
        """Free the context."""
        self._release()


def _rows(pointer: Any, count: int, width: int) -> np.ndarray | None:
    """A copy of rows [count, width] of floats; None where there are none."""
    return np.array(np.ctypeslib.as_array(pointer, (count, width))) if pointer else None
