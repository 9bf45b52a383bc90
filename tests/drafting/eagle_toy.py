"""Test helpers: a toy target with features, small random heads over it, and their forward written anew in numpy.

A feature is a fixed function of the whole prefix, so that a head fed with the wrong row, or with one token too
few, drafts something else. The numpy forward keeps no cache: it computes every row from the whole context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specview.decoding.interfaces import Forward
from specview.decoding.ledger import Round
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.heads.eagle import Eagle3Head, Eagle3Shape, EagleHead, EagleShape
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from tests.decoding.toy import FakeEngine, FakeSession, constant

HIDDEN, LAYERS, WIDTH, HEADS, KV_HEADS = 16, 6, 4, 4, 2
AUX = (1, 3, 5)
EPS = 1e-5
FREQUENCIES = tuple(100.0 ** (-2 * i / WIDTH) for i in range(WIDTH // 2))
SIZES: dict[str, Any] = {
    "hidden": HIDDEN, "intermediate": 24, "heads": HEADS, "kv_heads": KV_HEADS, "width": WIDTH, "eps": EPS,
    "frequencies": FREQUENCIES,
}  # fmt: skip


def feature(layer: Any, prefix: Sequence[int], order: int | None = None) -> np.ndarray:
    """The hidden state [HIDDEN] of the last token of a prefix (of its last `order` tokens alone)."""
    seen = prefix if order is None else prefix[-order:]
    code = 11 if layer == "last" else 13 + layer
    for token in seen:
        code = (code * 37 + token + 1) % 1_000_003
    return np.random.default_rng(code).normal(size=HIDDEN)


class FeatureSession(FakeSession):
    """A toy session that gives features, in chunks and in passes."""

    engine: FeatureEngine

    def prefill(self, tokens, on_chunk=None, features=(), on_features=None):
        for begin in range(0, len(tokens), self.engine.chunk):
            part = tokens[begin : begin + self.engine.chunk]
            prefixes = [self.tokens + list(part[: end + 1]) for end in range(len(part))]
            super().prefill(part)
            if on_features is not None and not self.engine.features_problem:
                on_features(self.engine.hidden_states(features, prefixes))
            if on_chunk is not None:
                on_chunk(begin + len(part), len(tokens))

    def forward(self, tokens, parents=None, features=()):
        before, paths = list(self.tokens), []
        for index, token in enumerate(tokens):
            parent = index - 1 if parents is None else parents[index]
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        given = super().forward(tokens, parents, features)
        if self.engine.features_problem:
            return given
        return Forward(given.logits, self.engine.hidden_states(features, [before + path for path in paths]))


class FeatureEngine(FakeEngine):
    """A toy target with features, an embedding and an output matrix."""

    layers = LAYERS
    features_problem: str | None = None

    def __init__(self, model: Any, vocab: int, *, order: int | None = None, **more: Any) -> None:
        super().__init__(model, vocab, **more)
        self.hidden_size = HIDDEN
        rng = np.random.default_rng(vocab)
        self.order = order
        self.table = rng.normal(size=(self.vocab_size, HIDDEN))
        self.output = rng.normal(size=(self.vocab_size, HIDDEN))

    def new_session(self, max_length: int, branches: int = 1) -> FeatureSession:
        session = FeatureSession(self, max_length)
        self.sessions.append(session)
        return session

    def features(self, rows: Any, names: Any) -> dict[Any, Any]:
        return {}  # the session's own are told apart by the whole prefix

    def hidden_states(self, layers: Sequence[Any], prefixes: Sequence[Sequence[int]]) -> dict[Any, Any]:
        return {
            layer: self.wrap(np.array([feature(layer, prefix, self.order) for prefix in prefixes]))
            for layer in layers
        }

    def embed(self, ids: Sequence[int]) -> Any:
        return self.wrap(self.table[list(ids)])

    def project(self, hidden: Any) -> Any:
        output = torch.from_numpy(self.output) if isinstance(hidden, torch.Tensor) else self.output
        return hidden @ output.T


# -- heads ---------------------------------------------------------------------------------------------------


def eagle3_head(
    target: FeatureEngine, draft_ids: Sequence[int] | None = None, *, seed: int = 0, **more: Any
) -> LoadedHead:
    """A random float64 EAGLE-3 head (with mask_token_id a P-EAGLE one) that drafts these ids, None for all."""
    vocab = target.vocab_size
    draft_vocab = vocab if draft_ids is None else len(draft_ids)
    shape = Eagle3Shape(**SIZES, target_hidden=HIDDEN, vocab=vocab, draft_vocab=draft_vocab, aux_layers=AUX, **more)
    module = Eagle3Head(shape).double()
    if draft_ids is not None and draft_vocab != vocab:
        module.set_target_ids(torch.tensor(draft_ids))
    kind = "p-eagle" if shape.mask_token_id is not None else "eagle3"
    facts = HeadFacts(kind, "toy", Path("toy"), HIDDEN, vocab, draft_vocab, AUX, own_embedding=shape.own_embedding)
    return LoadedHead(facts, randomised(module, seed), target)


def eagle_head(target: FeatureEngine, *, seed: int = 0, **more: Any) -> LoadedHead:
    """A random float64 EAGLE-1 head."""
    vocab = target.vocab_size
    shape = EagleShape(**SIZES, vocab=vocab, **more)
    facts = HeadFacts("eagle", "toy", Path("toy"), HIDDEN, vocab, vocab, own_embedding=shape.own_embedding)
    return LoadedHead(facts, randomised(EagleHead(shape).double(), seed), target)


def randomised(module: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        scale = 0.6 if parameter.dim() > 1 else 1.0
        parameter.data = scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.eval().requires_grad_(False)


class LightHead(torch.nn.Module):
    """A head of a few operations, for tests that need thousands of runs: it looks at its row alone."""

    class Cache:
        def __init__(self) -> None:
            self.length = 0

        def truncate(self, length: int) -> None:
            self.length = length

    def __init__(self, rows: np.ndarray, table: np.ndarray, draft_ids: Sequence[int], spread: float) -> None:
        super().__init__()
        self.register_parameter("table", torch.nn.Parameter(torch.from_numpy(table), requires_grad=False))
        self.rows = torch.from_numpy(np.log(rows[:, list(draft_ids)] + 1e-9))
        self.target_ids = torch.tensor(draft_ids)
        self.shape = type("Shape", (), {"mask_token_id": 0})()
        self.mask_hidden = torch.zeros(1, 1, 3 * HIDDEN, dtype=torch.float64)
        self.mask_hidden[..., 0] = 3.0
        self.spread = spread

    def fuse(self, features):
        return features[:, :HIDDEN]

    def next_hidden(self, y):
        return y

    def new_cache(self):
        return [self.Cache()]

    def run(self, embedded, g, positions, cache, sees=None):
        cache[0].length += len(embedded)
        return embedded + self.spread * torch.tanh(g)

    def logits(self, y):
        nearest = torch.cdist(y[None], self.table[None])[0]
        return torch.softmax(-nearest, -1) @ self.rows


def light_head(
    target: FeatureEngine, rows: np.ndarray, draft_ids: Sequence[int] = (0, 1, 2, 3), spread: float = 0.3
) -> LoadedHead:
    """A LightHead that says about what the first-order table `rows` does, of the ids that it has."""
    module = LightHead(rows, target.table, draft_ids, spread)
    facts = HeadFacts("eagle3", "light", Path("light"), HIDDEN, target.vocab_size, len(draft_ids), AUX)
    return LoadedHead(facts, module, target)


# -- the forward again, in numpy and without a cache ---------------------------------------------------------


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _turn(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotary positions on x [n, heads, WIDTH], halves apart."""
    angles = positions[:, None].astype(np.float32) * np.array(FREQUENCIES, dtype=np.float32)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


class NaiveHead:
    """A head's rows, each computed from the whole context: LAYOUTS.md's formulas over a state dict."""

    def __init__(self, head: LoadedHead, target: FeatureEngine) -> None:
        self.w = {name: tensor.numpy() for name, tensor in head.module.state_dict().items()}
        self.shape = head.module.shape
        self.target = target
        self.first = not isinstance(head.module, Eagle3Head)
        ids = head.module.target_ids
        self.ids = list(range(target.vocab_size)) if ids is None else ids.tolist()

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        return self.w.get("embed_tokens.weight", self.target.table)[list(ids)]

    def fused(self, features: np.ndarray) -> np.ndarray:
        w = self.w
        if self.first:
            return features
        if self.shape.norm_before_fc:
            features = _norm(features, w["input_norm.weight"])
        if self.shape.fc_norm:
            parts = np.split(features, len(AUX), -1)
            features = np.concatenate([_norm(part, w[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)], -1)
        return features @ w["fc.weight"].T

    def outputs(self, embedded: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Outputs [n, HIDDEN] of rows 0 to n - 1, causally."""
        w, n = self.w, len(g)
        positions, causal = np.arange(n), np.tril(np.ones((n, n), dtype=bool))
        y = g
        if self.first:
            y = np.concatenate([embedded, g], -1) @ w["fc.weight"].T + w.get("fc.bias", 0.0)
        for layer in range(self.shape.layers):
            at = f"layers.{layer}."
            x, residual = y, y
            if not self.first and layer == 0:
                x = _norm(y, w[at + "hidden_norm.weight"])
                residual = x if self.shape.norm_before_residual else y
                x = np.concatenate([_norm(embedded, w[at + "input_layernorm.weight"]), x], -1)
            elif layer:
                x = _norm(y, w[at + "input_layernorm.weight"])

            def product(name: str, x: np.ndarray, at: str = at) -> np.ndarray:
                return x @ w[f"{at}{name}.weight"].T + w.get(f"{at}{name}.bias", 0.0)

            q = product("self_attn.q_proj", x).reshape(n, HEADS, WIDTH)
            k = product("self_attn.k_proj", x).reshape(n, KV_HEADS, WIDTH)
            v = product("self_attn.v_proj", x).reshape(n, KV_HEADS, WIDTH)
            if getattr(self.shape, "qk_norm", False):
                q, k = _norm(q, w[at + "self_attn.q_norm.weight"]), _norm(k, w[at + "self_attn.k_norm.weight"])
            q, k = _turn(q, positions), _turn(k, positions)
            mixed = np.empty((n, HEADS, WIDTH))
            for h in range(HEADS):
                kv = h // (HEADS // KV_HEADS)
                scores = np.where(causal, q[:, h] @ k[:, kv].T / np.sqrt(WIDTH), -np.inf)
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                mixed[:, h] = scores / scores.sum(-1, keepdims=True) @ v[:, kv]
            y = residual + product("self_attn.o_proj", mixed.reshape(n, -1))
            z = _norm(y, w[at + "post_attention_layernorm.weight"])
            y = y + product("mlp.down_proj", _silu(product("mlp.gate_proj", z)) * product("mlp.up_proj", z))
        return y

    def logits(self, y: np.ndarray) -> np.ndarray:
        if self.first:
            return y @ self.target.output.T
        return _norm(y, self.w["norm.weight"]) @ self.w["lm_head.weight"].T

    def context(self, tokens: Sequence[int], order: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Embedded tokens and g of the context's rows: the features of every position but the last."""
        layers = ("last",) if self.first else AUX
        features = [
            np.concatenate([feature(layer, tokens[: t + 1], order) for layer in layers])
            for t in range(len(tokens) - 1)
        ]
        return self.embed(tokens[1:]), self.fused(np.array(features))

    def after(self, tokens: Sequence[int], path: Sequence[int]) -> np.ndarray:
        """Logits [draft vocab] of what follows a context and a drafted path of target ids."""
        embedded, g = self.context(tokens)
        for token in path:
            y = self.outputs(embedded, g)[-1]
            if getattr(self.shape, "norm_output", False):
                y = _norm(y, self.w["norm.weight"])
            embedded = np.concatenate([embedded, self.embed([token])])
            g = np.concatenate([g, y[None]])
        return self.logits(self.outputs(embedded, g)[-1])

    def parallel(self, tokens: Sequence[int], count: int) -> np.ndarray:
        """P-EAGLE: logits [count, draft vocab] of the next tokens."""
        embedded, g = self.context(tokens)
        if count > 1:
            masks = self.fused(np.repeat(self.w["mask_hidden"][0], count - 1, 0))
            g = np.concatenate([g, masks])
            embedded = np.concatenate([embedded, self.embed([self.shape.mask_token_id] * (count - 1))])
        return self.logits(self.outputs(embedded, g)[-count:])

    def chain(self, tokens: Sequence[int], count: int) -> list[int]:
        """The greedy chain, in target ids."""
        path: list[int] = []
        for _ in range(count):
            path.append(self.ids[int(self.after(tokens, path).argmax())])
        return path


def log_softmax(row: np.ndarray) -> np.ndarray:
    row = row - row.max()
    return row - np.log(np.exp(row).sum())


def eagle2_tree(
    after: Callable[[Sequence[int]], np.ndarray], levels: int, width: int, most: int
) -> list[tuple[tuple[int, ...], float]]:
    """EAGLE-2's tree by brute force: the chosen paths of ids with their log probabilities.

    after gives the log probabilities that follow a path. Ties do not occur with random heads.
    """
    scores: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[int, ...]] = [()]
    for _ in range(levels):
        new: dict[tuple[int, ...], float] = {}
        for path in frontier:
            row = after(path)
            for token in np.argsort(-row, kind="stable")[:width]:
                new[(*path, int(token))] = scores.get(path, 0.0) + float(row[token])
        scores |= new
        frontier = sorted(new, key=lambda path: -new[path])[:width]
    return sorted(scores.items(), key=lambda item: -item[1])[:most]


def draft_paths(tokens: Sequence[int], parents: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Per node of a draft its tokens from the root on."""
    paths: list[tuple[int, ...]] = []
    for index, token in enumerate(tokens):
        parent = index - 1 if parents is None else parents[index]
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


class Watched:
    """A drafter whose drafts are kept with their contexts; everything else is the drafter's own."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.drafts: list[tuple[list[int], int, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def propose(self, context: Sequence[int], budget: int, proceed: Any = None) -> Any:
        draft = self.drafter.propose(context, budget, proceed)
        self.drafts.append((list(context), budget, draft))
        return draft


def make(method: str, head: LoadedHead, target: FeatureEngine, max_length: int = 4096, **given: Any) -> Any:
    """A method's drafter as the registry makes it."""
    from specview.drafting.method import DrafterContext
    from specview.drafting.registry import METHODS

    info = METHODS[method]
    assert info.make is not None
    context = DrafterContext(
        info.resolve(given), max_length, target.vocab_size, target=target, heads={method: head}
    )
    return info.make(context)


def run(
    target: FeatureEngine,
    prompt: Sequence[int],
    drafter: Any,
    *,
    rule: str = "greedy",
    sampling: SamplingParams | None = None,
    max_tokens: int = 24,
    k: int = 3,
    policy: Any = None,
    max_length: int | None = None,
    sequence: TokenSequence | None = None,
    session: FeatureSession | None = None,
) -> tuple[list[int], list[Round], str, FeatureSession]:
    """Prefill with features, as a lane does, and run the loop to its end; or go on in a session and sequence."""
    sampling = sampling or SamplingParams()
    if session is None:
        session = target.new_session(max_length or target.context_length)
        drafter.start(prompt, sampling)
        session.prefill(prompt[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
    sequence = sequence or TokenSequence(list(prompt))
    steps = decode(
        session,
        sequence,
        rule=rule,
        sampling=sampling,
        max_tokens=max_tokens,
        drafter=drafter,
        policy=policy or constant(k),
        eos_ids=target.eos_ids,
    )
    rounds = []
    try:
        while True:
            rounds.append(next(steps))
            cached = len(sequence.context) - (rounds[-1].final is not None)
            assert session.tokens == sequence.context[:cached]
    except StopIteration as stop:
        return [token for round_ in rounds for token in round_.emitted], rounds, stop.value, session

