"""Writing a trained head as other engines read it: float16 safetensors, config.json and a model card.

EAGLE-3 and P-EAGLE heads are in the layout of the `speculators` library, Medusa heads in vLLM's (LAYOUTS.md, sections
2 to 4). The parameters' names are the layouts' own, so that a state dict is a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specview.disk import same_place, within
from specview.errors import SpecviewError, UsageError
from specview.heads.eagle import Eagle3Shape
from specview.heads.medusa import MedusaShape
from specview.models.cache import size_words
from specview.training.teacher import TargetFiles

BUNDLED_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
FILES = frozenset({"config.json", "model.safetensors", "README.md", "draft.gguf", *TOKENIZER_FILES})
"""What an exported folder may hold."""
SPARE_BYTES = 64_000_000
"""Room that the result's folder must have at the least."""
MARK = "specview"
"""The key in a drafter's weights that says what kind of drafter was trained here."""
_LONGEST = 8192


def target_name(target: TargetFiles) -> str:
    """How a head's config names its target: a hub id where there is one."""
    if target.ref.origin == "bundled":
        return BUNDLED_NAME
    return target.ref.repo_id or target.name


def eagle3_config(shape: Eagle3Shape, target: TargetFiles, tokens: int) -> dict[str, Any]:
    """config.json of an EAGLE-3 or P-EAGLE head that drafts so many tokens (`speculators` 0.5 and later)."""
    parallel = shape.mask_token_id is not None
    config = target.text_config
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if target.llama_like:
        given = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope = {**given, "rope_theta": float(config.get("rope_theta") or given.get("rope_theta") or 10000.0)}
        rope.setdefault("rope_type", rope.pop("type", "default"))
    positions = config.get("max_position_embeddings")
    own: dict[str, Any] = {
        "speculators_model_type": "peagle" if parallel else "eagle3",
        "architectures": ["PEagleSpeculator" if parallel else "Eagle3Speculator"],
        "draft_vocab_size": shape.draft_vocab,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(shape.aux_layers),
        "embed_requires_grad": False,
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.width,
            "vocab_size": shape.vocab,
            "rms_norm_eps": shape.eps,
            "rope_theta": rope["rope_theta"],
            "rope_parameters": rope,
            "hidden_act": "silu",
            "max_position_embeddings": positions if isinstance(positions, int) else _LONGEST,
            "attention_bias": shape.attention_bias,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
        "speculators_config": {
            "algorithm": "peagle" if parallel else "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {
                "name_or_path": target_name(target),
                "architectures": list(target.config.get("architectures") or []),
            },
        },
    }
    if parallel:
        own |= {"mask_token_id": shape.mask_token_id, "parallel_drafting": True}
    return own


def medusa_config(shape: MedusaShape, target: TargetFiles) -> dict[str, Any]:
    """config.json of Medusa heads (vLLM's MedusaConfig)."""
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab,
        "truncated_vocab_size": shape.draft_vocab or shape.vocab,
        "num_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_lookahead_tokens": shape.heads,
        "original_lm_head": shape.output == "shared",
        "medusa_fc_bias": shape.bias,
        "base_model_name_or_path": target_name(target),
    }


def save_head(module: nn.Module, config: Mapping[str, Any], folder: Path, kind: str) -> None:
    """Write config.json and model.safetensors, in float16 where it is floating.

    Raises OSError for a full disk or a missing permission.
    """
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in module.state_dict().items()
    }
    save_drafter(tensors, config, folder, kind)


def save_drafter(tensors: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path, kind: str) -> None:
    """Write config.json and model.safetensors with the mark by which `check_out` knows what it may replace."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "config.json"
    settings.write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    weights = folder / "model.safetensors"
    try:
        save_file(dict(tensors), weights, metadata={"format": "pt", MARK: kind})
        weights.chmod(settings.stat().st_mode & 0o777)  # the library makes private files
    except OSError:
        raise
    except Exception as error:
        raise OSError(str(error)) from error  # safetensors' own, for a full disk


def rounded(module: nn.Module) -> nn.Module:
    """The module with its weights as they are stored, rounded to float16."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.half())
    return module


def check_out(out: Path, kind: str) -> None:
    """Raise SpecviewError where `out` cannot become the drafter's folder: not writable, or something else's."""
    if out.exists() and not out.is_dir():
        raise SpecviewError(f"{out} is a file.", "Name a folder for the result.")
    if out.is_dir():
        check_replaceable(out, kind)
    place = Path(os.path.realpath(out)).parent
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise SpecviewError(f"{out} cannot be written.", "Name a folder that you may write to.")
    usage = shutil.disk_usage(place)
    if not usage.total:  # /proc and the like
        raise SpecviewError(f"{out} cannot be written.", "Name a folder that you may write to.")
    if usage.free < SPARE_BYTES:
        raise SpecviewError(
            f"the drafter needs {size_words(SPARE_BYTES)} in {out}, and {size_words(usage.free)} are free there.",
            "Free some space, or name another folder.",
        )


def check_apart(out: Path, others: Mapping[str, Path | None]) -> None:
    """Raise UsageError where `out` is, or lies inside or around, one of the files and folders that a run reads.

    others: what it is called -> where it is. Beside a file the result may lie.
    """
    for what, path in others.items():
        if path is not None and (within(path, out) or not path.is_file() and within(out, path)):
            where = "is" if same_place(out, path) else "lies inside" if within(out, path) else "lies around"
            raise UsageError(f"{out} {where} the {what} ({path}).", "Name another folder for the result.")


def check_replaceable(out: Path, kind: str) -> None:
    """Raise SpecviewError where a folder holds anything but a drafter of this kind that specview trained."""
    entries = sorted(entry.name for entry in out.iterdir())
    others = [name for name in entries if name not in FILES]
    if others:
        raise SpecviewError(f"{out} is not empty: it has {others[0]}.", "Name a new folder for the result.")
    held = _kind_there(out)
    if held not in (None, kind):
        raise SpecviewError(f"{out} holds another drafter ({held}).", "Name a new folder for the result.")
    if entries and _mark(out) != kind:
        raise SpecviewError(f"{out} holds a model without the mark of one trained here.", "Name a new folder for the result.")


def _mark(folder: Path) -> str | None:
    """The kind that `save_drafter` wrote into a folder's weights; None where others wrote them."""
    file = folder / "model.safetensors"
    try:
        if not file.is_symlink():
            with safe_open(file, "pt") as opened:
                return (opened.metadata() or {}).get(MARK)
    except Exception:  # noqa: BLE001 - no file, or a damaged one: in whatever way
        pass
    return None


def _kind_there(folder: Path) -> str | None:
    """The kind of drafter that a folder's config says, None for no config."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return "unreadable"
    said = config.get("speculators_model_type") or config.get("model_type")
    return {"peagle": "p-eagle", "llama": "draft"}.get(said, said)
