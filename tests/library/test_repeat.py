"""The command line that repeats a run gives that run's settings again, whatever they are."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from specview.commands import branching
from specview.commands.compare import make_parser as compare_parser
from specview.commands.run import make_parser as run_parser
from specview.decoding.sampling import SamplingParams
from specview.drafting.lanes import checked_lane, flat_settings
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.files.reader import Trace
from specview.files.writer import trace_header
from specview.library.repeat import command_line, lane_text, settings_of_trace
from specview.library.replay import race_started
from specview.racing import workloads
from specview.racing.resolve import checked_run
from specview.settings.branch import Branch
from specview.settings.run import MAX_K, LaneSettings, RunSettings, to_json
from tests.library.recorded import FACTS

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\ufeff"), min_size=1, max_size=30).filter(str.strip)


def decimals(low: int, high: int) -> st.SearchStrategy[float]:
    """Thousandths: a file keeps seven digits of a number."""
    return st.integers(low, high).map(lambda value: value / 1000)


def recorded(run: RunSettings, facts: dict | None = None) -> Trace:
    """A trace of these settings, through a file's first line."""
    import json

    from specview.files.reader import parse_header

    checked = checked_run(run)
    header = trace_header(FACTS if facts is None else facts, run.prompt, [1, 2],
                          [(lane.label, {**flat_settings(checked, lane), "k": lane.k}, 0.1) for lane in checked.lanes])  # fmt: skip
    return parse_header(json.dumps(header).encode(), "a")


def parsed(command: str, folder: Path, prompt: str) -> RunSettings:
    """The settings that a command line stands for."""
    words = shlex.split(re.sub(r"\$'((?:[^'\\]|\\.)*)'", lambda found: shlex.quote(_unescaped(found[1])), command, flags=re.DOTALL))
    assert words[0] == "specview"
    if "--prompt-file" in words:
        place = words.index("--prompt-file") + 1
        (folder / words[place]).write_bytes(prompt.encode())
        words[place] = str(folder / words[place])
    parser = {"run": run_parser, "compare": compare_parser}[words[1]]()
    return branching.parsed(parser, words[2:], ("draft-model",))[1]


def _unescaped(text: str) -> str:
    """What bash reads in $'...', of the escapes that are used."""
    codes = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))"
    return re.sub(codes, lambda found: found[4] or chr(int(found[1] or found[2] or found[3], 16)), text)


def flats(run: RunSettings) -> list[dict]:
    return [{**flat_settings(run, lane), "name": lane.label} for lane in run.lanes]


def same(run: RunSettings, folder: Path) -> None:
    """Record these settings, repeat them, and compare all that stands in files of both."""
    trace = recorded(run)
    again = parsed(command_line(trace).command, folder, run.prompt)
    if len(checked_run(run).lanes) == 1:
        again = replace(again, baseline=False)
    again = checked_run(again)
    pinned = {"threads": run.threads or 2}
    if run.engine == "transformers":
        pinned["dtype"] = run.dtype or "float32"
    assert flats(again) == [{**flat, **pinned} for flat in flats(checked_run(run))]
    assert again.prompt == run.prompt


BASE = RunSettings(prompt="Say hi.", lanes=(LaneSettings(), LaneSettings("draft-model", k=2)))


@pytest.mark.parametrize(
    ("method", "policy"),
    [(name, list(POLICIES)[place % len(POLICIES)]) for place, name in enumerate(name for name, one in METHODS.items() if one.drafts)],
)
def test_every_method_and_every_policy(method: str, policy: str, tmp_path: Path) -> None:
    lane = LaneSettings(method, k=3, policy=policy)
    same(replace(BASE, lanes=(LaneSettings(), lane)), tmp_path)
    options = {option.name: option.choices[-1] for option in METHODS[method].options if option.choices and option.name != "preset"}
    numbers = {
        option.name: type(option.default)(option.maximum if option.maximum is not None else (option.minimum or 0) + 1)
        for option in METHODS[method].options
        if type(option.default) in (int, float) and option.name not in options
    }
    try:
        checked_lane(replace(lane, options=options | numbers), SamplingParams())
    except SpecviewError:
        numbers = {}
    same(replace(BASE, lanes=(LaneSettings(), replace(lane, options=options | numbers, name="mine"))), tmp_path)


@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    prompt=TEXT, system=st.just("") | TEXT, chat=st.booleans(), name=st.just("") | TEXT, draft=TEXT,
    temperature=st.just(0.0) | decimals(10, 5000), top_k=st.integers(0, 100), top_p=decimals(10, 1000), min_p=decimals(0, 900),
    seed=st.integers(0, 2**31), k=st.integers(1, MAX_K), tokens=st.integers(1, 5000), check=st.booleans(),
    engine=st.sampled_from(["transformers", "llama.cpp"]), threads=st.none() | st.integers(1, 64), stop=st.lists(TEXT, max_size=2),
    penalty=decimals(100, 2000), presence=decimals(-2000, 2000),
)  # fmt: skip
def test_any_settings(tmp_path_factory: pytest.TempPathFactory, prompt: str, system: str, chat: bool, name: str, draft: str,
                      temperature: float, top_k: int, top_p: float, min_p: float, seed: int, k: int, tokens: int,
                      check: bool, engine: str, threads: int | None, stop: list[str], penalty: float, presence: float) -> None:  # fmt: skip
    sampling = SamplingParams(temperature, top_k, top_p, min_p, seed, penalty, presence)
    name, draft = name.strip(), draft.strip()
    lanes = (LaneSettings(), LaneSettings("draft-model", name if name != "plain" else "", draft or "bundled", k=k))
    run = replace(BASE, prompt=prompt, system=system if chat else "", chat=chat, sampling=sampling, max_tokens=tokens, check_mode=check,
                  engine=engine, threads=threads, lanes=lanes, stop=tuple(stop))  # fmt: skip
    same(run, tmp_path_factory.mktemp("prompt"))


def test_a_workload_is_named_where_the_prompt_is_its_own(tmp_path: Path) -> None:
    loaded = workloads.load("extract")
    run = replace(BASE, prompt=loaded.prompt, system=loaded.system, workload="extract")
    repeat = command_line(recorded(run))
    assert "--workload extract" in repeat.command and "--system" not in repeat.command and not repeat.prompt_file
    same(run, tmp_path)
    other = replace(run, prompt="not the workload's")
    assert "--workload" not in command_line(recorded(other)).command


@pytest.mark.parametrize(("run", "lane"), [("2026-08-01-1f", "eagle3: k=4@2"), ("", "plain"), ("", "")])
def test_a_branch_is_given_with_all_its_ids(run: str, lane: str, tmp_path: Path) -> None:
    branch = Branch((5, 0, 49151), run, lane, 1, "some text", " cat")
    settings = replace(BASE, prompt="-x", branch=branch, stop=("a",))
    trace = recorded(settings, {**FACTS, "branch": to_json(branch)})
    assert settings_of_trace(trace).branch == branch
    again = parsed(command_line(trace).command, tmp_path, settings.prompt)
    assert again.branch == replace(branch, text="", token="") and again.prompt == settings.prompt


def test_a_branch_that_cannot_be_one_is_not_repeated() -> None:
    trace = recorded(BASE, {**FACTS, "branch": {"token_ids": ["x"]}})
    with pytest.raises(SpecviewError, match="not those of a specview run"):
        command_line(trace)


def test_a_single_lane_is_a_run_and_a_long_prompt_a_file(tmp_path: Path) -> None:
    run = replace(BASE, prompt="x\n" * 300, lanes=(LaneSettings("prompt-lookup", k=3),), baseline=False)
    repeat = command_line(recorded(run))
    assert repeat.command.startswith("specview run ") and repeat.prompt_file == "prompt.txt"
    same(run, tmp_path)


def test_a_later_turn_says_what_a_command_cannot_give() -> None:
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    trace = recorded(BASE, {**FACTS, "history": history})
    assert settings_of_trace(trace).history == tuple(history)
    assert any("later turn" in note for note in command_line(trace).notes)


def test_the_tick_to_trust_code_is_never_taken_over() -> None:
    trace = recorded(replace(BASE, trust_remote_code=True))
    assert not settings_of_trace(trace).trust_remote_code
    repeat = command_line(trace)
    assert "--trust-remote-code" not in repeat.command and any("trust" in note for note in repeat.notes)


def test_a_file_of_a_strangers_choice_is_neither_read_nor_written_nor_named_in_the_command(tmp_path: Path) -> None:
    lanes = (LaneSettings("suffix", options={"store": str(tmp_path / "mine.npz")}),
             LaneSettings("cascade", options={"members": "suffix+eagle3", "suffix.store": "/any/path", "eagle3.head": "owner/head"}))  # fmt: skip
    trace = recorded(replace(BASE, target="owner/name", lanes=(LaneSettings(), *lanes)))
    trace.records[1].settings["option_store"] = "/any/path"
    taken = settings_of_trace(trace)
    assert taken.lanes[1].options["store"] == taken.lanes[2].options["suffix.store"] == ""
    repeat = command_line(trace)
    assert "store" not in repeat.command and "/any/path" not in repeat.command
    notes = "\n".join(repeat.notes)
    assert "owner/name (target)" in notes and "owner/head (" in notes and notes.count("/any/path") == 2


def test_a_medusa_tree_in_another_file_is_not_even_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = recorded(replace(BASE, lanes=(LaneSettings(), LaneSettings("medusa", options={"tree": "fixed"}))))
    looked: list[object] = []
    monkeypatch.setattr("specview.drafting.medusa.Path", lambda path: looked.append(path))
    for value, taken in ((r"\\host\share\tree.json", "small"), ("[[0],[1],[0,0]]", "[[0],[1],[0,0]]"), ("mc_sim_7b_63",) * 2):
        trace.records[1].settings["option_choices"] = value
        assert settings_of_trace(trace).lanes[1].options["choices"] == taken
        command_line(trace)
    assert not looked


@pytest.mark.parametrize("text", ["--trust-remote-code", "-x", "\x1b]0;x\x07 '\\ \u202e \U000e0041", "$(touch x)`touch x`; touch x\n", "ü's"])
def test_whatever_a_trace_names_stays_one_word_of_the_command(text: str, tmp_path: Path) -> None:
    run = replace(BASE, target=f"{text}.gguf", system=text)
    command = command_line(recorded(run)).command
    assert all(char.isprintable() or char in "\n\t" for char in command)
    told = subprocess.run(["bash", "-c", f"printf '%s\\0' {command.removeprefix('specview ')}"], capture_output=True, cwd=tmp_path,
                          env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}, check=True).stdout.decode()  # fmt: skip
    again = branching.parsed(compare_parser(), told.split("\0")[1:-1], ("draft-model",))[1]
    assert (again.target, again.system, again.trust_remote_code) == (run.target, text, False) and not list(tmp_path.iterdir())


def test_unknown_methods_are_one_line() -> None:
    trace = recorded(BASE)
    trace.records[1].settings["method"] = "tomorrow's"
    for ask in (settings_of_trace, command_line):
        with pytest.raises(SpecviewError, match="no method .tomorrow"):
            ask(trace)
    assert race_started(trace).lane_names == ("plain", "draft-model")


def test_a_lanes_text_says_only_what_is_not_usual() -> None:
    assert lane_text(checked_lane(LaneSettings(), SamplingParams())) == "plain"
    assert lane_text(checked_lane(LaneSettings("prompt-lookup", k=3), SamplingParams())) == "prompt-lookup,k=3"


def test_a_raw_run_is_repeated_without_the_system_text_that_it_did_not_use(tmp_path: Path) -> None:
    trace = recorded(replace(BASE, chat=False, system="Be brief."))
    assert "--system" not in (command := command_line(trace).command)
    assert not parsed(command, tmp_path, BASE.prompt).chat
