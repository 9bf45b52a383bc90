"""What a field says of itself. Its flag, form field, JSON, messages and place in a key follow from one declaration.

`Option` is an option of a method or a length policy; `Setting` a field of a settings record (a dataclass), made with
`setting` and read back with `declared`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specview.errors import UsageError

Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a method.

    The type is that of `default`: int, float, bool, or str (a choice where `choices` is given).
    minimum and maximum are inclusive, above is not. help says what it means, its unit, and who else calls it so. needs:
    another option and the value without which this one says nothing. harmless: of a text that is no choice, the values
    that may be taken from a file of settings (a regular expression): none that names another file. fits says which
    values fit where the range alone does not; step is what an arrow key adds in a form (0: the usual).
    """

    name: str
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    label: str = ""
    needs: tuple[str, str] | None = None
    harmless: str = ""
    above: float | None = None
    fits: str = ""
    step: float = 0

    @property
    def kind(self) -> type:
        """The type of its values."""
        return type(self.default)

    @property
    def caption(self) -> str:
        """What it is called in a form."""
        return self.label or self.name.replace("_", " ").replace("-", " ")

    def is_harmless(self, value: Any) -> bool:
        """Whether this value may be taken from a file, whoever wrote it: a number, a choice or a text that names no file."""
        if self.kind is not str or self.choices:
            return True
        return value == self.default or re.fullmatch(self.harmless, str(value), re.DOTALL) is not None

    def parse(self, value: Any) -> Any:
        """Return `value` as this option's type.

        Raises UsageError when it does not fit, naming what would.
        """
        if self.kind is bool:
            if isinstance(value, bool):
                return value
            lowered = str(value).strip().lower()
            if lowered in {"1", "true", "yes", "on"}:
                return True
            if lowered in {"0", "false", "no", "off"}:
                return False
            raise UsageError(f"{self.name} is {value!r}.", "Use yes or no.")
        if self.kind is str:
            self.check(str(value))
            return str(value)
        try:
            number = int(str(value)) if self.kind is int else float(value)
        except (ValueError, TypeError, OverflowError):
            kind_name = "a whole number" if self.kind is int else "a number"
            raise UsageError(f"{self.name} is {value!r}.", f"Use {kind_name}.") from None
        self.check(number)
        return number

    def check(self, value: Any) -> None:
        """Raise UsageError where a value of the right type does not fit, naming what would."""
        if self.choices and value not in self.choices:
            raise UsageError(f"{self.name} is {value!r}.", f"Choose one of {', '.join(self.choices)}.")
        if self.kind in (int, float) and not self._in_range(value):
            raise UsageError(f"{self.name} is {value}.", f"Use {self.range_text()}.")

    def _in_range(self, number: float) -> bool:
        return (
            (self.kind is int or math.isfinite(number))
            and (self.minimum is None or number >= self.minimum)
            and (self.above is None or number > self.above)
            and (self.maximum is None or number <= self.maximum)
        )

    def range_text(self) -> str:
        """Say which values fit."""
        if self.fits:
            return self.fits
        if self.minimum is not None and self.maximum is not None:
            return f"a value from {self.minimum:,.10g} to {self.maximum:,.10g}"
        if self.minimum is not None:
            return f"{self.minimum:,.10g} or more"
        if self.maximum is not None:
            return f"{self.maximum:,.10g} or less"
        return "a number"


@dataclass(frozen=True, slots=True)
class Setting(Option):
    """One field of a settings record: an Option, and where else it is met.

    of: the type of its values where the default is None (left open) or a tuple (given repeatedly: the type of each).
    group: the group of command-line flags that it stands in, "" where it has none of its own; metavar as argparse's.
    engine: the only one that it says something of. form: the group of the window's setup that its field stands in;
    offers: what the field offers where not every value that fits, as (value, text). kept: whether the window remembers
    it and a file may give it; in_files: whether it stands in the flat settings of traces and documents.
    """

    of: type | None = None
    group: str = ""
    metavar: str | None = None
    engine: str = ""
    form: str = ""
    offers: tuple[tuple[str, str], ...] = ()
    kept: bool = True
    in_files: bool = True

    @property
    def kind(self) -> type:
        """The type of its values."""
        return self.of or type(self.default)

    @property
    def words(self) -> str:
        """What it is called in a sentence."""
        return self.label or self.name.replace("_", "-")

    @property
    def caption(self) -> str:
        """What it is called in a form."""
        return self.words[0].upper() + self.words[1:]

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def repeated(self) -> bool:
        """Whether its value is a tuple, of which each flag gives one."""
        return isinstance(self.default, tuple)

    def accepts(self, value: Any) -> bool:
        """Whether a JSON value is of this setting's type."""
        if value is None:
            return self.default is None
        if self.repeated:
            return isinstance(value, (list, tuple)) and all(type(one) is self.kind for one in value)
        return type(value) in ((int, float) if self.kind is float else (self.kind,))

    def check(self, value: Any) -> None:
        """Raise UsageError where a value of the right type does not fit, naming what would."""
        if value is None and self.default is None:
            return
        words = self.words
        if self.choices and value not in self.choices:
            raise UsageError(f"there is no {words} {value!r}.", f"{words.capitalize()}s: {', '.join(self.choices)}.")
        if self.repeated and not all(value):
            raise UsageError(f"a {words} is empty.", f"Use {self.range_text()}.")
        if self.repeated and any("\ud800" <= char <= "\udfff" for text in value for char in text):
            raise UsageError(f"a {words} is not UTF-8 text.", "Set a UTF-8 locale.")
        if self.kind in (int, float) and not self._in_range(value):
            said = f"{value:.10g}" if self.kind is float else value
            raise UsageError(f"{words} is {said}.", f"Use {self.range_text()}.")


def setting(default: Any, help: str, **more: Any) -> Any:
    """A field of a settings record; its name is that of the field."""
    return dataclasses.field(default=default, metadata={"setting": Setting("", default, help, **more)})


@functools.cache
def declared(record: type) -> Mapping[str, Setting]:
    """The settings that a record's class declares, by name, in order."""
    return {
        one.name: dataclasses.replace(one.metadata["setting"], name=one.name)
        for one in dataclasses.fields(record)
        if "setting" in one.metadata
    }


def values_of(record: Any) -> Iterator[tuple[Setting, Any]]:
    """Every setting of a record with its value."""
    kind: type = type(record)
    for name, one in declared(kind).items():
        yield one, getattr(record, name)


def check(record: Any) -> None:
    """Raise UsageError for the first setting of a record whose value does not fit."""
    for one, value in values_of(record):
        one.check(value)
