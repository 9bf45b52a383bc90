"""The ledger: what a draft proposed, what the rule decided, what a round emitted.

Everything shown, plotted, saved, replayed or tested is a fold over `Round`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Array = Any  # a numpy array or a torch tensor: decoding is array-namespace generic

Verdict = Literal["accepted", "rejected", "ignored"]
FinalKind = Literal["corrected", "bonus", "plain"]
End = str
"""eos: the text's own end; stop: a stop string, which stands behind the colon; limit: as many tokens as asked for; context: the target's context was full before that."""
ENDS: Mapping[str, tuple[str, bool]] = {
    "eos": ("ended by the model", True),
    "stop": ("ended by the stop string", True),
    "limit": ("ended by the token limit", True),
    "context": ("ended where the target's context was full", True),
    "stopped": ("stopped", False),
    "error": ("ended by an error", False),
}
"""Every end: its words, and whether it is one that nobody and nothing broke off."""


def end_kind(end: str | None) -> str:
    """Which of ENDS an end is, '' where it is none; what more it says stands behind a colon."""
    kind = (end or "").partition(":")[0]
    return kind if kind in ENDS else ""


def end_words(end: str | None) -> str:
    """An end in words."""
    kind = end_kind(end)
    more = (end or "").removeprefix(kind).removeprefix(": ")
    return f"{ENDS[kind][0]} {more}".strip() if kind else "not finished"


def finished(end: str | None) -> bool:
    """Whether an output came to its end: nobody and nothing broke it off."""
    return end_kind(end) != "" and ENDS[end_kind(end)][1]

Siblings = Literal["point-mass", "independent", "without-replacement"]
"""How the children of one node of a draft tree were chosen: `rejection` tries them by rules of their own."""

UNKNOWN = -1
"""The id of a drafted token that a serving engine counts and does not show; of one whose id it does not show it is below that."""
UNKNOWN_TEXT = "(not told)"

Candidate = tuple[int, str, float]
"""One likely token: (id, text, probability)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes for one round.

    tokens       the drafted ids, in the order the target pass gets them
    parents      per token the index of its parent in `tokens` (always an earlier one), -1 for a child
                 of the context; None for a chain
    siblings     how siblings that have q were chosen; those without q are point masses
    q            one row [vocab] per token: the distribution it was sampled from; None where the
                 proposal has no probabilities (a point mass, q = 1)
    confidences  per token the drafter's own probability of it, or None
    drafter      who proposed them (a cascade names its member)
    raw_logits   one row [vocab] per token before temperature and filters, for viewing only
    riders       ids that ride in the same target pass and are not proposed (lookahead's window): their
                 logit rows come back to the drafter's `observe` as features["riders"]
    rider_parents  per rider the index of its parent among the riders, -1 for a child of the context
    caught_up    logit rows [vocab] that the drafter gave on its way here: the last one for the token that the
                 context ends with, the one before it for the token before, ...; for viewing only
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    q: Sequence[Array] | None = None
    confidences: tuple[float | None, ...] = ()
    drafter: str = ""
    raw_logits: Sequence[Array] | None = None
    siblings: Siblings = "independent"
    riders: tuple[int, ...] = ()
    rider_parents: tuple[int, ...] = ()
    caught_up: Sequence[Array] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> Sequence[int]:
        """Depth of every drafted token, 0 for those after the context."""
        return range(len(self)) if self.parents is None else depths(self.parents)

    @property
    def longest(self) -> int:
        """Tokens of the longest path."""
        return max(self.depths, default=-1) + 1


EMPTY_DRAFT = Draft()


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of every node of a tree given by its parents (-1 is the root): 0 for the root's children."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


@dataclass(frozen=True, slots=True)
class Rider:
    """A token that rode in a target pass without being proposed: id, text on its own, parent rider or -1."""

    id: int
    text: str = ""
    parent: int = -1


@dataclass(frozen=True, slots=True)
class Guess:
    """What a drafter would have drafted for a token of the output, given all tokens before it.

    confidence is its own probability of that guess, at temperature 1.
    """

    id: int
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """One drafted token and what became of it.

    p, q     the decision probabilities (after temperature and filters) at the moment of the trial;
             p is None for an ignored token that the observer did not compute
    accept   the acceptance probability (see DESIGN section 9 per rule); None when ignored
    u        the uniform number drawn against it, where the rule draws one
    draw     `match`: the id drawn from p;  margin  `greedy`: top-1 minus top-2 logit;
    threshold  `typical`: what p(x) had to exceed
    text     incremental text: joining accepted and final tokens gives the output
    p_top, q_top  likeliest tokens at temperature 1 without filters, for viewing
    residual_top  `rejection`, `naive`: the heaviest tokens of the correcting distribution
    entropy  of the target's raw distribution, nats
    """

    id: int
    verdict: Verdict
    q: float | None = None
    p: float | None = None
    accept: float | None = None
    u: float | None = None
    text: str = ""
    confidence: float | None = None
    margin: float | None = None
    draw: int | None = None
    threshold: float | None = None
    p_top: tuple[Candidate, ...] = ()
    q_top: tuple[Candidate, ...] = ()
    residual_top: tuple[Candidate, ...] = ()
    entropy: float | None = None


@dataclass(frozen=True, slots=True)
class FinalToken:
    """The token the target itself gives at the end of a round.

    margin is the top-1 minus top-2 logit of its row.
    """

    id: int
    kind: FinalKind
    text: str = ""
    p: float | None = None
    margin: float | None = None
    p_top: tuple[Candidate, ...] = ()
    entropy: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-verify round; a plain step is a round with an empty draft.

    t is the lane's own clock at the end of the round, seconds since the end of prefill; the phases
    are seconds; observe_s is off that clock. k is the number of drafted tokens. In a tree (parents)
    the accepted tokens are one path from the root. riders are the pass's other tokens (lookahead).
    guesses are what the drafter would have drafted for the output's tokens just before this round, the last one
    for the token before it: found on the way, in the pass that caught up with the text, where it is watched.
    full_context is the length in tokens of a drafter's own context that is full, so that it drafts nothing; else 0.
    inferred: a serving engine gave these tokens in one burst and shows no draft: all but the last must have been drafted and
    accepted. How many more were drafted is not known, so nothing here counts as proposed or judged.
    """

    index: int
    t: float
    draft_s: float
    verify_s: float
    other_s: float
    observe_s: float = 0.0
    drafter: str = ""
    parents: tuple[int, ...] | None = None
    drafted: tuple[DraftedToken, ...] = ()
    final: FinalToken | None = None
    riders: tuple[Rider, ...] = ()
    guesses: tuple[Guess, ...] = ()
    full_context: int = 0
    inferred: bool = False

    @property
    def rows(self) -> int:
        """Rows of the target pass: the last token, the draft and what rode along."""
        return 1 + len(self.drafted) + len(self.riders)

    @property
    def k(self) -> int:
        """Drafted tokens in this round."""
        return len(self.drafted)

    @property
    def depths(self) -> Sequence[int]:
        """Depth of every drafted token, 0 for those after the context."""
        return range(self.k) if self.parents is None else depths(self.parents)

    @property
    def longest(self) -> int:
        """Tokens of the draft's longest path: k of a chain."""
        return max(self.depths, default=-1) + 1

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(token.verdict == "accepted" for token in self.drafted)

    @property
    def judged(self) -> int:
        """Drafted tokens that the rule tried."""
        return sum(token.verdict != "ignored" for token in self.drafted)

    @property
    def emitted(self) -> tuple[int, ...]:
        """The ids this round adds to the output."""
        return tuple(token.id for token in self.output)

    @property
    def output(self) -> tuple[DraftedToken | FinalToken, ...]:
        """The tokens this round adds to the output."""
        kept = tuple(token for token in self.drafted if token.verdict == "accepted")
        return kept if self.final is None else (*kept, self.final)

    @property
    def text(self) -> str:
        """The text this round adds to the output."""
        return "".join(token.text for token in self.output)

    @property
    def seconds(self) -> float:
        """Time of the round on the lane's clock."""
        return self.draft_s + self.verify_s + self.other_s


@dataclass(slots=True)
class RunRecord:
    """One lane's finished (or interrupted) run: settings, timings, rounds, output."""

    name: str
    settings: dict[str, Any]
    prompt_ids: tuple[int, ...] = ()
    prefill_s: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    end: End | None = None
    error: str = ""
    joined_text: str | None = None  # the output, where the rounds kept no texts

    @property
    def token_ids(self) -> list[int]:
        """The output ids, EOS included."""
        return [token for round_ in self.rounds for token in round_.emitted]

    @property
    def text(self) -> str:
        """The output text, joined from the rounds' incremental texts."""
        if self.joined_text is not None:
            return self.joined_text
        return "".join(round_.text for round_ in self.rounds)
