"""Where the files that come with specview are: `assets/` of a checkout, or the copy in a wheel."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from specview.errors import SpecviewError

WHEEL_FOLDER = "assets_data"
"""Folder inside the installed package; pyproject's force-include puts `assets` there."""


def assets_root() -> Path:
    """Return the folder of bundled files.

    A checkout's own `assets/` wins over a wheel's copy, so that an editable install sees edits.
    Raises SpecviewError when neither is there.
    """
    package = Path(str(resources.files("specview")))
    checkout = package.parent / "assets"
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    installed = package / WHEEL_FOLDER
    if installed.is_dir():
        return installed
    raise SpecviewError(
        f"specview's own files are missing (looked in {checkout} and {installed}).",
        "Install specview again.",
    )


def asset_path(name: str) -> Path:
    """Return the path of a bundled file or folder, such as "workloads/chat.jsonl" or "draft".

    The path may not exist: callers say what a missing one means to them.
    """
    return assets_root().joinpath(*name.split("/"))
