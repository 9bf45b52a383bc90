"""`specview compare`: several lanes and plain decoding on one prompt, raced; a table of their figures."""

from __future__ import annotations

from collections.abc import Sequence

from specview.commands.arguments import (
    Parser,
    add_shared_flags,
    lane_keys_help,
    prompts_of,
    whole,
)
from specview.commands.branching import add_branch_flag, parsed
from specview.commands.outputs import add_keep_flag
from specview.commands.running import Running, running
from specview.drafting.registry import FIRST_METHODS
from specview.errors import SpecviewError, UsageError
from specview.files.documents import compare_document
from specview.files.report import report_markdown
from specview.library.exporters import compare_csv, compare_markdown
from specview.library.reports import compare_report
from specview.racing.resolve import checked_run
from specview.racing.workloads import Workload
from specview.settings.run import RunSettings

MAX_REPEATS = 1000

_DESCRIPTION = """\
Race several methods and plain decoding on one prompt and print a table of their figures.
With --prompts every prompt of the file is a race, and the tables are by request and by workload.
Without flags: the bundled target and draft; plain, draft-model and prompt-lookup; the workload chat."""

_EXAMPLES = """\
examples:
  specview compare --workload code-edit --json out.json
  specview compare --method draft-model --lane "prompt-lookup,k=8,match=last" --repeats 5
  specview compare --lane "draft-model,rule=match" --lane draft-model --temperature 0.8 --seed 1
  specview compare --prompts mine.jsonl --lane "draft-model,k=3" --csv requests.csv   # every line a race"""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview compare", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    add_shared_flags(parser, sets=True)
    add_branch_flag(parser)
    parser.add_argument("--repeats", type=whole, default=1, help="run it so often, interleaved, and print medians")
    add_keep_flag(parser)
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments, settings = parsed(make_parser(), argv, FIRST_METHODS, all_lanes=True)
    if not 1 <= arguments.repeats <= MAX_REPEATS:
        raise UsageError(f"repeats is {arguments.repeats}.", f"Use 1 to {MAX_REPEATS}.")
    if arguments.prompts is not None and arguments.trace is not None:
        raise UsageError("--trace holds one race, and --prompts makes many.", "Leave out --trace, or use --json.")
    settings = checked_run(settings)
    prompts = None if arguments.prompts is None else prompts_of(arguments)
    with running(arguments) as run:
        if prompts is not None:
            return _compare_set(settings, prompts, arguments.repeats, run)
        return _compare(settings, arguments.repeats, run)


def _compare(settings: RunSettings, repeats: int, run: Running) -> int:
    from specview.racing.compare import compare

    take = run.watch(settings.max_tokens * len(settings.lanes), repeats)
    result = compare(settings, repeats, run.models, take, run.should_stop)
    if not result.lanes:  # stopped before any lane began
        return run.end(None)
    document = compare_document(result)
    tables = {"csv": lambda: compare_csv(document), "markdown": lambda: compare_markdown(document)}
    code = run.end(compare_report(document, [result.busy] if result.busy else []), stopped=result.end == "stopped", files=tables)
    if result.trouble:
        raise SpecviewError(f"lane {result.trouble}")
    for lane in document["lanes"]:  # of whichever repeat
        if lane["output"]["end"] == "error" or lane.get("error"):
            raise SpecviewError(f"lane {lane['name']}: {lane.get('error', 'it ended by an error')}")
    return code


def _compare_set(settings: RunSettings, prompts: Workload, repeats: int, run: Running) -> int:
    from specview.experiments import prompt_set as sets
    from specview.experiments.runner import SeriesProgress

    def show(news: sets.PromptSetResult | SeriesProgress) -> None:
        if isinstance(news, SeriesProgress):
            run.progress.show(news.words, news.fraction)

    result = sets.run_prompt_set(
        settings, prompts, repeats, run.models, show, run.should_stop, on_event=run.outputs.keep
    )
    if not result.requests:  # stopped before any race gave something
        raise KeyboardInterrupt
    report = sets.prompt_set_report(result)
    whole = {"csv": lambda: report.csv, "markdown": lambda: report_markdown(report)}
    code = run.end(sets.printed_report(report, result), stopped=result.end == "stopped", files=whole)
    failures, requests = result.failures, result.requests
    if len(failures) == len(requests):
        raise SpecviewError(f"no request ran. The first: {failures[0].error}")
    for lane in requests[-1].lanes[1:]:
        if lane.error and not any(one.runs for request in requests for one in request.lanes if one.name == lane.name):
            raise SpecviewError(f"lane {lane.name}: {lane.error}")
    if code:
        return code
    if failures:
        first = failures[0]
        raise SpecviewError(
            f"{len(failures)} of {len(requests)} requests did not run. The first, {first.number}: {first.error}"
        )
    for request in requests:
        for lane in request.lanes:
            if lane.error:  # in this request, or in one of its repeats
                raise SpecviewError(f"request {request.number}, lane {lane.name}: {lane.error}")
    return 0
