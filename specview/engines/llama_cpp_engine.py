"""The llama.cpp engine: a GGUF file through llama-cpp-python's low-level calls."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specview.decoding.interfaces import Tokenizer
from specview.engines import memory
from specview.engines.batch import require_probe
from specview.engines.gguf_file import GgufFile, gguf_facts, split_parts
from specview.engines.llama_cpp_batch import LlamaCppBatch, pass_width
from specview.engines.llama_cpp_context import Contexts
from specview.engines.llama_cpp_ends import ModelEnds
from specview.engines.llama_cpp_features import NO_NODES, layer_inputs, stream_nodes, survives
from specview.engines.llama_cpp_library import device_name, forget_errors, last_error, llama, physical_cores
from specview.engines.llama_cpp_mtp import modules_in
from specview.engines.llama_cpp_session import LlamaCppSession, keeps_scores, pass_tokens, score_bytes
from specview.engines.llama_cpp_tokenizer import LlamaCppTokenizer
from specview.engines.session import require_context
from specview.errors import SpecviewError, Stopped, UsageError, check_stop

__all__ = ["LlamaCppEngine", "gguf_facts", "load"]

_ALIGNMENT = 32  # of tensors in llama.cpp (TENSOR_ALIGNMENT)
_CELL_PADDING = 256  # llama.cpp rounds a context up to this
_KV_BYTES = 2  # per number: keys and values are kept as float16


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    gpu_layers: int = 0,
    context: int | None = None,
    check_mode: bool = False,
    progress: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> LlamaCppEngine:
    """Load a GGUF file.

    threads None takes the physical cores; gpu_layers -1 offloads all layers; context None is the
    length the model was trained on. progress gets fractions 0..1; where should_stop gives True,
    Stopped is raised. Raises SpecviewError where the file is missing, damaged, of an unknown kind or
    too large for the memory at hand, EngineMissing where llama.cpp is not installed.
    """
    facts = gguf_facts(path)
    parts = [facts, *(gguf_facts(part) for part in split_parts(facts)[1:])]
    for part in parts:
        part.require_complete()
    if context is not None and context < 1:
        raise UsageError(f"context is {context}.", "Use 1 or more, or leave it out.")
    if context is not None and facts.context_length and context > facts.context_length:
        raise UsageError(
            f"context is {context}, but {facts.path.name} was trained on {facts.context_length}.",
            f"Use {facts.context_length} or less.",
        )
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}.", "Use 1 or more, or leave it out.")
    check_stop(should_stop)
    lib = llama()
    if gpu_layers and not lib.llama_supports_gpu_offload():
        raise UsageError(
            f"gpu-layers is {gpu_layers}, but this llama.cpp was built without a GPU.",
            "Use 0, or build llama-cpp-python with CMAKE_ARGS=-DGGML_CUDA=on.",
        )
    if not gpu_layers:
        memory.require(facts.path.name, sum(part.size for part in parts))
    model = _load_model(parts, gpu_layers, progress, should_stop)
    return LlamaCppEngine(
        model, facts, parts=parts, threads=threads or physical_cores(), gpu_layers=gpu_layers, context=context,
        check_mode=check_mode
    )


class LlamaCppEngine:
    """A loaded GGUF model (interfaces.Engine); every session is a llama.cpp context of its own."""

    name = "llama.cpp"
    exit_layers = 0
    exit_problem: str | None = (
        "llama.cpp gives logits only at the end of its whole graph and takes no hidden states up in the middle of it. "
        "Use the transformers engine."
    )

    def __init__(
        self,
        model: int,
        facts: GgufFile,
        *,
        parts: Sequence[GgufFile],
        threads: int,
        gpu_layers: int,
        context: int | None,
        check_mode: bool,
    ) -> None:
        lib = llama()
        self.contexts = Contexts(lib)
        self._free = weakref.finalize(self, _free_model, lib, self.contexts, model)
        self._lib = lib
        self._model = model
        self.facts = facts
        self.threads = threads
        self.gpu_layers = gpu_layers
        self.check_mode = check_mode
        self.model_name = facts.path.name.removesuffix(".gguf")
        self.device = device_name(gpu_layers)
        self.dtype = facts.file_type
        self.context_length: int = context or lib.llama_model_n_ctx_train(model)
        self.weight_bytes: int = lib.llama_model_size(model)
        self.hidden_size: int = lib.llama_model_n_embd(model)
        self.layers: int = lib.llama_model_n_layer(model)
        self.mtp_modules = modules_in(facts)
        self.heads: int = lib.llama_model_n_head(model)
        self.stream_nodes: dict[int, bytes] = {}  # of llama.cpp's graph, by feature
        self.keeps_layer_inputs = False  # whether its contexts can
        self._features_problem: str | None = None
        self._features_tried = False
        self.tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        self._ends = ModelEnds(parts, self._trial)
        try:
            self._refuse_other_kinds()
            self.tokenizer: Tokenizer = LlamaCppTokenizer(model, facts)
            self.vocab_size: int = self.tokenizer.vocab_size
            self.eos_ids = self.tokenizer.eos_ids
            self.rollback_problem: str | None = self._rollback_problem()
        except BaseException:
            self.close()
            raise

    @property
    def model_pointer(self) -> int:
        """The `llama_model *`; raises ValueError when the engine is closed."""
        if not self._free.alive:
            raise ValueError("the engine is closed")
        return self._model

    @property
    def features_problem(self) -> str | None:
        """Why sessions give no features, or None; found by trying where it is first asked."""
        if not self._features_tried:
            self._features_tried = True  # the trial itself asks for features
            try:
                self._features_problem = self._try_features()
            except BaseException:
                self._features_tried = False
                raise
        return self._features_problem

    def embed(self, ids: Sequence[int]) -> Any:
        """The embedding's rows of some ids, float32 [n, hidden], as the first layer gets them.

        Read from the file, row by row; what a model adds per position stays outside. Raises SpecviewError
        where their type is unknown or features_problem says why.
        """
        return self._ends.embed(ids)

    def project(self, hidden: Any) -> Any:
        """Float32 logits [n, vocab] of hidden states [n, hidden] after the final norm: the head alone.

        The first call makes a float32 copy of the head, which stays. Raises SpecviewError where the memory
        at hand does not hold it, its type is unknown or features_problem says why.
        """
        return self._ends.project(hidden)

    def new_session(self, max_length: int, branches: int = 1) -> LlamaCppSession:
        """Make a session for up to max_length tokens, with its own KV cache, for trees of up to `branches` leaves.

        Raises SpecviewError where that is longer than the context or than the memory at hand, or where
        llama.cpp has no so many sequences.
        """
        if max_length < 1:
            raise ValueError("a session holds at least one token")
        if branches < 1:
            raise ValueError("a session has at least one branch")
        most = self._lib.llama_max_parallel_sequences()
        if branches > most:
            raise SpecviewError(
                f"A draft tree of {branches:,} leaves is too wide for llama.cpp, which takes {most}.",
                "Draft fewer branches.",
            )
        require_context(self, max_length)
        if not self.gpu_layers:
            scores = pass_tokens(self, max_length) * score_bytes(self, max_length)
            needed = self.kv_bytes(max_length) + (scores if keeps_scores(self, max_length) else 0)
            memory.require(f"A cache for {max_length:,} tokens", needed)
        return LlamaCppSession(self, max_length, branches)

    def batch_probe(self, sequences: int, context: int, rows: int) -> LlamaCppBatch:
        """Make a probe of so many sequences of `context` tokens each and passes of up to `rows` of each.

        Raises SpecviewError, one line, where that does not fit the model's context, llama.cpp or the memory at hand.
        """
        require_probe(self, context + rows)
        most = self._lib.llama_max_parallel_sequences()
        if sequences > most:
            raise SpecviewError(f"{sequences:,} sequences are too many for llama.cpp, which takes {most}.", "Measure fewer.")
        if not self.gpu_layers:
            needed = self.batch_bytes(sequences, context, rows)
            memory.require(f"A cache for {sequences} sequences of {context:,} tokens", needed)
        return LlamaCppBatch(self, sequences, context, rows)

    def batch_bytes(self, sequences: int, context: int, rows: int) -> int:
        """Bytes of KV cache, logits and work buffers of such a probe."""
        width = pass_width(self, sequences, context, rows)
        scores = width * score_bytes(self, context + rows) if keeps_scores(self, context + rows) else 0
        logits = 2 * 4 * sequences * rows * self.vocab_size  # llama.cpp's and our copy
        work = 4 * 12 * width * self.hidden_size
        return sequences * self.kv_bytes(context + rows) + scores + logits + work

    def kv_bytes(self, length: int) -> int:
        """Bytes of KV cache for a sequence of that length, whole blocks of 256 cells."""
        cells = -(-(length + int(self.check_mode)) // _CELL_PADDING) * _CELL_PADDING
        return cells * self._kv_numbers_per_cell * _KV_BYTES

    @property
    def _kv_numbers_per_cell(self) -> int:
        """Numbers kept per token: over all layers, a key and a value per KV head."""
        lib, model, facts = self._lib, self._model, self.facts
        layers: int = lib.llama_model_n_layer(model)
        heads = max(1, lib.llama_model_n_head(model))
        head_size = lib.llama_model_n_embd(model) // heads
        kv_heads = facts.hyper("attention.head_count_kv", lib.llama_model_n_head_kv(model))
        per_layer = list(kv_heads) if isinstance(kv_heads, list) else [kv_heads] * layers
        if (latent := facts.hyper("attention.kv_lora_rank")) is not None:  # MLA keeps one latent vector
            return layers * (int(latent) + int(facts.hyper("rope.dimension_count", 0)))
        key = int(facts.hyper("attention.key_length", head_size))
        value = int(facts.hyper("attention.value_length", head_size))
        return sum(int(count) * (key + value) for count in per_layer[:layers])

    def close(self) -> None:
        """Free all sessions' caches, then the weights."""
        self._free()

    def _refuse_other_kinds(self) -> None:
        lib, model = self._lib, self._model
        if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
            raise SpecviewError(f"{self.model_name} is an encoder model.", "Choose a decoder-only model.")
        if lib.llama_model_is_diffusion(model):
            raise SpecviewError(f"{self.model_name} is a diffusion model.", "Choose an autoregressive model.")
        if self.context_length < 1:
            raise SpecviewError(f"{self.model_name} has a context of no tokens.", "Choose another GGUF file.")

    def _try_features(self) -> str | None:
        if self._lib.llama_model_n_embd_out(self._model) != self.hidden_size:
            return "its last hidden state has another size than its layers"
        tokens = [0, 1, 2][: self.context_length]
        session = LlamaCppSession(self, len(tokens))
        try:
            # The whole graph is listed: what an architecture names is told by it, not by a list of ours.
            nodes = session.watch_graph().note_nodes(lambda: session.forward(tokens), len(tokens))
            found = stream_nodes(nodes, self.layers)
            if found is None:
                return NO_NODES
            self.stream_nodes = found
            session.truncate(0)
            expected = session.forward(tokens, features=(*range(self.layers + 1), "last")).features
        except (SpecviewError, ValueError) as error:
            return f"{NO_NODES} ({error})"
        finally:
            session.close()
        self.keeps_layer_inputs = self._try_layer_inputs(tokens, expected)
        return None

    def _try_layer_inputs(self, tokens: Sequence[int], expected: Mapping[Any, Any]) -> bool:
        """Whether llama.cpp keeps what this model's layers read, and it is what the graph holds there."""
        if layer_inputs() is None:
            return False
        inner = tuple(range(self.layers))
        found: dict[Any, Any] = {}
        session = LlamaCppSession(self, len(tokens))
        self.keeps_layer_inputs = True
        try:
            alive = survives(lambda: found.update(session.forward(tokens, features=inner).features))
        except SpecviewError:
            alive = True
        if not alive:
            session.abandon()
            return False
        session.close()
        return len(found) == self.layers and all(np.array_equal(found[n], expected[n]) for n in inner)

    def _trial(self, tokens: Sequence[int]) -> tuple[Any, Any, Any]:
        """Logits of some tokens, what the first layer reads and the last hidden states."""
        tokens = tokens[: self.context_length]
        session = LlamaCppSession(self, len(tokens))
        try:
            given = session.forward(tokens, features=(0, "last"))
            return given.logits, given.features[0], given.features["last"]
        finally:
            session.close()

    def _rollback_problem(self) -> str | None:
        lib, model = self._lib, self._model
        if lib.llama_model_is_recurrent(model):
            return f"{self.model_name} keeps a recurrent state, which cannot be rolled back after a rejected draft."
        if lib.llama_model_is_hybrid(model):
            return f"{self.model_name} has recurrent layers, whose state cannot be rolled back after a rejected draft."
        # Whatever else this kind of cache does, asking it is surer than a list of architectures.
        session = LlamaCppSession(self, min(8, self.context_length))
        try:
            token = self.tokenizer.bos_id or 0
            if session.max_length >= 3:
                session.forward([token] * 3)
                session.truncate(1)
        except SpecviewError as error:
            if "roll" in error.cause:
                return error.cause
            raise
        finally:
            session.close()
        return None


def _free_model(lib: Any, contexts: Contexts, model: int) -> None:
    contexts.free_all()
    lib.llama_model_free(model)


def _load_model(
    parts: Sequence[GgufFile],
    gpu_layers: int,
    progress: Callable[[float], None] | None,
    should_stop: Callable[[], bool] | None,
) -> int:
    lib, facts = llama(), parts[0]
    stopped = False
    raised: list[BaseException] = []

    def on_progress(fraction: float, _data: Any) -> bool:
        nonlocal stopped
        try:
            if progress is not None:
                progress(min(1.0, max(0.0, fraction)))
            stopped = should_stop is not None and should_stop()
        except BaseException as error:  # noqa: BLE001 - carried over C, raised again below
            raised.append(error)
        return not stopped and not raised

    params = lib.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    params.load_mtp = modules_in(facts) > 0
    if any(tensor.offset % _ALIGNMENT for part in parts for tensor in part.tensors.values()):
        # llama.cpp ends the process over a mapped tensor that does not begin at a multiple of it: it shall copy them.
        if hasattr(lib, "LLAMA_LOAD_MODE_NONE"):
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        else:
            params.use_mmap = False
    callback = lib.llama_progress_callback(on_progress)
    params.progress_callback = callback
    forget_errors()
    model = lib.llama_model_load_from_file(os.fsencode(facts.path), params)
    if raised or stopped:
        if model:
            lib.llama_model_free(model)
        raise raised[0] if raised else Stopped
    if not model:
        raise SpecviewError(f"llama.cpp cannot load {facts.path.name}: {last_error()}.", _load_mend(facts.path))
    return int(model)


def _load_mend(path: Path) -> str:
    reason = last_error()
    if "unknown model architecture" in reason:
        return "Choose another model, or update llama-cpp-python."
    if "alloc" in reason or "memory" in reason:
        return "Choose a smaller file, or free memory."
    return "Choose another GGUF file."
