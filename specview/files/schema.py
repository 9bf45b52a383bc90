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
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from specview.decoding.ledger import (
    Candidate,
    DraftedToken,
    FinalKind,
    FinalToken,
    Guess,
    Rider,
    Round,
    Verdict,
)

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
        "drafted": [_drafted_to_json(token) for token in round_.drafted],
        "final": None if round_.final is None else _final_to_json(round_.final),
    }
    if round_.riders:
        data["riders"] = [[rider.id, rider.text, rider.parent] for rider in round_.riders]
    if round_.guesses:
        data["guesses"] = [[guess.id, number(guess.confidence)] for guess in round_.guesses]
    if round_.full_context:
        data["full_context"] = round_.full_context
    return data


Seen = dict[Any, Any]
"""Ids and texts met so far, each under itself: what comes again is the same object, not another copy of it."""
_MOST_SEEN = 200_000


def round_from_json(value: Any, seen: Seen | None = None, *, likely: bool = True) -> tuple[int, Round]:
    """Return (lane, round) of a trace object; raise SchemaError where it does not fit.

    `seen` is shared by the rounds of one file, whose tokens are mostly the same few thousand. Without `likely` the
    lists of likely tokens are left out, the bulk of a run that was observed in full.
    """
    seen = {} if seen is None or len(seen) > _MOST_SEEN else seen
    data = _mapping(value, "a round")
    parents = data.get("parents")
    drafted = tuple(_drafted_from_json(item, seen, likely) for item in _list(data.get("drafted", []), "drafted"))
    if "k" in data and _int(data, "k") != len(drafted):
        raise SchemaError(f"k is {data['k']} but {len(drafted)} tokens are drafted")
    if parents is not None:
        parents = tuple(_whole(item, "parents") for item in _list(parents, "parents"))
        if len(parents) != len(drafted):
            raise SchemaError("parents and drafted differ in length")
        _check_tree(parents, "parents")
    final = data.get("final")
    round_ = Round(
        index=_int(data, "index"),
        t=_duration(data, "t"),
        draft_s=_duration(data, "draft_s"),
        verify_s=_duration(data, "verify_s"),
        other_s=_duration(data, "other_s"),
        observe_s=_duration(data, "observe_s") if "observe_s" in data else 0.0,
        drafter=_text(data, "drafter", seen),
        parents=parents,
        drafted=drafted,
        final=None if final is None else _final_from_json(final, seen, likely),
        riders=tuple(_rider_from_json(item, place) for place, item in enumerate(_list(data.get("riders", []), "riders"))),
        guesses=tuple(_guess_from_json(item) for item in _list(data.get("guesses", []), "guesses")),
        full_context=_int(data, "full_context") if "full_context" in data else 0,
    )
    return _int(data, "lane"), round_


def _rider_from_json(value: Any, place: int) -> Rider:
    item = _list(value, "a rider")
    if len(item) != 3 or not isinstance(item[1], str):
        raise SchemaError("a rider is not [id, text, parent]")
    token, parent = _whole(item[0], "a rider's id"), _whole(item[2], "a rider's parent")
    if not -1 <= parent < place:
        raise SchemaError(f"rider {place} has parent {parent}")
    return Rider(token, item[1], parent)


def _guess_from_json(value: Any) -> Guess:
    item = _list(value, "a guess")
    if len(item) != 2:
        raise SchemaError("a guess is not [id, confidence]")
    return Guess(_whole(item[0], "a guess's id"), None if item[1] is None else _finite(item[1], "a guess's confidence"))


def _check_tree(parents: Sequence[int], key: str) -> None:
    for place, parent in enumerate(parents):
        if not -1 <= parent < place:
            raise SchemaError(f"{key}: node {place} has parent {parent}")


def _drafted_to_json(token: DraftedToken) -> Json:
    data: Json = {
        "id": token.id,
        "text": token.text,
        "q": number(token.q),
        "p": number(token.p),
        "accept": number(token.accept),
        "u": number(token.u),
        "verdict": token.verdict,
        "confidence": number(token.confidence),
        "q_top": _candidates_to_json(token.q_top),
        "p_top": _candidates_to_json(token.p_top),
        "entropy": number(token.entropy),
    }
    if token.margin is not None:
        data["margin"] = number(token.margin)
    if token.draw is not None:
        data["draw"] = token.draw
    if token.threshold is not None:
        data["threshold"] = number(token.threshold)
    if token.residual_top:
        data["residual_top"] = _candidates_to_json(token.residual_top)
    return data


def _drafted_from_json(value: Any, seen: Seen, likely: bool) -> DraftedToken:
    data = _mapping(value, "a drafted token")
    verdict: Verdict = _choice(data, "verdict", get_args(Verdict))
    return DraftedToken(
        id=_int(data, "id"),
        verdict=verdict,
        q=_optional(data, "q"),
        p=_optional(data, "p"),
        accept=_optional(data, "accept"),
        u=_optional(data, "u"),
        text=_text(data, "text", seen),
        confidence=_optional(data, "confidence"),
        margin=_optional(data, "margin"),
        draw=None if data.get("draw") is None else _int(data, "draw"),
        threshold=_optional(data, "threshold"),
        p_top=_candidates_from_json(data, "p_top", seen) if likely else (),
        q_top=_candidates_from_json(data, "q_top", seen) if likely else (),
        residual_top=_candidates_from_json(data, "residual_top", seen) if likely else (),
        entropy=_optional(data, "entropy"),
    )


def _final_to_json(token: FinalToken) -> Json:
    data: Json = {
        "id": token.id,
        "text": token.text,
        "kind": token.kind,
        "p": number(token.p),
        "p_top": _candidates_to_json(token.p_top),
        "entropy": number(token.entropy),
    }
    if token.margin is not None:
        data["margin"] = number(token.margin)
    return data


def _final_from_json(value: Any, seen: Seen, likely: bool) -> FinalToken:
    data = _mapping(value, "a final token")
    kind: FinalKind = _choice(data, "kind", get_args(FinalKind))
    return FinalToken(
        id=_int(data, "id"),
        kind=kind,
        text=_text(data, "text", seen),
        p=_optional(data, "p"),
        margin=_optional(data, "margin"),
        p_top=_candidates_from_json(data, "p_top", seen) if likely else (),
        entropy=_optional(data, "entropy"),
    )


def _candidates_to_json(candidates: Sequence[Candidate]) -> list[list[Any]]:
    return [[token, text, number(probability)] for token, text, probability in candidates]


def _candidates_from_json(data: Mapping[str, Any], key: str, seen: Seen) -> tuple[Candidate, ...]:
    found: list[Candidate] = []
    same = seen.setdefault
    for item in _list(data.get(key) or [], key):
        if type(item) is list and len(item) == 3:
            token, text, weight = item
            if type(token) is int and type(text) is str and type(weight) is float and math.isfinite(weight):
                found.append((same(token, token), same(text, text), weight))  # a trace holds thousands: no further calls
                continue
        triple = _list(item, key)
        if len(triple) != 3 or not isinstance(triple[1], str):
            raise SchemaError(f"{key} holds {item!r:.60}, not [id, text, probability]")
        found.append((_whole(triple[0], key), triple[1], _finite(triple[2], key)))
    return tuple(found)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"{what} is not an object")
    return value


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError(f"{key} is not a list")
    return value


def _whole(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SchemaError(f"{key} is {value!r:.60}, not a whole number")
    return value


def _finite(value: Any, key: str) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number beyond what a float holds
        pass
    raise SchemaError(f"{key} is {value!r:.60}, not a number")


def _int(data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    if type(value) is int:
        return value
    if key not in data:
        raise SchemaError(f"{key} is missing")
    return _whole(value, key)


def _real(data: Mapping[str, Any], key: str) -> float:
    if key not in data:
        raise SchemaError(f"{key} is missing")
    return _finite(data[key], key)


def _duration(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    if type(value) is float and 0 <= value < math.inf:
        return value
    value = _real(data, key)
    if value < 0:
        raise SchemaError(f"{key} is {value:g}, and no time is below 0")
    return value


def _optional(data: Mapping[str, Any], key: str) -> float | None:
    value = data.get(key)
    if value is None or (type(value) is float and math.isfinite(value)):
        return value
    return _finite(value, key)


def _choice(data: Mapping[str, Any], key: str, choices: Sequence[str]) -> Any:
    value = data.get(key)
    if value not in choices:
        raise SchemaError(f"{key} is {value!r:.60}")
    return value


def _text(data: Mapping[str, Any], key: str, seen: Seen) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise SchemaError(f"{key} is {value!r:.60}, not text")
    return seen.setdefault(value, value)
