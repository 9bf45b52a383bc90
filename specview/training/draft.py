"""Making the bundled draft, from nothing to files: data, training, measurement, export, card."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from specview.training import card
from specview.training.chat import ChatLayout, load_tokenizer
from specview.training.corpus import Corpus, default_roots, read_corpus
from specview.training.evaluate import acceptance, copying, greedy_answers
from specview.training.export import load_gguf_weights, save_checkpoint, save_gguf
from specview.training.generate import Writer
from specview.training.heldout import SETS, held_out
from specview.training.plain import plain_sequences, tokenized
from specview.training.prompts import PromptSource
from specview.training.shards import Labelled, ShardWriter, read_shard
from specview.training.small_draft import SmallDraft, project_embedding
from specview.training.target import TargetModel
from specview.training.train import Report, Settings, Trainer

Say = Callable[[str], None]

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    # Copying compares tokens hundreds of positions apart: a slow rotation leaves more of a small
    # head's dimensions usable for that than the customary 10,000.
    "rope_theta": 100000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}
FROM_TARGET = ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
CORPUS_FILES = 3000
PLAIN_TOKENS = 900_000
# Q8_0 is taken when alpha at k = 2 falls by no more than this against F16.
EQUAL_ALPHA = 0.003


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the asset, besides the machine's own installed packages."""

    target: Path  # folder: config.json, safetensors, tokenizer
    target_gguf: Path  # where the GGUF's vocabulary comes from
    work: Path  # data and checkpoints; a second run goes on from what is here
    out: Path
    minutes: float = 100.0
    data_share: float = 0.5  # of the minutes
    start: Path | None = None  # a checkpoint of the same shape to go on from
    seed: int = 0
    threads: int = 2
    note: str = ""  # for the card


def make(recipe: Recipe, stop: Callable[[], bool], say: Say) -> bool:
    """Run all stages; False when stopped before the export. Raises OSError and ValueError."""
    torch.set_num_threads(recipe.threads)
    write_data(recipe, stop, say)
    if stop():
        return False
    trainer = train(recipe, stop, say)
    if stop():
        return False
    export(recipe, trainer, say)
    return True


def write_data(recipe: Recipe, stop: Callable[[], bool], say: Say) -> None:
    """Let the target write for its share of the minutes, then add plain sequences made of all the text."""
    shards, spent_file = recipe.work / "shards", recipe.work / "data.json"
    spent = json.loads(spent_file.read_text())["seconds"] if spent_file.exists() else 0.0
    left = 60 * recipe.minutes * recipe.data_share - spent
    if left <= 0:
        return
    say("reading real text")
    corpus = read_corpus(default_roots(), CORPUS_FILES, recipe.seed)
    shards.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    _write_in_threads(recipe, corpus, lambda: stop() or time.monotonic() - began > left, say)
    spent_file.write_text(json.dumps({"seconds": spent + time.monotonic() - began}))
    if not stop() and not list(shards.glob("plain-*.safetensors")):
        write_plain(recipe, corpus)


def write_plain(recipe: Recipe, corpus: Corpus) -> None:
    """Write sequences without labels from real text and from the target's answers, alternately."""
    tokenizer = load_tokenizer(recipe.target)
    answers = [
        sequence.tokens[-sequence.written :].tolist()
        for path in sorted((recipe.work / "shards").glob("written-*.safetensors"))
        for sequence in read_shard(path)
    ]
    texts = (
        text
        for real, own in zip(tokenized(corpus, tokenizer, recipe.seed), cycle(answers or [[]]), strict=False)
        for text in (real, own)
    )
    writer = ShardWriter(recipe.work / "shards", "plain", 200_000)
    for sequence in plain_sequences(texts, ChatLayout.of(tokenizer), PLAIN_TOKENS, recipe.seed):
        writer.add(sequence)
    writer.flush()


def _write_in_threads(recipe: Recipe, corpus: Corpus, stop: Callable[[], bool], say: Say) -> None:
    """One writer per core, each on one thread: two small products run better than one split in two."""
    target = TargetModel(recipe.target)
    kept = [prompt.text for name in SETS for prompt in held_out(name)]
    round_ = len(list((recipe.work / "shards").glob("written-*")))  # a resumed run draws anew
    failures: list[BaseException] = []
    # Loaded here, one each: transformers' lazy imports and a tokenizer's settings are not thread-safe.
    tokenizers = [load_tokenizer(recipe.target) for _ in range(recipe.threads)]

    def work(index: int) -> None:
        torch.set_num_threads(1)
        seed = (recipe.seed * 1000 + round_) * 100 + index
        try:
            Writer(
                target,
                tokenizers[index],
                PromptSource(corpus, kept, random.Random(seed)),
                ShardWriter(recipe.work / "shards", f"written-{index}"),
                seed,
            ).run(lambda: stop() or bool(failures), lambda text: say(f"writer {index}: {text}"))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(recipe.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def start_draft(recipe: Recipe) -> SmallDraft:
    """The draft before training: a checkpoint's weights, or random ones with the target's embedding."""
    target_config = json.loads((recipe.target / "config.json").read_text())
    config = {**SHAPE, **{key: target_config[key] for key in FROM_TARGET if key in target_config}}
    torch.manual_seed(recipe.seed)
    draft = SmallDraft(config)
    if recipe.start:
        draft.load_state_dict(SmallDraft.load(recipe.start).state_dict())
    else:
        embedding = TargetModel(recipe.target).embedding
        with torch.no_grad():
            draft.embedding.copy_(project_embedding(embedding, draft.shape.hidden_size))
    return draft


def train(recipe: Recipe, stop: Callable[[], bool], say: Say) -> Trainer:
    """Train on what was written; goes on from an earlier run's state."""
    layout = ChatLayout.of(load_tokenizer(recipe.target))
    settings = Settings(
        minutes=recipe.minutes * (1 - recipe.data_share), seed=recipe.seed, skip=len(layout.before)
    )
    state = recipe.work / "state.safetensors"
    trainer = Trainer(start_draft(recipe), recipe.work / "shards", state, settings)

    def report(r: Report) -> None:
        say(
            f"step {r.progress.step}, {100 * trainer.fraction():.0f}%: loss {r.loss:.3f}, "
            f"agreement {r.agreement:.3f}, learning rate {r.learning_rate:.1e}"
        )

    trainer.run(stop, report)
    return trainer


def export(recipe: Recipe, trainer: Trainer, say: Say) -> None:
    """Measure the averaged weights as they will be stored, and write the asset."""
    draft = trainer.averaged()
    recipe.out.mkdir(parents=True, exist_ok=True)
    save_checkpoint(draft, recipe.out)
    stored = SmallDraft.load(recipe.out)
    answers = held_out_answers(recipe)
    layout = ChatLayout.of(load_tokenizer(recipe.target))
    say("measuring acceptance")
    measured = {name: acceptance(stored, answers[name]) for name in SETS}
    first = SmallDraft.load(recipe.start) if recipe.start else start_draft(recipe)
    before = {name: acceptance(first, answers[name]) for name in SETS}
    kinds = {}
    for quantized, name in ((True, "Q8_0"), (False, "F16")):
        file = recipe.work / f"{name}.gguf"
        save_gguf(draft, file, recipe.target_gguf, "specview bundled draft", quantized)
        kinds[name] = acceptance(load_gguf_weights(draft, file), answers["fresh"], (2,))
    alphas = {name: result[2]["all"].alpha or 0.0 for name, result in kinds.items()}
    chosen = "Q8_0" if alphas["Q8_0"] >= alphas["F16"] - EQUAL_ALPHA else "F16"
    shutil.move(recipe.work / f"{chosen}.gguf", recipe.out / "draft.gguf")
    facts = card.Facts(
        progress=trainer.progress,
        settings=trainer.settings,
        data=data_counts(recipe.work / "shards"),
        seed=recipe.seed,
        start=recipe.start,
        measured=measured,
        before=before,
        copying=tuple(copying(model, answers["fresh"], layout, recipe.seed) for model in (first, stored)),
        gguf_type=chosen,
        gguf_alphas=alphas,
        prompts={name: len(answers[name]) for name in SETS},
        answer_tokens={name: sum(a.written for a in answers[name]) for name in SETS},
        note=recipe.note,
    )
    (recipe.out / "README.md").write_text(card.render(facts), "utf-8")
    say(f"written to {recipe.out}")


def held_out_answers(recipe: Recipe) -> dict[str, list[Labelled]]:
    """The target's greedy answers to the held-out prompts, by set; written at the first call."""
    folder = recipe.work / "heldout"
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.safetensors" for name in SETS}
    if all(file.exists() for file in files.values()):
        return {name: list(read_shard(file)) for name, file in files.items()}
    target, tokenizer = TargetModel(recipe.target), load_tokenizer(recipe.target)
    return {name: greedy_answers(target, tokenizer, held_out(name), file) for name, file in files.items()}


def data_counts(shards: Path) -> dict[str, Counter[str]]:
    """By kind of sequence: `sequences`, `tokens`, and `written` (tokens the target wrote as answers)."""
    counts: dict[str, Counter[str]] = {}
    for path in sorted(shards.glob("*.safetensors")):
        for sequence in read_shard(path):
            kind = counts.setdefault(sequence.kind, Counter())
            kind["sequences"] += 1
            kind["tokens"] += len(sequence.tokens)
            kind["written"] += sequence.written if sequence.label_ids is not None else 0
    return counts
