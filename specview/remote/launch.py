"""A lane to production: the command that starts a serving engine with a lane's method, and what that engine does otherwise.

What each engine can, and how it is called, stands in launch_table.py; nothing here is executed. launch_check.py goes the other way.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import resolve_rule
from specview.drafting.lanes import checked_lane, default_k, heads_of, needs_draft
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.fields import declared
from specview.models import hub
from specview.models.bundled import find_draft, find_target
from specview.models.catalog import existing
from specview.models.converted import find_converted
from specview.models.heads import find_head
from specview.remote.address import is_address
from specview.remote.launch_table import ENGINES, WAYS, Serving, Way, nearest
from specview.settings.options import HEAD, INSIDE, options_of
from specview.settings.run import BASELINE, BUNDLED, LaneSettings, RunSettings

YAML_FILE = "speculative.yaml"
CONVERT = "convert_hf_to_gguf.py"
TARGET_FOLDER = "TARGET_FOLDER"
"""Stands in a command for the folder that a GGUF target was made from, where it is not known."""
_UNMAPPED = frozenset({"preset", HEAD.name, "members"})
"""Options that a command holds in another form: what a preset stands for, the head's path, the members themselves."""


@dataclass(frozen=True, slots=True)
class Line:
    """What is to be known of a command; must: it fails, or does something else, unless this is heeded."""

    text: str
    must: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """How an engine is started with a lane. No words where it lacks the method: then lacks says so, and what comes nearest.

    before are commands to run once; files what is written beside it; lost the lane's keys that the command cannot hold.
    """

    engine: Serving
    words: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    lost: tuple[str, ...] = ()
    lacks: str = ""

    @property
    def command(self) -> str:
        """All of it as a shell takes it: a word with its value on a line of its own."""
        if not self.words:
            return ""
        parts = [shell_words(words) for words in self.before]
        for name, text in self.files.items():
            parts.append(f"cat > {shlex.quote(name)} <<'EOF'\n{text}EOF")
        return "\n".join([*parts, " \\\n  ".join(shell_words(words) for words in _grouped(self.words))])


def shell_words(words: Sequence[str]) -> str:
    """Words as a shell takes them, each whole whatever is in it."""
    return " ".join(shlex.quote(word) for word in words)


def _grouped(words: Sequence[str]) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and not _number(word):
            lines.append([])
        lines[-1].append(word)
    return lines


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def launches(run: RunSettings, lane: LaneSettings, device: str = "cpu") -> list[Launch]:
    """How every engine is started with a lane; raises UsageError where the lane cannot be."""
    return [launch(engine, run, lane, device) for engine in ENGINES.values()]


def launch(engine: Serving, run: RunSettings, lane: LaneSettings, device: str = "cpu") -> Launch:
    """How one engine is started with a lane. device says whose default k it has where the lane names none."""
    if METHODS[lane.method].served or is_address(run.target):
        return Launch(engine, lacks="A server decodes this lane already: name the model that it is to serve, with a method of its own.")
    lane = checked_lane(lane, run.sampling)
    way, missing = way_of(engine.name, lane)
    if way is None:
        return Launch(engine, lacks=_lacks(engine, missing or lane.method))
    made = _Made(engine, run, lane)
    keys = made.joined(way, device) if way.joins else made.keys(lane, way, device)
    made.note(*way.notes)
    made.policy(keys, way)
    made.rule(keys, way)
    target = made.model(run.target, "target")
    words = [*engine.program, *([engine.model, target] if engine.model else [target])]
    if engine.hub and (hosted := hub.split_gguf_id(target)) and existing(target) is None:
        words = [*engine.program, *(word for pair in zip(engine.hub, hosted, strict=True) for word in pair)]
    words += made.loading()
    words += made.drafting(keys)
    words += made.sampled()
    made.note(*engine.notes)
    return Launch(engine, tuple(words), tuple(made.before), made.files, tuple(made.lines), tuple(dict.fromkeys(made.lost)))


def way_of(engine: str, lane: LaneSettings) -> tuple[Way | None, str]:
    """The way that an engine drafts as a lane does, its options filled in; else None and the method that it lacks."""
    for way in WAYS[engine].get(lane.method, ()):
        if any(lane.options.get(name) != value for name, value in way.when.items()):
            continue
        if way.joins:
            for member in METHODS[lane.method].members(lane.options):
                found, missing = way_of(engine, LaneSettings(member, options=options_of(lane.options, member)))
                if found is None:
                    return None, missing or lane.method
        return way, ""
    return None, lane.method


def _lacks(engine: Serving, method: str) -> str:
    name, why = nearest(engine.name, method)
    set_so = " as this lane sets it" if method in WAYS[engine.name] else ""
    return f"{engine.label} has no {METHODS[method].label}{set_so}. Nearest: {METHODS[name].label} ({why})."


def model_path(ref: str, role: str, engine: Serving) -> str:
    """What names a model to an engine: a bundled one's file or folder, else the ref itself."""
    if ref != BUNDLED:
        path = existing(ref)
        return ref if path is None else str(path)
    gguf = "gguf" in engine.formats
    if role == "draft":
        found = find_draft("llama.cpp" if gguf else "transformers")
    else:
        target = find_target()
        found = target if gguf or target is None else find_converted(target) or target
    return ref if found is None else str(found)


def head_path(kind: str, ref: str) -> str:
    """What names a head to an engine: '' where it is inside the target."""
    if ref == BUNDLED and kind == INSIDE:
        return ""
    try:
        found = find_head(kind, ref)
    except SpecviewError:
        found = None
    return ref if found is None else str(found)


class _Made:
    """A command in the making: its keys, and what is said beside it."""

    def __init__(self, engine: Serving, run: RunSettings, lane: LaneSettings) -> None:
        self.engine, self.run, self.lane = engine, run, lane
        self.before: list[tuple[str, ...]] = []
        self.files: dict[str, str] = {}
        self.lines: list[Line] = []
        self.lost: list[str] = []

    def note(self, *texts: str, must: bool = False) -> None:
        known = {line.text for line in self.lines}
        self.lines += [Line(text, must) for text in texts if text not in known]

    def keys(self, lane: LaneSettings, way: Way, device: str) -> dict[str, Any]:
        """The engine's keys for one method."""
        method = METHODS[lane.method]
        keys: dict[str, Any] = dict(way.fixed)
        k = (lane.k or default_k(lane, device)[0] or 0) if method.drafts else 0
        options = dict(lane.options)
        if method.longest in way.options and not way.k:  # the option that holds the longest draft is all that caps it
            self._cap(lane, way, options, k)
        elif way.deep:
            longest = method.drafted(options).levels or k
            if lane.k is not None and lane.k < longest:
                options[way.deep] = lane.k - 1
                self.lost.append(way.deep)
                self.note(f"k={lane.k} is shorter than the tree's depth: the command gives the shorter one.")
        keys |= {key.name: k + key.plus for key in way.k}
        usual = {option.name: option.default for option in method.options}
        idle = {one.name for one in method.options if one.needs and options.get(one.needs[0]) != one.needs[1]}
        for name, value in options.items():
            key = way.options.get(name)
            if key is not None:
                if value != usual[name] or not _left_open(value):
                    keys[key.name] = value + key.plus if key.plus else value
            elif name not in way.when and name not in _UNMAPPED | idle and "." not in name and value != usual[name]:
                self._lose(name, value)
        if way.draft and (path := self._drafter(lane)):
            keys[way.draft] = path
        return keys

    def _cap(self, lane: LaneSettings, way: Way, options: dict[str, Any], k: int) -> None:
        method = METHODS[lane.method]
        longest = int(options[method.longest])
        if k >= longest:
            return
        options[method.longest] = k
        self.lost.append(method.longest)
        self.note(f"k={k} is below {method.longest}={longest}: the engine has one number for both, and gets {k}.")
        if way.least and int(options[way.least]) > k:
            self.lost.append(way.least)
            self.note(f"{way.least}={options[way.least]} would keep it from drafting at all, and becomes {k}.")
            options[way.least] = k

    def joined(self, way: Way, device: str) -> dict[str, Any]:
        """The keys of a combined method's members, together."""
        method = METHODS[self.lane.method]
        keys: dict[str, Any] = {}
        naming = next(iter(way.fixed))
        names: list[str] = []
        for member in method.members(self.lane.options):
            options = options_of(self.lane.options, member)
            found, _ = way_of(self.engine.name, LaneSettings(member, options=options))
            assert found is not None
            k = self.lane.k if METHODS[member].copies else int(self.lane.options[way.joins])
            own = self.keys(replace(self.lane, method=member, options=options, k=k), found, device)
            names.append(own.pop(naming))
            keys |= own
        return {naming: ",".join(names), **keys}

    def _drafter(self, lane: LaneSettings) -> str:
        if needs_draft(lane):
            return self.model(lane.draft, "draft")
        choice = heads_of(lane)[lane.method]
        path = head_path(choice.kind, choice.ref)
        for name, answer in choice.answers:
            self._lose(name, answer)
        return self._converted(path, head=True) if path and "gguf" in self.engine.formats else path

    def model(self, ref: str, role: str) -> str:
        """What names a model to the engine, with what must be done before where it has another format."""
        path = model_path(ref, role, self.engine)
        if ref == BUNDLED and path == BUNDLED:
            self.note(f"The bundled {role} is not installed here: put a path in place of {BUNDLED!r}.", must=True)
            return path
        if "gguf" in self.engine.formats:
            if existing(path) is None and hub.split_gguf_id(path) is not None:
                if role == "draft":
                    self.note(f"The draft is on the Hub: fetch {path} first, and give the file's path.", must=True)
                return path
            return self._converted(path)
        if path.lower().endswith(".gguf"):
            more = " Run specview once with the transformers engine: it makes that folder." if ref == BUNDLED else ""
            self.note(f"The {role} is a GGUF file, and {self.engine.label} loads a folder of safetensors.{more}", must=True)
        return path

    def _converted(self, path: str, head: bool = False) -> str:
        if path.lower().endswith(".gguf") or path == BUNDLED:
            return path
        name = f"{Path(path).name or 'model'}.gguf"
        words = ["python", CONVERT, path, "--outfile", name]
        if existing(path) is None and hub.is_repo_id(path):
            words.append("--remote")
        if head:
            target = model_path(self.run.target, "target", ENGINES["vllm"])
            words += ["--target-model-dir", TARGET_FOLDER if target.lower().endswith(".gguf") else target]
            if target.lower().endswith(".gguf"):
                self.note(f"{TARGET_FOLDER} is the folder of safetensors that the target's GGUF file was made from.", must=True)
        self.before.append(tuple(words))
        self.note(f"It loads GGUF files: {CONVERT} (of llama.cpp's sources, once) makes {name}.")
        return name

    def policy(self, keys: dict[str, Any], way: Way) -> None:
        """The length policy, where the engine has it."""
        if self.lane.policy == LaneSettings().policy:
            return
        mapped = way.policies.get(self.lane.policy)
        if mapped is None:
            self.lost.append("policy")
            self.note(f"The policy {self.lane.policy} is specview's. {self.engine.label} has {self.engine.policies}.")
            return
        keys |= {key: self.lane.policy_options[name] for name, key in mapped.items()}

    def rule(self, keys: dict[str, Any], way: Way) -> None:
        """How drafts are judged above temperature 0."""
        if self.lane.method == BASELINE or self.run.sampling.greedy:
            return
        rule = resolve_rule(self.lane.rule, self.run.sampling)
        if rule == "rejection" and way.sampled:
            keys |= way.sampled
        elif rule not in ("rejection", self.engine.unsampled):
            self.lost.append("rule")
            self.note(f"The rule {rule} is specview's: the engine judges drafts its own way, which keeps the target's output.")
        elif rule == "rejection" and way.draft:
            self.note("It drafts the likeliest tokens, not sampled ones: as exact, and above temperature 0 fewer are accepted.")

    def _lose(self, name: str, value: Any) -> None:
        self.lost.append(name)
        self.note(f"{name}={value} has no flag there.")

    def loading(self) -> list[str]:
        """Flags for how the target is loaded: what the run says otherwise than by default."""
        words: list[str] = []
        for name, one in declared(RunSettings).items():
            value = getattr(self.run, name)
            if name in self.engine.loading and value != one.default:
                words += [self.engine.loading[name], str(value)]
        return words

    def drafting(self, keys: Mapping[str, Any]) -> list[str]:
        """The drafting keys as the engine takes them: flags, JSON, or a YAML file."""
        if not keys:
            return []
        if not self.engine.config:
            return [word for key, value in keys.items() for word in ([f"--{key}"] if value is True else [f"--{key}", _text(value)])]
        if not self.engine.in_file:
            return [self.engine.config, json.dumps(dict(keys), ensure_ascii=False)]
        self.files[YAML_FILE] = "speculative_config:\n" + "".join(f"  {key}: {_yaml(value)}\n" for key, value in keys.items())
        return [self.engine.config, YAML_FILE]

    def sampled(self) -> list[str]:
        """The sampling defaults of the server."""
        given: dict[str, Any] = {}
        for name, one in declared(SamplingParams).items():
            value = getattr(self.run.sampling, name)
            if name in self.engine.sampling and not (name == "seed" and self.run.sampling.greedy):
                if name == "temperature" or not self.engine.sampling_flag or value != one.default:
                    given[self.engine.sampling[name]] = value
            elif value != one.default:
                self.note(f"{name}={value} is for the request to say.")
        if not self.engine.sampling_flag:
            return [word for key, value in given.items() for word in (key, _text(value))]
        return ["--generation-config", "vllm", self.engine.sampling_flag, json.dumps(given)]


def _left_open(value: Any) -> bool:
    """Whether a default says that the engine is to find out by itself."""
    return isinstance(value, int) and not isinstance(value, bool) and value < 0


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else str(value)


def _yaml(value: Any) -> str:
    """A scalar as YAML (and JSON) reads it: text in double quotes unless it is a plain word."""
    if isinstance(value, str) and value.replace("_", "").isascii() and value.replace("_", "").isalpha() and value.lower() not in ("true", "false", "yes", "no", "on", "off", "null"):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}" for char in text)


