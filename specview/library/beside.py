"""Runs compared: lanes of several traces, the first run's plain lane being the baseline.

A speedup is a ratio to plain decoding of the same prompt by the same target under the same settings on the same
device (DESIGN section 1). A lane of another run that differs in one of these gets none, and the difference is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specview.decoding.ledger import RunRecord
from specview.decoding.speedup import speedup
from specview.drafting.plain import is_baseline
from specview.files.documents import speedup_to_json
from specview.files.reader import Trace
from specview.files.schema import Json
from specview.library.replay import baseline_index, trace_document
from specview.settings.branch import known_branch
from specview.settings.run import shared_settings

_SETTINGS = tuple(
    (name, one.words)
    for name, one in shared_settings().items()
    if name in ("check_mode", "gpu_layers") or one.group == "sampling" and name != "seed"
)
_FACTS = (
    ("engine", "engine"), ("target_dtype", "dtype"), ("device", "device"), ("device_name", "machine"),
    ("cpu", "machine"), ("threads", "thread count"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """One lane among lanes of several runs.

    run is the place of its trace among those given, lane its index there; name is unique among all, and tells the run. `differs` names
    what keeps it from being compared with the baseline ("other prompt"), '' where nothing does.
    """

    run: int
    lane: int
    name: str
    trace: Trace
    differs: str = ""

    @property
    def record(self) -> RunRecord:
        """The lane's record."""
        return self.trace.records[self.lane]


def difference(first: Trace, other: Trace, lane: int = 0) -> str:
    """What keeps a lane of `other` from being compared with `first`'s baseline, in two words; '' for nothing."""
    if first is other:
        return ""
    if first.prompt_ids != other.prompt_ids:
        return "other prompt" if _branch_ids(first) == _branch_ids(other) else "other beginning"
    if len(_branch_ids(first)) != len(_branch_ids(other)):
        return "other prompt"  # the same ids: what is the prompt in one is output in the other
    ours, theirs = _target(first), _target(other)
    if ours != theirs:
        return "other target"
    base = baseline_index(first) or 0
    mine, its = first.records[base].settings, other.records[lane].settings
    for key, words in _SETTINGS:
        if key in mine and key in its and mine[key] != its[key]:
            return f"other {words}"
    for key, words in _FACTS:
        if key in first.run and key in other.run and first.run[key] != other.run[key]:
            return f"other {words}"
    return ""


def _branch_ids(trace: Trace) -> tuple[int, ...]:
    """The ids of the output that a run was given."""
    branch = known_branch(trace.run)
    return branch.token_ids if branch is not None else ()


def _target(trace: Trace) -> Any:
    """What names a target's weights best: the hash of the file they came from, else their names."""
    run = trace.run
    for key in ("target_source_sha256", "target_sha256", "target_model_name"):
        if run.get(key):
            return run[key]
    return trace.records[0].settings.get("target")


def lay_beside(picks: Sequence[tuple[str, Trace, Sequence[int] | None]], limit: int | None = None) -> list[Beside]:
    """Return lanes of runs in order: picks are (name of the run, its trace, lanes; None for all of them).

    The first run's plain lane stands first where it has one, picked or not: it is the baseline. Plain lanes of
    other runs that can be compared with it are left out unless they were picked. At most `limit` lanes.
    """
    found: list[Beside] = []
    if not picks:
        return found
    first = picks[0][1]
    base = baseline_index(first)
    if base is not None:
        found.append(Beside(0, base, first.records[base].name, first))
    for place, (_, trace, wanted) in enumerate(picks):
        for lane in range(len(trace.records)) if wanted is None else wanted:
            if not 0 <= lane < len(trace.records) or (place == 0 and lane == base):
                continue
            differs = difference(first, trace, lane) if place else ""
            if wanted is None and place and base is not None and not differs and lane == baseline_index(trace):
                continue  # the same plain decoding once more
            found.append(Beside(place, lane, trace.records[lane].name, trace, differs))
    names: Counter[str] = Counter()
    for place, one in enumerate(found):
        name = one.name if len(picks) == 1 else f"{one.name} · {picks[one.run][0]}"
        names[name] += 1
        found[place] = replace(one, name=name if names[name] == 1 else f"{name} ({names[name]})")
    return found[:limit]


def beside_document(lanes: Sequence[Beside]) -> Json:
    """Return compared lanes as a document: as a compare's, speedups being to the first lane.

    A lane that cannot be compared has `not_comparable` in place of a speedup; equality, own_speedup and
    own_speedup_over are against its own run's plain lane.
    """
    made: dict[int, Json] = {}
    documents: list[Json] = []
    base = lanes[0].record if lanes and is_baseline(lanes[0].record.settings) else None
    for place, one in enumerate(lanes):
        if one.run not in made:
            made[one.run] = trace_document(one.trace)
        own = made[one.run]["lanes"][one.lane]
        document = dict(own, name=one.name, own_speedup=own["speedup"], own_speedup_over=own["speedup_over"])
        if one.run or place == 0:
            fair = base is not None and base is not one.record and not one.differs
            document |= speedup_to_json(speedup(one.record.rounds, base.rounds) if fair and base else None)
        if one.differs:
            document["not_comparable"] = one.differs
        documents.append(document)
    return {"lanes": documents}

