"""Test helper: real runs of the loop over toy models, as a trace would hold them."""

from __future__ import annotations

from typing import Any

from specview.decoding.ledger import RunRecord
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.settings.options import resolve
from tests.decoding.toy import FakeClock, FakeEngine, FakeTokenizer, TableModel, run_decode

VOCAB = 6
PROMPT = [1, 2, 3, 1, 2]
GREEDY = SamplingParams()


def recorded(
    *,
    method: str = "draft-model",
    k: int = 8,
    rule: str = "greedy",
    sampling: SamplingParams = GREEDY,
    count: int = 120,
    seed: int = 0,
    order: int | None = None,
    noise: float = 0.3,
    policy: str = "constant",
    policy_options: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    eos_ids: tuple[int, ...] = (),
    observe: Any = "light",
    draft_length: int = 4096,
    vocab: int = VOCAB,
) -> RunRecord:
    """One run on a clock that moves by the models' costs; `plain` drafts nothing."""
    clock = FakeClock()
    target = FakeEngine(
        TableModel(vocab, order, seed), vocab, eos_ids=eos_ids, clock=clock, pass_cost=0.010, row_cost=0.002
    )
    draft = FakeEngine(
        TableModel(vocab, order, seed, noise), vocab, clock=clock, row_cost=0.001, context_length=draft_length
    )
    info, length = METHODS[method], POLICIES[policy]
    drafter = None
    if info.make is not None:
        drafter = info.make(DrafterContext(info.resolve(options or {}), 4096, vocab, draft_engine=draft, rule=rule))
    values = resolve(length.options, policy_options or {}, policy)
    made = length.make(values, None)
    made.start(k)
    _, rounds, end, _ = run_decode(
        target, PROMPT, rule=rule, sampling=sampling, max_tokens=count, drafter=drafter, policy=made, clock=clock,
        observer=Observer(observe, FakeTokenizer(vocab)),
    )  # fmt: skip
    settings = {
        "method": method, "k": k if info.drafts else None, "policy": policy, "rule": rule, "max_tokens": count,
        "temperature": sampling.temperature, "seed": sampling.seed,
        **{f"policy_{key}": value for key, value in values.items()},
        **{f"option_{key}": value for key, value in info.resolve(options or {}).items()},
    }  # fmt: skip
    return RunRecord(method, settings, tuple(PROMPT), 0.1, rounds, end)
