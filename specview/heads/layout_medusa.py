"""The layouts of heads that read the target's last hidden state alone: Medusa's and the MLP speculator's.

Medusa's own files (FasterDecoding/Medusa; TGI reads the same names) have `{i}.{j}.linear.weight` and `{i}.{layers}.weight`;
their configs are known to count heads wrongly, so tensors are counted. vLLM's have `blocks.{i}.layers.{j}.weight`.
"""

from __future__ import annotations

import re

from specview.errors import SpecviewError
from specview.heads.layouts import HeadFacts, Tensors, part, short, trained_for

_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.weight")
_OWN_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_OWN_OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")
_MOST_STEPS = 64
_GATES = ("forget", "input", "output", "cell")


def _medusa_name(name: str) -> str:
    """A tensor's name in vLLM's layout, by its name in either."""
    name = name.removeprefix("medusa_heads.").removeprefix("medusa_head.")
    if found := _OWN_BLOCK.fullmatch(name):
        return f"blocks.{found[1]}.layers.{found[2]}.{found[3]}"
    if found := _OWN_OUTPUT.fullmatch(name):
        return f"lm_heads.{found[1]}.weight"
    return name


def read_medusa(tensors: Tensors) -> HeadFacts | None:
    """Read Medusa heads; None where the folder has none."""
    config = tensors.config
    vllm = any(name.startswith("blocks.") for name in tensors.names)
    claims = "medusa_num_heads" in config or config.get("model_type") == "medusa"
    tensors.rename(_medusa_name)
    found = [_BLOCK.fullmatch(name) for name in tensors.names]
    blocks = {(int(match[1]), int(match[2])) for match in found if match is not None}
    if not blocks:
        if claims:
            raise SpecviewError(f"{tensors.folder} lacks tensors of Medusa heads: 0.0.linear.weight.", "Download it again.")
        return None
    heads, layers = 1 + max(head for head, _ in blocks), 1 + max(layer for _, layer in blocks)
    first = tensors.shape("blocks.0.layers.0.weight") or (0,)
    hidden = tensors.number("hidden_size", first[-1]) or first[-1]
    bias = tensors.has("blocks.0.layers.0.bias")
    for head in range(heads):
        for layer in range(layers):
            tensors.take(f"blocks.{head}.layers.{layer}.weight", hidden, hidden)
            if bias:
                tensors.take(f"blocks.{head}.layers.{layer}.bias", hidden)
    output, rows = "target", 0
    if shape := tensors.shape("lm_heads.0.weight") or tensors.shape("lm_head.weight"):
        rows = shape[0]
        output = "own"
        if config.get("original_lm_head") or tensors.has("lm_head.weight"):
            output = "shared"
            name = "lm_head.weight" if tensors.has("lm_head.weight") else "lm_heads.0.weight"
            tensors.take(name, rows, hidden, as_="lm_head.weight")
            tensors.ignore(lambda name: name.startswith("lm_heads."))  # copies of it
        else:
            for head in range(heads):
                tensors.take(f"lm_heads.{head}.weight", rows, hidden)
    mapped = tensors.take_if_there("token_map", rows, integers=True)
    vocab = tensors.number("vocab_size", 0 if mapped else rows)
    if rows and not mapped and vocab and vocab != rows:
        raise SpecviewError(
            f"{tensors.folder} has outputs for {rows} tokens, a vocabulary of {vocab} and no token_map.",
            "Download the heads again.",
        )
    said = config.get("medusa_num_heads", config.get("num_heads"))
    notes = () if said in (None, heads) else (f"Its config says {short(said)} heads, its weights hold {heads}.",)
    own = "Medusa, its own layout" + (", version 2" if output == "target" else "")
    return tensors.facts(
        "medusa",
        "Medusa, vLLM layout" if vllm else own,
        hidden,
        vocab,
        rows,
        most_tokens=heads,
        own_output=output != "target",
        sizes={
            "hidden": hidden,
            "vocab": vocab,
            "heads": heads,
            "layers": layers,
            "draft_vocab": rows if mapped else 0,
            "output": output,
            "bias": bias,
        },
        notes=notes,
    )


def read_mlp_speculator(tensors: Tensors) -> HeadFacts | None:
    """Read an MLP speculator (IBM) or an LSTM one (Arctic); None where the folder has none."""
    config = tensors.config
    lstm = config.get("method") == "sum_lstm"
    names = config.get("architectures")
    claims = config.get("model_type") == "mlp_speculator" or lstm or "MLPSpeculator" in str(names)
    tensors.rename(lambda name: name.removeprefix("speculator."))
    if not (claims or tensors.has("ln.0.weight") or tensors.has("forget_emb.0.weight")):
        return None
    lstm = lstm or tensors.has("forget_emb.0.weight")
    vocab, predicts = tensors.number("vocab_size"), tensors.number("n_predict")
    hidden = tensors.number("input_hidden_dim" if lstm else "emb_dim")
    inner = tensors.number("inner_dim", 0) or hidden
    tied = lstm or bool(config.get("tie_weights"))
    if not 1 <= predicts <= _MOST_STEPS or hidden < 1:
        raise SpecviewError(f"the config.json of {tensors.folder} has n_predict {predicts}.", "Download the head again.")
    if lstm:
        _take_lstm(tensors, hidden, inner, vocab, predicts)
    else:
        _take_steps(tensors, hidden, inner, vocab, predicts, tied)
    return tensors.facts(
        "mlp-speculator",
        "LSTM speculator, Arctic layout" if lstm else f"MLP speculator, IBM layout{', tied' if tied else ''}",
        hidden,
        vocab,
        words="an LSTM speculator" if lstm else "an MLP speculator",
        target_name=trained_for(config) or trained_for(part(config, "base_model")),
        most_tokens=predicts,
        own_embedding=True,
        own_output=True,
        sizes={
            "hidden": hidden,
            "inner": inner,
            "predicts": predicts,
            "vocab": vocab,
            "tie_weights": tied,
            "scale_input": bool(config.get("scale_input")),
            "lstm": lstm,
        },
    )


def _take_steps(tensors: Tensors, hidden: int, inner: int, vocab: int, predicts: int, tied: bool) -> None:
    for step in range(predicts):
        shapes: dict[str, tuple[int, ...]] = {
            f"emb.{step}.weight": (vocab, inner),
            f"proj.{step}.weight": (inner, inner if step else hidden),
            f"head.{step}.weight": (vocab, inner),
            f"ln.{step}.weight": (inner,),
            f"ln.{step}.bias": (inner,),
        }
        for name, shape in shapes.items():
            if tied and step > name.startswith("proj."):
                tensors.take_if_there(name, *shape)
            else:
                tensors.take(name, *shape)


def _take_lstm(tensors: Tensors, hidden: int, inner: int, vocab: int, predicts: int) -> None:
    for gate in _GATES:
        tensors.take(f"{gate}_emb.0.weight", vocab, inner)
        tensors.take(f"{gate}_proj.0.weight", inner, hidden)
        if predicts > 1:
            tensors.take(f"{gate}_proj.1.weight", inner, inner)
    for name in ("cell_ln.0", "state_ln.0"):
        tensors.take(f"{name}.weight", inner)
        tensors.take(f"{name}.bias", inner)
    tensors.take("head.0.weight", vocab, inner)
    for step in range(1, predicts):
        tensors.take_if_there(f"head.{step}.weight", vocab, inner)
