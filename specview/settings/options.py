"""Typed declarations of a drafter's options.

One declaration makes the form, the command-line keys, the validation, the tooltip and the entry in
the trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.errors import UsageError

Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a method.

    The type is that of `default`: int, float, bool, or str (a choice where `choices` is given).
    minimum and maximum are inclusive. help says what it means, its unit, and who else calls it so. needs: another
    option and the value without which this one says nothing. harmless: of a text that is no choice, the values that
    may be taken from a file of settings (a regular expression): none that names another file.
    """

    name: str
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    label: str = ""
    needs: tuple[str, str] | None = None
    harmless: str = ""

    def is_harmless(self, value: Any) -> bool:
        """Whether this value may be taken from a file, whoever wrote it: a number, a choice or a text that names no file."""
        if not isinstance(self.default, str) or self.choices:
            return True
        return value == self.default or re.fullmatch(self.harmless, str(value), re.DOTALL) is not None

    def parse(self, value: Any) -> Value:
        """Return `value` as this option's type.

        Raises UsageError when it does not fit, naming what would.
        """
        kind = type(self.default)
        if kind is bool:
            if isinstance(value, bool):
                return value
            lowered = str(value).strip().lower()
            if lowered in {"1", "true", "yes", "on"}:
                return True
            if lowered in {"0", "false", "no", "off"}:
                return False
            raise UsageError(f"{self.name} is {value!r}.", "Use yes or no.")
        if self.choices:
            if str(value) not in self.choices:
                raise UsageError(f"{self.name} is {value!r}.", f"Choose one of {', '.join(self.choices)}.")
            return str(value)
        if kind is str:
            return str(value)
        number: int | float
        try:
            number = int(str(value)) if kind is int else float(value)
        except (ValueError, TypeError, OverflowError):
            kind_name = "a whole number" if kind is int else "a number"
            raise UsageError(f"{self.name} is {value!r}.", f"Use {kind_name}.") from None
        fits = kind is int or math.isfinite(number)
        if self.minimum is not None:
            fits = fits and number >= self.minimum
        if self.maximum is not None:
            fits = fits and number <= self.maximum
        if not fits:
            raise UsageError(f"{self.name} is {value}.", f"Use {self.range_text()}.")
        return number

    def range_text(self) -> str:
        """Say which values fit."""
        if self.minimum is not None and self.maximum is not None:
            return f"a value from {self.minimum:,.10g} to {self.maximum:,.10g}"
        if self.minimum is not None:
            return f"{self.minimum:,.10g} or more"
        if self.maximum is not None:
            return f"{self.maximum:,.10g} or less"
        return "a number"


HEAD = Option(
    "head",
    "",
    "Which trained head drafts: bundled, a folder, a file or a hub id (owner/name). Empty: what the lane's draft "
    "names, or the bundled one where that is a draft model of another member.",
    harmless=".*",  # a model: the user is asked
)
WEIGHTS = Option(
    "weights",
    "auto",
    "The head's weights as it drafts with them: stored (as in its file), int8 (half of float16's bytes to read; "
    "only on a CPU that is quick at it), or auto: int8 for a large head on such a CPU. Drafts may differ in near "
    "ties; the output never does.",
    choices=("auto", "int8", "stored"),
)
AUX_IDS = Option(
    "aux_ids",
    "auto",
    "What the layer numbers in the head's config mean: the hidden state entering a layer (speculators, vLLM) or its "
    "output (SpecForge, AngelSlim, SGLang). auto reads it off the layout.",
    choices=("auto", "entering", "output"),
    label="layer numbers",
)
NORM_BEFORE_RESIDUAL = Option(
    "norm_before_residual",
    "auto",
    "Whether the head's residual starts from the normed features (Qwen3-like heads) or from the bare ones. auto reads "
    "it off the head's config.",
    choices=("auto", "true", "false"),
    label="norm before residual",
)
HEAD_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "eagle": (HEAD, WEIGHTS),
    "eagle3": (HEAD, AUX_IDS, NORM_BEFORE_RESIDUAL, WEIGHTS),
    "p-eagle": (HEAD, AUX_IDS, NORM_BEFORE_RESIDUAL, WEIGHTS),
}
"""Kind of head -> options that say which head and how to read it; of other kinds only HEAD."""
ANSWERS = (AUX_IDS.name, NORM_BEFORE_RESIDUAL.name)
"""Options that answer what a head's layout leaves open; "auto" where the user did not."""


def idle_option(options: Sequence[Option], given: Mapping[str, Any], values: Mapping[str, Value]) -> UsageError | None:
    """What to say of an option that was given and, with the others as they are (values), says nothing; None if none."""
    for option in options:
        name, wanted = option.needs or ("", "")
        if option.name in given and name in values and values[name] != wanted:
            return UsageError(
                f"{option.name} says nothing while {name} is {values[name]}.",
                f"Leave it out, or give {name}={wanted}.",
            )
    return None


def members_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The members that a combined method's option `members` names, in order."""
    return tuple(str(options["members"]).split("+"))


def options_of(options: Mapping[str, Any], member: str) -> dict[str, Any]:
    """The options given for one member of a combined method ("member.option"), by their own names."""
    prefix = f"{member}."
    return {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}


def overlay(
    options: Sequence[Option], presets: Mapping[str, Mapping[str, Value]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Put the values of the preset that `given` (or the default) chooses under the given ones."""
    default = next((option.default for option in options if option.name == "preset"), None)
    preset = presets.get(str(given.get("preset", default)), {})
    return {**preset, **given}


def resolve(options: Sequence[Option], given: Mapping[str, Any], owner: str) -> dict[str, Value]:
    """Return every option's value: the given one, checked, or the default.

    Raises UsageError on an unknown name or a value that does not fit.
    """
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            names = ", ".join(known) or "none"
            raise UsageError(f"{owner} has no option {name!r}.", f"Its options: {names}.")
    return {name: option.parse(given.get(name, option.default)) for name, option in known.items()}
