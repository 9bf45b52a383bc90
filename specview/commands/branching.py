"""`--branch`: a run that goes on from a place in another's output, with that run's settings where no flag says otherwise."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specview.commands.arguments import Parser, settings_of
from specview.commands.run_files import lane_of, locate
from specview.drafting.lanes import takes
from specview.errors import UsageError
from specview.fields import declared, values_of
from specview.files.reader import read_trace
from specview.library.library import RunLibrary
from specview.library.repeat import lane_text, settings_of_trace
from specview.models.hub import is_repo_id, split_gguf_id
from specview.racing.branching import Alternative, alternatives, branch_at
from specview.racing.resolve import models_named
from specview.settings.branch import Branch
from specview.settings.run import LaneSettings, RunSettings

_HELP = (
    "go on from a place in another run's output: RUN is a run of specview runs, or a trace file; LANE the name of its lane "
    "(default: the first); POSITION counts its output's tokens from 0; TOKEN is what stands there instead: an id, or the text "
    "of one of the likeliest (default: the same). Prompt, models, lanes and sampling are that run's where no flag says "
    "otherwise. =[ID,ID,...] gives all ids of the output so far, and that run need not be there"
)
_PROMPT_FLAGS = {
    "prompt": "--prompt", "prompt_file": "--prompt-file", "prompts": "--prompts", "workload": "--workload",
    "system": "--system", "chat_template": "--chat-template",
}  # fmt: skip
_NOT_TAKEN = {"prompt", "chat", "system", "workload", "chat_template", "observe", "trust_remote_code"}
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """What --branch says: the run and its lane as one text, the position, the token's text (None: the same), or all ids."""

    head: str
    position: int
    token: str | None = None
    ids: tuple[int, ...] = ()


def add_branch_flag(parser: Parser) -> None:
    """Add --branch."""
    group = parser.add_argument_group("going on from another run")
    group.add_argument("--branch", metavar="RUN[:LANE]@POSITION[=TOKEN]", help=_HELP)


def parsed(
    parser: Parser, argv: Sequence[str], methods: Sequence[str], *, all_lanes: bool = False
) -> tuple[argparse.Namespace, RunSettings]:
    """Parse a command that has --branch: its arguments and settings.

    methods are decoded with where neither a flag nor the run that it goes on from names others; of that run the lane that
    is named, or all of them. Raises UsageError or SpecviewError, one line.
    """
    arguments = parser.parse_args(argv)
    if arguments.branch is None:
        return arguments, settings_of(arguments, methods)
    asked = asked_of(arguments.branch)
    if arguments.__dict__.get("prompts") is not None:
        raise UsageError("--branch goes on from one output, and --prompts makes many.", "Leave one of them out.")
    if asked.ids:
        run, _, lane = asked.head.partition(":")
        return arguments, replace(settings_of(arguments, methods), branch=Branch(asked.ids, run, lane, asked.position))
    for name, flag in _PROMPT_FLAGS.items():
        if getattr(arguments, name) is not None:
            raise UsageError(f"{flag} gives another prompt, and a branch goes on after its run's own.", "Leave it out.")
    return _after(parser, argv, arguments, asked, all_lanes)


def asked_of(text: str) -> Asked:
    """What the flag's text says; raises UsageError where it is none."""
    found = re.fullmatch(r"(.*?)@(\d{1,9})(?:=(.*))?", text, re.DOTALL)
    if found is None:
        raise UsageError(f"branch is {text!r}.", "Write RUN:LANE@POSITION, or RUN:LANE@POSITION=TOKEN.")
    head, position, token = found[1], int(found[2]), found[3]
    if token is not None and re.fullmatch(r"\[\d+(,\d+)*\]", token):
        return Asked(head, position, ids=tuple(map(int, token[1:-1].split(","))))
    if not head or token == "":
        raise UsageError(f"branch {text!r} names no {'token' if head else 'run'}.", "Write RUN:LANE@POSITION=TOKEN.")
    return Asked(head, position, token)


def _after(
    parser: Parser, argv: Sequence[str], first: argparse.Namespace, asked: Asked, all_lanes: bool
) -> tuple[argparse.Namespace, RunSettings]:
    """Arguments and settings of a branch of a recorded run; first: the arguments by themselves."""
    run, path, lane_name = _located(asked.head)
    trace = read_trace(path)
    lane = lane_of(lane_name, trace.records) if lane_name else 0
    parent = settings_of_trace(trace)
    rounds = trace.records[lane].rounds
    choice = _chosen(alternatives(rounds, asked.position), asked, trace.records[lane].token_ids)
    branch = branch_at(rounds, asked.position, choice, before=parent.branch, run=run, lane=trace.records[lane].name)

    values = {one.name: value for record in (parent, parent.sampling) for one, value in values_of(record)}
    known = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if name not in _NOT_TAKEN}
    arguments = parser.parse_args(argv, argparse.Namespace(**known, prompt=parent.prompt, system=parent.system, chat=parent.chat))
    arguments.chat_template = parent.chat_template
    if arguments.chat != parent.chat:
        raise UsageError(f"--{'chat' if arguments.chat else 'raw'} gives another prompt than that run's.", "Leave it out.")
    if first.stop:  # what is typed stands in place of the run's, not beside it
        arguments.stop = first.stop
    mine = parent.lanes if all_lanes else parent.lanes[lane : lane + 1]
    own = () if arguments.lanes else mine
    _refuse_unasked(replace(parent, target=arguments.target, lanes=own), arguments, first)
    if own:
        arguments.lanes = [(True, lane_text(_left_open(one, arguments))) for one in own]
    arguments.branch_file = str(path)  # an input: no output may be written over it
    settings = settings_of(arguments, ())
    return arguments, replace(settings, history=parent.history, workload=parent.workload, branch=branch)


def _located(head: str) -> tuple[str, str, str]:
    """What `RUN[:LANE]` means: the run's id or file, its path, and the lane's name. A colon may be part of either."""
    library = RunLibrary()
    entries = library.scan()
    places = [place for place, char in enumerate(head) if char == ":"]
    failed: UsageError | None = None
    for run, lane in ((head, ""), *((head[:place], head[place + 1 :]) for place in places)):
        try:
            path, entry = locate(run, library, entries)
        except UsageError as error:
            failed = error if failed is None or (lane and run == head[: places[0]]) else failed
        else:
            return (entry.id if entry is not None else str(path)), str(path), lane
    assert failed is not None
    raise failed


def _chosen(found: Sequence[Alternative], asked: Asked, output: Sequence[int]) -> Alternative | int:
    """The token that was asked for, of what is known of that place."""
    if asked.token is None or not found:  # where there is no such place `branch_at` says it
        return output[asked.position] if asked.position < len(output) else 0
    if asked.token.isdecimal():
        return int(asked.token)
    quoted = asked.token[0] in "'\"" and asked.token[-1] == asked.token[0] and len(asked.token) > 2
    text = asked.token[1:-1] if quoted else asked.token
    for fits in ([one for one in found if one.text == text], [one for one in found if one.text.strip() == text.strip()]):
        if len(fits) == 1:
            return fits[0]
    words = ", ".join(f"{one.id} {one.text!r}" for one in found[:_LISTED])
    raise UsageError(f"no one token {text!r} is known at position {asked.position}.", f"Give an id. Known there: {words}.")


def _left_open(lane: LaneSettings, arguments: argparse.Namespace) -> LaneSettings:
    """The lane with those settings as by default that a flag gives."""
    usual, named = LaneSettings(), takes(lane)
    given = [name for name in declared(LaneSettings) if name in named and getattr(arguments, name) is not None]
    return replace(lane, **{name: getattr(usual, name) for name in given})


def _refuse_unasked(run: RunSettings, arguments: argparse.Namespace, first: argparse.Namespace) -> None:
    """Raise UsageError for a model of the Hub that the file named and the user did not."""
    for name, role in models_named(run).items():
        typed = name == first.target if role == "target" else arguments.draft is not None
        if not typed and (is_repo_id(name) or split_gguf_id(name) is not None):
            flag = "--target" if role == "target" else "--draft"
            raise UsageError(
                f"the run's file names {name} ({role}), which the Hub may be asked for.", f"Give {flag} {name} to use it."
            )
