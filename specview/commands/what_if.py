"""`specview what-if`: what a recorded run would have cost with other draft lengths and policies; no model is loaded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specview.commands.arguments import Parser
from specview.commands.outputs import Outputs
from specview.commands.run_files import read_ref
from specview.commands.running import stop_on_signals
from specview.commands.terminal import ProgressLine, figure, safe_text, table
from specview.drafting.plain import is_baseline
from specview.drafting.policies import POLICIES
from specview.errors import SpecviewError, Stopped, UsageError
from specview.files.atomic import os_reason
from specview.files.reader import Trace
from specview.files.schema import Json, plain
from specview.lab.what_if import passes_of, replay_of_lane, what_if
from specview.lab.what_if_figures import Alternative, Range, WhatIf
from specview.lab.what_if_lane import Replay
from specview.racing.settings import MAX_K
from specview.settings.options import resolve

_DESCRIPTION = """\
From one recorded run, best at a large k, recompute what other draft lengths, the confidence threshold, each length
policy and an oracle would have cost. Drafters without a model run again on the recorded ids; what a model would have
guessed is in the trace (record it with --trace); what is not known is bounded. Times are the run's own measured ones.
A TRACE is a file written with --trace, or a run of the library: an id, a name, last, last~1, ..."""

_EXAMPLES = """\
examples:
  specview compare --lane "draft-model,k=8" --lane "prompt-lookup,k=8" --workload story --trace run.jsonl
  specview what-if run.jsonl
  specview what-if run.jsonl --lane 2 --k 1-4,8 --threshold 0.3,0.5,0.7
  specview what-if run.jsonl --policy "off-below,threshold=0.5" --policy "adaptive,k=8" --json -
  specview explain --json costs.json && specview what-if run.jsonl --costs costs.json"""

_LONGEST_LIST = 200
_MOST_BYTES = 256 << 20


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview what-if", _DESCRIPTION, _EXAMPLES)
    parser.usage = "specview what-if [options] TRACE"
    parser.add_argument("trace_file", metavar="TRACE")
    asked = parser.add_argument_group("what to ask (default: a choice of all; with one of these, only those named)")
    asked.add_argument("--lane", metavar="N", help="a lane by number (0 is the first) or name (default: the first that drafts)")
    asked.add_argument("--k", metavar="LIST", help="draft lengths: 1-4,8 or 1..4,8")
    asked.add_argument("--threshold", metavar="LIST", help="thresholds of the confidence policy: 0.2,0.5")
    asked.add_argument("--policy", action="append", metavar="SPEC",
                       help=f'"NAME,k=8,OPTION=VALUE", repeatable: {", ".join(POLICIES)}')  # fmt: skip
    asked.add_argument("--costs", metavar="FILE",
                       help="pass times that the trace lacks: a document of explain --json, or another trace")  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    lengths = None if arguments.k is None else whole_list(arguments.k)
    thresholds = None if arguments.threshold is None else real_list(arguments.threshold)
    policies = None if arguments.policy is None else [policy_of(text) for text in arguments.policy]
    if not (lengths is None and thresholds is None and policies is None):
        lengths, thresholds, policies = lengths or [], thresholds or [], policies or []
    with Outputs(argparse.Namespace(json=arguments.json, recorded=arguments.trace_file, costs=arguments.costs)) as outputs, stop_on_signals() as should_stop:
        progress = ProgressLine(sys.stderr)

        def tell(text: str, fraction: float) -> None:
            if should_stop():
                raise Stopped
            progress.show(text, fraction)

        try:
            trace = read_ref(arguments.trace_file)
            calibrated = costs_of(arguments.costs) if arguments.costs is not None else {}
            lane = lane_of(arguments.lane, trace)
            replayed = replay_of_lane(trace.records, lane, trace.run, calibrated)
            found = what_if(
                replayed,
                lengths=lengths,
                thresholds=thresholds,
                policies=policies,
                others=_others(trace, lane, calibrated),
                tell=tell,
            )
        finally:
            progress.clear()
        try:
            outputs.document(_document(arguments.trace_file, lane, trace, found))
        finally:  # a full disk does not take the table too
            if not outputs.to_stdout:
                sys.stdout.write(what_if_text(found))
    return 0


def lane_of(asked: str | None, trace: Trace) -> int:
    """The lane's index that --lane names, by number or name; the first that drafts where it is not given."""
    names = [record.name for record in trace.records]
    if asked is None:
        drafting = [index for index, record in enumerate(trace.records) if not is_baseline(record.settings)]
        if not drafting:
            raise SpecviewError("no lane of this trace drafts.", "Record one with a method, at a large k.")
        return drafting[0]
    if asked in names:
        return names.index(asked)
    if asked.isdecimal() and int(asked) < len(names):
        return int(asked)
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names)) or "none"
    raise UsageError(f"the trace has no lane {asked!r}.", f"Its lanes: {listed}.")


def _others(trace: Trace, lane: int, calibrated: Mapping[int, float]) -> list[Replay]:
    """The other lanes that can be replayed, for the oracle of the method."""
    found = []
    for index in range(len(trace.records)):
        if index != lane:
            try:
                found.append(replay_of_lane(trace.records, index, trace.run, calibrated))
            except SpecviewError:
                continue  # plain, trees, ...: it stays out of the oracle
    return found


def whole_list(text: str) -> list[int]:
    """The whole numbers of a list such as 1-4,8 or 1..4,8; raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().replace("..", "-", 1).partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--k is {text[:80]!r}.", "Use whole numbers and ranges, as 1-4,8.")
        low, high = int(first), int(last) if dash else int(first)
        if not 1 <= low <= high <= MAX_K:
            raise UsageError(f"--k names {part.strip()[:80]}.", f"Use 1 to {MAX_K} drafted tokens a round, the lower first.")
        found += range(low, high + 1)
    return sorted(set(found))


def real_list(text: str) -> list[float]:
    """The thresholds of a list; raises UsageError."""
    (option,) = POLICIES["confidence"].options
    found = [float(option.parse(part.strip())) for part in text.split(",")[: _LONGEST_LIST + 1]]
    if len(found) > _LONGEST_LIST:
        raise UsageError(f"--threshold names over {_LONGEST_LIST} values.", "Name fewer.")
    return sorted(set(found))


def policy_of(text: str) -> tuple[str, Mapping[str, Any], int | None]:
    """The policy, its options and k of "NAME,k=8,OPTION=VALUE"; raises UsageError."""
    name, *pairs = (part.strip() for part in text.split(","))
    if name not in POLICIES:
        raise UsageError(f"there is no length policy {name[:80]!r}.", f"Policies: {', '.join(POLICIES)}.")
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--policy has {pair[:80]!r}.", "Give options as NAME=VALUE, separated by commas.")
        options[key.strip()] = value.strip()
    asked = options.pop("k", None)
    k = None if asked is None else whole_list(asked)
    if k is not None and len(k) != 1:
        raise UsageError(f"--policy has k={asked}.", "Give one k.")
    return name, resolve(POLICIES[name].options, options, name), k[0] if k else None


def costs_of(name: str) -> dict[int, float]:
    """Seconds of passes by rows: of an explain document's calibration, or of a trace's rounds.

    Raises SpecviewError where the file has none.
    """
    path = Path(name)
    try:
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            value = json.loads(path.read_text(encoding="utf-8"))
            given = value.get("calibrated_pass_s") if isinstance(value, dict) else None
            if isinstance(given, dict):
                found = {int(rows): float(seconds) for rows, seconds in given.items()}
                if found and all(rows > 0 and 0 < seconds < 1e6 for rows, seconds in found.items()):
                    return dict(sorted(found.items()))
            if isinstance(value, dict) and "schema" not in value:
                raise SpecviewError(
                    f"{name!r} has no pass times.", "Use a document of specview explain --json (of a race), or a trace."
                )
    except OSError as error:
        raise SpecviewError(f"cannot read {name!r}: {os_reason(error)}.", "Check the file's name.") from None
    except (ValueError, TypeError, RecursionError):
        pass  # not one JSON value: a trace, or nothing that we know
    return passes_of(read_ref(name).records)


def _document(name: str, lane: int, trace: Trace, found: WhatIf) -> Json:
    best = found.advised
    return {
        "trace": name,
        "lane": lane,
        "name": found.lane,
        "method": found.method,
        "run": plain(trace.run),
        "settings": plain(trace.records[lane].settings),
        "tokens": found.tokens,
        "recorded": _row_document(found.recorded),
        "alternatives": [_row_document(one) for one in found.alternatives],
        "best": None if best is None else best.name,
        "sentence": found.sentence,
        "notes": list(found.notes),
        "costs": None if found.costs is None else plain({
            "pass_s": {str(rows): seconds for rows, seconds in found.costs.passes.items()},
            "measured_rows": sorted(found.costs.measured),
            "draft_start_s": found.costs.draft_start_s,
            "draft_step_s": found.costs.draft_step_s,
            "other_s": found.costs.other_s,
            "plain_round_s": found.costs.plain_round_s,
        }),
    }  # fmt: skip


def _row_document(one: Alternative) -> Json:
    """An alternative's figures; a range as {value, low, high}."""
    found: Json = plain(one.as_dict())
    return found


def what_if_text(found: WhatIf) -> str:
    """Return the table for people: the recorded run first, the best row marked, and what the figures rest on."""
    rows = [["", "tokens/pass", "passes", "drafted", "seconds", "speedup", "figures", "pass times", ""]]
    for one in (found.recorded, *found.alternatives):
        mark = "best" if one is found.advised else ""
        rows.append(
            [
                one.name,
                range_text(one.tokens_per_pass),
                range_text(one.rounds, 0),
                figure(one.drafted),
                range_text(one.seconds),
                range_text(one.speedup),
                one.how,
                one.cost_words,
                mark,
            ]
        )
    method = safe_text(f"lane {found.lane}: {found.method}, {found.tokens} tokens").replace("\n", " ")
    whys: dict[tuple[str, str], list[str]] = {}
    for one in found.alternatives:
        whys.setdefault((one.how, one.why), []).append(one.name)
    lines = [f"{how}: {why} ({_names(names)})" for (how, why), names in whys.items()]
    costs = found.costs
    if costs is not None:
        lines.append(
            f"by this run's costs: c {costs.c:.3f}, a plain round {1000 * costs.plain_round_s:.1f} ms; pass times: measured "
            "in this lane, calibrated (another lane, or --costs), interpolated between, extrapolated beyond"
        )
    lines += [safe_text(note) for note in found.notes]
    return f"{method}\n\n{table(rows)}\n{found.sentence}\n\n" + "".join(f"  {line}\n" for line in lines)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, and {len(names) - 3} more"


def range_text(value: Range | None, digits: int = 2) -> str:
    """A figure; with its range where there is one."""
    if value is None:
        return "-"
    low, high = f"{value.low:.{digits}f}", f"{value.high:.{digits}f}"
    text = f"{value.value:.{digits}f}"
    return text if low == high else f"{text} ({low}-{high})"
