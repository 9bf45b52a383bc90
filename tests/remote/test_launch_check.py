"""Pasted commands: old names, unknown ones, bad JSON, contradictions, and text that is no command at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.errors import UsageError
from specview.remote.launch_check import LONGEST, check_command
from specview.remote.launch_old import OLD_FLAGS
from specview.settings.run import LaneSettings


def words(text: str, level: str = "bad") -> dict[str, str]:
    """Word of the command -> what is written now, of findings of a level."""
    return {one.word: one.now for one in check_command(text).findings if one.level == level}


@pytest.mark.parametrize(
    ("command", "old", "now"),
    [
        ("llama-server -m t.gguf --draft-model d.gguf --spec-type draft-simple", "--draft-model", "--spec-draft-model"),
        ("llama-server -m t.gguf -md d.gguf --draft-max 8", "--draft-max", "--spec-draft-n-max"),
        ("llama-server -m t.gguf -md d.gguf --draft 8", "--draft", "--spec-draft-n-max"),
        ("llama-server -m t.gguf -md d.gguf --draft-n 8", "--draft-n", "--spec-draft-n-max"),
        ("llama-server -m t.gguf --spec-type draft-self", "spec-type draft-self", "draft-mtp"),
        ("vllm serve T --speculative-model D --num-speculative-tokens 5", "--speculative-model", "--spec-model"),
        ("vllm serve T --speculative_model D --num_speculative_tokens 5", "--num-speculative-tokens", "--spec-tokens"),
        ("vllm serve T --speculative-config '{\"method\": \"[ngram]\", \"num_speculative_tokens\": 3}'", "method [ngram]", "ngram"),
        ("python -m sglang.launch_server --model T --speculative-algo EAGLE3 --speculative-draft D", "--speculative-draft", "--speculative-draft-model-path"),
    ],
)
def test_old_names_say_what_they_are_called_now(command: str, old: str, now: str) -> None:
    assert words(command)[old] == now


@pytest.mark.parametrize("engine", OLD_FLAGS)
def test_every_old_flag_is_recognised(engine: str) -> None:
    start = {"llama-server": "llama-server -m t.gguf", "vllm": "vllm serve T", "sglang": "sglang serve --model-path T",
             "tensorrt-llm": "trtllm-serve T"}[engine]  # fmt: skip
    for flag in OLD_FLAGS[engine]:
        assert flag in words(f"{start} {flag} 3"), flag


def test_the_mended_command_is_accepted() -> None:
    old = check_command("llama-server -m t.gguf -md d.gguf --draft-max 8 --draft-min 2 --port 9")
    assert not old.accepted and old.lane == LaneSettings("draft-model", k=8, draft="d.gguf")
    new = check_command(old.mended)
    assert new.accepted and new.lane == old.lane and "--port 9" in old.mended
    old = check_command("vllm serve T --speculative-model D --num-speculative-tokens 5")
    new = check_command(old.mended)
    assert new.accepted and new.lane == LaneSettings("draft-model", k=5, draft="D")


def test_a_model_that_names_a_method_is_that_method() -> None:
    for name in ("ngram", "[ngram]"):
        lane = check_command(f"vllm serve T --speculative-model '{name}' --num-speculative-tokens 5 --ngram-prompt-lookup-max 4").lane
        assert lane == LaneSettings("prompt-lookup", k=5, options={"ngram_max": 4, "ngram_min": 4})


def test_a_draft_without_a_type_does_not_draft_in_llama_server() -> None:
    found = check_command("llama-server -m t.gguf -md d.gguf")
    assert any("never drafts" in one.text for one in found.findings) and "--spec-type draft-simple" in found.mended


def test_a_flag_of_another_engine_is_said_to_be_its() -> None:
    found = check_command("vllm serve T --speculative-num-steps 3")
    assert any("SGLang" in one.text for one in found.findings)
    assert not check_command("llama-server -m t --frobnicate").accepted


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve T --speculative-config '{method: ngram}'",
        "vllm serve T --speculative-config {'method':'ngram'}",
        "vllm serve T --speculative-config",
        "vllm serve T --speculative-config '[1]'",
        "vllm serve T --speculative-config '" + "[" * 5000 + "'",
        'vllm serve T --speculative-config \'{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 2}\'',
        'vllm serve T --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\'',
        'vllm serve T --speculative-config \'{"method": "ngram", "num_speculative_tokens": -3}\'',
        'vllm serve T --speculative-config \'{"method": "telepathy", "num_speculative_tokens": 3}\'',
        "llama-server -m t --spec-type none,ngram-mod",
        "llama-server -m t --spec-type draft-simple",
        "sglang serve --model-path T --speculative-algorithm STANDALONE",
        "sglang serve --model-path T --speculative-algorithm NGRAM --speculative-use-rejection-sampling",
        "cat > c.yaml <<EOF\nspeculative_config:\n  decoding_type: Eagle3\nEOF\ntrtllm-serve T --config c.yaml",
        "cat > c.yaml <<EOF\n- a\nEOF\ntrtllm-serve T --config c.yaml",
        "echo hello",
        "vllm bench serve",
        "vllm serve 'T",
    ],
)
def test_what_an_engine_would_refuse(command: str) -> None:
    assert not check_command(command).accepted


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("sglang serve --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 3 "
         "--speculative-eagle-topk 1 --speculative-num-draft-tokens 9", "steps + 1"),
        ("sglang serve --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 3", "all three"),
        ("llama-server -m t --spec-type ngram-mod --spec-ngram-mod-n-min 9 --spec-ngram-mod-n-max 3", "nothing is ever drafted"),
        ("trtllm-serve T --config nowhere.yaml", "not pasted"),
        ("vllm serve T --spec-method ngram --spec-tokens 3 --spec-tokens 4", "given twice"),
        ("vllm serve T –spec-method ngram --spec-tokens 3", "dash"),
        ("vllm serve T --speculative-config ‘{\"method\": \"ngram\", \"num_speculative_tokens\": 3}’", "typeset"),
    ],
)  # fmt: skip
def test_contradictions_are_said(command: str, text: str) -> None:
    assert any(text in one.text for one in check_command(command).findings)


@pytest.mark.parametrize(
    "command",
    [
        'CUDA_VISIBLE_DEVICES=0 vllm serve T \\\n  --speculative-config \'{\n "method": "ngram",\n "num_speculative_tokens": 4,\n "prompt_lookup_max": 3}\'',
        "$ python3 -m vllm.entrypoints.openai.api_server --model T --spec-method ngram --spec-tokens 4 --speculative-config.prompt_lookup_max 3",
        "docker run --gpus all vllm/vllm-openai:v0.32 --model T -sc '{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"prompt_lookup_max\":3}'",
        "# it's a comment\nexport A=1; vllm serve T --spec-method=ngram --spec-tokens=4 && echo done",
        "sglang serve --model-path T --speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1 --speculative-num-draft-tokens 5",
        "cat <<'EOF' > c.yaml\nspeculative_config:\n  decoding_type: NGram\n  max_draft_len: 4\nEOF\ntrtllm-serve T --extra_llm_api_options c.yaml",
        "speculative_config:\n  decoding_type: NGram\n  max_draft_len: 4",
    ],
)  # fmt: skip
def test_commands_as_people_write_them(command: str) -> None:
    found = check_command(command)
    assert found.accepted, found.findings
    assert found.lane is not None and found.lane.method == "prompt-lookup" and found.lane.k == 4


def test_what_is_not_given_is_the_engines_own_default() -> None:
    found = check_command("vllm serve T --spec-method ngram --spec-tokens 3").lane
    assert found is not None and dict(found.options) == {"ngram_max": 5, "ngram_min": 5}
    found = check_command("vllm serve T --spec-method ngram --spec-tokens 3 --speculative-config.prompt_lookup_max 2").lane
    assert found is not None and dict(found.options) == {"ngram_max": 2, "ngram_min": 2}
    assert check_command("llama-server -m t -md d.gguf --spec-type draft-simple").lane == LaneSettings("draft-model", k=3, draft="d.gguf")
    found = check_command("vllm serve T --spec-method suffix").lane
    assert found is not None and found.k == 24
    found = check_command("sglang serve --model-path T --speculative-algorithm NGRAM").lane
    assert found is not None and found.k == 11


def test_a_method_that_specview_lacks_gives_no_lane() -> None:
    found = check_command('vllm serve T --speculative-config \'{"method": "dflash", "model": "D", "num_speculative_tokens": 8}\'')
    assert found.lane is None and found.accepted


def test_nothing_is_too_long_or_empty() -> None:
    for text in ("", "  \n", "x" * (LONGEST + 1)):
        with pytest.raises(UsageError):
            check_command(text)


@given(st.text(max_size=300) | st.lists(st.sampled_from(
    ["vllm", "serve", "llama-server", "sglang", "trtllm-serve", "--config", "-m", "--spec-type", "a,b", ";", "\n", "'", '"', "\\", "{", "}", "<<EOF", "cat >",
     "--speculative-config", '{"method":1}', "--spec-tokens", "9" * 5000, "nan", "-1", "--", "-", "=", "--x=", "\0", "$(rm -rf /)", "`id`"]), max_size=14).map(" ".join))  # fmt: skip
def test_hostile_text_is_read_and_never_run(text: str) -> None:
    try:
        check_command(text)
    except UsageError:
        pass
