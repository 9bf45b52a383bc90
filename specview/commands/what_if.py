"""`specview what-if`: what a recorded run would have cost with other draft lengths and policies; no model is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specview.commands.arguments import Parser, parse_lane
from specview.commands.run_files import lane_of, read_ref
from specview.commands.running import running
from specview.decoding.ledger import RunRecord
from specview.drafting.plain import is_baseline
from specview.drafting.policies import POLICIES
from specview.errors import SpecviewError, UsageError
from specview.experiments.sweep_grid import parse_ks
from specview.files.atomic import os_reason
from specview.files.schema import plain
from specview.lab.measured import passes_of
from specview.lab.what_if import what_if_of_race
from specview.lab.what_if_figures import what_if_report
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
    asked: dict[str, Any] = {
        "lengths": None if arguments.k is None else sorted(parse_ks(arguments.k)),
        "thresholds": None if arguments.threshold is None else real_list(arguments.threshold),
        "policies": None if arguments.policy is None else [policy_of(text) for text in arguments.policy],
    }
    if any(value is not None for value in asked.values()):
        asked = {name: value or [] for name, value in asked.items()}
    with running(arguments) as run:
        trace = read_ref(arguments.trace_file)
        records = trace.records
        calibrated = costs_of(arguments.costs) if arguments.costs is not None else {}
        lane = _first_drafting(records) if arguments.lane is None else lane_of(arguments.lane, records)
        _, found = what_if_of_race(records, lane, trace.run, calibrated, tell=run.show, **asked)
        document = {"trace": arguments.trace_file, "lane": lane, "run": plain(trace.run), "settings": plain(records[lane].settings)}
        return run.end(what_if_report(found, document))


def _first_drafting(records: Sequence[RunRecord]) -> int:
    drafting = [index for index, record in enumerate(records) if not is_baseline(record.settings)]
    if not drafting:
        raise SpecviewError("no lane of this trace drafts.", "Record one with a method, at a large k.")
    return drafting[0]


def real_list(text: str) -> list[float]:
    """The thresholds of a list; raises UsageError."""
    (option,) = POLICIES["confidence"].options
    found = [float(option.parse(part.strip())) for part in text.split(",")[: _LONGEST_LIST + 1]]
    if len(found) > _LONGEST_LIST:
        raise UsageError(f"--threshold names over {_LONGEST_LIST} values.", "Name fewer.")
    return sorted(set(found))


def policy_of(text: str) -> tuple[str, Mapping[str, Any], int | None]:
    """The policy, its options and k of "NAME,k=8,OPTION=VALUE"; raises UsageError."""
    name, options = parse_lane(text, "--policy", "policy", POLICIES)
    if name not in POLICIES:
        raise UsageError(f"there is no length policy {name[:80]!r}.", f"Policies: {', '.join(POLICIES)}.")
    asked = options.pop("k", None)
    k = None if asked is None else parse_ks(asked)
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
