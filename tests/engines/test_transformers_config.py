"""Every field of config.json as transformers reads it: odd configurations, ours against transformers on the same folder."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specview.cli import main
from specview.errors import SpecviewError
from tests.engines.transformers_tiny import VOCAB, save_model, save_tokenizer, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine, transformers_linear  # noqa: E402
from specview.engines.transformers_llama import LlamaRunner  # noqa: E402
from specview.engines.transformers_llama_shape import UNTIED  # noqa: E402

TOKENS = [256, *((37 * at) % 251 for at in range(39))]  # beyond the windows and lengths below
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: tuple[Any, ...] = (
    None, {}, {"rope_type": "default"}, {"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 4},
    {"type": "linear", "factor": 3.0, "rope_theta": 700.0}, {"type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, {"type": "yarn", "factor": 2.0},
    LLAMA3, {**LLAMA3, "original_max_position_embeddings": 16}, {"rope_type": "default", "rope_theta": 50000.0},
    {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
    {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]}, {"rope_type": "linear"},
    {"rope_type": "linear", "factor": 0.0}, {"rope_type": "sideways", "factor": 2.0}, 3,
)  # fmt: skip
ODD: Mapping[str, tuple[Any, ...]] = {
    "rope_scaling": ROPES,
    "rope_parameters": ROPES,
    "rope_theta": (10000.0, 500.0, 1000000, None),
    "partial_rotary_factor": (0.5, 1.0),
    "original_max_position_embeddings": (8, 64),
    "max_position_embeddings": (48, 64, 4096),
    "hidden_act": ("swish", "gelu", "relu", "gelu_pytorch_tanh", "silu"),
    "rms_norm_eps": (1e-6, 1e-2, 0.5, 0.0),
    "sliding_window": (None, 4, 4096),
    "use_sliding_window": (True, False),
    "max_window_layers": (0, 1, 2),
    "layer_types": (
        ["full_attention", "full_attention"], ["sliding_attention", "full_attention"], ["full_attention"], None,
    ),
    "is_causal": (True, False),
    "pretraining_tp": (1, 2),
    "tie_word_embeddings": (True, False),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "head_dim": (None, 8, 16),
    "num_key_value_heads": (None, 1, 2, 4, 3, 0),
    "num_hidden_layers": (1, 3, "2"),
    "vocab_size": (VOCAB, VOCAB + 60),
    "logit_scale": (0.25,),
    "logits_scaling": (4.0,),
    "attention_multiplier": (0.5,),
    "residual_multiplier": (0.5,),
    "embedding_multiplier": (3.0,),
    "attn_logit_softcapping": (1.0,),
    "final_logit_softcapping": (1.0,),
    "query_pre_attn_scalar": (3,),
    "qk_norm": (True,),
    "attention_chunk_size": (4,),
    "no_rope_layers": ([0, 1],),
    "per_layer_config": ({"0": {"hidden_act": "gelu"}},),
    "torch_dtype": ("float32", "bfloat16", "float16"),
    "dtype": ("bfloat16",),
    "return_dict": (False,),
    "output_hidden_states": (True,),
    "use_cache": (False,),
    "attention_dropout": (0.3,),
    "initializer_range": (0.5,),
    "unsloth_version": ("2025.1",),
    "architectures": (None, ["LlamaForCausalLM"], ["LlamaForSequenceClassification"]),
    "model_type": tuple(CLASSES),
    "attn_implementation": ("eager",),
    "temperature": (0.3,),
}  # fmt: skip
"""Fields that our forward reads, fields that transformers' modules or other models' read, and fields that none does."""


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which product is fastest is not looked for: hundreds of loads would take minutes."""
    monkeypatch.setattr(transformers_linear._Chooser, "_fastest", lambda self, weight: self._kinds[0])


def write(folder: Path, random_: random.Random, changes: Mapping[str, Any], left_out: tuple[str, ...] = ()) -> Path:
    """A folder with weights of a random shape, whose config.json was then changed by hand."""
    import transformers as hf
    from safetensors.torch import load_file, save_file

    kind = random_.choice(tuple(CLASSES))
    sizes: dict[str, Any] = {
        "vocab_size": random_.choice((VOCAB, VOCAB, VOCAB + 60)), "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": random_.choice((1, 2, 4)),
        "max_position_embeddings": 64, "initializer_range": 0.3, "tie_word_embeddings": random_.random() < 0.4,
        "bos_token_id": 256, "eos_token_id": None, "head_dim": random_.choice((8, 8, 16)),
    }  # fmt: skip
    if kind == "llama":
        sizes |= {"attention_bias": random_.random() < 0.3, "mlp_bias": random_.random() < 0.3}
    if kind == "mistral":
        sizes["sliding_window"] = None
    torch.manual_seed(random_.randrange(1000))
    config = getattr(hf, CLASSES[kind].replace("ForCausalLM", "Config"))(**sizes)
    model = getattr(hf, CLASSES[kind])(config).eval()
    model.to(random_.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16))).save_pretrained(str(folder))
    stored = random_.choice(("as it is", "as it is", "as it is", "another head", "another head", "the same head", "no head"))
    weights = load_file(folder / "model.safetensors")
    if stored == "no head":
        weights.pop("lm_head.weight", None)
    elif stored != "as it is":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * (1 if stored == "the same head" else -0.5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    written = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in written.items() if key not in left_out}))
    save_tokenizer(folder)
    return folder


def expected_logits(folder: Path) -> Any:
    """transformers' logits [n, vocab] of TOKENS, or None where it does not load or run the folder whole."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, output_loading_info=True, local_files_only=True
        )
        if loaded["missing_keys"]:
            return None
        model.config.return_dict = True  # without it, transformers 5.24 fails in its own forward
        with torch.no_grad():
            return model.eval()(torch.tensor([TOKENS]), use_cache=False).logits[0]
    except Exception:  # noqa: BLE001 - whatever it raises, it does not run
        return None


def ours(engine: Any) -> Any:
    """Logits of TOKENS in passes of many rows, few, and one."""
    session = engine.new_session(len(TOKENS))
    parts = (TOKENS[:33], TOKENS[33:38], TOKENS[38:])
    return torch.cat([session.forward(part).logits for part in parts])


def compare(folder: Path) -> str:
    """Hold ours against transformers; return who computed: own, module, or refused."""
    expected = expected_logits(folder)
    written = (folder / "config.json").read_text()
    if expected is None or not bool(torch.isfinite(expected).all()):
        with pytest.raises(SpecviewError) as caught:
            ours(transformers_engine.load(folder, device="cpu"))
        assert "\n" not in str(caught.value)
        return "refused"
    try:
        engine = transformers_engine.load(folder, device="cpu")
        got = ours(engine)
    except SpecviewError as error:
        # A model that looks ahead, and layers said to have a window that is not given: transformers' own caches fail too.
        assert "cannot run here" in str(error), (written, error)
        assert any(field in written for field in ('"is_causal": false', '"layer_types": ["sl')), (written, error)
        return "refused"
    close = {"atol": 2e-3, "rtol": 2e-3}
    torch.testing.assert_close(got, expected, **close, msg=lambda text: f"{written}\n{text}")
    return "own" if isinstance(engine._runner, LlamaRunner) else "module"


@pytest.mark.parametrize("seed", range(5))
def test_odd_configurations_give_transformers_logits(tmp_path: Path, seed: int) -> None:
    """What our own forward does not know goes to transformers' modules, and what transformers refuses is refused."""
    random_ = random.Random(seed)
    seen = dict.fromkeys(("own", "module", "refused"), 0)
    for case in range(20):
        changes = {key: random_.choice(ODD[key]) for key in random_.sample(sorted(ODD), random_.choice((0, 1, 1, 2, 3)))}
        if random_.random() < 0.4:
            changes |= {key: random_.choice(ODD[key]) for key in ("rope_scaling", "rope_theta")}
        left_out = random_.sample(("rope_parameters", "head_dim", "tie_word_embeddings", "dtype"), random_.choice((0, 0, 1, 2)))
        seen[compare(write(tmp_path / str(case), random_, changes, tuple(left_out)))] += 1
    assert min(seen["own"], seen["module"]) >= 3


@pytest.mark.parametrize("scaling", ({"type": "linear", "factor": 4.0}, {"type": "yarn", "factor": 4.0}))
def test_a_rope_scaling_beside_rope_parameters_counts(tmp_path: Path, scaling: dict[str, Any]) -> None:
    """The user's own line in a folder that transformers 5 saved, which writes rope_parameters."""
    folder = save_model(tmp_path / "m", tiny("llama"))
    path = folder / "config.json"
    plain = ours(transformers_engine.load(folder, device="cpu"))
    written = json.loads(path.read_text())
    assert "rope_parameters" in written
    path.write_text(json.dumps({**written, "rope_scaling": scaling}))
    assert compare(folder) == ("own" if scaling["type"] == "linear" else "module")
    assert not torch.allclose(ours(transformers_engine.load(folder, device="cpu")), plain, atol=1e-2)


@pytest.mark.parametrize("kind", ("llama-tied", "qwen3-tied"))
def test_a_head_of_its_own_where_the_configuration_ties_is_used_and_said(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "m", tiny(kind))
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    for head, said in ((embedding.clone(), False), (embedding.flip(0), True)):
        weights["lm_head.weight"] = head
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        assert compare(folder) == ("own" if kind == "llama-tied" else "module")
        assert (UNTIED in transformers_engine.load(folder, device="cpu").tokenizer.declared.lines()) == said
        assert main(["run", "--target", str(folder), "--method", "plain", "--prompt", "Hi", "--max-tokens", "4"]) == 0
        assert (UNTIED in capsys.readouterr().out) == said


def test_a_field_that_is_not_known_goes_to_transformers_modules_and_is_named(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", tiny("llama"))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_sharpness": 2.0}))
    assert compare(folder) == "module"
    assert "its config.json sets attention_sharpness" in transformers_engine.load(folder, device="cpu").exit_problem
