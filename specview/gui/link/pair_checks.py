"""Whether a draft's tokenizer fits the target's, told where the draft is chosen.

Tokenizer files are read on a short-lived thread of its own: a vocabulary takes a while. A model that is
not on this machine yet is compared when it loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from specview.errors import SpecviewError
from specview.gui.link.background import BackgroundAnswers
from specview.gui.link.head_checks import is_here
from specview.settings.run import BUNDLED

if TYPE_CHECKING:
    from specview.models.pair_check import PairReport

LATER = "The tokenizers are compared when the models load."
Pair = tuple[str, str, str, str]
"""(target, its engine, draft, its engine), as settings name them."""


def pair_words(report: PairReport) -> str:
    """Say in one line whether the pair fits, how much of the vocabulary is shared, and what then applies."""
    if not report.ok:
        return report.reason
    if report.mode == "foreign":  # then the reason says how much of the vocabulary is shared
        words = " ".join((report.reason, *report.notes))
        return words[:1].upper() + words[1:]
    return " ".join((f"Same tokenizer as the target: {report.shared:,} tokens agree.", *report.notes))


def check(pair: Pair) -> tuple[str, str]:
    """Return (kind, words) of a pair: kind is 'small' for a pair that fits, else 'warning'.

    ('small', '') where it cannot be told from files.
    """
    from specview.models.catalog import resolve
    from specview.models.pair_check import pair_from_files

    target, engine, draft, draft_engine = pair
    if not (is_here(target) and is_here(draft)):
        return "small", LATER
    try:
        first = resolve(target, _reader(target, engine), "target").path
        second = resolve(draft, _reader(draft, draft_engine), "draft").path
        report = None if first is None or second is None else pair_from_files(first, second)
    except SpecviewError as error:
        return "warning", str(error)
    except OSError as error:
        return "warning", f"The tokenizers cannot be compared: {error.strerror or error}."
    if report is None:
        return "small", LATER
    return "small" if report.ok else "warning", pair_words(report)


def _reader(ref: str, engine: str) -> str:
    """The engine whose file to read: of the bundled models the GGUF files carry their tokenizer."""
    return "llama.cpp" if ref == BUNDLED else engine


class PairChecks(BackgroundAnswers[Pair]):
    """Tells of a draft's and a target's tokenizers whether they fit."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(lambda pair: check(pair), "Comparing the tokenizers…", LATER, parent)

    def words(self, *pair: str) -> tuple[str, str]:
        """(kind, words) of a pair as far as known."""
        target, engine, draft, draft_engine = pair
        return self.answer((target, engine, draft, draft_engine))

    def ask(self, target: str, engine: str, draft: str, draft_engine: str) -> None:
        """Compare this pair in the background, unless that is known."""
        self.want((target, engine, draft, draft_engine))
