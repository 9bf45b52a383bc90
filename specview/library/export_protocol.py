"""A run in Markdown, for a chat, an issue or a file: its result, and folded a protocol that lets somebody else repeat it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specview.decoding.speedup import Speedup
from specview.decoding.verification import is_lossy
from specview.errors import SpecviewError
from specview.files.documents import lane_facts
from specview.files.figures import speedup_over
from specview.files.reader import Trace
from specview.files.schema import Json
from specview.files.tables import markdown_block, markdown_rows, markdown_text, printable
from specview.files.verdict import standings, verdict
from specview.library.exporters import compare_markdown
from specview.library.repeat import PROMPT_FILE, command_line
from specview.library.replay import trace_document
from specview.settings.branch import known_branch
from specview.settings.run import shared_settings

_SHARED = tuple(shared_settings(in_files=True))
_ENGINES_CHOICE = ("device", "dtype", "threads", "context")
_MODEL = ("model_name", "file", "sha256", "source_file", "source_sha256", "dtype", "weight_bytes", "context_length", "vocab_size")
_HEAD = ("head", "layout", "trained_for", "reads_layers", "sha256", "weight_bytes")
_MACHINE = ("device", "device_name", "cpu", "cpu_count", "threads", "platform")
_ENDS = {"done": "all lanes ended", "stopped": "stopped by its user", "error": "ended by an error"}


def run_markdown(trace: Trace, *, title: str = "", run_id: str = "", note: str = "", tags: Sequence[str] = ()) -> str:
    """Return the run to be pasted: its result in a sentence and a table, and the protocol, folded."""
    document = trace_document(trace)
    said = verdict(standings(document["lanes"]))
    first = " ".join(filter(None, (f"**{_line(said.sentence)}**" if said.sentence else "", _line(said.rest))))
    parts = [
        f"# {_line(title or 'A specview run')}\n", f"{first}\n", compare_markdown(document),
        "<details>\n<summary>How it was measured, and how to repeat it</summary>\n",
        protocol(trace, document, run_id=run_id, note=note, tags=tags), "</details>\n",
    ]  # fmt: skip
    return printable("\n".join(parts))


def protocol(trace: Trace, document: Json, *, run_id: str = "", note: str = "", tags: Sequence[str] = ()) -> str:
    """Return what another needs to repeat the run: models with their hashes, software, machine, settings, prompt, command.

    document: the trace's, as `trace_document` makes it.
    """
    parts = [_about(trace, run_id, note, tags)]
    parts.append("## How it was measured\n\n" + _measured(document))
    parts.append("## How to repeat it\n\n" + _repeat(trace))
    parts.append("## Models\n\n" + _models(trace))
    parts.append("## Software and machine\n\n" + _software(trace))
    parts.append("## Settings\n\n" + _settings(trace))
    parts.append("## Prompt\n\n" + _prompt(trace))
    return printable("\n".join(parts))


def _about(trace: Trace, run_id: str, note: str, tags: Sequence[str]) -> str:
    lines = []
    if run_id:
        lines.append(f"- Run: {_code(run_id)}")
    if isinstance(trace.run.get("recorded_at"), str):
        lines.append(f"- Recorded: {_line(trace.run['recorded_at'])}")
    unfinished = [record.name for record in trace.records if record.end is None]
    ended = _ENDS.get(str(trace.race.get("end")), "" if unfinished else "all lanes ended")
    if unfinished:
        ended = f"the recording ends early; unfinished: {', '.join(map(_line, unfinished))}"
    lines.append(f"- Ended: {ended or 'not recorded'}")
    for record in trace.records:
        if record.error:
            lines.append(f"- {_line(record.name)} failed: {_line(record.error)}")
    if isinstance(trace.race.get("busy"), str) and trace.race["busy"]:
        lines.append(f"- Warning: {_line(trace.race['busy'])}")
    if tags:
        lines.append(f"- Tags: {', '.join(map(_line, tags))}")
    words = "\n".join(lines) + "\n"
    return words + (f"\n{note.strip()}\n" if note else "")  # the user's own words, Markdown if they like


def _measured(document: Json) -> str:
    notes = ["Speed counts decoding only: load and prefill are not in tok/s. Acceptance rate is accepted / judged, draft "
             "acceptance accepted / proposed. The predicted speedup is modelled from alpha and the run's own measured "
             "costs; everything else is measured."]  # fmt: skip
    for lane in document["lanes"]:
        if is_lossy(lane["run"].get("rule")):
            notes.append(f"{_line(lane['name'])}: the rule {lane['run']['rule']} is lossy.")
        spread, over = lane.get("speedup_spread"), lane.get("speedup_over")
        if over:
            words = f"speedup {lane['speedup']:.2f}, {speedup_over(Speedup.from_dict(over))}"
            words += f"; middle half of the run's eighths {spread[0]:.2f} to {spread[1]:.2f}" if spread else ""
            notes.append(f"{_line(lane['name'])}: {words}.")
    if document["lanes"][0]["run"].get("check_mode"):
        notes.append("Check mode pads one-row passes: outputs are comparable, times are not.")
    return "\n".join(f"- {note}" for note in notes) + "\n"


def _repeat(trace: Trace) -> str:
    try:
        repeat = command_line(trace)
    except SpecviewError as error:
        return f"No command line of this specview repeats it: {_line(str(error))} The settings below say what was run.\n"
    words = ""
    if repeat.prompt_file:
        words = (
            f"Save the prompt below as {_code(PROMPT_FILE)} in UTF-8, without a newline at its end (its SHA-256 is "
            "given there), then:\n\n"
        )
    words += markdown_block(repeat.command, "sh")
    seeds = trace.records[0].settings.get("seed")
    words += (
        f"\nThe seed is {seeds}. Model files are the same where their SHA-256 is that given under Models. Times depend "
        "on the machine and on what else it does; ids of the output do not, but for ties between kernels.\n"
    )
    return words + "".join(f"\n{_line(note)}\n" for note in repeat.notes)


def _models(trace: Trace) -> str:
    rows = [["role", "model", "file", "SHA-256", "made from", "its SHA-256", "dtype", "bytes", "context", "vocabulary"]]
    run = trace.run
    rows.append(["target", *_model_cells(run, "target_")])
    heads: list[str] = []
    for index, record in enumerate(trace.records):
        own = lane_facts(run, index)
        if own.get("draft_model_name"):
            rows.append([f"draft of {record.name}", *_model_cells(own, "draft_")])
        named = sorted({match[1] for key in own if (match := re.fullmatch(r"draft_(.+)_reads_layers", key))})
        for method in named:
            facts = [f"{key} {own[f'draft_{method}_{key}']}" for key in _HEAD if own.get(f"draft_{method}_{key}") is not None]
            heads.append(f"- {_line(method)} head of {_line(record.name)}: {_line(', '.join(facts))}")
    text = _table(rows)
    return text + ("\n" + "\n".join(heads) + "\n" if heads else "")


def _model_cells(facts: Mapping[str, Any], prefix: str) -> list[str]:
    return [_cell(facts.get(f"{prefix}{key}")) for key in _MODEL]


def _software(trace: Trace) -> str:
    versions = {key.removeprefix("version_"): value for key, value in trace.run.items() if key.startswith("version_")}
    rows = [["what", "value"]]
    rows += [[name.replace("_", "-"), _cell(value, "not installed")] for name, value in versions.items()]
    rows += [[key.replace("_", " "), _cell(trace.run.get(key))] for key in _MACHINE]
    return _table(rows)


def _settings(trace: Trace) -> str:
    first = trace.records[0].settings
    rows = [["setting of all lanes", "as asked"]]
    rows += [
        [key, _cell(first.get(key), "(the engine's choice)" if key in _ENGINES_CHOICE else "-")]
        for key in _SHARED
        if key in first
    ]
    text = _table(rows)
    lanes = [["lane", "settings", "prefill s"]]
    for record in trace.records:
        own = {key: value for key, value in record.settings.items() if key not in _SHARED and value is not None}
        lanes.append([record.name, ", ".join(f"{key}={value}" for key, value in own.items()), f"{record.prefill_s:.4g}"])
    return text + "\n" + _table(lanes)


def _prompt(trace: Trace) -> str:
    data = trace.prompt_text.encode("utf-8", "replace")
    ids = " ".join(map(str, trace.prompt_ids))
    lines = [
        f"- {len(trace.prompt_ids)} tokens, {'through the chat template' if _chat(trace) else 'raw'}",
        f"- SHA-256 of the text: {_code(hashlib.sha256(data).hexdigest())}",
        f"- SHA-256 of the token ids, separated by spaces: {_code(hashlib.sha256(ids.encode()).hexdigest())}",
    ]
    if isinstance(trace.run.get("workload_sha256"), str):
        lines.append(f"- Workload file's SHA-256: {_code(trace.run['workload_sha256'])}")
    history = trace.run.get("history")
    if isinstance(history, list) and history:
        lines.append(f"- A later turn: {len(history)} messages of the conversation came before it (in the trace file)")
    branch = known_branch(trace.run)
    if branch is not None:
        lines.append(f"- A branch: it {_line(branch.words)}; the last {len(branch.token_ids)} of its tokens are output that was given")
    return "\n".join(lines) + "\n\n" + markdown_block(trace.prompt_text, "text")


def _chat(trace: Trace) -> bool:
    return trace.records[0].settings.get("chat") is not False


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return markdown_rows(head, body)


def _cell(value: Any, absent: str = "-") -> str:
    return absent if value is None or value == "" else str(value)


def _code(text: str) -> str:
    return f"`{' '.join(text.split()).replace('`', '')}`"


def _line(text: object) -> str:
    return markdown_text(str(text))

