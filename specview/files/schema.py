"""The round objects of trace files and result documents: to JSON values and back.

Real numbers keep seven significant digits. A figure that does not exist is null, never 0 or NaN.
Besides the keys of DESIGN section 9 a drafted token may carry `residual_top`, a final token `margin`, and a
round `riders` ([id, text, parent rider] each: tokens of the pass that were not proposed) and `guesses` ([id,
confidence] each: what the drafter would have drafted for the output tokens before the round) and `full_context` (the
length of a drafter's own context that is full); readers that do not know them lose nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict

from specview.decoding.ledger import DraftedToken, FinalKind, FinalToken, Guess, Rider, Round, Verdict

TRACE_SCHEMA = "specview.trace/1"
SIGNIFICANT_DIGITS = 7
_C1 = re.compile("[\x7f-\x9f]")

Json = dict[str, Any]


class SchemaError(ValueError):
    """A JSON value that is not what the trace schema says; `str()` says which key and why."""


def number(value: float | None) -> float | int | None:
    """Return `value` with seven significant digits; None for None, NaN and the infinities.

    Whole numbers of type int stay as they are.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    value = float(value)
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None


def plain(value: Any) -> Any:
    """Return `value` as JSON values: mappings, lists, numbers by `number`, the rest as text."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [plain(item) for item in items]
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Write JSON text that always encodes as UTF-8 and drives no terminal: lone surrogates and C1 controls are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent)
    return text if text.isascii() else _C1.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_DRAFTED = ("id", "text", "q", "p", "accept", "u", "verdict", "confidence", "q_top", "p_top", "entropy")
_FINAL = ("id", "text", "kind", "p", "p_top", "entropy")
_IF_THERE = ("margin", "draw", "threshold", "residual_top")


def round_to_json(lane: int, round_: Round) -> Json:
    """Return the trace object of one round of lane number `lane`."""
    data: Json = {
        "lane": lane,
        "index": round_.index,
        "t": number(round_.t),
        "draft_s": number(round_.draft_s),
        "verify_s": number(round_.verify_s),
        "other_s": number(round_.other_s),
        "observe_s": number(round_.observe_s),
        "k": round_.k,
        "drafter": round_.drafter,
        "parents": None if round_.parents is None else list(round_.parents),
        "drafted": [_token_to_json(token, _DRAFTED) for token in round_.drafted],
        "final": None if round_.final is None else _token_to_json(round_.final, _FINAL),
    }
    if round_.riders:
        data["riders"] = [[rider.id, rider.text, rider.parent] for rider in round_.riders]
    if round_.guesses:
        data["guesses"] = [[guess.id, number(guess.confidence)] for guess in round_.guesses]
    if round_.full_context:
        data["full_context"] = round_.full_context
    if round_.inferred:
        data["inferred"] = True
    return data


def _token_to_json(token: DraftedToken | FinalToken, keys: Sequence[str]) -> Json:
    data = {key: _value(getattr(token, key)) for key in keys}
    return data | {key: _value(value) for key in _IF_THERE if (value := getattr(token, key, None)) not in (None, ())}


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [[token, text, number(probability)] for token, text, probability in value]
    return value if isinstance(value, str) else number(value)


# What a trace object holds, in the order of the ledger's own classes: msgspec checks every value against it.
_Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
_Seconds = Annotated[float, Meta(ge=0, le=1e300)]
_Top = list[tuple[int, str, _Real]] | None


class _Drafted(Struct):
    id: int
    verdict: Verdict
    q: _Real | None = None
    p: _Real | None = None
    accept: _Real | None = None
    u: _Real | None = None
    text: str = ""
    confidence: _Real | None = None
    margin: _Real | None = None
    draw: int | None = None
    threshold: _Real | None = None
    p_top: _Top = None
    q_top: _Top = None
    residual_top: _Top = None
    entropy: _Real | None = None


class _Final(Struct):
    id: int
    kind: FinalKind
    text: str = ""
    p: _Real | None = None
    margin: _Real | None = None
    p_top: _Top = None
    entropy: _Real | None = None


class _Round(Struct):
    lane: int
    index: int
    t: _Seconds
    draft_s: _Seconds
    verify_s: _Seconds
    other_s: _Seconds
    observe_s: _Seconds = 0.0
    drafter: str = ""
    parents: tuple[int, ...] | None = None
    drafted: list[_Drafted] = []
    final: _Final | None = None
    riders: list[tuple[int, str, int]] = []
    guesses: list[tuple[int, _Real | None]] = []
    full_context: int = 0
    inferred: bool = False
    k: int | None = None


Seen = dict[Any, Any]
"""Ids and texts met so far, each under itself: what comes again is the same object, not another copy of it."""
_MOST_SEEN = 200_000


def round_from_json(value: Any, seen: Seen | None = None, *, likely: bool = True) -> tuple[int, Round]:
    """Return (lane, round) of a trace object; raise SchemaError where it does not fit.

    `seen` is shared by the rounds of one file, whose tokens are mostly the same few thousand. Without `likely` the
    lists of likely tokens are left out, the bulk of a run that was observed in full.
    """
    try:
        found = convert(value, _Round)
    except ValidationError as error:
        raise SchemaError(_plainly(str(error))) from None
    if found.k not in (None, len(found.drafted)):
        raise SchemaError(f"k is {found.k} but {len(found.drafted)} tokens are drafted")
    if found.parents is not None and len(found.parents) != len(found.drafted):
        raise SchemaError("parents and drafted differ in length")
    _check_tree(found.parents or (), "node")
    _check_tree([parent for _, _, parent in found.riders], "rider")
    same = ({} if seen is None or len(seen) > _MOST_SEEN else seen).setdefault
    round_ = Round(
        found.index, found.t, found.draft_s, found.verify_s, found.other_s, found.observe_s,
        same(found.drafter, found.drafter), found.parents, tuple([_token(DraftedToken, token, same, likely) for token in found.drafted]),
        None if found.final is None else _token(FinalToken, found.final, same, likely),
        tuple([Rider(*rider) for rider in found.riders]), tuple([Guess(*guess) for guess in found.guesses]),
        found.full_context, found.inferred,
    )  # fmt: skip
    return found.lane, round_


def _token(kind: Any, token: _Drafted | _Final, same: Callable[[Any, Any], Any], likely: bool) -> Any:
    """A token of the ledger: what is null is left to its default, ids and texts met before are the same objects."""
    there = {}
    for key, value in asdict(token).items():
        if type(value) is list:
            if likely:
                there[key] = tuple([(same(id_, id_), same(text, text), weight) for id_, text, weight in value])
        elif value is not None:
            there[key] = same(value, value) if type(value) is str else value
    return kind(**there)


def _check_tree(parents: Sequence[int], what: str) -> None:
    for place, parent in enumerate(parents):
        if not -1 <= parent < place:
            raise SchemaError(f"{what} {place} has parent {parent}")


def _plainly(error: str) -> str:
    """What does not fit, with its place first: "drafted[0].p: expected float, got str"."""
    why, _, place = error.replace("`", "").replace("Object missing required field", "it lacks").partition(" - at $")
    why = f"{why[:1].lower()}{why[1:120]}"
    return f"{place.lstrip('.')}: {why}" if place else why
