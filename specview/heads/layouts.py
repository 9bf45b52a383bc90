"""What a folder with a trained head holds: read from its config and its tensors' names and shapes, without torch.

Every published layout has a reader (layout_eagle.py, layout_medusa.py, layout_mtp.py); each says what the head is,
which target it was trained for and which tensors it must have. read.py finds the reader. Whether a head serves a
target is fit.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specview.engines.transformers_llama_shape import SCALINGS, scaled_frequencies
from specview.engines.transformers_weights import StoredTensor
from specview.errors import SpecviewError

Kind = Literal["eagle", "eagle3", "p-eagle", "medusa", "mlp-speculator", "mtp"]
KIND_WORDS: Mapping[str, str] = {
    "eagle": "an EAGLE head",
    "eagle3": "an EAGLE-3 head",
    "p-eagle": "a P-EAGLE head",
    "medusa": "Medusa heads",
    "mlp-speculator": "an MLP speculator",
    "mtp": "next-token-prediction modules",
}


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """A head before its weights are loaded.

    layout        which published layout the folder has, in words
    hidden_size   of the target's features that it reads
    vocab_size    of the target it was trained for; draft_vocab_size of its own logits
    aux_layers    the target's hidden states it reads, after so many layers; () where it reads only the last
    target_layers how many layers the target must have at least
    target_name   the target it was trained for, by its config, or ""
    most_tokens   how many tokens it can draft at most (Medusa's heads, MTP modules, a speculator's), None: any
    own_embedding, own_output  whether it brings its own, or uses the target's
    config        its config.json
    parameters    numbers in its tensors
    sizes         what its module is made with, by name
    tensors       the module's name of each tensor -> the stored one, its shape known
    unsure        what the layout leaves open, by the name of the lane's option that settles it
    aux_ids       layer numbers as the config has them; None where the layout's usual ones are meant
    notes         what else a user should know, a sentence each
    """

    kind: Kind
    layout: str
    folder: Path
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    aux_layers: tuple[int, ...] = ()
    target_layers: int = 1
    target_name: str = ""
    most_tokens: int | None = None
    own_embedding: bool = False
    own_output: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, tuple[str, StoredTensor]] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()
    aux_ids: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


class Tensors:
    """A folder's tensors while a reader goes through them: taken one by one, checked at the end.

    Names are those that the reader gave them; the file's own are kept for loading.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> None:
        self.folder = folder
        self.config = config
        self._left = {name: (name, tensor) for name, tensor in stored.items()}
        self._taken: dict[str, tuple[str, StoredTensor]] = {}
        self._missing: list[str] = []
        self._wrong: list[str] = []
        self._unread_types = False

    def rename(self, new_name: Callable[[str], str]) -> None:
        """Call every tensor by another name from here on."""
        self._left = {new_name(name): found for name, found in self._left.items()}

    def ignore(self, unwanted: Callable[[str], bool]) -> None:
        """Leave tensors that carry nothing of the head out of account."""
        self._left = {name: found for name, found in self._left.items() if not unwanted(name)}

    @property
    def names(self) -> list[str]:
        """The names of the tensors that were not taken yet."""
        return list(self._left)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name."""
        return name in self._left

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape, or None where it is missing."""
        found = self._left.get(name)
        return None if found is None else found[1].shape

    def take(self, name: str, *shape: int | None, as_: str = "", integers: bool = False) -> None:
        """Take a tensor that the head must have, of this shape (None: any length), as a module's `as_`."""
        found = self._left.pop(name, None)
        if found is None:
            self._missing.append(name)
            if len(self._missing) > _MOST_MISSING:  # a config of a million layers is not gone through
                raise self._lacks("the head that its config describes")
            return
        stored = found[1]
        fits = len(stored.shape) == len(shape) and all(
            want is None or want == have for want, have in zip(shape, stored.shape, strict=True)
        )
        if not fits:
            self._wrong.append(f"{name} {list(stored.shape)} instead of {['any' if n is None else n for n in shape]}")
        elif stored.dtype not in (_INTEGERS if integers else _FLOATS):
            self._wrong.append(f"{name} of type {stored.dtype}, which is not read here")
            self._unread_types = True
        self._taken[as_ or name] = found

    def take_if_there(self, name: str, *shape: int | None, as_: str = "", integers: bool = False) -> bool:
        """Take a tensor where the head has it; say whether it does."""
        if not self.has(name):
            return False
        self.take(name, *shape, as_=as_, integers=integers)
        return True

    def finish(self, words: str) -> dict[str, tuple[str, StoredTensor]]:
        """Return the tensors taken; raise SpecviewError, one line, for those missing, wrong or left over."""
        if self._missing:
            raise self._lacks(words)
        if self._wrong:
            raise SpecviewError(
                f"{self.folder} has tensors that are no fit for {words}: {_few(self._wrong)}.",
                "Choose a head with weights in float32, float16 or bfloat16, and whole numbers as its vocabulary map."
                if self._unread_types
                else "Download its config.json and its weights again, or choose another head.",
            )
        if self._left:
            raise SpecviewError(
                f"{self.folder} has tensors that {words} of a layout known here has not: {_few(sorted(self._left))}.",
                "Choose another head.",
            )
        return self._taken

    def facts(self, kind: Kind, layout: str, hidden: int, vocab: int, draft_vocab: int = 0, **more: Any) -> HeadFacts:
        """The head made of the tensors taken, once all are there and fit; raises SpecviewError as `finish`."""
        taken = self.finish(more.pop("words", KIND_WORDS[kind]))
        numbers = sum(stored.numel for key, (_, stored) in taken.items() if key not in _MAPS)
        known: dict[str, Any] = {"target_name": trained_for(self.config), "config": self.config, "tensors": taken}
        return HeadFacts(kind, layout, self.folder, hidden, vocab, draft_vocab or vocab, parameters=numbers, **(known | more))

    def _lacks(self, kind: str) -> SpecviewError:
        return SpecviewError(f"{self.folder} lacks tensors of {kind}: {_few(self._missing)}.", "Download it again.")

    def number(self, key: str, default: int | None = None, inside: Mapping[str, Any] | None = None) -> int:
        """A whole number of the config (or of a part of it); raises SpecviewError where it is missing or none."""
        value = (self.config if inside is None else inside).get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            said = "has no" if value is None else f"has {short(value)} as"
            raise SpecviewError(f"the config.json of {self.folder} {said} {key}.", "Download the head again.")
        return value

    def real(self, key: str, default: float, inside: Mapping[str, Any] | None = None) -> float:
        """A number above 0 of the config (or of a part of it); raises SpecviewError where it is none."""
        return real_number(self.config if inside is None else inside, key, self.folder, default)


def real_number(config: Mapping[str, Any], key: str, folder: Any, default: float | None = None) -> float:
    """A finite number above 0 of the config of a head in `folder`; raises SpecviewError where it is missing or none."""
    value = config.get(key)
    if value is None:
        value = default
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        said = "has no" if value is None else f"has {short(value)} as"
        raise SpecviewError(f"the config.json of {folder} {said} {key}.", "Download the head again.")
    return number


def short(value: Any) -> str:
    """A value of a config for a message, never long."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number beyond all measure"
    return text if len(text) <= 60 else f"{text[:57]}..."


_THETA = 10000.0
_MAPS = ("token_map", "d2t", "t2d")
_FLOATS = ("F64", "F32", "F16", "BF16")
_INTEGERS = ("I64", "I32", "I16", "U8", "BOOL")
_SHOWN, _MOST_MISSING = 3, 1000


def _few(things: Sequence[str]) -> str:
    """The first few of some things, and how many there are besides."""
    more = f" and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
    return ", ".join(thing[:200] for thing in things[:_SHOWN]) + more


def part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping inside a config; empty where there is none."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def trained_for(config: Mapping[str, Any]) -> str:
    """The target that a head's config names, or ""."""
    verifier = part(part(config, "speculators_config"), "verifier")
    for place, key in (
        (verifier, "name_or_path"),
        (config, "base_model_name_or_path"),
        (part(config, "eagle_config"), "base_model_name_or_path"),
        (config, "target_model_name_or_path"),
    ):
        if isinstance(place.get(key), str):
            return str(place[key][:200])
    return ""


def rotary_frequencies(config: Mapping[str, Any], width: int, folder: Any) -> tuple[float, ...]:
    """Radians per position [width / 2] of a head of `width`, from the config of its layer.

    config has `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5), which take precedence as in
    transformers: what rope_scaling says stands in place of rope_parameters, and a theta in either before one beside it.
    Raises SpecviewError for a scaling that is not computed here, and for a number that is none above 0.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaling: Mapping[str, Any] = given if isinstance(given, Mapping) else {}

    def number(key: str, default: float) -> float:
        return real_number(config if scaling.get(key) is None else scaling, key, folder, default)

    numbers = {"rope_theta": number("rope_theta", _THETA)}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    kind = "default" if kind == "mrope" else kind
    share = number("partial_rotary_factor", 1.0)
    if share != 1.0:
        raise SpecviewError(
            f"{folder} turns only {share:g} of each attention head, which is not read here.", "Choose another head."
        )
    if kind not in SCALINGS:
        raise SpecviewError(f"{folder} scales its rotary positions by {kind[:60]}, which is not read here.", "Choose another head.")
    numbers |= {key: real_number(scaling, key, folder) for key in SCALINGS[kind]}
    try:
        return tuple(scaled_frequencies(kind, width, numbers))
    except ValueError:
        raise SpecviewError(
            f"the config.json of {folder} has a low_freq_factor that is not below its high_freq_factor.",
            "Download the head again.",
        ) from None
