"""What a run is: the settings shared by its lanes, and each lane's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES, idle_rule_note, resolve_rule
from specview.drafting.plain import BASELINE
from specview.drafting.policies import POLICIES
from specview.drafting.registry import DEFAULT_METHOD, METHODS, methods_for
from specview.errors import SpecviewError, UsageError
from specview.models.heads import find_head, named_head, read_head
from specview.models.loading import engine_available
from specview.settings.options import ANSWERS, HEAD, options_of, resolve

BUNDLED = "bundled"
BUNDLED_HEAD = "eagle3"
"""The kind of head that is the strongest of what is bundled to draft for the bundled target."""
MAX_K = 64
MAX_LANES = 5
ENGINES = ("transformers", "llama.cpp")
Observe = Literal["off", "light", "full"]


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """A head that a lane drafts with: its kind, what names it, and how the user says to read it (option, value)."""

    kind: str
    ref: str
    answers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """One lane: the method, its draft, length, policy, rule and options.

    k None is the method's or the policy's default, else the engine's (2 on a CPU, else 4). draft names a model for
    methods that need one: "bundled", a path, or a hub id; draft_engine None is the target's. Of a method that
    drafts with a trained head, draft names the head.
    """

    method: str = BASELINE
    name: str = ""
    draft: str = BUNDLED
    draft_engine: str | None = None
    k: int | None = None
    policy: str = "constant"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    rule: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The lane's name on screen and in files."""
        return self.name or self.method

    @property
    def plain(self) -> bool:
        """Whether this is plain decoding, the baseline."""
        return self.method == BASELINE

    @property
    def needs_draft(self) -> bool:
        """Whether the method, or a member of it, drafts with a model of its own."""
        method = METHODS.get(self.method)
        return method is not None and method.needs_draft(self.options)

    @property
    def takes(self) -> frozenset[str]:
        """Which of k, policy, rule, draft and draft_engine say something of this method."""
        method = METHODS.get(self.method)
        if method is None or not method.drafts:
            return frozenset()
        draft = {"draft", "draft_engine"} if self.needs_draft else {"draft"} if method.heads(self.options) else set()
        return frozenset({"k", "policy", "rule", *draft})

    @property
    def heads(self) -> dict[str, HeadChoice]:
        """The head of the method, and of each member that drafts with one, by method name."""
        method = METHODS.get(self.method)
        if method is None:
            return {}
        usual = BUNDLED if self.needs_draft else self.draft
        found = {}
        for name, kind in method.heads(self.options).items():
            own = dict(self.options) if name == self.method else options_of(self.options, name)
            answers = {key: str(own[key]) for key in ANSWERS if own.get(key, "auto") != "auto"}
            found[name] = HeadChoice(kind, str(own.get(HEAD.name) or usual), tuple(sorted(answers.items())))
        return found

    @property
    def drafts_named(self) -> str | None:
        """What the lane drafts with, as it was named; by member where several draft with weights of their own."""
        named = {name: choice.ref for name, choice in self.heads.items()}
        if self.needs_draft:
            named = {DEFAULT_METHOD: self.draft} | named
        if len(named) > 1:
            return ", ".join(f"{name}: {ref}" for name, ref in named.items())
        return next(iter(named.values()), None)

    @property
    def needs_costs(self) -> bool:
        """Whether the method or the length policy asks for a calibration of the target's passes."""
        return METHODS[self.method].needs_costs or (
            METHODS[self.method].drafts and POLICIES[self.policy].needs_costs
        )

    def with_members(self, target: str, engine: str) -> LaneSettings:
        """These settings with the members named, where the method names none: what copies, and the strongest drafter there is.

        That is the head that `draft` names, the bundled one for the bundled target, or else the draft model. In llama.cpp
        the bundled head is left out: it has every pass give features, and a second row costs nearly as much as the first.
        """
        method = METHODS.get(self.method)
        if method is None or not method.head_for_model or "members" in self.options:
            return self
        kind: str | None = None
        try:
            if self.draft != BUNDLED:
                folder = named_head(self.draft)
                kind = read_head(folder).kind if folder is not None else None
            elif target == BUNDLED and engine == "transformers" and engine_available(engine) is None:
                kind = BUNDLED_HEAD if find_head(BUNDLED_HEAD, BUNDLED) is not None else None
        except SpecviewError:
            pass  # no head that can be read: the lane says so where it was named
        head = methods_for(kind)[0] if kind is not None else ""
        members = [head if head and METHODS[name].needs_draft_model else name for name in method.members({})]
        return replace(self, options={"members": "+".join(members), **self.options})

    def checked(self, sampling: SamplingParams) -> LaneSettings:
        """Return these settings with options filled in; raise UsageError where they cannot work."""
        method = METHODS.get(self.method)
        if method is None:
            raise UsageError(f"there is no method {self.method!r}.", f"Methods: {', '.join(METHODS)}.")
        if self.k is not None and not 1 <= self.k <= MAX_K:
            raise UsageError(f"k is {self.k}.", f"Use 1 to {MAX_K} drafted tokens a round.")
        if self.rule not in ("auto", *RULES):
            raise UsageError(f"there is no rule {self.rule!r}.", f"Rules: auto, {', '.join(RULES)}.")
        resolve_rule(self.rule, sampling)
        if self.draft_engine not in (None, *ENGINES):
            raise UsageError(f"there is no engine {self.draft_engine!r}.", f"Engines: {', '.join(ENGINES)}.")
        policy = POLICIES.get(self.policy)
        if policy is None:
            raise UsageError(
                f"there is no length policy {self.policy!r}.", f"Policies: {', '.join(POLICIES)}."
            )
        options = method.resolve(self.options)
        policy_options = resolve(policy.options, self.policy_options, self.policy)
        return replace(self, options=options, policy_options=policy_options)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What all lanes of a run share.

    target is "bundled", a path (GGUF file or model folder) or a hub id. device, dtype and threads
    None are the engine's choice; gpu_layers and context are for llama.cpp. trust_remote_code is the
    user's tick for this very target. chat_template names one of the model's, None its default one. baseline False leaves out the plain lane that a race always has:
    for `run`, which decodes with one method alone.
    """

    engine: str = "transformers"
    target: str = BUNDLED
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    gpu_layers: int = 0
    context: int | None = None
    check_mode: bool = False
    trust_remote_code: bool = False
    prompt: str = ""
    system: str = ""
    chat: bool = True
    chat_template: str | None = None
    history: tuple[Mapping[str, str], ...] = ()
    workload: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 128
    observe: Observe = "full"
    lanes: tuple[LaneSettings, ...] = (LaneSettings(),)
    baseline: bool = True

    def checked(self) -> RunSettings:
        """Return these settings with every lane's options filled in, plain decoding first.

        Raises UsageError, one line, where they cannot work.
        """
        if self.engine not in ENGINES:
            raise UsageError(f"there is no engine {self.engine!r}.", f"Engines: {', '.join(ENGINES)}.")
        if self.max_tokens < 1:
            raise UsageError(f"max tokens is {self.max_tokens}.", "Use 1 or more.")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"threads is {self.threads}.", "Use 1 to 1024, or leave it out.")
        lanes = [lane.with_members(self.target, self.engine).checked(self.sampling) for lane in self.lanes]
        if self.baseline and (not lanes or not lanes[0].plain):
            baseline = next((lane for lane in lanes if lane.plain), LaneSettings())
            lanes = [baseline, *[lane for lane in lanes if lane is not baseline]]
        if len(lanes) > MAX_LANES:
            raise UsageError(f"{len(lanes)} lanes.", f"A race takes plain and up to {MAX_LANES - 1} others.")
        return replace(self, lanes=tuple(lanes))

    @property
    def turn(self) -> int:
        """The turns of the conversation before this one."""
        return len(self.history) // 2

    def next_turn(self, history: Sequence[Mapping[str, str]], prompt: str) -> RunSettings:
        """The settings of a later turn: what was said before it, its prompt, random numbers of its own."""
        later = replace(self, history=tuple(history), prompt=prompt, workload=None)
        return replace(later, sampling=self.sampling.later(later.turn - self.turn))

    def notes(self) -> tuple[str, ...]:
        """What is set and makes no difference in this run, a line each."""
        rules = dict.fromkeys(lane.rule for lane in self.lanes if METHODS[lane.method].drafts)
        found = [note for rule in rules if (note := idle_rule_note(rule, self.sampling))]
        filters = replace(self.sampling, seed=0, temperature=0.0) != SamplingParams(temperature=0.0)
        if self.sampling.greedy and filters:
            found.append("At temperature 0 the filters top-k, top-p and min-p make no difference.")
        if not self.chat and self.system:
            found.append("The raw form has no system turn: the system text is left out.")
        if not self.chat and self.history:
            found.append("The raw form has no turns: the conversation so far is left out.")
        return tuple(found)

    def flat(self, lane: LaneSettings) -> dict[str, Any]:
        """All settings of one lane as flat keys, as they stand in files."""
        sampling = asdict(self.sampling)
        shared = {
            key: getattr(self, key)
            for key in (
                "engine",
                "target",
                "device",
                "dtype",
                "threads",
                "gpu_layers",
                "context",
                "check_mode",
                "trust_remote_code",
                "system",
                "chat",
                "chat_template",
                "workload",
                "max_tokens",
                "observe",
            )
        }
        return {
            **shared,
            **sampling,
            "method": lane.method,
            "draft": lane.drafts_named,
            "draft_engine": lane.draft_engine or self.engine if lane.needs_draft else None,
            "k": lane.k if METHODS[lane.method].drafts else None,
            "policy": lane.policy if METHODS[lane.method].drafts else None,
            "rule": resolve_rule(lane.rule, self.sampling),
            **{f"policy_{key}": value for key, value in lane.policy_options.items()},
            **{f"option_{key}": value for key, value in lane.options.items()},
        }
