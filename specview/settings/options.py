"""The options that methods share, and what is read from the options given for a lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.errors import UsageError
from specview.fields import Option, Value

INSIDE = "mtp"
"""The kind of head that ships inside its target: "bundled" means that."""

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
