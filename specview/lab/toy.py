"""The toy of the literature: a random bigram target, a blurred draft, and the acceptance rules over them.

Everything about it is known in closed form, so it proves the rules: each rule's distribution over all outcomes is
enumerated, and hundreds of thousands of samples show it. Acceptance probabilities and corrections are not written
again here: `rule_rows` asks `decoding.verification.verify` itself for them, case by case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from specview.decoding.ledger import Draft
from specview.decoding.sampling import Purpose, SamplingParams
from specview.decoding.verification import DecisionRows, verify
from specview.errors import require

Floats = NDArray[np.float64]
Ids = NDArray[np.intp]

SAMPLERS = ("plain", "rejection", "match", "typical", "naive")
"""The toy's samplers: plain decoding and the rules, two of which are lossy."""

BOS = 0
BLUR = 0.45
MODEL_SEED = 2
MAX_OUTCOMES = 65_536
MAX_K = 16

_JUST_UNDER_ONE = float(np.nextafter(1.0, 0.0))
_SAMPLED = SamplingParams(temperature=1.0)


@dataclass(frozen=True, slots=True)
class ToySettings:
    """Size of the toy: tokens, length of a sequence, drafted tokens a round, and the seed of its tables."""

    vocab: int = 4
    length: int = 4
    k: int = 3
    model_seed: int = MODEL_SEED

    def __post_init__(self) -> None:
        """Refuse sizes that have no meaning or too many outcomes to tell apart."""
        # counted so that a length of a billion is no power of a billion digits
        many = self.vocab > MAX_OUTCOMES or self.length > 16 or self.vocab**max(self.length, 1) > MAX_OUTCOMES
        require(self.vocab >= 2, f"the toy's vocabulary is {self.vocab}.", "Use 2 tokens or more.")
        require(self.length >= 1, f"the toy's length is {self.length}.", "Use 1 token or more.")
        require(not many, f"{self.vocab} tokens and length {self.length} have more than {MAX_OUTCOMES:,} outcomes, too many "
                          "to count each.", "Use a smaller vocabulary or length: 4 and 4 have 256.")  # fmt: skip
        require(self.vocab <= 64, f"the toy's vocabulary is {self.vocab}.", "Use 2 to 64 tokens.")
        require(1 <= self.k <= MAX_K, f"k is {self.k}.", f"Use 1 to {MAX_K} drafted tokens a round.")
        require(0 <= self.model_seed < 2**63, f"the toy's seed is {self.model_seed}.", "Use a whole number from 0 to 2^63 - 1.")

    @property
    def outcomes(self) -> int:
        """How many sequences there are."""
        return int(self.vocab**self.length)

    def as_dict(self) -> dict[str, int]:
        """The sizes as JSON values."""
        return {**asdict(self), "outcomes": self.outcomes}


@dataclass(frozen=True, slots=True)
class Toy:
    """A target and a draft, each a table of rows [last token, next token]; sequences begin after BOS (0)."""

    target: Floats
    draft: Floats
    settings: ToySettings

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.settings.vocab

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.settings.length

    def numbers_of(self, sequences: Ids) -> Ids:
        """The outcome numbers [n] of sequences [n, length]; see `target_distribution` for their order."""
        number: Ids = sequences @ self.vocab ** np.arange(self.length - 1, -1, -1)
        return number


def make_toy(settings: ToySettings | None = None) -> Toy:
    """Make the toy: target rows Dirichlet(1), draft rows 0.55 target + 0.45 of a second such draw."""
    settings = settings or ToySettings()
    rng = np.random.default_rng(settings.model_seed)
    ones = np.ones(settings.vocab)
    target = rng.dirichlet(ones, size=settings.vocab)
    draft = (1 - BLUR) * target + BLUR * rng.dirichlet(ones, size=settings.vocab)
    return Toy(target, draft, settings)


# -- what the rule does, asked of the rule ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuleRows:
    """A rule on the toy, for a draft of one token x after the token `last`.

    p           [last, next]: the target's own rows, as the rule sees them
    q           [last, next]: the draft's
    accept      [last, x]: the chance that x is kept
    correction  [last, x, next]: the distribution drawn from where it is not
    draws_first  the rule draws y from p first and keeps x where it is y (`match`)
    """

    p: Floats
    q: Floats
    accept: Floats
    correction: Floats
    draws_first: bool = False


def logits_of(rows: Floats) -> Floats:
    """Logits whose softmax the rows are."""
    return np.log(rows, out=np.full(rows.shape, -np.inf), where=rows > 0)


def rule_rows(rule: str, target: Floats, draft: Floats) -> RuleRows:
    """Ask the product's own rule for its acceptance probabilities and corrections, context by context.

    target, draft: probability rows [contexts, vocab]. Each pair of a context and a drafted token is judged once by
    `verify`, with an acceptance number just under 1, so that whatever can be refused is.
    """
    contexts, vocab = target.shape
    logits = logits_of(target)
    p = np.empty_like(target)
    accept = np.zeros((contexts, vocab))
    correction = np.zeros((contexts, vocab, vocab))
    for last in range(contexts):
        rows = DecisionRows(np.stack([logits[last], logits[last]]), _SAMPLED)
        p[last] = rows.p(0)
        for x in range(vocab):
            trial = verify(rule, rows, Draft((x,), q=(draft[last],)), _refusing, 0).trials[0]
            if rule == "match":
                # keeps x where the target's own draw is x, and else gives that draw
                accept[last, x] = rows.probability(0, x)
                correction[last, x] = p[last]
                correction[last, x, x] = 0.0
            else:
                assert trial.accept is not None
                accept[last, x] = trial.accept
                correction[last, x] = p[last] if trial.residual is None else trial.residual
            total = correction[last, x].sum()
            correction[last, x] = correction[last, x] / total if total > 0 else p[last]
    return RuleRows(p, draft, accept, correction, draws_first=rule == "match")


def _refusing(position: int, purpose: Purpose, index: int = 0) -> float:
    return _JUST_UNDER_ONE if purpose == "accept" else 0.5


# -- closed forms ------------------------------------------------------------------------------------------


def target_distribution(toy: Toy, start: int = BOS) -> Floats:
    """Exact probability of each outcome [vocab^length] under the target after `start`; the first token counts most."""
    found = np.ones(1)
    last: Ids = np.array([start])
    for _ in range(toy.length):
        found = (found[:, None] * toy.target[last]).ravel()
        last = np.tile(np.arange(toy.vocab), len(last))
    return found


def rule_distribution(toy: Toy, rows: RuleRows) -> Floats:
    """Exact probability of each outcome [vocab^length] of the draft-verify loop, by enumeration.

    Every draft has k tokens; of a round that goes on beyond the sequence only its tokens count. weights[j] holds per
    prefix the chance that it came about with j drafted tokens of the round kept so far.
    """
    k = toy.settings.k
    corrected = corrected_rows(rows)
    last: Ids = np.array([BOS])
    weights = [np.ones(1)] + [np.zeros(1) for _ in range(k)]
    for _ in range(toy.length):
        anew = weights[k][:, None] * rows.p[last]  # the bonus token, after which a round begins
        grown = []
        for kept in range(k):
            grown.append((weights[kept][:, None] * (rows.q * rows.accept)[last]).ravel())
            anew = anew + weights[kept][:, None] * corrected[last]
        weights = [anew.ravel(), *grown]
        last = np.tile(np.arange(toy.vocab), len(last))
    return np.sum(weights, axis=0)


def corrected_rows(rows: RuleRows) -> Floats:
    """[last, y]: the chance that the drafted token is refused and y is put in its place."""
    refused = rows.q * (1 - rows.accept)
    return np.einsum("lx,lxy->ly", refused, rows.correction)


def alpha_per_context(rows: RuleRows) -> Floats:
    """Per context the chance that a drafted token is kept, whatever the rule: sum q(x) accept(x)."""
    return (rows.q * rows.accept).sum(axis=1)


@dataclass(frozen=True, slots=True)
class Rates:
    """Of an endless run of rounds: accepted / judged, and emitted / rounds; starts [vocab] is where rounds begin."""

    alpha: float
    tokens_per_pass: float
    starts: Floats


def exact_rates(rows: RuleRows, k: int) -> Rates:
    """Acceptance rate and tokens per target pass of an endless run, exactly.

    The token that a round begins after is a Markov chain; its stationary distribution weighs the rounds.
    """
    vocab = len(rows.p)
    keep = rows.q * rows.accept
    corrected = corrected_rows(rows)
    # Row c: the round's walk from context c; standing[c, l] is the chance that all so far were kept and l was last.
    standing = np.eye(vocab)
    onward = np.zeros((vocab, vocab))
    judged = np.zeros(vocab)
    accepted = np.zeros(vocab)
    for _ in range(k):
        judged += standing.sum(axis=1)
        onward += standing @ corrected
        standing = standing @ keep
        accepted += standing.sum(axis=1)
    onward += standing @ rows.p
    system = np.vstack([onward.T - np.eye(vocab), np.ones(vocab)])
    starts = np.linalg.lstsq(system, np.append(np.zeros(vocab), 1.0), rcond=None)[0]
    starts = np.clip(starts, 0, None)
    starts /= starts.sum()
    return Rates(
        alpha=float(starts @ accepted / (starts @ judged)),
        tokens_per_pass=float(1 + starts @ accepted),
        starts=starts,
    )


# -- sampling ----------------------------------------------------------------------------------------------

Numbers = Callable[[Ids, Ids, Purpose, int], Floats]
"""Uniform numbers in [0, 1) [n] for (sequence numbers [n], output positions [n], purpose, index of the number)."""


def random_numbers(rng: np.random.Generator) -> Numbers:
    """Fresh numbers for every question."""
    return lambda sequences, positions, purpose, index: rng.random(len(sequences))


@dataclass(slots=True)
class Tally:
    """What a sampler did: drafted tokens judged and kept by context [vocab], rounds, tokens emitted."""

    judged: NDArray[np.int64]
    accepted: NDArray[np.int64]
    rounds: int = 0
    emitted: int = 0

    @classmethod
    def empty(cls, vocab: int) -> Tally:
        """Nothing yet."""
        return cls(np.zeros(vocab, dtype=np.int64), np.zeros(vocab, dtype=np.int64))


class ToySampler:
    """Many sequences at once by one rule (or plain decoding), in the order of steps of `decoding.loop`.

    With the numbers of `decoding.sampling.uniform` it gives the loop's own tokens, one for one.
    """

    def __init__(self, toy: Toy, sampler: str, rows: RuleRows | None = None) -> None:
        """rows: those of the rule, where they are known already (`plain` needs none of its own)."""
        self.toy = toy
        self.name = sampler
        self.k = 0 if sampler == "plain" else toy.settings.k
        rule = "rejection" if sampler == "plain" else sampler
        self.rows = rows or rule_rows(rule, toy.target, toy.draft)
        self._p = _Inverse(self.rows.p)
        self._q = _Inverse(toy.draft)
        vocab = toy.vocab
        self._corrections = _Inverse(self.rows.correction.reshape(vocab * vocab, vocab))

    def sample(self, count: int, numbers: Numbers, tally: Tally | None = None) -> Ids:
        """Sequences [count, length]."""
        length = self.toy.length
        tokens = np.zeros((count, length + self.k + 1), dtype=np.intp)
        sequences: Ids = np.arange(count)
        position: Ids = np.zeros(count, dtype=np.intp)
        last: Ids = np.full(count, BOS)
        while len(sequences):
            last, position = self._round(tokens, sequences, position, last, numbers, tally)
            left = position < length
            sequences, position, last = sequences[left], position[left], last[left]
        return tokens[:, :length]

    def outcomes(self, count: int, numbers: Numbers, tally: Tally | None = None) -> Ids:
        """Outcome numbers [count] of as many sequences."""
        return self.toy.numbers_of(self.sample(count, numbers, tally))

    def run_rounds(self, starts: Floats, chains: int, rounds: int, rng: np.random.Generator) -> Tally:
        """Rounds of `chains` runs that go on and on, begun where `starts` says; the sequence's end is no end here."""
        tally = Tally.empty(self.toy.vocab)
        numbers = random_numbers(rng)
        sequences: Ids = np.arange(chains)
        last: Ids = rng.choice(self.toy.vocab, size=chains, p=starts)
        tokens = np.zeros((chains, self.k + 1), dtype=np.intp)
        for _ in range(rounds):
            last, _ = self._round(tokens, sequences, np.zeros(chains, dtype=np.intp), last, numbers, tally)
        return tally

    def _round(
        self, tokens: Ids, sequences: Ids, position: Ids, last: Ids, numbers: Numbers, tally: Tally | None
    ) -> tuple[Ids, Ids]:
        """One round of every sequence: writes into tokens, returns each one's last token and next position."""
        rows = self.rows
        begun = position
        position, last = position.copy(), last.copy()
        standing: Ids = np.arange(len(sequences))  # whose draft was kept so far
        drafted = np.zeros((self.k, len(sequences)), dtype=np.intp)
        context = last
        for step in range(self.k):  # the whole draft, before anything is judged
            drafted[step] = context = self._q.draw(context, numbers(sequences, begun, "draft", step))
        for step in range(self.k):
            here, before, x = position[standing], last[standing], drafted[step][standing]
            if rows.draws_first:
                y = self._p.draw(before, numbers(sequences[standing], here, "target", 0))
                kept = y == x
            else:
                y = x
                kept = numbers(sequences[standing], here, "accept", 0) < rows.accept[before, x]
            if tally is not None:
                tally.judged += np.bincount(before, minlength=self.toy.vocab)
                tally.accepted += np.bincount(before[kept], minlength=self.toy.vocab)
            refused = standing[~kept]
            if rows.draws_first:
                given = y[~kept]
            else:
                cases = before[~kept] * self.toy.vocab + x[~kept]
                given = self._corrections.draw(cases, numbers(sequences[refused], here[~kept], "residual", 0))
            last[standing] = x
            last[refused] = given
            tokens[sequences[standing], here] = last[standing]
            position[standing] += 1
            standing = standing[kept]
        bonus = self._p.draw(last[standing], numbers(sequences[standing], position[standing], "target", 0))
        tokens[sequences[standing], position[standing]] = bonus
        last[standing] = bonus
        position[standing] += 1
        if tally is not None:
            tally.rounds += len(sequences)
            tally.emitted += int((position - begun).sum())
        return last, position


class _Inverse:
    """Draws by inverting cumulative sums, many rows at once, as `decoding.sampling.draw` does for one."""

    def __init__(self, rows: Floats) -> None:
        self._cumulative = np.cumsum(rows, axis=1)
        self._total = self._cumulative[:, -1]
        # where u * total rounds up to the total: the last id that can be drawn
        self._top: Ids = rows.shape[1] - 1 - np.argmax(rows[:, ::-1] > 0, axis=1)

    def draw(self, row: Ids, u: Floats) -> Ids:
        """One id per pair of a row's number and a uniform number."""
        level = u * self._total[row]
        found: Ids = np.count_nonzero(self._cumulative[row] <= level[:, None], axis=1)
        return np.minimum(found, self._top[row])
