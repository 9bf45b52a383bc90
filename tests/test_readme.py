"""The README is true: its commands parse, its flags exist, its drafter drafts."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from specview import cli, drafting
from specview.commands import arguments
from specview.commands.compare import make_parser as compare_parser
from specview.commands.run import make_parser as run_parser
from specview.commands.scan import make_parser as scan_parser
from specview.drafting import registry
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.racing.resolve import checked_run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
PARSERS = {"run": run_parser, "compare": compare_parser, "scan": scan_parser}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_as_the_program_takes_them(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"prompt": "Why is the sky blue?"}\n', encoding="utf-8")
    words = shlex.split(line)
    if words[0].startswith("./"):
        assert (ROOT / words[0]).stat().st_mode & 0o111
    if words[0] == "./packaging/test" or len(words) == 1:
        return
    assert words[1] in cli.COMMANDS
    if words[1] not in PARSERS:
        module = importlib.import_module(f"specview.commands.{words[1].replace('-', '_')}")
        if hasattr(module, "make_parser"):
            module.make_parser().parse_args(words[2:])
        return
    checked_run(arguments.settings_of(PARSERS[words[1]]().parse_args(words[2:]), ("draft-model",)))


def test_every_flag_is_named_and_exists() -> None:
    section = README.split("## Commands")[1].split("## Methods")[0]
    named = set(re.findall(r"--[a-z][a-z-]*", section)) - {"--help", "--tokens", "--text"}
    known = {flag for parser in (run_parser(), compare_parser()) for flag in parser._option_string_actions}
    assert named == {flag for flag in known if flag.startswith("--")} - {"--help", "--trust-remote-code"}


def test_every_command_is_named() -> None:
    section = README.split("## Commands")[1]
    assert set(re.findall(r"\| `specview ([\w-]+)[ A-Z]*` \|", section)) == set(cli.COMMANDS)


def test_the_drafter_of_the_readme_is_found_as_a_file_and_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (text for kind, text in BLOCKS if kind == "python")
    (tmp_path / "readme_echo.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(drafting, "__path__", [*drafting.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "METHODS", {})
    registry.collect()
    before = [name for name in registry.METHODS if name != "echo"]
    assert before == list(METHODS)  # it stands last of its family, and changes nothing else
    method = registry.METHODS["echo"]
    drafter = method.make(DrafterContext({"gap": 3}, 64, 100)) if method.make else None
    assert drafter is not None
    draft = drafter.propose([1, 2, 3, 4, 5], 2)
    assert (draft.tokens, draft.q, draft.drafter) == ((3, 4), None, "echo")
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 10


def test_every_method_and_policy_is_named() -> None:
    section = README.split("## Methods")[1].split("## Reading")[0]
    assert {name for name, method in registry.METHODS.items() if method.drafts} <= set(re.findall(r"`([a-z0-9-]+)`", section))
    assert all(f"`{name}`" in section for name in POLICIES)


def test_the_version_has_an_entry_in_the_changelog() -> None:
    from specview import __version__

    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
