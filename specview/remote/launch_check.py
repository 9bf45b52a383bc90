"""A pasted launch command read back: which engine, what each drafting flag is called now, what contradicts, and the lane it stands for.

The command is text from anywhere: it is split as a shell would and never run, and no file that it names is opened.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal

from specview.decoding.sampling import SamplingParams
from specview.drafting.method import MethodInfo
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.remote.launch import CONVERT, head_path, model_path, shell_words
from specview.remote.launch_faults import faults
from specview.remote.launch_flags import FLAGS
from specview.remote.launch_old import ELSEWHERE, JSON_KEYS, OLD_FLAGS, OLD_KEYS, OLD_VALUES, VALUES, Old
from specview.remote.launch_table import ENGINES, WAYS, Serving, Way
from specview.settings.run import BUNDLED, MAX_K, LaneSettings

LONGEST = 64 << 10
"""Characters of a command that are read."""
Level = Literal["bad", "warning", "note"]
_HEREDOC = re.compile(
    r"cat\s+(?:>\s*(?P<name>\S+)\s+<<-?\s*(?P<q>['\"]?)(?P<end>\w+)(?P=q)|<<-?\s*(?P<q2>['\"]?)(?P<end2>\w+)(?P=q2)\s*>\s*(?P<name2>\S+))"
    r"[^\n]*\n(?P<text>.*?)\n?[ \t]*(?:(?P=end)|(?P=end2))[ \t]*(?=\n|$)",
    re.DOTALL,
)  # fmt: skip
_TYPESET = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " "})


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be said of a word of the command; now: what is written today."""

    level: Level
    word: str
    text: str
    now: str = ""


@dataclass(slots=True)
class Checked:
    """What a command says. mended is the whole of it in today's names, '' where nothing was renamed.

    lane is what it stands for here, None where specview has no such method, or the command is not understood.
    """

    engine: Serving | None = None
    findings: list[Finding] = field(default_factory=list)
    lane: LaneSettings | None = None
    target: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    mended: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the engine would take it, as far as is known."""
        return self.engine is not None and not any(one.level == "bad" for one in self.findings)

    def say(self, level: Level, word: str, text: str, now: str = "") -> None:
        """Add a finding."""
        found = Finding(level, word[:200], text, now)
        if found not in self.findings:
            self.findings.append(found)


def check_command(text: str) -> Checked:
    """Read a launch command; raises UsageError where it is no text to read at all."""
    if not text.strip():
        raise UsageError("there is no command.", "Paste one: specview check-command 'vllm serve ...'.")
    if len(text) > LONGEST:
        raise UsageError(f"the command has {len(text):,} characters.", f"At most {LONGEST:,} are read.")
    return _Reader(text).read()


class _Reader:
    """Reads one command."""

    def __init__(self, text: str) -> None:
        self.made = Checked()
        self.files: dict[str, str] = {}
        self.keys: dict[str, Any] = {}
        self.others: dict[str, str] = {}
        self.renamed = False
        self.folders: dict[str, str] = {}  # what a conversion made -> of what
        self.text = text

    def read(self) -> Checked:
        made = self.made
        text = self.text.translate(_TYPESET)
        if text != self.text:
            made.say("warning", "“ ”", "typeset quotes or spaces: a shell takes them for letters.", "straight ones")
        dashed = re.sub(r"(?<=\s)[–—](?=\w)", "--", text)
        if dashed != text:
            made.say("warning", "–", "a typeset dash stands for the two of a flag.", "--")
        text = _HEREDOC.sub(self._keep_file, dashed)
        try:
            commands = list(_commands(text))
        except ValueError:
            made.say("bad", "", "a quote is open: a shell would wait for the rest.")
            return made
        words = self._server(commands)
        if words is None:
            alone = _mapping(self.text)
            if isinstance(alone.get("speculative_config"), dict):
                made.engine = next(one for one in ENGINES.values() if one.in_file)
                self._block(alone["speculative_config"])
                return self._end([])
            made.say("bad", text.split()[0] if text.split() else "", "no server is started here: llama-server, vllm serve, sglang serve or trtllm-serve.")
            return made
        return self._end(self._flags(words))

    def _keep_file(self, found: re.Match[str]) -> str:
        name = (found["name"] or found["name2"]).strip("'\"")
        self.files[PurePath(name).name] = found["text"]
        return " "

    # -- which server ------------------------------------------------------------------------------------------------

    def _server(self, commands: Sequence[list[str]]) -> list[str] | None:
        """The words after the program of the first command that starts a server; what a conversion makes is kept in mind."""
        found: list[str] | None = None
        for words in commands:
            names = [PurePath(word.replace("\\", "/")).name for word in words]
            if CONVERT in names and "--outfile" in words[:-1]:
                source = words[names.index(CONVERT) + 1 : names.index(CONVERT) + 2]
                self.folders[words[words.index("--outfile") + 1]] = source[0] if source else ""
                continue
            found = found or self._program(words, names)
        return found

    def _program(self, words: list[str], names: list[str]) -> list[str] | None:
        for place, name in enumerate(names):
            for engine in ENGINES.values():
                if name in engine.programs:
                    start = place + 1
                    if words[start : start + 1] == ["serve"]:
                        start += 1
                    elif name not in engine.program[-1:]:
                        continue  # vllm bench, or a folder of that name
                    return self._begun(engine, words, start)
            module = words[place] if place and words[place - 1] == "-m" else ""
            for prefix, key in (("vllm.", "vllm"), ("sglang.", "sglang")):
                if module.startswith(prefix):
                    self.made.say("note", module, "it still starts so.", " ".join(ENGINES[key].program))
                    return self._begun(ENGINES[key], words, place + 1)
            if name.startswith(("vllm-openai", "sglang:")):
                key = "vllm" if name.startswith("vllm") else "sglang"
                rest = words[place + 1 :]
                if key == "sglang":
                    return self._program(rest, names[place + 1 :])
                return self._begun(ENGINES[key], words, place + 1)
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        best = max(ENGINES, key=lambda key: len(flags & (FLAGS[key] | OLD_FLAGS[key].keys())))
        if flags and words[0].startswith("-") and flags & (FLAGS[best] | OLD_FLAGS[best].keys()):
            self.made.say("warning", words[0], f"no program is named; the flags are read as those of {ENGINES[best].label}.")
            return self._begun(ENGINES[best], words, 0)
        return None

    def _begun(self, engine: Serving, words: list[str], start: int) -> list[str]:
        self.made.engine = engine
        self.head = words[:start]
        return words[start:]

    # -- flags -------------------------------------------------------------------------------------------------------

    def _flags(self, words: list[str]) -> list[str]:
        """Read the flags; returns the words in today's names."""
        engine = self.made.engine
        assert engine is not None
        out: list[str] = []
        place = 0
        while place < len(words):
            word = words[place]
            place += 1
            if not word.startswith("-") or word == "-" or _is_number(word):
                if not engine.model and not self.made.target:
                    self.made.target = word
                out.append(word)
                continue
            flag, equals, value = word.partition("=")
            given: str | None = value if equals else None
            if given is None and place < len(words) and (not words[place].startswith("-") or _is_number(words[place])):
                given = words[place]
                place += 1
            out += self._flag(engine, self._spelt(engine, flag), given)
        return out

    def _spelt(self, engine: Serving, flag: str) -> str:
        """The flag as the engine spells it: some take - and _ alike."""
        name, dot, rest = flag.partition(".")
        if not name.startswith("--"):
            return flag
        if any("_" in known for known in FLAGS[engine.name]):
            return name.replace("-", "_").replace("__", "--", 1)
        return (name if engine.name == "sglang" else name.replace("_", "-")) + dot + rest

    def _flag(self, engine: Serving, flag: str, value: str | None) -> list[str]:
        made, rest = self.made, [] if value is None else [value]
        name, dot, inner = flag.partition(".")
        old = OLD_FLAGS[engine.name].get(flag)
        if old is not None:
            where = f" ({ELSEWHERE[flag]})" if flag in ELSEWHERE else ""
            made.say("bad", flag, f"{old.why or 'no flag of it any more'}{where}.", old.now)
            self.renamed = True
            if old.key:
                self._take(old.key, True if value is None else value)
            return [old.now, *rest] if old.now.startswith("--") else []
        known = flag in FLAGS[engine.name] or (dot and name in FLAGS[engine.name])
        if not known:
            owner = next((one for key, one in ENGINES.items() if flag in FLAGS[key]), None)
            other = f" of {owner.label}" if owner is not None else f" of {ELSEWHERE[flag]}" if flag in ELSEWHERE else ""
            made.say("bad", flag, f"{engine.label} has no such flag{f'; it is one{other}' if other else ''}.")
            return [flag, *rest]
        if engine.config and not engine.in_file and name in (engine.config, "-sc"):
            return self._json(engine, flag, inner, value)
        if engine.in_file and flag in (engine.config, "--extra_llm_api_options"):
            self._file(value)
            return [engine.config, *rest]
        key = SHORT.get(engine.name, {}).get(flag, flag)
        if key.startswith("--"):
            bare = key.removeprefix("--")
            if not engine.config and bare.startswith(("spec-", "speculative-")):
                now = self._take(bare, True if value is None else value)
                return [flag, *([] if value is None else [str(now)])]
            self.others[key] = value or ""
            if key == engine.model:
                made.target = value or ""
        else:
            self._take(key, True if value is None else value)
        return [flag, *rest]

    def _json(self, engine: Serving, flag: str, inner: str, value: str | None) -> list[str]:
        if inner:
            self._take(inner.replace("-", "_"), _scalar(value or "true"))
            return [flag, *([] if value is None else [value])]
        try:
            found = json.loads(value or "")
        except (ValueError, RecursionError) as error:
            hint = " Single quotes belong around the whole, double ones inside." if "'" in (value or "") or "{" in (value or "") else ""
            where = f" at character {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
            self.made.say("bad", flag, f"its value is no JSON{where}.{hint}")
            return [flag, value or ""]
        if not isinstance(found, dict):
            self.made.say("bad", flag, "its value is no JSON object.", f"{flag} '{{\"method\": ...}}'")
            return [flag, value or ""]
        return [flag, json.dumps(self._block({str(key).replace("-", "_"): one for key, one in found.items()}), ensure_ascii=False)]

    def _file(self, name: str | None) -> None:
        text = self.files.get(PurePath(name or "").name)
        if text is None:
            self.made.say("warning", name or "", "the file is not pasted: what drafts stands in its speculative_config.")
            return
        found = _mapping(text)
        block = found.get("speculative_config")
        if not found:
            self.made.say("bad", name or "", "it is no YAML mapping.")
        elif isinstance(block, dict):
            self._block({str(key): value for key, value in block.items()})
        elif any(key in JSON_KEYS["tensorrt-llm"] for key in map(str, found)):
            self.made.say("bad", name or "", "the keys must stand under speculative_config:, two spaces in.")

    def _block(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Take the keys of a block of settings; returns it in today's names."""
        engine = self.made.engine
        assert engine is not None
        out: dict[str, Any] = {}
        for key, value in found.items():
            old = OLD_KEYS.get(engine.name, {}).get(key)
            if old is not None:
                self.made.say("warning" if "still" in old.why else "bad", key, f"{old.why or 'no key of it any more'}.", old.now)
                self.renamed = True
                if old.key:
                    out[old.key] = self._take(old.key, value)
            elif key not in JSON_KEYS.get(engine.name, ()):
                self.made.say("bad", key, f"{engine.label} has no such key in its drafting settings.")
                out[key] = value
            else:
                out[key] = self._take(key, value)
        return out

    def _take(self, key: str, value: Any) -> Any:
        """Keep a drafting key; returns its value as it is written today."""
        engine = self.made.engine
        assert engine is not None
        parts = str(value).split(",") if key == _naming(engine) and isinstance(value, str) else [value]
        now = [self._value(engine, key, part) for part in parts]
        taken = now[0] if len(now) == 1 else ",".join(map(str, now))
        if key in self.keys and self.keys[key] != taken:
            self.made.say("warning", key, f"it is given twice, {str(self.keys[key])[:60]!r} and {str(taken)[:60]!r}: the last one counts.")
        self.keys[key] = taken
        return taken

    def _value(self, engine: Serving, key: str, value: Any) -> Any:
        old: Old | None = OLD_VALUES.get(engine.name, {}).get(key, {}).get(value) if isinstance(value, str) else None
        if old is not None:
            self.made.say("warning" if "still" in old.why else "bad", f"{key} {value}", f"{old.why or 'no value of it any more'}.", old.now)
            self.renamed = True
            return old.now or value
        known = VALUES.get(engine.name, {}).get(key)
        if known is not None and value not in known:
            self.made.say("bad", f"{key} {str(value)[:80]}", f"no value that it knows: {', '.join(sorted(known))}.")
        return value

    # -- what it stands for ------------------------------------------------------------------------------------------

    def _end(self, words: list[str]) -> Checked:
        made, engine = self.made, self.made.engine
        assert engine is not None
        if engine.hub and (file := self.others.get(engine.hub[1])):
            made.target = f"{self.others.get(engine.hub[0], '')}/{file}"
        made.target = self._ref(made.target, "target")
        for level, word, text in faults(engine.name, self.keys, self.others):
            made.say(level, word, text)
        words = self._implied(engine, words)
        made.sampling = self._sampling(engine)
        made.lane = self._lane(engine)
        if self.renamed and words:
            made.mended = shell_words([*self.head, *words])
        return made

    def _implied(self, engine: Serving, words: list[str]) -> list[str]:
        """Take a draft without a word on the method for what is meant; the words with that said, where it must be."""
        naming = _naming(engine)
        drafts = {way.draft for ways in WAYS[engine.name].values() for way in ways if way.draft}
        draft = next((str(self.keys[key]) for key in drafts if key in self.keys), "")
        if not engine.implied or naming in self.keys or not draft:
            return words
        self.keys[naming] = engine.named.get(draft, engine.implied)
        if engine.heeded:
            return words
        self.renamed = True
        return [*words, f"--{naming}", engine.implied]

    def _ref(self, path: str, role: str) -> str:
        """What names a model here: what a converted file was made of, and bundled for a bundled one."""
        source = self.folders.get(path, path)
        engine = self.made.engine
        whole = PurePath(source).is_absolute()  # as bundled ones are: to look for those takes a while
        return BUNDLED if whole and engine is not None and source == model_path(BUNDLED, role, engine) else source

    def _sampling(self, engine: Serving) -> dict[str, Any]:
        given: Mapping[str, Any] = self.others
        if engine.sampling_flag:
            try:
                given = json.loads(self.others.get(engine.sampling_flag, "") or "{}")
            except (ValueError, RecursionError):
                self.made.say("bad", engine.sampling_flag, "its value is no JSON.")
                return {}
            if not isinstance(given, dict):
                return {}
        found: dict[str, Any] = {}
        for name, key in engine.sampling.items():
            if key in given:
                try:
                    found[name] = int(str(given[key])) if name in ("top_k", "seed") else float(given[key])
                    SamplingParams(**{name: found[name]})
                except (ValueError, TypeError, SpecviewError):
                    self.made.say("warning", key, f"{str(given[key])[:60]!r} is no value of {name} here.")
                    found.pop(name, None)
        return found

    def _lane(self, engine: Serving) -> LaneSettings | None:
        found = _ways(engine, self.keys)
        if found is None:
            named = self.keys.get(_naming(engine))
            if named:
                self.made.say("note", str(named), "specview has no such method: no lane stands for it.")
            return None
        method, way = found
        try:
            lane = self._joined(engine, method, way) if way.joins else self._of(METHODS[method], way)
        except (SpecviewError, ValueError, TypeError) as error:
            self.made.say("bad", str(self.keys.get(_naming(engine), "")), f"{error}")
            return None
        return replace(lane, rule=self._rule(engine, way), **self._policy(way))

    def _joined(self, engine: Serving, method: str, way: Way) -> LaneSettings:
        naming = _naming(engine)
        options: dict[str, Any] = {}
        members: list[str] = []
        lane = LaneSettings(method)
        for part in str(self.keys[naming]).split(","):
            found = _ways(engine, {**self.keys, naming: part})
            if found is None:
                raise UsageError(f"{part} is no method of specview's.")
            own = self._of(METHODS[found[0]], found[1])
            members.append(found[0])
            if not METHODS[found[0]].copies and own.k is not None:
                options[way.joins] = own.k
            options |= {f"{found[0]}.{name}": value for name, value in own.options.items()}
            lane = replace(lane, draft=own.draft if own.draft != BUNDLED else lane.draft)
        return replace(lane, options={"members": "+".join(members), **options})

    def _of(self, method: MethodInfo, way: Way) -> LaneSettings:
        """The lane of one method."""
        engine = self.made.engine
        assert engine is not None
        k: int | None = None
        for name, value in list(way.fixed.items())[1:]:
            if name not in self.keys:
                self.made.say("note", name, f"it is not given; the lane is as with {str(value).lower()}.")
        for key in way.k:
            if (given := self._given(way, key.name)) is not None:
                k = int(str(given)) - key.plus
                break
        if way.k and k is None:
            self.made.say("note", way.k[0].name, f"it is not given: the engine's own is {engine.default_k}.")
        if k is not None and not 1 <= k <= MAX_K:
            self.made.say("warning", way.k[0].name, f"a lane drafts 1 to {MAX_K} tokens, and this says {k}.")
            k = min(max(k, 1), MAX_K)
        options = dict(way.when)
        for option in method.options:
            at = way.options.get(option.name)
            if at is not None and (given := self._given(way, at.name)) is not None:
                value = option.parse(given)
                options[option.name] = value - at.plus if at.plus else value
        lane = LaneSettings(method.name, k=k, options=_preset(method, options))
        path = str(self.keys.get(way.draft, "")) if way.draft else ""
        if method.needs_draft_model:
            return replace(lane, draft=self._ref(path, "draft") or BUNDLED)
        if path and method.head:
            source = self.folders.get(path, path)
            return replace(lane, draft=BUNDLED if source == head_path(method.head, BUNDLED) else source)
        return lane

    def _given(self, way: Way, key: str) -> Any:
        """A key's value, or what the engine takes where it is not given; None where that is not known."""
        if key in self.keys:
            return self.keys[key]
        unsaid = way.unsaid.get(key)
        if isinstance(unsaid, str):
            return self.keys.get(unsaid.removeprefix("="), way.unsaid[""])
        return unsaid

    def _rule(self, engine: Serving, way: Way) -> str:
        temperature = self.made.sampling.get("temperature")
        if not way.sampled or temperature == 0:
            return "auto"
        asked = all(str(self.keys.get(key)).lower() == str(value).lower() for key, value in way.sampled.items())
        if asked:
            return "auto" if temperature else "rejection"
        return engine.unsampled if temperature and engine.unsampled else "auto"

    def _policy(self, way: Way) -> dict[str, Any]:
        for policy, mapped in way.policies.items():
            values = {name: float(self.keys[key]) for name, key in mapped.items() if _is_number(str(self.keys.get(key, "")))}
            if len(values) == len(mapped) and all(values.values()):
                return {"policy": policy, "policy_options": values}
        return {}


SHORT: Mapping[str, Mapping[str, str]] = {
    "llama-server": {
        **dict.fromkeys(("-md", "--model-draft", "--spec-draft-model"), "spec-draft-model"),
        **dict.fromkeys(("--draft-p-min", "--spec-draft-p-min"), "spec-draft-p-min"),
        **dict.fromkeys(("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"), "spec-draft-hf"),
        "-m": "--model", "-c": "--ctx-size", "-hf": "--hf-repo", "-hfr": "--hf-repo", "-hff": "--hf-file", "--temperature": "--temp",
        "-s": "--seed", "-np": "--parallel", "-t": "--threads", "-ngl": "--gpu-layers", "--n-gpu-layers": "--gpu-layers",
    },
    "vllm": {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"},
    "sglang": {"--model": "--model-path", "--speculative-draft-model": "speculative-draft-model-path"},
}
"""Engine -> another name of a flag -> its usual one, or the drafting key that it sets."""


def _commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell text, as words; raises ValueError where a quote is open."""
    text = re.sub(r"(?m)^[ \t]*#.*$", "", text)
    text = re.sub(r"\\\r?\n|`\r?\n|\^\r?\n", " ", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    for word in lexer:
        if word and set(word) <= set(";&|\n"):
            if words:
                yield words
            words = []
        elif word != "$" or words:
            words.append(word)
    if words:
        yield words


def _mapping(text: str) -> dict[Any, Any]:
    """A YAML mapping; {} where the text is none."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _naming(engine: Serving) -> str:
    """The key that says which method drafts."""
    return next(name for ways in WAYS[engine.name].values() for way in ways for name in way.fixed)


def _ways(engine: Serving, keys: Mapping[str, Any]) -> tuple[str, Way] | None:
    """The method that the keys stand for and its way: of those whose naming key fits, the one of which they say most."""
    best: tuple[int, str, Way] | None = None
    named = keys.get(_naming(engine), "none")
    for method, ways in WAYS[engine.name].items():
        for way in ways:
            score = _score(way, keys) if way.fixed else 0 if named == "none" else None
            if score is not None and (best is None or score > best[0]):
                best = score, method, way
    return best[1:] if best is not None else None


def _score(way: Way, keys: Mapping[str, Any]) -> int | None:
    """How much of a way the keys say; None where they say another."""
    score = 0
    for place, (name, value) in enumerate(way.fixed.items()):
        given = keys.get(name)
        if way.joins:
            return 1 if "," in str(given or "") else None
        if given is None:
            if not place:
                return None
            score -= 1
        elif str(given).lower() == str(value).lower():
            score += 1
        else:
            return None
    return score


def _preset(method: MethodInfo, options: dict[str, Any]) -> dict[str, Any]:
    """The options with a preset's name in place of its values, where they are all as one says that is not the default."""
    usual = {option.name: option.default for option in method.options}
    for name, values in method.presets.items():
        if name != usual.get("preset") and values and all(options.get(key) == value for key, value in values.items()):
            return {"preset": name, **{key: value for key, value in options.items() if key not in values}}
    return options


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


