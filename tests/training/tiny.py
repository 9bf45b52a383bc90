"""Test helper: whole tiny targets on disk (random weights, a letter tokenizer), and what training needs beside them."""

from __future__ import annotations

import email
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from specview.errors import SpecviewError
from specview.training.asked import TrainSettings
from specview.training.job import TrainJob

SPECIAL = ["<unk>", "<s>", "</s>", "<spare>"]
LETTERS = [chr(code) for code in range(32, 127)] + ["\n"]
VOCAB = 112  # a few ids more than there are tokens, as padded vocabularies have
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.35,
}
GPT_NEOX = {
    key: LLAMA[key]
    for key in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings", "bos_token_id", "eos_token_id",
    )
} | {"model_type": "gpt_neox", "initializer_range": 0.2}  # fmt: skip


def make_target(folder: Path, config: dict[str, Any] = LLAMA, seed: int = 0, chat: bool = True) -> Path:
    """Write a random target with its tokenizer."""
    torch.manual_seed(seed)
    made = AutoConfig.for_model(**config)
    AutoModelForCausalLM.from_config(made).eval().save_pretrained(folder)
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *LETTERS])}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    letters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<spare>"],
        chat_template=TEMPLATE if chat else None,
    )
    tokenizer.save_pretrained(folder)
    return folder


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few held-out prompts, little real text: whole runs in seconds."""
    from specview.training import draft, prompts, texts
    from specview.training.generate import Lane
    from specview.training.prompts import LONG_KINDS, SHORT_KINDS

    def few(name: str) -> list[prompts.Prompt]:
        return prompts.held_out(name)[:3]

    monkeypatch.setattr(texts, "held_out", few)
    monkeypatch.setattr(texts, "LANES", (Lane(8, 192, SHORT_KINDS, 0.3), Lane(2, 400, LONG_KINDS, 0.0)))
    for module in (texts, draft):
        monkeypatch.setattr(module, "default_roots", lambda: [Path(email.__file__).parent])


STEPS = 4


def settings(target: Path, out: Path, kind: str = "eagle3", **more: Any) -> TrainSettings:
    """A run of a few steps."""
    given: dict[str, Any] = {"steps": STEPS, "answer_tokens": 12, "threads": 1, "draft_vocab": 64} | more
    if kind == "draft":
        given["draft_vocab"] = None
    return TrainSettings(kind=kind, out=out, target=str(target), **given)


def run(given: TrainSettings, stop: Any = lambda: False) -> tuple[bool, list[dict[str, Any]]]:
    """Run it; whether it came to its end, and its events."""
    events: list[dict[str, Any]] = []
    return TrainJob(given).run(events.append, stop), events


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of an exported drafter."""
    return load_file(folder / "model.safetensors")


def same_weights(a: Path, b: Path) -> bool:
    """Whether two exported drafters have the same bits."""
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def refusal(given: TrainSettings) -> str:
    """The one line with which a run is refused."""
    with pytest.raises(SpecviewError) as caught:
        run(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)
