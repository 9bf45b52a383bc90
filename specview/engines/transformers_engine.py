"""The transformers engine: any causal language model in a local folder with safetensors weights.

Models of the Llama shape run through our own forward (transformers_llama), all others through
transformers' own (transformers_module); both over a cache whose rollback moves a pointer.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specview.engines import memory
from specview.engines.batch import require_probe
from specview.engines.gguf_file import GgufFile
from specview.engines.openmp import limit_spinning
from specview.engines.session import require_context
from specview.engines.transformers_config import (
    code_error,
    decoder_part,
    first_line,
    load_error,
    resolved_config,
    rollback_problem,
)
from specview.engines.transformers_weights import (
    DTYPE_BYTES,
    StoredTensor,
    read_config,
    read_headers,
    require_sizes,
    stored_dtype,
    stored_matrices,
    weight_bytes,
)
from specview.errors import EngineMissing, SpecviewError, UsageError, check_stop

__all__ = ["TransformersEngine", "load", "weight_bytes"]

Progress = Callable[[float], None]
ShouldStop = Callable[[], bool]

_MARGIN = 300 << 20  # activations and a short KV cache
_UNKNOWN_CONTEXT = 2048
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """How a model's numbers are kept and computed with.

    dtype     what its weights are, or are rounded to
    computed  what is computed in
    rounded   whether weights are rounded to dtype while computed is wider
    halves    whether weights may be kept in half of computed's bytes, for they lose nothing so
    """

    dtype: str
    computed: str
    rounded: bool = False
    halves: bool = False


def _numbers(
    asked: str | None, tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], on_cpu: bool, compute_in_dtype: bool
) -> _Numbers:
    """What a dtype means for these weights here; None is the fastest that holds them as they are stored."""
    from specview.engines.transformers_linear import has_half_products

    if not on_cpu:
        quantized = config.get("quantization_config") is not None  # what is stored then are no weights
        asked = asked or ("bfloat16" if quantized else stored_dtype(tensors.values()))
        return _Numbers(asked, asked)
    asked = asked or "float32"
    if asked == "float32":
        return _Numbers(asked, asked, halves=stored_matrices(tensors) != asked)
    if compute_in_dtype or not has_half_products():
        return _Numbers(asked, asked)
    return _Numbers(asked, "float32", rounded=True, halves=True)


def load(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    check_mode: bool = False,
    trust_remote_code: bool = False,
    gguf: GgufFile | None = None,
    compute_in_dtype: bool = False,
    progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
) -> TransformersEngine:
    """Load a model folder; gguf is the file that it was made from, if it was.

    device None takes the best there is (cuda, mps, cpu). dtype None takes what holds the stored weights as they are:
    on a GPU that of the file; on a CPU sums are in float32, and weights stored as float16 or bfloat16 stay so where
    timing says that it is faster. On a CPU float16 and bfloat16 mean weights of that type, rounded where they are
    stored otherwise, and float32 rows and sums, where this processor has such products; with compute_in_dtype all is
    computed in that type (faster for many rows on some, and less exact).
    progress gets fractions 0..1; where should_stop gives True, Stopped is raised. Raises
    SpecviewError where the folder is no model, is cut short, is of an unknown architecture or larger
    than the memory at hand; UsageError for settings that cannot work here; EngineMissing where torch or
    transformers is not installed.
    """

    def at(fraction: float) -> None:
        if progress is not None:
            progress(fraction)
        check_stop(should_stop)

    path = Path(folder)
    written = read_config(path)
    tensors = read_headers(path)
    require_sizes(path, written, tensors)
    if dtype is not None and dtype not in DTYPE_BYTES:
        raise UsageError(f"dtype is {dtype!r}.", f"Use {', '.join(DTYPE_BYTES)}.")
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}.", "Use 1 or more, or leave it out.")
    needs_code = "AutoModelForCausalLM" in (written.get("auto_map") or {})
    if needs_code and not trust_remote_code and not _is_known(written):
        raise code_error(path.name)
    _require_libraries()
    check_stop(should_stop)
    limit_spinning()

    import torch

    place = find_device(device)
    on_cpu = place.type == "cpu"
    _set_threads(threads)

    from specview.engines import transformers_llama, transformers_llama_shape
    from specview.engines.transformers_tokenizer import load_tokenizer

    config = resolved_config(path, trust_remote_code)
    numbers = _numbers(dtype, tensors, config, on_cpu, compute_in_dtype)
    problem = rollback_problem(config)
    strange = transformers_llama_shape.own_forward_problem(config, tensors)
    own_forward = problem is None and strange is None
    needed, narrow = _needed(path, tensors, config, numbers, own_forward, place)
    memory.require(path.name, needed, place, _MARGIN)
    timed = not (check_mode or narrow)
    twice = _room_for_copies(needed, place)
    at(0.1)
    # Of ends, what is written counts: a class's default is some other model's.
    tokenizer = load_tokenizer(path, written, gguf=gguf, trust_remote_code=trust_remote_code)
    at(0.2)

    runner: Any
    if own_forward:
        runner = transformers_llama.load_llama(
            config,
            tensors,
            place,
            getattr(torch, numbers.computed),
            rounded=getattr(torch, numbers.dtype) if numbers.rounded else None,
            halves=numbers.halves,
            timed=timed,
            check_mode=check_mode,
            twice=twice,
            progress=lambda fraction: at(0.2 + 0.75 * fraction),
        )
    else:
        runner, problem = _load_module(
            path, place, numbers, check_mode, trust_remote_code, problem, strange, timed=timed, twice=twice
        )
    at(1.0)
    kept_halves = on_cpu and dtype is None and runner.keeps_halves
    return TransformersEngine(
        runner,
        tokenizer,
        model_name=path.name,
        config=config,
        dtype=stored_matrices(tensors) if kept_halves else numbers.dtype,
        computed=numbers.computed,
        weight_bytes=runner.weight_bytes or needed,
        check_mode=check_mode,
        problem=problem,
    )


def _needed(
    path: Path,
    tensors: Mapping[str, StoredTensor],
    config: Mapping[str, Any],
    numbers: _Numbers,
    own_forward: bool,
    place: Any,
) -> tuple[int, bool]:
    """Bytes that the weights take, and whether they must be kept in halves: asked for, or for want of memory."""
    wide = weight_bytes(path, numbers.computed)
    if not (own_forward and numbers.halves):  # a module is there in full before its layers are packed
        return wide, numbers.rounded
    narrow = weight_bytes(path, numbers.dtype if numbers.rounded else stored_matrices(tensors))
    if config.get("tie_word_embeddings"):  # looked up in rows, and multiplied packed
        narrow += 2 * tensors["model.embed_tokens.weight"].numel
    if numbers.rounded or wide + _MARGIN > memory.free(place):
        return narrow, True
    return wide, False


class TransformersEngine:
    """A loaded model (interfaces.Engine); sessions share its weights."""

    name = "transformers"

    def __init__(
        self,
        runner: Any,
        tokenizer: Any,
        *,
        model_name: str,
        config: Mapping[str, Any],
        dtype: str,
        computed: str,
        weight_bytes: int,
        check_mode: bool,
        problem: str | None,
    ) -> None:
        self._runner = runner
        tokenizer.declared = replace(tokenizer.declared, weights_note=runner.weights_note)
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.config = config
        self.device = str(runner.device)
        self.threads = _threads_of(runner.device)
        self.dtype = dtype
        self.vocab_size: int = runner.vocab_size
        self.eos_ids: frozenset[int] = tokenizer.eos_ids
        self.weight_bytes = weight_bytes
        self.check_mode = check_mode
        self.rollback_problem = problem
        self.exit_layers: int = runner.exit_layers
        self.exit_problem: str | None = runner.exit_problem
        self.hidden_size: int = runner.hidden_size
        self.layers: int = runner.layers
        self.context_length = _context_length(config)
        if check_mode and not getattr(runner, "free_positions", False):
            # The throw-away rows of a padded pass have positions too.
            from specview.engines.transformers_session import CHECK_ROWS

            self.context_length -= CHECK_ROWS
        self._kv_bytes_per_token = _kv_numbers_per_token(config) * DTYPE_BYTES[computed]

    @property
    def features_problem(self) -> str | None:
        """Why sessions give no features, or None; found by trying where it is first asked."""
        if self.rollback_problem is not None:
            return self.rollback_problem
        problem: str | None = self._open_runner().features_problem
        return problem

    def embed(self, ids: Sequence[int]) -> Any:
        """The embedding's rows of some ids, a tensor [n, hidden], as the first layer gets them.

        What a model adds per position stays outside. Raises SpecviewError where features_problem says why.
        """
        return self._open_runner().embed(ids)

    def project(self, hidden: Any) -> Any:
        """Float32 logits [n, vocab] of hidden states [n, hidden] after the final norm: the head alone.

        Raises SpecviewError where features_problem says why.
        """
        import torch

        return self._open_runner().project(torch.as_tensor(hidden))

    def _open_runner(self) -> Any:
        if self._runner is None:
            raise ValueError("the engine is closed")
        return self._runner

    def new_session(self, max_length: int, branches: int = 1) -> Any:
        """Make a session for up to max_length tokens and draft trees of up to `branches` leaves.

        Raises SpecviewError beyond the model's context length, where the model's cache is no keys and
        values (rollback_problem says what it is), or where it cannot verify trees and branches are asked for.
        """
        from specview.engines.transformers_session import TransformersSession, tree_error

        runner = self._open_runner()
        if self.rollback_problem is not None:
            raise SpecviewError(
                f"{self.model_name} cannot run here: {self.rollback_problem}.", "Choose another model."
            )
        require_context(self, max_length)
        if branches > 1 and not self.check_mode and runner.tree_problem is not None:
            raise tree_error(runner.tree_problem)
        return TransformersSession(runner, max_length, check_mode=self.check_mode)

    def batch_probe(self, sequences: int, context: int, rows: int) -> Any:
        """Make a probe of so many sequences of `context` tokens each and passes of up to `rows` of each.

        Raises SpecviewError, one line, where the model cannot or they do not fit the memory at hand.
        """
        from specview.engines.transformers_batch import TransformersBatch

        runner = self._open_runner()
        require_probe(self, context + rows)
        needed = self.batch_bytes(sequences, context, rows)
        memory.require(f"A cache for {sequences} sequences of {context:,} tokens", needed, runner.device, _MARGIN)
        return TransformersBatch(runner, sequences, context + rows, self.weight_bytes)

    def batch_bytes(self, sequences: int, context: int, rows: int) -> int:
        """Bytes of KV cache, logits and activations of such a probe."""
        first = self.kv_bytes(max(512, context + rows))  # one sequence, which the others copy
        copies = sequences * self.kv_bytes(context + rows) if sequences > 1 else 0
        work = 4 * sequences * rows * (16 * self.hidden_size + context)
        return first + copies + work + 2 * 4 * sequences * rows * self.vocab_size

    def kv_bytes(self, length: int) -> int:
        """Bytes of KV cache for a sequence of that length."""
        return length * self._kv_bytes_per_token

    def close(self) -> None:
        """Free the weights."""
        if self._runner is None:
            return
        on_cuda = self._runner.device.type == "cuda"
        self._runner.close()
        self._runner = None
        if on_cuda:
            import torch

            torch.cuda.empty_cache()


def _load_module(
    path: Path,
    place: Any,
    numbers: _Numbers,
    check_mode: bool,
    trust_remote_code: bool,
    problem: str | None,
    strange: str | None,
    *,
    timed: bool,
    twice: bool,
) -> tuple[Any, str | None]:
    """Load through transformers' own classes; return the runner and why it cannot be rolled back, if so.

    strange says why our own forward does not compute it.
    """

    from specview.engines.transformers_linear import maker, pack_linear_layers
    from specview.engines.transformers_module import ModuleRunner, agree

    model = _from_pretrained(path, place, numbers, trust_remote_code)
    problem = problem or rollback_problem(model.config.to_dict(), type(model))
    runner = ModuleRunner(model, check_mode=check_mode, strange=strange)
    expected = None
    if problem is None:
        try:
            expected = runner.trial()
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it is then refused
            problem = f"its cache cannot be rolled back ({first_line(error)})"
    if expected is None:
        runner.vocab_size = int(getattr(model.config.get_text_config(decoder=True), "vocab_size", 0))
        return runner, problem
    if place.type == "cpu" and numbers.computed == "float32":
        try:
            make = maker(place, model.dtype, numbers.halves, timed=timed, twice=twice)
            runner.take_products(pack_linear_layers(model, make))
            same = agree(runner.trial(), expected)
        except Exception:  # noqa: BLE001 - whatever a model does with its layers, its own serve
            same = False
        if not same:
            del model, runner
            model = _from_pretrained(path, place, numbers, trust_remote_code)
            runner = ModuleRunner(model, check_mode=check_mode, strange=strange)
            runner.trial()
    return runner, problem


def _from_pretrained(path: Path, place: Any, numbers: _Numbers, trust_remote_code: bool) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    # What matters is raised; standard error is for the one line that says it.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=getattr(torch, numbers.dtype),
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
        missing = sorted(loaded.get("missing_keys") or ())
        if missing:  # transformers would run them at random
            more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            raise SpecviewError(
                f"{path.name} lacks the weights {missing[0]!r}{more}: it is incomplete, or no causal language model.",
                "Get all of its files, or choose a text-generation model.",
            )
        model.eval()
        model.requires_grad_(False)
        model.config.return_dict = True  # a file may say otherwise
        if numbers.rounded:
            model.to(getattr(torch, numbers.computed))
        return model.to(place)
    except SpecviewError:
        raise
    except torch.OutOfMemoryError:
        raise SpecviewError(
            f"{path.name} does not fit the memory of {place}.", "Choose a smaller model or device cpu."
        ) from None
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError, ... alike
        raise load_error(path, error) from error


def _is_known(config: Mapping[str, Any]) -> bool:
    """Whether transformers itself has this model type (asked without importing model code)."""
    if importlib.util.find_spec("transformers") is None:
        return True  # the missing library is what is reported
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return config.get("model_type") in CONFIG_MAPPING_NAMES


def _require_libraries() -> None:
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise EngineMissing(
            f"The transformers engine needs {names}.", f"Install: pip install {' '.join(missing)}."
        )


def find_device(name: str | None) -> Any:
    """The torch device of a name; None gives the best there is. Raises UsageError where it is not there."""
    import torch

    mps = torch.backends.mps.is_available()
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        place = torch.device(name)
    except RuntimeError:
        raise UsageError(f"There is no device {name!r}.", "Devices: cpu, cuda, cuda:1, mps.") from None
    if place.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise UsageError("There is no CUDA device here.", "Use device cpu.")
        if (place.index or 0) >= count:
            raise UsageError(f"There is no device {name}; CUDA has {count} here.", "Use cuda or cuda:0.")
    elif place.type == "mps" and not mps:
        raise UsageError("There is no MPS device here.", "Use device cpu.")
    elif place.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"Device {name!r} is not supported.", "Use cpu, cuda or mps.")
    return place


def _threads_of(device: Any) -> int | None:
    """CPU threads that passes run on; None on another device."""
    import torch

    return torch.get_num_threads() if torch.device(device).type == "cpu" else None


_own_threads: int | None = None


def _set_threads(threads: int | None) -> None:
    """Set torch's threads, which are the process's; None gives back what torch had before the first load."""
    global _own_threads
    import torch

    if _own_threads is None:
        _own_threads = torch.get_num_threads()
    torch.set_num_threads(threads or _own_threads)


def _room_for_copies(needed: int, place: Any) -> bool:
    """Whether weights of so many bytes may be kept in two layouts: both together in half of what is free now."""
    return place.type == "cpu" and 4 * needed <= memory.free(place)


def _context_length(config: Mapping[str, Any]) -> int:
    decoder = decoder_part(config)
    for key in _CONTEXT_KEYS:
        value = decoder.get(key)
        if isinstance(value, int) and value > 0:
            return value
    return _UNKNOWN_CONTEXT


def _kv_numbers_per_token(config: Mapping[str, Any]) -> int:
    """Numbers that one token adds to the keys and values of all layers."""
    decoder = decoder_part(config)

    def first(*keys: str) -> int | None:
        values = (decoder.get(key) for key in keys)
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    layers = first("num_hidden_layers", "n_layer", "num_layers") or 0
    heads = first("num_attention_heads", "n_head", "num_heads") or 1
    kv_heads = first("num_key_value_heads", "multi_query_group_num") or heads
    width = first("head_dim") or (first("hidden_size", "n_embd", "d_model") or 0) // heads
    return 2 * layers * kv_heads * width
