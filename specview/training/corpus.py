"""Real text for training: Python functions, prose and whole files found in the running interpreter.

Nothing is downloaded: the standard library and the installed packages hold tens of megabytes of
code and documentation in a stable place. Modules in `HELD_OUT_MODULES` are left out, so that
held-out prompts may be taken from them.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specview.errors import Stopped

HELD_OUT_MODULES = frozenset({"shlex", "textwrap", "bisect", "fnmatch", "colorsys", "statistics"})
FUNCTION_CHARS = (100, 600)
PARAGRAPH_CHARS = (160, 500)
FILE_BYTES = 40_000
PASSAGE_CHARS = 1400


@dataclass(frozen=True)
class Corpus:
    """Pieces of real text: whole functions, prose paragraphs, and passages of files."""

    functions: tuple[str, ...]
    paragraphs: tuple[str, ...]
    passages: tuple[str, ...]


def default_roots() -> list[Path]:
    """The running interpreter's standard library and site-packages."""
    return [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]


def read_corpus(
    roots: list[Path],
    files: int,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
    enough: Callable[[], bool] = lambda: False,
) -> Corpus:
    """Read at most `files` randomly chosen text files below `roots`; deterministic for one machine.

    Reading ends early where it is `enough` and there is some of every sort. Raises Stopped when asked to stop.
    """
    rng = random.Random(seed)
    found = sorted({path for root in roots for path in _text_files(root, stop)})
    rng.shuffle(found)
    functions: list[str] = []
    paragraphs: list[str] = []
    passages: list[str] = []
    for path in found[:files]:
        if stop():
            raise Stopped
        if enough() and functions and paragraphs and passages:
            break
        text = path.read_text("utf-8", errors="ignore")
        if path.suffix == ".py":
            tree = _tree(text)
            if tree is None:
                continue
            functions.extend(_functions(tree, text))
            prose = "\n\n".join(_docstrings(tree))
        else:
            prose = text
        paragraphs.extend(_paragraphs(prose))
        passages.extend(_passages(text, rng))
    for pieces in (functions, paragraphs, passages):
        pieces[:] = list(dict.fromkeys(pieces))
        rng.shuffle(pieces)
    return Corpus(tuple(functions), tuple(paragraphs), tuple(passages))


def _text_files(root: Path, stop: Callable[[], bool]) -> Iterator[Path]:
    for path in root.rglob("*"):
        if stop():
            raise Stopped
        if path.suffix not in {".py", ".md", ".rst", ".txt"} or path.stem in HELD_OUT_MODULES:
            continue
        parts = path.relative_to(root).parts
        if any(part in {"test", "tests", "__pycache__", "idlelib"} for part in parts):
            continue
        if root.name != "site-packages" and "site-packages" in parts:
            continue
        if path.is_file() and 500 < path.stat().st_size < FILE_BYTES:
            yield path


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _functions(tree: ast.Module, source: str) -> Iterator[str]:
    lines = source.splitlines()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if FUNCTION_CHARS[0] < len(text) < FUNCTION_CHARS[1]:
                yield text


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        joined = " ".join(block.split())
        letters = sum(c.isalpha() or c == " " for c in joined)
        fits = PARAGRAPH_CHARS[0] < len(joined) < PARAGRAPH_CHARS[1]
        if fits and joined.count(". ") >= 1 and letters > 0.9 * len(joined) and joined[0].isupper():
            yield joined


def _passages(text: str, rng: random.Random) -> Iterator[str]:
    """Up to three stretches of a file, cut at line ends."""
    lines = text.splitlines(keepends=True)
    for _ in range(min(3, len(text) // PASSAGE_CHARS)):
        start = rng.randrange(len(lines))
        piece, length = [], 0
        for line in lines[start:]:
            piece.append(line)
            length += len(line)
            if length > PASSAGE_CHARS:
                break
        joined = "".join(piece)
        if length > 400 and max(map(len, piece)) < 400:
            yield joined[: 2 * PASSAGE_CHARS]
