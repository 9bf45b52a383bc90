"""Hidden states out of llama.cpp's graph while it is computed: its evaluation callback, by node names.

Every architecture of llama.cpp builds its graph of named nodes; almost all call the residual stream after
layer i `l_out-<i>` (src/models/*.cpp). The scheduler asks the callback about each node before it computes
it, and calls again when a wanted one is done (ggml-backend.h, ggml_backend_sched_eval_callback). A context
takes its callback when it is made, for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.engines.llama_cpp_library import ggml, llama

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
