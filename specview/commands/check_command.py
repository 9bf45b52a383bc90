"""`specview check-command`: a launch command of a serving engine read back: old names, faults, the lane it stands for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specview.commands.arguments import Parser
from specview.commands.running import running
from specview.decoding.sampling import SamplingParams
from specview.drafting.lanes import checked_lane
from specview.errors import SpecviewError
from specview.library.repeat import lane_text
from specview.remote.launch_check import LONGEST, check_command
from specview.remote.launch_report import check_report

_DESCRIPTION = """\
Read a command that starts llama-server, vLLM, SGLang or TensorRT-LLM, as a guide or a colleague wrote it: which of its
flags have other names now, which are unknown, bad JSON, what contradicts, and the lane that it stands for. Nothing is
run and no file is opened. Exit code 0: the engine takes it, as far as is known; 1: it does not, and why."""

_EXAMPLES = """\
examples:
  specview check-command "llama-server -m t.gguf -md d.gguf --draft-max 8"
  specview check-command "vllm serve TARGET --speculative-model DRAFT --num-speculative-tokens 5"
  specview check-command - < start.sh
  specview serve-command --lane "eagle3,k=4"    # the other way"""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview check-command", _DESCRIPTION, _EXAMPLES)
    parser.usage = "specview check-command [options] COMMAND"
    parser.add_argument("launch", metavar="COMMAND", help="the whole command in quotes; - is standard input")
    parser.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command: 0 where the engine takes the command, else 1."""
    arguments = make_parser().parse_args(argv)
    with running(arguments) as run:
        text = arguments.launch
        if text == "-":
            text = sys.stdin.buffer.read(4 * LONGEST + 1).decode("utf-8", "replace")
        checked = check_command(text)
        lane = ""
        if checked.lane is not None:
            try:
                lane = lane_text(checked_lane(checked.lane, SamplingParams(**dict(checked.sampling))))
            except SpecviewError as error:
                checked.say("warning", "", f"no lane stands for it: {error}")
        run.end(check_report(checked, lane))
    return 0 if checked.accepted else 1
