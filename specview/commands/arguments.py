"""The flags that `run` and `compare` share, and the RunSettings they make."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from specview.commands.terminal import safe_text
from specview.decoding.sampling import SamplingParams
from specview.drafting.lanes import needs_draft, takes
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.fields import Setting, check, declared, values_of
from specview.files.atomic import os_reason
from specview.racing import workloads
from specview.racing.resolve import idle_notes, is_served, served_lanes, with_members, without_secret
from specview.remote import keys
from specview.remote.address import is_address
from specview.settings.options import idle_option
from specview.settings.run import MAX_LANES, LaneSettings, RunSettings, shared_settings

MAX_PROMPT_BYTES = 16 << 20

IDLE: Mapping[str, Any] = {
    **dict.fromkeys(("lanes", "draft", "draft_engine", "policy", "rule", "trace")),
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "observe": "off", "check_mode": False,
}  # fmt: skip
"""What the shared settings need, for commands that have no flags for it: they decode greedily, without lanes."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one UsageError line instead of a usage dump and an exit."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [options]",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise UsageError in place of argparse's exit."""
        raise UsageError(f"{message.removeprefix('argument ').rstrip('.')}.", f"See {self.prog} --help.")


def whole(text: str) -> int:
    """Parse a whole number; argparse names the flag when it is not one."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


MOST_OF_A_RANGE = 10_000


def wholes(text: str) -> tuple[int, ...]:
    """Parse whole numbers with commas between them, and ranges of them: 1,2,4 or 1..8 or 1-8."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        span = re.fullmatch(r"(\d+)\s*(?:\.\.|-)\s*(\d+)", part)
        if span is None:
            found.append(whole(part))
            continue
        first, last = int(span[1]), int(span[2])
        if not 0 <= last - first < MOST_OF_A_RANGE:
            raise argparse.ArgumentTypeError(f"{part!r} holds no numbers, or too many; write the least first")
        found += range(first, last + 1)
    return tuple(found)


def real(text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


class _AddLane(argparse.Action):
    """Collects --method and --lane in the order given, as (is a whole lane, text)."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Append one lane."""
        namespace.lanes = [*(namespace.lanes or []), (option_string == "--lane", values)]


SETTINGS: Mapping[str, Setting] = {**shared_settings(), **declared(LaneSettings)}
"""Every setting by its name: those of a run, of sampling and of a lane."""


def add_settings(container: argparse._ActionsContainer, group: str, **more: Any) -> None:
    """Add the flags of the settings that declare themselves of a group; more goes to add_argument.

    A flag of a lane is None where it was not given: it holds for every lane that takes it and has none of its own.
    """
    for name, one in SETTINGS.items():
        if one.group != group:
            continue
        how: dict[str, Any] = {"help": one.help, "default": None if name in declared(LaneSettings) else one.default}
        if one.kind is bool:
            how["action"] = "store_true"
        else:
            how |= {"type": _reader(one), "metavar": one.metavar}
        if one.repeated:
            how |= {"action": "append", "default": list(one.default)}
        container.add_argument(one.flag, **how | more)


def _reader(one: Setting) -> Callable[[str], Any]:
    """What reads a flag's text; "auto" leaves open what a form offers as automatic."""
    if one.kind in (int, float):
        return whole if one.kind is int else real
    return lambda text: None if text == "auto" and ("", "automatic") in one.offers else text


def add_target_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the flags that say which target runs, where and how; return their group."""
    parser.set_defaults(takes_lanes=False)
    model = parser.add_argument_group("models")
    add_settings(model, "models")
    return model


def add_prompt_flags(parser: argparse.ArgumentParser, *, sets: bool = False) -> argparse._ArgumentGroup:
    """Add the flags that say what the prompt is; return their group.

    sets says that the command takes a whole set of prompts (`prompts_of`); of others `settings_of` refuses one.
    """
    parser.set_defaults(takes_prompts=sets)
    prompt = parser.add_argument_group("prompt")
    source = prompt.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT")
    source.add_argument("--prompt-file", metavar="FILE", help="a text file; - is standard input")
    source.add_argument("--prompts", metavar="FILE.jsonl",
                        help=f"a set of prompts: {workloads.FORMATS}"
                        if sets else argparse.SUPPRESS)  # fmt: skip
    source.add_argument("--workload", metavar="NAME",
                        help=f"a built-in prompt (default: {workloads.DEFAULT}): {', '.join(workloads.KINDS)}; "
                             "add -pt for its Portuguese twin")  # fmt: skip
    form = prompt.add_mutually_exclusive_group()
    form.add_argument("--chat", dest="chat", action="store_true", default=True,
                      help="through the model's chat template (default)")  # fmt: skip
    form.add_argument("--raw", dest="chat", action="store_false", help="the bare prompt, to be continued")
    add_settings(prompt, "prompt", default=None)
    return prompt


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how tokens are sampled."""
    add_settings(parser.add_argument_group("sampling, applied alike to target and draft"), "sampling")


def add_shared_flags(parser: argparse.ArgumentParser, *, sets: bool = False) -> None:
    """Add the flags of DESIGN section 8 that run and compare share; sets as in `add_prompt_flags`."""
    model = add_target_flags(parser)
    add_settings(model, "draft")
    add_settings(model, "checks")

    parser.set_defaults(takes_lanes=True)
    lanes = parser.add_argument_group("drafting")
    lanes.add_argument("--method", action=_AddLane, dest="lanes", metavar="METHOD", help=", ".join(METHODS))
    lanes.add_argument("--lane", action=_AddLane, dest="lanes", metavar="SPEC",
                       help='a lane with settings of its own: "METHOD,k=8,rule=match,name=..,policy=..,draft=..,'
                            'OPTION=.."; quote a value that has a comma')  # fmt: skip
    add_settings(lanes, "drafting")
    add_settings(lanes, "policy", help=f"draft length policy: {', '.join(POLICIES)} (default: constant)")

    add_sampling_flags(parser)
    add_settings(add_prompt_flags(parser, sets=sets), "output")

    output = parser.add_argument_group("output")
    add_settings(output, "observe", choices=SETTINGS["observe"].choices, default=None)
    output.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    output.add_argument("--trace", metavar="FILE", help="write every round as it happens (JSON Lines)")


def lane_keys_help() -> str:
    """Return the options that a --lane may set besides the shared keys, a line each, for --help."""
    lines = [
        "keys of a lane besides k, rule, policy, draft, draft-engine and name (a combined method takes those of",
        'its members as MEMBER.KEY: "cascade,members=ngram-simple+draft-model,ngram-simple.size_n=8"):',
    ]
    for owner, options in (
        *((method.name, method.options) for method in METHODS.values()),
        *((f"policy {policy.name}", policy.options) for policy in POLICIES.values()),
    ):
        for option in options:
            lines.append(f"  {owner}: {option.name} (default {option.default}): {option.help}")
    return "\n".join(lines)


def settings_of(
    arguments: argparse.Namespace, default_methods: Sequence[str], *, most_lanes: int | None = MAX_LANES
) -> RunSettings:
    """Return the RunSettings of parsed flags; raise UsageError or SpecviewError, one line.

    most_lanes: what one race takes; None where the lanes do not run in one.
    """
    prompt, system, workload = _prompt(arguments)
    for text in (prompt, system):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise UsageError("the prompt is not UTF-8 text.", "Save it as UTF-8, or set a UTF-8 locale.")
    if arguments.chat and not prompt.strip():
        raise UsageError("the prompt is empty.", "Give --prompt TEXT, --prompt-file FILE or --workload NAME.")
    served = is_address(getattr(arguments, "target", ""))
    if served:
        arguments.target = keys.take(arguments.target)
    given = arguments.lanes or [(False, method) for method in default_methods if not served]
    own = [parse_lane(text) if whole_lane else (text, {}) for whole_lane, text in given]
    lanes = [without_secret(_with_defaults(own_keys, method, arguments)) for method, own_keys in own]
    if served and arguments.takes_lanes:
        mine = served_lanes(arguments.target)
        lanes = [replace(lane, options=mine[0].options) if is_served(lane) and not lane.options else lane for lane in lanes]
        lanes = [*(one for one in mine if all(lane.options != one.options for lane in lanes)), *lanes]
    if arguments.takes_lanes:
        _refuse_idle_lane_flags(arguments, [takes(lane) - _named(own_keys) for lane, (_, own_keys) in zip(lanes[len(lanes) - len(own) :], own, strict=True)])
    for flag, given_text in (("--system", arguments.system), ("--chat-template", arguments.chat_template)):
        if not arguments.chat and given_text:
            raise UsageError(f"{flag} is for a chat, and --raw gives the bare prompt.", "Leave one of them out.")
    settings = RunSettings(
        **_given(arguments, RunSettings)
        | {
            "prompt": prompt,
            "system": system,
            "workload": workload,
            "sampling": SamplingParams(**_given(arguments, SamplingParams)),
            "observe": arguments.observe or ("full" if arguments.trace else "light"),
            "lanes": tuple(_distinct_names(lanes, most_lanes)),
        }
    )
    check(settings)
    _refuse_idle_flags(settings)
    for note in idle_notes(settings):
        sys.stderr.write(f"specview: {safe_text(note)}\n")
    return settings


def _given(arguments: argparse.Namespace, record: type) -> dict[str, Any]:
    """What the flags say of a record's settings; a command need not have them all."""
    found = {name: getattr(arguments, name) for name in declared(record) if hasattr(arguments, name)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def _refuse_idle_flags(settings: RunSettings) -> None:
    """Raise UsageError for a flag of an engine that neither the target nor a draft of this run uses."""
    engines = {settings.engine, *(lane.draft_engine for lane in settings.lanes if needs_draft(lane))}
    for one, value in values_of(settings):
        if one.engine and one.engine not in engines and value != one.default:
            raise UsageError(
                f"{one.flag} is for the {one.engine} engine, and this run uses {settings.engine}.",
                f"Leave it out, or give --engine {one.engine}.",
            )


def _named(keys: Mapping[str, str]) -> frozenset[str]:
    """The shared flags that a lane's own keys stand in for."""
    return frozenset(key.replace("-", "_") for key in keys)


def _refuse_idle_lane_flags(arguments: argparse.Namespace, taken: Sequence[frozenset[str]]) -> None:
    """Raise UsageError for a flag of all lanes that none of them takes; taken: those that each lane takes."""
    for name, one in declared(LaneSettings).items():
        if getattr(arguments, name) is not None and not any(name in own for own in taken):
            raise UsageError(f"{one.flag} says nothing: no lane here takes it from there.", "Leave it out.")


def parse_lane(
    text: str, flag: str = "--lane", what: str = "method", known: Iterable[str] = METHODS
) -> tuple[str, dict[str, str]]:
    """Split "METHOD,key=value,..." into the method and its keys; quotes keep a comma in a value."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters, lexer.escape = ",", True, "", ""
    try:
        fields = list(lexer)
    except ValueError:
        raise UsageError(f"{flag} {text!r} has an open quote.", "Close it.") from None
    method = ""
    keys: dict[str, str] = {}
    for place, item in enumerate(fields):
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals and place == 0:
            method = key
        elif not equals or not key:
            raise UsageError(f"{flag} {text!r} has {item.strip()!r} in it.", f'Write "{what.upper()},key=value,...".')
        elif key in keys:
            raise UsageError(f"{flag} {text!r} gives {key} twice.", "Give it once.")
        else:
            keys[key] = value.strip()
    method = keys.pop(what, method)
    if not method:
        raise UsageError(f"{flag} {text!r} names no {what}.", f"Known: {', '.join(known)}.")
    return method, keys


def _with_defaults(keys: Mapping[str, str], method: str, arguments: argparse.Namespace) -> LaneSettings:
    """Build a lane from its own keys, then the flags that hold for all lanes."""
    known = METHODS.get(method)
    if known is None:
        raise UsageError(f"there is no method {method!r}.", f"Methods: {', '.join(METHODS)}.")
    left = dict(keys)
    taken = takes(LaneSettings(method, options={"members": left["members"]} if known.combines and "members" in left else {}))
    settings: dict[str, Any] = {"name": left.pop("name", "")}
    for name, one in declared(LaneSettings).items():
        key = one.flag.removeprefix("--")
        if key in left and name not in taken:
            raise UsageError(f"a lane of {method} takes no {key}.", "Leave it out.")
        if key in left:
            settings[name] = one.parse(left.pop(key))
        elif name in taken and getattr(arguments, name, None) is not None:
            settings[name] = getattr(arguments, name)
    lane = LaneSettings(method, **settings)
    left = dict(with_members(replace(lane, options=left), arguments.target, arguments.engine).options)
    own = {option.name for option in known.options}
    for member in known.members(left):
        if member in METHODS:
            own |= {f"{member}.{option.name}" for option in METHODS[member].options}
    chosen = POLICIES.get(lane.policy)
    policys = {option.name for option in chosen.options} if chosen is not None else set()
    options: dict[str, str] = {}
    policy_options: dict[str, str] = {}
    for key, value in left.items():
        if key in own:
            options[key] = value
        elif key.removeprefix("policy.") in policys:
            policy_options[key.removeprefix("policy.")] = value
        else:
            names = ", ".join(["k", "rule", "policy", "draft", "draft-engine", "name", *sorted(own | policys)])
            raise UsageError(f"a lane of {method} has no key {key!r}.", f"Its keys: {names}.")
    idle = idle_option(known.options, options, known.resolve(options))
    if idle is not None:
        raise UsageError(f"lane {method}: {idle}")
    return replace(lane, options=options, policy_options=policy_options)


def _distinct_names(lanes: Sequence[LaneSettings], most: int | None = MAX_LANES) -> list[LaneSettings]:
    """Name lanes that would share a label by what sets them apart: their method, k and rule, or a number."""
    named = list(lanes)
    for place, lane in enumerate(named):
        if not lane.name and sum(other.label == lane.label for other in lanes) > 1:
            parts = [lane.method, *([f"k={lane.k}"] if lane.k is not None else [])]
            parts += [f"{key}={value}" for key, value in lane.options.items()]
            parts += [f"draft={lane.draft}"] if any(other.draft != lane.draft for other in lanes) else []
            parts += [lane.rule] if lane.rule != "auto" else []
            parts += [lane.policy] if lane.policy != "constant" else []
            named[place] = replace(lane, name=" ".join(parts))
    labels = [lane.label for lane in named]
    for place, lane in enumerate(named):
        earlier = labels[:place].count(lane.label)
        if earlier:
            named[place] = replace(lane, name=f"{lane.label} ({earlier + 1})")
    if most is not None and len(named) > most:
        raise UsageError(f"{len(named)} lanes.", f"A race takes plain and up to {MAX_LANES - 1} others.")
    return named


def _prompt(arguments: argparse.Namespace) -> tuple[str, str, str | None]:
    """Return the prompt's text, the system text and the workload's name or None; of a set its first prompt's."""
    system = arguments.system or ""
    if getattr(arguments, "prompts", None) is not None:
        if not arguments.takes_prompts:
            raise UsageError("this command takes one prompt, not a set.", "specview compare and tune take --prompts.")
        first = prompts_of(arguments).prompts[0]
        return first.text, first.system, None
    if arguments.prompt is not None:
        return arguments.prompt, system, None
    if arguments.prompt_file is not None:
        return read_prompt(arguments.prompt_file), system, None
    workload = workloads.load(arguments.workload if arguments.workload is not None else workloads.DEFAULT)
    return workload.prompt, workload.system if arguments.system is None else system, workload.name


def prompts_of(arguments: argparse.Namespace) -> workloads.Workload:
    """Return every prompt that the flags name: those of --prompts or --workload, or the one given by itself.

    Each has its workload's name; --system stands in for the system text of all. Raises UsageError or SpecviewError,
    one line, as `settings_of`.
    """
    if arguments.prompts is not None:
        found = workloads.load_prompts_file(arguments.prompts)
    elif arguments.prompt is not None or arguments.prompt_file is not None:
        text, system, _ = _prompt(arguments)
        one = (workloads.Prompt(text, system),)
        return workloads.Workload("prompt", one, workloads.content_sha256(one))
    else:
        found = workloads.load(arguments.workload if arguments.workload is not None else workloads.DEFAULT)
        found = replace(found, prompts=tuple(replace(prompt, workload=found.name) for prompt in found.prompts))
    if arguments.system is None:
        return found
    prompts = tuple(replace(prompt, system=arguments.system) for prompt in found.prompts)
    return replace(found, prompts=prompts, sha256=workloads.content_sha256(prompts))


def read_prompt(name: str) -> str:
    """Read a prompt file (or standard input for -) as UTF-8; raise SpecviewError, one line."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise SpecviewError(
            f"cannot read the prompt file {name!r}: {os_reason(error)}.", "Check the file's name."
        ) from None
    if len(data) > MAX_PROMPT_BYTES:
        raise SpecviewError(
            f"the prompt file {name!r} is larger than {MAX_PROMPT_BYTES >> 20} MB.", "Use a shorter prompt."
        )
    if b"\0" in data:  # UTF-16 without a mark passes for UTF-8 full of NULs
        raise SpecviewError(f"the prompt file {name!r} is no text: it holds NUL bytes.", "Save it as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecviewError(f"the prompt file {name!r} is not UTF-8 text.", "Save it as UTF-8.") from None
