"""`specview theory`: the closed forms as tables; with a trace, its measured lanes beside what they predict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from specview.commands.arguments import Parser, real, wholes
from specview.commands.outputs import Outputs
from specview.commands.terminal import figure, safe_text, table
from specview.decoding import theory
from specview.drafting.plain import baseline_of
from specview.errors import SpecviewError, UsageError
from specview.files.schema import Json, plain
from specview.lab.theory_points import LanePoint, lane_passes, lane_point
from specview.racing.settings import MAX_K

MAX_CELLS = 10_000

_DESCRIPTION = """\
Expected tokens per target pass and speedup over plain decoding, by the closed forms of Leviathan et al. 2023
(arXiv 2211.17192, equation 1 and theorem 3.8). c is a draft step, v(k) the verifying pass, both in plain steps.
They assume that every drafted token is accepted with the same chance alpha, whatever came before it.
Without flags: the two tables of the literature, c 0.05 and 0.2."""

_EXAMPLES = """\
examples:
  specview theory
  specview theory --alpha 0.62 --k 1,2,3,4 --c 0.1 --v 1.4
  specview theory --alpha 0.62 --c 0.1 --v-per-row 0.25
  specview theory --trace run.jsonl        # measured lanes, and v(k) as measured there"""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview theory", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("--alpha", type=_reals, default=theory.TABLE_ALPHAS, metavar="A,A,..",
                        help="acceptance rates, 0 to 1 (default: 0.5 to 0.9)")  # fmt: skip
    parser.add_argument("--k", type=wholes, default=theory.TABLE_KS, metavar="K,K,..",
                        help="draft lengths: 1,2,4 or 1..8 (default: 1 to 8)")  # fmt: skip
    parser.add_argument("--c", type=_reals, default=theory.TABLE_COSTS, metavar="C,C,..",
                        help="draft costs, a table each (default: 0.05 and 0.2)")  # fmt: skip
    cost = parser.add_mutually_exclusive_group()
    cost.add_argument("--v", type=real, help="verify cost, the same for every k (default: 1)")
    cost.add_argument("--v-per-row", type=real, metavar="R", help="verify cost 1 + R k")
    parser.add_argument("--trace", dest="recorded", metavar="FILE",
                        help="show this trace's lanes (or a library run's: last, an id, ..) as measured; v(k) is theirs where "
                             "--v says nothing")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    return parser


def _list(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(parse(part) for part in text.split(",") if part.strip())


_reals = _list(real)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    _require("alpha", arguments.alpha, lambda alpha: 0 <= alpha <= 1, "0 to 1")
    _require("k", arguments.k, lambda k: 1 <= k <= MAX_K, f"1 to {MAX_K}")
    _require("c", arguments.c, lambda c: 0 <= c <= 1000, "0 to 1000")
    _require("v", [arguments.v] if arguments.v is not None else [1.0], lambda v: 0 < v <= 1000, "more than 0, up to 1000")
    _require("v-per-row", [arguments.v_per_row or 0.0], lambda r: 0 <= r <= 1000, "0 to 1000")
    cells = len(arguments.alpha) * len(arguments.k) * len(arguments.c)
    if cells > MAX_CELLS:
        raise UsageError(f"that is {cells:,} cells.", f"Ask for {MAX_CELLS:,} or fewer.")
    points, passes = _measured(arguments.recorded) if arguments.recorded is not None else ([], None)
    words, v = _verify_cost(arguments.v, arguments.v_per_row, passes)
    longest = MAX_K
    if passes is not None and arguments.v is None and arguments.v_per_row is None:
        longest = min(longest, max(max(passes) - 1, *arguments.k))  # beyond, nothing was measured
    with Outputs(arguments) as outputs:
        document = _document(arguments.alpha, arguments.k, arguments.c, v, words, points, longest)
        outputs.document(plain(document))
        if not outputs.to_stdout:
            sys.stdout.write(_text(document, points))
    return 0


def _require(name: str, values: Sequence[Any], fits: Callable[[Any], bool], words: str) -> None:
    if not values:
        raise UsageError(f"--{name} is empty.", f"Give {words}.")
    for value in values:
        if not fits(value):
            raise UsageError(f"{name} is {value:g}.", f"Use {words}.")


def _verify_cost(v: float | None, per_row: float | None, passes: Any) -> tuple[str, theory.V]:
    """v(k) and what it rests on."""
    if v is not None:
        return f"v = {v:g}, as given", theory.constant_v(v)
    if per_row is not None:
        return f"v(k) = 1 + {per_row:g} k, as given", theory.line_v(per_row)
    if passes:
        rows = ", ".join(str(count) for count in passes)
        words = f"v(k) as measured in the trace for {rows} rows, interpolated between and carried on beyond"
        return words, theory.measured_v(passes)
    return "v = 1: verifying is free", theory.constant_v(1.0)


def _measured(path: str) -> tuple[list[LanePoint], Any]:
    from specview.commands.run_files import read_ref

    records = read_ref(path).records
    baseline = baseline_of(records)
    rounds = baseline.rounds if baseline is not None else []
    lanes = [record for record in records if record is not baseline]
    points = [point for record in lanes if (point := lane_point(record.name, record.rounds, rounds)) is not None]
    if not points:
        raise SpecviewError(f"the trace {path!r} has no lane that drafts chains.", "The closed forms are of chains.")
    return points, lane_passes([record.rounds for record in lanes], rounds)


def _document(
    alphas: Sequence[float], ks: Sequence[int], costs: Sequence[float], v: theory.V, words: str,
    points: Sequence[LanePoint], longest: int = MAX_K,
) -> Json:  # fmt: skip
    """Everything, unrounded."""
    return {
        "name": "theory",
        "source": "Leviathan et al. 2023, arXiv 2211.17192, equation 1 and theorem 3.8",
        "assumption": "every drafted token is accepted with the same chance alpha, whatever came before it (i.i.d.)",
        "alpha": list(alphas),
        "k": list(ks),
        "verify_cost": {"words": words, "v": [v(k) for k in ks]},
        "expected_tokens": [[theory.expected_tokens(alpha, k) for k in ks] for alpha in alphas],
        "rule_of_thumb_error": [[theory.rule_of_thumb_error(alpha, k) for k in ks] for alpha in alphas],
        "tables": [{
            "c": c,
            "speedup": theory.table(c, alphas, ks, v),
            "best_k_of": [0, longest],
            "best_k": [theory.best_k(alpha, c, v, longest) for alpha in alphas],
            "break_even_alpha": [theory.break_even_alpha(k, c, v(k)) for k in ks],
        } for c in costs],
        "lanes": [point.as_dict() for point in points],
    }  # fmt: skip


def _text(document: Json, points: Sequence[LanePoint]) -> str:
    """The document for people."""
    ks, alphas = document["k"], document["alpha"]
    heading = ["alpha", *(f"k {k}" for k in ks)]

    def grid(rows: Sequence[Sequence[float]]) -> list[list[str]]:
        return [[f"{alpha:g}", *(figure(value) for value in row)] for alpha, row in zip(alphas, rows, strict=True)]

    parts = [
        "expected tokens per target pass: (1 - alpha^(k+1)) / (1 - alpha)",
        table([heading, *grid(document["expected_tokens"])]),
        "alpha * k, often quoted for accepted tokens, is too high by (tokens behind a rejection do not count)",
        table([heading, *grid(document["rule_of_thumb_error"])]),
    ]
    for one in document["tables"]:
        rows = [[*row, "plain" if best == 0 else str(best)]
                for row, best in zip(grid(one["speedup"]), one["best_k"], strict=True)]  # fmt: skip
        even = ["even at", *("never" if value is None else figure(value) for value in one["break_even_alpha"]), ""]
        parts.append(f"speedup at c {one['c']:g}: expected tokens / (k c + v(k)); {document['verify_cost']['words']}")
        parts.append(table([[*heading, "best k"], *rows, even]))
    if points:
        lanes = [["lane", "alpha", "k", "c", "v", "predicted by c", "by c and v", "measured"]]
        lanes += [[safe_text(one.name), figure(one.alpha, 3), figure(one.k), figure(one.c, 3), figure(one.v),
                   figure(one.predicted_by_c), figure(one.predicted), figure(one.measured)] for one in points]  # fmt: skip
        parts += ["measured lanes", table(lanes)]
    if document["tables"]:
        parts.append("best k: of 0 (plain) to {}, whatever the columns".format(document["tables"][0]["best_k_of"][1]))
    parts.append(f"assumed: {document['assumption']}; {document['source']}\n")
    return "\n".join(parts)
