"""The model card of a trained drafter, written from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.training.evaluate import Results, table
from specview.training.loop import Progress

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
class Card:
    """What the card reports. measured and before hold results by held-out set; the last set decided nothing.

    about: what the drafter is; files: what lies beside the card; objective: how it was trained, before the optimizer's
    own figures; settings: those of the loop, with tokens_per_step; answers: by set, how many and their tokens; used:
    the set that was looked at while training ran, or ""; more: sections of the drafter's own, title and text.
    """

    title: str
    about: str
    files: Sequence[str]
    licence: str
    measured: Mapping[str, Results]
    before: Mapping[str, Results]
    answers: Mapping[str, tuple[int, int]]
    data: Mapping[str, Counter[str]]
    source: str  # what the text was made of
    start: str
    objective: str
    settings: Any
    progress: Progress
    minutes: float  # in all
    command: str
    used: str = ""
    note: str = ""  # what else is true of this run
    more: Sequence[tuple[str, str]] = ()


def head_words(kind: str, **sizes: object) -> tuple[str, str, str]:
    """What a head of a kind is, its layout, and what it reads; sizes: layers, mask and heads."""
    what, layout, reads = (text.format(**sizes) for text in _WHAT[kind])
    return what, layout, reads


def render(card: Card) -> str:
    """The card as Markdown."""
    s, p = card.settings, card.progress
    last = list(card.measured)[-1]
    found, began = card.measured[last][2]["all"], card.before[last][2]["all"]
    files = "\n".join(f"- {line}" for line in card.files)
    note = f"\n\n{card.note}" if card.note else ""
    more = "".join(f"## {title}\n\n{text}\n\n" for title, text in card.more)
    return f"""# {card.title}

{card.about}

{files}

Licence: {card.licence}

## Measured acceptance

Greedy rule, chain drafts, the target in float32, the weights as stored here. Each cell: alpha (accepted / judged) /
tokens per target pass. The prefill and its first token are not counted. One training run, one seed: differences of a
hundredth or two mean nothing. At k = 2 ({last}): alpha {found.alpha or 0.0:.3f}, {found.tokens_per_target_pass or 0.0:.3f} tokens per
target pass; alpha before training {began.alpha or 0.0:.3f}.

{"".join(_held_out(card, name) for name in card.measured)}{more}## Data

{card.source} Held-out prompts and texts were left out.

{data_table(card.data)}

## Training

Started from {card.start}. {card.objective} AdamW, learning rate {s.learning_rate:g} falling as a cosine to
{s.final_rate:g} of that, weight decay {s.weight_decay:g}, about {s.tokens_per_step} tokens a step, weights averaged with
decay {s.average:g}, products in {"bfloat16" if s.bfloat16 else "float32"}. {p.step} steps, {p.tokens:,} trained positions, {p.epoch}
full epochs, {p.seconds / 60:.1f} minutes of training and {card.minutes:.1f} in all, seed {s.seed}.{note}

Made by `{card.command}`. Text and batches depend on the machine's installed packages and speed, so another run is
alike, not identical.
"""


def _held_out(card: Card, name: str) -> str:
    count, tokens = card.answers[name]
    seen = "These were looked at while training ran.\n\n" if name == card.used else ""
    return (
        f"### {name} ({count} prompts, {tokens} answer tokens)\n\n{seen}{table(card.measured[name])}\n\n"
        f"The weights that training began with:\n\n{table(card.before[name])}\n\n"
    )


def data_table(data: Mapping[str, Counter[str]]) -> str:
    """A Markdown table of texts by kind."""
    lines = ["| kind | sequences | tokens | written by the target as answers |", "|---|---|---|---|"]
    total: Counter[str] = Counter()
    for counts in data.values():
        total.update(counts)
    for kind, counts in [*sorted(data.items()), ("all", total)]:
        lines.append(f"| {kind} | {counts['sequences']:,} | {counts['tokens']:,} | {counts['written']:,} |")
    return "\n".join(lines)
