"""The model card of a small draft, written from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specview.training.evaluate import Acceptance, table
from specview.training.shards import LABELS_PER_TOKEN
from specview.training.target import LlamaShape
from specview.training.train import Progress, Settings

Results = dict[int, dict[str, Acceptance]]


@dataclass(frozen=True)
class Facts:
    """What the card reports. measured and before hold results by prompt set; the last set decided nothing."""

    target: str
    licence: str
    shape: LlamaShape
    parameters: int
    progress: Progress
    settings: Settings
    data: Mapping[str, Counter[str]]
    source: str  # what the text was made of
    seed: int
    start: Path | None
    measured: Mapping[str, Results]
    before: Mapping[str, Results]
    copying: tuple[dict[str, float], ...]  # of the first weights and of the result, by kind of copy
    gguf_type: str  # "" where there is none
    gguf_alphas: Mapping[str, float]  # on the last set at k = 2
    prompts: Mapping[str, int]
    answer_tokens: Mapping[str, int]
    note: str  # what else is true of this run
    command: str


def render(facts: Facts) -> str:
    """The card as Markdown."""
    p, s, shape = facts.progress, facts.settings, facts.shape
    last = list(facts.measured)[-1]
    alpha = facts.measured[last][2]["all"].alpha or 0.0
    started = facts.before[last][2]["all"].alpha or 0.0
    start = f"the checkpoint `{facts.start}`" if facts.start else "random weights, its embedding projected"
    embedding = shape.vocab_size * shape.hidden_size
    gguf = f"""
- `draft.gguf`: {facts.gguf_type} matrices, for llama.cpp, with the tokenizer and chat template of the
  target's GGUF. Alpha at k = 2 ({last}), by stored type: {_types(facts.gguf_alphas)}."""
    sections = [
        f"""# A small draft for {facts.target}

A tiny language model that drafts for {facts.target}: same tokenizer, same vocabulary ({shape.vocab_size:,} ids),
so every drafted id means the same to both. Llama architecture, hidden {shape.hidden_size}, {shape.layers} layers,
{shape.heads} query and {shape.kv_heads} key-value heads of {shape.head_dim}, feed-forward {shape.intermediate_size},
tied embedding: {facts.parameters / 1e6:.1f}M parameters, of which {(facts.parameters - embedding) / 1e6:.1f}M are not
the embedding. It is of no use by itself.

- `config.json`, `model.safetensors`: float16, loads as `transformers.LlamaForCausalLM`. The tokenizer is the
  target's.{gguf if facts.gguf_type else ""}

Licence: {facts.licence}""",
        f"""## Measured acceptance

Greedy rule, chain drafts, the target in float32. Each cell: alpha (accepted / judged) / tokens per target pass.
The prefill and its first token are not counted. Alpha at k = 2 ({last}): {alpha:.3f}, from {started:.3f} before
training. One training run, one seed: differences of a hundredth or two mean nothing.

{_tables(facts)}

### Copying

When a piece of a held-out answer comes a second time in the context, share of its tokens (after the first
two) that the draft gives, before and after training:
{_copying(facts)}.""",
        """## Limits

Trained on sequences of up to 400 tokens; longer contexts run, and are accepted less.""",
        f"""## Data

{facts.source} Its {LABELS_PER_TOKEN} likeliest next tokens are stored as soft labels for every token it wrote, and for
the code and prose in its prompts. Real text without labels, from the installed packages, teaches copying: a piece of
text, something else, and the piece again. Held-out prompts and texts were left out.

{data_table(facts.data)}""",
        f"""## Training

Started from {start}.
Soft cross-entropy over {s.frequent_ids} frequent ids, the batch's own and {s.negatives} random ones;
two attention heads are also taught where to look when text repeats (loss weight {s.guidance}).
AdamW, learning rate {s.learning_rate} falling as a cosine to {s.final_rate} of that, weight decay
{s.weight_decay}, about {s.tokens_per_step} tokens a step, weights averaged with decay {s.average}.
{p.step} steps, {p.tokens:,} trained positions, {p.epoch} full epochs, {p.seconds / 60:.0f} minutes of wall
clock, seed {facts.seed}.{_paragraph(facts.note)}

Made by `{facts.command}`, which writes the data, trains, measures and exports; `--minutes` says how long,
`--start FOLDER` which weights to go on from (this folder does). Text and batches depend on the machine's installed
packages and speed, so another run is alike, not identical.""",
    ]
    return "\n\n".join(sections) + "\n"


def _paragraph(note: str) -> str:
    return f"\n\n{note}" if note else ""


def _tables(facts: Facts) -> str:
    parts = []
    for name, found in facts.measured.items():
        size = f"{facts.prompts[name]} prompts, {facts.answer_tokens[name]} answer tokens"
        parts.append(
            f"### {name} ({size})\n\n{table(found)}\n\nThe weights that training began with:\n\n{table(facts.before[name])}"
        )
    return "\n\n".join(parts)


def _copying(facts: Facts) -> str:
    before, after = facts.copying
    names = {"copy": "as it stands", "shuffled-copy": "shuffled", "framed-copy": "from user turn to answer"}
    parts = [f"{names[kind]} {before[kind]:.2f} and {after[kind]:.2f}" for kind in after]
    return ", ".join(parts) or "too little was held out to tell"


def _types(alphas: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {alpha:.3f}" for name, alpha in sorted(alphas.items()))


def data_table(data: Mapping[str, Counter[str]]) -> str:
    """A Markdown table of texts by kind."""
    lines = ["| kind | sequences | tokens | written by the target as answers |", "|---|---|---|---|"]
    total: Counter[str] = Counter()
    for kind, counts in sorted(data.items()):
        lines.append(f"| {kind} | {counts['sequences']:,} | {counts['tokens']:,} | {counts['written']:,} |")
        total.update(counts)
    lines.append(f"| all | {total['sequences']:,} | {total['tokens']:,} | {total['written']:,} |")
    return "\n".join(lines)
