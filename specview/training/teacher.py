"""The target as training sees it: it writes text, gives its hidden states, and labels what others wrote.

Llama-architecture folders run through TargetModel, which keeps a hundred sequences going at once. Every other
model that the transformers engine runs writes by transformers' own `generate`, in batches, and gives its hidden
states through the engine. On another device than the CPU the second way serves all models (untested there).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from specview.engines.transformers_config import resolved_config, rollback_problem
from specview.engines.transformers_engine import find_device
from specview.engines.transformers_linear import fast_bfloat16
from specview.engines.transformers_llama_shape import own_forward_problem
from specview.engines.transformers_weights import read_headers
from specview.errors import SpecviewError, Stopped
from specview.heads.fit import target_of_files
from specview.models.cache import ProgressFn, ShouldStop
from specview.models.catalog import ModelRef, resolve
from specview.models.facts import weights_sha256
from specview.models.loading import load_engine, prepare
from specview.models.model_folder import refuse_links_out
from specview.training.target import TargetModel, computed_shape

LONGEST = 1024  # tokens of a training text, its prompt included
SHORTEST_CONTEXT = 512


@dataclass(frozen=True)
class TargetFiles:
    """A target on disk: its folder in transformers' form, sizes and fingerprint, and how it will run here.

    fast says that TargetModel computes it; llama_like that its last layer is one a head can start from.
    """

    ref: ModelRef
    folder: Path
    config: Mapping[str, Any]
    hidden: int
    layers: int
    vocab: int
    sha256: str
    device: str
    fast: bool
    llama_like: bool

    @property
    def name(self) -> str:
        """The target's name, without the path."""
        return self.ref.name

    @property
    def gguf(self) -> Path | None:
        """The GGUF file that it was dequantized from, if any."""
        path = self.ref.path
        return path if path is not None and path.is_file() else None

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The part of the config that describes the language model."""
        return _text_part(self.config)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def find_target(
    spec: str,
    device: str | None = None,
    progress: ProgressFn | None = None,
    should_stop: ShouldStop | None = None,
) -> TargetFiles:
    """Find a target and what it is, downloading or dequantizing it where that is needed; loads no weights.

    Raises SpecviewError, one line, where there is none, where it has no transformers form, or where it keeps a
    recurrent state; UsageError where there is no such device.
    """
    found = find_device(device)
    place = "cpu" if found.type == "cpu" else str(found)
    ref = resolve(spec, "transformers")
    folder = prepare(ref, "transformers", progress=progress, should_stop=should_stop)
    config = resolved_config(folder)
    refuse_links_out(folder)
    problem = rollback_problem(config)
    if problem is not None:
        raise SpecviewError(f"no drafter can be trained for {ref.name}: {problem}.", "Choose another target.")
    sizes = target_of_files(folder, ref.name)
    if sizes is None:
        raise SpecviewError(
            f"the config.json of {folder} does not say the model's sizes.", "Choose another target."
        )
    context = _text_part(config).get("max_position_embeddings")
    if isinstance(context, int) and context < SHORTEST_CONTEXT:
        raise SpecviewError(
            f"{ref.name} reads {context} tokens, and training texts are up to {SHORTEST_CONTEXT}.",
            "Choose another target.",
        )
    tensors = read_headers(folder)
    llama_like = own_forward_problem(config, tensors) is None
    fast = llama_like and place == "cpu"
    if fast:
        try:
            computed_shape(config)
        except ValueError:
            fast = False
    sha256 = weights_sha256(folder)
    return TargetFiles(
        ref,
        folder,
        config,
        sizes.hidden_size,
        sizes.layers,
        sizes.vocab_size,
        sha256 or "",
        place,
        fast,
        llama_like,
    )


class Teacher(Protocol):
    """A loaded target that labels texts."""

    def features(self, tokens: list[int], layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states after numbers of layers [n, layers, hidden], and the last one, normed, [n, hidden]."""
        ...

    def logits(self, last: Tensor) -> Tensor:
        """Logits [n, vocab] of last hidden states [n, hidden]."""
        ...

    def embedding(self) -> Tensor:
        """The embedding as the first layer gets it, [vocab, hidden], float32."""
        ...

    def output_rows(self, ids: Tensor) -> Tensor:
        """Rows [n, hidden] of the output matrix, float32."""
        ...


class EngineTeacher:
    """Any target that the transformers engine runs."""

    def __init__(
        self,
        target: TargetFiles,
        dtype: str | None = None,
        threads: int | None = None,
        should_stop: ShouldStop | None = None,
    ) -> None:
        """Load it. Raises SpecviewError where it gives no hidden states."""
        self.engine = load_engine(
            target.ref,
            "transformers",
            device=target.device,
            dtype=dtype,
            threads=threads,
            compute_in_dtype=True,  # labels are made of many rows at once
            should_stop=should_stop,
        )
        if self.engine.features_problem:
            problem = self.engine.features_problem
            self.engine.close()
            raise SpecviewError(
                f"{target.name} gives no hidden states to train on: {problem}.", "Choose another target."
            )
        self._vocab = target.vocab

    def features(self, tokens: list[int], layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states after numbers of layers, and the last one (Teacher)."""
        parts: list[Mapping[Any, Any]] = []
        session = self.engine.new_session(len(tokens))
        try:
            session.prefill(
                tokens,
                features=(*layers, "last"),
                on_features=lambda found: parts.append(
                    {key: value.float().cpu() for key, value in found.items()}
                ),
            )
        finally:
            session.close()
        last = torch.cat([part["last"] for part in parts])
        if not layers:
            return last.new_zeros(len(tokens), 0, last.shape[1]), last
        states = torch.stack([torch.cat([part[layer] for part in parts]) for layer in layers], 1)
        return states, last

    def logits(self, last: Tensor) -> Tensor:
        """Logits of last hidden states (Teacher)."""
        return torch.as_tensor(self.engine.project(last)).float().cpu()

    def embedding(self) -> Tensor:
        """The embedding (Teacher)."""
        return torch.as_tensor(self.engine.embed(range(self._vocab))).float().cpu().clone()

    def output_rows(self, ids: Tensor) -> Tensor:
        """Rows of the output matrix, by what it gives for each unit vector (Teacher)."""
        from specview.heads.modules import output_rows

        return output_rows(self.engine, self.engine.hidden_size, ids)


@contextmanager
def open_teacher(
    target: TargetFiles,
    *,
    exact: bool = False,
    threads: int | None = None,
    should_stop: ShouldStop | None = None,
) -> Iterator[Teacher]:
    """Load a target for labelling, and free it at the end.

    Products are in bfloat16 where the processor is made for them, in float32 with `exact`.
    """
    low = not exact and fast_bfloat16()
    teacher: Teacher
    if target.fast:
        teacher = TargetModel(target.folder, LONGEST, torch.bfloat16 if low else torch.float32)
        yield teacher
    else:
        dtype = "bfloat16" if low or target.device != "cpu" else "float32"
        teacher = EngineTeacher(target, dtype, threads, should_stop)
        try:
            yield teacher
        finally:
            teacher.engine.close()
    del teacher
    gc.collect()


class BatchWriter:
    """Writes with transformers' own `generate`: any causal language model, a batch of prompts at a time."""

    def __init__(self, target: TargetFiles, exact: bool = False) -> None:
        """Load the model. Raises SpecviewError where transformers cannot."""
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        low = target.device != "cpu" or (not exact and fast_bfloat16())
        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(target.folder),
                dtype=torch.bfloat16 if low else torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        except (
            Exception
        ) as error:  # transformers raises OSError, ValueError, KeyError, ImportError, ... alike
            line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise SpecviewError(
                f"{target.name} cannot be loaded in transformers ({line}).", "Choose another target."
            ) from error
        self.model = model.eval().requires_grad_(False).to(target.device)
        self._device = target.device

    @torch.inference_mode()
    def write(
        self,
        prompts: Sequence[Sequence[int]],
        limit: int,
        temperature: float,
        seed: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[list[int]]:
        """What the model writes after each prompt: up to its end token, which is kept, or `limit` tokens.

        temperature 0 is greedy. Raises Stopped when asked to.
        """
        from transformers import StoppingCriteriaList

        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1

        def ask(input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            return torch.full((len(input_ids),), stop(), dtype=torch.bool, device=input_ids.device)

        torch.manual_seed(seed)
        how: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if temperature:
            how = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        ends = self.ends()
        out = self.model.generate(
            ids.to(self._device),
            attention_mask=mask.to(self._device),
            max_new_tokens=limit,
            pad_token_id=ends[0] if ends else 0,
            repetition_penalty=1.0,
            stopping_criteria=StoppingCriteriaList([ask]),
            **how,
        )
        if stop():
            raise Stopped
        answers = []
        for row in out[:, longest:].tolist():
            end = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
            answers.append(row[:end])
        return answers

    def labels_per_second(self) -> float:
        """Tokens a second that one pass over a text takes."""
        ids = torch.arange(200)[None] % self.model.get_input_embeddings().weight.shape[0]
        with torch.inference_mode():
            self.model(ids.to(self._device))
            began = time.monotonic()
            self.model(ids.to(self._device))
        return 200 / max(1e-3, time.monotonic() - began)

    def ends(self) -> list[int]:
        """The tokens that end a text."""
        ends = self.model.generation_config.eos_token_id
        if ends is None:
            ends = getattr(self.model.config, "eos_token_id", None)
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
