"""What the commands give, without what a clock or this machine decides: to be equal before and after a rebuild."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
FREEZE = os.environ.get("SPECVIEW_FREEZE") == "1"
"""Write the answers anew in place of comparing with them. Look at what `git diff` then shows."""

CLOCK = re.compile(
    r"(^|_)(s|ms|seconds|per_s|gb_per_s|bandwidth|time|times|gaps?|at|t|speedups?|spread|share|shares|cost|costs|busy|load|"
    r"step|steps|vs|speed|ratio|interval|low|high|median|drift|realtime|date|made|started|ended|elapsed|crossings?|"
    r"roofline|predicted|alone|note|sentence|best|wins)(_|$)"
)
"""Keys whose values a clock decides, or something derived from it."""
MACHINE = re.compile(
    r"^(version_.*|versions?|cpu|device_name|platform|python|threads|.*sha256|.*_bytes|bytes|memory.*|hostname|.*_path|"
    r"processor|cores|id|run_id|file|files|kernel_margin|torch.*|qt.*|llama.*|display|gpu.*|cuda.*|capabilities|"
    r"processes|size|modified)$"
)
"""Keys whose values depend on the machine, its installation or the folder of the test."""


PASSING = ((re.compile(r"\d{4}-\d\d-\d\d-[0-9a-f]{8}"), "(run)"), (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?"), "(time)"),
           (re.compile(r"\S*/data/[0-9a-f]{8,}"), "(data)"), (re.compile(r"\d+ threads · [\d.]+ [GM]B"), "(threads, memory)"))  # fmt: skip
"""What is another at every start, wherever it stands: ids, moments, the data folder of a test."""


def settled(text: str, folders: Mapping[str, str]) -> str:
    """The text without what is another at every start."""
    for path, name in folders.items():
        text = text.replace(path, name)
    for pattern, name in PASSING:
        text = pattern.sub(name, text)
    return text


def stripped(value: Any, folders: Mapping[str, str], key: str = "", timed: bool = True) -> Any:
    """The JSON value without clocks (where `timed`), machine and folders (path -> name that stands for it)."""
    if MACHINE.search(key) or (timed and CLOCK.search(key)):
        return "(left out)"
    if isinstance(value, dict):
        return {name: stripped(inner, folders, name, timed) for name, inner in value.items()}
    if isinstance(value, list):
        return [stripped(inner, folders, key, timed) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else repr(value)
    return settled(value, folders) if isinstance(value, str) else value


def close(found: Any, kept: Any) -> bool:
    """Whether two stripped values are equal, real numbers to what another processor's sums may change."""
    if isinstance(found, dict) and isinstance(kept, dict):
        return found.keys() == kept.keys() and all(close(found[key], kept[key]) for key in found)
    if isinstance(found, list) and isinstance(kept, list):
        return len(found) == len(kept) and all(map(close, found, kept))
    if isinstance(found, float) and isinstance(kept, (int, float)) or isinstance(kept, float) and isinstance(found, int):
        return math.isclose(found, kept, rel_tol=2e-3, abs_tol=2e-4)
    return type(found) is type(kept) and found == kept


def differences(found: Any, kept: Any, where: str = "") -> list[str]:
    """Name the places where two stripped values differ, at most twenty."""
    if isinstance(found, dict) and isinstance(kept, dict):
        lines = [f"{where}.{key}: new" for key in found if key not in kept]
        lines += [f"{where}.{key}: gone" for key in kept if key not in found]
        for key in found:
            if key in kept:
                lines += differences(found[key], kept[key], f"{where}.{key}")
        return lines[:20]
    if isinstance(found, list) and isinstance(kept, list):
        lines = [] if len(found) == len(kept) else [f"{where}: {len(kept)} entries, now {len(found)}"]
        for place, (one, other) in enumerate(zip(found, kept, strict=False)):
            lines += differences(one, other, f"{where}[{place}]")
        return lines[:20]
    return [] if close(found, kept) else [f"{where}: {kept!r}, now {found!r}"]


def check(name: str, found: Any) -> None:
    """Compare with what was frozen under this name; raises AssertionError that names every difference."""
    path = DATA / f"{name}.json"
    if FREEZE:
        DATA.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        return
    kept = json.loads(path.read_text(encoding="utf-8"))
    lines = differences(json.loads(json.dumps(found)), kept)
    assert not lines, f"{name} is not as it was frozen:\n  " + "\n  ".join(lines)


def outline(widget: Any, keep: Callable[[Any], bool] = lambda widget: True) -> list[str]:
    """What a person sees and a screen reader hears of a page: a line for each visible widget with words, in tree order."""
    from PySide6 import QtWidgets

    lines: list[str] = []

    def words(one: Any) -> str:
        for kind, read in (
            (QtWidgets.QAbstractButton, lambda: one.text()), (QtWidgets.QLabel, lambda: one.text()), (QtWidgets.QGroupBox, lambda: one.title()),
            (QtWidgets.QComboBox, lambda: " | ".join(one.itemText(i) for i in range(one.count()))),
            (QtWidgets.QLineEdit, lambda: one.text() or one.placeholderText()), (QtWidgets.QAbstractSpinBox, lambda: one.text()),
            (QtWidgets.QTabBar, lambda: " | ".join(one.tabText(i) for i in range(one.count()))),
        ):  # fmt: skip
            if isinstance(one, kind):
                return str(read())
        return ""

    def visit(one: Any, depth: int) -> None:
        for child in one.children():
            if isinstance(child, QtWidgets.QWidget) and child.isVisibleTo(widget) and not child.isWindow():
                said, heard = words(child).strip(), child.accessibleName().strip()
                if (said or heard) and keep(child):
                    lines.append(settled(f"{type(child).__name__}: {said}" + (f" [{heard}]" if heard else ""), {}))
                visit(child, depth + 1)

    visit(widget, 0)
    return lines
