"""Hidden states out of llama.cpp: what it keeps itself of what layers read, or nodes of its graph while it is computed.

`llama_set_embeddings_layer_inp` (src/llama-ext.h) makes a context keep the rows that enter a layer beside the logits,
without stops in the middle of the graph. Only some architectures record them, no call tells which, and a context of
another ends the process at its next pass. So it is tried once per model, where that can do no harm (`survives`).

Where it cannot, the evaluation callback finds nodes by name. Every architecture of llama.cpp builds its graph of named nodes; almost all call the residual stream after
layer i `l_out-<i>` (src/models/*.cpp). The scheduler asks the callback about each node before it computes
it, and calls again when a wanted one is done (ggml-backend.h, ggml_backend_sched_eval_callback). A context
takes its callback when it is made, for good.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
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

NO_NODES = "llama.cpp's graph of this architecture does not name what its layers give"


def layer_node(layer: int) -> bytes:
    """The node that holds the stream after `layer` layers, 1 or more."""
    return b"l_out-%d" % (layer - 1)


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a graph: its name and whether it holds one float32 row of `hidden` numbers per token."""

    name: bytes
    is_stream: bool


class GraphWatch:
    """The callback of one context: copies the rows of chosen nodes, or notes all nodes' names.

    Must live as long as the context. It is called in the thread that calls llama_decode.
    """

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden
        self._name = ggml().name
        self._wanted: dict[bytes, Any] = {}
        self._rows = 0
        self._found: dict[bytes, Any] = {}
        self._done: dict[bytes, int] = {}
        self._nodes: list[Node] | None = None
        self.callback = llama().ggml_backend_sched_eval_callback(self._on_node)

    def want(self, outputs: Mapping[bytes, Any], rows: int) -> None:
        """Copy these nodes' rows of the next pass, of `rows` tokens, into float32 arrays.

        An array may have fewer rows than the pass: it gets the first.
        """
        self._found = dict(outputs)
        self._wanted = dict(outputs)
        self._done = dict.fromkeys(outputs, 0)
        self._rows = rows

    def finish(self) -> Sequence[bytes]:
        """End the pass; return the nodes whose rows did not all come."""
        missing = list(self._wanted)
        self._wanted, self._found = {}, {}
        return missing

    def note_nodes(self, run: Callable[[], Any], rows: int) -> list[Node]:
        """List the nodes of what `run` computes, a pass of `rows` tokens."""
        self._nodes, self._rows = [], rows
        try:
            run()
            return self._nodes
        finally:
            self._nodes = None

    def _on_node(self, tensor: int, ask: bool, _data: Any) -> bool:
        if ask:
            if self._wanted:
                return self._name(tensor) in self._wanted
            if self._nodes is not None:
                self._nodes.append(Node(self._name(tensor), self._count(tensor) == self._rows))
            return False
        self._copy(tensor)
        return True

    def _copy(self, tensor: int) -> None:
        name = self._name(tensor)
        count, done, output = self._count(tensor), self._done[name], self._found[name]
        if count and done + count >= self._rows:
            del self._wanted[name]  # asked no more
        kept = min(count, len(output) - done)
        if kept > 0:
            place = output.ctypes.data + 4 * self._hidden * done
            ggml().get(tensor, place, 0, 4 * self._hidden * kept)
        self._done[name] = done + count

    def _count(self, tensor: int) -> int:
        """Rows of `hidden` float32 numbers that a node holds; 0 where it holds others."""
        lib = ggml()
        rows, numbers = lib.rows(tensor), lib.numbers(tensor)
        right = numbers == rows * self._hidden and lib.bytes(tensor) == 4 * numbers
        return rows if right else 0


def stream_nodes(nodes: Sequence[Node], layers: int) -> dict[int, bytes] | None:
    """Find the node of the stream after 0 to `layers` layers; None where one is missing.

    What the first layer reads is the last stream-shaped node before the first node of layer 0; its name
    differs from model to model (embd, inp_scaled, ...).
    """
    streams = {node.name for node in nodes if node.is_stream}
    first = next((at for at, node in enumerate(nodes) if node.name.endswith(b"-0")), 0)
    before = [node.name for node in nodes[:first] if node.is_stream]
    named = {layer: layer_node(layer) for layer in range(1, layers + 1)}
    if not before or not streams.issuperset(named.values()):
        return None
    return {0: before[-1], **named}


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
