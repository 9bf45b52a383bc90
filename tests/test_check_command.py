"""`specview check`: from files alone, one verdict, one exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview.commands import check
from specview.errors import SpecviewError, UsageError
from tests.models.conftest import SPECIAL, byte_alphabet, cache, make_folder, make_gguf, tokens  # noqa: F401 - fixtures

Make = Callable[..., Path]
WORDS = [token for token in tokens() if token not in (*SPECIAL, *byte_alphabet())]
OTHER = [*SPECIAL, *reversed(byte_alphabet()), *WORDS]
OWN = [*tokens(), "ab", "cd", "ef", "gh", "ij"]


@pytest.fixture(autouse=True)
def own_cache(cache: Path) -> None:  # noqa: F811
    """No test here sees the user's models."""


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    code = check.main([str(part) for part in argv])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def document(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    code, out = run(capsys, *argv, "--json", "-")
    return code, json.loads(out)


def test_the_same_tokenizer(capsys, make_gguf: Make) -> None:  # noqa: F811
    target, draft = make_gguf("target.gguf", seed=0), make_gguf("draft.gguf", seed=1)
    code, out = run(capsys, target, draft)
    assert code == 0
    assert out.startswith("yes: draft can draft for target; they have the same tokenizer.\n")
    assert "rules greedy, rejection, match, typical, naive: it drafts the target's own tokens\n" in out
    assert [line.split() for line in out.splitlines() if line.startswith("context")] == [["context", "length", "256", "256"]]
    assert "The draft has 1 times the target's parameters" in out


def test_a_foreign_draft(capsys, make_gguf: Make) -> None:  # noqa: F811
    target, draft = make_gguf("target.gguf", vocabulary=OWN), make_gguf("draft.gguf", vocabulary=OTHER)
    code, out = run(capsys, target, draft)
    assert code == 0
    assert out.startswith("yes, translated: draft draft has another tokenizer than target: 263 of the target's 268 texts")
    assert "shared texts: 263, 98.1% of the target's\n" in out
    assert "rules greedy, match, typical: its text is re-encoded in the target's tokens\n" in out
    assert "rules rejection, naive: it drafts the tokens that both have\n" in out


def test_the_document_has_every_fact_and_nothing_else_is_printed(capsys, make_gguf: Make, tmp_path: Path) -> None:  # noqa: F811
    target = make_gguf("target.gguf", vocabulary=OWN)
    draft = make_gguf("draft.gguf", vocabulary=OTHER, extra={"llama.context_length": 128})
    code, found = document(capsys, target, draft)
    assert code == 0
    assert found["ok"] and found["mode"] == "foreign"
    assert found["approach"]["greedy"] == "re-encode" and found["approach"]["rejection"] == "intersection"
    assert (found["shared"], found["share"]) == (263, pytest.approx(263 / 268))
    assert found["first_difference"][0] == 3
    assert found["different"] > 1
    assert found["target"] == {
        "name": "target",
        "architecture": "llama",
        "parameters": found["target"]["parameters"],
        "file_bytes": target.stat().st_size,
        "context_length": 256,
        "engines": ["transformers", "llama.cpp"],
        "vocabulary": 271,
    }
    assert found["target"]["parameters"] > 50_000
    file = tmp_path / "out.json"
    _, out = run(capsys, target, draft, "--json", file)
    assert json.loads(file.read_text()) == found
    assert out.startswith("yes, translated: ")


def test_one_renamed_token_is_named_in_command_and_window(capsys, make_gguf: Make) -> None:  # noqa: F811
    from specview.gui.link.pair_checks import check

    renamed = [*OWN[:-1], "renamed"]
    target, draft = make_gguf("target.gguf", vocabulary=OWN), make_gguf("draft.gguf", vocabulary=renamed)
    code, out = run(capsys, target, draft)
    assert code == 0
    last = len(OWN) - 1
    assert f"1 of {len(OWN)} ids differs: {last} ('" in out and "' in the target, 'renamed' in the draft)" in out
    assert "100%" not in out
    _, words = check((str(target), "llama.cpp", str(draft), "transformers"))
    assert f"ids differs: {last} ('" in words


def test_a_shorter_context_is_told(capsys, make_gguf: Make, make_folder: Make) -> None:  # noqa: F811
    target, draft = make_gguf("target.gguf"), make_folder("draft", vocabulary={"hello": 0, "x": 1})
    config = json.loads((draft / "config.json").read_text()) | {"max_position_embeddings": 64}
    (draft / "config.json").write_text(json.dumps(config))
    code, found = document(capsys, target, draft)
    assert code == 0
    assert found["draft"]["context_length"] == 64
    assert found["shared"] == 2
    assert "The draft reads 64 tokens, the target 256: beyond that nothing is drafted." in found["notes"]
    config["text_config"] = {"n_positions": 32}
    del config["max_position_embeddings"]
    (draft / "config.json").write_text(json.dumps(config))
    assert document(capsys, target, draft)[1]["draft"]["context_length"] == 32


def test_no_token_in_common(capsys, make_gguf: Make, make_folder: Make) -> None:  # noqa: F811
    code, out = run(capsys, make_gguf("target.gguf"), make_folder("draft", vocabulary={"QQ": 0, "ZZ": 1}))
    assert code == 0, "re-encoding serves"
    assert "rules rejection, naive: not with this draft, for no token is shared\n" in out


def test_it_cannot_serve(capsys, make_gguf: Make, make_folder: Make) -> None:  # noqa: F811
    target, draft = make_gguf("target.gguf"), make_folder("draft")
    document_ = json.loads((draft / "tokenizer.json").read_text())
    document_["model"]["vocab"] = {}
    document_["added_tokens"] = [{"id": 0, "content": "<s>", "special": True}]
    (draft / "tokenizer.json").write_text(json.dumps(document_))
    code, out = run(capsys, target, draft)
    assert code == 1
    assert out.startswith("no: draft draft has another tokenizer than target, and draft has no tokens for text.")
    assert "rules" not in out
    code, found = document(capsys, target, draft)
    assert (code, found["ok"], found["approach"]) == (1, False, {})
    assert found["reason"].endswith("Choose a draft of the same family.")


def test_an_engine_that_cannot_load_it(capsys, make_gguf: Make) -> None:  # noqa: F811
    target, draft = make_gguf("target.gguf"), make_gguf("odd.gguf", architecture="gemma3")
    code, out = run(capsys, target, draft, "--draft-engine", "transformers")
    assert code == 1
    assert out.startswith("no: the transformers engine cannot load odd (gemma3). Choose the llama.cpp engine for it.")
    code, out = run(capsys, target, draft)
    assert code == 0
    assert "They need different engines" not in out, "llama.cpp loads both"
    with pytest.raises(UsageError, match="there is no engine 'vllm'"):
        check.main([str(target), str(draft), "--engine", "vllm"])


def test_models_for_different_engines(capsys, make_gguf: Make, make_folder: Make) -> None:  # noqa: F811
    code, found = document(capsys, make_gguf("odd.gguf", architecture="gemma3"), make_folder("draft"))
    assert code == 0
    assert "They need different engines: --engine llama.cpp --draft-engine transformers." in found["notes"]


def test_what_is_not_there_is_one_line(make_gguf: Make, tmp_path: Path) -> None:  # noqa: F811
    target = make_gguf("target.gguf")
    with pytest.raises(SpecviewError, match="is not in the Hugging Face cache, and a check downloads nothing"):
        check.main([str(target), "someone/some-model"])
    with pytest.raises(SpecviewError, match="there is no file or folder"):
        check.main([str(target), str(tmp_path / "none.gguf")])
    with pytest.raises(UsageError, match="the following arguments are required: DRAFT"):
        check.main([str(target)])


@pytest.mark.parametrize("load", [False, True])
def test_loaded_models_give_the_same_answer(capsys, make_gguf: Make, load: bool) -> None:  # noqa: F811
    pytest.importorskip("torch")
    target, draft = make_gguf("target.gguf", vocabulary=OWN), make_gguf("draft.gguf", vocabulary=OTHER)
    code, found = document(capsys, target, draft, "--engine", "transformers", *(["--load"] if load else []))
    assert code == 0
    assert (found["mode"], found["shared"]) == ("foreign", 263)


def test_a_cache_that_cannot_be_rolled_back_is_found_by_loading(capsys, make_gguf: Make, monkeypatch) -> None:  # noqa: F811
    from specview.models.loading import load_engine

    def load(*args: Any, **options: Any) -> Any:
        engine = load_engine(*args, **options)
        engine.rollback_problem = "it keeps a recurrent state."
        return engine

    pytest.importorskip("torch")
    monkeypatch.setattr(check, "load_engine", load)
    target = make_gguf("target.gguf")
    assert run(capsys, target, target)[0] == 0
    code, out = run(capsys, target, target, "--load", "--engine", "transformers")
    assert code == 1
    assert out.startswith("no: target cannot be drafted for: it keeps a recurrent state.")


def test_it_reads_no_weights_and_imports_no_engine(make_gguf: Make) -> None:  # noqa: F811
    code = (
        "import sys; from specview.commands import check; "
        f"code = check.main([{str(make_gguf('a.gguf'))!r}, {str(make_gguf('b.gguf'))!r}]); "
        "print(code, [m for m in ('torch', 'transformers', 'llama_cpp', 'tokenizers', 'PySide6') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
