"""Every drafting method over toys: a row says how its drafter is made, and the contract is asked of all.

What a method drafts is asked in its own file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.heads.loaded import LoadedHead
from tests.decoding.toy import BOS, DRAFT, LENGTH, TARGET, VOCAB, FakeEngine, TableModel, constant, toy_logits
from tests.drafting.eagle_toy import FeatureEngine, eagle3_head, eagle_head, light_head
from tests.drafting.test_medusa import heads_for
from tests.drafting.test_mlp_speculator import speculator_for
from tests.drafting.test_mtp import modules_for

SMALL = {"size_n": 1, "size_m": 3}
MOD = {"n_match": 1, "n_min": 1, "n_max": 3}
DYNAMIC = {"tree": "dynamic", "depth": 2, "top_k": 2, "total_tokens": 8}
Parts = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A method with options, and what else it is made of: `parts(target, seed)`, for DrafterContext.

    features: it drafts from the target's features. tied: its runs learn from each other. toy: other parts for the toy of
    four tokens, where there are some.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Callable[[FeatureEngine, int], Parts] = lambda target, seed: {}
    features: bool = False
    tied: bool = False
    toy: Callable[[FeatureEngine, int], Parts] | None = None

    def make(
        self, target: FeatureEngine, seed: int = 1, max_length: int = 4096, memory: dict | None = None, toy: bool = False
    ) -> Any:
        """Its drafter, as a lane makes it."""
        info = METHODS[self.method]
        parts = (self.toy or self.parts if toy else self.parts)(target, seed)
        context = DrafterContext(
            info.resolve(self.options), max_length, target.vocab_size, target=target, memory={} if memory is None else memory, **parts
        )
        assert info.make is not None
        return info.make(context)


def head(method: str, make: Callable[..., LoadedHead], **more: Any) -> Callable[[FeatureEngine, int], Parts]:
    """Parts of a method that drafts with a head."""
    return lambda target, seed: {"heads": {method: make(target, seed=seed, **more)}}


def light(method: str) -> Callable[[FeatureEngine, int], Parts]:
    """A head that says what the toy's draft table does."""
    return lambda target, seed: {"heads": {method: light_head(target, DRAFT)}}


def draft(extra: int = 0) -> Callable[[FeatureEngine, int], Parts]:
    """Parts of a method that drafts with a model, `extra` ids beyond the target's (a mask token)."""

    def parts(target: FeatureEngine, seed: int) -> Parts:
        size = target.vocab_size + extra
        engine = FakeEngine(TableModel(size, order=1, seed=seed, noise=0.4, scale=3.0), size, namespace=target.namespace, tokenizer=target.tokenizer)
        engine.config = {"pard_token": size - 1}
        return {"draft_engine": engine}

    return parts


def toy_draft(extra: int = 0) -> Callable[[FeatureEngine, int], Parts]:
    """A draft model that follows the toy's table; after a mask it says no token in particular."""
    rows = np.concatenate([DRAFT, *[DRAFT.mean(0, keepdims=True)] * extra])

    def parts(target: FeatureEngine, seed: int) -> Parts:
        engine = FakeEngine(toy_logits(rows), VOCAB + extra, tokenizer=target.tokenizer)
        engine.config = {"pard_token": VOCAB}
        return {"draft_engine": engine}

    return parts


class Lanes:
    """The newest session of a target: the lane's own, which early exit drafts with."""

    def __init__(self, target: FeatureEngine) -> None:
        self.target = target

    def forward_exit(self, tokens: Sequence[int], layer: int) -> Any:
        return self.target.sessions[-1].forward_exit(tokens, layer)


def exits(target: FeatureEngine, seed: int) -> Parts:
    """A target whose exit is like it, but not the same; the toy's follows the draft table."""
    toy = target.vocab_size == VOCAB
    target.exit_layers = 8
    target.exit_model = toy_logits(DRAFT) if toy else TableModel(target.vocab_size, order=2, seed=3, noise=0.4, scale=3.0)
    return {"session": Lanes(target)}


CASES: dict[str, Case] = {
    "early-exit": Case("early-exit", {}, exits),
    "draft-model": Case("draft-model", {}, draft(), toy=toy_draft()),
    "pard": Case("pard", {}, draft(2), toy=toy_draft(1)),
    "prompt-lookup": Case("prompt-lookup"),
    "ngram-simple": Case("ngram-simple", SMALL),
    "ngram-map-k": Case("ngram-map-k", SMALL),
    "ngram-map-k tied": Case("ngram-map-k", {**SMALL, "tie": True}, tied=True),
    "ngram-map-k4v": Case("ngram-map-k4v", SMALL),
    "ngram-mod": Case("ngram-mod", MOD),
    "ngram-mod tied": Case("ngram-mod", {**MOD, "tie": True}, tied=True),
    "suffix": Case("suffix"),
    "suffix tied": Case("suffix", {"tie": True}, tied=True),
    "lookahead": Case("lookahead"),
    "medusa": Case("medusa", {}, head("medusa", heads_for), True),
    "medusa tree": Case("medusa", {"tree": "fixed"}, head("medusa", heads_for), True),
    "mlp-speculator": Case("mlp-speculator", {}, head("mlp-speculator", speculator_for), True),
    "mlp-speculator lstm": Case("mlp-speculator", {}, head("mlp-speculator", speculator_for, lstm=True), True),
    "mtp": Case("mtp", {}, head("mtp", modules_for), True),
    "mtp two": Case("mtp", {}, head("mtp", modules_for, modules=2), True),
    "eagle": Case("eagle", {}, head("eagle", eagle_head), True, toy=light("eagle")),
    "eagle fixed": Case("eagle", {"tree": "fixed"}, head("eagle", eagle_head), True, toy=light("eagle")),
    "eagle2": Case("eagle2", {}, head("eagle2", eagle_head), True, toy=light("eagle2")),
    "eagle3": Case("eagle3", {}, head("eagle3", eagle3_head), True, toy=light("eagle3")),
    "eagle3 tree": Case("eagle3", DYNAMIC, head("eagle3", eagle3_head), True, toy=light("eagle3")),
    "eagle3 sampled": Case("eagle3", {**DYNAMIC, "siblings": "sampled"}, head("eagle3", eagle3_head), True, toy=light("eagle3")),
    "p-eagle": Case("p-eagle", {}, head("p-eagle", eagle3_head, mask_token_id=0), True, toy=light("p-eagle")),
    "cascade": Case("cascade", {"members": "prompt-lookup+draft-model"}, draft(), toy=toy_draft()),
    "auto": Case("auto", {"members": "prompt-lookup+suffix+draft-model"}, draft(), toy=toy_draft()),
}
HEADS = [name for name, case in CASES.items() if case.features]
FRESH = [name for name, case in CASES.items() if not case.tied]


def toy_outcomes(name: str, rule: str, runs: int, parts: Callable[[FeatureEngine, int], Parts] | None = None) -> tuple[Counter, Counter]:
    """Counts of the toy's first tokens over many seeds, past which the runs go on, and of the verdicts."""
    case, memory = CASES[name], {}
    target = FeatureEngine(toy_logits(TARGET), VOCAB, order=1)
    made = (parts or case.toy or case.parts)(target, 5)
    shared = Case(case.method, case.options, lambda target, seed: made, case.features, case.tied)
    copied = [] if case.features else np.random.default_rng(4).integers(0, VOCAB, size=20).tolist()  # something to copy
    prompt = [*copied, 1, BOS]
    outcomes: Counter = Counter()
    verdicts: Counter = Counter()
    for seed in range(runs):
        sampling = SamplingParams(1.0, seed=seed)
        memory = {} if seed % 3 == 0 else memory
        session, drafter = target.new_session(64), shared.make(target, max_length=64, memory=memory)
        drafter.start(prompt, sampling)
        session.prefill(prompt[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
        sequence = TokenSequence(list(prompt))
        steps = decode(
            session, sequence, rule=rule, sampling=sampling, max_tokens=LENGTH + 3, drafter=drafter, policy=constant(3)
        )  # fmt: skip
        for round_ in steps:
            verdicts.update(token.verdict for token in round_.drafted)
            if len(sequence.output) >= LENGTH:
                break
        steps.close()
        drafter.close()
        outcomes[tuple(sequence.output[:LENGTH])] += 1
        target.sessions.clear()
    return outcomes, verdicts


def wide(vocab: int = 9, namespace: str = "numpy", **more: Any) -> FeatureEngine:
    """A target whose text repeats itself, so that copies have something to say."""
    return FeatureEngine(TableModel(vocab, order=2, seed=3, scale=3.0), vocab, namespace=namespace, **more)


def prompt_of(length: int, vocab: int, seed: int = 7) -> Sequence[int]:
    """Random tokens, the vocabulary's first and last among them."""
    return [0, vocab - 1, *np.random.default_rng(seed).integers(0, vocab, size=max(0, length - 2)).tolist()][:length]
