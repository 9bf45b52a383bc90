"""The small stand-alone draft: what is special in labelling, training and saving it (job.py runs the stages)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specview.errors import SpecviewError, Stopped
from specview.models.cache import clear_write_errors
from specview.training import texts
from specview.training.corpus import default_roots, read_corpus
from specview.training.evaluate import acceptance, copying
from specview.training.export import load_gguf_weights, save_checkpoint, save_gguf
from specview.training.plain import plain_sequences, tokenized
from specview.training.saving import TOKENIZER_FILES, target_name
from specview.training.shards import LABELS_PER_TOKEN, ONE_SHARD, Labelled, ShardWriter, top_labels
from specview.training.small_draft import SmallDraft, project_embedding
from specview.training.state import TrainState
from specview.training.teacher import TargetFiles, open_teacher
from specview.training.train import Settings, Trainer

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
FROM_TARGET = ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
PLAIN_TOKENS = 900_000
# Q8_0 is taken when alpha at k = 2 falls by no more than this against F16.
EQUAL_ALPHA = 0.003


def label_for_draft(job: TrainState) -> None:
    """Give every text the target's likeliest next tokens, unless its writer did, and add plain sequences.

    Raises Stopped when asked to.
    """
    folder = _shards(job.work)
    if folder != job.work / "texts":
        _label(job, folder)
    if not any(folder.glob("plain-*.safetensors")):
        write_plain(job, folder)


def _shards(work: Path) -> Path:
    """Where the labelled texts are: with the texts, where the writer labels them as it writes."""
    first = next(texts.texts_of(work / "texts"))
    return work / "texts" if first.label_ids is not None else work / "shards"


def _label(job: TrainState, folder: Path) -> None:
    found = list(texts.texts_of(job.work / "texts"))
    done = sum(1 for _ in texts.texts_of(folder))
    writer = ShardWriter(folder, "labelled")
    with open_teacher(job.target, should_stop=job.stop) as teacher, torch.inference_mode():
        for number, text in enumerate(found[done:], done + 1):
            if job.stop():
                writer.flush()
                raise Stopped
            last = teacher.features(text.tokens.tolist(), ())[1]
            parts = [top_labels(teacher.logits(last[at : at + 64])) for at in range(0, len(last), 64)]
            ids, logp = (torch.cat(side) for side in zip(*parts, strict=True))
            writer.add(Labelled(text.tokens, ids, logp, text.kind, text.written))
            if number % 8 == 0:
                job.tell(number / len(found), f"The target labels: {number} of {len(found)} texts")
    writer.flush()


def write_plain(job: TrainState, folder: Path) -> None:
    """Write sequences without labels from real text and from the target's answers, alternately."""
    answers = [
        text.tokens[-text.written :].tolist() for text in texts.texts_of(job.work / "texts") if text.written
    ]
    labelled = sum(len(text.tokens) for text in texts.texts_of(job.work / "texts"))
    corpus = read_corpus(default_roots(), texts.CORPUS_FILES, job.settings.seed, job.stop)
    both = (
        text
        for real, own in zip(
            tokenized(corpus, job.tokenizer, job.settings.seed), cycle(answers or [[]]), strict=False
        )
        for text in (real, own)
    )
    writer = ShardWriter(folder, "plain", ONE_SHARD)
    most = min(PLAIN_TOKENS, 2 * labelled)  # training takes no more than the labelled text's length of it
    for sequence in plain_sequences(both, job.layout, most, job.settings.seed):
        if job.stop():
            raise Stopped
        writer.add(sequence)
    writer.flush()


def start_draft(target: TargetFiles, embedding: Tensor, start: Path | None, seed: int) -> SmallDraft:
    """The draft before training: a checkpoint's weights, or random ones with the target's embedding.

    embedding is the target's [vocab, hidden]. Raises SpecviewError for a checkpoint of another shape.
    """
    config = {**SHAPE, "vocab_size": target.vocab, "max_position_embeddings": 2048}
    config |= {key: target.text_config[key] for key in FROM_TARGET if key in target.text_config}
    if target.hidden < config["hidden_size"]:
        # transformers wants a multiple of the number of heads.
        hidden = max(1, target.hidden // config["num_attention_heads"]) * config["num_attention_heads"]
        config |= {"hidden_size": hidden, "intermediate_size": 8 * hidden // 3}
    torch.manual_seed(seed)
    draft = SmallDraft(config)
    if start is None:
        with torch.no_grad():
            draft.embedding.copy_(project_embedding(embedding, draft.shape.hidden))
        return draft
    try:
        begun = SmallDraft.load(start)
        if begun.shape != draft.shape:
            raise ValueError("other sizes, norms or rotary positions")
        draft.load_state_dict(begun.state_dict())
    except (OSError, RuntimeError, ValueError, KeyError):
        raise SpecviewError(
            f"{start} is no draft of the shape that is trained here.", "Name another start."
        ) from None
    return draft


class DraftRun:
    """Training, measuring and saving of the small draft."""

    def __init__(self, job: TrainState) -> None:
        self._job = job
        s = job.settings
        self._settings = Settings(steps=s.steps, minutes=job.train_minutes(), seed=s.seed, skip=job.skip())
        with open_teacher(job.target, exact=True, should_stop=job.stop) as teacher:
            self._embedding = teacher.embedding().clone()
        self._shards = _shards(job.work)
        self.trainer = Trainer(self._first(), self._shards, job.work / "state.safetensors", self._settings)
        if not self.trainer.epoch_batches():
            raise SpecviewError("there is too little text to train on.", "Give more minutes, or more text.")

    def train(self) -> bool:
        """Train to the end; False where it was stopped."""
        watched = self._job.answers[self._job.sets[0]]
        return self._job.watch(self.trainer, lambda: acceptance(self.trainer.averaged(), watched))

    def export(self, out: Path) -> None:
        """Measure the averaged weights as they are stored, and fill the folder `out`."""
        job = self._job
        answers = job.answers
        draft = self.trainer.averaged()
        save_checkpoint(draft, out)
        stored = SmallDraft.load(out)
        measured = {name: acceptance(stored, answers[name]) for name in job.sets}
        job.tell(0.4)
        first = self._first()
        before = {name: acceptance(first, answers[name]) for name in job.sets}
        job.tell_held_out(self.trainer.progress.step, measured[job.sets[0]])
        gguf_type = ""
        alphas: Mapping[str, float] = {}
        if job.target.gguf is not None:
            gguf_type, alphas = self._save_gguf(draft, job.target.gguf, out)
        for name in TOKENIZER_FILES:  # a draft of the user's is chosen by its folder
            if (job.target.folder / name).is_file():
                shutil.copyfile(job.target.folder / name, out / name)
        job.record(measured, before, self.trainer)
        shape, last, weights = draft.shape, job.sets[-1], sum(parameter.numel() for parameter in draft.parameters())
        embedding = shape.vocab * shape.hidden
        files = ["`config.json`, `model.safetensors`: float16, loads as `transformers.LlamaForCausalLM`. The tokenizer is "
                 "the target's."]  # fmt: skip
        if gguf_type:
            kinds = ", ".join(f"{name} {alpha:.3f}" for name, alpha in sorted(alphas.items()))
            files.append(f"`draft.gguf`: {gguf_type} matrices, for llama.cpp, with the tokenizer and chat template of the "
                         f"target's GGUF. Alpha at k = 2 ({last}), by stored type: {kinds}.")  # fmt: skip
        s = self._settings
        text = job.card(
            measured, before, self.trainer, s, self._shards,
            title=f"A small draft for {target_name(job.target)}",
            about=f"""A tiny language model that drafts for the target: same tokenizer, same vocabulary ({shape.vocab:,} ids),
so every drafted id means the same to both. Llama architecture, hidden {shape.hidden}, {shape.layers} layers,
{shape.heads} query and {shape.kv_heads} key-value heads of {shape.width}, feed-forward {shape.intermediate},
tied embedding: {weights / 1e6:.1f}M parameters, of which {(weights - embedding) / 1e6:.1f}M are not the embedding. It is of no use by
itself.""",
            files=files,
            start=f"the checkpoint `{job.settings.start}`" if job.settings.start else "random weights, its embedding projected",
            objective=f"""Soft cross-entropy against the target's {LABELS_PER_TOKEN} likeliest next tokens, over
{s.frequent_ids} frequent ids, the batch's own and {s.negatives} random ones; two attention heads are also taught where to
look when text repeats (loss weight {s.guidance:g}). Real text without labels, from the installed packages, teaches
copying: a piece of text, something else, and the piece again.""",
            more=(
                ("Copying", _copying([copying(model, answers[last], job.layout, s.seed) for model in (first, stored)])),
                ("Limits", "Trained on sequences of up to 400 tokens; longer contexts run, and are accepted less."),
            ),
        )  # fmt: skip
        (out / "README.md").write_text(text, "utf-8")

    def _first(self) -> SmallDraft:
        return start_draft(
            self._job.target, self._embedding, self._job.settings.start, self._job.settings.seed
        )

    def _save_gguf(self, draft: SmallDraft, target_gguf: Path, out: Path) -> tuple[str, Mapping[str, float]]:
        """Write draft.gguf, Q8_0 where that costs no acceptance; returns its type and both types' alphas."""
        job = self._job
        kinds = {}
        with clear_write_errors(job.work, "the GGUF file"):
            for quantized, name in ((True, "Q8_0"), (False, "F16")):
                file = job.work / f"{name}.gguf"
                save_gguf(draft, file, target_gguf, "specview draft", quantized)
                kinds[name] = acceptance(load_gguf_weights(draft, file), job.answers[job.sets[-1]], (2,))
        alphas = {name: result[2]["all"].alpha or 0.0 for name, result in kinds.items()}
        chosen = "Q8_0" if alphas["Q8_0"] >= alphas["F16"] - EQUAL_ALPHA else "F16"
        shutil.move(job.work / f"{chosen}.gguf", out / "draft.gguf")
        return chosen, alphas


def _copying(found: Sequence[Mapping[str, float]]) -> str:
    """What the first weights and the result make of repeated text."""
    before, after = found
    names = {"copy": "as it stands", "shuffled-copy": "shuffled", "framed-copy": "from user turn to answer"}
    parts = [f"{names[kind]} {before[kind]:.2f} and {after[kind]:.2f}" for kind in after]
    return (
        "When a piece of a held-out answer comes a second time in the context, share of its tokens (after the first two) "
        f"that the draft gives, before and after training: {', '.join(parts) or 'too little was held out to tell'}."
    )
