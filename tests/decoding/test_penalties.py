"""Penalties: each row is penalised by the prefix that leads to it, p and q alike, so that every exact rule stays exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import Penalties, SamplingParams, probabilities
from specview.errors import UsageError
from specview.racing.race import Race
from specview.settings.run import LaneSettings, RunSettings
from tests.decoding.statistics import chi_square_p
from tests.decoding.test_trees import TreeDrafter
from tests.decoding.toy import (
    BOS,
    DRAFT,
    LENGTH,
    OUTCOMES,
    TARGET,
    VOCAB,
    FakeEngine,
    TableModel,
    draft_model,
    plain_reference,
    run_decode,
    toy_logits,
)

SOME = {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": -0.3}


def by_hand(row: np.ndarray, prompt: Sequence[int], output: Sequence[int], sampling: SamplingParams) -> np.ndarray:
    """As transformers' RepetitionPenaltyLogitsProcessor and OpenAI's formula have it, token by token."""
    found = np.array(row, dtype=np.float64)
    for token in {*prompt, *output}:
        found[token] *= sampling.repetition_penalty if found[token] < 0 else 1 / sampling.repetition_penalty
    for token, count in Counter(output).items():
        found[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return found


def penalised(model: Any, prompt: Sequence[int], sampling: SamplingParams) -> Any:
    """A model whose rows have the penalties on them."""
    return lambda prefix: by_hand(model(prefix), prefix[: len(prompt)], prefix[len(prompt) :], sampling)


IDS = st.lists(st.integers(0, 7), max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(IDS, IDS, st.lists(IDS, min_size=1, max_size=4), st.sampled_from([0.5, 1.0, 1.7]), st.sampled_from([-1.0, 0.0, 0.9]), st.sampled_from([-0.5, 0.0, 2.0]))
def test_rows_are_penalised_by_what_leads_to_them(prompt, output, paths, repetition, presence, frequency) -> None:
    torch = pytest.importorskip("torch")
    sampling = SamplingParams(repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    logits = np.random.default_rng(3).normal(size=(len(paths), 8)).astype(np.float32)
    logits[0, 2] = -np.inf
    penalties = Penalties(sampling, len(prompt))
    for end in range(len(output) + 1):
        penalties.follow([*prompt, *output[:end]])
    wanted = [by_hand(row, prompt, [*output, *path], sampling) for row, path in zip(logits, paths, strict=True)]
    for given_ in (logits, torch.tensor(logits)):
        before = np.asarray(given_).copy()
        assert np.asarray(penalties.rows(given_, paths)) == pytest.approx(np.array(wanted), rel=1e-5)
        assert np.array_equal(np.asarray(given_), before), "the engine's rows stay as they are"
    mapped = penalties.rows(logits[:, ::-1], paths, {token: 7 - token for token in range(8)})
    assert mapped[:, ::-1] == pytest.approx(np.array(wanted), rel=1e-5)
    penalties.follow(prompt)  # another text begins
    assert penalties.rows(logits[:1], [[]])[0] == pytest.approx(by_hand(logits[0], prompt, [], sampling), rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rule", "temperature"), [("greedy", 0.0), ("match", 0.9)])
@pytest.mark.parametrize("kind", ["plain", "chain", "tree"])
def test_the_loop_writes_what_plain_decoding_of_the_penalised_model_does(seed: int, rule: str, temperature: float, kind: str) -> None:
    sampling = SamplingParams(temperature, seed=seed, **SOME)
    model, prompt, count = TableModel(6, order=2, seed=seed), [1, 2, 3, 1], 20
    target = FakeEngine(model, 6)
    drafters = {
        "plain": None, "chain": draft_model(FakeEngine(TableModel(6, order=2, seed=seed, noise=0.4), 6), 6),
        "tree": TreeDrafter("without-replacement", seed, np.full((6, 6), 1 / 6)),
    }  # fmt: skip
    output, _, _, _ = run_decode(target, prompt, rule=rule, sampling=sampling, max_tokens=count, drafter=drafters[kind], k=3)
    assert output == plain_reference(penalised(model, prompt, sampling), prompt, SamplingParams(temperature, seed=seed), count)


def test_a_draft_that_is_the_target_is_accepted_at_every_position() -> None:
    model = TableModel(6, order=2)
    sampling = SamplingParams(1.0, seed=3, **SOME)
    drafter = draft_model(FakeEngine(model, 6), 6)
    _, rounds, _, _ = run_decode(FakeEngine(model, 6), [1, 2, 3], rule="rejection", sampling=sampling, max_tokens=40, drafter=drafter, k=4)
    assert [round_.accepted for round_ in rounds] == [round_.judged for round_ in rounds] and sum(round_.judged for round_ in rounds) > 20


def test_rejection_stays_exact() -> None:
    """`match` gives plain decoding's tokens, above."""
    sampling = SamplingParams(1.0, **SOME)
    model = penalised(toy_logits(TARGET), [BOS], sampling)
    expected = {}
    for outcome in OUTCOMES:
        p = 1.0
        for place, token in enumerate(outcome):
            p *= float(probabilities(model([BOS, *outcome[:place]]), SamplingParams(1.0))[token])
        expected[outcome] = p
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(2000):
        own = SamplingParams(1.0, seed=seed, **SOME)
        drafter = draft_model(FakeEngine(toy_logits(DRAFT), VOCAB), VOCAB)
        output, _, _, _ = run_decode(FakeEngine(toy_logits(TARGET), VOCAB), [BOS], rule="rejection", sampling=own, max_tokens=LENGTH, drafter=drafter)
        counts[tuple(output)] += 1
    assert chi_square_p(counts, expected) > 1e-4


@pytest.mark.parametrize("lane", [LaneSettings(), LaneSettings("prompt-lookup", k=5), LaneSettings("early-exit", k=2)])
def test_greedy_lanes_are_transformers_own_with_the_same_penalty(tiny_llama: Path, lane: LaneSettings) -> None:
    import torch
    import transformers

    run = RunSettings(target=str(tiny_llama), device="cpu", dtype="float32", threads=1, prompt="abcabcabc", chat=False, check_mode=True,
                      sampling=SamplingParams(repetition_penalty=1.3), max_tokens=40, lanes=(lane,), baseline=False)  # fmt: skip
    race = Race(run)
    race.run(lambda event: None)
    (record,) = race.records
    ids = torch.tensor([list(record.prompt_ids)])
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    wanted = model.generate(ids, do_sample=False, repetition_penalty=1.3, max_new_tokens=40, pad_token_id=0)[0, ids.shape[1] :]
    assert record.token_ids == wanted.tolist()
    race.close()


@pytest.mark.parametrize("values", [{"repetition_penalty": 0.0}, {"repetition_penalty": -1.0}, {"repetition_penalty": 1e300}, {"repetition_penalty": 5e-324}, {"presence_penalty": 2.5}, {"frequency_penalty": float("nan")}])
def test_penalties_out_of_range_are_one_line(values: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="penalty is"):
        SamplingParams(**values)


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("sampling", "lanes"),
    [(SamplingParams(**SOME), [LaneSettings("draft-model", k=3), LaneSettings("eagle3", k=3, options={"tree": "dynamic"})]),
     (SamplingParams(0.8, seed=4, repetition_penalty=1.2), [LaneSettings("eagle3", k=3, rule="match"), LaneSettings("suffix", k=4, rule="match")])],
    ids=["greedy", "match"],
)  # fmt: skip
def test_bundled_lanes_of_every_kind_stay_equal_to_plain(model_pool: Any, sampling: SamplingParams, lanes: list[LaneSettings]) -> None:
    run = RunSettings(prompt="Count from one to ten.", max_tokens=20, threads=1, check_mode=True, sampling=sampling, lanes=(LaneSettings(), *lanes))
    race = Race(run, 1, model_pool)
    race.run(lambda event: None)
    assert not [record.error for record in race.records if record.error]
    assert len({tuple(record.token_ids) for record in race.records}) == 1
