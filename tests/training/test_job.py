"""Whole training runs on tiny random targets: what comes out of every kind, and what it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.heads.read import read_head
from specview.models.heads import load_head
from specview.models.loading import load_engine
from specview.training import texts
from specview.training.features import FeatureStore, FeatureWriter, Text, bytes_per_token
from specview.training.shards import read_shard
from specview.training.target import TargetModel
from tests.decoding.toy import constant
from tests.training.tiny import (
    GPT_NEOX,
    LLAMA,
    VOCAB,
    make_target,
    run,
    settings,
    weights,
)

pytestmark = pytest.mark.usefixtures("quick")


KINDS = ("eagle3", "p-eagle", "medusa")


def race(
    target: Path, kind: str, folder: Path, prompt: list[int], tokens: int, k: int
) -> tuple[list[int], list[Any]]:
    """Greedy decoding with a trained head by the product's loop; the output and the rounds."""
    engine = load_engine(str(target), "transformers", threads=1)
    try:
        head = load_head(kind, str(folder), engine)
        method = METHODS[kind]
        assert method.make is not None
        session = engine.new_session(len(prompt) + tokens + 2 * k)
        options = {option.name: option.default for option in method.options}
        drafter = method.make(
            DrafterContext(
                options=options,
                max_length=len(prompt) + tokens + 2 * k,
                vocab_size=engine.vocab_size,
                target=engine,
                session=session,
                rule="greedy",
                heads={kind: head},
            )
        )
        sampling = SamplingParams()
        drafter.start(prompt, sampling)
        session.prefill(prompt[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
        sequence = Sequence(list(prompt))
        rounds = list(
            decode(
                session,
                sequence,
                rule="greedy",
                sampling=sampling,
                max_tokens=tokens,
                drafter=drafter,
                policy=constant(k),
                eos_ids=frozenset(),
            )
        )
        return list(sequence.context[len(prompt) :]), rounds
    finally:
        engine.close()


def plain(target: Path, prompt: list[int], tokens: int) -> list[int]:
    engine = load_engine(str(target), "transformers", threads=1)
    session = engine.new_session(len(prompt) + tokens)
    session.prefill(prompt[:-1])
    output = [prompt[-1]]
    for _ in range(tokens):
        output.append(int(session.forward(output[-1:]).logits[-1].argmax()))
    engine.close()
    return output[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_head_drafts_what_its_card_measured(kind: str, tiny_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    done, events = run(settings(tiny_target, out, kind, tokens=200, steps=12))
    assert done and events[-1] == {"event": "done", "folder": str(out)}
    fractions = [event["fraction"] for event in events if event["event"] in ("stage", "step")]
    assert fractions == sorted(fractions) and fractions[0] >= 0 and fractions[-1] <= 1
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < losses[0]
    facts = read_head(out)
    assert (facts.kind, facts.target_name, facts.draft_vocab_size) == (kind, "tiny", 64)
    assert all(
        tensor.dtype == torch.float16 for tensor in weights(out).values() if tensor.is_floating_point()
    )
    card = (out / "README.md").read_text()
    assert "specview train" in card and "Licence:" in card and "first-table" in card
    # The drafter in the product's loop proposes what the teacher-forced measurement said.
    prompt = [1, *range(40, 60), 2, 1]
    tokens, k = 40, 3
    first = plain(tiny_target, prompt, tokens + 1)
    output, rounds = race(tiny_target, kind, out, [*prompt, first[0]], tokens, k)
    assert output == first[1:]  # lossless
    measured = teacher_forced(tiny_target, kind, out, prompt, first, k, tmp_path)
    assert (len(rounds), sum(len(r.emitted) for r in rounds)) == (measured.passes, measured.emitted)
    accepted = sum(r.accepted for r in rounds)
    assert abs(accepted - measured.accepted) <= 1  # the loop drafts no token that it could not emit
    assert measured.judged > 10


def teacher_forced(
    target: Path, kind: str, folder: Path, prompt: list[int], answer: list[int], k: int, place: Path
) -> Any:
    """head_acceptance of an exported head on one answer, its features written by the target."""
    from specview.training.heads import Eagle3Training, MedusaTraining, head_acceptance
    from specview.training.teacher import find_target

    files = find_target(str(target))
    teacher = TargetModel(files.folder)
    engine = load_engine(str(target), "transformers", threads=1)
    head = load_head(kind, str(folder), engine)
    engine.close()
    writer = FeatureWriter(teacher, head.facts.aux_layers, place / "one")
    writer.add(Text([*prompt, *answer], "one", len(answer)))
    writer.flush()
    store = FeatureStore(place / "one")
    module = head.module
    made: Any
    if kind == "medusa":
        made = MedusaTraining(
            module, lambda last: list(module(last)), module.lm_head.weight, module.target_ids
        )
    else:
        made = Eagle3Training(module, teacher.embedding())
    return head_acceptance(made, store, store.sequences, (k,))[k]["all"]


@pytest.mark.parametrize("kind", ["eagle3", "draft"])
def test_a_target_of_another_architecture_is_trained_for_too(kind: str, tmp_path: Path) -> None:
    target = make_target(tmp_path / "neox", GPT_NEOX)
    done, _ = run(settings(target, tmp_path / "out", kind, tokens=100, steps=2))
    assert done
    if kind == "eagle3":
        engine = load_engine(str(target), "transformers", threads=1)
        head = load_head("eagle3", str(tmp_path / "out"), engine)
        assert head.facts.aux_layers == (2, 3, 4)
        engine.close()
    else:
        draft = load_engine(str(tmp_path / "out"), "transformers", threads=1)
        assert draft.vocab_size == VOCAB and draft.tokenizer.encode("ab")
        draft.close()


def test_the_features_of_both_ways_are_the_same(tiny_target: Path) -> None:
    from specview.training.teacher import EngineTeacher, find_target

    files = find_target(str(tiny_target))
    fast, any_model = TargetModel(files.folder), EngineTeacher(files, "float32", 1)
    tokens = [1, *range(30, 70), 2]
    with torch.inference_mode():
        for layers in ((2, 3, 4), ()):
            for a, b in zip(fast.features(tokens, layers), any_model.features(tokens, layers), strict=True):
                torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)
        ids = torch.tensor([3, 50, 111])
        last = fast.features(tokens, ())[1]
        torch.testing.assert_close(fast.output_rows(ids), any_model.output_rows(ids), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(fast.logits(last), any_model.logits(last), atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(fast.embedding(), any_model.embedding())
    any_model.engine.close()


def test_a_head_goes_on_from_another(tiny_target: Path, story: Path, tmp_path: Path) -> None:
    first = settings(tiny_target, tmp_path / "first", text=story)
    assert run(first)[0]
    assert run(
        settings(
            tiny_target, tmp_path / "next", text=story, start=tmp_path / "first", steps=1, draft_vocab=48
        )
    )[0]
    old, new = weights(tmp_path / "first"), weights(tmp_path / "next")
    assert new["lm_head.weight"].shape[0] == 48
    name = "layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(old[name].float(), new[name].float(), atol=5e-3, rtol=0)
    with pytest.raises(SpecviewError, match="holds an EAGLE-3 head"):
        run(settings(tiny_target, tmp_path / "m", "medusa", text=story, start=tmp_path / "first"))
    assert run(
        settings(tiny_target, tmp_path / "p", "p-eagle", text=story, start=tmp_path / "first", steps=1)
    )[0]


def test_held_out_prompts_are_never_trained_on(tiny_target: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(
            json.dumps({"prompt": f"question {number} about {chr(97 + number) * 9}"}) + "\n"
            for number in range(20)
        )
    )
    assert run(settings(tiny_target, tmp_path / "out", prompts=file, tokens=300, work=tmp_path / "w"))[0]
    held = {
        tuple(a.tokens[: len(a.tokens) - a.written].tolist())
        for a in read_shard(tmp_path / "w/heldout/held-out.safetensors")
    }
    asked = {
        tuple(a.tokens[: len(a.tokens) - a.written].tolist())
        for a in texts.texts_of(tmp_path / "w" / "texts")
    }
    assert len(held) == 2 and asked and not held & asked


def test_features_stay_within_the_budget(tiny_target: Path, story: Path, tmp_path: Path) -> None:
    each = bytes_per_token(3, LLAMA["hidden_size"])
    given = settings(
        tiny_target, tmp_path / "out", text=story, work=tmp_path / "w", feature_budget_gb=1200 * each / 1e9
    )
    assert run(given)[0]
    store = FeatureStore(tmp_path / "w" / "features")
    assert 600 < store.tokens <= 1200


def test_the_vocabulary_is_the_most_frequent_and_the_mask_a_spare_id(
    tiny_target: Path, story: Path, tmp_path: Path
) -> None:
    given = settings(
        tiny_target, tmp_path / "out", "p-eagle", text=story, work=tmp_path / "w", draft_vocab=16
    )
    assert run(given)[0]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    seen = {token for text in texts.texts_of(tmp_path / "w" / "texts") for token in text.tokens.tolist()}
    assert config["mask_token_id"] not in seen and config["mask_token_id"] in (0, 1, 3)
    ids = torch.arange(16) + weights(tmp_path / "out")["d2t"]
    assert len(seen & set(ids.tolist())) == min(16, len(seen))
