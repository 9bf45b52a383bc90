"""The model card of a trained head, written from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from specview.training.card import data_table
from specview.training.evaluate import Acceptance, table
from specview.training.heads import HeadSettings
from specview.training.loop import Progress

Results = dict[int, dict[str, Acceptance]]

_WHAT = {
    "eagle3": (
        "An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840)",
        "speculators layout (`speculators_model_type` eagle3)",
        "It reads the target's hidden states after layers {layers} and drafts token after token, as a chain or a tree.",
    ),
    "p-eagle": (
        "A P-EAGLE head: an EAGLE-3 head that drafts all tokens in one pass, through mask positions",
        "speculators layout (`speculators_model_type` peagle)",
        "It reads the target's hidden states after layers {layers}; its mask token is {mask}.",
    ),
    "medusa": (
        "{heads} Medusa heads (Cai et al. 2024, arXiv 2401.10774)",
        "vLLM's Medusa layout, one output matrix for all heads (`token_map` gives its rows' ids)",
        "They read the target's last hidden state; head i drafts the token i + 1 places after the next one.",
    ),
}


@dataclass(frozen=True)
class HeadFactsForCard:
    """What the card reports. measured and before hold results by held-out set."""

    kind: str
    target: str
    licence: str
    sizes: Mapping[str, object]  # layers, mask, heads: what the kind's sentence names
    parameters: int
    draft_vocab: int
    vocab: int
    progress: Progress
    settings: HeadSettings
    data: Mapping[str, Counter[str]]
    source: str  # what the text was made of
    start: str
    measured: Mapping[str, Results]
    before: Mapping[str, Results]
    answers: Mapping[str, tuple[int, int]]  # by set: how many, and their tokens
    used: str  # the set that was looked at while training ran, or ""
    command: str
    minutes: float  # in all


def render(facts: HeadFactsForCard) -> str:
    """The card as Markdown."""
    what, layout, reads = (text.format(**facts.sizes) for text in _WHAT[facts.kind])
    s, p = facts.settings, facts.progress
    last = list(facts.measured)[-1]
    tables = "\n\n".join(_held_out(facts, name) for name in facts.measured)
    return f"""# {facts.kind} for {facts.target}

{what} for {facts.target}.
{reads}
{facts.parameters / 1e6:.1f}M parameters; it drafts {facts.draft_vocab:,} of the target's {facts.vocab:,} tokens. It is of no use by itself.

- `config.json`, `model.safetensors`: float16, {layout}.
- Held-out acceptance at k = 2 ({last}): alpha {facts.measured[last][2]["all"].alpha or 0.0:.3f},
  {facts.measured[last][2]["all"].tokens_per_target_pass or 0.0:.3f} tokens per target pass; before training {facts.before[last][2]["all"].alpha or 0.0:.3f}.

Licence: {facts.licence}

## Measured acceptance

Greedy rule, chain drafts, the target in float32, the weights as stored here. Each cell: alpha (accepted / judged) /
tokens per target pass. The prefill and its first token are not counted. One training run, one seed: differences of a
hundredth or two mean nothing.

{tables}

## Data

{facts.source} Texts of held-out prompts were left out of training.

{data_table(facts.data)}

## Training

Started from {facts.start}.
Soft cross-entropy against the target's own predictions over the head's {facts.draft_vocab:,} tokens, for
{s.depth} drafted tokens, each weighing {s.decay:g} of the one before{_shallow(s)}. AdamW, learning rate {s.learning_rate:g} falling
as a cosine to {s.final_rate:g} of that, weight decay {s.weight_decay:g}, about {s.tokens_per_step} tokens a step,
weights averaged with decay {s.average:g}, products in {"bfloat16" if s.bfloat16 else "float32"}. {p.step} steps,
{p.tokens:,} trained positions, {p.epoch} full epochs, {p.seconds / 60:.1f} minutes of training and
{facts.minutes:.1f} in all, seed {s.seed}.

Made by `{facts.command}`. Text depends on the machine's installed packages and speed, so another run is alike, not
identical.
"""


def _shallow(s: HeadSettings) -> str:
    return f" (the first alone for {100 * s.shallow:.0f}% of the run)" if s.shallow else ""


def _held_out(facts: HeadFactsForCard, name: str) -> str:
    count, tokens = facts.answers[name]
    seen = "\nThese were looked at while training ran.\n" if name == facts.used else ""
    return f"""### {name} ({count} prompts, {tokens} answer tokens)
{seen}
{table(facts.measured[name])}

Before training:

{table({2: facts.before[name][2]})}"""
