"""What a head begins its training with: its draft vocabulary and its first weights.

An EAGLE-3 or P-EAGLE head starts from the target's own last layer where that is Llama-like: the fused features are the
newest of them, a little of everything else is mixed in, and attention and MLP add a tenth of what the last layer
would. Medusa's blocks start at zero, so that every head first says what the target would say next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from specview.engines.transformers_weights import read_headers
from specview.errors import SpecviewError
from specview.heads.eagle import Eagle3Head, Eagle3Shape
from specview.heads.files import load_tensors
from specview.heads.fit import usual_layers
from specview.heads.layouts import KIND_WORDS, HeadFacts, rotary_frequencies
from specview.heads.medusa import MedusaHeads, MedusaShape
from specview.heads.read import read_head
from specview.training.shards import Labelled
from specview.training.teacher import TargetFiles

MEDUSA_HEADS = 4
ROWS_PER_WIDTH = 9  # rows of the output matrix for each number of a hidden state: a good third of the file
_ROUND = 512
_WRITTEN, _READ = 1.0, 0.3  # what a token counts in choosing the draft vocabulary
_ADDED = 0.1  # share of the last layer's output products


@dataclass(frozen=True)
class Vocabulary:
    """The target's ids that a head drafts, rising, and P-EAGLE's mask token."""

    ids: Tensor
    mask_token_id: int


def default_layers(target: TargetFiles) -> tuple[int, ...]:
    """The hidden states that a head reads, after so many layers; raises SpecviewError where there are too few."""
    layers = usual_layers(target.layers)
    if not 0 < layers[0] < layers[1] < layers[2]:
        raise SpecviewError(
            f"{target.name} has {target.layers} layers, and EAGLE-3 reads three different ones (from 7 layers on).",
            "Train medusa or draft for it, or name them: --layers 1,2,3.",
        )
    return layers


def check_layers(layers: Sequence[int], target: TargetFiles) -> tuple[int, ...]:
    """Layers that the user named; raises SpecviewError where the target has them not."""
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] > target.layers:
        named = ", ".join(map(str, layers)) or "none"
        raise SpecviewError(
            f"layers are {named}, and {target.name} has {target.layers}.",
            f"Name rising ones, up to {target.layers}, such as {','.join(map(str, usual_layers(max(target.layers, 7))))}.",
            usage=True,
        )
    return tuple(layers)


def default_rows(hidden: int, vocab: int) -> int:
    """How many tokens a head drafts where nobody says: a multiple of 512, or the whole vocabulary."""
    return min(vocab, max(_ROUND, ROWS_PER_WIDTH * hidden // _ROUND * _ROUND))


def choose_vocabulary(texts: Iterable[Labelled], rows: int, vocab: int, special: Sequence[int]) -> Vocabulary:
    """The most frequent ids of the training texts, and a special id that is in none of them.

    What the target wrote counts most. Where no special id is free, the mask token is the rarest of all ids.
    """
    counts = torch.zeros(vocab, dtype=torch.float64)
    for text in texts:
        ids = torch.bincount(text.tokens, minlength=vocab)[:vocab]
        own = torch.bincount(text.tokens[len(text.tokens) - text.written :], minlength=vocab)[:vocab]
        counts += _READ * ids + (_WRITTEN - _READ) * own
    order = counts.argsort(descending=True, stable=True)
    free = [token for token in special if token < vocab and not counts[token]]
    return Vocabulary(order[:rows].sort().values, free[0] if free else int(order[-1]))


def eagle3_shape(
    target: TargetFiles, layers: tuple[int, ...], rows: int, mask_token_id: int | None = None
) -> Eagle3Shape:
    """The shape of a head for a target: that of the target's own layers, where they are Llama-like."""
    config = target.text_config
    hidden = target.hidden
    if target.llama_like:
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        width = int(config.get("head_dim") or hidden // heads)
        intermediate = int(config["intermediate_size"])
        turns = rotary_frequencies(config, width, target.folder)
        eps = float(config["rms_norm_eps"])
    else:
        width = 64 if hidden % 64 == 0 else hidden // 2 if hidden % 4 == 0 else hidden
        heads = kv_heads = max(1, hidden // width)
        intermediate = (8 * hidden // 3 + 63) // 64 * 64
        turns, eps = rotary_frequencies({}, width, target.folder), 1e-5
    return Eagle3Shape(
        hidden=hidden,
        target_hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        vocab=target.vocab,
        draft_vocab=rows,
        eps=eps,
        frequencies=turns,
        aux_layers=layers,
        fc_norm=True,  # the stored features have no scale
        mask_token_id=mask_token_id,
    )


def start_eagle3(
    shape: Eagle3Shape, target: TargetFiles, output: Tensor, ids: Tensor, mean: Tensor | None, seed: int
) -> Eagle3Head:
    """A head before training.

    output [rows, hidden] are the target's output rows of `ids`; mean [aux * hidden] is that of the features, for
    P-EAGLE.
    """
    torch.manual_seed(seed)
    head = Eagle3Head(shape)
    hidden = shape.hidden
    with torch.no_grad():
        if shape.draft_vocab != shape.vocab:
            head.set_target_ids(ids)
        head.lm_head.weight.copy_(output)
        head.fc.weight.mul_(0.2)
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        if mean is not None:
            head.mask_hidden.copy_(mean.view(1, 1, -1))
        layer = head.layers[0]
        own = _last_layer(target) if target.llama_like else {}
        if not own:
            layer.self_attn.o_proj.weight.mul_(_ADDED)
            layer.mlp.down_proj.weight.mul_(_ADDED)
            return head
        head.norm.weight.copy_(own["norm"])
        layer.hidden_norm.weight.copy_(own["input_layernorm"])
        layer.post_attention_layernorm.weight.copy_(own["post_attention_layernorm"])
        for name in "qkv":
            weight = getattr(layer.self_attn, f"{name}_proj").weight
            weight.mul_(0.5)
            if (
                name == "v"
                or not target.config.get("attention_bias")
                and target.config["model_type"] != "qwen2"
            ):
                weight[:, hidden:] += own[f"self_attn.{name}_proj"]
        layer.self_attn.o_proj.weight.copy_(_ADDED * own["self_attn.o_proj"])
        for name in ("gate", "up"):
            getattr(layer.mlp, f"{name}_proj").weight.copy_(own[f"mlp.{name}_proj"])
        layer.mlp.down_proj.weight.copy_(_ADDED * own["mlp.down_proj"])
    return head


def _last_layer(target: TargetFiles) -> dict[str, Tensor]:
    """The target's last layer and its final norm, by names without their beginning, float32."""
    stored = read_headers(target.folder)
    prefix = f"model.layers.{target.layers - 1}."
    wanted = {
        name: name.removeprefix(prefix).removesuffix(".weight") for name in stored if name.startswith(prefix)
    }
    wanted["model.norm.weight"] = "norm"
    found = {}
    for name, short in wanted.items():
        with safe_open(stored[name].file, "pt") as file:
            found[short] = file.get_tensor(name).float()
    return found


def start_medusa(
    hidden: int, vocab: int, output: Tensor, ids: Tensor, heads: int = MEDUSA_HEADS
) -> MedusaHeads:
    """Medusa heads before training, over one output matrix of the target's rows of `ids`."""
    rows = len(ids)
    module = MedusaHeads(
        MedusaShape(hidden, vocab, heads, draft_vocab=rows if rows != vocab else 0, output="shared")
    )
    with torch.no_grad():
        for blocks in module.blocks:
            for layer in blocks.layers:
                layer.weight.zero_()
                layer.bias.zero_()
        module.lm_head.weight.copy_(output)
        if module.target_ids is not None:
            module.token_map.copy_(ids)
    return module


def read_start(folder: Path, kind: str, target: TargetFiles) -> HeadFacts:
    """What a folder to start from holds; raises SpecviewError where it is another kind's or target's.

    A P-EAGLE head may start from an EAGLE-3 one.
    """
    facts = read_head(folder)
    if facts.kind != kind and (kind, facts.kind) != ("p-eagle", "eagle3"):
        raise SpecviewError(
            f"{folder} holds {KIND_WORDS[facts.kind]}, and {KIND_WORDS[kind]} is to be trained.",
            "Name another start.",
        )
    if facts.hidden_size != target.hidden or facts.vocab_size != target.vocab:
        raise SpecviewError(
            f"{folder} was trained for another target than {target.name}.", "Name another start."
        )
    return facts


def start_layers(facts: HeadFacts, target: TargetFiles) -> tuple[int, ...]:
    """The layers that a head to start from reads (its numbers mean the states entering, as written here)."""
    return check_layers(facts.aux_ids or default_layers(target), target)


def shape_of_start(
    facts: HeadFacts, layers: tuple[int, ...], rows: int, mask_token_id: int | None
) -> Eagle3Shape:
    """The shape of a head that goes on from another one, with another draft vocabulary."""
    if not facts.sizes["fc_norm"]:
        raise SpecviewError(
            f"{facts.folder} reads features without a norm on each, which is not trained here.",
            "Name another start.",
        )
    sizes = {
        key: value for key, value in facts.sizes.items() if key not in ("aux", "aux_written", "own_embedding")
    }
    return Eagle3Shape(**{**sizes, "draft_vocab": rows, "mask_token_id": mask_token_id, "aux_layers": layers})


def copy_start(module: torch.nn.Module, facts: HeadFacts) -> None:
    """Put a start's weights into a module of the same shape.

    Output rows are copied for those ids that the start drafted too; the others stay as they are.
    """
    stored = dict(facts.tensors.values())
    loaded = load_tensors(stored, stored)
    given = {key: loaded[name] for key, (name, _) in facts.tensors.items() if key != "embed_tokens.weight"}
    own = module.state_dict()
    output = given.pop("lm_head.weight", None)
    offsets, mapped = given.pop("d2t", None), given.pop("token_map", None)
    given.pop("t2d", None)
    unfit = sorted(
        name for name, tensor in given.items() if name not in own or tensor.numel() != own[name].numel()
    )
    if unfit:
        raise SpecviewError(
            f"{facts.folder} is of another shape than is trained here ({unfit[0]}).", "Name another start."
        )
    module.load_state_dict(
        {name: tensor.float().view_as(own[name]) for name, tensor in given.items()}, strict=False
    )
    if output is None:
        return
    before = torch.arange(len(output)) if mapped is None else mapped.long()
    if offsets is not None:
        before = before + offsets.long()
    ids: Any = getattr(module, "target_ids", None)
    now = torch.arange(len(own["lm_head.weight"])) if ids is None else ids
    place = {int(token): row for row, token in enumerate(before)}
    pairs = [(row, place[int(token)]) for row, token in enumerate(now) if int(token) in place]
    with torch.no_grad():
        weight = module.get_parameter("lm_head.weight")
        weight[[new for new, _ in pairs]] = output.float()[[old for _, old in pairs]]
