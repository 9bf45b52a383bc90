"""`specview exactness`: the proof that output is still the target's, on a toy or on a real pair."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from specview.commands.arguments import Parser, add_shared_flags, lane_keys_help, settings_of, whole
from specview.commands.outputs import Outputs
from specview.commands.running import STOPPED_CODE, StopRequest, stop_on_signals
from specview.commands.terminal import ProgressLine, figure, safe_text, table
from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import SpecviewError, UsageError
from specview.files.schema import plain
from specview.lab import exact_statistics, exactness, pair_results, policy_exactness
from specview.lab.exact_statistics import p_text
from specview.lab.exactness import ToyResult, check_samples, check_seeds, run_toy, toy_document
from specview.lab.pair_exactness import run_pair
from specview.lab.pair_results import PairResult, PairSettings, pair_document
from specview.lab.policy_exactness import PoliciesResult, policies_document, run_policies
from specview.lab.toy import ToySettings
from specview.racing.settings import BUNDLED, RunSettings

_DESCRIPTION = """\
Is the output still the target's own?

Without flags: the toy proof. A random bigram target and a blurred draft, small enough that every outcome's
probability is known; each sampler's total variation from it, by closed form and over many samples. With --policies
the toy runs through the product's own loop, with every length policy, auto and cascade, under each rule that claims
to be exact.

With --pair, TARGET DRAFT, or any flag that only a real pair has: thousands of short continuations of a prompt by
plain decoding and by the lane, compared over their first tokens. Every prefix is computed once; the rule is judged on
those rows, the kernels (one row against several) apart from it, and greedy decoding token for token.
The rules naive and typical are lossy: they go along as controls, and the naive one must be caught."""

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
    toys.add_argument("--model-seed", type=whole, help="of its random tables (default: 2, the literature's)")
    toys.add_argument("--seeds", type=whole,
                      help="also: p values over so many seeds, which of a correct sampler spread over 0..1")  # fmt: skip
    toys.add_argument("--policies", action="store_true",
                      help="every length policy, auto and cascade instead, by the product's own loop (1 ms a sample)")  # fmt: skip
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
        "temperature": f"default: {_TEMPERATURE:g}; 0 leaves the token-for-token check alone",
        "top_k": f"default: {_TOP_K}, which keeps the prefixes few; 0 is off",
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


# -- the toy -----------------------------------------------------------------------------------------------


def _toy(arguments: argparse.Namespace) -> int:
    given = {
        "vocab": arguments.vocab, "length": arguments.length, "k": arguments.k, "model_seed": arguments.model_seed
    }  # fmt: skip
    settings = ToySettings(**{name: value for name, value in given.items() if value is not None})
    usual = policy_exactness.SAMPLES if arguments.policies else exactness.SAMPLES
    samples = usual if arguments.samples is None else arguments.samples
    seeds = arguments.seeds or 0
    check_samples(samples)
    check_seeds(seeds)
    if not 0 <= arguments.seed < 2**63:
        raise UsageError(f"seed is {arguments.seed}.", "Use a whole number from 0 to 2^63 - 1.")
    if arguments.policies:
        if arguments.seeds is not None:
            raise UsageError("--seeds says nothing with --policies.", "Leave it out.")
        return _policies(arguments, settings, samples)
    progress = ProgressLine(sys.stderr)

    def on_part(part: ToyResult) -> None:
        done = max((len(one.p_values) for one in part.seeds.values()), default=0)
        if done:
            progress.show(f"Seeds {done} of {seeds}", done / seeds)
        else:
            progress.show(f"Samples {part.samples:,}", part.samples / samples)

    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        try:
            result = run_toy(settings, samples, arguments.seed, seeds, on_part, should_stop)
        finally:
            progress.clear()
        if not result.samples:  # stopped before there was anything
            raise KeyboardInterrupt
        return _end(result, plain(toy_document(result)), toy_text(result), outputs)


def _policies(arguments: argparse.Namespace, settings: ToySettings, samples: int) -> int:
    progress = ProgressLine(sys.stderr)
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        try:
            result = run_policies(
                settings, samples, arguments.seed, lambda part, text, fraction: progress.show(text, fraction), should_stop
            )
        finally:
            progress.clear()
        if not result.cases:  # stopped before there was anything
            raise KeyboardInterrupt
        return _end(result, plain(policies_document(result)), policies_text(result), outputs)


def policies_text(result: PoliciesResult) -> str:
    """Return the experiment with every policy for people."""
    settings = result.settings
    rows = [["rule", "policy", "total variation", "1/sqrt(N) line", "chi-square p", "behind unjudged", "p", "tok/pass", "verdict"]]
    for one in result.cases:
        rows.append(
            [
                f"{one.rule} (lossy)" if one.lossy else one.rule,
                one.policy,
                figure(one.tv, 4),
                figure(one.line, 4),
                p_text(one.chi2_p),
                f"{one.behind:,}",
                p_text(one.behind_p),
                figure(one.tokens_per_pass, 2),
                one.words,
            ]
        )
    about = (
        f"Toy: {settings.vocab} tokens, length {settings.length}, k {settings.k}, model seed {settings.model_seed}, by the "
        f"product's own loop; {result.samples:,} sequences each, {result.seconds:.1f} s"
    )
    notes = (
        "behind unjudged: rounds after one that left drafted tokens unjudged, and the p of their first tokens being the\n"
        f"target's. {policy_exactness.NOSY} is no policy of the product's: it looks at such tokens as hard as it can."
    )
    stopped = "Stopped early. " if result.stopped else ""
    return f"{about}\n\n{_table(rows)}\n{notes}\n\n{stopped}{result.sentence}\n"


def _end(result: ToyResult | PoliciesResult | PairResult, document: Any, text: str, outputs: Outputs) -> int:
    """Write what there is; the exit code, or the one line of a proof that failed."""
    outputs.document(document)
    if not outputs.to_stdout:
        sys.stdout.write(text)
    if not result.holds:
        raise SpecviewError(
            "exactness is not shown: see the verdict above."
            if not outputs.to_stdout
            else "exactness is not shown: see the document's verdict.",
            "Run it again with another --seed: an accident is rare, and a fault comes again.",
        )
    return STOPPED_CODE if result.stopped else 0


def toy_text(result: ToyResult) -> str:
    """Return the toy experiment for people."""
    settings = result.settings
    heading = ["sampler", "total variation", "exact bias", "chi-square p", "alpha (exact)", "tok/pass (exact)", "verdict"]
    rows = [heading]
    for one in result.samplers.values():
        rows.append(
            [
                f"{one.name} (lossy)" if one.lossy else one.name,
                figure(one.tv, 4),
                figure(one.bias, 4) if one.lossy else "0",
                p_text(one.chi2_p),
                _beside(one.alpha, one.exact_alpha, 3),
                _beside(one.tokens_per_pass, one.exact_tokens_per_pass, 3),
                one.words,
            ]
        )
    line = result.line[-1][1]
    about = (
        f"Toy: {settings.vocab} tokens, length {settings.length} ({settings.outcomes:,} outcomes), k {settings.k}, "
        f"model seed {settings.model_seed}; {result.samples:,} samples each, {result.seconds:.1f} s"
    )
    alphas = ", ".join(figure(value, 3) for value in result.exact.overlap.tolist()[:16])
    more = ", .." if settings.vocab > 16 else ""
    notes = [
        f"An exact sampler's total variation at {result.samples:,} samples is {line:.4f} on average, the 1/sqrt(N) line.",
        f"alpha per context, sum min(p, q): {alphas}{more}.",
    ]
    text = f"{about}\n\n{_table(rows)}\n" + "\n".join(notes) + "\n"
    if result.seeds:
        text += f"\n{_seeds_text(result)}"
    stopped = "Stopped early. " if result.stopped else ""
    return f"{text}\n{stopped}{result.sentence}\n"


def _seeds_text(result: ToyResult) -> str:
    rows = [["sampler", "seeds", "p below 0.05", "refused", "p of being uniform", "verdict"]]
    for one in result.seeds.values():
        low = sum(p < 0.05 for p in one.p_values)
        if one.lossy:
            words = "lossy: p values near 0" if one.refused else "lossy"
        else:
            words = "spread over 0..1" if one.holds else "NOT spread over 0..1"
        rows.append([one.name, str(len(one.p_values)), str(low), str(one.refused), p_text(one.spread), words])
    return f"chi-square p over seeds, {result.seed_samples:,} samples each\n{_table(rows)}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose last column is words: left-aligned."""
    width = max(len(row[-1]) for row in rows)
    return table([[*row[:-1], row[-1].ljust(width)] for row in rows])


def _beside(measured: float | None, exact: float | None, digits: int) -> str:
    return "-" if measured is None or exact is None else f"{measured:.{digits}f} ({exact:.{digits}f})"


# -- the pair ----------------------------------------------------------------------------------------------


def _pair(arguments: argparse.Namespace) -> int:
    if len(arguments.models) not in (0, 2):
        raise UsageError(f"{len(arguments.models)} models.", "Name a target and a draft, or neither.")
    if arguments.models:
        if arguments.target != BUNDLED or arguments.draft is not None:
            raise UsageError("models are named twice.", "Give TARGET DRAFT, or --target and --draft.")
        arguments.target, arguments.draft = arguments.models
    settings = settings_of(arguments, (DEFAULT_METHOD,)).checked()
    pair = PairSettings(
        samples=pair_results.SAMPLES if arguments.samples is None else arguments.samples,
        tokens=arguments.tokens,
        greedy_tokens=arguments.max_tokens,
    )
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        return _run_pair(settings, pair, outputs, should_stop)


def _run_pair(settings: RunSettings, pair: PairSettings, outputs: Outputs, should_stop: StopRequest) -> int:
    progress = ProgressLine(sys.stderr)
    try:
        result = run_pair(settings, pair, None, lambda part, text, fraction: progress.show(text, fraction), should_stop)
    finally:
        progress.clear()
    if result.greedy is None and not result.rules:  # stopped before there was anything
        raise KeyboardInterrupt
    return _end(result, plain(pair_document(result)), pair_text(result), outputs)


def pair_text(result: PairResult) -> str:
    """Return the pair's experiment for people."""
    settings, lane = result.settings, result.settings.lanes[1]
    target = safe_text(str(result.facts.get("target_model_name") or settings.target))
    sampling = settings.sampling
    filters = [f"temperature {sampling.temperature:g}"]
    filters += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    filters += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    filters += [f"min-p {sampling.min_p:g}"] if sampling.min_p else []
    about = (
        f"Pair: {target} with {safe_text(lane.label)}, {settings.engine}, "
        f"{'check mode, ' if settings.check_mode else ''}{', '.join(filters)}; prompt of {len(result.prompt_ids)} tokens; "
        f"{result.seconds:.1f} s"
    )
    text = f"{about}\n"
    if result.rules:
        text += f"\n{_table(_rule_rows(result))}"
        text += (
            "TV: total variation from plain decoding's sample; bound: what two samples of one distribution stay under\n"
            "99 times in 100 (permutations); caught: the smallest total variation that the chi-square test would have\n"
            f"caught {exact_statistics.POWER * 10:.0f} times in 10. Rare outcomes are pooled into cells.\n"
        )
    if result.first:
        text += f"\n{_table(_first_rows(result))}"
    if result.cached:
        text += f"\n{_cached_words(result)}\n"
    stopped = "Stopped early.\n" if result.stopped else ""
    return f"{text}\n{stopped}" + "\n".join(result.sentences) + "\n"


def _rule_rows(result: PairResult) -> list[list[str]]:
    rows = [["rule", "first tokens", "cells", "TV", "bound", "permutation p", "chi-square p", "caught", "alpha"]]
    for one in result.rules.values():
        for test in one.tests:
            first = test.depth == 1
            rows.append(
                [
                    (f"{one.name} (lossy)" if one.lossy else one.name) if first else "",
                    str(test.depth),
                    str(test.cells),
                    figure(test.tv, 3),
                    figure(test.bound, 3),
                    p_text(test.permutation_p),
                    p_text(test.chi2_p),
                    figure(test.least_caught, 3),
                    figure(one.accepted / one.judged, 3) if first and one.judged else "",
                ]
            )
    return rows


def _first_rows(result: PairResult) -> list[list[str]]:
    names = list(result.first[0].shares)
    rows = [["first token", "p", "q", *(f"{name}, share" for name in names)]]
    for one in result.first[:8]:
        text = safe_text(one.text).replace("\n", "\\n").replace("\t", "\\t")
        rows.append(
            [repr(text), figure(one.p, 3), figure(one.q, 3), *(figure(one.shares[name], 3) for name in names)]
        )
    return rows


def _cached_words(result: PairResult) -> str:
    cached = result.cached
    words = (
        f"Computed once per prefix: {cached['target_rows_computed']:,} rows of the target in "
        f"{cached['target_passes']:,} passes answered {cached['target_rows_asked']:,} questions"
    )
    if "draft_passes" in cached:
        words += (
            f"; {cached['draft_rows_computed']:,} of the draft in {cached['draft_passes']:,} passes "
            f"{cached['draft_rows_asked']:,}"
        )
    return f"{words}."

