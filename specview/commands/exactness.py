"""`specview exactness`: the proof that output is still the target's, on a toy or on a real pair."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from specview.commands.arguments import Parser, add_shared_flags, lane_keys_help, settings_of, whole
from specview.commands.running import Running, running
from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import SpecviewError, UsageError, require
from specview.files.report import Report
from specview.lab import exactness, pair_results, policy_exactness
from specview.lab.exactness import ToyResult, check_samples, check_seeds, run_toy, toy_report
from specview.lab.pair_exactness import run_pair
from specview.lab.pair_results import PairResult, PairSettings, pair_report
from specview.lab.policy_exactness import PoliciesResult, policies_report, run_policies
from specview.lab.toy import ToySettings
from specview.racing.resolve import checked_run
from specview.settings.run import BUNDLED

_DESCRIPTION = """\
Is the output still the target's own?

Without flags: the toy proof. A random bigram target and a blurred draft, small enough that every outcome's
probability is known; each sampler's total variation from it, by closed form and over many samples. With --policies
the toy runs through the program's own loop, with every length policy, auto and cascade, under each rule that claims
to be exact.

With --pair, TARGET DRAFT, or any flag that only a real pair has: thousands of short continuations of a prompt by
plain decoding and by the lane, compared over their first tokens. Every prefix is computed once; the rule is judged on
those rows, the kernels (one row against several) apart from it, and greedy decoding token for token.
The lossy rules naive and typical are run as controls, and the naive one must be caught."""

_EXAMPLES = """\
examples:
  specview exactness --samples 400000 --json proof.json
  specview exactness --vocab 8 --length 4 --k 5 --seeds 200
  specview exactness --policies --samples 20000
  specview exactness --pair --engine llama.cpp --check-mode
  specview exactness target.gguf draft.gguf --engine llama.cpp --tokens 4 --samples 5000
  specview exactness --lane "draft-model,k=3,rule=match" --temperature 0.8 --top-k 20"""

_TEMPERATURE, _TOP_K = 1.0, 8
"""Of a pair: few enough prefixes that a few dozen passes carry thousands of continuations."""

_TOY_FLAGS = {"vocab": "--vocab", "length": "--length", "model_seed": "--model-seed", "seeds": "--seeds"}
_BOTH = ("samples", "k", "seed", "json", "pair", "models", "policies", *_TOY_FLAGS)


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview exactness", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    parser.add_argument("models", nargs="*", metavar="TARGET DRAFT", help="test this pair (as --target and --draft)")
    parser.add_argument("--samples", type=whole,
                        help=f"samples of each sampler (default: {exactness.SAMPLES:,}; with --policies "
                             f"{policy_exactness.SAMPLES:,}; of a pair {pair_results.SAMPLES:,} continuations)")  # fmt: skip
    toys = parser.add_argument_group("toy")
    toys.add_argument("--vocab", type=whole, help="tokens (default: 4)")
    toys.add_argument("--length", type=whole, help="tokens of a sequence (default: 4)")
    toys.add_argument("--model-seed", type=whole, help="seed of its random tables (default: 2, as in the literature)")
    toys.add_argument("--seeds", type=whole,
                      help="also show p values over this many seeds: a correct sampler's are spread evenly over 0..1")  # fmt: skip
    toys.add_argument("--policies", action="store_true",
                      help="test every length policy, auto and cascade instead, in the program's own loop (1 ms a sample)")  # fmt: skip
    pair = parser.add_argument_group("real pair")
    pair.add_argument("--pair", action="store_true", help="test a real pair (bundled, unless models are named)")
    pair.add_argument("--tokens", type=whole, default=pair_results.TOKENS,
                      help=f"tokens of a continuation (default: {pair_results.TOKENS})")  # fmt: skip
    add_shared_flags(parser)
    parser.set_defaults(temperature=_TEMPERATURE, top_k=_TOP_K, max_tokens=pair_results.GREEDY_TOKENS)
    _reword(parser)
    return parser


def _reword(parser: argparse.ArgumentParser) -> None:
    """Say what the shared flags mean here, and leave out those that mean nothing."""
    words = {
        "temperature": f"default: {_TEMPERATURE:g}; 0 runs only the token-for-token check",
        "top_k": f"default: {_TOP_K}, which keeps the number of prefixes small; 0 is off",
        "max_tokens": f"of the greedy token-for-token check (default: {pair_results.GREEDY_TOKENS})",
        "k": "tokens drafted a round (default: 3 on the toy)",
        "observe": argparse.SUPPRESS,
        "trace": argparse.SUPPRESS,
    }
    for action in parser._actions:
        if action.dest in words:
            action.help = words[action.dest]


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    for flag, value in (("--trace", arguments.trace), ("--observe", arguments.observe)):
        if value is not None:
            raise UsageError(f"{flag} is for run and compare.", "Use --json here.")
    if _is_pair(parser, arguments):
        return _pair(arguments)
    return _toy(arguments)


def _is_pair(parser: Parser, arguments: argparse.Namespace) -> bool:
    """Whether any flag asks for a real pair; flags of both are refused."""
    asked = arguments.pair or bool(arguments.models)
    for name, value in vars(arguments).items():
        asked = asked or (name not in _BOTH and value != parser.get_default(name))
    if asked:
        for name, flag in _TOY_FLAGS.items():
            if getattr(arguments, name) is not None:
                raise UsageError(f"{flag} is for the toy, and this run tests a real pair.", f"Leave out {flag}.")
        if arguments.policies:
            raise UsageError(
                "--policies is for the toy, and this run tests a real pair.",
                "Leave it out: a pair is tested with the policy of its lane (--policy, or --lane).",
            )
    return asked


def _toy(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in ("vocab", "length", "k", "model_seed")}
    settings = ToySettings(**{name: value for name, value in given.items() if value is not None})
    usual = policy_exactness.SAMPLES if arguments.policies else exactness.SAMPLES
    samples = usual if arguments.samples is None else arguments.samples
    seeds = arguments.seeds or 0
    check_samples(samples)
    check_seeds(seeds)
    require(0 <= arguments.seed < 2**63, f"seed is {arguments.seed}.", "Use a whole number from 0 to 2^63 - 1.")
    require(not arguments.policies or arguments.seeds is None, "--seeds says nothing with --policies.", "Leave it out.")
    with running(arguments) as run:
        if arguments.policies:
            tested = run_policies(settings, samples, arguments.seed, _shown(run), run.should_stop)
            return _end(run, tested, policies_report(tested) if tested.cases else None)
        result = run_toy(settings, samples, arguments.seed, seeds, _shown(run), run.should_stop)
        return _end(run, result, toy_report(result) if result.samples else None)


def _pair(arguments: argparse.Namespace) -> int:
    require(len(arguments.models) in (0, 2), f"{len(arguments.models)} models.", "Name a target and a draft, or neither.")
    if arguments.models:
        require(arguments.target == BUNDLED and arguments.draft is None, "models are named twice.",
                "Give TARGET DRAFT, or --target and --draft.")  # fmt: skip
        arguments.target, arguments.draft = arguments.models
    settings = checked_run(settings_of(arguments, (DEFAULT_METHOD,)))
    samples = pair_results.SAMPLES if arguments.samples is None else arguments.samples
    pair = PairSettings(samples, arguments.tokens, arguments.max_tokens)
    with running(arguments) as run:
        result = run_pair(settings, pair, run.models, _shown(run), run.should_stop)
        return _end(run, result, pair_report(result) if result.greedy is not None or result.rules else None)


def _shown(run: Running) -> Callable[[Any, str, float | None], None]:
    return lambda part, text, fraction: run.progress.show(text, fraction)


def _end(run: Running, result: ToyResult | PoliciesResult | PairResult, report: Report | None) -> int:
    """Write what there is; the exit code, or the one line of a proof that failed."""
    code = run.end(report, stopped=result.stopped)
    if not result.holds:
        where = "the document's verdict" if run.outputs.to_stdout else "the verdict above"
        raise SpecviewError(
            f"exactness is not shown: see {where}.",
            "Run it again with another --seed: an accident is rare, and a fault comes again.",
        )
    return code
