"""The acceptance rules: which drafted tokens the target keeps, and what it puts instead.

`greedy`, `rejection` and `match` leave the target's distribution as it is; `typical` (Medusa) and
`naive` (a teaching bug) do not, and are labelled lossy. p and q are the decision distributions:
after temperature and filters, applied alike to target and draft.

Sources: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (2302.01318);
Medusa, Cai et al. 2024 (2401.10774), section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from array_api_compat import array_namespace

from specview.decoding.ledger import Array, Draft, FinalKind, Verdict
from specview.decoding.sampling import (
    Purpose,
    SamplingParams,
    as_like,
    draw,
    fit_width,
    probabilities,
)
from specview.errors import UsageError

RULES: dict[str, bool] = {"greedy": True, "rejection": True, "match": True, "typical": False, "naive": False}
"""Rule name -> whether it leaves the target's distribution as it is."""

TYPICAL_EPSILON = 0.09
TYPICAL_DELTA = 0.3

Random = Callable[[int, Purpose], float]
"""The number in [0, 1) for (output position, purpose)."""


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
            xp = array_namespace(self.logits)
            ids = xp.argmax(self.logits, axis=-1)
            best = xp.take_along_axis(self.logits, ids[..., None], axis=-1)[..., 0]
            # argmax stops at a NaN, and an all -inf row has -inf as its best.
            finite = xp.isfinite(best)
            if not bool(xp.all(finite)):
                raise NotFiniteError(finite.tolist().index(False))
            self._argmax = ids.tolist()
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
    """A drafted token under the rule; see `ledger.DraftedToken` for the fields."""

    id: int
    verdict: Verdict
    q: float | None = None
    p: float | None = None
    accept: float | None = None
    u: float | None = None
    draw: int | None = None
    threshold: float | None = None
    correction: int | None = None


@dataclass(slots=True)
class Decision:
    """What the rule made of one target pass. final is (id, kind, p), or None after an accepted EOS."""

    trials: list[Trial]
    final: tuple[int, FinalKind, float] | None


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
    """Judge a draft chain by one target pass.

    rows holds len(draft) + 1 rows: row i is the target's distribution before drafted token i, the
    last one that after all of them. position is the output position of the first drafted token.
    """
    judge = _JUDGES[rule]
    trials: list[Trial] = []
    final: tuple[int, FinalKind, float] | None = None
    ended = False
    for index, token in enumerate(draft.tokens):
        if ended:
            trials.append(Trial(token, "ignored", q=_q_of(draft, index, token)))
            continue
        trial = judge(rows, index, token, draft, random, position + index)
        trials.append(trial)
        if trial.verdict == "rejected":
            assert trial.correction is not None
            final = (trial.correction, "corrected", rows.probability(index, trial.correction))
        ended = trial.verdict == "rejected" or token in eos_ids
    if not ended:
        row = len(draft.tokens)
        chosen = rows.choose(row, 0.0 if rows.sampling.greedy else random(position + row, "target"))
        final = (chosen, "bonus" if draft.tokens else "plain", rows.probability(row, chosen))
    return Decision(trials, final)


def _q_of(draft: Draft, index: int, token: int) -> float:
    if draft.q is None or draft.q[index] is None:
        return 1.0
    row = draft.q[index]
    return float(row[token]) if token < row.shape[-1] else 0.0


def _greedy(rows: DecisionRows, row: int, token: int, draft: Draft, random: Random, position: int) -> Trial:
    best = rows.argmax(row)
    accept = token == best
    return Trial(
        token,
        "accepted" if accept else "rejected",
        q=_q_of(draft, row, token),
        p=float(accept),
        accept=float(accept),
        correction=best,
    )


def _ratio(rows: DecisionRows, row: int, token: int, draft: Draft, random: Random, position: int) -> Trial:
    """Accept with probability min(1, p(x) / q(x))."""
    p, q = rows.probability(row, token), _q_of(draft, row, token)
    accept = min(1.0, p / q) if q > 0 else float(p > 0)
    u = random(position, "accept")
    return Trial(token, "accepted" if u < accept else "rejected", q=q, p=p, accept=accept, u=u)


def _rejection(
    rows: DecisionRows, row: int, token: int, draft: Draft, random: Random, position: int
) -> Trial:
    trial = _ratio(rows, row, token, draft, random, position)
    if trial.verdict == "rejected":
        p = rows.p(row)
        trial.correction = draw(residual(p, draft_row(draft, row, p), token), random(position, "residual"))
    return trial


def _naive(rows: DecisionRows, row: int, token: int, draft: Draft, random: Random, position: int) -> Trial:
    trial = _ratio(rows, row, token, draft, random, position)
    if trial.verdict == "rejected":
        trial.correction = rows.choose(row, random(position, "residual"))
    return trial


def _match(rows: DecisionRows, row: int, token: int, draft: Draft, random: Random, position: int) -> Trial:
    drawn = rows.choose(row, 0.0 if rows.sampling.greedy else random(position, "target"))
    p = rows.probability(row, token)
    verdict: Verdict = "accepted" if drawn == token else "rejected"
    return Trial(token, verdict, q=_q_of(draft, row, token), p=p, accept=p, draw=drawn, correction=drawn)


def _typical(rows: DecisionRows, row: int, token: int, draft: Draft, random: Random, position: int) -> Trial:
    p = rows.probability(row, token)
    entropy = 0.0 if rows.sampling.greedy else entropy_of(rows.p(row))
    threshold = min(TYPICAL_EPSILON, TYPICAL_DELTA * math.exp(-entropy))
    accept = p > threshold
    trial = Trial(
        token,
        "accepted" if accept else "rejected",
        q=_q_of(draft, row, token),
        p=p,
        accept=float(accept),
        threshold=threshold,
    )
    if not accept:
        trial.correction = rows.choose(row, 0.0 if rows.sampling.greedy else random(position, "residual"))
    return trial


def entropy_of(p: Array) -> float:
    """Shannon entropy of a distribution [vocab], in nats."""
    xp = array_namespace(p)
    return float(-xp.sum(p * xp.log(xp.clip(p, 1e-30, None))))


_JUDGES = {"greedy": _greedy, "rejection": _rejection, "match": _match, "typical": _typical, "naive": _naive}
