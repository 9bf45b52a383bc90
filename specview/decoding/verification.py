"""The acceptance rules: which drafted tokens the target keeps, and what it puts instead.

`greedy`, `rejection` and `match` leave the target's distribution as it is; `typical` (Medusa) and
`naive` (a teaching bug) do not, and are labelled lossy. p and q are the decision distributions:
after temperature and filters, applied alike to target and draft.

Sources: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (2302.01318);
Medusa, Cai et al. 2024 (2401.10774), section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from array_api_compat import array_namespace

from specview.decoding.ledger import Array, Draft, FinalKind, Verdict
from specview.decoding.sampling import (
    SamplingParams,
    as_like,
    draw,
    fit_width,
    likeliest_ids,
    probabilities,
)
from specview.errors import UsageError

TYPICAL_EPSILON = 0.09
TYPICAL_DELTA = 0.3

Random = Callable[..., float]
"""The number in [0, 1) for (output position, purpose, index of the number: 0 where left out)."""


def resolve_rule(rule: str, sampling: SamplingParams) -> str:
    """Resolve `auto`: greedy at temperature 0, rejection above.

    Raises UsageError for greedy above temperature 0, which would not sample at all.
    """
    if rule == "auto":
        return "greedy" if sampling.greedy else "rejection"
    if rule not in RULES:
        raise UsageError(f"there is no rule {rule!r}.", f"Rules: auto, {', '.join(RULES)}.")
    if rule == "greedy" and not sampling.greedy:
        raise UsageError(
            f"the greedy rule needs temperature 0, not {sampling.temperature:g}.",
            "Use rule auto, rejection or match, or temperature 0.",
        )
    return rule


def idle_rule_note(rule: str, sampling: SamplingParams) -> str:
    """What to say of a rule that makes no difference here; '' where it makes one, or was not chosen.

    At temperature 0 p is all on one token, so that every rule accepts that one alone.
    """
    if not sampling.greedy or rule == "greedy" or rule not in RULES:
        return ""
    return f"At temperature 0 the rule {rule} decides as greedy does."


class NotFiniteError(ValueError):
    """The target gave a logit row that has NaN or +inf, or nothing finite; `row` is its index."""

    def __init__(self, row: int) -> None:
        self.row = row
        super().__init__(f"logit row {row} is not finite")


class DecisionRows:
    """The decision distributions of one target pass, each computed when it is first asked for.

    logits: [rows, vocab].
    """

    def __init__(self, logits: Array, sampling: SamplingParams) -> None:
        self.logits = logits
        self.sampling = sampling
        self._p: dict[int, Array] = {}
        self._argmax: list[int] | None = None

    def __len__(self) -> int:
        return int(self.logits.shape[0])

    def p(self, row: int) -> Array:
        """The decision distribution [vocab] of a row."""
        if row not in self._p:
            try:
                self._p[row] = probabilities(self.logits[row], self.sampling)
            except ValueError:
                raise NotFiniteError(row) from None
        return self._p[row]

    def argmax(self, row: int) -> int:
        """The likeliest id of a row; the lowest id wins a tie."""
        if self._argmax is None:
            ids = likeliest_ids(self.logits)
            if -1 in ids:
                raise NotFiniteError(ids.index(-1))
            self._argmax = ids
        return self._argmax[row]

    def choose(self, row: int, u: float) -> int:
        """The target's own token: the argmax at temperature 0, else the draw at u."""
        return self.argmax(row) if self.sampling.greedy else draw(self.p(row), u)

    def probability(self, row: int, token: int) -> float:
        """p of one token in a row."""
        if self.sampling.greedy:
            return 1.0 if token == self.argmax(row) else 0.0
        return float(self.p(row)[token])


@dataclass(slots=True)
class Trial:
    """A drafted token under the rule; see `ledger.DraftedToken` for the fields.

    residual is the correcting distribution [vocab], not normalised, after a rejection that has one.
    """

    id: int
    verdict: Verdict
    q: float | None = None
    p: float | None = None
    accept: float | None = None
    u: float | None = None
    draw: int | None = None
    threshold: float | None = None
    residual: Array | None = None


@dataclass(slots=True)
class Decision:
    """What the rule made of one target pass.

    trials has one entry per drafted token, in the draft's order; path the indices of the accepted ones,
    from the root on. final is (id, kind, p), or None after an accepted EOS.
    """

    trials: list[Trial]
    final: tuple[int, FinalKind, float] | None
    path: list[int]


def residual(p: Array, q: Array | None, token: int) -> Array:
    """The correcting distribution norm(max(0, p - q)) [vocab], not normalised.

    q None is a point mass on `token`. Where it sums to zero by rounding (p equals q), p itself.
    """
    xp = array_namespace(p)
    if q is None:
        ids = xp.arange(p.shape[-1], device=p.device)
        rest = xp.where(ids == token, 0.0, p)
    else:
        rest = xp.clip(p - q, 0.0, None)
    return rest if float(xp.sum(rest)) > 0 else p


def draft_row(draft: Draft, index: int, like: Array) -> Array | None:
    """q [vocab] of a drafted token in the target's namespace and width; None for a point mass."""
    if draft.q is None or draft.q[index] is None:
        return None
    return fit_width(as_like(draft.q[index], like), like.shape[-1])


def verify(
    rule: str,
    rows: DecisionRows,
    draft: Draft,
    random: Random,
    position: int,
    eos_ids: Collection[int] = (),
) -> Decision:
    """Judge a draft, chain or tree, by one target pass.

    rows holds len(draft) + 1 rows: row 0 is the target's distribution after the context, row i + 1 that
    after drafted token i. position is the output position of the first drafted tokens. From the root on,
    the children of the last accepted node are tried in the draft's order, until one is accepted.
    """
    judge = RULES[rule].judge
    children = _children(draft)
    trials = [Trial(token, "ignored", q=_q_of(draft, index, token)) for index, token in enumerate(draft.tokens)]
    path: list[int] = []
    final: tuple[int, FinalKind, float] | None = None
    node = -1
    while True:
        row = node + 1
        siblings = children.get(node)
        here = position + len(path)
        if not siblings:
            chosen = rows.choose(row, 0.0 if rows.sampling.greedy else random(here, "target"))
            final = (chosen, "bonus" if draft.tokens else "plain", rows.probability(row, chosen))
            break
        made, correction = judge(rows, row, siblings, draft, random, here)
        for index, trial in zip(siblings, made, strict=False):
            trials[index] = trial
        if correction is not None:
            final = (correction, "corrected", rows.probability(row, correction))
            break
        node = siblings[len(made) - 1]
        path.append(node)
        if draft.tokens[node] in eos_ids:
            break
    return Decision(trials, final, path)


def _children(draft: Draft) -> dict[int, list[int]]:
    """Node -> its children in order; -1 is the root."""
    if draft.parents is None:
        return {index - 1: [index] for index in range(len(draft.tokens))}
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(draft.parents):
        if not -1 <= parent < index:
            raise ValueError(f"node {index} of a draft tree has parent {parent}")
        children.setdefault(parent, []).append(index)
    return children


def _q_of(draft: Draft, index: int, token: int) -> float:
    if draft.q is None or draft.q[index] is None:
        return 1.0
    row = draft.q[index]
    return float(row[token]) if token < row.shape[-1] else 0.0


Judged = tuple[list[Trial], int | None]
"""The trials made of siblings, in order, and the correcting token where none was accepted."""


def _match_siblings(
    rows: DecisionRows, row: int, siblings: Sequence[int], draft: Draft, drawn: int, greedy: bool
) -> Judged:
    """Accept the sibling that is the token which the target itself gives."""
    trials = []
    for index in siblings:
        token = draft.tokens[index]
        accept = token == drawn
        p = float(accept) if greedy else rows.probability(row, token)
        trials.append(
            Trial(
                token,
                "accepted" if accept else "rejected",
                q=_q_of(draft, index, token),
                p=p,
                accept=p,
                draw=None if greedy else drawn,
            )
        )
        if accept:
            return trials, None
    return trials, drawn


def _greedy(
    rows: DecisionRows, row: int, siblings: Sequence[int], draft: Draft, random: Random, position: int
) -> Judged:
    return _match_siblings(rows, row, siblings, draft, rows.argmax(row), True)


def _match(
    rows: DecisionRows, row: int, siblings: Sequence[int], draft: Draft, random: Random, position: int
) -> Judged:
    drawn = rows.choose(row, 0.0 if rows.sampling.greedy else random(position, "target"))
    return _match_siblings(rows, row, siblings, draft, drawn, False)


def _rejection(
    rows: DecisionRows, row: int, siblings: Sequence[int], draft: Draft, random: Random, position: int
) -> Judged:
    """Try siblings in turn: accept x with min(1, p(x) / q(x)), else p becomes norm(max(0, p - q)).

    A point mass has q = 1 on its token. Siblings drawn independently each have the full q; those drawn
    without replacement have q renormalised over what was not taken yet.
    """
    p: Array | None = None  # after a rejection: what is left of p, not normalised
    total = 1.0
    taken: list[int] = []
    trials: list[Trial] = []
    for number, index in enumerate(siblings):
        token = draft.tokens[index]
        chance = rows.probability(row, token) if p is None else float(p[token]) / total
        q_row = _sibling_row(rows, row, draft, index, taken)
        q = 1.0 if q_row is None else float(q_row[token])
        accept = min(1.0, chance / q) if q > 0 else float(chance > 0)
        u = random(position, "accept", number)
        trial = Trial(token, "accepted" if u < accept else "rejected", q=q, p=chance, accept=accept, u=u)
        trials.append(trial)
        if trial.verdict == "accepted":
            return trials, None
        p = trial.residual = residual(rows.p(row) if p is None else p / total, q_row, token)
        total = float(array_namespace(p).sum(p))
        taken.append(token)
    assert p is not None
    return trials, draw(p, random(position, "residual"))


def _sibling_row(rows: DecisionRows, row: int, draft: Draft, index: int, taken: Sequence[int]) -> Array | None:
    """q [vocab] that a sibling was chosen from once `taken` are gone; None for a point mass."""
    if draft.q is None or draft.q[index] is None:
        return None
    q = draft_row(draft, index, rows.p(row))
    if draft.siblings != "without-replacement" or not taken:
        return q
    xp = array_namespace(q)
    q = xp.asarray(q, copy=True)
    for token in taken:
        q[token] = 0.0
    total = float(xp.sum(q))
    return q / total if total > 0 else q


def _naive(
    rows: DecisionRows, row: int, siblings: Sequence[int], draft: Draft, random: Random, position: int
) -> Judged:
    trials = []
    for number, index in enumerate(siblings):
        token = draft.tokens[index]
        p, q = rows.probability(row, token), _q_of(draft, index, token)
        accept = min(1.0, p / q) if q > 0 else float(p > 0)
        u = random(position, "accept", number)
        trial = Trial(token, "accepted" if u < accept else "rejected", q=q, p=p, accept=accept, u=u)
        trials.append(trial)
        if trial.verdict == "accepted":
            return trials, None
        trial.residual = rows.p(row)
    return trials, rows.choose(row, random(position, "residual"))


def _typical(
    rows: DecisionRows, row: int, siblings: Sequence[int], draft: Draft, random: Random, position: int
) -> Judged:
    entropy = 0.0 if rows.sampling.greedy else entropy_of(rows.p(row))
    threshold = min(TYPICAL_EPSILON, TYPICAL_DELTA * math.exp(-entropy))
    trials = []
    for index in siblings:
        token = draft.tokens[index]
        p = rows.probability(row, token)
        accept = p > threshold
        trials.append(
            Trial(
                token,
                "accepted" if accept else "rejected",
                q=_q_of(draft, index, token),
                p=p,
                accept=float(accept),
                threshold=threshold,
            )
        )
        if accept:
            return trials, None
    return trials, rows.choose(row, 0.0 if rows.sampling.greedy else random(position, "residual"))


def entropy_of(p: Array) -> float:
    """Shannon entropy of a distribution [vocab], in nats."""
    xp = array_namespace(p)
    return float(-xp.sum(p * xp.log(xp.clip(p, 1e-30, None))))


@dataclass(frozen=True, slots=True)
class Rule:
    """An acceptance rule: how it judges, and what is said of it.

    exact: it leaves the target's distribution as it is; uses_q: it needs to know what a token was drawn from, so that
    a draft with another tokenizer has to give q; tip: what it does, whose it is; label: its name in a choice.
    A rule with numbers of its own is also drawn by gui/state/inspection, and proven by lab/toy.
    """

    name: str
    judge: Callable[..., Judged]
    exact: bool
    uses_q: bool
    tip: str
    label: str = ""


RULES: dict[str, Rule] = {rule.name: rule for rule in (
    Rule("greedy", _greedy, True, False, "keeps a drafted token that is the target's own argmax; temperature 0 only",
         "greedy · exact at T 0"),
    Rule("rejection", _rejection, True, True,
         "keeps x with probability min(1, p/q), else draws from norm(max(0, p - q)); Leviathan 2023, Chen 2023"),
    Rule("match", _match, True, False, "draws from p and keeps x where the draw is x"),
    Rule("typical", _typical, False, False,
         "keeps x where p(x) > min(ε, δ exp(-H(p))); Medusa. Changes the output's distribution", "typical (Medusa) · lossy"),
    Rule("naive", _naive, False, True, "a teaching bug: on rejection it draws from p itself, which counts p twice"),
)}  # fmt: skip
"""The rules by name; `--rule`, the window's choices, and what is said of a rule follow from this table."""


def is_lossy(rule: object) -> bool:
    """Whether this is the name of a rule that changes the target's distribution."""
    return rule in RULES and not RULES[str(rule)].exact


def rule_label(rule: str) -> str:
    """A rule's name with whether it leaves the target's distribution as it is."""
    return RULES[rule].label or f"{rule} · {'exact' if RULES[rule].exact else 'lossy'}"
