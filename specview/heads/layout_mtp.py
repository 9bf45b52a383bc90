"""The layouts of next-token-prediction modules inside a target's own checkpoint.

DeepSeek-V3 and GLM-4.5 number them after the target's layers (`model.layers.{L + k}`), Qwen3-Next and Qwen3.5 name them
`mtp.`, MiMo `model.mtp_layers.`. The target's other tensors are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from specview.engines.transformers_config import decoder_part
from specview.heads.layouts import HeadFacts, Tensors

_WORDS = {"deepseek": "DeepSeek layout", "qwen": "Qwen layout", "mimo": "MiMo layout"}
_COPIES = ("shared_head.head.weight", "embed_tokens.weight")  # of the target's own output and embedding
_MODULE = {
    "deepseek": re.compile(r"model\.layers\.(\d+)\.(.*)"),
    "qwen": re.compile(r"(?:.*\.)?mtp\.(?:layers\.(\d+)\.)?(.*)"),  # without a number: shared by all modules
    "mimo": re.compile(r"model\.mtp_layers\.(\d+)\.(.*)"),
}
_RENAMED: dict[str, dict[str, str]] = {
    "deepseek": {"shared_head.norm": "norm"},
    "qwen": {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm"},
    "mimo": {
        "token_layernorm": "enorm",
        "hidden_layernorm": "hnorm",
        "input_proj": "eh_proj",
        "final_layernorm": "norm",
    },
}
_OWN = ("enorm.", "hnorm.", "eh_proj.", "norm.")


def read_mtp(tensors: Tensors) -> HeadFacts | None:
    """Read the modules in a target's folder; None where it has none."""
    decoder = decoder_part(tensors.config)
    layers = decoder.get("num_hidden_layers")
    if type(layers) is not int or (found := _modules(tensors.names, layers)) is None:
        return None
    layout, modules = found
    hidden, vocab = (tensors.number(key, inside=decoder) for key in ("hidden_size", "vocab_size"))
    ours = {name: module_names(name, layout, modules, layers) for name in tensors.names}
    tensors.ignore(lambda name: not ours[name])
    for name in tensors.names:
        tensors.take(name, *[None] * len(tensors.shape(name) or ()))
    taken = tensors.finish("next-token-prediction modules")
    return tensors.facts(
        "mtp",
        f"MTP in the target's checkpoint, {_WORDS[layout]}",
        hidden,
        vocab,
        target_layers=layers,
        target_name=str(tensors.config.get("_name_or_path") or tensors.folder.resolve().name)[:200],
        most_tokens=modules,
        sizes={
            "hidden": hidden,
            "modules": modules,
            "layout": layout,
            "eps": tensors.real("rms_norm_eps", 1e-6, decoder),
            "config": tensors.config,
        },
        tensors={name: stored for published, stored in taken.items() for name in ours[published]},
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


def module_names(name: str, layout: str, modules: int, layers: int) -> list[str]:
    """The parameters of MtpModules that a tensor of the target's checkpoint stands for: several where modules share it.

    An expert's weights keep their own number, which MtpModules joins.
    """
    match = _MODULE[layout].fullmatch(name)
    if match is None or name.endswith(_COPIES):
        return []
    tail: str = match[2]
    numbers = range(modules) if match[1] is None else [int(match[1]) - (layers if layout == "deepseek" else 0)]
    for theirs, ours in _RENAMED[layout].items():
        if tail.startswith(theirs + "."):
            tail = ours + tail[len(theirs) :]
            break
    block = "" if tail.startswith(_OWN) else "block."
    return [f"layers.{number}.{block}{tail}" for number in numbers if 0 <= number < modules]
