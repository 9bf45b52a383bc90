"""Which head a folder holds: found by asking the reader of every published layout in turn, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specview.engines.transformers_weights import StoredTensor, read_config
from specview.errors import SpecviewError
from specview.heads import layout_eagle, layout_medusa, layout_mtp
from specview.heads.files import stored_tensors, weights_of
from specview.heads.layouts import HeadFacts, Tensors, short


class NoHead(SpecviewError):
    """A folder that holds no head of a layout known here: a whole model, another program's, something else."""


class WholeModel(NoHead):
    """A folder that holds a model, which drafts by itself."""


def read_head(path: Path) -> HeadFacts:
    """Say what a head's folder, or a weights file beside its config.json, holds. Loads no weights and runs no code.

    Raises SpecviewError, one line, where it holds no head of a known layout, lacks tensors, has tensors that the
    layout has no name for or of the wrong shape, or where a file is damaged.
    """
    folder = path if path.is_dir() else path.parent
    config = read_config(folder)
    said = f"{config.get('speculators_model_type')} {config.get('architectures')}".lower()
    if "dflash" in said or "dspark" in said:
        raise NoHead(f"{folder} is a DFlash head, which specview does not run.", "Choose another head.")
    stored = stored_tensors(weights_of(path))
    readers: tuple[Callable[[Tensors], HeadFacts | None], ...] = (
        layout_medusa.read_mlp_speculator,
        layout_medusa.read_medusa,
        layout_eagle.read_eagle3,
        layout_eagle.read_eagle,
        layout_mtp.read_mtp,
    )
    try:
        for reader in readers:
            facts = reader(Tensors(folder, config, stored))
            if facts is not None:
                return facts
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SpecviewError(
            f"the config.json of {folder}, or a name or shape of a tensor, is none of a head's ({short(str(error))}).",
            "Download the head again, or choose another.",
        ) from None
    raise _unknown(folder, config, stored)


def claims_head(folder: Path) -> bool:
    """Whether a folder's config.json says that a head is in it, whatever the state of its weights."""
    try:
        config = read_config(folder)
    except SpecviewError:
        return False
    said = f"{config.get('architectures')} {config.get('model_type')}".lower()
    return bool(
        {"speculators_model_type", "draft_vocab_size", "medusa_num_heads", "eagle_config"} & config.keys()
        or any(word in said for word in ("eagle", "medusa", "mlp_speculator", "mlpspeculator"))
    )


def _unknown(folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> NoHead:
    if "pard_token" in config:
        return WholeModel(
            f"{folder} is a whole model that drafts in parallel (PARD), no head.", "Name it as the draft of method pard."
        )
    if any(name.endswith(("layers.0.self_attn.q_proj.weight", "layers.0.attn.c_attn.weight")) for name in stored):
        return WholeModel(
            f"{folder} is a whole model, no head.", "Name it as the draft of method draft-model, or choose a head."
        )
    names = ", ".join(name[:200] for name in sorted(stored)[:3]) or "none"
    return NoHead(
        f"{folder} holds no head of a layout that specview knows (its tensors: {names}, ...).",
        "Heads: EAGLE, EAGLE-3, P-EAGLE, Medusa, MLP speculator, or MTP inside a model.",
    )
