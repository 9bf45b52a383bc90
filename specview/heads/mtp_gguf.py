"""The modules inside a GGUF target, which llama.cpp runs: MtpRun over its contexts, and what stands for a head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specview.engines.llama_cpp_mtp import MtpContext, mtp_problem
from specview.errors import SpecviewError
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.mtp import MtpRun, MtpShape

if TYPE_CHECKING:
    from specview.engines.llama_cpp_engine import LlamaCppEngine


class GgufModules:
    """The modules of a llama.cpp engine's model."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        self.shape = MtpShape(engine.hidden_size, engine.mtp_modules, "deepseek")
        self._engine = engine

    def new_run(self, head: LoadedHead, max_length: int) -> GgufMtpRun:
        """A sequence of up to max_length tokens."""
        contexts: list[MtpContext] = []
        try:
            for index in range(self.shape.modules):
                contexts.append(MtpContext(self._engine, index, max_length))
        except BaseException:
            for context in contexts:
                context.close()
            raise
        return GgufMtpRun(head, contexts)


class GgufMtpRun(MtpRun):
    """A run whose modules, embedding and output are llama.cpp's."""

    def __init__(self, head: LoadedHead, contexts: Sequence[MtpContext]) -> None:
        super().__init__(head, contexts)
        self._logits = torch.empty(0)

    def _run(self, index: int, tokens: Sequence[int], hidden: Tensor) -> Tensor:
        z, logits = self._caches[index].run(tokens, hidden.numpy())
        self._logits = torch.from_numpy(logits)[None]
        return torch.from_numpy(z)

    def _outputs(self, z: Tensor) -> Tensor:
        return self._logits

    def close(self) -> None:
        """Free the contexts."""
        for context in self._caches:
            context.close()


class GgufHead(LoadedHead):
    """Stands for the head that a GGUF target brings along; its weights are the target's own."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        facts = HeadFacts(
            "mtp",
            "MTP in the target's GGUF file",
            Path(engine.model_name),
            engine.hidden_size,
            engine.vocab_size,
            engine.vocab_size,
            target_name=engine.model_name,
            most_tokens=engine.mtp_modules,
        )
        self.facts = facts
        self.module: Any = GgufModules(engine)
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.vocab_size = engine.vocab_size
        self._target = engine

    @property
    def weight_bytes(self) -> int:
        """None of its own: they are counted with the target's."""
        return 0


def gguf_head(engine: Any) -> GgufHead:
    """The modules of a loaded GGUF target. Raises SpecviewError, one line, where llama.cpp cannot draft with them."""
    problem = mtp_problem(engine)
    if problem is not None:
        raise SpecviewError(
            f"mtp cannot draft for {engine.model_name}: {problem}.",
            "Choose another method, or name a checkpoint with its modules (draft=FOLDER).",
        )
    return GgufHead(engine)
