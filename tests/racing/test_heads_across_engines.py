"""A head drafts the same over a GGUF in llama.cpp as over the same weights in transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specview.decoding.sampling import SamplingParams
from specview.heads.eagle import Eagle3Head, Eagle3Shape
from specview.racing.oracle import member_accepts
from specview.racing.pool import ModelPool
from specview.racing.race import Race
from specview.settings.events import Failed, LaneEnded
from specview.settings.run import LaneSettings, RunSettings
from tests.models.conftest import make_gguf, tokens  # noqa: F401

pytest.importorskip("llama_cpp")
HIDDEN, HEADS, KV_HEADS, WIDTH = 64, 4, 2, 16
VOCAB = len(tokens())
LAYER = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": WIDTH, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "max_position_embeddings": 256,
}  # fmt: skip


def write_head(folder: Path, draft_vocab: int, seed: int) -> Path:
    """A random EAGLE-3 head in the speculators layout that reads the tiny target's layers 0, 1 and 2."""
    torch.manual_seed(seed)
    frequencies = tuple(50000.0 ** (-index / WIDTH) for index in range(0, WIDTH, 2))
    shape = Eagle3Shape(
        hidden=HIDDEN, target_hidden=HIDDEN, intermediate=96, heads=HEADS, kv_heads=KV_HEADS, width=WIDTH, vocab=VOCAB,
        draft_vocab=draft_vocab, eps=1e-5, frequencies=frequencies, aux_layers=(0, 1, 2), fc_norm=True,
    )  # fmt: skip
    head = Eagle3Head(shape)
    with torch.no_grad():
        head.lm_head.weight.mul_(20)  # distributions that are far from flat
    if draft_vocab < VOCAB:
        head.set_target_ids(torch.randperm(VOCAB)[:draft_vocab].sort().values)
    folder.mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in head.state_dict().items()},
        folder / "model.safetensors",
    )
    config: dict[str, Any] = {
        "speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"], "draft_vocab_size": draft_vocab,
        "norm_before_residual": False, "fc_norm": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": LAYER,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelPool]:
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    pool = ModelPool()
    yield pool
    pool.close()


def rounds_of(settings: RunSettings, pool: ModelPool) -> list[list[tuple[Any, ...]]]:
    """What every lane drafted, round by round: ids, parents and verdicts."""
    trouble: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Failed):
            trouble.append(event.message)
        elif isinstance(event, LaneEnded) and event.error:
            trouble.append(event.error)

    race = Race(settings, 1, pool)
    race.run(listen)
    race.close()
    assert not trouble
    return [
        [
            (tuple(token.id for token in r.drafted), r.parents, tuple(token.verdict for token in r.drafted))
            for r in record.rounds
        ]
        for record in race.records
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_vocab", [VOCAB, 90])
def test_both_engines_draft_the_same_in_every_round(
    temperature: float,
    draft_vocab: int,
    make_gguf: Any,  # noqa: F811
    tmp_path: Path,
    pool: ModelPool,
) -> None:
    """Float32 weights in both; the same seed draws the same drafts, so the verdicts agree too."""
    head = str(write_head(tmp_path / "head", draft_vocab, seed=3))
    lanes = (
        LaneSettings("eagle3", name="chain", draft=head, k=3, options={"tree": "chain"}),
        LaneSettings("eagle3", name="tree", draft=head, options={"tree": "dynamic"}),
        LaneSettings("cascade", draft=head, k=3, options={"members": "prompt-lookup+eagle3"}),
    )
    settings = RunSettings(
        target=str(make_gguf()), prompt="hello world 121212", chat=False, max_tokens=40, observe="off",
        sampling=SamplingParams(temperature, seed=5), lanes=lanes, dtype="float32",
    )  # fmt: skip
    ours = rounds_of(settings, pool)
    theirs = rounds_of(replace(settings, engine="llama.cpp", dtype=None), pool)
    for lane, other in zip(ours[1:], theirs[1:], strict=True):
        # llama.cpp keeps keys and values as float16: above temperature 0 a draw, or a tree's ranking, may fall
        # between the two, late.
        same = next(
            (at for at, pair in enumerate(zip(lane, other, strict=False)) if pair[0] != pair[1]), len(lane)
        )
        assert same == len(lane) == len(other) if temperature == 0 else same >= 5
    drafted = [token for lane in ours[1:] for ids, _, _ in lane for token in ids]
    assert len(drafted) > 60
    assert len(set(drafted)) > 5  # more than one loop of tokens was drafted


@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
def test_the_oracle_finds_what_the_head_drafted(
    engine: str,
    make_gguf: Any,  # noqa: F811
    tmp_path: Path,
    pool: ModelPool,
) -> None:
    """Run anew over the finished text, the head accepts in each of its rounds what it accepted in the race."""
    head = str(write_head(tmp_path / "head", VOCAB, seed=3))
    lane = LaneSettings("cascade", draft=head, k=3, options={"members": "prompt-lookup+eagle3", "model_k": 3})
    settings = RunSettings(
        engine=engine, target=str(make_gguf()), prompt="hello world", chat=False, max_tokens=40, observe="off",
        lanes=(lane,), check_mode=True,
    )  # fmt: skip
    race = Race(settings, 1, pool)
    race.run(lambda event: None)
    made = race.lanes[1]
    output = made.record.token_ids
    context = made.drafter_context(len(race.prompt_ids) + len(output) + 4)
    reach = member_accepts(context, "eagle3", race.prompt_ids, output, 3, settings.sampling)
    position, seen = 0, 0
    for round_ in made.record.rounds:
        if round_.drafter == "eagle3":
            assert reach[position] == (round_.k, round_.accepted)
            seen += 1
        position += len(round_.emitted)
    assert seen >= 3
    assert race.oracles[1].seconds <= race.oracles[1].own_seconds * (1 + 1e-9)
    race.close()
