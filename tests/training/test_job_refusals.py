"""Training runs that cannot work: one clear line each, before minutes are spent."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specview.errors import SpecviewError
from specview.training import features, shards
from specview.training.chat import load_tokenizer
from specview.training.job import TrainJob
from tests.training.tiny import (
    LLAMA,
    make_target,
    refusal,
    run,
    settings,
)

pytestmark = pytest.mark.usefixtures("quick")


def test_targets_that_cannot_be_trained_for(tiny_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "there is no file or folder" in refusal(settings(tmp_path / "none", out))
    shallow = make_target(tmp_path / "shallow", {**LLAMA, "num_hidden_layers": 3})
    assert "has 3 layers" in refusal(settings(shallow, out))
    assert "has 7" in refusal(settings(tiny_target, out, layers=(2, 3, 9)))
    recurrent = tmp_path / "recurrent"
    shutil.copytree(tiny_target, recurrent)
    (recurrent / "config.json").write_text(
        json.dumps({**json.loads((tiny_target / "config.json").read_text()), "model_type": "mamba"})
    )
    assert "recurrent" in refusal(settings(recurrent, out))
    short = make_target(tmp_path / "short", {**LLAMA, "max_position_embeddings": 128})
    assert "128 tokens" in refusal(settings(short, out))
    assert not out.exists()


def test_a_shallow_target_has_medusa_heads(tmp_path: Path, story: Path) -> None:
    shallow = make_target(tmp_path / "shallow", {**LLAMA, "num_hidden_layers": 3})
    assert run(settings(shallow, tmp_path / "out", "medusa", text=story))[0]


def test_files_that_are_no_training_text(tiny_target: Path, tmp_path: Path) -> None:
    def file(content: bytes, name: str = "file.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    out = tmp_path / "out"
    assert "no file" in refusal(settings(tiny_target, out, text=tmp_path / "none.txt"))
    assert "0 tokens" in refusal(settings(tiny_target, out, text=file(b"")))
    assert "5 tokens" in refusal(settings(tiny_target, out, text=file(b"short")))
    assert "UTF-8" in refusal(settings(tiny_target, out, text=file(b"\xff\xfe" * 900)))
    assert "0 prompts" in refusal(settings(tiny_target, out, prompts=file(b"\n\n")))
    assert "line 2" in refusal(
        settings(tiny_target, out, prompts=file(b'{"prompt": "a"}\n{"other": 1}\n', "p.jsonl"))
    )
    assert "line 1" in refusal(settings(tiny_target, out, prompts=file(b"no json\n", "p.jsonl")))
    assert "9 prompts" in refusal(
        settings(tiny_target, out, prompts=file(b"".join(b"%d\n" % n for n in range(9))))
    )


def test_folders_that_cannot_take_the_result(tiny_target: Path, story: Path, tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    busy.mkdir()
    (busy / "thesis.tex").write_text("")
    assert "thesis.tex" in refusal(settings(tiny_target, busy, text=story))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "medusa"}')
    assert "another drafter" in refusal(settings(tiny_target, other, text=story))
    assert "is a file" in refusal(settings(tiny_target, story, text=story))
    assert "cannot be written" in refusal(settings(tiny_target, story / "below", text=story))


def test_a_work_folder_of_other_settings_is_refused(tiny_target: Path, story: Path, tmp_path: Path) -> None:
    assert run(settings(tiny_target, tmp_path / "out", text=story, work=tmp_path / "w"))[0]
    line = refusal(
        settings(tiny_target, tmp_path / "out", text=story, work=tmp_path / "w", draft_vocab=32, seed=1)
    )
    assert "draft-vocab and seed" in line
    (tmp_path / "w" / "job.json").write_text("{")
    assert "damaged" in refusal(settings(tiny_target, tmp_path / "out", text=story, work=tmp_path / "w"))


def test_a_full_disk_is_one_line(
    tiny_target: Path, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        usage = SimpleNamespace(free=(512 << 20) + 30_000_000, total=1 << 40)
        patched.setattr(features.shutil, "disk_usage", lambda place: usage)
        line = refusal(settings(tiny_target, tmp_path / "out", text=story, work=tmp_path / "w"))
        assert "need 4.0 GB" in line and "and 30 MB are free" in line
        assert not (tmp_path / "w" / "texts").exists()
        usage.free = 30_000_000
        line = refusal(settings(tiny_target, tmp_path / "out", text=story, work=tmp_path / "w"))
        assert "needs 64 MB" in line and "30 MB are free" in line
        usage.total = usage.free = 0
        assert "cannot be written" in refusal(settings(tiny_target, tmp_path / "out", text=story))

    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shards, "save_file", full)
        assert "the disk is full" in refusal(
            settings(tiny_target, tmp_path / "out", text=story, work=tmp_path / "w")
        )
    assert run(settings(tiny_target, tmp_path / "out", text=story, work=tmp_path / "w"))[0]


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
        ({"layers": (1, 2)}, "layers are 1, 2, and an EAGLE head reads three"),
        ({"kind": "p-eagle", "layers": (1, 2, 3, 4)}, "reads three"),
        ({"answer_tokens": 2000}, "answer-tokens is 2000. Use 512 or less"),
        ({"device": "tpu"}, "There is no device 'tpu'"),
        ({"device": "meta"}, "not supported"),
        ({"prompts": Path("a"), "text": Path("b")}, "both given"),
    ],
)
def test_settings_that_cannot_work(
    more: dict[str, Any], words: str, tiny_target: Path, tmp_path: Path
) -> None:
    with pytest.raises(SpecviewError, match=words):
        run(settings(tiny_target, tmp_path / "out", **{"draft_vocab": None, **more}))


def test_a_device_that_is_not_there_is_refused_before_the_target_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "no CUDA device here" in refusal(settings(tmp_path / "none", tmp_path / "out", device="cuda"))


def test_starts_that_are_not_there(tiny_target: Path, story: Path, tmp_path: Path) -> None:
    for kind in ("draft", "medusa"):
        told = refusal(settings(tiny_target, tmp_path / "out", kind, text=story, start=tmp_path / "nosuch"))
        assert "there is no file or folder" in told and "nosuch" in told
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no weights" in refusal(settings(tiny_target, tmp_path / "out", "draft", text=story, start=empty))


def test_one_training_at_a_time_in_a_work_folder(tiny_target: Path, story: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    given = settings(tiny_target, tmp_path / "out", "medusa", text=story, work=tmp_path / "work")
    (tmp_path / "work").mkdir()
    with FileLock(tmp_path / "work" / ".lock"):
        assert "another training is at work" in refusal(given)
    assert run(given)[0]
    assert run(given)[0]  # the lock is free again


def test_more_minutes_help_where_too_few_texts_were_written(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(tiny_target, tmp_path / "out", "medusa", tokens=60, work=tmp_path / "work")
    with monkeypatch.context() as context:
        context.setattr(TrainJob, "_write_answers", lambda self, folder: None)
        assert "wrote 0 texts" in refusal(given)
    assert run(given)[0]


def test_a_models_own_code_is_never_run(tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would ask on standard input, and run it where the answer is y."""
    evil = tmp_path / "evil"
    shutil.copytree(tiny_target, evil)
    config = json.loads((evil / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "configuration_evil.EvilConfig"}}
    (evil / "config.json").write_text(json.dumps(config))
    (evil / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["configuration_evil.EvilConfig", None]}})
    )
    marker = tmp_path / "ran"
    (evil / "configuration_evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass EvilConfig: pass\n")
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    refusal(settings(evil, tmp_path / "out", "medusa"))
    with pytest.raises(Exception):  # noqa: B017 - whatever transformers says
        load_tokenizer(evil)
    assert not marker.exists()
