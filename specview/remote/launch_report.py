"""Launch commands and what became of a pasted one, as Reports: for the command line and the window alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specview.files.report import Block, Report, Section, Text, Tone
from specview.remote.launch import Launch
from specview.remote.launch_check import Checked, Level

_TONES: dict[Level, Tone] = {"bad": "bad", "warning": "warning", "note": "note"}


def launch_blocks(made: Launch) -> list[Block]:
    """One engine's command, what must be heeded, and what it does otherwise."""
    if made.lacks:
        return [Text(made.lacks, "warning")]
    lines = sorted(made.lines, key=lambda line: not line.must)
    return [Text(made.command, "code"), *(Text(line.text, "warning" if line.must else "note") for line in lines)]


def serve_report(lanes: Sequence[tuple[str, str, Sequence[Launch]]]) -> Report:
    """The commands of lanes: of each its name, the lane as --lane takes it, and its launches."""
    sections = [Section(f"{name}: {made.engine.label}" if len(lanes) > 1 else made.engine.label, launch_blocks(made))
                for name, _, launches in lanes for made in launches]  # fmt: skip
    sources = dict.fromkeys(made.engine.source for _, _, launches in lanes for made in launches)
    data = {"lanes": [{"name": name, "lane": text, "servers": [launch_json(made) for made in launches]} for name, text, launches in lanes]}
    title = f"To production: {', '.join(name for name, _, _ in lanes)}"
    return Report(title, [*sections, Text(f"Nothing was started. As of: {'; '.join(sources)}.", "note")], data)


def launch_json(made: Launch) -> dict[str, Any]:
    """A launch as JSON values; its command is null where the engine lacks the method."""
    return {
        "server": made.engine.name, "label": made.engine.label, "source": made.engine.source, "command": made.command or None,
        "words": list(made.words), "before": [list(words) for words in made.before], "files": dict(made.files),
        "notes": [{"text": line.text, "must": line.must} for line in made.lines], "not_carried": list(made.lost), "lacks": made.lacks or None,
    }  # fmt: skip


def check_report(checked: Checked, lane: str) -> Report:
    """What a pasted command says; lane as --lane takes it, '' where none stands for it."""
    blocks: list[Block] = []
    engine = checked.engine
    if engine is not None:
        blocks.append(Text(f"{engine.label}{f', target {checked.target}' if checked.target else ''}."))
    for one in checked.findings:
        now = f" Now: {one.now}" if one.now else ""
        blocks.append(Text(f"{one.word}: {one.text}{now}" if one.word else f"{one.text}{now}", _TONES[one.level]))
    if engine is not None and not checked.findings:
        blocks.append(Text("Nothing in it is old, unknown or contradictory.", "good"))
    if checked.mended:
        blocks += [Section("In today's names", [Text(checked.mended, "code")])]
    if lane:
        words = [f"--lane '{lane}'"] if "'" not in lane else [f'--lane "{lane}"']
        words += [f"--{name.replace('_', '-')} {value:g}" for name, value in checked.sampling.items()]
        blocks += [Section("The lane it stands for", [Text(" ".join(words), "code")])]
    if engine is not None:
        blocks.append(Text(f"Nothing was run. As of: {engine.source}.", "note"))
    data = {
        "server": engine.name if engine else None, "label": engine.label if engine else None, "accepted": checked.accepted,
        "target": checked.target or None, "lane": lane or None, "sampling": dict(checked.sampling), "mended": checked.mended or None,
        "findings": [{"level": one.level, "word": one.word, "text": one.text, "now": one.now or None} for one in checked.findings],
    }  # fmt: skip
    return Report("Launch command", blocks, data)
