"""Lanes to launch commands and back: 12 lanes x 4 engines, each method everywhere, options and k at random."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import resolve_rule
from specview.drafting.lanes import checked_lane, default_k
from specview.drafting.registry import METHODS
from specview.remote.launch import launch, launches
from specview.remote.launch_check import check_command
from specview.remote.launch_flags import FLAGS
from specview.remote.launch_old import JSON_KEYS, OLD_FLAGS
from specview.remote.launch_table import ENGINES, NEAREST, WAYS
from specview.settings.run import LaneSettings, RunSettings

LANES = [
    LaneSettings("plain"),
    LaneSettings("draft-model", k=4),
    LaneSettings("draft-model", k=8, policy="confidence", policy_options={"threshold": 0.6}),
    LaneSettings("prompt-lookup", k=6, options={"ngram_max": 4, "ngram_min": 2}),
    LaneSettings("ngram-simple", options={"preset": "text"}),
    LaneSettings("ngram-mod", options={"n_match": 16, "n_min": 8, "n_max": 32}),
    LaneSettings("suffix", options={"max_spec_factor": 2.5}),
    LaneSettings("eagle3", k=3),
    LaneSettings("eagle3", options={"preset": "gpu"}),
    LaneSettings("eagle2", draft="owner/head", options={"depth": 4, "top_k": 8, "total_tokens": 30}),
    LaneSettings("medusa", k=3, draft="owner/heads"),
    LaneSettings("cascade", options={"members": "ngram-map-k+draft-model", "model_k": 5}),
]


def _longest(lane: LaneSettings) -> int:
    """The longest draft of a lane: its k, or what its options leave of it."""
    k = lane.k or default_k(lane, "cpu")[0] or 0
    levels = METHODS[lane.method].drafted(lane.options).levels
    return min(k, levels) if levels else k


def same(lane: LaneSettings, back: LaneSettings | None, sampling: SamplingParams, lost: tuple[str, ...]) -> None:
    """Assert that a lane came back: method, effective k, options and rule, but for what the command cannot hold."""
    assert back is not None
    one, other = checked_lane(lane, sampling), checked_lane(back, sampling)
    assert one.method == other.method
    assert _longest(one) == _longest(other)
    idle = {option.name for option in METHODS[one.method].options if option.needs and one.options.get(option.needs[0]) != option.needs[1]}
    for name, value in one.options.items():
        if name not in {*lost, *idle, "preset"} and name.rpartition(".")[2] not in {*lost, "preset"}:
            assert other.options[name] == value, name
    if "policy" not in lost:
        assert (one.policy, dict(one.policy_options)) == (other.policy, dict(other.policy_options))
    if "rule" not in lost and METHODS[one.method].drafts:
        assert resolve_rule(one.rule, sampling) == resolve_rule(other.rule, sampling)


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: f"{lane.method}-{LANES.index(lane)}")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_twelve_lanes_and_back(lane: LaneSettings, engine: str, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature)
    made = launch(ENGINES[engine], RunSettings(sampling=sampling), lane)
    if made.lacks:
        assert not made.command and "Nearest" in made.lacks and made.lacks.count("\n") == 0
        return
    back = check_command(made.command)
    assert back.engine is ENGINES[engine]
    assert not [one for one in back.findings if one.level == "bad"], back.findings
    assert back.target == "bundled" or lane.method == "plain" or back.target
    if ENGINES[engine].sampling:
        same(lane, back.lane, sampling, made.lost)
        assert back.sampling["temperature"] == temperature
    assert back.lane is not None and back.lane.draft == lane.draft


@pytest.mark.parametrize("engine", ENGINES)
def test_every_method_has_a_way_or_a_nearest(engine: str) -> None:
    for name in METHODS:
        lane = LaneSettings(name, draft="owner/head" if METHODS[name].head else "bundled")
        made = launch(ENGINES[engine], RunSettings(), lane)
        assert bool(made.command) != bool(made.lacks), name
    assert set(WAYS[engine]) <= set(METHODS) and set(NEAREST[engine]) - {""} <= set(METHODS)
    for near, _ in NEAREST[engine].values():
        assert near in WAYS[engine]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_key_of_the_table_is_one_that_the_engine_takes(engine: str) -> None:
    keys = {key for ways in WAYS[engine].values() for way in ways for key in (
        *way.fixed, *way.sampled, way.draft, *(one.name for one in (*way.k, *way.options.values())),
        *(key for mapped in way.policies.values() for key in mapped.values()))} - {""}  # fmt: skip
    known = JSON_KEYS[engine] if ENGINES[engine].config else {flag.removeprefix("--") for flag in FLAGS[engine]}
    assert keys <= known
    serving = ENGINES[engine]
    flags = {serving.model, serving.config, serving.sampling_flag, *serving.hub, *serving.loading.values()} - {""}
    assert flags | (set() if serving.sampling_flag else set(serving.sampling.values())) <= FLAGS[engine]
    assert not FLAGS[engine] & OLD_FLAGS[engine].keys()


def _lanes() -> st.SearchStrategy[LaneSettings]:
    def options(name: str) -> st.SearchStrategy[LaneSettings]:
        found = {}
        for option in METHODS[name].options:
            if option.choices and option.name != "preset":
                found[option.name] = st.sampled_from(option.choices)
            elif option.kind is int:
                least = int(option.minimum or 0)
                found[option.name] = st.integers(least, min(int(option.maximum or least + 20), least + 20))
            elif option.kind is float:
                found[option.name] = st.sampled_from([0.25, 0.5, 1.0])
        k = st.none() | st.integers(1, 64)
        return st.builds(lambda k, given: LaneSettings(name, k=k, options=given), k, st.fixed_dictionaries({}, optional=found))

    names = [name for name, method in METHODS.items() if method.drafts and not method.combines and not method.served]
    return st.sampled_from(names).flatmap(options)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(lane=_lanes(), engine=st.sampled_from(list(ENGINES)))
def test_any_lane_and_back(lane: LaneSettings, engine: str) -> None:
    sampling = SamplingParams()
    try:
        checked_lane(lane, sampling)
        METHODS[lane.method].drafted(METHODS[lane.method].resolve(lane.options))
    except Exception:  # noqa: BLE001 - options that do not go together are another test's
        return
    made = launch(ENGINES[engine], RunSettings(), lane)
    if made.command and lane.options.get("top_k") != 1:  # such a tree is a chain, and comes back as one
        same(lane, check_command(made.command).lane, sampling, made.lost)


@settings(max_examples=40, deadline=None)
@given(path=st.text(min_size=1, max_size=60))
def test_a_path_is_data_whatever_is_in_it(path: str) -> None:
    run = RunSettings(target=f"x/{path}")
    for made in launches(run, LaneSettings("draft-model", k=2, draft=f"{path}.gguf")):
        assert all("\0" in word or shlex.split(shlex.quote(word)) == [word] for word in made.words)
        if made.engine.in_file or "\0" in path or path.startswith(("-", "x")) or "/" in path:
            continue
        back = check_command(made.command.replace("\r", " "))
        assert back.engine is made.engine


def test_the_bundled_head_and_draft_are_named_by_their_paths() -> None:
    for made in launches(RunSettings(), LaneSettings("eagle3", k=2)):
        assert "eagle3" in made.command and "bundled" not in made.command


def test_vllm_json_is_json_and_the_yaml_is_yaml() -> None:
    import yaml

    lane = LaneSettings("prompt-lookup", k=5)
    words = launch(ENGINES["vllm"], RunSettings(), lane).words
    assert json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"] == 5
    made = launch(ENGINES["tensorrt-llm"], RunSettings(target="on/off"), replace(lane, k=7))
    (text,) = made.files.values()
    assert yaml.safe_load(text)["speculative_config"] == {
        "decoding_type": "NGram", "is_public_pool": False, "max_draft_len": 7, "max_matching_ngram_size": 3,
    }  # fmt: skip


def test_what_cannot_be_carried_is_said() -> None:
    made = launch(ENGINES["vllm"], RunSettings(sampling=SamplingParams(temperature=0.7)), LaneSettings("eagle3", k=2, rule="typical", policy="adaptive"))
    assert {"rule", "policy"} <= set(made.lost)
    text = " ".join(line.text for line in made.lines)
    assert "adaptive" in text and "typical" in text


def test_a_gguf_target_for_vllm_must_be_heeded_and_a_folder_for_llama_is_converted() -> None:
    made = launch(ENGINES["vllm"], RunSettings(target="x.gguf"), LaneSettings())
    assert any(line.must for line in made.lines)
    made = launch(ENGINES["llama-server"], RunSettings(target="owner/model"), LaneSettings())
    assert made.before[0][-1] == "--remote" and "model.gguf" in made.words
    assert check_command(made.command).target == "owner/model"


def test_a_lane_that_a_server_decodes_is_one_already() -> None:
    for run, lane in ((RunSettings(), LaneSettings("server", options={"url": "http://h:1"})), (RunSettings(target="http://h:1"), LaneSettings("plain"))):
        assert all("already" in made.lacks and not made.command for made in launches(run, lane))
