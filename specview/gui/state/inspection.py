"""What the inspector says about one token: the rule's own formula with this token's numbers.

Plain Python: no Qt. A line is a list of (text, tone) pieces, so that model text is never markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specview.decoding.ledger import Candidate, DraftedToken, FinalToken, Rider, Round, depths
from specview.decoding.sampling import SamplingParams, sampling_words
from specview.drafting.lookahead import window_grid
from specview.fields import declared
from specview.files.figures import milliseconds, number, probability
from specview.gui.state.display_text import quoted, spelled
from specview.gui.state.lane_words import title
from specview.gui.state.round_words import named
from specview.gui.state.view_model import FINAL, LaneModel

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
    """Everything the inspector shows of one token.

    token is its text for a reader, blanks by their names. tree is the round where its draft is a tree, and the place of the token in it; window the guesses that rode along
    (lookahead): a row for each column, in each the levels.
    """

    title: str
    subtitle: str
    token: str = ""
    rows: list[Row] = field(default_factory=list)
    rows_note: str = ""
    has_q: bool = False
    accept: list[Line] = field(default_factory=list)
    bar: Bar | None = None
    correction: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tree: tuple[Round, int] | None = None
    window: list[list[str]] = field(default_factory=list)


def inspect(lane: LaneModel, round_index: int, token_index: int) -> Inspection | None:
    """Describe a token of a lane; None where there is none."""
    if lane.index_of(round_index, token_index) is None:
        return None
    round_ = lane.round_at(round_index)
    position = lane.position_of(round_index, token_index)
    if token_index == FINAL:
        assert round_.final is not None
        found = _final(lane, round_, round_.final, position)
    else:
        found = _drafted(lane, round_, token_index, position)
    found.token = spelled_out(round_, token_index)
    found.tree = None if round_.parents is None else (round_, token_index)
    found.window = window_rows(round_.riders)
    return found


def spelled_out(round_: Round, token_index: int) -> str:
    """A token's text for a reader: newline, 4 spaces, "return"."""
    token = round_.final if token_index == FINAL else round_.drafted[token_index]
    assert token is not None
    return spelled(token.text) if token.text else named(token)


def siblings(round_: Round, place: int) -> list[int]:
    """The drafts of a round that were tried for the same position as this one, itself among them, in order.

    In a chain that is the draft alone.
    """
    if round_.parents is None:
        return [place]
    return [i for i, parent in enumerate(round_.parents) if parent == round_.parents[place]]


def standing(round_: Round, place: int) -> DraftedToken | FinalToken | None:
    """What stands in the output where a rejected draft was tried: an accepted sibling, else the final token."""
    held = next((i for i in siblings(round_, place) if round_.drafted[i].verdict == "accepted"), None)
    return round_.final if held is None else round_.drafted[held]


def last_rejected(round_: Round) -> list[DraftedToken]:
    """The rejected drafts that the final token stands for, in the order they were tried."""
    rejected = [i for i, token in enumerate(round_.drafted) if token.verdict == "rejected"]
    return [round_.drafted[i] for i in rejected if standing(round_, i) is round_.final]


def window_rows(riders: Sequence[Rider]) -> list[list[str]]:
    """The lookahead window, a row for each of its columns, in each the texts of the levels, first level first.

    Row 0 begins with the context's last token, which is no rider: ''. [] where nothing rode along.
    """
    if not riders:
        return []
    levels = window_grid(riders)
    first: list[Rider | None] = [None, *levels[0]] if levels else [None]
    columns: list[Sequence[Rider | None]] = [first, *levels[1:]]
    wide = max(len(column) for column in columns)
    return [
        ["" if place >= len(column) else _text_of(column[place]) for column in columns] for place in range(wide)
    ]


def _text_of(rider: Rider | None) -> str:
    return "" if rider is None else rider.text or f"token {rider.id}"


def _heading(lane: LaneModel, round_: Round, position: int | None, what: str) -> Inspection:
    place = "" if position is None else f" · position {position}"
    timing = f"verify {milliseconds(round_.verify_s)}"
    if round_.k:
        timing += f" · draft {milliseconds(round_.draft_s)}"
    by = f" · drafted by {round_.drafter}" if round_.k and round_.drafter not in ("", lane.method) else ""
    return Inspection(f"Round {round_.index}{place}", f"{title(lane)} · {what}{by} · {timing}")


# -- drafted tokens -------------------------------------------------------------------------------


def _drafted(lane: LaneModel, round_: Round, place: int, position: int | None) -> Inspection:
    token, tree = round_.drafted[place], round_.parents is not None
    rule = str(lane.settings.get("rule", "auto"))
    found = _heading(lane, round_, position, _place_words(round_, place))
    final = standing(round_, place) if token.verdict == "rejected" else None
    extra: list[tuple[int, str, str]] = [(token.id, token.text, token.verdict)]
    if final is not None:
        extra.append((final.id, final.text, final.kind if isinstance(final, FinalToken) else final.verdict))
    _fill_rows(found, token.p_top, token.q_top, extra, lane.settings, token.p, token.q)
    judged = lane.under_way is None or lane.under_way.round is not round_ or lane.under_way.stage.states[place] != "drafted"
    if not judged:
        found.accept = [_line(("not judged yet", "strong")), _line(("the target has not come to it at this moment", "muted"))]
    elif token.verdict == "ignored":
        why = "the path went another way, or ended above it" if tree else (
            "an earlier draft of this round ended it: a rejection, or an accepted EOS")
        found.accept = [_line(("never judged", "ignored")), _line((why, "muted"))]
    else:
        found.accept, found.bar = _accept(rule, token, final), _bar(rule, token)
    if token.verdict == "rejected":
        found.correction = _correction(rule, token, final)
    later = sum(other.verdict == "ignored" for other in round_.drafted[0 if tree else place + 1:])
    if later and token.verdict != "ignored" and (lane.under_way is None or lane.under_way.round is not round_):
        which = f"{_plural('draft', later)} of the tree" if tree else f"later {_plural('draft', later)}"
        found.notes.append(f"{later} {which} ignored: never judged")
    if token.confidence is not None:
        found.notes.append(f"the drafter's own confidence: {probability(token.confidence)}")
    _note(found, token.entropy, lane.settings, bool(token.p_top or token.q_top))
    return found


def _place_words(round_: Round, place: int) -> str:
    words = f"draft {place + 1} of {round_.k}"
    if round_.parents is None:
        return words
    beside = siblings(round_, place)
    depth = depths(round_.parents)[place] + 1
    return f"{words} · depth {depth}, sibling {beside.index(place) + 1} of {len(beside)}"


def _line(*pieces: str | Piece) -> Line:
    """A line of pieces; bare text is in ink."""
    return [(piece, "ink") if isinstance(piece, str) else piece for piece in pieces]


def _accept(rule: str, token: DraftedToken, final: DraftedToken | FinalToken | None) -> list[Line]:
    """The rule's formula for accepting, with a judged token's numbers."""
    verdict: Piece = (token.verdict, "accepted" if token.verdict == "accepted" else "rejected")
    x, p = _line(f"x = {named(token)}"), probability(token.p)
    if rule == "greedy":
        decided = token if token.verdict == "accepted" else final
        best = "not recorded" if decided is None else named(decided)
        lines = [_line("accept = [x is the argmax of p]"), x, _line("argmax p = ", best)]
        if token.margin is not None:
            lines.append(_line("margin, best two logits = ", (number(token.margin), "strong")))
        return [*lines, _line("→ ", verdict)]
    if rule in ("rejection", "naive"):
        accept: Piece = (probability(token.accept), "strong")
        lines = [_line("accept = min(1, p/q)"), _line(f"= min(1, {p} / {probability(token.q)}) = ", accept)]
        if token.q == 1.0 and not token.q_top:
            lines.append(_line(("q = 1: a proposal without probabilities", "muted")))
        lines.append(_line(f"u = {_draw(token.u)} → ", verdict))
        if rule == "naive":
            bug = "teaching bug: a rejection draws from p itself, so the output drifts from p"
            lines.append(_line((bug, "warning")))
        return lines
    if rule == "match":
        drawn = probability(token.p if token.p is not None else token.accept)
        return [_line("accept = [a draw y from p is x]"), x, _line("y = ", (_name_of(token, final), "strong")),
                _line(f"p(x) = {drawn} → ", verdict)]
    if rule == "typical":
        return [_line("accept = [p(x) > min(ε, δ exp(-H(p)))]"),
                _line("ε = 0.09, δ = 0.3: threshold ", (probability(token.threshold), "strong")),
                _line(f"p(x) = {p} → ", verdict),
                _line(("not exact: the output is not distributed as the target's", "warning"))]
    return [_line(f"rule {rule}: ", verdict)]


def _bar(rule: str, token: DraftedToken) -> Bar | None:
    """The draw of a judged token as a picture; None where the rule draws nothing."""
    if rule == "typical":
        words = "accepted when p(x) reaches past the mark, the threshold"
        return None if token.p is None else Bar(token.p, token.threshold, words)
    if token.accept is None or rule not in ("rejection", "naive", "match"):
        return None
    accept = probability(token.accept)
    if rule == "match":
        return Bar(token.accept, None, f"the draw agrees with x with probability {accept}")
    return Bar(token.accept, token.u, f"accepted when the draw falls left of {accept}")


def _correction(rule: str, token: DraftedToken, final: DraftedToken | FinalToken | None) -> list[Line]:
    """What stands in a rejected token's place, and how it was found."""
    if isinstance(final, DraftedToken):
        left = ", with p as this trial left it" if rule in ("rejection", "naive", "typical") else ""
        return [_line(f"the next sibling was tried{left}"),
                _line("→ ", (named(final), "accepted"), " accepted: a later sibling")]
    head = {
        "greedy": [_line("the target's argmax stands instead")],
        "rejection": [_line("residual max(0, p - q), normalised"), _list(token.residual_top)],
        "naive": [_line(("drawn from p itself, not from max(0, p - q)", "warning")), _list(token.residual_top)],
        "match": [_line("the draw y stands instead")],
        "typical": [_line("drawn from p instead")],
    }.get(rule, [])
    return head if final is None else [*head, _line("→ ", (named(final), "corrected"), " corrected")]


def _list(top: tuple[Candidate, ...]) -> Line:
    if not top:
        return _line(("not recorded (light observation)", "muted"))
    shown = " · ".join(f"{quoted(text, 14)} {probability(value)}" for _, text, value in top[:4])
    return _line(shown, (" · …", "muted")) if len(top) > 4 else _line(shown)


def _name_of(token: DraftedToken, final: DraftedToken | FinalToken | None) -> str:
    """Return the text of the drawn token of `match`, from wherever it is known."""
    if token.draw is None:
        return "not recorded"
    for known in (token, final):
        if known is not None and known.id == token.draw:
            return named(known)
    text = next((text for id_, text, _ in token.p_top if id_ == token.draw), None)
    return f"token {token.draw}" if text is None else quoted(text, 24)


def _draw(u: float | None) -> str:
    return "not drawn" if u is None else f"{u:.2f}" if 0.005 <= u < 0.995 else f"{u:.4f}"


# -- final tokens ---------------------------------------------------------------------------------


def _final(lane: LaneModel, round_: Round, token: FinalToken, position: int | None) -> Inspection:
    rule = str(lane.settings.get("rule", "auto"))
    found = _heading(lane, round_, position, {"plain": "plain step"}.get(token.kind, f"{token.kind} token"))
    tried = last_rejected(round_) if token.kind == "corrected" else []
    extra = [*((other.id, other.text, "rejected") for other in tried), (token.id, token.text, str(token.kind))]
    _fill_rows(found, token.p_top, tried[-1].q_top if tried else (), extra, lane.settings, token.p, None)
    shown = named(token) + ("" if token.text else ", no text of its own")
    if token.kind == "corrected":
        replaced = ", ".join(named(other) for other in tried)
        found.accept = [_line((shown, "corrected"), " corrects the rejected ", (replaced, "rejected"))]
        found.correction = _correction(rule, tried[-1], token) if tried else []
    elif token.kind == "bonus":
        after = f" after all {round_.k} drafts were accepted"
        if round_.parents is not None:
            after = f" after a path of {round_.accepted} accepted drafts to its end"
        found.accept = [_line((shown, "bonus"), after),
                        _line(("the last row of the same target pass, so it costs nothing more", "muted"))]
    else:
        found.accept = [_line((shown, "strong"), " from the target alone"),
                        _line(("no draft in this round: one target pass, one token", "muted"))]
    if token.p is not None:
        found.accept.append(_line(f"p = {probability(token.p)}"))
    if token.margin is not None:
        found.accept.append(_line(f"margin, best two logits = {number(token.margin)}"))
    ignored = sum(other.verdict == "ignored" for other in round_.drafted)
    if ignored:
        found.notes.append(f"{ignored} {_plural('draft', ignored)} of this round ignored: never judged")
    _note(found, token.entropy, lane.settings, bool(token.p_top))
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
    rest = [id_ for id_ in ordered if id_ not in roles][: max(0, MAX_ROWS - len(must))]
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
    filters = [one for one in declared(SamplingParams).values() if one.form == "Filters"]
    return settings.get("temperature", 0.0) == 1.0 and all(settings.get(one.name, one.default) == one.default for one in filters)


def _note(found: Inspection, entropy: float | None, settings: Mapping[str, Any], bars: bool) -> None:
    """Note the entropy, and that the bars are not of the decision's own p and q where they are not."""
    if entropy is not None:
        found.notes.append(f"entropy of p at temperature 1: {number(entropy)} nats")
    if bars and not unfiltered(settings):
        found.notes.append(f"bars: temperature 1, no filters; the decision used {sampling_words(settings)}")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
