"""What a model's files declare: its ends, the same in both engines; chat templates by name; sampling that is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview.commands import check
from specview.decoding.interfaces import Declared, End
from specview.engines import declared, llama_cpp_engine
from specview.engines.declared import of_folder, of_gguf
from specview.engines.gguf_file import gguf_facts
from specview.engines.templates import DEFAULT, choose
from specview.errors import SpecviewError, UsageError
from specview.models.loading import load_engine
from specview.racing.pool import ModelPool
from specview.racing.race import Race, tokenize_prompt
from specview.racing.resolve import checked_run
from specview.settings.run import LaneSettings, RunSettings, shared_settings
from specview.training.chat import load_tokenizer as training_tokenizer
from tests.engines.transformers_tiny import save_model, tiny
from tests.models.conftest import tokens

MakeGguf = Callable[..., Path]
LISTED = sorted(declared._END_TEXTS)
INNER = {"<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>"}


def ends(path: Path) -> set[str]:
    return {end.text for end in of_gguf(gguf_facts(path), adds_bos=False).ends}


VOCABULARIES = {
    "all": LISTED,
    "no inner ends": [text for text in LISTED if text not in INNER],
    "harmony": ["<|end|>", "<|return|>", "<|call|>"],
    "solar": ["<|end|>", "<|flush|>", "<|calls|>"],
    "no harmony": ["<|end|>", "<|return|>"],
    "gemma": ["</s>", "<|tool_response>", "<turn|>"],
    "fill in": ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_middle|>"],
    "fill in of others": ["[PAD]", "<reponame>"],
    "nearly": ["<|im_end", "<|eot|>", "</s", "<EOS>", "[eos]", "<|im_start|>"],
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ends_known_by_text_are_those_of_llama_cpp(make_gguf: MakeGguf, name: str) -> None:
    pytest.importorskip("llama_cpp")
    path = make_gguf(vocabulary=list(dict.fromkeys([*tokens(), *VOCABULARIES[name]])))
    engine = llama_cpp_engine.load(path, threads=1)
    try:
        vocab = engine.tokenizer._vocab  # type: ignore[attr-defined]
        theirs = {token for token in range(engine.vocab_size) if engine._lib.llama_vocab_is_eog(vocab, token)}
        assert engine.eos_ids == theirs
    finally:
        engine.close()


def test_no_token_is_an_end_because_gpt_2_had_one_there(make_gguf: MakeGguf) -> None:
    """llama.cpp takes id 11 for the end where a file names none."""
    words = [word for word in tokens() if word != "<|end|>"]
    path = make_gguf(vocabulary=words, extra={"tokenizer.ggml.eos_token_id": len(words)})
    assert ends(path) == set()


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"tokenizer.ggml.eos_token_id": 0}, {0}),
        ({"tokenizer.ggml.eot_token_id": 7}, {0, 2, 7}),
        ({"tokenizer.ggml.eom_token_id": 8, "tokenizer.ggml.fim_pad_token_id": 9}, {0, 2, 8, 9}),
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 4_000_000}, {0}),
    ],
)
def test_both_engines_end_a_gguf_alike(
    make_gguf: MakeGguf, engine: str, extra: dict[str, int], expected: set[int]
) -> None:
    pytest.importorskip("llama_cpp" if engine == "llama.cpp" else "torch")
    loaded = load_engine(str(make_gguf(extra=extra)), engine, threads=1)
    try:
        assert loaded.eos_ids == loaded.tokenizer.eos_ids == expected  # 0 is <|end|>, known by its text
        sources = {end.token: end.sources for end in loaded.tokenizer.declared.ends}
        assert all(f"tokenizer.ggml.{name}" in str(sources) for name in ("eos_token_id",))
    finally:
        loaded.close()


def test_what_is_shown_of_strange_files_is_short_and_printable() -> None:
    many = Declared(
        tuple(End(token, "\n" * 999, ("x",)) for token in range(999)), {f"a\n{name}" * 99: "t" for name in range(999)}
    )
    assert all(len(line) <= 601 and line.isprintable() for line in many.lines())
    with pytest.raises(SpecviewError) as caught:
        choose(many.templates, None)
    assert len(str(caught.value)) < 600 and str(caught.value).isprintable()


def run(settings: RunSettings) -> tuple[list[int], dict[str, Any], str]:
    """The plain lane's ids, the run's facts and settings as they stand in files, and how it ended."""
    told: list[Any] = []
    models = ModelPool()
    race = Race(checked_run(settings), 1, models)
    try:
        race.run(told.append, lambda: False)
        facts = next(event.facts for event in told if hasattr(event, "facts"))
        record = race.records[0]
        return list(record.token_ids), {**record.settings, **facts}, str(record.end)
    finally:
        race.close()
        models.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    return save_model(tmp_path / "model", tiny("llama"))


def say(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    found = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({key: value for key, value in (found | changes).items() if value is not None}))


def test_an_end_of_tokenizer_config_ends_the_answer(folder: Path) -> None:
    """The token that the model writes third is named by tokenizer_config.json alone."""
    say(folder, "tokenizer_config.json", eos_token=None)
    settings = RunSettings(target=str(folder), prompt="hello", chat=False, max_tokens=12, lanes=(LaneSettings(),))
    ids, _, end = run(settings)
    third = ids[2]
    assert end == "limit" and third not in ids[:2] and third < 256
    backend = json.loads((folder / "tokenizer.json").read_text())
    text = next(text for text, id_ in backend["model"]["vocab"].items() if id_ == third)
    say(folder, "tokenizer_config.json", eos_token=text)
    ids, facts, end = run(settings)
    assert (len(ids), end) == (3, "eos")
    assert facts["target_ends"] == f"{third} {text} (tokenizer_config.json), 257 </s> (known by its text)"


def test_what_the_files_ask_of_sampling_is_said_to_be_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from specview.commands import compare
    from specview.commands import run as run_command

    say(folder, "generation_config.json", repetition_penalty=1.1, min_new_tokens=5, suppress_tokens=[1, 2], do_sample=True,
        temperature=0.7, top_p=0.8, no_repeat_ngram_size=0, num_beams=1, bad_words_ids=None)  # fmt: skip
    words = (
        "Left out in every lane: repetition_penalty 1.1, min_new_tokens 5, suppress_tokens (2 of them) of "
        "generation_config.json. Recommended by generation_config.json and not taken, for the run's own settings count: "
        "do_sample true, temperature 0.7, top_p 0.8."
    )
    out = folder.parent / "out.json"
    base = ["--target", str(folder), "--prompt", "hi", "--max-tokens", "4", "--json", str(out)]
    for command, methods in ((run_command, ["--method", "plain"]), (compare, ["--method", "prompt-lookup"])):
        assert command.main([*base, *methods]) == 0
        assert capsys.readouterr().out.count(words) == 1
        document = json.loads(out.read_text())
        lanes = document.get("lanes", [document])
        assert {lane["run"]["target_left_out"] for lane in lanes} == {words}
    assert check.main([str(folder), str(folder)]) == 0
    assert words in capsys.readouterr().out


def test_a_config_without_generation_config_is_read_as_transformers_reads_it(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    say(folder, "config.json", repetition_penalty=1.2)
    found = load_engine(str(folder), "transformers", threads=1)
    assert found.tokenizer.declared.left_out == "Left out in every lane: repetition_penalty 1.2 of config.json."
    found.close()


def test_what_a_gguf_asks_of_sampling(make_gguf: MakeGguf) -> None:
    path = make_gguf(extra={"general.sampling.top_k": 20, "general.sampling.mirostat": 2, "general.sampling.min_p": 0})
    assert of_gguf(gguf_facts(path), adds_bos=False).left_out == (
        "Left out in every lane: mirostat 2 of the GGUF file. "
        "Recommended by the GGUF file and not taken, for the run's own settings count: top_k 20."
    )
    assert of_gguf(gguf_facts(make_gguf()), adds_bos=False).left_out == ""


def repr_of(value: Any) -> str:
    return repr(value)[:12]


@pytest.mark.parametrize("value", [[], {}, "x", -1, 10**400, None, [[1] * 20] * 20, float("nan")], ids=repr_of)
def test_odd_values_of_settings_do_no_harm(tmp_path: Path, value: Any) -> None:
    keys = (*declared._NEUTRAL, *declared._ADVICE, "eos_token_id")
    (tmp_path / "generation_config.json").write_text(json.dumps(dict.fromkeys(keys, value)))
    found = of_folder(tmp_path, {}, id_of=lambda _: None, text_of=str, added={}, bos_token=None, eos_token=None, adds_bos=False)
    assert len(found.left_out) < 1500


NAMED = {"tool_use": "{{ messages[-1].content }}!", "rag": "?{{ messages[-1].content }}"}


def store_templates(folder: Path, how: str) -> None:
    say(folder, "tokenizer_config.json", chat_template=None)
    if how == "list":
        say(folder, "tokenizer_config.json", chat_template=[{"name": name, "template": text} for name, text in NAMED.items()])
        return
    (folder / "additional_chat_templates").mkdir()
    for name, text in NAMED.items():
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(text)


@pytest.mark.parametrize("how", ["list", "folder"])
def test_named_templates_of_a_folder(folder: Path, how: str) -> None:
    store_templates(folder, how)
    engine = load_engine(str(folder), "transformers", threads=1)
    settings = RunSettings(target=str(folder), prompt="hi")
    assert any(line.startswith("Chat templates by name, and no default one: ") for line in engine.tokenizer.declared.lines())
    try:
        with pytest.raises(SpecviewError, match="no default chat template, but named ones: rag, tool_use"):
            tokenize_prompt(settings, engine)
        with pytest.raises(UsageError, match="no chat template 'x'"):
            tokenize_prompt(RunSettings(target=str(folder), prompt="hi", chat_template="x"), engine)
        chosen = RunSettings(target=str(folder), prompt="hi", chat_template="tool_use")
        assert tokenize_prompt(chosen, engine) == engine.tokenizer.encode("hi!")
    finally:
        engine.close()


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_named_templates_of_a_gguf(make_gguf: MakeGguf, engine: str) -> None:
    pytest.importorskip("llama_cpp" if engine == "llama.cpp" else "torch")
    extra = {f"tokenizer.chat_template.{name}": text for name, text in NAMED.items()}
    loaded = load_engine(str(make_gguf(extra=extra)), engine, threads=1)
    try:
        assert set(loaded.tokenizer.declared.templates) == {DEFAULT, *NAMED}
        chat = [{"role": "user", "content": "hello"}]
        assert loaded.tokenizer.encode_chat(chat, "rag") == loaded.tokenizer.encode("?hello")
        assert loaded.tokenizer.encode_chat(chat)[0] == 1  # <|user|>
    finally:
        loaded.close()


def test_the_chosen_template_is_recorded(folder: Path) -> None:
    store_templates(folder, "list")
    _, facts, _ = run(RunSettings(target=str(folder), prompt="hi", chat_template="rag", max_tokens=2))
    assert facts["chat_template"] == "rag" and "chat_template" in shared_settings(in_files=True)


def add_bos(folder: Path) -> None:
    """Make a raw prompt begin with <s>, as most tokenizer.json files do that have a BOS."""
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text())
    found["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("template", "said"), [(None, True), ("{{ bos_token }}{{ messages[0].content }}", False), ("{{ 1 / 0 }}", False)]
)
def test_a_chat_without_the_bos_of_a_raw_prompt(
    folder: Path, template: str | None, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    add_bos(folder)
    if template is not None:
        say(folder, "tokenizer_config.json", chat_template=template)
    assert check.main([str(folder), str(folder)]) == 0
    words = "A raw prompt begins with <s>, a chat does not: the model's chat template writes none."
    assert (words in capsys.readouterr().out) == said


def test_the_bos_of_a_gguf(make_gguf: MakeGguf) -> None:
    facts = gguf_facts(make_gguf())
    assert of_gguf(facts, adds_bos=True).bos_note == ""  # <|user|>, this one's BOS, is what its template begins with
    plain = gguf_facts(make_gguf("other.gguf", extra={"tokenizer.ggml.bos_token_id": 0}))
    assert of_gguf(plain, adds_bos=True).bos_note.startswith("A raw prompt begins with <|end|>, a chat does not")
    assert of_gguf(plain, adds_bos=False).bos_note == ""


@pytest.mark.parametrize(
    ("name", "others", "command"),
    [
        ("m.gguf.part1of2", [], "cat m.gguf.part1of2 m.gguf.part2of2 > m.gguf"),
        ("m.gguf.part2of3", [], "cat m.gguf.part1of3 m.gguf.part2of3 m.gguf.part3of3 > m.gguf"),
        ("m.gguf-split-b", ["m.gguf-split-a", "m.gguf-other"], "cat m.gguf-split-a m.gguf-split-b > m.gguf"),
    ],
)  # fmt: skip
def test_a_piece_of_a_file_says_how_to_join_it(tmp_path: Path, name: str, others: list[str], command: str) -> None:
    for one in (name, *others):
        (tmp_path / one).write_bytes(b"GGUF")
    with pytest.raises(SpecviewError, match="one piece of a GGUF file") as caught:
        load_engine(str(tmp_path / name), "llama.cpp")
    assert command in str(caught.value) and "-00001-of-" in str(caught.value)


def test_a_sentencepiece_model_without_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specview.engines import transformers_tokenizer

    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"\x0a\x05")
    say(folder, "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    find = transformers_tokenizer.importlib.util.find_spec
    monkeypatch.setattr(
        transformers_tokenizer.importlib.util, "find_spec", lambda name, *more: None if name == "sentencepiece" else find(name, *more)
    )
    for load in (lambda: load_engine(str(folder), "transformers", threads=1), lambda: training_tokenizer(folder)):
        with pytest.raises(SpecviewError, match=r"tokenizer.model .* SentencePiece .* pip install sentencepiece"):
            load()


def test_a_tokenizer_of_python_code_names_the_flag(folder: Path) -> None:
    say(folder, "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    with pytest.raises(UsageError, match="--trust-remote-code"):
        load_engine(str(folder), "transformers", threads=1)
