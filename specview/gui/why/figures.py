"""All figures of the race's lanes in a table: a row for each of DESIGN section 6, with its formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem

from specview.decoding.metrics import Metrics
from specview.gui.state import figures, lane_words
from specview.gui.state.display_text import brief, clipboard, tooltip, visible
from specview.gui.state.figures import FIGURES, MISSING, Figure, milliseconds, number, percent, whole
from specview.gui.state.view_model import LaneModel, RaceModel


def size(value: float | None) -> str:
    """Format bytes: 12.3 MB."""
    if not value:
        return MISSING
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def series(values: Sequence[float | None]) -> str:
    """Format a figure by position: 0.71 · 0.64 · 0.52."""
    return " · ".join(number(value) for value in values) or MISSING


_EXTRA = tuple(
    Figure(*parts)
    for parts in (
        ("rounds", "rounds", "rounds", "target passes, prefill excluded", whole, "A plain step is a round with an empty draft."),
        ("proposed", "proposed", "proposed", "drafted tokens", whole),
        ("judged", "judged", "judged", "drafted tokens that the rule tried", whole,
         "Up to and including the first rejection of a round; of a tree every trial."),
        ("accepted", "accepted", "accepted", "drafted tokens that were kept", whole),
        ("ignored", "ignored", "ignored", "proposed - judged", whole),
        ("emitted", "emitted", "emitted", "tokens of the output", whole, "The end-of-sequence token counts."),
        ("mean_k", "mean k", "mean draft length", "proposed / rounds with a draft", number),
        ("itl_p50_s", "gap p50", "gap between bursts, median", "median of the round times but the first", milliseconds,
         "Tokens of one round arrive together."),
        ("itl_p95_s", "gap p95", "gap between bursts, 95th percentile", "95th percentile of the round times but the first",
         milliseconds, "Tokens of one round arrive together."),
        ("tpot_s", "time per token", "time per output token", "(last - first arrival) / (tokens - 1)", milliseconds),
        ("distinct_4grams", "distinct 4-grams", "distinct 4-grams", "distinct ones / all 4-grams of the output", percent,
         "A text that loops has few, and flatters drafters that copy."),
    )
)  # fmt: skip
_SERIES = {
    "position_acceptance": ("acceptance by position", "rounds with i or more accepted / rounds with a draft",
                            "Unconditional: what llama.cpp and vLLM show. i runs from 1; in trees it is a depth."),
    "position_acceptance_conditional": ("acceptance by position, conditional", "accepted at i / judged at i",
                                        "Given that all before it were accepted."),
}  # fmt: skip
ORDER = (
    "decode_tokens_per_s", "plain_tokens_per_s", "speedup", "acceptance_rate", "draft_acceptance", "tokens_per_target_pass",
    "mean_accepted_length", "expected_tokens", "draft_cost", "verify_cost", "predicted_speedup",
    "predicted_speedup_measured_verify", "draft_share", "verify_share", "other_share", "ttft_s", "total_s", "itl_p50_s",
    "itl_p95_s", "tpot_s", "position_acceptance", "position_acceptance_conditional", "rounds", "proposed", "judged",
    "accepted", "ignored", "emitted", "mean_k", "distinct_4grams", "oracle_share", "weights", "draft_weights", "kv_cache",
)  # fmt: skip
_MEMORY = {
    "plain_tokens_per_s": ("beside it", "plain's decode tok/s over the same time", "What the speedup is held against."),
    "weights": ("target weights", "bytes of the target's weights", "Loaded once for all lanes."),
    "draft_weights": ("draft weights", "bytes of the weights that draft", "A draft model's, or a head's."),
    "kv_cache": ("KV cache", "bytes that this lane's caches may take, target and draft", ""),
}


def row_of(name: str) -> tuple[str, str, str]:
    """A figure's title, formula and note."""
    if name in _SERIES:
        return _SERIES[name]
    if name in _MEMORY:
        return _MEMORY[name]
    found = _figure(name)
    return found.title, found.formula, found.note


def _figure(name: str) -> Figure:
    return FIGURES.get(name) or next(figure for figure in _EXTRA if figure.name == name)


def cell(name: str, race: RaceModel, lane: LaneModel, metrics: Metrics) -> str:
    """A figure of a lane as text."""
    if name in _SERIES:
        return series(getattr(metrics, name))
    if name == "decode_tokens_per_s":
        return _figure(name).text(figures.shown_rate(race.speedup(lane), metrics))
    if name == "plain_tokens_per_s":
        return figures.beside(race.speedup(lane)) or MISSING
    if name == "speedup":
        if lane.plain:
            return MISSING
        found = race.speedup(lane)
        spread = figures.spread(found)
        value = FIGURES[name].text(None if found is None else found.value)
        return f"{value} ({spread})" if spread else value
    memory: dict[str, Callable[[], Any]] = {
        "weights": lambda: race.facts.get("target_weight_bytes"),
        "draft_weights": lambda: lane.draft_weight_bytes,
        "kv_cache": lambda: lane.kv_bytes,
    }
    if name in memory:
        value = memory[name]()
        return size(value if isinstance(value, (int, float)) else None)
    return _figure(name).text(getattr(metrics, name))


class FigureTable(QTableWidget):
    """Figures down, lanes across, the formula last; Ctrl+C copies what is selected, or all."""

    def __init__(self) -> None:
        super().__init__(len(ORDER), 2)
        self.setAccessibleName("All figures")
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setWordWrap(False)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.verticalHeader().hide()
        self._names: list[str] = []
        copy = QShortcut(QKeySequence(QKeySequence.StandardKey.Copy), self)
        copy.setContext(Qt.ShortcutContext.WidgetShortcut)
        copy.activated.connect(self.copy)

    def show_race(self, race: RaceModel) -> None:
        """Show every lane's figures; what did not change is left alone."""
        names = [f"{lane.name}, {lane_words.LOSSY}" if lane_words.lossy(lane.settings) else lane.name for lane in race.lanes]
        last = len(names) + 1
        if names != self._names:
            self._names = names
            self.clearContents()
            self.setColumnCount(last + 1)
            self.setHorizontalHeaderLabels(["figure", *(brief(visible(name), 36) for name in names), "formula"])
            header = self.horizontalHeader()
            header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
            header.setSectionResizeMode(last, QHeaderView.ResizeMode.Stretch)
            header.setMinimumSectionSize(70)
            for place, name in enumerate(ORDER):
                title, formula, _ = row_of(name)
                self._put(place, 0, title, name, left=True)
                self._put(place, last, formula, name, left=True)
        for column, lane in enumerate(race.lanes, start=1):
            metrics = race.metrics(lane)
            for place, name in enumerate(ORDER):
                self._put(place, column, cell(name, race, lane, metrics), name)

    def _put(self, row: int, column: int, text: str, name: str, *, left: bool = False) -> None:
        item = self.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            side = Qt.AlignmentFlag.AlignLeft if left else Qt.AlignmentFlag.AlignRight
            item.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
            title, words, note = row_of(name)
            item.setToolTip(tooltip("\n".join(filter(None, (f"{title} = {words}", note)))))
            self.setItem(row, column, item)
        if item.text() != text:
            item.setText(text)

    def text(self) -> str:
        """The selected cells, or all, as tab-separated text with names."""
        chosen = self.selectedIndexes()
        alone = len(chosen) < 2
        rows = list(range(self.rowCount())) if alone else sorted({index.row() for index in chosen})
        columns = list(range(self.columnCount())) if alone else sorted({0, *(index.column() for index in chosen)})
        heads = ["figure", *(visible(name) for name in self._names), "formula"]
        lines = ["\t".join(heads[column] for column in columns if column < len(heads))]
        for row in rows:
            cells = [self.item(row, column) for column in columns]
            lines.append("\t".join(item.text() if item is not None else "" for item in cells))
        return "\n".join(lines)

    def copy(self) -> None:
        """Put the selected cells, or all, on the clipboard."""
        QGuiApplication.clipboard().setText(clipboard(self.text()))
