"""What a run is: the settings shared by its lanes, and each lane's own. Every setting is declared here, or in SamplingParams.

A new setting is one field. Its flag, its field in the window's setup, its checks and their messages, its JSON both ways, the
header of traces and documents, the command line that repeats a run and the key of the loaded target follow from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

import msgspec

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES
from specview.fields import Setting, declared, setting, values_of
from specview.settings.branch import Branch

BASELINE = "plain"
"""The method that drafts nothing, by its name in lanes, files and tables."""
BUNDLED = "bundled"
MAX_K = 64
MAX_LANES = 5
ENGINES = ("transformers", "llama.cpp")
LONGEST_PROMPT = 200_000
"""Characters of a prompt that is remembered."""
Observe = Literal["off", "light", "full"]

_AUTO = ("", "automatic")


@dataclass(frozen=True, slots=True)
class Loading:
    """Which model is loaded, and how: what makes a loaded model another one.

    target is "bundled", a path (GGUF file or model folder) or a hub id. device, dtype and threads None are the engine's choice; gpu_layers and context are for llama.cpp. trust_remote_code is
    the user's tick for this very target.
    """

    engine: str = setting("transformers", "transformers (default) or llama.cpp", choices=ENGINES, group="models")
    target: str = setting(BUNDLED, "a GGUF file, a model folder or a hub id (default: bundled)", group="models")
    device: str | None = setting(
        None, "where transformers computes: cpu, cuda, cuda:1, mps (default: a GPU where there is one)", of=str, group="models",
        engine="transformers", form="Engine", offers=(_AUTO, ("cpu", "CPU"), ("cuda", "CUDA"), ("mps", "MPS")),
    )  # fmt: skip
    dtype: str | None = setting(
        None, "number format of the weights in transformers: float32, bfloat16, float16, or auto (default): the fastest "
        "that keeps the stored weights exact", of=str, label="number format", group="models", engine="transformers",
        form="Engine", offers=(_AUTO, *((name, name) for name in ("float32", "bfloat16", "float16"))),
    )  # fmt: skip
    threads: int | None = setting(
        None, "CPU threads (default: the engine's choice)", of=int, minimum=1, maximum=1024, group="models", form="Engine",
        fits="1 to 1024, or leave it out",
    )  # fmt: skip
    gpu_layers: int = setting(
        0, "layers that llama.cpp puts on the GPU; -1 is all (default: 0)", minimum=-1, maximum=10_000, label="GPU layers",
        group="models", engine="llama.cpp", form="Engine", fits="0 or more, or -1 for all",
    )  # fmt: skip
    context: int | None = setting(
        None, "longest prompt and output in tokens for llama.cpp (default: what the run needs)", of=int, minimum=1,
        maximum=10_000_000, group="models", engine="llama.cpp", form="Engine", fits="1 token or more, or leave it out",
    )  # fmt: skip
    check_mode: bool = setting(
        False, "pad one-row passes, so that exact lanes equal plain decoding token for token; for checks, not for timing",
        label="check mode", group="checks", form="Checks",
    )  # fmt: skip
    trust_remote_code: bool = setting(
        False, "run Python code that comes with this very target; off unless you read it", group="models", kept=False
    )

    @property
    def loading(self) -> Loading:
        """These alone, of a record that has more."""
        return Loading(**{one.name: getattr(self, one.name) for one in fields(Loading)})


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """One lane: the method, its draft, length, policy, rule and options.

    k None is the method's or the policy's default, else the engine's (2 on a CPU, else 4). draft names a model for
    methods that need one: "bundled", a path, or a hub id; draft_engine None is the target's. Of a method that
    drafts with a trained head, draft names the head. What of these says something is the method's to tell: drafting.lanes.
    """

    method: str = BASELINE
    name: str = ""
    draft: str = setting(
        BUNDLED, "the draft model, or the trained head, of methods that need one (default: bundled)", group="draft"
    )
    draft_engine: str | None = setting(
        None, "the draft's engine (default: the target's)", of=str, label="engine", choices=ENGINES, group="draft"
    )
    k: int | None = setting(
        None, f"tokens drafted a round, 1 to {MAX_K} (default: by engine and device)", of=int, minimum=1, maximum=MAX_K,
        group="drafting", fits=f"1 to {MAX_K} drafted tokens a round",
    )  # fmt: skip
    policy: str = setting("constant", "draft length policy", group="policy")
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    rule: str = setting(
        "auto", f"acceptance rule: auto (default), {', '.join(RULES)}", choices=("auto", *RULES), group="drafting"
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The lane's name on screen and in files."""
        return self.name or self.method

    @property
    def plain(self) -> bool:
        """Whether this is plain decoding, the baseline."""
        return self.method == BASELINE


@dataclass(frozen=True, slots=True)
class RunSettings(Loading):
    """What all lanes of a run share.

    chat_template names one of the model's, None its
    default one. branch is the output that is given, where the run goes on from another's. baseline False leaves out the plain lane that a race always has: for `run`, which decodes with one method
    alone.
    """

    prompt: str = setting("", "the prompt's text", metavar="TEXT", in_files=False)
    chat: bool = setting(True, "whether the model's chat template is around the prompt")
    chat_template: str | None = setting(
        None, "one of the model's named chat templates (default: its default one)", of=str, label="chat template",
        group="prompt", metavar="NAME",
    )  # fmt: skip
    system: str = setting(
        "", "the chat's system text (default: none, or the workload's)", label="system text", group="prompt", metavar="TEXT"
    )
    history: tuple[Mapping[str, str], ...] = ()
    branch: Branch | None = None
    workload: str | None = setting(None, "the built-in prompt that it is", of=str, metavar="NAME")
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = setting(
        128, "output tokens of every lane, at most (default: 128)", minimum=1, maximum=1_000_000, label="max tokens",
        group="output", form="Output", step=16,
    )
    stop: tuple[str, ...] = setting(
        (), "a text that ends the output where it comes, and is cut from it; repeatable, the one that is complete first counts",
        of=str, label="stop string", metavar="TEXT", group="output", form="Output", fits="a text that is not empty",
    )  # fmt: skip
    observe: Observe = setting(
        "full", "what is kept of each token, off the clock: off nothing, light texts and margins, full the likeliest tokens "
        "for the inspector too (default: full with --trace, else light)", choices=("off", "light", "full"), group="observe",
        form="Engine", offers=(("light", "light"), ("full", "full")),
    )  # fmt: skip
    lanes: tuple[LaneSettings, ...] = (LaneSettings(),)
    baseline: bool = True

    @property
    def given_ids(self) -> tuple[int, ...]:
        """The ids of the output that is given, which the run goes on from."""
        return self.branch.token_ids if self.branch is not None else ()

    @property
    def turn(self) -> int:
        """The turns of the conversation before this one."""
        return len(self.history) // 2

    def next_turn(self, history: Sequence[Mapping[str, str]], prompt: str) -> RunSettings:
        """The settings of a later turn: what was said before it, its prompt, random numbers of its own."""
        later = replace(self, history=tuple(history), prompt=prompt, workload=None, branch=None)
        return replace(later, sampling=self.sampling.later(later.turn - self.turn))


def shared_settings(*, in_files: bool = False) -> dict[str, Setting]:
    """Every setting that the lanes of a run share, those of sampling last; in_files: those of traces and documents."""
    found = {**declared(RunSettings), **declared(SamplingParams)}
    return {name: one for name, one in found.items() if one.in_files or not in_files}


TARGET_FIELDS = tuple(name for name, one in declared(Loading).items() if one.kept)
"""What makes a target another one, of what files say: the tick to trust its code is for this very machine."""


# -- words of a command line ----------------------------------------------------------------------------------------


def flag_words(record: Any, *groups: str) -> list[str]:
    """The flags, of these groups, that say what of a record's settings is not as by default."""
    words: list[str] = []
    for one, value in values_of(record):
        if one.group in groups and value != one.default:
            texts = value if one.repeated else (value,)
            words += [one.flag] if value is True else [word for text in texts for word in flag_word(one.flag, str(text))]
    return words


def flag_word(flag: str, text: str) -> list[str]:
    """A flag and its text, as one word where the text would pass for a flag."""
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


# -- JSON ---------------------------------------------------------------------------------------------------------

_NEVER_KEPT = frozenset({"history", "branch", *(name for name, one in declared(RunSettings).items() if not one.kept)})

Record = TypeVar("Record")


def to_json(record: Any) -> dict[str, Any]:
    """A settings record as JSON values, by its fields' names."""
    return msgspec.to_builtins(record)


def from_json(kind: type[Record], found: Any) -> Record:
    """The record of JSON values; what it lacks is as by default, keys that nobody knows are left alone.

    Raises TypeError on a value of another type, UsageError on one that does not fit.
    """
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from None


def run_to_json(run: RunSettings) -> dict[str, Any]:
    """The settings as JSON values, without what is never kept: the conversation, a branch, and trust in a model's code."""
    found = to_json(run if len(run.prompt) <= LONGEST_PROMPT else replace(run, prompt=""))
    return {name: value for name, value in found.items() if name not in _NEVER_KEPT}


def run_from_json(found: Mapping[str, Any]) -> RunSettings:
    """The settings that `run_to_json` gave, whoever wrote them down; not checked. Raises as `from_json`."""
    return from_json(RunSettings, {name: value for name, value in found.items() if name not in _NEVER_KEPT})
