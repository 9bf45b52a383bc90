"""Batch probes: the logits of a pass over several sequences are those of separate sessions, to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from specview.errors import SpecviewError, UsageError
from tests.engines.conftest import Models, array
from tests.engines.transformers_tiny import VOCAB

pytest.importorskip("torch")

CONTEXT, ROWS = 40, 12
TRANSFORMERS = ("llama", "llama-tied", "llama-biased", "qwen2", "qwen3", "mistral-sliding", "gpt2")


@pytest.fixture(scope="module", params=[*TRANSFORMERS, "gguf"])
def engine(request: pytest.FixtureRequest, models: Models) -> Any:
    return models.engine(request.param)


def texts(sequences: int, rows: int, seed: int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, VOCAB, (sequences, rows)).tolist()


@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_a_batch_gives_what_separate_sessions_give(engine: Any, sequences: int) -> None:
    context = texts(1, CONTEXT, 1)[0]
    # Different tokens in each sequence, twice: the second pass sees what the first one wrote in its own cells.
    first, second = texts(sequences, 3, 2), texts(sequences, 9, 3)
    probe = engine.batch_probe(sequences, CONTEXT, ROWS)
    done: list[tuple[int, int]] = []
    probe.fill(context, lambda at, total: done.append((at, total)))
    got = [array(probe.forward(first)), array(probe.forward(second))]
    assert probe.length == CONTEXT + ROWS
    probe.truncate(CONTEXT + 1)  # what was rolled back is not seen again
    again = [row[1:] for row in first]
    got.append(array(probe.forward(again)))
    assert done[-1] == (CONTEXT, CONTEXT)
    probe.close()
    for place in range(sequences):
        session = engine.new_session(CONTEXT + ROWS)
        session.prefill(context)
        expected = [array(session.forward(rows[place]).logits) for rows in (first, second)]
        expected.append(expected[0][1:])
        session.close()
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine[place], theirs, rtol=0, atol=2e-4 * max(1.0, abs(theirs).max()))


def test_wide_passes_take_the_general_way_and_agree(engine: Any) -> None:
    """More rows than a short pass has (32): the other kernels, the same logits."""
    rows = texts(6, ROWS, 5)
    probe = engine.batch_probe(6, CONTEXT, ROWS)
    probe.fill(texts(1, CONTEXT, 1)[0])
    wide = array(probe.forward(rows))
    probe.truncate(CONTEXT)
    short = np.concatenate([array(probe.forward([row[at : at + 2] for row in rows])) for at in range(0, ROWS, 2)], 1)
    probe.close()
    np.testing.assert_allclose(wide, short, rtol=0, atol=2e-4 * max(1.0, abs(short).max()))


def test_a_fill_replaces_what_was_there(engine: Any) -> None:
    probe = engine.batch_probe(2, CONTEXT, ROWS)
    one, other = texts(2, CONTEXT, 7)
    fed = texts(2, 2, 8)
    probe.fill(one)
    before = array(probe.forward(fed)).copy()
    probe.fill(other)
    assert abs(array(probe.forward(fed)) - before).max() > 1e-3
    probe.fill(one)
    np.testing.assert_allclose(array(probe.forward(fed)), before, rtol=0, atol=1e-4 * max(1.0, abs(before).max()))
    probe.close()


def test_it_says_what_it_runs_and_how_much_that_reads(engine: Any) -> None:
    probe = engine.batch_probe(2, CONTEXT, ROWS)
    rate, how = probe.product_rate()
    assert rate > 0 and how and probe.how
    assert 0 < probe.read_bytes <= engine.weight_bytes
    assert 0 < probe.product_weights * 4 <= 1.3 * probe.read_bytes  # float32 throughout, norms and biases apart
    assert probe.read_rate() is None
    assert engine.batch_bytes(4, CONTEXT, ROWS) > engine.batch_bytes(2, CONTEXT, ROWS) > 0
    probe.close()


def test_product_weights_are_those_of_the_shape(models: Models) -> None:
    probe = models.engine("llama").batch_probe(2, 8, 2)
    # hidden 32, inner 48, 4 heads and 2 kv heads of width 8, 2 layers, vocabulary 260
    assert probe.product_weights == 2 * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48) + 32 * VOCAB
    probe.close()


def test_what_does_not_fit_is_refused_in_one_line(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="do not fit the context"):
        engine.batch_probe(2, engine.context_length, 1)
    probe = engine.batch_probe(2, 4, 2)
    probe.fill([1, 2, 3])
    with pytest.raises(ValueError, match="do not fit"):
        probe.forward([[1] * 9, [2] * 9])
    with pytest.raises(ValueError, match="each of 2 sequences"):
        probe.forward([[1]])
    probe.close()
    free = psutil.virtual_memory()._replace(available=1 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(SpecviewError, match="memory"):
        engine.batch_probe(64, 200, 8)


@pytest.mark.parametrize("kind", ["llama", "gguf"])
def test_check_mode_is_not_timed(kind: str, models: Models) -> None:
    with pytest.raises(UsageError, match="check mode"):
        models.engine(kind, True).batch_probe(2, 4, 2)
