"""The prompts that come with specview, and prompt files of the user's own.

A workload is one JSON Lines file in assets/workloads; a prompt file has the same form, or is one JSON array of
the objects. An object has `prompt` or `text` (the user's text) or `messages` ([{role, content}...], the content a
text or a list of text parts), and optionally `system`, `name`, and `workload` or `kind` (what results are grouped
by). The files of the field are read as they are: `turns` (Spec-Bench, MT-Bench: the user's turns), `question`
(GSM8K) and `conversations` (ShareGPT: [{from, value}...], of which the user's turns are taken). Several turns make
a conversation: each is a prompt of its own that follows the one before. A workload's hash is over its prompts, so
that results can say which they were.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError, UsageError
from specview.models.assets import asset_path
from specview.reading import require_light

KINDS: Mapping[str, str] = {
    "code-edit": "Edit a function and return it in full.",
    "story": "Write a story.",
    "extract": "Copy fields and sentences out of a text.",
    "translate": "Translate between English and Portuguese.",
    "chat": "Answer an everyday question.",
    "repeat": "Repeat a text exactly.",
}
"""The kinds of task; each has a Portuguese twin named with `-pt`."""

DEFAULT = "chat"
MAX_FILE_BYTES, _MAX_VALUES = 64 << 20, 16 << 20
_KNOWN_KEYS = {"prompt", "text", "messages", "system", "name", "workload", "kind"}
_FIELD_KEYS = ("turns", "question", "conversations")  # other people's: what else stands beside them is left alone
_PROMPT_KEYS = ("prompt", "text", "messages", *_FIELD_KEYS)
_ROLES = ("system", "user", "assistant")
_TEXT_PARTS = ("text", "input_text", "output_text")
_SHAREGPT_USERS = ("human", "user")
FORMATS = (
    "one object a line, or one JSON array: prompt or text, messages (OpenAI's, content parts too), turns (Spec-Bench, "
    "MT-Bench), question (GSM8K) or conversations (ShareGPT)"
)
"""What a prompt file may hold, for people."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: the user's text, what the system says, the turns before it; workload groups it with others.

    follows: it is the next turn of the conversation that the prompt before it in its set is in (`turns.Turns`).
    """

    text: str
    system: str = ""
    name: str = ""
    history: tuple[Mapping[str, str], ...] = ()
    workload: str = ""
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts under one name; the first is the default. sha256 is that of their content."""

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str

    @property
    def prompt(self) -> str:
        """The default prompt's text."""
        return self.prompts[0].text

    @property
    def system(self) -> str:
        """The default prompt's system text."""
        return self.prompts[0].system

    @property
    def language(self) -> str:
        """Return "pt" or "en"."""
        return "pt" if self.name.endswith("-pt") else "en"

    @property
    def label(self) -> str:
        """The name as a person reads it."""
        kind = self.name.removesuffix("-pt").replace("-", " ").capitalize()
        return f"{kind} (Portuguese)" if self.language == "pt" else kind

    @property
    def description(self) -> str:
        """One line about the task."""
        return KINDS.get(self.name.removesuffix("-pt"), "")


def list_workloads() -> list[str]:
    """Names of the bundled workloads, each followed by its Portuguese twin; reads no prompt."""
    names = [name for kind in KINDS for name in (kind, f"{kind}-pt")]
    return [name for name in names if _path(name).is_file()]


def load(name: str) -> Workload:
    """Return a bundled workload; raise UsageError for an unknown name."""
    names = list_workloads()
    if name not in names:
        raise UsageError(f"there is no workload {name!r}.", f"Workloads: {', '.join(names)}.")
    return _read(_path(name), name)


def load_prompts_file(path: str | Path) -> Workload:
    """Return the prompts of a file (FORMATS); its name is the file's.

    Raises SpecviewError for a file that cannot be read, UsageError for a bad entry, naming its line.
    """
    path = Path(path)
    return _read(path, path.name)


def content_sha256(prompts: tuple[Prompt, ...]) -> str:
    """Hash of prompts by their content: the same for any line endings or key order of the file."""
    content = [
        [prompt.system, [dict(turn) for turn in prompt.history], prompt.text, *["follows"] * prompt.follows] for prompt in prompts
    ]
    encoded = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(encoded.encode()).hexdigest()


def _path(name: str) -> Path:
    return asset_path(f"workloads/{name}.jsonl")


def _read(path: Path, name: str) -> Workload:
    try:
        with path.open("rb") as file:  # a pipe too: a shell's <(command)
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MB.", "Split it.")
        require_light(data, _MAX_VALUES)
    except ValueError as error:
        raise UsageError(f"{path} is no set of prompts: {error}.", "Split it.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecviewError(
            f"cannot read the prompts of {path} ({reason}).", "Check the file's name."
        ) from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    entries = _of_array(data, path) if data.lstrip()[:1] == b"[" else _of_lines(data, path)
    prompts = [prompt for entry, where in entries for prompt in _parse(entry, where)]
    if not prompts:
        raise UsageError(f"{path} holds no prompt.", 'Write one object a line: {"prompt": "..."}.')
    frozen = tuple(prompts)
    return Workload(name, frozen, content_sha256(frozen))


def _of_lines(data: bytes, path: Path) -> Iterator[tuple[Any, str]]:
    """The entries of JSON Lines, each with where it stands."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _json(lambda line=line: json.loads(line.decode("utf-8")), where), where  # type: ignore[misc]


def _of_array(data: bytes, path: Path) -> Iterator[tuple[Any, str]]:
    """The entries of one JSON array, read one by one, each with where it stands."""
    text = _json(lambda: data.decode("utf-8"), str(path))
    decoder, space = json.JSONDecoder(), re.compile(r"[ \t\r\n]*")

    def skip(at: int) -> int:
        found = space.match(text, at)
        assert found is not None
        return found.end()

    at, line, counted = skip(skip(0) + 1), 1, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        where = f"{path}, line {line}"
        entry, at = _json(lambda at=at: decoder.raw_decode(text, at), where)  # type: ignore[misc]
        yield entry, where
        at = skip(at)
        if text[at : at + 1] == ",":
            at = skip(at + 1)
        elif text[at : at + 1] != "]":
            raise UsageError(f"{where}: the array is not closed.", "Write [{...}, {...}], or one object a line.")


def _json(read: Callable[[], Any], where: str) -> Any:
    """What is read; raises UsageError that says where it is no JSON."""
    try:
        return read()
    except UnicodeDecodeError:
        raise UsageError(f"{where}: it is not UTF-8 text.", "Save the file as UTF-8.") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: it is not JSON.", 'Write one object a line: {"prompt": "..."}.') from None


def _parse(entry: Any, where: str) -> list[Prompt]:
    """The prompts of one entry, several where it has several turns; raise UsageError that says where and what is wrong."""
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: it is no JSON object.", 'Write {"prompt": "..."}.')
    given = [key for key in _PROMPT_KEYS if key in entry]
    field = next((key for key in _FIELD_KEYS if given == [key]), "")
    unknown = sorted(set(entry) - _KNOWN_KEYS - {*_FIELD_KEYS})
    if unknown and not field:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}.", f"Keys: {', '.join([*sorted(_KNOWN_KEYS), *_FIELD_KEYS])}.")
    if len(given) != 1:
        problem = "no prompt" if not given else f"both {given[0]} and {given[1]}"
        raise UsageError(f"{where}: {problem}.", f"Give one of {', '.join(_PROMPT_KEYS)}.")
    system = _text(entry, "system", where, "")
    if "workload" in entry and "kind" in entry:
        raise UsageError(f"{where}: both workload and kind.", "Give one of them.")
    if field:
        name = str(next((entry[key] for key in ("name", "question_id", "id") if isinstance(entry.get(key), str | int)), ""))
        group = next((key for key in ("workload", "kind", "category") if key in entry), "workload")
        return _turns(*_of_field(entry, field, system, where), name, _text(entry, group, where, ""), where)
    name = _text(entry, "name", where, "")
    workload = _text(entry, "workload" if "workload" in entry else "kind", where, "")
    if given[0] != "messages":
        return _turns([_text(entry, given[0], where)], system, name, workload, where)
    return [_from_messages(entry["messages"], system, name, workload, where)]


def _of_field(entry: Mapping[str, Any], key: str, system: str, where: str) -> tuple[list[str], str]:
    """The user's turns and the system text of an entry in one of the field's formats."""
    if key == "question":
        return [_text(entry, key, where)], system
    turns = entry[key]
    if not isinstance(turns, list) or not turns:
        raise UsageError(f"{where}: {key} is no list of turns.", f"Give what the user says, one {key[:-1]} after the other.")
    if key == "turns":
        return [_text({"a turn": turn}, "a turn", where) for turn in turns], system
    users = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise UsageError(f"{where}: a turn is no object.", 'Write [{"from": "human", "value": "..."}, ...].')
        value = "value" if "value" in turn else "content"
        who = turn.get("from", turn.get("role"))
        if who in _SHAREGPT_USERS:
            users.append(_text(turn, value, where))
        elif who == "system" and not users:
            system = system or _text(turn, value, where)
    if not users:
        raise UsageError(f"{where}: no turn is the user's.", 'The user\'s turns are from "human".')
    return users, system


def _turns(texts: Sequence[str], system: str, name: str, workload: str, where: str) -> list[Prompt]:
    """The user's turns as prompts, each following the one before."""
    if not all(text.strip() for text in texts):
        raise UsageError(f"{where}: the prompt is empty.", "Write a prompt, or leave the line out.")
    return [
        Prompt(text, system, f"{name}, turn {place}" if name and place > 1 else name, workload=workload, follows=place > 1)
        for place, text in enumerate(texts, start=1)
    ]


def _from_messages(messages: Any, system: str, name: str, workload: str, where: str) -> Prompt:
    """A chat: an optional system turn, then user and assistant in turn, the user last."""
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{where}: messages is no list of turns.", "Write [{role, content}, ...].")
    turns: list[dict[str, str]] = []
    for turn in messages:
        if not isinstance(turn, dict) or turn.get("role") not in _ROLES:
            raise UsageError(f"{where}: a message has no role.", f"Roles: {', '.join(_ROLES)}.")
        turns.append({"role": turn["role"], "content": _content(turn, where)})
    if turns[0]["role"] == "system":
        if system:
            raise UsageError(f"{where}: system text is given twice.", "Give it once.")
        system = turns.pop(0)["content"]
    for place, turn in enumerate(turns):
        if turn["role"] != ("user", "assistant")[place % 2]:
            raise UsageError(
                f"{where}: message {place + 1} is out of turn.", "User and assistant take turns."
            )
    if not turns or turns[-1]["role"] != "user":
        raise UsageError(f"{where}: the last message is not the user's.", "End with a user message.")
    return Prompt(turns[-1]["content"], system, name, tuple(turns[:-1]), workload)


def _content(turn: Mapping[str, Any], where: str) -> str:
    """A message's text, of OpenAI's content parts all text parts together."""
    parts = turn.get("content")
    if not isinstance(parts, list):
        return _text(turn, "content", where)
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            raise UsageError(f"{where}: a content part is {kind!r:.40}.", "Only text is read: leave the entry out.")
    return "".join(_text(part, "text", where) for part in parts)


def _text(entry: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {key} is no text.", "Put it in quotes.")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise UsageError(f"{where}: {key} holds half a character.", "Write it as UTF-8 text.")
    return value
