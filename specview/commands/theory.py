"""`specview theory`: the closed forms as tables; with a trace, its measured lanes beside what they predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specview.commands.arguments import Parser, real, wholes
from specview.commands.running import running
from specview.decoding import theory
from specview.drafting.plain import baseline_of
from specview.errors import SpecviewError, require
from specview.lab.theory_points import LanePoint, lane_passes, lane_point, theory_report
from specview.settings.run import MAX_K

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
                        help="show this trace's lanes (or a library run's: last, an id, ..) as measured; v(k) is theirs "
                             "unless --v is given")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    return parser


def _reals(text: str) -> tuple[float, ...]:
    return tuple(real(part) for part in text.split(",") if part.strip())


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    given = arguments.v is not None or arguments.v_per_row is not None
    for name, values, fits, words in (
        ("alpha", arguments.alpha, lambda alpha: 0 <= alpha <= 1, "0 to 1"),
        ("k", arguments.k, lambda k: 1 <= k <= MAX_K, f"1 to {MAX_K}"),
        ("c", arguments.c, lambda c: 0 <= c <= 1000, "0 to 1000"),
        ("v", [1.0 if arguments.v is None else arguments.v], lambda v: 0 < v <= 1000, "more than 0, up to 1000"),
        ("v-per-row", [arguments.v_per_row or 0.0], lambda r: 0 <= r <= 1000, "0 to 1000"),
    ):
        require(bool(values), f"--{name} is empty.", f"Give {words}.")
        for value in values:
            require(fits(value), f"{name} is {value:g}.", f"Use {words}.")
    cells = len(arguments.alpha) * len(arguments.k) * len(arguments.c)
    require(cells <= MAX_CELLS, f"that is {cells:,} cells.", f"Ask for {MAX_CELLS:,} or fewer.")
    points, passes = _measured(arguments.recorded) if arguments.recorded is not None else ([], None)
    words, v = _verify_cost(arguments.v, arguments.v_per_row, passes)
    longest = MAX_K
    if passes is not None and not given:
        longest = min(longest, max(max(passes) - 1, *arguments.k))  # beyond, nothing was measured
    with running(arguments) as run:
        return run.end(theory_report(arguments.alpha, arguments.k, arguments.c, v, words, points, longest))


def _verify_cost(v: float | None, per_row: float | None, passes: Mapping[int, float] | None) -> tuple[str, theory.V]:
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


def _measured(path: str) -> tuple[list[LanePoint], Mapping[int, float] | None]:
    from specview.commands.run_files import read_ref

    records = read_ref(path).records
    baseline = baseline_of(records)
    rounds = baseline.rounds if baseline is not None else []
    lanes = [record for record in records if record is not baseline]
    points = [point for record in lanes if (point := lane_point(record.name, record.rounds, rounds)) is not None]
    if not points:
        raise SpecviewError(f"the trace {path!r} has no lane that drafts chains.", "The closed forms are of chains.")
    return points, lane_passes([record.rounds for record in lanes], rounds)
