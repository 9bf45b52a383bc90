"""Whether a head serves a target, and how its layer numbers are meant: told from files or a loaded engine, without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specview.decoding.interfaces import Engine
from specview.engines.gguf_file import gguf_facts
from specview.engines.transformers_config import decoder_part, rollback_problem
from specview.engines.transformers_weights import read_config
from specview.errors import SpecviewError, UsageError
from specview.heads.files import read_map
from specview.heads.layouts import KIND_WORDS, HeadFacts, part
from specview.heads.read import claims_head

_MEND = "Choose a head that was trained for this target."
_MOST_LAYERS = 8  # of a head
PADDING = 1024
"""Most rows by which two vocabularies of one tokenizer differ because rows of logits are padded."""
_NAME_TAIL = re.compile(r"[-._](i?q\d\w*|f16|f32|bf16|fp8|fp16|int8|int4|awq|gptq|gguf|hf)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a head must know of a target: its name, sizes, and number of layers."""

    name: str
    hidden_size: int
    layers: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Fit:
    """reason is why the head does not serve the target, one line with the mend, or None. notes hold either way."""

    reason: str | None
    notes: tuple[str, ...] = ()


def target_of_engine(engine: Engine) -> TargetFacts:
    """The facts of a loaded target."""
    return TargetFacts(engine.model_name, engine.hidden_size, engine.layers, engine.vocab_size)


def target_of_files(path: Path, name: str = "") -> TargetFacts | None:
    """The facts of a GGUF file or a model folder, by its metadata; None where it does not say."""
    if path.is_file():
        gguf = gguf_facts(path)
        embedding = gguf.tensors.get("token_embd.weight")
        tokens = gguf.metadata.get("tokenizer.ggml.tokens")
        vocab = embedding.shape[0] if embedding is not None else len(tokens) if tokens is not None else None
        hidden, layers = gguf.hyper("embedding_length"), gguf.hyper("block_count")
        extra = gguf.hyper("nextn_predict_layers", 0)
        found = (hidden, layers - extra if isinstance(layers, int) and isinstance(extra, int) else None, vocab)
    else:
        config = read_config(path)
        text = {**config, **decoder_part(config)}
        first = ("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer", "n_layers"), ("vocab_size",)
        found = tuple(next((text[key] for key in keys if key in text), None) for keys in first)  # type: ignore[assignment]
    sizes = [value for value in found if isinstance(value, int)]
    if len(sizes) != len(found):
        return None
    return TargetFacts(name or (path.stem if path.is_file() else path.resolve().name), *sizes)


_RECURRENT = ("ssm.conv_kernel", "ssm.state_size", "wkv.head_size", "shortconv.l_cache")
"""GGUF keys of models with a recurrent state (llama.cpp, llama-arch.cpp)."""


def undraftable(path: Path, name: str) -> str | None:
    """Why no head can draft for a GGUF file's or folder's model, as far as its metadata says; or None."""
    if path.is_file():
        gguf = gguf_facts(path)
        recurrent = any(gguf.hyper(key) for key in _RECURRENT)
        problem = "it keeps a recurrent state, which cannot be rolled back after a rejection" if recurrent else None
    else:
        problem = rollback_problem(read_config(path))
    return None if problem is None else f"{name} cannot be drafted for: {problem}. Choose another target."


def map_problem(facts: HeadFacts, ids: Sequence[int], target: str, vocab: int) -> SpecviewError | None:
    """What is wrong with the target's ids that a head's rows stand for, or None; vocab is the target's."""
    name = facts.folder.name
    what = "token_map" if facts.kind == "medusa" else "d2t"
    if facts.kind != "medusa" and facts.draft_vocab_size == facts.vocab_size:
        if list(ids) != list(range(facts.draft_vocab_size)):
            return SpecviewError(f"{name} has the target's whole vocabulary in another order.", "Choose another head.")
        return None
    if len(ids) != facts.draft_vocab_size or len(set(ids)) != len(ids) or min(ids, default=0) < 0:
        return SpecviewError(f"{name} maps its tokens to no distinct ones of the target ({what}).", "Download it again.")
    most = min(facts.vocab_size or vocab, vocab)
    if max(ids, default=0) >= most:
        return SpecviewError(f"{name} drafts token {max(ids)}, and {target} has {most} tokens.", _MEND)
    return None


def target_ids(facts: HeadFacts, stored: Mapping[str, Sequence[int]]) -> list[int] | None:
    """The target's id of every row of a head's logits, by its maps (token_map; d2t, offsets; t2d); None without any."""
    if "token_map" in stored:
        return list(stored["token_map"])
    if "d2t" in stored:
        return [row + offset for row, offset in enumerate(stored["d2t"])]
    if "t2d" in stored:
        return [token for token, drafted in enumerate(stored["t2d"]) if drafted]
    return None


def mask_problem(facts: HeadFacts, target: TargetFacts) -> SpecviewError | None:
    """Why the token that a P-EAGLE head has for those not drafted yet has no embedding; or None."""
    mask = facts.sizes.get("mask_token_id")
    rows = facts.sizes["vocab"] if facts.own_embedding else target.vocab_size
    if mask is None or mask < rows:
        return None
    return SpecviewError(
        f"{facts.folder.name} has token {mask} as its mask, and there are {rows} embeddings.",
        "Write the token that it was trained with into its config.json, as mask_token_id, or choose another head.",
    )


def _small_parts(facts: HeadFacts, target: TargetFacts) -> SpecviewError | None:
    """What is wrong with a head's mask or its vocabulary map, which is read; or None."""
    stored: dict[str, list[int]] = {}
    try:
        for key in ("token_map", "d2t", "t2d"):
            if key in facts.tensors and not stored:
                name, tensor = facts.tensors[key]
                stored[key] = read_map(tensor, name)
    except ImportError:
        stored = {}  # without torch no pickle is read, and no head runs
    except SpecviewError as error:
        return error
    ids = target_ids(facts, stored)
    return mask_problem(facts, target) or (ids and map_problem(facts, ids, target.name, target.vocab_size)) or None


def fits(facts: HeadFacts, target: TargetFacts) -> Fit:
    """Whether the head serves the target: by hidden size, vocabulary, layers, and the small maps that it has."""
    head = f"{facts.folder.name} holds {KIND_WORDS[facts.kind]}"
    trained = f" for {facts.target_name}" if facts.target_name else ""
    if facts.hidden_size != target.hidden_size:
        sizes = f"hidden states of {facts.hidden_size:,} numbers, and those of {target.name} have {target.hidden_size:,}"
        read = "read" if KIND_WORDS[facts.kind].endswith("s") else "reads"
        return Fit(f"{head}{trained} that {read} {sizes}. {_MEND}")
    if facts.vocab_size and abs(facts.vocab_size - target.vocab_size) > PADDING:
        sizes = f"{facts.vocab_size:,} tokens, and {target.name} has {target.vocab_size:,}"
        return Fit(f"{head}{trained} with a vocabulary of {sizes}. {_MEND}")
    needed = facts.target_layers
    if facts.kind == "mtp" and needed != target.layers:
        return Fit(f"{head} of a target of {needed} layers, and {target.name} has {target.layers}. {_MEND}")
    needed = max([needed, *facts.aux_layers, *(facts.aux_ids or ())])
    if needed > target.layers:
        return Fit(f"{head}{trained} that reads layer {needed}, and {target.name} has {target.layers} layers. {_MEND}")
    problem = _small_parts(facts, target)
    if problem is not None:
        return Fit(str(problem))
    notes = list(facts.notes)
    if facts.vocab_size and facts.vocab_size != target.vocab_size:
        notes.append(
            f"Their vocabularies are padded to {facts.vocab_size:,} and {target.vocab_size:,} tokens: "
            "what only one of them has is not drafted."
        )
    if facts.target_name and _plain(facts.target_name) != _plain(target.name):
        notes.append(
            f"It was trained for {facts.target_name}: on another model than that, {target.name} will accept few of its tokens."
        )
    return Fit(None, tuple(notes))


def config_problem(folder: Path, target: TargetFacts) -> str | None:
    """Why a head cannot serve a target as far as its config.json alone says, before its weights are here; or None."""
    config = read_config(folder)
    layer = part(config, "transformer_layer_config")
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS and not claims_head(folder):
        return f"{folder} is a whole model of {layers} layers, no head. Choose a head, or draft with method draft-model."
    for place, key in (
        (config, "target_hidden_size"),
        (layer, "hidden_size"),
        (config, "input_hidden_dim"),
        (config, "emb_dim"),
        (config, "hidden_size"),
    ):
        size = place.get(key)
        if isinstance(size, int) and not isinstance(size, bool):
            if size == target.hidden_size:
                return None
            return (
                f"the head reads hidden states of {size:,} numbers, and those of {target.name} have "
                f"{target.hidden_size:,}. {_MEND}"
            )
    return None


def _plain(name: str) -> str:
    """A model's name without owner, quantization and punctuation."""
    name = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    name = name.removesuffix(".gguf")
    while (shorter := _NAME_TAIL.sub("", name)) != name:
        name = shorter
    return re.sub(r"[^a-z0-9]", "", name.lower())


def usual_layers(layers: int) -> tuple[int, int, int]:
    """The layers that EAGLE-3 reads of a target of `layers` where its config names none (cnets.py, vLLM)."""
    return 2, layers // 2, layers - 3


def settle(facts: HeadFacts, target: TargetFacts, answers: Mapping[str, str] | None = None) -> HeadFacts:
    """Return the facts with nothing left open: aux_layers as a session names them, norm_before_residual known.

    answers are the user's, by option (aux_ids: entering or output; norm_before_residual: true or false). Raises
    UsageError that names the option where the layout leaves a question open, SpecviewError where no layer fits.
    """
    if facts.kind not in ("eagle3", "p-eagle"):
        return facts
    given = dict(answers or {})
    sizes = dict(facts.sizes)
    residual = given.get("norm_before_residual", "auto")
    if residual != "auto":
        sizes["norm_before_residual"] = residual == "true"
    elif "norm_before_residual" in facts.unsure:
        raise UsageError(
            f"the config.json of {facts.folder} does not say norm_before_residual, which speculators then takes as "
            "false and vLLM as true.",
            "Set the lane's option norm_before_residual=true or false.",
        )
    layers = _aux_layers(facts, target, given.get("aux_ids", "auto"))
    repeated = [layer for place, layer in enumerate(layers) if layer in layers[:place]]
    if repeated and facts.aux_ids is not None:
        raise SpecviewError(
            f"the config.json of {facts.folder} names a layer twice ({', '.join(map(str, facts.aux_ids))}).",
            "Download the head again, or choose another.",
        )
    if any(layer < 0 or layer > target.layers for layer in layers) or repeated:
        named = ", ".join(map(str, layers))
        raise SpecviewError(
            f"{facts.folder.name} reads the hidden states after layers {named}, and {target.name} has {target.layers} "
            "layers.",
            "Choose a head that was trained for this target.",
        )
    return replace(facts, aux_layers=layers, sizes=sizes, unsure=(), target_layers=max(1, *layers))


def _aux_layers(facts: HeadFacts, target: TargetFacts, answer: str) -> tuple[int, ...]:
    usual = usual_layers(target.layers)
    if facts.aux_ids is None:
        if facts.sizes["aux"] != len(usual):
            raise SpecviewError(
                f"the config.json of {facts.folder} does not say which {facts.sizes['aux']} layers the head reads.",
                "Choose another head.",
            )
        return usual
    ids = facts.aux_ids
    after = tuple(layer + 1 for layer in ids)
    if answer == "entering":
        return ids
    if answer == "output":
        return after
    reading = _reading(facts, usual)
    if reading is None:
        raise UsageError(
            f"the config.json of {facts.folder} reads layers {', '.join(map(str, ids))}, which may mean the states "
            "entering them (speculators, vLLM) or their outputs (SpecForge, AngelSlim, SGLang).",
            "Set the lane's option aux_ids=entering or output.",
        )
    return ids if reading == "entering" else after


def _reading(facts: HeadFacts, usual: tuple[int, ...]) -> str | None:
    """What the layer numbers mean, as far as the layout and the usual layers say; None where they disagree."""
    assert facts.aux_ids is not None
    ids = tuple(sorted(facts.aux_ids))
    written = facts.sizes["aux_written"]
    if ids == usual:  # the very states of the paper, if entering
        return "entering" if written != "output" else None
    if tuple(layer + 1 for layer in ids) == usual:  # the same, if outputs; a converter may have left them so
        return "output" if written != "entering" else None
    return str(written) if written else None
