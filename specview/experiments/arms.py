"""What tuning may choose among: lanes that can run on this target here, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specview.decoding.interfaces import Engine
from specview.drafting.lanes import checked_lane
from specview.drafting.method import MethodInfo
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.models.heads import check_before
from specview.racing.resolve import with_members
from specview.settings.options import Value
from specview.settings.run import BUNDLED, LaneSettings, RunSettings

DRAFTED_K = (1, 2, 3, 4, 6, 8)
"""Draft lengths of methods that run a model for every token or pass."""
COPIED_K = (2, 4, 8, 16)
"""Draft lengths of methods that copy, besides the method's own default."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A method that cannot run here, and the reason in one line."""

    method: str
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method that may run here, with the lane that tries it out and the draft lengths to choose among.

    lengths is empty where the method says itself how long it drafts.
    """

    method: MethodInfo
    lane: LaneSettings
    lengths: tuple[int, ...]

    @property
    def copies(self) -> bool:
        """Whether it copies text: what it would have drafted can be replayed without a model."""
        return self.method.copies

    @property
    def tree(self) -> bool:
        """Whether it drafts a tree, whose shape says how deep."""
        return _is_tree(self.method, self.lane)

    @property
    def seldom_pays(self) -> bool:
        """Whether it seldom pays on a model that was not trained for it: such are tried last."""
        small_tree = self.tree and not self.method.always_tree and self.lane.options.get("preset") != "gpu"
        return self.method.seldom_pays or small_tree


def candidates(
    settings: RunSettings, target: Engine, methods: Sequence[str] = (), drafts: Sequence[str] = (), rule: str = "auto"
) -> tuple[list[Candidate], list[Unusable]]:
    """The methods that may run on a loaded target, and those that cannot.

    methods: only these; all where empty. drafts are what the user names (models or heads): each is tried with every
    method that it may fit, and a method that none fits takes the bundled one. Combined methods are left for later: their members are chosen by what the others show.
    Raises UsageError for an unknown method.
    """
    for name in methods:
        if name not in METHODS:
            raise UsageError(f"there is no method {name!r}.", f"Methods: {', '.join(METHODS)}.")
    found: list[Candidate] = []
    cannot: list[Unusable] = []
    for method in METHODS.values():
        if not method.drafts or method.combines or (methods and method.name not in methods):
            continue
        reason = target.rollback_problem or (method.problem(target) if method.problem is not None else None)
        if reason:
            cannot.append(Unusable(method.name, f"it cannot draft for {target.model_name}: {reason}"))
            continue
        try:
            lanes = [
                checked_lane(lane, settings.sampling)
                for lane in _with_drafts(LaneSettings(method.name, rule=rule), method, settings, drafts)
            ]
        except SpecviewError as error:
            cannot.append(Unusable(method.name, str(error)))
            continue
        for lane in lanes:
            for one in _variants(lane, method, target):
                one = checked_lane(one, settings.sampling)
                found.append(Candidate(method, one, _lengths(method, one)))
    return found, cannot


def combined(
    members: Sequence[str], settings: RunSettings, methods: Sequence[str], draft: str = BUNDLED, rule: str = "auto"
) -> list[Candidate]:
    """Combined methods over the members (names, the best first) that the others have shown to run.

    draft is what the one that runs a model drafts with.
    """
    copying = [name for name in members if METHODS[name].copies]
    running = [name for name in members if METHODS[name].family in ("draft model", "trained head")]
    found: list[Candidate] = []
    for name, method in sorted(METHODS.items()):
        if method.members_among is None or (methods and name not in methods):
            continue
        own = method.members_among(copying, running)
        if len(own) < 2 and not methods:
            continue
        options = {"members": "+".join(own)} if len(own) > 1 else {}  # asked for by name: its own members
        lane = with_members(LaneSettings(name, draft=draft, rule=rule, options=options), settings.target, settings.engine)
        try:
            found.append(Candidate(method, checked_lane(lane, settings.sampling), ()))
        except SpecviewError:
            continue  # members that do not go together: each was tried by itself
    return found


def _with_drafts(
    lane: LaneSettings, method: MethodInfo, settings: RunSettings, drafts: Sequence[str]
) -> list[LaneSettings]:
    """The lane with each of the named drafts that may fit, else with the bundled one; raises SpecviewError for none."""
    if method.head is None:
        return [replace(lane, draft=draft) for draft in drafts] or [lane] if method.needs_draft_model else [lane]
    found: list[LaneSettings] = []
    refused: SpecviewError | None = None
    for draft in drafts or (BUNDLED,):
        try:
            check_before(method.head, draft, settings.target, settings.engine)
            found.append(replace(lane, draft=draft))
        except SpecviewError as error:
            refused = refused or error
    if not found and drafts:
        return _with_drafts(lane, method, settings, ())
    if refused is not None and not found:
        raise refused
    return found


def _variants(lane: LaneSettings, method: MethodInfo, target: Engine) -> list[LaneSettings]:
    """The lane, and where the method has a choice that only a trial can settle, another."""
    if method.shares_passes and target.exit_layers > 4:
        late = max(1, round(0.75 * target.exit_layers))
        return [lane, replace(lane, options={**lane.options, "exit_layer": late})]
    shapes = next((option.choices for option in method.options if option.name == "tree"), ())
    if shapes:
        tree: Mapping[str, Value] = {"tree": shapes[-1]}
        if target.device != "cpu":  # rows are cheap there: the published shapes
            tree = {"preset": "gpu"} if "gpu" in method.presets else {**tree, **method.published_tree}
        named = {option.name: lane.options[option.name] for option in method.options if option.name not in _SHAPE}
        return [lane, replace(lane, options={**named, **tree})]
    return [lane]


_SHAPE = ("preset", "tree", "choices", "paths", "depth", "top_k", "total_tokens")
"""Options that together say what shape is drafted: a variant names its own."""


def _is_tree(method: MethodInfo, lane: LaneSettings) -> bool:
    return method.always_tree or str(lane.options.get("tree", "chain")) != "chain"


def _lengths(method: MethodInfo, lane: LaneSettings) -> tuple[int, ...]:
    if method.rides_passes or _is_tree(method, lane):
        return ()  # its window and n-grams, or the tree's shape, say how long it drafts
    if not method.copies:
        return DRAFTED_K
    default = method.drafted(lane.options).levels
    return tuple(sorted({*COPIED_K, *([default] if default else [])}))


def variants_of_policy(candidate: Candidate, best_k: int) -> list[LaneSettings]:
    """Lanes of a method under the policies that settle the length themselves."""
    if candidate.method.combines or not candidate.lengths:
        return []
    longest = max(best_k, 8)
    found = [replace(candidate.lane, k=max(longest, 16) if candidate.copies else longest, policy="adaptive")]
    if candidate.copies:
        found.append(replace(candidate.lane, k=best_k, policy="off-below"))
    elif candidate.method.steps_draft_model:
        found.append(replace(candidate.lane, k=longest, policy="confidence"))
    return found
