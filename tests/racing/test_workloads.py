"""The bundled prompts and the user's own prompt files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specview.errors import SpecviewError, UsageError
from specview.racing import workloads
from specview.racing.workloads import Prompt, list_workloads, load, load_prompts_file

NAMES = [name for kind in ("code-edit", "story", "extract", "translate", "chat", "repeat") for name in (kind, f"{kind}-pt")]


def test_all_are_there_each_with_its_twin() -> None:
    assert list_workloads() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_is_usable(name: str) -> None:
    workload = load(name)
    assert workload.name == name
    assert len(workload.prompts) >= 4
    assert workload.prompt == workload.prompts[0].text
    assert workload.description
    assert ("Portuguese" in workload.label) == name.endswith("-pt")
    names = [prompt.name for prompt in workload.prompts]
    assert all(names) and len(set(names)) == len(names)
    assert len({prompt.text for prompt in workload.prompts}) == len(names)
    for prompt in workload.prompts:
        assert prompt.text == prompt.text.strip()
        assert 120 <= len(prompt.text) <= 1200, prompt.name


def test_the_hash_is_of_the_content_not_of_the_file(tmp_path: Path) -> None:
    lines = [{"prompt": "one", "name": "a"}, {"prompt": "two é", "system": "s"}]
    first = tmp_path / "first.jsonl"
    first.write_bytes("\n".join(json.dumps(line) for line in lines).encode())
    second = tmp_path / "second.jsonl"
    second.write_bytes(
        b"\xef\xbb\xbf" + "\r\n\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode() + b"\r\n"
    )
    assert load_prompts_file(first).sha256 == load_prompts_file(second).sha256
    third = tmp_path / "third.jsonl"
    third.write_text('{"prompt": "one"}\n{"prompt": "two e", "system": "s"}\n')
    assert load_prompts_file(third).sha256 != load_prompts_file(first).sha256


def test_hashes_are_frozen() -> None:
    """A changed prompt changes results: change this list knowingly."""
    assert {name: load(name).sha256[:12] for name in NAMES} == FROZEN


def test_every_form_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "again"},
    ]
    entries = [
        {"prompt": "a", "system": "s", "name": "n"},
        {"text": "b"},
        {"messages": turns},
        {"messages": turns[1:2], "system": "s"},
        {"prompt": "c", "workload": "letters"},
        {"messages": turns[1:2], "kind": "talk"},
    ]
    file.write_text("\n".join(json.dumps(entry) for entry in entries), encoding="utf-8")
    assert load_prompts_file(file).prompts == (
        Prompt("a", "s", "n"),
        Prompt("b"),
        Prompt("again", "be brief", "", (turns[1], turns[2])),
        Prompt("hi", "s"),
        Prompt("c", workload="letters"),
        Prompt("hi", workload="talk"),
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"not json", "it is not JSON"),
        (b'"text"', "it is no JSON object"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"{}", "no prompt"),
        (b'{"prompt": 3}', "prompt is no text"),
        (b'{"prompt": "  "}', "the prompt is empty"),
        (b'{"prompt": "a", "text": "b"}', "both prompt and text"),
        (b'{"prompt": "a", "temperature": 1}', "unknown key 'temperature'"),
        (b'{"prompt": "\\ud800"}', "half a character"),
        (b'{"messages": []}', "no list of turns"),
        (b'{"messages": [{"role": "tool", "content": "x"}]}', "a message has no role"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "message 1 is out of turn"),
        (b'{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}', "not the user's"),
        (b'{"messages": [{"role": "system", "content": "x"}]}', "not the user's"),
        (b'{"messages": [{"role": "user"}]}', "content is no text"),
        (b'{"prompt": "x", "workload": "a", "kind": "a"}', "both workload and kind"),
        (b'{"prompt": "x", "workload": 3}', "workload is no text"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"turns": []}', "turns is no list of turns"),
        (b'{"turns": "a"}', "turns is no list of turns"),
        (b'{"turns": ["a", 3]}', "a turn is no text"),
        (b'{"turns": ["a", " "]}', "the prompt is empty"),
        (b'{"question": ["a"]}', "question is no text"),
        (b'{"question": "a", "turns": ["b"]}', "both turns and question"),
        (b'{"conversations": [{"from": "gpt", "value": "x"}]}', "no turn is the user's"),
        (b'{"conversations": ["x"]}', "a turn is no object"),
        (b'{"conversations": [{"from": "human"}]}', "content is no text"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}', "a content part is 'image_url'"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": 4}]}]}', "text is no text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b'{"prompt": "good"}\n\n' + line + b"\n")
    with pytest.raises(UsageError, match=problem) as caught:
        load_prompts_file(file)
    assert "bad.jsonl, line 3" in str(caught.value)
    assert "\n" not in str(caught.value)


FIELD = [
    ({"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["x"]},
     [Prompt("Write.", name="81", workload="writing"), Prompt("Again.", name="81, turn 2", workload="writing", follows=True)]),
    ({"question": "How many?", "answer": "4\n#### 4"}, [Prompt("How many?")]),
    ({"id": "abc_0", "conversations": [
        {"from": "system", "value": "s"}, {"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"},
        {"from": "human", "value": "more"}]},
     [Prompt("hi", "s", "abc_0"), Prompt("more", "s", "abc_0, turn 2", follows=True)]),
    ({"conversations": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "hi"}]}, [Prompt("hi")]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}, [Prompt("ab")]),
]  # fmt: skip


@pytest.mark.parametrize("form", ["lines", "array", "pretty array", "CRLF lines"])
def test_the_files_that_people_have(tmp_path: Path, form: str) -> None:
    entries, wanted = [entry for entry, _ in FIELD], tuple(prompt for _, prompts in FIELD for prompt in prompts)
    if "array" in form:
        text = json.dumps(entries, indent=2 if form == "pretty array" else None)
    else:
        text = ("\r\n" if "CRLF" in form else "\n").join(json.dumps(entry) for entry in entries)
    file = tmp_path / "set.json"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_prompts_file(file).prompts == wanted


def test_turns_that_follow_are_another_set() -> None:
    follows = (Prompt("a"), Prompt("b", follows=True))
    assert workloads.content_sha256(follows) != workloads.content_sha256((Prompt("a"), Prompt("b")))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('[\n{"prompt": "a"},\n{"prompt": 3}\n]', 3, "prompt is no text"),
        ('[{"prompt": "a"},\n{"prompt": ]', 2, "it is not JSON"),
        ('[{"prompt": "a"}', 1, "the array is not closed"),
        ('[{"prompt": "a"} {"prompt": "b"}]', 1, "the array is not closed"),
        ('[\n{"prompt": "a"},\n\n"b"]', 4, "it is no JSON object"),
        ("[" * 100_000, 1, "it is not JSON"),
    ],
)
def test_a_bad_entry_of_an_array_is_named_by_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=problem) as caught:
        load_prompts_file(file)
    assert f"bad.json, line {line}" in str(caught.value)


def test_an_empty_array_holds_no_prompt(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text(" [ ] ")
    with pytest.raises(UsageError, match="holds no prompt"):
        load_prompts_file(tmp_path / "empty.json")


def test_every_format_is_named_in_help_and_window() -> None:
    from specview.commands import compare, sweep, tune

    for command in (compare, sweep, tune):
        words = " ".join(command.make_parser().format_help().split())
        for format_ in ("messages", "turns", "question", "conversations", "JSON array"):
            assert format_ in words, (command.__name__, format_)


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecviewError, match="cannot read the prompts"):
        load_prompts_file(tmp_path / "absent.jsonl")
    with pytest.raises(SpecviewError, match="cannot read the prompts"):
        load_prompts_file(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n \n")
    with pytest.raises(UsageError, match="holds no prompt"):
        load_prompts_file(empty)
    monkeypatch.setattr(workloads, "MAX_FILE_BYTES", 1)
    with pytest.raises(UsageError, match="larger than"):
        load_prompts_file(empty)
    with pytest.raises(UsageError, match="no workload 'poems'.*code-edit, code-edit-pt"):
        load("poems")


FROZEN = {
    "code-edit": "372fa6b89dcc",
    "code-edit-pt": "09db6cbe2b39",
    "story": "2e8589afd182",
    "story-pt": "c329db5d7b7c",
    "extract": "a5b2786ec11c",
    "extract-pt": "4ec0fc84c9ec",
    "translate": "f8c72781b36b",
    "translate-pt": "4037814f8405",
    "chat": "73b238831194",
    "chat-pt": "504de9e7f5e8",
    "repeat": "a99774c2c103",
    "repeat-pt": "57ce0ba701d6",
}
