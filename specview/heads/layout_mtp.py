"""The layouts of next-token-prediction modules inside a target's own checkpoint.

DeepSeek-V3 and GLM-4.5 number them after the target's layers (`model.layers.{L + k}`), Qwen3-Next and Qwen3.5 name them
`mtp.`, MiMo `model.mtp_layers.`. The target's other tensors are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from specview.heads.layouts import HeadFacts, Tensors

_WORDS = {"deepseek": "DeepSeek layout", "qwen": "Qwen layout", "mimo": "MiMo layout"}
_COPIES = ("shared_head.head.weight", "embed_tokens.weight")  # of the target's own output and embedding


def read_mtp(tensors: Tensors) -> HeadFacts | None:
    """Read the modules in a target's folder; None where it has none."""
    text = tensors.config.get("text_config")
    decoder: Mapping[str, Any] = text if isinstance(text, Mapping) else tensors.config
    layers = decoder.get("num_hidden_layers")
    if type(layers) is not int:
        return None
    found = _modules(tensors.names, layers)
    if found is None:
        return None
    layout, modules = found
    hidden = tensors.number("hidden_size", inside=decoder)
    vocab = tensors.number("vocab_size", inside=decoder)
    tensors.ignore(lambda name: not is_of_modules(name, layout, layers))
    for name in tensors.names:
        tensors.take(name, *[None] * len(tensors.shape(name) or ()))
    taken = tensors.finish("next-token-prediction modules")
    return HeadFacts(
        "mtp",
        f"MTP in the target's checkpoint, {_WORDS[layout]}",
        tensors.folder,
        hidden,
        vocab,
        vocab,
        target_layers=layers,
        target_name=str(tensors.config.get("_name_or_path") or tensors.folder.resolve().name)[:200],
        most_tokens=modules,
        config=tensors.config,
        parameters=sum(stored.numel for _, stored in taken.values()),
        sizes={
            "hidden": hidden,
            "modules": modules,
            "target_layers": layers,
            "layout": layout,
            "eps": tensors.real("rms_norm_eps", 1e-6, decoder),
            "config": tensors.config,
        },
        tensors=taken,
    )


def _modules(names: Iterable[str], layers: int) -> tuple[str, int] | None:
    """Which layout a checkpoint's tensors have, and how many modules; None where there are none."""
    found: dict[str, set[int]] = {"deepseek": set(), "qwen": set(), "mimo": set()}
    for name in names:
        if match := re.match(r"(?:.*\.)?mtp\.layers\.(\d+)\.self_attn\.", name):
            found["qwen"].add(int(match[1]))
        elif match := re.match(r"model\.mtp_layers\.(\d+)\.", name):
            found["mimo"].add(int(match[1]))
        elif match := re.match(r"model\.layers\.(\d+)\.eh_proj\.", name):
            found["deepseek"].add(int(match[1]) - layers)
    for layout, modules in found.items():
        if modules and modules == set(range(len(modules))):
            return layout, len(modules)
    return None


def is_of_modules(name: str, layout: str, layers: int) -> bool:
    """Whether a tensor of the target's checkpoint is one of its modules'."""
    if name.endswith(_COPIES):
        return False
    if layout == "qwen":
        return re.match(r"(?:.*\.)?mtp\.", name) is not None
    if layout == "mimo":
        return name.startswith("model.mtp_layers.")
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return match is not None and int(match[1]) >= layers
