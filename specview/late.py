"""Libraries that take long to import, imported when something of them is first asked for: the window is up before that."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class _Late(ModuleType):
    """Stands for a library."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def late(name: str) -> Any:
    """A library by its name; the type checker is told of the real one."""
    return _Late(name)
