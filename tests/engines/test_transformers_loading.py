"""What the transformers engine refuses to load, and in which words; loading reads headers first."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specview.engines.transformers_config import rollback_problem
from specview.engines.transformers_weights import weight_bytes
from specview.errors import EngineMissing, SpecviewError, Stopped, UsageError
from tests.engines.conftest import Models
from tests.engines.transformers_tiny import save_model, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine  # noqa: E402


@pytest.fixture(scope="module")
def llama(models: Models) -> Path:
    return models.path("llama")


@pytest.fixture()
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(config))


def refused(folder: Path, **arguments: Any) -> str:
    with pytest.raises(SpecviewError) as caught:
        transformers_engine.load(folder, **{"device": "cpu", **arguments})
    line = str(caught.value)
    assert "\n" not in line and line.endswith(".")
    return line


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "There is no model folder" in refused(tmp_path / "nowhere")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    assert "no config.json" in refused(tmp_path)
    (tmp_path / "config.json").write_text("[1")
    assert "damaged" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "no safetensors weights" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "can run code" in refused(tmp_path)


def test_weights_cut_short(copy: Path) -> None:
    file = copy / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert "cut short: 100 bytes are missing" in refused(copy)
    file.write_bytes(whole[:20])
    assert "cut short" in refused(copy)
    file.write_bytes(b"\x02" + bytes(7) + b"[]" + whole)
    assert "damaged" in refused(copy)


def test_a_missing_shard(copy: Path) -> None:
    index = {"weight_map": {"a": "../../etc/passwd", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks its weights file passwd" in refused(copy)


def test_an_unknown_architecture(copy: Path) -> None:
    edit(copy, model_type="quantum_llama", architectures=["QuantumLlamaForCausalLM"])
    assert "does not know the architecture 'quantum_llama'" in refused(copy)


def test_a_model_that_writes_no_text(copy: Path) -> None:
    edit(copy, model_type="vit", architectures=["ViTModel"])
    assert "no causal language model" in refused(copy)


def test_remote_code_is_never_run_unless_ticked(copy: Path) -> None:
    edit(
        copy,
        model_type="homemade",
        auto_map={"AutoModelForCausalLM": "modeling.Homemade", "AutoConfig": "c.C"},
    )
    (copy / "modeling.py").write_text("raise SystemExit('ran')")
    assert "trust remote code" in refused(copy)


def test_bad_settings(llama: Path) -> None:
    assert "dtype is 'int3'" in refused(llama, dtype="int3")
    assert "threads is 0" in refused(llama, threads=0)
    assert "no device 'toaster'" in refused(llama, device="toaster")
    if not torch.cuda.is_available():
        assert "no CUDA device" in refused(llama, device="cuda")
    if not torch.backends.mps.is_available():
        assert "no MPS device" in refused(llama, device="mps")
    assert "not supported" in refused(llama, device="meta")
    with pytest.raises(UsageError):
        transformers_engine.load(llama, dtype="int3")


def test_memory_is_asked_about_before_loading(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    class Little:
        available = 200 << 20

    monkeypatch.setattr(psutil, "virtual_memory", Little)
    line = refused(llama)
    assert "needs 0.3 GB of memory, and 0.2 GB are free" in line


def test_missing_libraries_are_named(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "transformers" else real(name, *rest)
    )
    with pytest.raises(EngineMissing, match="pip install transformers"):
        transformers_engine.load(llama)


def test_loading_reports_and_stops(llama: Path) -> None:
    seen: list[float] = []
    transformers_engine.load(llama, device="cpu", progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == 1.0
    for stop_at in range(4):
        asked = iter(range(100))
        with pytest.raises(Stopped):
            transformers_engine.load(
                llama, device="cpu", should_stop=lambda at=stop_at, n=asked: next(n) >= at
            )


def test_weight_bytes_from_headers(llama: Path) -> None:
    parameters = sum(parameter.numel() for parameter in tiny("llama").parameters())
    assert weight_bytes(llama) == weight_bytes(llama, "float32") == 4 * parameters
    assert weight_bytes(llama, "bfloat16") == 2 * parameters


def test_a_folder_without_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").unlink()
    assert "tokenizer" in refused(copy)


def test_a_folder_that_lacks_weights_is_refused(copy: Path) -> None:
    """transformers would fill them with random numbers and say nothing."""
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    left_out = "model.layers.1.mlp.up_proj.weight"
    save_file(
        {name: value for name, value in weights.items() if name != left_out},
        copy / "model.safetensors",
        metadata={"format": "pt"},
    )
    assert left_out in refused(copy)


def test_a_recurrent_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "mamba", tiny("mamba"))
    engine = transformers_engine.load(folder, device="cpu")
    assert engine.rollback_problem is not None and "recurrent state" in engine.rollback_problem
    with pytest.raises(SpecviewError, match="cannot run here: mamba keeps a recurrent state"):
        engine.new_session(16)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "mistral", "sliding_window": 16}, None),
        ({"model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention"]}, None),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "rwkv"}, "recurrent state"),
        ({"model_type": "new", "layer_types": ["full_attention", "linear_attention"]}, "linear-attention"),
        ({"model_type": "lfm3", "text_config": {"layer_types": ["conv", "full_attention"]}}, "convolution"),
        ({"model_type": "odd", "layer_types": ["telepathy"]}, "telepathy layers"),
    ],
)
def test_rollback_problem(config: dict[str, Any], reason: str | None) -> None:
    problem = rollback_problem(config)
    assert problem is None if reason is None else problem is not None and reason in problem


def test_rollback_problem_asks_the_model_class() -> None:
    marked = type("Marked", (), {"_is_stateful": True})
    assert "recurrent" in (rollback_problem({"model_type": "brand-new"}, marked) or "")


def test_a_state_outside_the_cache_is_found(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Qwen3ForCausalLM

    folder = save_model(copy.parent / "qwen3", tiny("qwen3"))
    real = Qwen3ForCausalLM.forward
    passes = iter(range(100))

    def with_memory(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = real(self, *args, **kwargs)
        output.logits = output.logits + 5.0 * next(passes) * torch.arange(output.logits.shape[-1])
        return output

    monkeypatch.setattr(Qwen3ForCausalLM, "forward", with_memory)
    engine = transformers_engine.load(folder, device="cpu")
    assert "state beside the keys and values" in (engine.rollback_problem or "")


def test_closing_frees_the_weights(llama: Path) -> None:
    engine = transformers_engine.load(llama, device="cpu")
    engine.close()
    engine.close()
    with pytest.raises(ValueError, match="closed"):
        engine.new_session(4)


def test_a_quantized_folder_is_not_taken_for_plain_weights(copy: Path) -> None:
    from specview.engines.transformers_config import resolved_config
    from specview.engines.transformers_llama_shape import own_forward_problem
    from specview.engines.transformers_weights import read_headers

    config = resolved_config(copy)
    assert own_forward_problem(config, read_headers(copy)) is None
    for change in (
        {"quantization_config": {"quant_method": "gptq"}},
        {"hidden_act": "gelu"},
        {"num_key_value_heads": 4},
        {"tie_word_embeddings": True, "num_hidden_layers": 1},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        {"attention_bias": True},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8},
    ):
        assert own_forward_problem({**config, **change}, read_headers(copy)) is not None, change
