"""A run's rounds as one table, a row per round: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from specview.decoding.ledger import Round
from specview.errors import SpecviewError
from specview.files.reader import Trace
from specview.files.tables import csv_text

COLUMNS: tuple[tuple[str, str], ...] = (
    # name, Parquet type
    ("run", "string"), ("lane", "int32"), ("lane_name", "string"), ("method", "string"), ("round", "int64"),
    ("t_s", "double"), ("draft_s", "double"), ("verify_s", "double"), ("other_s", "double"), ("observe_s", "double"),
    ("drafter", "string"), ("rows", "int32"), ("k", "int32"), ("judged", "int32"), ("accepted", "int32"),
    ("ignored", "int32"), ("emitted", "int32"), ("emitted_before", "int64"), ("final_kind", "string"),
    ("token_ids", "list"), ("text", "string"),
)  # fmt: skip
"""t_s is the lane's clock at the round's end, rows those of the target pass, token_ids what the round emitted."""
PARQUET_MEND = "Install it: pip install pyarrow. CSV and JSON need nothing."


def round_rows(runs: Sequence[tuple[str, Trace]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row of COLUMNS per round; runs are (name of the run, its trace)."""
    for run, trace in runs:
        for lane, record in enumerate(trace.records):
            method, before = str(record.settings.get("method") or ""), 0
            for round_ in record.rounds:
                emitted = round_.emitted
                yield (
                    run, lane, record.name, method, round_.index, round_.t, round_.draft_s, round_.verify_s,
                    round_.other_s, round_.observe_s, round_.drafter, round_.rows, round_.k, round_.judged,
                    round_.accepted, round_.k - round_.judged, len(emitted), before,
                    round_.final.kind if round_.final is not None else "", list(emitted), _emitted_text(round_),
                )  # fmt: skip
                before += len(emitted)


def rounds_csv(runs: Sequence[tuple[str, Trace]]) -> str:
    """Return the rounds as CSV; token_ids are separated by spaces."""
    lines = ([" ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row] for row in round_rows(runs))
    return csv_text([[name for name, _ in COLUMNS], *lines])


def rounds_parquet(runs: Sequence[tuple[str, Trace]]) -> bytes:
    """Return the rounds as a Parquet file; raise SpecviewError, one line, where pyarrow is not installed."""
    arrow, parquet = load_arrow()
    types = {
        "string": arrow.string(), "int32": arrow.int32(), "int64": arrow.int64(), "double": arrow.float64(),
        "list": arrow.list_(arrow.int64()),
    }  # fmt: skip
    columns: list[list[Any]] = [[] for _ in COLUMNS]
    for row in round_rows(runs):
        for column, cell in zip(columns, row, strict=True):
            column.append(_writable(cell) if isinstance(cell, str) else cell)
    arrays = [arrow.array(column, type=types[kind]) for column, (_, kind) in zip(columns, COLUMNS, strict=True)]
    table = arrow.Table.from_arrays(arrays, names=[name for name, _ in COLUMNS])
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def load_arrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet; raise SpecviewError, one line, where they are not installed."""
    import importlib

    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SpecviewError("Parquet needs pyarrow, which is not installed here.", PARQUET_MEND) from None


def _emitted_text(round_: Round) -> str:
    parts = [token.text for token in round_.drafted if token.verdict == "accepted"]
    return "".join([*parts, round_.final.text if round_.final is not None else ""])


def _writable(text: str) -> str:
    """Text as UTF-8 can hold it: a half of a surrogate pair, which a token may be, becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")
