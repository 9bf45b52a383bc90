"""Whole training runs on tiny random targets: every kind, stopped anywhere and taken up again, and what comes out."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.registry import METHODS, DrafterContext
from specview.errors import SpecviewError
from specview.heads.layouts import read_head
from specview.models.heads import load_head
from specview.models.loading import load_engine
from specview.training import features, job, texts
from specview.training.asked import TrainSettings
from specview.training.features import FeatureStore, FeatureWriter, Text, bytes_per_token
from specview.training.job import TrainJob
from specview.training.shards import read_shard
from tests.decoding.toy import constant
from tests.training.tiny import GPT_NEOX, LLAMA, VOCAB, make_target, quicken

KINDS = ("eagle3", "p-eagle", "medusa")
STORY = "the cat sat on the mat and looked at the moon. " * 60
STEPS = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with untied output."""
    return make_target(tmp_path_factory.mktemp("llama") / "tiny")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, little built-in text, one thread."""
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    quicken(monkeypatch)
    return tmp_path / "cache"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """A text of the user's."""
    file = tmp_path / "story.txt"
    file.write_text(STORY)
    return file


def settings(target: Path, out: Path, kind: str = "eagle3", **more: Any) -> TrainSettings:
    """A run of a few steps."""
    given: dict[str, Any] = {"steps": STEPS, "answer_tokens": 12, "threads": 1, "draft_vocab": 64} | more
    if kind == "draft":
        given["draft_vocab"] = None
    return TrainSettings(kind=kind, out=out, target=str(target), **given)


def run(given: TrainSettings, stop: Any = lambda: False) -> tuple[bool, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return TrainJob(given).run(events.append, stop), events


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(a: Path, b: Path) -> bool:
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# -- what comes out --------------------------------------------------------------------------------


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
def test_a_trained_head_drafts_what_its_card_measured(kind: str, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    done, events = run(settings(target, out, kind, tokens=400, steps=30))
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
    tokens, k = 60, 3
    first = plain(target, prompt, tokens + 1)
    output, rounds = race(target, kind, out, [*prompt, first[0]], tokens, k)
    assert output == first[1:]  # lossless
    measured = teacher_forced(target, kind, out, prompt, first, k, tmp_path)
    assert (len(rounds), sum(len(r.emitted) for r in rounds)) == (measured.passes, measured.emitted)
    accepted = sum(r.accepted for r in rounds)
    assert abs(accepted - measured.accepted) <= 1  # the loop drafts no token that it could not emit
    assert measured.judged > 20


def teacher_forced(
    target: Path, kind: str, folder: Path, prompt: list[int], answer: list[int], k: int, place: Path
) -> Any:
    """head_acceptance of an exported head on one answer, its features written by the target."""
    from specview.training.heads import Eagle3Training, MedusaTraining, head_acceptance
    from specview.training.teacher import LlamaTeacher, find_target

    files = find_target(str(target))
    teacher = LlamaTeacher(files)
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


def test_the_features_of_both_ways_are_the_same(target: Path) -> None:
    from specview.training.teacher import EngineTeacher, LlamaTeacher, find_target

    files = find_target(str(target))
    fast, any_model = LlamaTeacher(files), EngineTeacher(files, "float32", 1)
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


# -- stopped and taken up again --------------------------------------------------------------------


class StopAt:
    """Asks to stop once an event of a kind was seen some number of times."""

    def __init__(self, stage: str, after: int = 1) -> None:
        self.events: list[dict[str, Any]] = []
        self._stage, self._after = stage, after

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def asked(self) -> bool:
        return sum(self._stage in (e.get("stage"), e["event"]) for e in self.events) >= self._after


EVERYWHERE = [
    ("check", 1),
    ("answers", 1),
    ("text", 1),
    ("labels", 1),
    ("training", 1),
    ("step", 1),
    ("step", 2),
    ("export", 1),
]


@pytest.mark.parametrize(
    ("kind", "stops"),
    [("eagle3", EVERYWHERE), ("draft", EVERYWHERE), ("p-eagle", [("step", 2)]), ("medusa", [("step", 2)])],
    ids=["eagle3", "draft", "p-eagle", "medusa"],
)
def test_a_run_stopped_at_every_stage_ends_as_one_that_was_not(
    kind: str,
    stops: list[tuple[str, int]],
    target: Path,
    story: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "REPORT_EVERY", 1)
    whole = settings(target, tmp_path / "whole", kind, text=story, work=tmp_path / "w1")
    assert run(whole)[0]
    stopped = settings(target, tmp_path / "stopped", kind, text=story, work=tmp_path / "w2")
    ended = 0
    for stage, after in stops:
        seen = StopAt(stage, after)
        if TrainJob(stopped).run(seen, seen.asked):
            ended += 1
        else:
            assert seen.events[-1]["event"] == "stopped" and not (tmp_path / "stopped").exists()
    assert ended <= 1  # the last stop may come when all is done
    assert TrainJob(stopped).run()
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    state = load_file(tmp_path / "w1" / "state.safetensors"), load_file(tmp_path / "w2" / "state.safetensors")
    assert all(torch.equal(state[0][name], state[1][name]) for name in state[0])


@pytest.mark.parametrize("config", [LLAMA, GPT_NEOX], ids=["llama", "gpt_neox"])
def test_text_goes_on_after_a_stop(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "BATCH", 4)
    target = make_target(tmp_path / "tiny", config)
    given = settings(target, tmp_path / "out", work=tmp_path / "w", tokens=300)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        there = list((tmp_path / "w" / "texts").glob("*"))
        calls += bool((tmp_path / "w" / "texts").exists())
        return bool(there) or calls > 40

    assert not run(given, stop)[0]
    before = [text.tokens.tolist() for text in texts.texts_of(tmp_path / "w" / "texts")]
    assert run(given)[0]
    after = [text.tokens.tolist() for text in texts.texts_of(tmp_path / "w" / "texts")]
    assert after[: len(before)] == before and len(after) > len(before)
    assert sum(text.written for text in texts.texts_of(tmp_path / "w" / "texts")) >= 300


def test_a_finished_run_only_exports_again(target: Path, story: Path, tmp_path: Path) -> None:
    given = settings(target, tmp_path / "out", text=story)
    assert run(given)[0]
    before = weights(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    done, events = run(given)
    assert done and not any(event["event"] == "step" for event in events)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(tmp_path / "out").items())


def test_a_head_goes_on_from_another(target: Path, story: Path, tmp_path: Path) -> None:
    first = settings(target, tmp_path / "first", text=story)
    assert run(first)[0]
    assert run(
        settings(target, tmp_path / "next", text=story, start=tmp_path / "first", steps=1, draft_vocab=48)
    )[0]
    old, new = weights(tmp_path / "first"), weights(tmp_path / "next")
    assert new["lm_head.weight"].shape[0] == 48
    name = "layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(old[name].float(), new[name].float(), atol=5e-3, rtol=0)
    with pytest.raises(SpecviewError, match="holds an EAGLE-3 head"):
        run(settings(target, tmp_path / "m", "medusa", text=story, start=tmp_path / "first"))
    assert run(settings(target, tmp_path / "p", "p-eagle", text=story, start=tmp_path / "first", steps=1))[0]


# -- data ------------------------------------------------------------------------------------------


def test_held_out_prompts_are_never_trained_on(target: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(
            json.dumps({"prompt": f"question {number} about {chr(97 + number) * 9}"}) + "\n"
            for number in range(20)
        )
    )
    assert run(settings(target, tmp_path / "out", prompts=file, tokens=300, work=tmp_path / "w"))[0]
    held = {
        tuple(a.tokens[: len(a.tokens) - a.written].tolist())
        for a in read_shard(tmp_path / "w/heldout/held-out.safetensors")
    }
    asked = {
        tuple(a.tokens[: len(a.tokens) - a.written].tolist())
        for a in texts.texts_of(tmp_path / "w" / "texts")
    }
    assert len(held) == 2 and asked and not held & asked


def test_features_stay_within_the_budget(target: Path, story: Path, tmp_path: Path) -> None:
    each = bytes_per_token(3, LLAMA["hidden_size"])
    given = settings(
        target, tmp_path / "out", text=story, work=tmp_path / "w", feature_budget_gb=1200 * each / 1e9
    )
    assert run(given)[0]
    store = FeatureStore(tmp_path / "w" / "features")
    assert 600 < store.tokens <= 1200


def test_the_vocabulary_is_the_most_frequent_and_the_mask_a_spare_id(
    target: Path, story: Path, tmp_path: Path
) -> None:
    given = settings(target, tmp_path / "out", "p-eagle", text=story, work=tmp_path / "w", draft_vocab=16)
    assert run(given)[0]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    seen = {token for text in texts.texts_of(tmp_path / "w" / "texts") for token in text.tokens.tolist()}
    assert config["mask_token_id"] not in seen and config["mask_token_id"] in (0, 1, 3)
    ids = torch.arange(16) + weights(tmp_path / "out")["d2t"]
    assert len(seen & set(ids.tolist())) == min(16, len(seen))


# -- bad input: one line, before minutes are spent -------------------------------------------------


def refusal(given: TrainSettings) -> str:
    with pytest.raises(SpecviewError) as caught:
        run(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_targets_that_cannot_be_trained_for(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "there is no file or folder" in refusal(settings(tmp_path / "none", out))
    shallow = make_target(tmp_path / "shallow", {**LLAMA, "num_hidden_layers": 3})
    assert "has 3 layers" in refusal(settings(shallow, out))
    assert "has 7" in refusal(settings(target, out, layers=(2, 3, 9)))
    recurrent = tmp_path / "recurrent"
    shutil.copytree(target, recurrent)
    (recurrent / "config.json").write_text(
        json.dumps({**json.loads((target / "config.json").read_text()), "model_type": "mamba"})
    )
    assert "recurrent" in refusal(settings(recurrent, out))
    short = make_target(tmp_path / "short", {**LLAMA, "max_position_embeddings": 128})
    assert "128 tokens" in refusal(settings(short, out))
    assert not out.exists()


def test_a_shallow_target_has_medusa_heads(tmp_path: Path, story: Path) -> None:
    shallow = make_target(tmp_path / "shallow", {**LLAMA, "num_hidden_layers": 3})
    assert run(settings(shallow, tmp_path / "out", "medusa", text=story))[0]


def test_files_that_are_no_training_text(target: Path, tmp_path: Path) -> None:
    def file(content: bytes, name: str = "file.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    out = tmp_path / "out"
    assert "no file" in refusal(settings(target, out, text=tmp_path / "none.txt"))
    assert "0 tokens" in refusal(settings(target, out, text=file(b"")))
    assert "5 tokens" in refusal(settings(target, out, text=file(b"short")))
    assert "UTF-8" in refusal(settings(target, out, text=file(b"\xff\xfe" * 900)))
    assert "0 prompts" in refusal(settings(target, out, prompts=file(b"\n\n")))
    assert "line 2" in refusal(
        settings(target, out, prompts=file(b'{"prompt": "a"}\n{"other": 1}\n', "p.jsonl"))
    )
    assert "line 1" in refusal(settings(target, out, prompts=file(b"no json\n", "p.jsonl")))
    assert "9 prompts" in refusal(
        settings(target, out, prompts=file(b"".join(b"%d\n" % n for n in range(9))))
    )


def test_folders_that_cannot_take_the_result(target: Path, story: Path, tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    busy.mkdir()
    (busy / "thesis.tex").write_text("")
    assert "thesis.tex" in refusal(settings(target, busy, text=story))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "medusa"}')
    assert "another drafter" in refusal(settings(target, other, text=story))
    assert "is a file" in refusal(settings(target, story, text=story))
    assert "cannot be written" in refusal(settings(target, story / "below", text=story))


def test_a_work_folder_of_other_settings_is_refused(target: Path, story: Path, tmp_path: Path) -> None:
    assert run(settings(target, tmp_path / "out", text=story, work=tmp_path / "w"))[0]
    line = refusal(
        settings(target, tmp_path / "out", text=story, work=tmp_path / "w", draft_vocab=32, seed=1)
    )
    assert "draft-vocab and seed" in line
    (tmp_path / "w" / "job.json").write_text("{")
    assert "damaged" in refusal(settings(target, tmp_path / "out", text=story, work=tmp_path / "w"))


def test_a_full_disk_is_one_line(
    target: Path, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(features.shutil, "disk_usage", lambda place: SimpleNamespace(free=600 << 20))
        line = refusal(settings(target, tmp_path / "out", text=story, work=tmp_path / "w"))
        assert "GB are free" in line and not (tmp_path / "w" / "texts").exists()

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(features, "save_file", full)
        assert "No space left" in refusal(settings(target, tmp_path / "out", text=story, work=tmp_path / "w"))
    assert run(settings(target, tmp_path / "out", text=story, work=tmp_path / "w"))[0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kind": "eagle"}, "no drafter 'eagle'"),
        ({"minutes": 0.1, "steps": None}, "minutes is 0.1"),
        ({"feature_budget_gb": 0.0}, "feature-budget"),
        ({"feature_budget_gb": 1e-6}, "holds"),
        ({"draft_vocab": 2}, "draft-vocab is 2"),
        ({"threads": 0}, "threads is 0"),
        ({"kind": "medusa", "layers": (1, 2, 3)}, "reads no layers"),
        ({"layers": (3, 2, 1)}, "layers are 3, 2, 1"),
        ({"prompts": Path("a"), "text": Path("b")}, "both given"),
    ],
)
def test_settings_that_cannot_work(more: dict[str, Any], words: str, target: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecviewError, match=words):
        run(settings(target, tmp_path / "out", **{"draft_vocab": None, **more}))
