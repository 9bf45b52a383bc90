"""`specview serve-command`: the commands that start serving engines with a lane, and what each does otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specview.commands.arguments import Parser, add_shared_flags, lane_keys_help, settings_of
from specview.commands.run_files import lane_of, read_ref
from specview.commands.running import running
from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import UsageError
from specview.library.repeat import lane_text, settings_of_trace
from specview.racing.resolve import checked_run
from specview.remote.launch import launch
from specview.remote.launch_report import serve_report
from specview.remote.launch_table import ENGINES
from specview.settings.run import LaneSettings, RunSettings

_DESCRIPTION = """\
Print what starts llama-server, vLLM, SGLang and TensorRT-LLM with a lane: today's flags and JSON, the path of the draft
or head, and what the engine does otherwise. Of the lane that the flags say, or of a recorded RUN. Nothing is started."""

_EXAMPLES = """\
examples:
  specview serve-command --lane "eagle3,k=4"
  specview serve-command last --lane eagle3 --server vllm
  specview serve-command --method ngram-mod --target model.gguf --server llama-server --json -
  specview check-command "$(cat start.sh)"      # and back"""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview serve-command", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    parser.usage = "specview serve-command [options] [RUN]"
    parser.add_argument("recorded", metavar="RUN", nargs="?",
                        help="a trace file, or a run of the library (an id, a name, last, ..); --lane N or NAME then "
                             "chooses of its lanes")  # fmt: skip
    parser.add_argument("--server", action="append", metavar="NAME", help=f"repeatable: {', '.join(ENGINES)} (default: all)")
    add_shared_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    for name in arguments.server or ():
        if name not in ENGINES:
            raise UsageError(f"there is no server {name[:80]!r}.", f"Servers: {', '.join(ENGINES)}.")
    servers = [engine for name, engine in ENGINES.items() if arguments.server is None or name in arguments.server]
    with running(arguments) as run:
        if arguments.recorded is not None:
            settings, lanes = _recorded(arguments.recorded, arguments.lanes)
        else:
            settings = checked_run(replace(settings_of(arguments, (DEFAULT_METHOD,)), baseline=False))
            lanes = list(settings.lanes)
        device = settings.device or "cpu"
        made = [(lane.label, lane_text(lane), [launch(engine, settings, lane, device) for engine in servers]) for lane in lanes]
        return run.end(serve_report(made))


def _recorded(ref: str, asked: Sequence[tuple[bool, str]] | None) -> tuple[RunSettings, list[LaneSettings]]:
    """A run's settings, and the lanes that are named, else the first that drafts."""
    if any(not whole for whole, _ in asked or ()):
        raise UsageError("--method is for a lane of your own, and a RUN has its lanes.", "Use --lane N or NAME.")
    trace = read_ref(ref)
    settings = settings_of_trace(trace)
    by_name = {lane.label: lane for lane in settings.lanes}
    if asked:
        names = [trace.records[lane_of(text, trace.records)].name for _, text in asked]
        return settings, [by_name.get(name, settings.lanes[0]) for name in names]
    drafting = [lane for lane in settings.lanes if not lane.plain]
    return settings, drafting[:1] or [settings.lanes[0]]
