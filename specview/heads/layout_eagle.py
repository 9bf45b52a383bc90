"""The layouts of EAGLE heads: EAGLE-1 and 2 (SafeAILab), EAGLE-3 in its two layouts, and P-EAGLE.

EAGLE-3 is published with its one layer as `midlayer.` (SafeAILab/EAGLE, SpecForge, AngelSlim) or, by the
`speculators` library, as `layers.0.`, further layers after it. They differ in what their configs' layer numbers mean:
"entering" n is the hidden state before layer n, which is that after n layers; "output" of layer n (from 0) is that
after n + 1. The usual layers of a target of L are the states entering 2, L // 2 and L - 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specview.engines.transformers_llama_shape import QKV, layer_products
from specview.errors import SpecviewError
from specview.heads.layouts import HeadFacts, Tensors, part, rotary_frequencies, short

USUAL_LAYERS = 3
_AGAIN = "Download the head again."
_OTHER = "Choose another head."
_LAYER_TYPES = (None, "llama", "mistral", "qwen2", "qwen3")
"""What `transformer_layer_config` may say that its layers are: speculators knows llama and qwen3 (0.9.0,
models/eagle3/model_definitions.py), and the others' are computed alike."""
_WINDOW_NOTE = "Its layers were trained to look back over a window; here they look at the whole text."
_WIDEST = 4096  # of one attention head


def read_eagle3(tensors: Tensors) -> HeadFacts | None:
    """Read an EAGLE-3 or P-EAGLE head; None where the folder has none."""
    config = tensors.config
    tensors.ignore(_unwanted)
    tensors.rename(lambda name: name.removeprefix("model."))
    speculators = "transformer_layer_config" in config or "speculators_model_type" in config
    midlayer = any(name.startswith("midlayer.") for name in tensors.names)
    if not (midlayer or tensors.has("layers.0.hidden_norm.weight") or _says_eagle3(config)):
        return None
    tensors.rename(lambda name: f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name)
    layer_config = part(config, "transformer_layer_config") if speculators else config
    parallel = tensors.has("mask_hidden") or config.get("speculators_model_type") == "peagle"
    own = part(config, "eagle_config")
    if speculators and layer_config.get("model_type") not in _LAYER_TYPES:
        raise SpecviewError(
            f"{tensors.folder} has layers of the type {short(layer_config['model_type'])}, which is not read here.", _OTHER
        )
    sizes = _layer_sizes(tensors, layer_config)
    hidden = sizes["hidden"]
    target_hidden = tensors.number("target_hidden_size", hidden)
    layers = 1 + max((int(name.split(".")[1]) for name in tensors.names if _is_layer(name)), default=0)
    vocab = tensors.number("vocab_size", inside=layer_config)
    known = tensors.shape("t2d")
    vocab = known[0] if known else vocab
    ids = _layer_ids(tensors, own)
    fused = tensors.shape("fc.weight")
    aux = fused[1] // target_hidden if fused and len(fused) == 2 else len(ids or ()) or USUAL_LAYERS
    if ids is not None and len(ids) != aux:
        raise SpecviewError(
            f"{tensors.folder} names {len(ids)} layers of the target and has a tensor fc.weight for {aux}.",
            _AGAIN,
        )
    rows = tensors.shape("lm_head.weight")
    draft_vocab = rows[0] if rows else tensors.number("draft_vocab_size", vocab)
    wide = aux * target_hidden
    said_norm_before_fc, said_fc_norm, norm_output = (
        bool(config.get(key, own.get(key, False))) for key in ("norm_before_fc", "fc_norm", "norm_output")
    )
    norm_before_fc = said_norm_before_fc or tensors.has("input_norm.weight")
    fc_norm = said_fc_norm or tensors.has("fc_norm.0.weight")
    tensors.take("fc.weight", hidden, wide)
    if norm_before_fc:
        tensors.take("input_norm.weight", wide)
    if fc_norm:
        for index in range(aux):
            tensors.take(f"fc_norm.{index}.weight", target_hidden)
    qk_norm = tensors.has("layers.0.self_attn.q_norm.weight")
    bias = tensors.has("layers.0.self_attn.q_proj.bias")
    for index in range(layers):
        inputs = 2 * hidden if index == 0 else hidden
        _take_layer(tensors, f"layers.{index}", sizes, inputs, bias, qk_norm, bias and not qk_norm)
        tensors.take(f"layers.{index}.input_layernorm.weight", hidden)
    tensors.take("layers.0.hidden_norm.weight", hidden)
    tensors.take("norm.weight", hidden)
    tensors.take_if_there("lm_head.weight", draft_vocab, hidden)
    embedding = tensors.shape("embed_tokens.weight")
    own_embedding = tensors.take_if_there("embed_tokens.weight", None, hidden)
    if not own_embedding and hidden != target_hidden:
        tensors.take("embed_tokens.weight", vocab, hidden)
    if draft_vocab != vocab or tensors.has("d2t"):
        tensors.take("d2t", draft_vocab, integers=True)
    tensors.take_if_there("t2d", vocab, integers=True)
    mask_token = None
    if parallel:
        mask_shape = tensors.shape("mask_hidden") or ()
        tensors.take("mask_hidden", *([None] * (len(mask_shape) - 1) if mask_shape else ()), wide)
        mask_token = _mask_token(tensors)
    said = {**own, **{key: value for key, value in config.items() if value is not None}}
    residual = said.get("norm_before_residual")
    name = "speculators" if speculators else "midlayer" if midlayer else "layers"
    return tensors.facts(
        "p-eagle" if parallel else "eagle3",
        f"{'P-EAGLE' if parallel else 'EAGLE-3'}, {name} layout",
        target_hidden,
        vocab,
        draft_vocab,
        own_embedding=own_embedding,
        own_output=rows is not None,
        sizes={
            **sizes,
            "target_hidden": target_hidden,
            "vocab": max(vocab, embedding[0]) if embedding else vocab,
            "draft_vocab": draft_vocab,
            "aux": aux,
            "aux_written": _written_as(config, own, speculators),
            "layers": layers,
            "norm_before_residual": bool(residual),
            "norm_output": norm_output,
            "norm_before_fc": norm_before_fc,
            "fc_norm": fc_norm,
            "qk_norm": qk_norm,
            "attention_bias": bias,
            "own_embedding": own_embedding,
            "mask_token_id": mask_token,
        },
        unsure=("norm_before_residual",) if residual is None and speculators and not parallel else (),
        aux_ids=ids,
        notes=(_WINDOW_NOTE,) if "sliding_attention" in (layer_config.get("layer_types") or ()) else (),
    )


def _says_eagle3(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    said = " ".join(map(str, names)) if isinstance(names, list) else ""
    return config.get("speculators_model_type") in ("eagle3", "peagle") or "Eagle3" in said or "EAGLE3" in said.upper()


def _unwanted(name: str) -> bool:
    """Tensors that are computed, or copies of the target's."""
    return name.endswith("rotary_emb.inv_freq") or name.startswith("verifier_")


def _is_layer(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "layers" and len(parts) > 2 and parts[1].isdigit()


def _layer_sizes(tensors: Tensors, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the layer that all EAGLE heads have, by the names of a module's shape."""
    hidden = tensors.number("hidden_size", inside=config)
    heads = tensors.number("num_attention_heads", inside=config)
    kv_heads = tensors.number("num_key_value_heads", heads, inside=config)
    if not heads or not kv_heads or heads % kv_heads:
        raise SpecviewError(
            f"the config.json of {tensors.folder} has {heads} heads for {kv_heads} key-value heads.", _AGAIN
        )
    if config.get("hidden_act") not in (None, "silu", "swish"):
        name = str(config["hidden_act"])[:60]
        raise SpecviewError(f"{tensors.folder} has the activation {name}, which is not read here.", _OTHER)
    width = tensors.number("head_dim", hidden // heads, inside=config)
    if width % 2 or not 0 < width <= _WIDEST:
        raise SpecviewError(f"the config.json of {tensors.folder} has attention heads {width} wide.", _AGAIN)
    return {
        "hidden": hidden,
        "intermediate": tensors.number("intermediate_size", inside=config),
        "heads": heads,
        "kv_heads": kv_heads,
        "width": width,
        "eps": tensors.real("rms_norm_eps", 1e-6, config),
        "frequencies": rotary_frequencies(config, width, tensors.folder),
    }


def _take_layer(
    tensors: Tensors,
    prefix: str,
    sizes: Mapping[str, Any],
    inputs: int,
    bias: bool,
    qk_norm: bool = False,
    output_bias: bool = False,
) -> None:
    """Take a decoder layer's attention, MLP and second norm."""
    hidden, width = sizes["hidden"], sizes["width"]
    products = layer_products(hidden, sizes["intermediate"], sizes["heads"], sizes["kv_heads"], width, inputs)
    for name, size in products.items():
        tensors.take(f"{prefix}.{name}.weight", *size)
        if bias and name in QKV:
            tensors.take(f"{prefix}.{name}.bias", size[0])
    if output_bias:
        tensors.take_if_there(f"{prefix}.self_attn.o_proj.bias", hidden)
    if qk_norm:
        tensors.take(f"{prefix}.self_attn.q_norm.weight", width)
        tensors.take(f"{prefix}.self_attn.k_norm.weight", width)
    tensors.take(f"{prefix}.post_attention_layernorm.weight", hidden)


def _layer_ids(tensors: Tensors, own: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The layer numbers that the config names, as they stand there."""
    key = "eagle_aux_hidden_state_layer_ids"
    given = own.get(key) or tensors.config.get(key) or tensors.config.get("aux_hidden_state_layer_ids")
    if not given:
        return None
    if not isinstance(given, list) or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in given):
        raise SpecviewError(f"the config.json of {tensors.folder} has {short(given)} as {key}.", _AGAIN)
    return tuple(given)


def _written_as(config: Mapping[str, Any], own: Mapping[str, Any], speculators: bool) -> str:
    """What the layer numbers of this layout mean: "entering", "output", or "" where programs disagree.

    `speculators` writes states entering; SpecForge and AngelSlim write outputs, inside eagle_config, where SGLang reads
    them so. At the top of a config beside `midlayer.` they may be vLLM's, entering, or outputs.
    """
    if speculators:
        return "entering"
    return "output" if own.get("eagle_aux_hidden_state_layer_ids") else ""


def _mask_token(tensors: Tensors) -> int:
    """The token that stands in for those not drafted yet; names and order as vLLM looks them up."""
    config = tensors.config
    for place, key in (
        (part(config, "dflash_config"), "mask_token_id"),
        (config, "mask_token_id"),
        (config, "dspark_noise_token_id"),
        (config, "pard_token"),
        (config, "ptd_token_id"),
    ):
        value = place.get(key)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise SpecviewError(
        f"the config.json of {tensors.folder} names no mask token (mask_token_id, pard_token or ptd_token_id).",
        "Write the token that it was trained with there, as mask_token_id, or choose another head.",
    )


def read_eagle(tensors: Tensors) -> HeadFacts | None:
    """Read an EAGLE-1 or EAGLE-2 head (they are the same); None where the folder has none."""
    config = tensors.config
    tensors.ignore(_unwanted)
    tensors.rename(lambda name: name.removeprefix("model."))
    fused = tensors.shape("fc.weight")
    if fused is None or not tensors.has("layers.0.self_attn.q_proj.weight"):
        return None
    sizes = _layer_sizes(tensors, config)
    hidden = sizes["hidden"]
    layers = 1 + max(int(name.split(".")[1]) for name in tensors.names if _is_layer(name))
    vocab = tensors.number("vocab_size")
    tensors.take("fc.weight", hidden, 2 * hidden)
    bias = tensors.take_if_there("fc.bias", hidden)
    qkv_bias = tensors.has("layers.0.self_attn.q_proj.bias")
    for index in range(layers):
        _take_layer(tensors, f"layers.{index}", sizes, hidden, qkv_bias)
        if index:
            tensors.take(f"layers.{index}.input_layernorm.weight", hidden)
    own_embedding = tensors.take_if_there("embed_tokens.weight", vocab, hidden)
    tensors.ignore(lambda name: name == "lm_head.weight")  # a copy of the target's, where a trainer kept it
    more = {"vocab": vocab, "layers": layers, "fc_bias": bias, "attention_bias": qkv_bias, "own_embedding": own_embedding}
    return tensors.facts(
        "eagle", "EAGLE-1/2, SafeAILab layout", hidden, vocab, own_embedding=own_embedding, sizes={**sizes, **more}
    )
