"""Writing a trained draft as a transformers checkpoint and as a GGUF for llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specview.training.saving import save_drafter
from specview.training.small_draft import SmallDraft

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_checkpoint(draft: SmallDraft, folder: Path) -> None:
    """Write config.json and model.safetensors (float16), as LlamaForCausalLM reads them. Raises OSError."""
    config = {**draft.config, "architectures": ["LlamaForCausalLM"], "dtype": "float16"}
    weights = {k: v.detach().to(torch.float16).contiguous() for k, v in draft.state_dict().items()}
    save_drafter(weights, config, folder, "draft")


def interleave_rope(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key projection [heads * dim, hidden] for llama.cpp.

    A checkpoint pairs dimension i of a head with i + dim / 2 when it rotates them; llama.cpp's `llama`
    architecture pairs neighbours (convert_hf_to_gguf.py, LlamaModel.permute).
    """
    halves = weight.view(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def gguf_tensors(draft: SmallDraft) -> dict[str, Tensor]:
    """The draft's weights under llama.cpp's names, in float32. The tied output is left out."""
    shape, tensors = draft.shape, {}
    for name, tensor in draft.state_dict().items():
        parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        if parts[0] == "embed_tokens":
            tensors["token_embd.weight"] = tensor
        elif parts[0] == "norm":
            tensors["output_norm.weight"] = tensor
        else:
            _, index, inner = parts
            if inner == "self_attn.q_proj":
                tensor = interleave_rope(tensor, shape.heads)
            elif inner == "self_attn.k_proj":
                tensor = interleave_rope(tensor, shape.kv_heads)
            tensors[f"blk.{index}.{_LAYER_NAMES[inner]}.weight"] = tensor
    return {name: tensor.detach().float() for name, tensor in tensors.items()}


def save_gguf(draft: SmallDraft, file: Path, tokenizer_from: Path, name: str, quantized: bool) -> None:
    """Write a GGUF with the vocabulary and chat template of another.

    tokenizer_from is a GGUF whose `tokenizer.*` entries are copied. Matrices are Q8_0 when quantized,
    else F16; norms are F32. Raises ValueError when the vocabulary sizes differ.
    """
    import gguf

    shape = draft.shape
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_block_count(shape.layers)
    writer.add_context_length(draft.longest)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.width)
    writer.add_value_length(shape.width)
    writer.add_rope_dimension_count(shape.width)
    writer.add_rope_freq_base(draft.config["rope_theta"])
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantized else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _copy_tokenizer(gguf.GGUFReader(tokenizer_from), writer, shape.vocab)
    matrix_type = gguf.GGMLQuantizationType.Q8_0 if quantized else gguf.GGMLQuantizationType.F16
    for tensor_name, tensor in gguf_tensors(draft).items():
        array = np.ascontiguousarray(tensor.numpy())
        kind = matrix_type if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor_name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load_gguf_weights(draft: SmallDraft, file: Path) -> SmallDraft:
    """A copy of `draft` with the weights that a GGUF written by `save_gguf` really holds."""
    import gguf

    copy = SmallDraft(draft.config)
    names = {gguf_name: name for name, gguf_name in _names(draft).items()}
    weights = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(np.array(values, dtype=np.float32))
        for suffix, heads in (("attn_q.weight", draft.shape.heads), ("attn_k.weight", draft.shape.kv_heads)):
            if tensor.name.endswith(suffix):
                pairs = weight.view(heads, -1, 2, weight.shape[1])
                weight = pairs.transpose(1, 2).reshape(weight.shape)
        weights[names[tensor.name]] = weight
    copy.load_state_dict(weights)
    return copy


def _names(draft: SmallDraft) -> dict[str, str]:
    return dict(zip(draft.state_dict(), gguf_tensors(draft), strict=True))


def _copy_tokenizer(reader: Any, writer: Any, vocab_size: int) -> None:
    count = len(reader.fields["tokenizer.ggml.tokens"].contents())
    if count != vocab_size:
        raise ValueError(f"the draft has {vocab_size} ids, the tokenizer's GGUF {count}")
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
