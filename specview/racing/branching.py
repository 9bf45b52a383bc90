"""Going on from a place in a run's output: what could stand there, the branch that is made of a choice, and what its ids read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specview.decoding.interfaces import Engine
from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.observation import after
from specview.errors import UsageError
from specview.settings.branch import Branch

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could stand at a place of the output: p as the viewer sees it, at temperature 1 without filters.

    what says how it is known: accepted, rejected, corrected, bonus or plain, "" for one of the likeliest alone.
    """

    id: int
    text: str
    p: float | None = None
    what: str = ""


def output_tokens(rounds: Sequence[Round]) -> Iterator[tuple[Round, DraftedToken | FinalToken]]:
    """The output of these rounds, each token with its round."""
    for round_ in rounds:
        for token in round_.output:
            yield round_, token


def alternatives(rounds: Sequence[Round], position: int) -> list[Alternative]:
    """What could stand at a place of this output: what does stand there first, then the rejected drafts, then the likeliest.

    Empty where the output has no such place.
    """
    found = next((item for place, item in enumerate(output_tokens(rounds)) if place == position), None)
    if found is None:
        return []
    round_, stands = found
    likely = {id_: p for id_, _, p in stands.p_top}
    what = stands.kind if isinstance(stands, FinalToken) else stands.verdict
    made = {stands.id: Alternative(stands.id, stands.text, likely.get(stands.id), what)}
    for draft in _tried_beside(round_, stands):
        made.setdefault(draft.id, Alternative(draft.id, draft.text, likely.get(draft.id), "rejected"))
    for id_, text, p in stands.p_top:
        made.setdefault(id_, Alternative(id_, text, p))
    return list(made.values())


def _tried_beside(round_: Round, stands: DraftedToken | FinalToken) -> list[DraftedToken]:
    """The drafts that were rejected at the place of a token of the round's output."""
    path = [-1, *(place for place, token in enumerate(round_.drafted) if token.verdict == "accepted")]
    parent = path[next(depth for depth, token in enumerate(round_.output) if token is stands)]
    parents = round_.parents if round_.parents is not None else range(-1, round_.k - 1)
    tried = zip(round_.drafted, parents, strict=True)
    return [token for token, above in tried if above == parent and token.verdict == "rejected"]


def branch_at(
    rounds: Sequence[Round], position: int, choice: Alternative | int, *,
    before: Branch | None = None, run: str = "", lane: str = "",
) -> Branch:  # fmt: skip
    """The branch from a place of a lane's output, with this token; before is what that lane itself went on from.

    Raises UsageError where the output has no such place.
    """
    output = [token for _, token in output_tokens(rounds)]
    if not 0 <= position < len(output):
        have = f"positions 0 to {len(output) - 1}" if output else "no tokens"
        raise UsageError(f"there is no position {position} in the output of {lane or 'that lane'}.", f"It has {have}.")
    if isinstance(choice, int):
        known = (one for one in alternatives(rounds, position) if one.id == choice)
        choice = next(known, Alternative(choice, ""))
    earlier, text = ((), "") if before is None else (before.token_ids, before.given)
    ids = (*earlier, *(token.id for token in output[:position]), choice.id)
    return Branch(ids, run, lane, position, text + "".join(token.text for token in output[:position]), choice.text)


def spelled(branch: Branch, target: Engine) -> Branch:
    """The branch with the texts that its ids read in this target's vocabulary.

    Raises UsageError where they cannot be this target's output.
    """
    tokenizer, ids = target.tokenizer, branch.token_ids
    mend = "Choose the target of the run that it continues."
    if any(token >= min(target.vocab_size, tokenizer.vocab_size) for token in ids):
        raise UsageError(f"the branch has tokens that {target.model_name} has not.", mend)
    if any(token in target.eos_ids for token in ids):
        raise UsageError("a token of the branch ends the text, and nothing follows it.", "Choose another token.")
    detokenizer, text = after(tokenizer, ids[:-1])
    token = detokenizer.add(ids[-1])
    # What a run recorded may end earlier: what may begin a stop string was held back.
    told = branch.text or (branch.token if len(ids) == 1 and branch.token != tokenizer.token_text(ids[-1]) else "")
    if not (text or token).startswith(told):
        here, there = (f"{words[:_SHOWN]!r}" for words in (text or token, told))
        raise UsageError(f"the tokens of the branch are another target's: they read {here} here, and {there} there.", mend)
    return replace(branch, text=text, token=token)
