"""The command line without a model: parsing, errors as one line, files, terminal safety."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specview import __version__, cli
from specview.commands import arguments, doctor, qt_libraries, window
from specview.commands.terminal import ProgressLine, round_text, safe_text
from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.drafting.lanes import takes
from specview.drafting.registry import FIRST_METHODS
from specview.errors import UsageError
from specview.racing.resolve import checked_run
from specview.settings.run import LaneSettings, RunSettings
from tests.typed import typed as run


def settings(*argv: str) -> RunSettings:
    parser = arguments.Parser("specview compare", "")
    arguments.add_shared_flags(parser)
    return arguments.settings_of(parser.parse_args(argv), FIRST_METHODS)


# -- the front door ------------------------------------------------------------------------------


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"specview {__version__}\n", "")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in cli.COMMANDS:
        assert f"\n  {command} " in out


def test_the_module_is_a_program() -> None:
    """Each command's own --help is frozen (tests/frozen)."""
    done = subprocess.run([sys.executable, "-m", "specview", "run", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "usage: specview run [options]" in done.stdout


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; begin = time.process_time(); import specview.cli, specview.commands.window; "
        "print(time.process_time() - begin); "
        "print([m for m in ('torch', 'transformers', 'llama_cpp', 'numpy', 'scipy', 'PySide6') if m in sys.modules])"
    )
    done = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
        for _ in range(3)
    ]
    assert all(lines[1] == "[]" for lines in done)
    assert min(float(lines[0]) for lines in done) < 0.2


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "comprae")
    assert (code, out) == (2, "")
    assert err == "specview: there is no command 'comprae'. Did you mean compare?\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="X11 on Linux")
@pytest.mark.parametrize(
    ("display", "missing", "says"),
    [
        (None, {}, ("no display", "specview compare --workload chat")),
        (":987", {}, ("':987' does not answer",)),
        (":987", {"libxcb-cursor.so.0": "libxcb-cursor0"}, ("libxcb-cursor.so.0", "apt-get install libxcb-cursor0")),
    ],
)
def test_without_a_window_it_says_why_in_one_line(capsys, monkeypatch, display, missing, says) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    if display is not None:
        monkeypatch.setenv("DISPLAY", display)
        if qt_libraries.missing_libraries("xcb"):
            pytest.skip("Qt's libraries are not here")
    monkeypatch.setattr(window, "missing_libraries", lambda platform: missing)
    code, out, err = run(capsys)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert all(words in err for words in says)


def test_a_library_that_is_not_there_is_found_missing() -> None:
    assert qt_libraries._missing({"libno-such-thing.so.9": "libno9"}) == {"libno-such-thing.so.9": "libno9"}


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (RuntimeError("two\nlines\x1b[31m"), 1, "RuntimeError"),
        (KeyboardInterrupt(), 130, "stopped"),
        (BrokenPipeError(), 1, ""),
        (MemoryError(), 1, "not enough memory"),
    ],
)
def test_interrupts_and_faults_of_ours_are_one_line_too(capsys, monkeypatch, error, code, says) -> None:
    def fail(argv: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "main", fail)
    found, _, err = run(capsys, "doctor")
    assert found == code and err.count("\n") == (says != "") and says in err and "\x1b" not in err


def test_without_standard_streams_nothing_breaks() -> None:
    for argv, code in (("--help", 0), ("run --k 0", 2), ("run --prompt-file -", 2)):
        done = subprocess.run(["sh", "-c", f'"$0" -m specview {argv} <&- >&- 2>&-', sys.executable], check=False)
        assert done.returncode == code, argv


def test_a_terminal_without_the_characters_shows_others() -> None:
    code = "import sys; from specview import cli; cli.main(['--help']); sys.stdout.write('hist\xf3ria')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and done.stdout.endswith("hist?ria"), done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_the_streams_is_one_line() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m specview --help >/dev/full', sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "cannot be written: no space left on device" in done.stderr
    done = subprocess.run(["sh", "-c", '"$0" -m specview run --k 0 2>/dev/full', sys.executable], check=False)
    assert done.returncode == 2


# -- bad settings: exit code 2, one line ---------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--k", "0"], "k is 0"),
        (["--k", "500"], "k is 500"),
        (["--k", "two"], "--k: 'two' is not a whole number"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--temperature", "warm"], "--temperature: 'warm' is not a number"),
        (["--temperature", "nan"], "'nan' is not a number"),
        (["--temperature", "inf"], "'inf' is not a number"),
        (["--rule", "greedy", "--temperature", "1"], "greedy rule needs temperature 0"),
        (["--rule", "wild"], "no rule 'wild'"),
        (["--max-tokens", "0"], "max tokens is 0"),
        (["--max-tokens", "-5"], "max tokens is -5"),
        (["--top-p", "0"], "top-p is 0"),
        (["--top-p", "1.5"], "top-p is 1.5"),
        (["--min-p", "2"], "min-p is 2"),
        (["--top-k", "-1"], "top-k is -1"),
        (["--seed", "-1"], "seed is -1"),
        (["--threads", "0"], "threads is 0"),
        (["--context", "0"], "context is 0"),
        (["--gpu-layers", "-2"], "GPU layers is -2"),
        (["--gpu-layers", "3"], "--gpu-layers is for the llama.cpp engine"),
        (["--context", "99"], "--context is for the llama.cpp engine"),
        (["--engine", "llama.cpp", "--device", "cuda"], "--device is for the transformers engine"),
        (["--engine", "llama.cpp", "--dtype", "float16"], "--dtype is for the transformers engine"),
        (["--draft-engine", "abacus"], "no engine 'abacus'"),
        (["--engine", "abacus"], "no engine 'abacus'"),
        (["--method", "telepathy"], "no method 'telepathy'"),
        (["--policy", "moody"], "no length policy 'moody'"),
        (["--workload", "poem"], "no workload 'poem'"),
        (["--lane", ""], "names no method"),
        (["--lane", "prompt-lookup,k=x"], "k is 'x'. Use a whole number"),
        (["--lane", "prompt-lookup,k=4,k=5"], "gives k twice"),
        (["--lane", "prompt-lookup,fast"], "has 'fast' in it"),
        (["--lane", "prompt-lookup,colour=red"], "no key 'colour'"),
        (["--lane", "prompt-lookup,match=middle"], "match is 'middle'"),
        (["--lane", "prompt-lookup,ngram_max=0"], "ngram_max is 0"),
        (["--lane", 'prompt-lookup,name="open'], "open quote"),
        (["--lane", "draft-model,policy=confidence,threshold=2"], "threshold is 2"),
        ([*["--method", "prompt-lookup"] * 6], "6 lanes"),
        ([*["--method", "prompt-lookup"] * 5], "6 lanes"),
        (["--prompt", "a", "--workload", "chat"], "not allowed with"),
        (["--chat", "--raw"], "not allowed with"),
        (["--no-such-flag"], "unrecognized arguments"),
        (["--prompt", " "], "the prompt is empty"),
        (["--prompt"], "expected one argument"),
        (["--repeats", "0"], "repeats is 0"),
        (["--observe", "hard"], "--observe"),
        (["--trace", "-"], "--trace is '-'"),
        (["--prompt", "a\udcff"], "not UTF-8"),
        (["--stop", "a", "--stop", "a\udcff"], "not UTF-8"),
        (["--lane", "prompt-lookup,name=a\udcff"], "the name of a lane is not UTF-8"),
        (["--temperature", "1e300"], "temperature is 1e+300. Use 0 (greedy) to 1e30."),
        (["stray"], "unrecognized arguments: stray"),
    ],
)
def test_a_bad_setting_is_one_usage_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    code, out, err = run(capsys, "compare", *argv)
    assert (code, out) == (2, "")
    assert err.startswith("specview: ") and err.count("\n") == 1 and says in err


def test_run_takes_one_method(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", "--method", "plain", "--method", "draft-model")
    assert code == 2 and "run takes one" in err


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--json", "--trace", "--csv", "--markdown"])
def test_a_file_that_cannot_be_written_is_known_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str
) -> None:
    for name in (tmp_path, tmp_path / "missing" / "out"):
        code, _, err = run(capsys, "compare", flag, str(name))
        assert code == 1 and err.count("\n") == 1 and "cannot write" in err
    assert list(tmp_path.iterdir()) == []


def test_no_permission_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: object, *rest: object, **named: object) -> int:
        if "locked" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    for flag in ("--trace", "--json"):
        code, _, err = run(capsys, "run", flag, str(tmp_path / "locked.out"))
        assert code == 1 and "permission denied" in err


def test_two_outputs_are_not_one_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    same = str(tmp_path / "out")
    code, _, err = run(capsys, "compare", "--json", same, "--trace", same)
    assert code == 2 and "same file" in err


@pytest.mark.parametrize(
    ("data", "says"),
    [(None, "cannot read the prompt file"), ("maçã".encode("latin-1"), "not UTF-8"), ("plain words".encode("utf-16-le"), "NUL bytes")],
)
def test_prompt_files(capsys, tmp_path: Path, data, says) -> None:
    if data is not None:
        (tmp_path / "prompt.txt").write_bytes(data)
    code, _, err = run(capsys, "run", "--prompt-file", str(tmp_path / "prompt.txt"))
    assert code == 1 and says in err and err.count("\n") == 1
    assert run(capsys, "run", "--prompt-file", str(tmp_path))[0] == 1
    (tmp_path / "prompt.txt").write_bytes(b"\xef\xbb\xbfma\xc3\xa7\xc3\xa3\r\n")
    assert arguments.read_prompt(str(tmp_path / "prompt.txt")) == "maçã\r\n"


# -- lanes ---------------------------------------------------------------------------------------


def test_lanes_take_flags_as_defaults_and_keep_their_order() -> None:
    lanes = settings(
        "--k", "3", "--method", "plain", "--lane", "prompt-lookup,k=8,match=last,rule=match,name=last one",
        "--method", "draft-model", "--draft", "/models/d.gguf", "--draft-engine", "llama.cpp",
    ).lanes  # fmt: skip
    assert [lane.method for lane in lanes] == ["plain", "prompt-lookup", "draft-model"]
    assert (lanes[1].k, lanes[1].rule, lanes[1].options["match"], lanes[1].label) == (8, "match", "last", "last one")
    assert (lanes[2].k, lanes[2].draft, lanes[2].draft_engine) == (3, "/models/d.gguf", "llama.cpp")


def test_policy_options_go_to_the_policy() -> None:
    lane = checked_run(settings("--lane", "draft-model,policy=confidence,threshold=0.7")).lanes[1]
    assert lane.policy == "confidence" and lane.policy_options == {"threshold": 0.7}


def test_a_quoted_value_keeps_its_comma() -> None:
    method, keys = arguments.parse_lane("draft-model, draft=\"C:\\models\\a,b.gguf\" ,name='x # y'")
    assert (method, keys) == ("draft-model", {"draft": "C:\\models\\a,b.gguf", "name": "x # y"})


def test_lanes_of_one_method_get_names_apart() -> None:
    lanes = settings("--lane", "prompt-lookup,k=2", "--lane", "prompt-lookup,k=8", "--lane", "prompt-lookup,k=8").lanes
    labels = [lane.label for lane in lanes]
    assert labels == ["prompt-lookup k=2", "prompt-lookup k=8", "prompt-lookup k=8 (2)"]


def test_a_repeated_flag_keeps_all_its_values() -> None:
    assert settings("--stop", "three", "--stop", "\n\n").stop == ("three", "\n\n")
    assert settings().stop == ()


def test_defaults() -> None:
    found = settings()
    assert [lane.method for lane in found.lanes] == ["plain", "draft-model", "prompt-lookup"]
    assert (found.engine, found.target, found.workload, found.chat) == ("transformers", "bundled", "chat", True)
    assert found.prompt and found.sampling.greedy and found.observe == "light"
    assert settings("--trace", "t.jsonl").observe == "full"
    with pytest.raises(UsageError):
        settings("--lane", "prompt-lookup,draft")


# -- the terminal --------------------------------------------------------------------------------


def test_model_text_cannot_drive_the_terminal() -> None:
    nasty = "a\x1b[2Jb\x9b31mc\rd\x07\x7f\x00e\n\tf\u202eg"
    assert safe_text(nasty) == "a[2Jb31mcde\n\tf\u202eg"
    round_ = Round(
        0, 0.1, 0, 0, 0, drafted=(DraftedToken(1, "accepted", text="\x1b]0;x\x07ok"), DraftedToken(2, "rejected", text="no\n")),
        final=FinalToken(3, "corrected", "\x1b[5myes"),
    )  # fmt: skip
    assert round_text(round_, colour=False) == "]0;xok[5myes"
    coloured = round_text(round_, colour=True)
    assert "no⏎" in coloured and "\x1b[5m" not in coloured and "\x1b]" not in coloured
    # colour is never the only cue: rejected is struck through, corrected italic
    assert "\x1b[9;" in coloured and "\x1b[3;" in coloured


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine(sys.stderr)
    progress.show("Loading", 0.5)
    progress.clear()
    assert capsys.readouterr().err == ""


def test_an_unknown_home_folder_is_a_path_like_any_other(capsys):
    assert cli.main(["check", "~nosuchuser/x", "bundled"]) == 1
    err = capsys.readouterr().err
    assert "~nosuchuser/x" in err and "fault" not in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["run", "--method", "plain", "--k", "4"], "--k says nothing"),
        (["run", "--method", "plain", "--policy", "adaptive"], "--policy says nothing"),
        (["run", "--method", "plain", "--rule", "match"], "--rule says nothing"),
        (["run", "--method", "prompt-lookup", "--draft", "x.gguf"], "--draft says nothing"),
        (["run", "--method", "prompt-lookup", "--draft-engine", "llama.cpp"], "--draft-engine says nothing"),
        (["run", "--method", "eagle3", "--draft-engine", "llama.cpp"], "--draft-engine says nothing"),
        (["compare", "--lane", "draft-model,k=3", "--k", "4"], "--k says nothing"),
        (["compare", "--lane", "plain,k=3"], "a lane of plain takes no k"),
        (["compare", "--lane", "suffix,draft=x.gguf"], "a lane of suffix takes no draft"),
        (["compare", "--lane", "cascade,members=suffix+ngram-simple,draft=x"], "a lane of cascade takes no draft"),
        (["explain", "--method", "plain", "--rule", "match"], "--rule says nothing"),
        (["run", "--raw", "--prompt", "a", "--system", "b"], "--system is for a chat"),
    ],
)
def test_a_flag_that_says_nothing_is_refused(capsys, argv, says):
    assert cli.main(argv) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "taken"),
    [
        (["--method", "plain", "--method", "draft-model", "--k", "4", "--rule", "match", "--policy", "adaptive"], {"k": 4, "rule": "match"}),
        (["--lane", "draft-model", "--lane", "prompt-lookup,k=7", "--draft", "x.gguf"], {"draft": "x.gguf"}),
        (["--method", "eagle3", "--draft", "head"], {"draft": "head"}),
        (["--lane", "cascade,members=suffix+draft-model", "--draft", "x.gguf"], {"draft": "x.gguf"}),
    ],
)
def test_one_that_some_lane_takes_is_that_lanes_alone(argv, taken):
    from specview.commands import compare

    settings = arguments.settings_of(compare.make_parser().parse_args(argv), FIRST_METHODS)
    taking = next(lane for lane in settings.lanes if takes(lane) >= set(taken))
    assert {key: getattr(taking, key) for key in taken} == taken
    for lane in settings.lanes:
        idle = {"k", "rule", "policy", "draft", "draft_engine"} - takes(lane)
        assert {key: getattr(lane, key) for key in idle} == {key: getattr(LaneSettings(), key) for key in idle}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--rule", "match"], "At temperature 0 the rule match decides as greedy does."),
        (["--lane", "suffix,rule=typical"], "At temperature 0 the rule typical decides as greedy does."),
        (["--top-k", "5"], "At temperature 0 the filters top-k, top-p and min-p make no difference."),
        (["--rule", "match", "--temperature", "0.5", "--top-k", "5"], ""),
        (["--rule", "greedy"], ""),
        ([], ""),
    ],
)
def test_what_makes_no_difference_is_told_in_one_line(capsys, argv, says):
    from specview.commands import compare

    arguments.settings_of(compare.make_parser().parse_args(argv), FIRST_METHODS)
    assert capsys.readouterr().err == (f"specview: {says}\n" if says else "")


def test_every_rule_decides_as_greedy_does_at_temperature_0():
    """What the line says is so: same trials, same tokens, whatever p, the draft and its q."""
    import numpy as np

    from specview.decoding.ledger import Draft
    from specview.decoding.sampling import SamplingParams, probabilities, uniform
    from specview.decoding.verification import RULES, DecisionRows, verify

    rng = np.random.default_rng(3)
    cold = SamplingParams()
    for trial in range(200):
        logits = rng.normal(size=(4, 6)).astype(np.float32)
        own = rng.normal(size=(3, 6)).astype(np.float32)
        draft = Draft(tuple(int(row.argmax()) for row in own), q=[probabilities(row, cold) for row in own])
        found = {
            rule: verify(rule, DecisionRows(logits, cold), draft, lambda p, purpose, i=0, t=trial: uniform(t, p, purpose, i), 0, frozenset())
            for rule in RULES
        }
        for one in found.values():
            assert (one.path, one.final[0]) == (found["greedy"].path, found["greedy"].final[0])
