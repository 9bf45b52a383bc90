"""Test helpers: models small enough to compute by hand, as engines, sessions and drafters.

The toy of FACTS.md (4 tokens, sequences of length 4, BOS 0) gives every probability in closed form;
`TableModel` is a deterministic pseudo-random model whose logits depend on the cached prefix, so that a
cache left wrong by a rollback shows up at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from specview.decoding.interfaces import Declared, Forward
from specview.decoding.ledger import Draft, Round
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.drafting.base import BaseDrafter
from specview.drafting.draft_model import DraftModel
from specview.drafting.policies import Constant

# -- the toy of the literature -----------------------------------------------------------------------

VOCAB, LENGTH, BOS, K = 4, 4, 0, 3
_rng = np.random.default_rng(2)
TARGET = _rng.dirichlet(np.ones(VOCAB), size=VOCAB)
DRAFT = 0.55 * TARGET + 0.45 * _rng.dirichlet(np.ones(VOCAB), size=VOCAB)
OUTCOMES = tuple(itertools.product(range(VOCAB), repeat=LENGTH))


def chain_distribution(rows: np.ndarray) -> dict[tuple[int, ...], float]:
    """Exact probability of each of the 256 sequences under first-order rows [last token, next token]."""
    result = {}
    for outcome in OUTCOMES:
        last, p = BOS, 1.0
        for token in outcome:
            p *= float(rows[last][token])
            last = token
        result[outcome] = p
    return result


def rule_distribution(
    accept: Callable[[int, int], float],
    correction: Callable[[int, int], np.ndarray],
    draft: np.ndarray = DRAFT,
    target: np.ndarray = TARGET,
    k: int = K,
    beyond: bool = False,
) -> dict[tuple[int, ...], float]:
    """Exact outcome distribution of a draft-verify loop, by enumeration.

    accept(last, x) is the chance that drafted x is kept, correction(last, x) the normalised row drawn
    from when it is not; a fully accepted draft adds a bonus token. Drafts are min(k, left - 1) long, or
    always k where the run goes on `beyond` the four tokens that are looked at.
    """
    result = dict.fromkeys(OUTCOMES, 0.0)

    def round_(done: tuple[int, ...], weight: float) -> None:
        trial(done, weight, k if beyond else min(k, LENGTH - len(done) - 1))

    def trial(done: tuple[int, ...], weight: float, left: int) -> None:
        if len(done) >= LENGTH:
            result[done[:LENGTH]] += weight
            return
        last = done[-1] if done else BOS
        if left == 0:
            for token in range(VOCAB):
                round_((*done, token), weight * float(target[last][token]))
            return
        for x in range(VOCAB):
            chance = accept(last, x)
            drawn = weight * float(draft[last][x])
            trial((*done, x), drawn * chance, left - 1)
            row = correction(last, x)
            for y in range(VOCAB):
                if row[y]:
                    round_((*done, y), drawn * (1 - chance) * float(row[y]))

    round_((), 1.0)
    return result


def total_variation(a: dict[tuple[int, ...], float], b: dict[tuple[int, ...], float]) -> float:
    """Half the summed absolute difference of two outcome distributions."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


def safe_log(values: Any) -> np.ndarray:
    """log with log 0 = -inf and no warning."""
    values = np.asarray(values, dtype=np.float64)
    return np.log(values, out=np.full(values.shape, -np.inf), where=values > 0)


# -- models --------------------------------------------------------------------------------------------


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TableModel:
    """Logits of a fixed table, chosen by a hash of the last `order` tokens (all of them where None).

    rows: the same seed gives the same table. `noise` mixes another table in, for a draft that is like
    its target but not the same.
    """

    def __init__(
        self, vocab: int = 6, order: int | None = None, seed: int = 0, noise: float = 0.0, scale: float = 1.5
    ) -> None:
        self.vocab, self.order = vocab, order
        table = np.random.default_rng([seed, 1]).normal(size=(211, vocab))
        other = np.random.default_rng([seed, 2]).normal(size=(211, vocab))
        self.table = (scale * ((1 - noise) * table + noise * other)).astype(np.float32)

    def __call__(self, prefix: Sequence[int]) -> np.ndarray:
        seen = prefix if self.order is None else prefix[-self.order :]
        code = 7
        for token in seen:
            code = (code * 31 + token + 1) % 1_000_003
        return self.table[code % len(self.table)]


def toy_logits(rows: np.ndarray) -> Callable[[Sequence[int]], np.ndarray]:
    """Logits = log p of a first-order table."""
    logits = safe_log(rows)
    return lambda prefix: logits[prefix[-1]]


class FakeSession:
    """A session over a function from the whole prefix to a logit row; keeps the tokens it has cached."""

    def __init__(self, engine: FakeEngine, max_length: int) -> None:
        self.engine = engine
        self.max_length = max_length
        self.tokens: list[int] = []
        self.closed = False
        self.passes: list[int] = []  # rows of each forward
        self._tree: list[list[int]] | None = None  # per token of a tree pass its tokens from the root on
        self._pending: list[int] = []  # fed by forward_exit
        self.taken_up = 0  # pending tokens that a forward took up
        self.log: list[tuple[str, int]] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def _take(self, tokens: Iterable[int]) -> None:
        assert not self.closed
        self.tokens += list(tokens)
        assert len(self.tokens) <= self.max_length, "the cache overflows"

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: Callable[[int, int], None] | None = None,
        features: Sequence[Any] = (),
        on_features: Callable[[dict[Any, Any]], None] | None = None,
    ) -> None:
        chunk = self.engine.chunk
        for begin in range(0, len(tokens), chunk):
            if on_chunk is not None:
                on_chunk(begin, len(tokens))
            part = tokens[begin : begin + chunk]
            if features and on_features is not None:
                rows = [self.engine.row([*self.tokens, *part[: at + 1]]) for at in range(len(part))]
                on_features(self.engine.features(rows, features))
            self._take(part)
            self.engine.spend(self.engine.prefill_cost * len(part))
            self.log.append(("prefill", len(part)))
        if on_chunk is not None:
            on_chunk(len(tokens), len(tokens))

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, features: Sequence[Any] = ()
    ) -> Forward:
        assert tokens
        assert self._tree is None, "only keep or truncate may follow a tree"
        if self._pending and list(tokens[: len(self._pending)]) == self._pending:
            self.taken_up += len(self._pending)
        self._pending = []
        rows = []
        if parents is not None:
            assert len(parents) == len(tokens)
            self._base = len(self.tokens)
            paths: list[list[int]] = []
            for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
                assert -1 <= parent < index
                paths.append([*(paths[parent] if parent >= 0 else []), token])
                rows.append(self.engine.row(self.tokens + paths[-1]))
            self._take(tokens)
            self._tree = paths
        else:
            for token in tokens:
                self._take([token])
                rows.append(self.engine.row(self.tokens))
        self.engine.spend(self.engine.pass_cost + self.engine.row_cost * len(tokens))
        self.passes.append(len(tokens))
        self.log.append(("forward", len(tokens)))
        self.engine.forwards += 1
        if self.engine.fail_after is not None and self.engine.forwards > self.engine.fail_after:
            raise self.engine.failure
        return Forward(self.engine.wrap(np.array(rows)), self.engine.features(rows, features))

    def keep(self, path: Sequence[int]) -> None:
        assert self._tree is not None
        kept = self._tree[path[-1]] if path else []
        assert [self._tree[index][-1] for index in path] == kept, "not a path from the root"
        self._tree = None
        self.tokens = self.tokens[: self._base] + kept
        self.log.append(("keep", len(path)))

    def forward_exit(self, tokens: Sequence[int], layer: int) -> Any:
        """The engine's exit_model stands for the first layers."""
        assert 1 <= layer < self.engine.exit_layers
        rows = []
        for token in tokens:
            self._pending.append(token)
            rows.append(self.engine.exit_model(self.tokens + self._pending))
        self.engine.spend(self.engine.exit_cost * layer * len(tokens))
        return self.engine.wrap(np.array(rows))

    def truncate(self, length: int) -> None:
        assert not self.closed
        assert self._tree is None or length <= self._base
        self._tree = None
        self._pending = []
        assert 0 <= length <= len(self.tokens), "a rollback cannot lengthen the cache"
        del self.tokens[length:]
        self.log.append(("truncate", length))

    def synchronize(self) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed = True


class FakeDetokenizer:
    """Letters; EOS adds nothing."""

    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self.tokenizer = tokenizer

    def add(self, token: int) -> str:
        return "" if token in self.tokenizer.eos_ids else self.tokenizer.token_text(token)

    def peek(self, tokens: Sequence[int]) -> list[str]:
        return [self.add(token) for token in tokens]

    def flush(self) -> str:
        return ""


class FakeTokenizer:
    """Token i is the i-th letter; `clock` makes texts cost time, as a real tokenizer's do."""

    def __init__(self, vocab: int, eos_ids: Iterable[int] = (), bos_id: int | None = 0) -> None:
        self.vocab_size = vocab
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        self.declared = Declared()
        self.clock: FakeClock | None = None
        self.text_cost = 0.0

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def encode_raw(self, text: str) -> list[int]:
        if not text:
            if self.bos_id is None:
                from specview.errors import UsageError

                raise UsageError("the prompt is empty.", "Type one.")
            return [self.bos_id]
        return self.encode(text)

    def encode_chat(self, messages: Sequence[Any], template: str | None = None) -> list[int]:
        return [token for message in messages for token in self.encode(message["content"])]

    def token_text(self, token: int) -> str:
        if self.clock is not None:
            self.clock.now += self.text_cost
        return chr(ord("a") + token)

    def token_bytes(self, token: int) -> bytes:
        return self.token_text(token).encode()

    def detokenizer(self) -> FakeDetokenizer:
        return FakeDetokenizer(self)


class FakeEngine:
    """An engine over `model`, a function from the prefix to a logit row.

    width pads the rows with -inf; costs (seconds, on `clock`) are per pass, per row and per prefilled
    token.
    """

    name = "transformers"
    device = "cpu"
    dtype = "float32"
    weight_bytes = 1000
    check_mode = False
    exit_layers = 0
    exit_problem: str | None = "fake"
    exit_cost = 0.0
    layers = 4
    features_problem: str | None = None

    def __init__(
        self,
        model: Callable[[Sequence[int]], np.ndarray],
        vocab: int,
        *,
        namespace: str = "numpy",
        width: int | None = None,
        context_length: int = 4096,
        eos_ids: Iterable[int] = (),
        model_name: str = "fake",
        tokenizer: FakeTokenizer | None = None,
        clock: FakeClock | None = None,
        pass_cost: float = 0.0,
        row_cost: float = 0.0,
        prefill_cost: float = 0.0,
        chunk: int = 8,
        rollback_problem: str | None = None,
    ) -> None:
        self.model = model
        self.namespace = namespace
        self.vocab_size = width or vocab
        self.hidden_size = self.vocab_size
        self.context_length = context_length
        self.eos_ids = frozenset(eos_ids)
        self.model_name = model_name
        self.tokenizer = tokenizer or FakeTokenizer(vocab, eos_ids)
        self.clock = clock
        self.pass_cost, self.row_cost, self.prefill_cost = pass_cost, row_cost, prefill_cost
        self.chunk = chunk
        self.rollback_problem = rollback_problem
        self.sessions: list[FakeSession] = []
        self.closed = False
        self.forwards = 0
        self.exit_model = model
        self.fail_after: int | None = None
        self.failure: Exception = RuntimeError("the device fell off")

    def row(self, prefix: Sequence[int]) -> np.ndarray:
        row = self.model(prefix)
        missing = self.vocab_size - len(row)
        return row if missing <= 0 else np.concatenate([row, np.full(missing, -np.inf, dtype=row.dtype)])

    def wrap(self, rows: np.ndarray) -> Any:
        if self.namespace == "torch":
            import torch

            return torch.from_numpy(rows)
        return rows

    def features(self, rows: Sequence[np.ndarray], names: Sequence[Any]) -> dict[Any, Any]:
        """A feature is the logit row itself ("last"), or that times the number of layers (inner ones)."""
        found = np.nan_to_num(np.array(rows), neginf=-1e6)
        return {name: self.wrap(found if name == "last" else found * name) for name in names}

    def embed(self, ids: Sequence[int]) -> Any:
        return self.wrap(np.eye(self.hidden_size, dtype=np.float32)[list(ids)])

    def project(self, hidden: Any) -> Any:
        return hidden

    def spend(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.now += seconds

    def new_session(self, max_length: int, branches: int = 1) -> FakeSession:
        assert not self.closed
        assert 1 <= max_length <= self.context_length, "a session longer than the model's context"
        session = FakeSession(self, max_length)
        self.sessions.append(session)
        return session

    def kv_bytes(self, length: int) -> int:
        return 10 * length

    def close(self) -> None:
        self.closed = True


# -- drafters -------------------------------------------------------------------------------------------


class ScriptDrafter(BaseDrafter):
    """Proposes what `script(context, budget)` says: tokens, with q rows or (None) as point masses."""

    name = "script"

    def __init__(
        self, script: Callable[[list[int], int], Sequence[int]], q: Callable[..., Any] | None = None
    ) -> None:
        self.script, self.q = script, q
        self.budgets: list[int] = []
        self.seen: list[Round] = []
        self.closed = False

    def start(self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: Any = None) -> None:
        self.prompt = list(prompt_tokens)

    def propose(self, context: Sequence[int], budget: int, proceed: Any = None) -> Draft:
        assert budget > 0
        self.budgets.append(budget)
        tokens = tuple(self.script(list(context), budget))[:budget]
        q = None
        if self.q is not None:
            q = [self.q([*context, *tokens[:i]]) for i in range(len(tokens))]
        return Draft(tokens, q=q, drafter=self.name)

    def observe(self, round_: Round, features: Any) -> None:
        self.seen.append(round_)

    def close(self) -> None:
        self.closed = True


class Named(ScriptDrafter):
    """One of several, by a name of its own."""

    def __init__(self, name: str, script: Any, **options: Any) -> None:
        super().__init__(script, **options)
        self.name = name


class PointMassDrafter(BaseDrafter):
    """Draws from fixed rows by the keyed stream, and says nothing of the distribution (q None)."""

    name = "point-mass"

    def __init__(self, rows: np.ndarray, seed: int, prompt_length: int = 1) -> None:
        self.rows, self.seed, self.prompt_length = rows, seed, prompt_length

    def propose(self, context: Sequence[int], budget: int, proceed: Any = None) -> Draft:
        last, tokens = context[-1], []
        for step in range(budget):
            last = draw(
                self.rows[last], uniform(self.seed, len(context) - self.prompt_length, "draft", step)
            )
            tokens.append(last)
        return Draft(tuple(tokens), drafter=self.name)


def constant(k: int) -> Constant:
    """The constant policy, started."""
    policy = Constant({})
    policy.start(k)
    return policy


def draft_model(engine: FakeEngine, target_width: int, max_length: int = 4096) -> DraftModel:
    """The product's draft-model drafter over a fake engine."""
    length = min(max_length, engine.context_length)
    return DraftModel(engine.new_session(length), target_width, length)


def run_decode(
    target: FakeEngine,
    prompt: Sequence[int],
    *,
    rule: str,
    sampling: SamplingParams,
    max_tokens: int,
    drafter: Any = None,
    policy: Any = None,
    k: int = 3,
    session: FakeSession | None = None,
    **options: Any,
) -> tuple[list[int], list[Round], str, FakeSession]:
    """Prefill and run the product's loop to its end; checks after every round that the cache is right.

    Returns the output ids, the rounds, how it ended, and the session.
    """
    session = session or target.new_session(target.context_length)
    session.prefill(prompt[:-1])
    if drafter is not None:
        drafter.start(prompt, sampling)
        policy = policy or constant(k)
    sequence = TokenSequence(list(prompt))
    steps = decode(
        session,
        sequence,
        rule=rule,
        sampling=sampling,
        max_tokens=max_tokens,
        drafter=drafter,
        policy=policy,
        eos_ids=target.eos_ids,
        model_name=target.model_name,
        **options,
    )
    rounds: list[Round] = []
    while True:
        try:
            round_ = next(steps)
        except StopIteration as stop:
            end = stop.value
            break
        rounds.append(round_)
        context = sequence.context
        cached = len(context) - (round_.final is not None)
        assert session.tokens == context[:cached]
    output = [token for round_ in rounds for token in round_.emitted]
    assert output == sequence.output
    return output, rounds, end, session


def plain_reference(
    model: Callable[[Sequence[int]], np.ndarray], prompt: Sequence[int], sampling: SamplingParams, count: int
) -> list[int]:
    """Plain decoding with no loop of ours: argmax, or the keyed draw, one token at a time."""
    tokens = list(prompt)
    for position in range(count):
        row = model(tokens)
        if sampling.greedy:
            tokens.append(int(np.argmax(row)))
        else:
            tokens.append(draw(probabilities(row, sampling), uniform(sampling.seed, position, "target")))
    return tokens[len(prompt) :]


def filtered(rows: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Rows after temperature and filters (top-k with ties kept, top-p, min-p), written independently."""
    result = []
    for row in rows:
        p = row ** (1 / sampling.temperature)
        p = p / p.sum()
        if sampling.top_k:
            p = np.where(p >= sorted(p)[-min(sampling.top_k, len(p))], p, 0.0)
            p = p / p.sum()
        if sampling.top_p < 1:
            kept, mass = set(), 0.0
            for token in sorted(range(len(p)), key=lambda i, p=p: -p[i]):
                if mass >= sampling.top_p:
                    break
                kept.add(token)
                mass += p[token]
            p = np.array([p[i] if i in kept else 0.0 for i in range(len(p))])
            p = p / p.sum()
        p = np.where(p >= sampling.min_p * p.max(), p, 0.0)
        result.append(p / p.sum())
    return np.array(result)


def entropy(p: np.ndarray) -> float:
    """Shannon entropy in nats, by the definition."""
    return -sum(float(x) * math.log(float(x)) for x in p if x > 0)
