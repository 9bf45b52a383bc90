"""What is said of a token in a lane's text: its state, its place, the drafts that its round threw away. Plain Python: no Qt."""

from __future__ import annotations

from collections.abc import Sequence

from specview.decoding.ledger import Candidate, DraftedToken, Round
from specview.files.figures import probability
from specview.gui.state.display_text import spelled
from specview.gui.state.round_words import STATES, named
from specview.gui.state.view_model import FINAL, LaneModel, ViewToken

MAX_LISTED = 12
"""Drafts that are listed one by one; the others are counted."""


def token_words(lane: LaneModel, token: ViewToken) -> str:
    """A token's state and place, its text, and before a final token what the round threw away; in lines."""
    round_ = _round(lane, token)
    place = "not in the output" if token.position is None else f"position {token.position}"
    where = place if round_ is None else f"round {round_.index} · {place}"
    if token.folded:
        return f"{token.folded} more ignored drafts, never judged · {where}"
    words = f"{STATES[token.kind].name} · {where}\n{spelled(token.text) or 'no text of its own'}"
    if round_ is not None and round_.inferred:
        words += "\nInferred: the server shows what one pass gave, and not what it drafted for it."
    if token.token_index == FINAL and round_ is not None and (thrown := thrown_away(round_)):
        return f"{words}\n{count_of(round_)} thrown away before it:\n{thrown}"
    return words


def count_words(lane: LaneModel, token: ViewToken) -> str:
    """What a count ("+2") stands for, in lines."""
    round_ = _round(lane, token)
    return "" if round_ is None else f"{count_of(round_)} thrown away · round {round_.index}\n{thrown_away(round_)}"


def _round(lane: LaneModel, token: ViewToken) -> Round | None:
    """The round of a token on screen; None where a replay has just gone back before it."""
    return lane.round_at(token.round_index) if token.round_index < lane.known_rounds else None


def count_of(round_: Round) -> str:
    """How many drafts a round threw away, in words."""
    thrown = round_.k - round_.accepted
    return f"{thrown} draft{'' if thrown == 1 else 's'}"


def thrown_away(round_: Round) -> str:
    """The drafts of a round that are not in the output, a line each: text, verdict, p and q."""
    thrown = [token for token in round_.drafted if token.verdict != "accepted"]
    lines = [_line(token) for token in thrown[:MAX_LISTED]]
    if len(thrown) > MAX_LISTED:
        lines.append(f"and {len(thrown) - MAX_LISTED} more")
    return "\n".join(lines)


def _line(token: DraftedToken) -> str:
    verdict = "never judged" if token.verdict == "ignored" else token.verdict
    name = spelled(token.text, 30) or named(token)
    numbers = (_number("p", token.p, token.p_top, token.id), _number("q", token.q, token.q_top, token.id))
    return " · ".join(filter(None, [f"{name} {verdict}", *numbers]))


def _number(what: str, decided: float | None, top: Sequence[Candidate], token: int) -> str:
    """What decided; where that is only yes or no (temperature 0, a point mass), the model's own number if it was recorded."""
    if decided not in (None, 0.0, 1.0) or not top:
        return "" if decided is None else f"{what}\u00a0{probability(decided)}"
    own = next((value for id_, _, value in top if id_ == token), None)
    return f"{what}\u00a0{probability(own)}" if own is not None else f"{what}\u00a0<\u00a0{probability(top[-1][2])}"
