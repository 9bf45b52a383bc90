"""Made-up methods for the window's tests: every kind of declaration that a real one can have.

The real methods come and go with the registry; the window must follow declarations alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specview.drafting import policies, registry
from specview.drafting.method import MethodInfo
from specview.drafting.policies import Constant, PolicyInfo
from specview.settings.options import Option


def _make(context):
    raise AssertionError("made-up methods never draft")


SIZES = (
    Option("size_n", 12, "Tokens that must match; llama.cpp calls it --spec-ngram-size-n.", 1, 1024, label="size n"),
    Option("size_m", 48, "Tokens copied after a match; llama.cpp calls it --spec-ngram-size-m.", 1, 1024),
    Option("min_hits", 1, "Times the n-gram must have occurred.", 1, 100),
)
PRESETS = {"code": {"size_n": 12, "min_hits": 1}, "text": {"size_n": 8, "min_hits": 2}}
PRESET = Option("preset", "code", "Values that suit a kind of text.", choices=("code", "text"))

FAKES = (
    MethodInfo("x-simple", "x simple", "Copies what followed the last n-gram.", _make, (PRESET, *SIZES),
               longest="size_m", presets=PRESETS),
    MethodInfo("x-suffix", "x suffix", "A suffix tree over this run and earlier ones.", _make, (
        Option("max_depth", 24, "Depth of the tree.", 1, 64),
        Option("min_probability", 0.1, "Below it nothing is drafted; vLLM calls it min_token_prob.", 0.0, 1.0),
        Option("shared", False, "Keep the tree from run to run."),
        Option("store", "", "A file the tree is kept in between sessions."),
    )),
    MethodInfo("x-window", "x window", "A window of guesses that the target itself advances.", _make, (
        Option("window", 15, "Guesses that ride along.", 1, 64),
    ), family="self"),
    MethodInfo("early-exit", "early exit", "The target's first layers draft.", _make, (
        Option("exit_layer", 0, "E: layers that draft.", 0, label="exit layer E"),
    ), family="self", problem=lambda engine: getattr(engine, "exit_problem", None)),
    MethodInfo("x-cascade", "x cascade", "The first member with a proposal drafts.", _make, (
        Option("members", "x-simple+draft-model", "Drafters in order, joined by +."),
        Option("patience", 2, "Rounds without a hit before the next member is asked.", 0, 9),
    ), family="combined", combines=True),
)
POLICY = PolicyInfo("adaptive", "adaptive", "Each round's length is what promises the best speed.", Constant,
                    default_k=16)


@contextmanager
def made_up_methods() -> Iterator[None]:
    """Put the made-up methods into the registry, and take them out again."""
    methods, held = dict(registry.METHODS), dict(policies.POLICIES)
    registry.METHODS.update({info.name: info for info in FAKES})
    policies.POLICIES[POLICY.name] = POLICY
    try:
        yield
    finally:
        for table, before in ((registry.METHODS, methods), (policies.POLICIES, held)):
            table.clear()
            table.update(before)
