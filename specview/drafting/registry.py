"""The methods, collected from the files beside this one: each holds its own entry, a `MethodInfo`."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
from importlib import import_module
from typing import get_args

from specview import drafting
from specview.drafting.method import METHODS, Family, MethodInfo
from specview.drafting.plain import BASELINE

DEFAULT_METHOD = "draft-model"
"""What a lane drafts with where no method is named."""
_LOOKUP = "prompt-lookup"
FIRST_METHODS = (BASELINE, DEFAULT_METHOD, _LOOKUP)
"""The lanes of a comparison that names none."""
BEST_FIRST = (DEFAULT_METHOD, "eagle3", _LOOKUP, "medusa", "suffix", "auto")
"""What tends to pay, the best first: of these a first start takes its lanes and the menu what it leads with."""


def collect() -> None:
    """Fill METHODS, by family and place. A new file's methods stand last in their family unless they say otherwise."""
    names = [f"{drafting.__name__}.{found.name}" for found in pkgutil.iter_modules(drafting.__path__)]
    values = [value for name in names if name != __name__ for value in vars(import_module(name)).values()]
    families = get_args(Family)
    found = sorted((one for one in values if isinstance(one, MethodInfo)), key=lambda one: (families.index(one.family), one.place))
    METHODS.update({one.name: one for one in found})


def methods_for(kind: str) -> list[str]:
    """The methods that draft with a kind of head, or with what `specview train` calls so."""
    return [one.name for one in METHODS.values() if kind in (one.head, one.trained)]


def title(name: str, method: str) -> str:
    """A lane's name as it is read: where it begins with its method's name, that method's label."""
    known, rest = METHODS.get(method), name.removeprefix(method)
    return f"{known.label}{rest}" if known is not None and name.startswith(method) and rest[:1] in ("", " ") else name


def fitting(heads: Collection[str], problems: Collection[str] = (), there: Collection[str] = ()) -> list[str]:
    """What to draft with on a target, the best first: heads are the kinds trained for it that are here.

    Left out: methods that cannot run (problems), those that are there already, and those that seldom pay.
    """
    every = dict.fromkeys((*BEST_FIRST, *(name for name, one in METHODS.items() if one.drafts and not one.seldom_pays)))
    return [name for name in every if METHODS[name].head in (None, *heads) and name not in problems and name not in there]


collect()
