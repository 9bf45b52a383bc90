"""Tiny random models in the layout of a model folder, for tests of the transformers engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VOCAB = 260


SPECIALS = ("<s>", "</s>", "<|user|>", "<|bot|>")


def save_tokenizer(folder: Path, specials: Sequence[str] = SPECIALS) -> None:
    """Write a byte-level tokenizer of 256 bytes and special tokens (ids from 256)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name) for name in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ '<|user|>' if m.role != 'assistant' else '<|bot|>' }}{{ m.content }}"
        "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
    )
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def save_model(folder: Path, model: Any) -> Path:
    """Write a transformers model and the tokenizer to `folder`."""
    model.eval()
    model.save_pretrained(str(folder))
    save_tokenizer(folder)
    return folder


def _base(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 256,
        "eos_token_id": None,
        "pad_token_id": None,
        # Large enough that the logits of a random model are not nearly equal.
        "initializer_range": 0.3,
    }
    return {**sizes, **changes}


def tiny(kind: str) -> Any:
    """Make a random model: one of KINDS, or one of special use (mamba is refused, bloom takes no trees)."""
    import torch
    import transformers as hf

    torch.manual_seed(7)
    if kind == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base()))
    if kind == "llama-deep":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base(num_hidden_layers=4, num_key_value_heads=1)))
    if kind == "llama-tied":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base(tie_word_embeddings=True, num_key_value_heads=4)))
    if kind == "llama-biased":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base(attention_bias=True, mlp_bias=True, head_dim=16)))
    if kind == "llama-padded":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base(vocab_size=VOCAB + 60)))
    if kind == "llama3-rope":
        rope = {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }  # fmt: skip
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base(rope_parameters=rope)))
    if kind == "linear-rope":
        rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base(rope_parameters=rope)))
    if kind == "llama-yarn":
        rope = {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 128,
        }
        return hf.LlamaForCausalLM(hf.LlamaConfig(**_base(rope_parameters=rope)))
    if kind == "mistral":
        return hf.MistralForCausalLM(hf.MistralConfig(**_base(sliding_window=None, head_dim=8)))
    if kind == "mistral-sliding":
        return hf.MistralForCausalLM(hf.MistralConfig(**_base(sliding_window=16, head_dim=8)))
    if kind == "qwen2":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**_base()))
    if kind == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**_base(head_dim=8)))
    if kind == "qwen3-tied":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**_base(head_dim=8, tie_word_embeddings=True)))
    if kind == "gpt2":
        sizes = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(**sizes, bos_token_id=256, eos_token_id=None, initializer_range=0.3)
        )
    if kind == "gemma2":
        return hf.Gemma2ForCausalLM(
            hf.Gemma2Config(**_base(head_dim=8, sliding_window=16, query_pre_attn_scalar=8))
        )
    if kind == "gpt-neox":
        return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_base(is_decoder=True)))
    if kind == "bloom":
        sizes = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}
        return hf.BloomForCausalLM(hf.BloomConfig(**sizes, initializer_range=0.3))
    if kind == "mamba":
        return hf.MambaForCausalLM(
            hf.MambaConfig(vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=2)
        )
    raise ValueError(kind)


OWN_FORWARD = (
    "llama", "llama-tied", "llama-biased", "llama-padded", "llama3-rope", "linear-rope", "mistral", "qwen2",
)  # fmt: skip
MODULE_FORWARD = ("llama-yarn", "mistral-sliding", "qwen3", "gpt2", "gemma2")
KINDS = (*OWN_FORWARD, *MODULE_FORWARD)
