"""What the inspector says about one token: the rule's own formula with this token's numbers.

Plain Python: no Qt. A line is a list of (text, tone) pieces, so that model text is never markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specview.decoding.ledger import Candidate, DraftedToken, FinalToken, Round
from specview.gui.display_text import quoted
from specview.gui.figures import milliseconds, number, probability
from specview.gui.view_model import FINAL, LaneModel

PieceTone = Literal["ink", "muted", "strong", "accepted", "rejected", "corrected", "bonus", "ignored", "warning"]
Piece = tuple[str, PieceTone]
Line = list[Piece]

MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate: its id, text, p and q at temperature 1 (None where not recorded) and its role.

    role is 'accepted', 'rejected' or 'ignored' for the drafted token, 'corrected', 'bonus' or 'plain'
    for the token that the target gave, else ''.
    """

    id: int
    text: str
    p: float | None
    q: float | None
    role: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """The draw: filled up to `accept`, a mark at `mark` (u, or the threshold); caption below."""

    accept: float
    mark: float | None
    caption: str


@dataclass(slots=True)
class Inspection:
    """Everything the inspector shows of one token."""

    title: str
    subtitle: str
    rows: list[Row] = field(default_factory=list)
    rows_note: str = ""
    has_q: bool = False
    accept: list[Line] = field(default_factory=list)
    bar: Bar | None = None
    correction: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def inspect(lane: LaneModel, round_index: int, token_index: int) -> Inspection | None:
    """Describe a token of a lane; None where there is none."""
    index = lane.index_of(round_index, token_index)
    if index is None:
        return None
    round_ = lane.rounds[round_index]
    if token_index == FINAL:
        assert round_.final is not None
        return _final(lane, round_, round_.final, lane.tokens[index].position)
    return _drafted(lane, round_, token_index, _tried_at(lane, index))


def _tried_at(lane: LaneModel, index: int) -> int | None:
    """Return the output position a drafted token was tried at: in a chain, in order."""
    token = lane.tokens[index]
    if token.position is not None:
        return token.position
    round_ = lane.rounds[token.round_index]
    if round_.parents is not None:
        return None
    start = index - token.token_index
    before = lane.tokens[start - 1] if start else None
    while before is not None and before.position is None and start > 0:
        start -= 1
        before = lane.tokens[start - 1] if start else None
    return (0 if before is None or before.position is None else before.position + 1) + token.token_index


def _heading(lane: LaneModel, round_: Round, position: int | None, what: str) -> Inspection:
    place = "" if position is None else f" · position {position}"
    timing = f"verify {milliseconds(round_.verify_s)}"
    if round_.k:
        timing += f" · draft {milliseconds(round_.draft_s)}"
    return Inspection(f"Round {round_.index}{place}", f"{lane.name} · {what} · {timing}")


# -- drafted tokens -------------------------------------------------------------------------------


def _drafted(lane: LaneModel, round_: Round, place: int, position: int | None) -> Inspection:
    token = round_.drafted[place]
    rule = str(lane.settings.get("rule", "auto"))
    found = _heading(lane, round_, position, f"draft {place + 1} of {round_.k}")
    final = round_.final if token.verdict == "rejected" else None
    extra: list[tuple[int, str, str]] = [(token.id, token.text, token.verdict)]
    if final is not None:
        extra.append((final.id, final.text, final.kind))
    _fill_rows(found, token.p_top, token.q_top, extra, lane.settings, token.p, token.q)
    _fill_accept(found, rule, token, final)
    if token.verdict == "rejected":
        _fill_correction(found, rule, token, final)
    later = sum(other.verdict == "ignored" for other in round_.drafted[place + 1:])
    if later and token.verdict != "ignored":
        found.notes.append(f"{later} later {_plural('draft', later)} ignored: never judged")
    if token.confidence is not None:
        found.notes.append(f"the drafter's own confidence: {probability(token.confidence)}")
    _note_entropy(found, token.entropy)
    _note_sampling(found, lane.settings, token)
    return found


def _fill_accept(found: Inspection, rule: str, token: DraftedToken, final: FinalToken | None) -> None:
    if token.verdict == "ignored":
        found.accept = [[("never judged", "ignored")],
                        [("an earlier draft of this round ended it: a rejection, or an accepted EOS", "muted")]]
        return
    verdict: Piece = (token.verdict, "accepted" if token.verdict == "accepted" else "rejected")
    drafted = _named(token)
    match rule:
        case "greedy":
            decided = token if token.verdict == "accepted" else final
            found.accept = [
                [("accept = [x is the argmax of p]", "ink")],
                [("x = ", "ink"), (drafted, "ink")],
                [("argmax p = ", "ink"), ("not recorded" if decided is None else _named(decided), "ink")],
                [("→ ", "ink"), verdict],
            ]
            if token.margin is not None:
                found.accept.insert(3, [("margin, best two logits = ", "ink"), (number(token.margin), "strong")])
        case "rejection" | "naive":
            point = token.q == 1.0 and not token.q_top
            found.accept = [
                [("accept = min(1, p/q)", "ink")],
                [(f"= min(1, {probability(token.p)} / {probability(token.q)}) = ", "ink"),
                 (probability(token.accept), "strong")],
                [(f"u = {_draw(token.u)} → ", "ink"), verdict],
            ]
            if point:
                found.accept.insert(2, [("q = 1: a proposal without probabilities", "muted")])
            if token.accept is not None:
                found.bar = Bar(token.accept, token.u, f"accepted when the draw falls left of {probability(token.accept)}")
        case "match":
            drawn = _name_of(token, final)
            found.accept = [
                [("accept = [a draw y from p is x]", "ink")],
                [("x = ", "ink"), (drafted, "ink")],
                [("y = ", "ink"), (drawn, "strong")],
                [(f"p(x) = {probability(token.p if token.p is not None else token.accept)} → ", "ink"), verdict],
            ]
            if token.accept is not None:
                found.bar = Bar(token.accept, None, f"the draw agrees with x with probability {probability(token.accept)}")
        case "typical":
            found.accept = [
                [("accept = [p(x) > min(ε, δ exp(-H(p)))]", "ink")],
                [("ε = 0.09, δ = 0.3: threshold ", "ink"), (probability(token.threshold), "strong")],
                [(f"p(x) = {probability(token.p)} → ", "ink"), verdict],
                [("not exact: the output is not distributed as the target's", "warning")],
            ]
            if token.p is not None:
                found.bar = Bar(token.p, token.threshold, "accepted when p(x) reaches past the mark, the threshold")
        case _:
            found.accept = [[(f"rule {rule}: ", "ink"), verdict]]
    if rule == "naive":
        found.accept.append([("teaching bug: a rejection draws from p itself, so the output drifts from p", "warning")])


def _fill_correction(found: Inspection, rule: str, token: DraftedToken, final: FinalToken | None) -> None:
    gives: Line = []
    if final is not None:
        gives = [("→ ", "ink"), (_named(final), "corrected"),
                 (" corrected", "ink")]
    match rule:
        case "greedy":
            head: list[Line] = [[("the target's argmax stands instead", "ink")]]
        case "rejection":
            head = [[("residual max(0, p - q), normalised", "ink")], _list(token.residual_top)]
        case "naive":
            head = [[("drawn from p itself, not from max(0, p - q)", "warning")], _list(token.residual_top)]
        case "match":
            head = [[("the draw y stands instead", "ink")]]
        case "typical":
            head = [[("drawn from p instead", "ink")]]
        case _:
            head = []
    found.correction = [*head, gives] if gives else head


def _named(token: DraftedToken | FinalToken) -> str:
    """Return a token's text in quotes, its name among the likeliest where it adds no text (EOS, say)."""
    text = token.text or next((text for id_, text, _ in token.p_top if id_ == token.id), "")
    return quoted(text, 24) if text else f"token {token.id}"


def _list(top: tuple[Candidate, ...]) -> Line:
    if not top:
        return [("not recorded (light observation)", "muted")]
    pieces: Line = []
    for place, (_, text, value) in enumerate(top[:4]):
        pieces.append((("" if place == 0 else " · ") + f"{quoted(text, 14)} {probability(value)}", "ink"))
    if len(top) > 4:
        pieces.append((" · …", "muted"))
    return pieces


def _name_of(token: DraftedToken, final: FinalToken | None) -> str:
    """Return the text of the drawn token of `match`, from wherever it is known."""
    if token.draw is None:
        return "not recorded"
    if token.draw == token.id:
        return _named(token)
    if final is not None and final.id == token.draw:
        return _named(final)
    text = next((text for id_, text, _ in token.p_top if id_ == token.draw), None)
    return f"token {token.draw}" if text is None else quoted(text, 24)


def _draw(u: float | None) -> str:
    return "not drawn" if u is None else f"{u:.2f}" if 0.005 <= u < 0.995 else f"{u:.4f}"


# -- final tokens ---------------------------------------------------------------------------------


def _final(lane: LaneModel, round_: Round, token: FinalToken, position: int | None) -> Inspection:
    rule = str(lane.settings.get("rule", "auto"))
    found = _heading(lane, round_, position, {"plain": "plain step"}.get(token.kind, f"{token.kind} token"))
    rejected = next((other for other in round_.drafted if other.verdict == "rejected"), None)
    extra = [(token.id, token.text, str(token.kind))]
    q_top: tuple[Candidate, ...] = ()
    if token.kind == "corrected" and rejected is not None:
        extra.insert(0, (rejected.id, rejected.text, "rejected"))
        q_top = rejected.q_top
    _fill_rows(found, token.p_top, q_top, extra, lane.settings, token.p, None)
    shown = _named(token) + ("" if token.text else ", no text of its own")
    match token.kind:
        case "corrected":
            replaced = "" if rejected is None else _named(rejected)
            found.accept = [[(shown, "corrected"), (" corrects the rejected ", "ink"), (replaced, "rejected")]]
            if rejected is not None:
                _fill_correction(found, rule, rejected, token)
        case "bonus":
            found.accept = [
                [(shown, "bonus"), (f" after all {round_.k} drafts were accepted", "ink")],
                [("the last row of the same target pass, so it costs nothing more", "muted")],
            ]
        case _:
            found.accept = [
                [(shown, "strong"), (" from the target alone", "ink")],
                [("no draft in this round: one target pass, one token", "muted")],
            ]
    if token.p is not None:
        found.accept.append([(f"p = {probability(token.p)}", "ink")])
    if token.margin is not None:
        found.accept.append([(f"margin, best two logits = {number(token.margin)}", "ink")])
    ignored = sum(other.verdict == "ignored" for other in round_.drafted)
    if ignored:
        found.notes.append(f"{ignored} {_plural('draft', ignored)} of this round ignored: never judged")
    _note_entropy(found, token.entropy)
    if token.p_top:
        _note_filters(found, lane.settings)
    return found


# -- rows and notes -----------------------------------------------------------------------------------


def _fill_rows(
    found: Inspection, p_top: tuple[Candidate, ...], q_top: tuple[Candidate, ...],
    extra: list[tuple[int, str, str]], settings: Mapping[str, Any], decided_p: float | None, decided_q: float | None,
) -> None:
    """Collect the union of the likeliest of p and q, the drafted token and the one that stands instead."""
    texts = {id_: text for id_, text, _ in (*q_top, *p_top)}
    p = {id_: value for id_, _, value in p_top}
    q = {id_: value for id_, _, value in q_top}
    roles: dict[int, str] = {}
    for id_, text, role in extra:
        roles[id_] = role
        texts[id_] = text or texts.get(id_, "")
    if unfiltered(settings):  # then the decision's own p and q are these very ones
        first = extra[-1][0] if decided_q is None else extra[0][0]
        if decided_p is not None:
            p.setdefault(first, decided_p)
        if decided_q is not None and q_top:
            q.setdefault(first, decided_q)
    ordered = sorted(texts, key=lambda id_: -max(p.get(id_, 0.0), q.get(id_, 0.0)))
    must = [id_ for id_ in ordered if id_ in roles]
    rest = [id_ for id_ in ordered if id_ not in roles][: MAX_ROWS - len(must)]
    chosen = set(must) | set(rest)
    found.rows = [
        Row(id_, texts[id_], p.get(id_), q.get(id_), roles.get(id_, "")) for id_ in ordered if id_ in chosen
    ]
    found.has_q = bool(q_top)
    if not p_top and not q_top:
        found.rows_note = "Likeliest tokens were not recorded: observation was light."
    elif decided_q == 1.0 and not q_top:
        found.rows_note = "No q bars: this drafter proposes without probabilities, q = 1."


def unfiltered(settings: Mapping[str, Any]) -> bool:
    """Whether decisions are made at temperature 1 without filters, as p_top and q_top are."""
    return (
        settings.get("temperature", 0.0) == 1.0 and not settings.get("top_k")
        and settings.get("top_p", 1.0) == 1.0 and not settings.get("min_p")
    )


def sampling_words(settings: Mapping[str, Any]) -> str:
    """Say the sampling settings that are on: 'temperature 0.7, top-k 40'."""
    temperature = settings.get("temperature", 0.0)
    if temperature == 0:
        return "temperature 0"
    words = [f"temperature {temperature:g}"]
    if settings.get("top_k"):
        words.append(f"top-k {settings['top_k']}")
    if settings.get("top_p", 1.0) < 1.0:
        words.append(f"top-p {settings['top_p']:g}")
    if settings.get("min_p"):
        words.append(f"min-p {settings['min_p']:g}")
    return ", ".join(words)


def _note_sampling(found: Inspection, settings: Mapping[str, Any], token: DraftedToken) -> None:
    if not token.p_top and not token.q_top:
        return
    _note_filters(found, settings)


def _note_filters(found: Inspection, settings: Mapping[str, Any]) -> None:
    if not unfiltered(settings):
        found.notes.append(
            f"bars: temperature 1, no filters; the decision used {sampling_words(settings)}"
        )


def _note_entropy(found: Inspection, entropy: float | None) -> None:
    if entropy is not None:
        found.notes.append(f"entropy of p at temperature 1: {number(entropy)} nats")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
