"""A recorded run's settings: as RunSettings for the window, and as the command line that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specview.drafting.lanes import run_of_flat, takes
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.fields import declared, values_of
from specview.files.reader import Trace
from specview.models.hub import is_repo_id, split_gguf_id
from specview.racing import workloads
from specview.racing.resolve import checked_run, files_named, harmless, models_named
from specview.settings.branch import Branch, branch_of
from specview.settings.run import MAX_LANES, LaneSettings, RunSettings, flag_word, flag_words

PROMPT_FILE = "prompt.txt"


def settings_of_trace(trace: Trace) -> RunSettings:
    """Return the settings that a trace was run with, checked; its branch and its conversation so far are in them.

    What may name a file to read or write is left out, and the tick to trust a model's own code (`racing.resolve`).
    Raises SpecviewError, one line, where this specview knows no such settings.
    """
    return _checked(_named(trace))


def _checked(settings: RunSettings) -> RunSettings:
    try:
        return checked_run(harmless(settings))
    except (TypeError, ValueError, KeyError) as error:
        raise _foreign(error) from None


def _named(trace: Trace) -> RunSettings:
    """The settings as the file names them, not checked."""
    records = trace.records[:MAX_LANES]
    try:
        run = run_of_flat({record.name: record.settings for record in records})
        branch = branch_of(trace.run)
    except (TypeError, ValueError, KeyError) as error:
        raise _foreign(error) from None
    return replace(run, prompt=trace.prompt_text, history=_history(trace.run.get("history")), branch=branch)


def _foreign(error: Exception) -> SpecviewError:
    return SpecviewError(f"its settings are not those of a specview run: {error}.")


def _history(value: Any) -> tuple[Mapping[str, str], ...]:
    turns = value if isinstance(value, list) else []
    return tuple(
        {"role": turn["role"], "content": turn["content"]}
        for turn in turns
        if isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
    )


@dataclass(frozen=True, slots=True)
class Repeat:
    """How a run is repeated: the command line, the file it reads its prompt from ('' where none), what it leaves out."""

    command: str
    prompt_file: str = ""
    notes: tuple[str, ...] = ()


def command_line(trace: Trace) -> Repeat:
    """Return the command line that repeats a trace; raises SpecviewError where its settings are not this specview's."""
    named = _named(trace)
    settings, notes = _checked(named), _named_notes(named)
    one = len(settings.lanes) == 1
    words = ["specview", "run" if one else "compare"]
    ran = _as_it_ran(settings, trace.run)
    used = {ran.engine, *(lane.draft_engine for lane in ran.lanes)}
    unused = {name: one.default for name, one in declared(RunSettings).items() if one.engine and one.engine not in used}
    words += flag_words(replace(ran, **unused), "models", "checks")
    if trace.records[0].settings.get("trust_remote_code") is True:
        notes.append("The target came with Python code that its user had chosen to trust: --trust-remote-code.")
    for lane in settings.lanes:
        words.extend(["--lane", lane_text(lane)])
    words += flag_words(settings.sampling, "sampling")
    prompt_file = _prompt_words(words, trace, settings)
    words += ["--raw"] if not settings.chat else flag_words(replace(settings, system=""), "prompt")
    if settings.branch is not None:
        words += flag_word("--branch", _branch_text(settings.branch))
    words += [*flag_words(settings, "output"), "--observe", settings.observe]
    if settings.history:
        notes.append(
            f"This was a later turn of a conversation ({len(settings.history)} messages before it, which a command "
            "line cannot give): repeat it in the window, which keeps them in the run."
        )
    return Repeat(" ".join(map(_shell, words)), prompt_file, tuple(notes))


def _branch_text(branch: Branch) -> str:
    """A branch as `--branch` takes it, with all its ids: the run that it goes on from need not be there."""
    lane = f":{branch.lane}" if branch.lane else ""
    return f"{branch.run}{lane}@{branch.position}=[{','.join(map(str, branch.token_ids))}]"


def _named_notes(settings: RunSettings) -> list[str]:
    """What the user must know before he runs a command that a file gave: what it would ask for, what it leaves out."""
    notes = []
    for name, role in models_named(settings).items():
        if is_repo_id(name) or split_gguf_id(name) is not None:
            notes.append(f"The run's file names {name} ({role}): the command asks the Hub for it where it is not here.")
    for lane in settings.lanes:
        for key, value in files_named(lane).items():
            notes.append(f"Left out, as it names a file: {key}={value} of the lane {lane.label}.")
    return notes


def _as_it_ran(settings: RunSettings, facts: Mapping[str, Any]) -> RunSettings:
    """The settings with what they left open as the run's facts say it turned out."""
    threads, dtype = facts.get("threads"), facts.get("target_dtype")
    if settings.threads is None and type(threads) is int and threads > 0:
        settings = replace(settings, threads=threads)
    if settings.dtype is None and settings.engine == "transformers" and dtype in ("float32", "bfloat16", "float16"):
        settings = replace(settings, dtype=dtype)
    return settings


def _shell(word: str) -> str:
    """A word for a shell, in characters that are seen: others would drive the terminal it is shown or pasted in."""
    if all(char.isprintable() or char in "\n\t" for char in word):
        return shlex.quote(word)
    return "$'" + "".join(_escaped(char) for char in word) + "'"


def _escaped(char: str) -> str:
    if char.isprintable():
        return f"\\{char}" if char in "\\'" else char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _prompt_words(words: list[str], trace: Trace, settings: RunSettings) -> str:
    """Add the prompt's flags; returns the file that must hold the prompt, '' where none is needed."""
    system = ""
    prompt_file = ""
    if settings.workload is not None and _is_workload(settings.workload, trace.prompt_text):
        words.extend(["--workload", settings.workload])
        system = workloads.load(settings.workload).system
    elif len(trace.prompt_text) <= 200 and trace.prompt_text.isprintable() and not trace.prompt_text.startswith("-"):
        words.extend(["--prompt", trace.prompt_text])
    else:
        prompt_file = PROMPT_FILE
        words.extend(["--prompt-file", PROMPT_FILE])
    if settings.chat and settings.system != system:
        words.extend(flag_word("--system", settings.system))
    return prompt_file


def _is_workload(name: str, prompt: str) -> bool:
    try:
        return workloads.load(name).prompt == prompt
    except (SpecviewError, OSError):
        return False


def lane_text(lane: LaneSettings) -> str:
    """Return a lane as `--lane` takes it."""
    taken = takes(lane)
    given: dict[str, Any] = {
        one.flag.removeprefix("--"): value for one, value in values_of(lane) if one.name in taken and value != one.default
    }
    given["name"] = lane.name or None
    method = METHODS[lane.method]
    chosen = {key: lane.options[key] for key in ("members", "preset") if key in lane.options}  # what others follow from
    standing, usual = method.resolve(chosen), {option.name: option.default for option in method.options}
    given |= {
        key: value for key, value in lane.options.items()
        if (usual.get(key, standing.get(key)) if key in chosen else standing.get(key)) != value
    }  # fmt: skip
    if METHODS[lane.method].drafts:
        defaults = {option.name: option.default for option in POLICIES[lane.policy].options}
        given |= {f"policy.{key}": value for key, value in lane.policy_options.items() if defaults.get(key) != value}
    return ",".join([lane.method, *(f"{key}={_quoted(value)}" for key, value in given.items() if value is not None)])


def _quoted(value: Any) -> str:
    """Quote a value so that `--lane` reads it whole; "yes" and "no" for switches."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if not any(mark in text for mark in ",'\"") and text == text.strip():
        return text
    pieces = text.split('"')  # in double quotes all but a double quote stands for itself
    return "'\"'".join(f'"{piece}"' for piece in pieces)
