"""A head's module made for a target, with all of its weights loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specview.decoding.interfaces import Engine
from specview.errors import SpecviewError
from specview.heads.eagle import Eagle3Head, Eagle3Shape, EagleHead, EagleShape
from specview.heads.files import load_tensors
from specview.heads.fit import map_problem, mask_problem, target_ids, target_of_engine
from specview.heads.layouts import KIND_WORDS, HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.medusa import MedusaHeads, MedusaShape
from specview.heads.mlp_speculator import MlpSpeculator, MlpSpeculatorShape


class _Bare(TorchFunctionMode):
    """Modules made within keep their memory as it is: random numbers for large matrices take seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


_COLUMNS = 256
"""Columns of an output matrix that are read off a target at a time."""


def load(facts: HeadFacts, target: Engine) -> LoadedHead:
    """Build a head's module for a target and load its weights, all of them; facts are settled (fit.settle).

    Weights are float32 on a CPU, the target's own type elsewhere. Raises SpecviewError where a file cannot be
    read or the weights are no fit.
    """
    stored = dict(facts.tensors.values())
    loaded = load_tensors(stored, stored)
    given = {ours: loaded[name] for ours, (name, _) in facts.tensors.items()}
    device = torch.device(target.device if target.name == "transformers" else "cpu")
    dtype = torch.float32 if device.type == "cpu" else getattr(torch, target.dtype, torch.float32)
    try:
        with _Bare():
            module = _MAKERS[facts.kind](facts, given, target)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SpecviewError(
            f"{facts.folder} does not load as {KIND_WORDS[facts.kind]} ({reason}).", "Choose another head."
        ) from None
    module = module.to(device=device, dtype=dtype).eval().requires_grad_(False)
    return LoadedHead(facts, module, target)


def _eagle3(facts: HeadFacts, given: dict[str, Tensor], target: Engine) -> torch.nn.Module:
    sizes = {key: value for key, value in facts.sizes.items() if key not in ("aux", "aux_written")}
    shape = Eagle3Shape(aux_layers=facts.aux_layers, **sizes)
    if shape.mask_token_id is not None:
        given["mask_hidden"] = given["mask_hidden"].reshape(1, 1, -1)
        problem = mask_problem(facts, target_of_engine(target))
        if problem is not None:
            raise problem
    module = Eagle3Head(shape)
    ids = _target_ids(facts, given, target)
    if shape.draft_vocab != shape.vocab:
        given["d2t"] = ids - torch.arange(len(ids))
        given["t2d"] = torch.zeros(shape.vocab, dtype=torch.bool)
        given["t2d"][ids] = True
    if "lm_head.weight" not in given:
        given["lm_head.weight"] = output_rows(target, facts.hidden_size, ids)
    if shape.attention_bias and not shape.qk_norm:
        for index in range(shape.layers):
            given.setdefault(f"layers.{index}.self_attn.o_proj.bias", torch.zeros(shape.hidden))
    module.load_state_dict(_widened(given))
    return module


def _target_ids(facts: HeadFacts, given: dict[str, Tensor], target: Engine) -> Tensor:
    """The target's id of every row of the head's logits, by its map, else the rows' own numbers.

    EAGLE's maps are taken out of `given`; Medusa's stays, as its module has it. Raises SpecviewError for ids that
    the target does not have.
    """
    stored: dict[str, list[int]] = {key: given[key].long().tolist() for key in ("token_map", "d2t", "t2d") if key in given}
    given.pop("d2t", None), given.pop("t2d", None)
    ids = target_ids(facts, stored)
    if ids is None:
        ids = list(range(facts.draft_vocab_size))
    problem = map_problem(facts, ids, target.model_name, target.vocab_size)
    if problem is not None:
        raise problem
    return torch.tensor(ids)


def output_rows(target: Engine, hidden: int, ids: Tensor) -> Tensor:
    """Rows [n, hidden] of the target's output matrix, by what it gives for each unit vector."""
    eye = torch.eye(hidden)
    columns = []
    for begin in range(0, hidden, _COLUMNS):
        part: Any = eye[begin : begin + _COLUMNS]
        given = target.project(part if target.name == "transformers" else part.numpy())
        columns.append(torch.as_tensor(given).float().cpu()[:, ids].T)
    return torch.cat(columns, 1)


def _eagle(facts: HeadFacts, given: dict[str, Tensor], target: Engine) -> torch.nn.Module:
    module = EagleHead(EagleShape(**facts.sizes))
    module.load_state_dict(_widened(given))
    return module


def _medusa(facts: HeadFacts, given: dict[str, Tensor], target: Engine) -> torch.nn.Module:
    if "token_map" in given:
        _target_ids(facts, given, target)
    module = MedusaHeads(MedusaShape(**{**facts.sizes, "vocab": facts.vocab_size or target.vocab_size}))
    module.load_state_dict(_widened(given))
    return module


def _mlp_speculator(facts: HeadFacts, given: dict[str, Tensor], target: Engine) -> torch.nn.Module:
    module = MlpSpeculator(MlpSpeculatorShape(**facts.sizes))
    module.load_state_dict(_widened(given))
    return module


def _mtp(facts: HeadFacts, given: dict[str, Tensor], target: Engine) -> torch.nn.Module:
    from specview.heads.mtp import MtpModules, MtpShape

    module = MtpModules(MtpShape(**facts.sizes))
    module.load(_widened(given))
    return module


def _widened(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as float32 where they are floating, so that none is rounded on its way into the module."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in given.items()}


_MAKERS = {
    "eagle": _eagle,
    "eagle3": _eagle3,
    "p-eagle": _eagle3,
    "medusa": _medusa,
    "mlp-speculator": _mlp_speculator,
    "mtp": _mtp,
}
