"""Tiny models made once for all tests of the engines, and one thread: two on a busy machine wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.transformers_tiny import save_model, tiny

CONTEXT = [(13 * index + 5) % 256 for index in range(40)]  # longer than the sliding windows (16)


class Models:
    """Folders, files and loaded engines by kind: those of transformers_tiny, and "gguf" in llama.cpp."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path, self.engine, self.reference = cache(self._path), cache(self._engine), cache(self._reference)
        self._open: list[Any] = []

    def _path(self, kind: str) -> Path:
        if kind != "gguf":
            return save_model(self.root / kind, tiny(kind))
        from tests.engines.gguf_tiny import write_gguf

        return write_gguf(self.root / "tiny.gguf", seed=3)

    def _engine(self, kind: str, check_mode: bool = False) -> Any:
        if kind == "gguf":
            pytest.importorskip("llama_cpp")
            from specview.engines.llama_cpp_engine import load
        else:
            from specview.engines.transformers_engine import load  # type: ignore[assignment]
        self._open.append(load(self.path(kind), threads=1, check_mode=check_mode))
        return self._open[-1]

    def _reference(self, kind: str) -> Any:
        """The same weights in transformers, float32."""
        import torch
        from transformers import AutoModelForCausalLM

        path = self.path(kind)
        where = {"pretrained_model_name_or_path": path}
        if kind == "gguf":
            where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
        return AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    def close(self) -> None:
        """Free all engines."""
        for engine in self._open:
            engine.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    made = Models(tmp_path_factory.mktemp("models"))
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    from specview.engines import transformers_engine

    before, own = torch.get_num_threads(), transformers_engine._own_threads
    torch.set_num_threads(1)
    transformers_engine._own_threads = 1
    yield
    transformers_engine._own_threads = own
    torch.set_num_threads(before)


def array(rows: Any) -> np.ndarray:
    """Rows of either engine as numpy."""
    return np.asarray(rows.detach().cpu() if hasattr(rows, "detach") else rows)


def same(engine: Any, got: Any, expected: Any, close: float | None = None) -> None:
    """Assert that rows have the same bits in check mode, and else agree up to rounding.

    llama.cpp's keys and values are float16, and its passes of other widths round otherwise: its logits reach 40.
    """
    got, expected = array(got), array(expected)
    if engine.check_mode and close is None:
        np.testing.assert_array_equal(got, expected)
    elif engine.name == "llama.cpp":
        np.testing.assert_allclose(got, expected, rtol=0, atol=close or 0.15)
    else:
        np.testing.assert_allclose(got, expected, rtol=close or 2e-4, atol=close or 2e-4)


def join(parts: Sequence[Any]) -> np.ndarray:
    """Rows of several passes as one array."""
    return np.concatenate([array(part) for part in parts])


def path_to(parents: Sequence[int], index: int) -> list[int]:
    """Indices from the root to a node of a tree."""
    path: list[int] = []
    while index >= 0:
        path.insert(0, index)
        index = parents[index]
    return path


def leaves(parents: Sequence[int]) -> list[int]:
    """Nodes of a tree without children."""
    return [index for index in range(len(parents)) if index not in parents]


def started(engine: Any, context: Sequence[int] = CONTEXT, room: int = 160, branches: int = 1) -> Any:
    session = engine.new_session(len(context) + room, branches)
    session.prefill(context)
    return session


def greedy(session: Any, prompt: Sequence[int], count: int) -> list[int]:
    session.prefill(prompt[:-1])
    tokens = [prompt[-1]]
    for _ in range(count):
        tokens.append(int(session.forward([tokens[-1]]).logits[-1].argmax()))
    return tokens[1:]


def chain_row(engine: Any, context: Sequence[int], chain: Sequence[int], held: int | None = None) -> Any:
    """The last row of one chain pass in a session that never saw a tree.

    held: tokens of the context that were prefilled; transformers' check mode pads those of passes alone.
    """
    held = len(context) if held is None else held
    session = started(engine, context[:held], len(context) + len(chain))
    row = session.forward([*context[held:], *chain]).logits[-1]
    session.close()
    return row
