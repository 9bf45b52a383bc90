"""The prompts that come with specview, and prompt files of the user's own.

A workload is one JSON Lines file in assets/workloads; a prompt file has the same form. One object a
line: `prompt` or `text` (the user's text) or `messages` ([{role, content}...]), and optionally
`system`, `name`, and `workload` or `kind` (what results are grouped by). A workload's hash is over its
prompts, so that results can say which they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError, UsageError
from specview.models.assets import asset_path

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
MAX_FILE_BYTES = 64 << 20
_KNOWN_KEYS = {"prompt", "text", "messages", "system", "name", "workload", "kind"}
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: the user's text, what the system says, the turns before it; workload groups it with others."""

    text: str
    system: str = ""
    name: str = ""
    history: tuple[Mapping[str, str], ...] = ()
    workload: str = ""


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
    """Return the prompts of a JSON Lines file; its name is the file's.

    Raises SpecviewError for a file that cannot be read, UsageError for a bad line, naming its number.
    """
    path = Path(path)
    return _read(path, path.name)


def content_sha256(prompts: tuple[Prompt, ...]) -> str:
    """Hash of prompts by their content: the same for any line endings or key order of the file."""
    content = [[prompt.system, [dict(turn) for turn in prompt.history], prompt.text] for prompt in prompts]
    encoded = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(encoded.encode()).hexdigest()


def _path(name: str) -> Path:
    return asset_path(f"workloads/{name}.jsonl")


def _read(path: Path, name: str) -> Workload:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MB.", "Split it.")
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecviewError(
            f"cannot read the prompts of {path} ({reason}).", "Check the file's name."
        ) from None
    prompts = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            prompts.append(_parse(line, f"{path}, line {number}"))
    if not prompts:
        raise UsageError(f"{path} holds no prompt.", 'Write one object a line: {"prompt": "..."}.')
    frozen = tuple(prompts)
    return Workload(name, frozen, content_sha256(frozen))


def _parse(line: bytes, where: str) -> Prompt:
    """Read one line; raise UsageError that says where and what is wrong."""
    try:
        entry = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise UsageError(f"{where}: it is not UTF-8 text.", "Save the file as UTF-8.") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: it is not JSON.", 'Write one object a line: {"prompt": "..."}.') from None
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: it is no JSON object.", 'Write {"prompt": "..."}.')
    unknown = sorted(set(entry) - _KNOWN_KEYS)
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}.", f"Keys: {', '.join(sorted(_KNOWN_KEYS))}.")
    given = [key for key in ("prompt", "text", "messages") if key in entry]
    if len(given) != 1:
        problem = "no prompt" if not given else f"both {given[0]} and {given[1]}"
        raise UsageError(f"{where}: {problem}.", "Give one of prompt, text, messages.")
    name = _text(entry, "name", where, "")
    system = _text(entry, "system", where, "")
    if "workload" in entry and "kind" in entry:
        raise UsageError(f"{where}: both workload and kind.", "Give one of them.")
    workload = _text(entry, "workload" if "workload" in entry else "kind", where, "")
    if given[0] != "messages":
        text = _text(entry, given[0], where)
        if not text.strip():
            raise UsageError(f"{where}: the prompt is empty.", "Write a prompt, or leave the line out.")
        return Prompt(text, system, name, workload=workload)
    return _from_messages(entry["messages"], system, name, workload, where)


def _from_messages(messages: Any, system: str, name: str, workload: str, where: str) -> Prompt:
    """A chat: an optional system turn, then user and assistant in turn, the user last."""
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{where}: messages is no list of turns.", "Write [{role, content}, ...].")
    turns: list[dict[str, str]] = []
    for turn in messages:
        if not isinstance(turn, dict) or turn.get("role") not in _ROLES:
            raise UsageError(f"{where}: a message has no role.", f"Roles: {', '.join(_ROLES)}.")
        turns.append({"role": turn["role"], "content": _text(turn, "content", where)})
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


def _text(entry: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {key} is no text.", "Put it in quotes.")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise UsageError(f"{where}: {key} holds half a character.", "Write it as UTF-8 text.")
    return value
