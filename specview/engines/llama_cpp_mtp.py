"""Next-token-prediction modules inside a GGUF file, run by llama.cpp: a context of a kind of its own over the model.

llama.cpp computes them where the architecture's file has an MTP graph (GLM-4.5 and others; LLAMA_CONTEXT_TYPE_MTP). Its
calls for them are not in llama.h: llama-cpp-python binds them as experimental (`llama_cpp_ext`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from specview.engines.gguf_file import GgufFile
from specview.engines.llama_cpp_context import Batch, Context, LlamaCppModel
from specview.engines.llama_cpp_features import survives
from specview.engines.llama_cpp_library import ggml, last_error, llama, pointer
from specview.engines.llama_cpp_session import PASS_TOKENS, LlamaCppSession
from specview.errors import SpecviewError

_CLOSE = 1e-2


def modules_in(facts: GgufFile) -> int:
    """How many modules a GGUF file has; 0 where it names some that it does not hold."""
    said = facts.hyper("nextn_predict_layers")
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
        self._width = width = min(PASS_TOKENS, max_length + 1)
        settings: dict[str, Any] = {"ctx_type": lib.LLAMA_CONTEXT_TYPE_MTP}
        if not engine.gpu_layers:
            settings["flash_attn_type"] = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        what = f"a context for {engine.model_name}'s modules"
        self._context = Context(engine, max_length + 1, width, what, **settings)
        self._calls.llama_set_embeddings_nextn(self._context.pointer, True, False)
        self._calls.llama_set_nextn_layer_offset(self._context.pointer, module)
        # A batch has tokens and hidden states both.
        self._batch = Batch(width, np.zeros(1, dtype=np.int32))
        self._states = np.zeros((width, self._hidden), dtype=np.float32)
        self._batch.raw.embd = pointer(self._states, ctypes.c_float)

    def run(self, tokens: Sequence[int], hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Feed tokens after the entries there are, with the states [n, hidden] that they are paired with.

        Returns the outputs [n, hidden], and the logits [vocab] of what follows the last one. Raises
        SpecviewError where llama.cpp fails.
        """
        found, batch = [], self._batch
        for begin in range(0, len(tokens), self._width):
            count = len(tokens[begin : begin + self._width])
            batch.tokens[:count] = tokens[begin : begin + count]
            self._states[:count] = hidden[begin : begin + count]
            at = self.first + self.length
            batch.positions[:count] = np.arange(at, at + count)
            batch.output[:count] = 0
            batch.output[count - 1] = 1
            batch.raw.n_tokens = count
            code = self._lib.llama_decode(self._context.pointer, batch.raw)
            if code != 0:
                raise SpecviewError(f"llama.cpp could not run the target's modules (code {code}): {last_error()}.")
            rows = _rows(self._calls.llama_get_embeddings_nextn(self._context.pointer), count, self._hidden)
            assert rows is not None
            found.append(rows)
            self.length += count
        logits = _rows(self._lib.llama_get_logits_ith(self._context.pointer, -1), 1, self._vocab)
        assert logits is not None
        return np.concatenate(found), logits[0]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` entries."""
        if length < self.length:
            self._context.remove(self.first + length, 0)
            self.length = length

    def close(self) -> None:
        """Free the context."""
        self._context.close()


def _rows(pointer: Any, count: int, width: int) -> np.ndarray | None:
    """A copy of rows [count, width] of floats; None where there are none."""
    return np.array(np.ctypeslib.as_array(pointer, (count, width))) if pointer else None
