"""The model card of the bundled draft, written from what was measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from specview.training.evaluate import Acceptance, table
from specview.training.shards import LABELS_PER_TOKEN
from specview.training.train import Progress, Settings

AIM = 0.40  # alpha at k = 2 on fresh prompts
Results = dict[int, dict[str, Acceptance]]


@dataclass(frozen=True)
class Facts:
    """What the card reports. measured and before hold results by prompt set."""

    progress: Progress
    settings: Settings
    data: dict[str, Counter[str]]
    seed: int
    start: Path | None
    measured: dict[str, Results]
    before: dict[str, Results]
    copying: tuple[dict[str, float], ...]  # of the first weights and of the result, by kind of copy
    gguf_type: str
    gguf_alphas: dict[str, float]  # on the fresh prompts at k = 2
    prompts: dict[str, int]
    answer_tokens: dict[str, int]
    note: str  # what else is true of this run


def render(facts: Facts) -> str:
    """The card as Markdown."""
    p, s = facts.progress, facts.settings
    fresh = facts.measured["fresh"][2]["all"].alpha or 0.0
    started = facts.before["fresh"][2]["all"].alpha or 0.0
    first_table = facts.measured["first-table"][2]["all"].alpha or 0.0
    reached = "reached" if fresh >= AIM else "**not reached**"
    start = f"the checkpoint `{facts.start}`" if facts.start else "random weights, its embedding projected"
    sections = [
        f"""# The bundled draft

A tiny language model that drafts for SmolLM2-135M-Instruct: same tokenizer, same vocabulary (49,152 ids),
so every drafted id means the same to both. Llama architecture, hidden 192, 4 layers, 6 query and 2
key-value heads of 32, feed-forward 512, tied embedding: 11.0M parameters, of which 1.6M are not the
embedding. It is of no use by itself.

- `config.json`, `model.safetensors`: float16, loads as `transformers.LlamaForCausalLM`. The tokenizer is
  the target's and is not copied here.
- `draft.gguf`: {facts.gguf_type} matrices, for llama.cpp, with the tokenizer and chat template of the
  target's GGUF. Alpha at k = 2 on the fresh prompts, by stored type: {_types(facts.gguf_alphas)}.

Licence: Apache-2.0, as the target's (SmolLM2-135M-Instruct, Hugging Face), on whose output it was
trained.""",
        f"""## Measured acceptance

Greedy rule, chain drafts, the target dequantized from Q4_1 to float32, answers of at most 160 tokens.
Each cell: alpha (accepted / judged) / tokens per target pass. The prefill and its first token are not
counted.

### Fresh prompts ({_size(facts, "fresh")}), which decided nothing

{table(facts.measured["fresh"])}

The weights that training began with, on the same prompts:

{table(facts.before["fresh"])}

### The first table's prompts ({_size(facts, "first-table")})

These were looked at while the method was being worked out.

{table(facts.measured["first-table"])}

The weights that training began with:

{table(facts.before["first-table"])}

One training run, one seed: differences of a hundredth or two mean nothing.

### Copying

When a piece of a held-out answer comes a second time in the context, share of its tokens (after the first
two) that the draft gives, before and after training:
{_copying(facts)}.""",
        f"""## Not reached, and limits

The aim was alpha {AIM:.2f} at k = 2 on fresh prompts. It was {reached}: {fresh:.3f}, from {started:.3f};
{_without_portuguese(facts):.3f} without the Portuguese prompts, and {first_table:.3f} on the first table's.
Trained on sequences of up to 400 tokens; longer contexts run, and are accepted less. The target itself
writes poor Portuguese, and few sequences are Portuguese.""",
        f"""## Data

No text was downloaded. The target wrote answers to templates filled at random, to its own invented user
turns, and to instructions over Python functions and prose found in the standard library and in the
installed packages; temperatures 0, 0.7 and 1 (shares 0.5, 0.3, 0.2). Its {LABELS_PER_TOKEN} likeliest next
tokens are stored as soft labels for every token it wrote, and for the code and prose in its prompts. Real
text without labels teaches copying: a piece of text, something else, and the piece again. Prompts that share
seven words in a row with a held-out prompt were dropped; six standard library modules were left out.

{_data_table(facts.data)}""",
        f"""## Training

Started from {start}.
Soft cross-entropy over {s.frequent_ids} frequent ids, the batch's own and {s.negatives} random ones;
two attention heads are also taught where to look when text repeats (loss weight {s.guidance}).
AdamW, learning rate {s.learning_rate} falling as a cosine to {s.final_rate} of that, weight decay
{s.weight_decay}, about {s.tokens_per_step} tokens a step, weights averaged with decay {s.average}.
{p.step} steps, {p.tokens:,} trained positions, {p.epoch} full epochs, {p.seconds / 60:.0f} minutes of wall
clock, seed {facts.seed}.{_paragraph(facts.note)}

Made by `python -m specview.training draft --out assets/draft`, which writes the data, trains, measures and
exports; `--minutes` says how long, `--start FOLDER` which weights to go on from (this folder does). Text
and batches depend on the machine's installed packages and speed, so another run is alike, not identical.""",
    ]
    return "\n\n".join(sections) + "\n"


def _paragraph(note: str) -> str:
    return f"\n\n{note}" if note else ""


def _size(facts: Facts, name: str) -> str:
    return f"{facts.prompts[name]} prompts, {facts.answer_tokens[name]} answer tokens"


def _without_portuguese(facts: Facts) -> float:
    counts = Acceptance()
    for kind, part in facts.measured["fresh"][2].items():
        if kind not in ("all", "portuguese"):
            counts.add(part)
    return counts.alpha or 0.0


def _copying(facts: Facts) -> str:
    before, after = facts.copying
    names = {"copy": "as it stands", "shuffled-copy": "shuffled", "framed-copy": "from user turn to answer"}
    return ", ".join(f"{names[kind]} {before[kind]:.2f} and {after[kind]:.2f}" for kind in after)


def _types(alphas: dict[str, float]) -> str:
    return ", ".join(f"{name} {alpha:.3f}" for name, alpha in sorted(alphas.items()))


def _data_table(data: dict[str, Counter[str]]) -> str:
    lines = ["| kind | sequences | tokens | written by the target as answers |", "|---|---|---|---|"]
    total: Counter[str] = Counter()
    for kind, counts in sorted(data.items()):
        lines.append(f"| {kind} | {counts['sequences']:,} | {counts['tokens']:,} | {counts['written']:,} |")
        total.update(counts)
    lines.append(f"| all | {total['sequences']:,} | {total['tokens']:,} | {total['written']:,} |")
    return "\n".join(lines)
