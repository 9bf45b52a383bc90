"""What layers read, kept by llama.cpp itself beside the logits: free, for the architectures that have it.

`llama_set_embeddings_layer_inp` (src/llama-ext.h) makes a context keep the rows that enter a layer, without
stops in the middle of the graph. Only some architectures record them, no call tells which, and a context of
another ends the process at its next pass. So it is tried once per model, where that can do no harm.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from specview.engines.llama_cpp_library import ggml, llama

# C++ names, of GCC and Clang and of MSVC: the header is not `extern "C"`.
_SET = (
    "llama_set_embeddings_layer_inp",
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
)
_GET = (
    "llama_get_embeddings_layer_inp",
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
)
_keep: list[Any] = []  # callbacks that a parked thread is in


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """set(context, layer, on) makes a context keep what enters a layer; get(context, layer) is its address.

    Layers count from 0: what enters layer n comes out of n layers. The rows are float32, those of the last
    llama_decode, in its batch's order.
    """

    set: Any
    get: Any


@cache
def layer_inputs() -> LayerInputs | None:
    """Return the calls, or None where this llama.cpp does not have them."""
    library = llama()._lib

    def call(names: tuple[str, ...], result: Any, *arguments: Any) -> Any:
        for name in names:
            function = getattr(library, name, None)
            if function is not None:
                function.restype, function.argtypes = result, arguments
                return function
        return None

    pointer, index = ctypes.c_void_p, ctypes.c_uint32
    setter = call(_SET, None, pointer, index, ctypes.c_bool)
    getter = call(_GET, pointer, pointer, index)
    if setter is None or getter is None or ggml().set_abort_callback is None:
        return None
    return LayerInputs(setter, getter)


def survives(run: Callable[[], object]) -> bool:
    """Run something that llama.cpp may abort the process over; False where it would have.

    It runs in a thread of its own. Before ggml aborts it calls a callback; this one does not return, so the
    thread waits for ever in place of the process's end. What it had in its hands must not be touched again.
    Raises what `run` raises.
    """
    over = threading.Event()
    raised: list[Exception] = []
    stuck = False

    def work() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - raised again below
            raised.append(error)
        over.set()

    def on_abort(message: bytes | None) -> None:
        nonlocal stuck
        if threading.get_ident() != thread.ident:
            sys.stderr.write((message or b"").decode(errors="replace") + "\n")
            return  # another thread's own: ggml goes on to abort
        stuck = True
        over.set()
        threading.Event().wait()

    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(on_abort)
    thread = threading.Thread(target=work, name="llama.cpp trial", daemon=True)
    before = ggml().set_abort_callback(callback)
    try:
        thread.start()
        over.wait()
    finally:
        ggml().set_abort_callback(before)
    if stuck:
        _keep.append(callback)
        return False
    thread.join()
    if raised:
        raise raised[0]
    return True
