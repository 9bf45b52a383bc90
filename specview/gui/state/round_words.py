"""What is said of a round and its tokens: names, a node's probabilities, the cost of its pass. Plain Python: no Qt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.files.figures import milliseconds, probability, times
from specview.gui.state.display_text import quoted
from specview.gui.state.view_model import FINAL, TokenKind


class State(NamedTuple):
    """How a token's state is told: its mark, its name in a sentence, what it means."""

    mark: str
    name: str
    meaning: str


STATES: Mapping[TokenKind, State] = {
    "accepted": State("✓", "accepted draft", "A drafted token that the rule accepted."),
    "corrected": State("↻", "corrected by the target", "The target's token in place of the first rejected draft."),
    "bonus": State("+", "bonus token of the target",
                   "All drafts were accepted: one more token from the last row of the same target pass."),
    "rejected": State("✕", "rejected draft", "A drafted token that the rule rejected; not part of the output."),
    "ignored": State("·", "ignored draft, never judged",
                     "A draft after the first rejection: never judged, not part of the output."),
    "plain": State("=", "plain target token", "A target token of a round without a draft."),
    "drafted": State("?", "drafted, not judged yet", "A draft that the target has not verified yet."),
}  # fmt: skip


def point_mass(token: DraftedToken) -> bool:
    """Whether a draft was proposed without probabilities."""
    return token.q is None or token.q == 1.0


def own_probability(token: DraftedToken) -> float | None:
    """What the drafter gave its token: q where the proposal has one, else its confidence, else None."""
    return token.confidence if point_mass(token) else token.q


def number_text(token: DraftedToken) -> str:
    """The node's number: 'q 0.41', 'c 0.41' (its confidence) of a point mass, '' where the drafter has none."""
    value = own_probability(token)
    if value is None:
        return ""
    return f"{'c' if point_mass(token) else 'q'} {probability(value)}"


def cumulative(round_: Round, place: int) -> float | None:
    """The drafter's probability of the path down to a token: the product of its numbers; None where one lacks."""
    parents = round_.parents or tuple(range(-1, round_.k - 1))
    product = 1.0
    while place >= 0:
        own = own_probability(round_.drafted[place])
        if own is None:
            return None
        product *= own
        place = parents[place]
    return product


def named(token: DraftedToken | FinalToken, limit: int = 24) -> str:
    """A token's text in quotes, its name among the likeliest where it adds no text (EOS, say), else its id."""
    text = token.text or next((text for id_, text, _ in token.p_top if id_ == token.id), "")
    return quoted(text, limit) if text else f"token {token.id}"


def name_of(round_: Round, place: int) -> str:
    """The name of a drafted token, or of the final one."""
    token = round_.final if place == FINAL else round_.drafted[place]
    assert token is not None
    return named(token, 60)


def node_tip(round_: Round, place: int) -> str:
    """Everything about a node: token, verdict, q, p, acceptance, draw, probability of its path."""
    name = name_of(round_, place)
    if place == FINAL:
        final = round_.final
        assert final is not None
        return f"{name} · {final.kind}, the target's own\np {probability(final.p)}"
    token = round_.drafted[place]
    lines = [f"{name} · {token.verdict}" + (": never judged" if token.verdict == "ignored" else "")]
    if point_mass(token):
        lines.append("q: a point mass, proposed without probabilities")
    else:
        lines.append(f"q {probability(token.q)}")
    if token.confidence is not None:
        lines.append(f"the drafter's own confidence {probability(token.confidence)}")
    lines.append("p not computed" if token.p is None else f"p {probability(token.p)}")
    if token.accept is not None:
        drawn = "" if token.u is None else f", drawn u {probability(token.u)}"
        lines.append(f"acceptance probability {probability(token.accept)}{drawn}")
    path = cumulative(round_, place)
    if path is not None:
        lines.append(f"the drafter's probability of the path down to it {probability(path)}")
    return "\n".join(lines)


def round_words(round_: Round, one_row_s: float | None) -> str:
    """A round in few words: accepted / drafted, and its target pass against one of one row (else its time)."""
    words = f"round {round_.index} · {round_.accepted}/{round_.k}"
    if one_row_s:
        return f"{words} · v {times(round_.verify_s / one_row_s)}"
    return f"{words} · {milliseconds(round_.verify_s)}"


def round_tip(round_: Round, one_row_s: float | None) -> str:
    """The line about a round with its words in full."""
    lines = [
        f"Round {round_.index}: {round_.accepted} drafts accepted, {round_.judged} judged, {round_.k} drafted.",
        f"The target pass had {round_.rows} rows (the last token, the drafts"
        + (f", {len(round_.riders)} that rode along" if round_.riders else "")
        + f") and took {milliseconds(round_.verify_s)}.",
    ]
    if one_row_s:
        lines.append(
            f"A pass of one row takes {milliseconds(one_row_s)} here (median): the verify cost v of this round is "
            f"{times(round_.verify_s / one_row_s)}."
        )
    lines.append("Numbers in the nodes: q, or c for the drafter's own confidence where it proposed a point mass.")
    return "\n".join(lines)
