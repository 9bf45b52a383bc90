"""Heads that cannot be used: one clear line, before any weights are loaded, and no pickle ever runs code."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specview.errors import SpecviewError, UsageError
from specview.heads import files, layouts, pickles
from specview.heads.fit import TargetFacts, fits, settle
from specview.heads.read import read_head
from specview.models import heads
from specview.models.heads import load_head
from tests.heads import fabricate as make
from tests.models.conftest import make_gguf  # noqa: F401
from tests.models.hostile_files import CASES

TARGET = TargetFacts("toy-target", make.HIDDEN, make.LAYERS, make.VOCAB)
Write = Callable[..., Path]


def one_line(error: pytest.ExceptionInfo[SpecviewError]) -> str:
    """The message, which is one line that ends as a sentence."""
    text = str(error.value)
    assert "\n" not in text and text.endswith((".", ")."))
    return text


def refused(folder: Path, kind: str = "eagle3", target: make.FakeTarget | None = None, **answers: str) -> str:
    """Load a head that cannot be, with the loading of weights forbidden; return the line."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SpecviewError) as error:
        patch.setattr("specview.heads.modules.load_tensors", lambda *_: pytest.fail("weights were loaded"))
        load_head(kind, str(folder), target or make.FakeTarget(), answers)  # type: ignore[arg-type]
    return one_line(error)


# -- heads that are refused before any weights are loaded ---------------------------------------------------

MID, TWO, MIMO = make.midlayer_config(), make.eagle3_state(first="layers.0"), {**make.LLAMA, "model_type": "mimo", "num_hidden_layers": make.LAYERS}
"""The layout with `midlayer.`, the tensors of speculators' layout, and a MiMo target's config."""
PARALLEL = make.eagle3_state(first="layers.0", mask_hidden=True)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
IDS, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"


def without(state: make.State, *names: str) -> make.State:
    return {name: tensor for name, tensor in state.items() if name not in names}


def mid(**tensors: Any) -> make.State:
    """An EAGLE-3 head's tensors, some changed; "__" stands for a dot."""
    return {**make.eagle3_state(), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}


def spec(layer: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return make.speculators_config(layer=layer, **more)


Case = tuple[str, dict[str, Any], make.State, str]
NO_FIT: list[tuple[dict[str, Any], Case]] = [
    ({"hidden": 32, "name": "big"}, ("eagle3", spec(), TWO, "^head holds an EAGLE-3 head for lab/toy-target that reads hidden states "
                                     "of 16 numbers, and those of big have 32")),
    ({"vocab": 5000}, ("eagle3", MID, make.eagle3_state(), "with a vocabulary of 40 tokens, and toy-target has 5,000")),
    ({"vocab": 36}, ("eagle3", MID, make.eagle3_state(), "drafts token 39, and toy-target has 36 tokens")),
    ({"layers": 4}, ("eagle3", spec(**{IDS: [1, 4, 7]}), TWO, "reads layer 7")),
    ({"layers": 6}, ("eagle3", spec(**{IDS: [1, 4, 7]}), TWO, "reads layer 7")),
    ({"layers": 4}, ("eagle3", MID, make.eagle3_state(), "reads the hidden states after layers 2, 2, 1, and toy-target has 4 layers")),
    ({"layers": 9}, ("mtp", MIMO, make.mimo_state(), "of a target of 8 layers, and toy-target has 9")),
]  # fmt: skip
BAD: list[Case] = [
    # tensors that are missing, of another shape or type, or of nobody
    ("eagle3", MID, {n: t for n, t in make.eagle3_state().items() if "mlp" not in n and n != "norm.weight"},
     "lacks tensors of an EAGLE-3 head: layers.0.mlp.gate_proj.weight, layers.0.mlp.up_proj.weight, .*and 1 more"),
    ("eagle3", MID, without(make.eagle3_state(), "d2t"), "lacks tensors of"),
    ("eagle3", MID, without(make.eagle3_state(), "fc.weight"), "lacks tensors of"),
    ("p-eagle", make.speculators_config("peagle", mask_token_id=3), without(PARALLEL, "mask_hidden"), "lacks tensors of"),
    ("eagle", make.LLAMA, without(make.eagle1_state(), "layers.0.post_attention_layernorm.weight"), "lacks tensors of"),
    ("medusa", {"medusa_num_heads": 3}, without(make.medusa_state(), "1.0.linear.weight"), "lacks tensors of"),
    ("medusa", {"medusa_num_heads": 3}, without(make.medusa_state(), "2.1.weight"), "lacks tensors of"),
    ("mlp-speculator", make.mlp_speculator_config(), without(make.mlp_speculator_state(), "speculator.ln.2.bias"), "lacks tensors of"),
    ("mtp", {**make.LLAMA, "num_hidden_layers": 8}, {n: t for n, t in make.mimo_state().items() if "mtp" not in n},
     "^head has no next-token-prediction modules."),
    ("eagle3", MID, mid(midlayer__self_attn__q_proj__weight=torch.zeros(16, 16)),
     r"layers.0.self_attn.q_proj.weight \[16, 16\] instead of \[16, 32\]"),
    ("eagle3", MID, mid(midlayer__router__weight=torch.zeros(2)),
     "has tensors that an EAGLE-3 head of a layout known here has not: layers.0.router.weight"),
    ("eagle3", MID, mid(fc__weight=torch.zeros(16, 48, dtype=torch.int8)),
     "fc.weight of type I8, which is not read here. Choose a head with weights in float32"),
    ("eagle3", MID, mid(fc__weight=torch.zeros(16, 48).to(torch.float8_e4m3fn)), "fc.weight of type F8_E4M3, which is not read here"),
    ("eagle3", MID, mid(d2t=torch.zeros(12)), "whole numbers as its vocabulary map."),
    ("eagle3", MID, mid(d2t=torch.zeros(11, dtype=torch.int64)), "Download its config.json and its weights again"),
    ("eagle3", MID, mid(d2t=torch.zeros(12, dtype=torch.int64) - 1), "maps its tokens to no distinct ones of the target"),
    ("eagle3", MID, mid(d2t=torch.arange(12) * -1), "maps its tokens to no distinct ones of the target"),
    # configs
    ("eagle3", make.midlayer_config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), make.eagle3_state(), "by yarn"),
    ("eagle3", make.midlayer_config(partial_rotary_factor=0.5), make.eagle3_state(), "only 0.5 of each attention head"),
    ("eagle3", make.midlayer_config(hidden_act="gelu"), make.eagle3_state(), "the activation gelu"),
    ("eagle", {**make.LLAMA, "hidden_act": "gelu"}, make.eagle1_state(), "the activation gelu"),
    ("eagle3", make.midlayer_config(**{NESTED: {IDS: [1, 2]}}), make.eagle3_state(), "names 2 layers of the target"),
    ("eagle3", make.midlayer_config(**{NESTED: {IDS: "low"}}), make.eagle3_state(), "has 'low' as eagle_aux"),
    ("eagle3", spec(**{IDS: [2, 2, 4]}), TWO, r"names a layer twice \(2, 2, 4\). Download"),
    ("eagle3", spec(), make.eagle3_state(first="layers.0", aux=4), "does not say which 4 layers the head reads"),
    ("eagle3", spec({"model_type": "gpt2"}), TWO, "has layers of the type 'gpt2', which is not read here. Choose another head."),
    ("eagle3", spec({"hidden_act": "gelu"}), TWO, "has the activation gelu, which is not read here. Choose another head."),
    ("eagle3", spec({"num_attention_heads": 0}), TWO, "has 0 heads for 2 key-value heads. Download the head again."),
    ("eagle3", spec({"head_dim": 10**9}), TWO, "has attention heads 1000000000 wide. Download the head again."),
    ("eagle3", spec({"head_dim": 3}), TWO, "has attention heads 3 wide."),
    ("p-eagle", make.speculators_config("peagle"), PARALLEL,
     r"names no mask token \(mask_token_id, pard_token or ptd_token_id\). Write the token"),
    ("mtp", {**MIMO, "rms_norm_eps": "small"}, make.mimo_state(), "has 'small' as rms_norm_eps"),
    *(("eagle3", make.midlayer_config(rope_scaling=scaling, rope_theta=None), make.eagle3_state(), said) for scaling, said in (
        ({"rope_type": "linear"}, "has no factor"),
        ({"rope_type": "linear", "factor": 0}, "has 0 as factor"),
        ({**LLAMA3, "factor": "8"}, "has '8' as factor"),
        ({**LLAMA3, "original_max_position_embeddings": None}, "has no original_max_position_embeddings"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "low_freq_factor that is not below its high_freq_factor"),
        ({"rope_theta": "x"}, "has 'x' as rope_theta"),
    )),
    *(("eagle3", {**MID, key: value}, make.eagle3_state(), f"the config.json of .*{key}")
      for key in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
      for value in (None, "sixteen", -1, True, 2.5)),
    *(("eagle3", {**MID, key: value}, make.eagle3_state(), f"^the config.json of .* has .{{1,300}} as {key}. Download the head again.$")
      for key in ("rms_norm_eps", "rope_theta")
      for value in ("tiny", 0, -1.0, True, [], float("nan"), float("inf"), 10**400)),
    # another kind, or no head
    ("eagle3", make.LLAMA, make.eagle1_state(), "holds an EAGLE head, and this lane drafts with an EAGLE-3 head. Use method eagle or "
     r"eagle2, or name another head: draft=FOLDER \(or eagle3.head=FOLDER in a combined method\).$"),
    ("eagle", {"model_type": "odd"}, {"a.b": torch.zeros(2), "c": torch.zeros(1)},
     r"holds no head of a layout that specview knows \(its tensors: a.b, c, ...\)"),
    ("eagle", {**make.LLAMA, "pard_token": 7, "spd_type": "pard"}, make.llama_layer(make.Weights(0), "model.layers.0", make.HIDDEN),
     r"drafts in parallel \(PARD\), no head. Name it as the draft of method pard"),
    ("eagle", make.LLAMA, make.llama_layer(make.Weights(0), "model.layers.0", make.HIDDEN), "is a whole model, no head"),
    ("eagle", {**make.LLAMA, "architectures": ["DFlashDraftModel"], "block_size": 8}, make.eagle1_state(), "is a DFlash head"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "case"), [*NO_FIT, *(({}, case) for case in BAD)], ids=lambda value: value[3][:60] if isinstance(value, tuple) else str(value))
def test_a_head_that_cannot_serve_is_refused_in_one_line(tmp_path: Path, target: dict[str, Any], case: Case) -> None:
    kind, config, tensors, said = case
    folder = make.write(tmp_path / "head", config, tensors)
    assert re.search(said, refused(folder, kind, make.FakeTarget(**target)))


# -- not this target -----------------------------------------------------------------------------------


def test_a_padded_vocabulary_is_no_hindrance(tmp_path: Path) -> None:
    folder = make.write(tmp_path / "head", make.midlayer_config(), make.eagle3_state())
    head = load_head("eagle3", str(folder), make.FakeTarget(vocab=48))  # type: ignore[arg-type]
    assert "padded to 40 and 48 tokens" in " ".join(head.facts.notes)
    rows = head.spread(torch.zeros(1, make.DRAFT_VOCAB), -torch.inf)
    assert rows.shape == (1, 48) and torch.isfinite(rows).sum() == make.DRAFT_VOCAB


def test_a_target_without_features(tmp_path: Path) -> None:
    folder = make.write(tmp_path / "head", make.midlayer_config(), make.eagle3_state())
    target = make.FakeTarget()
    target.features_problem = "its graph has no layer outputs."
    assert refused(folder, target=target) == "no head can draft for toy-target: its graph has no layer outputs."


def test_another_trained_for_name_is_a_note(tmp_path: Path) -> None:
    folder = make.write(tmp_path / "head", make.speculators_config(), make.eagle3_state(first="layers.0"))
    facts = read_head(folder)
    other = TargetFacts("Other-1B", make.HIDDEN, make.LAYERS, make.VOCAB)
    assert "trained for lab/toy-target" in " ".join(fits(facts, other).notes)
    for name in ("toy-target", "Toy-Target.Q4_K_M", "toy_target-GGUF", "someone/toy-target-bf16"):
        same = TargetFacts(name, make.HIDDEN, make.LAYERS, make.VOCAB)
        assert fits(facts, same).notes == (), name


def test_a_gguf_file_without_mtp_modules(tmp_path: Path, make_gguf: Any) -> None:  # noqa: F811
    assert "has no next-token-prediction modules." in refused(make_gguf("target.gguf"), "mtp")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    assert refused(tmp_path / "cut.gguf", "mtp").startswith("cut.gguf is cut short")


# -- not whole -----------------------------------------------------------------------------------------


def test_what_is_computed_or_copied_does_no_harm(tmp_path: Path) -> None:
    extra = {"midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(2), "verifier_norm.weight": torch.zeros(16),
             "verifier_lm_head.weight": torch.zeros(40, 16)}  # fmt: skip
    folder = make.write(tmp_path / "head", make.midlayer_config(), {**make.eagle3_state(), **extra})
    assert load_head("eagle3", str(folder), make.FakeTarget()).module is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in make.eagle3_state().items()}
    folder = make.write(tmp_path / "head", make.midlayer_config(), tensors)
    head = load_head("eagle3", str(folder), make.FakeTarget())  # type: ignore[arg-type]
    assert {parameter.dtype for parameter in head.module.parameters()} == {torch.float32}
    assert torch.equal(head.module.fc.weight, tensors["fc.weight"].float())


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file(tmp_path: Path, file: str) -> None:
    folder = make.write(tmp_path / "head", make.midlayer_config(), make.eagle3_state(), file)
    whole = (folder / file).read_bytes()
    for share in (0.0, 0.3, 0.95):
        (folder / file).write_bytes(whole[: int(len(whole) * share)])
        text = refused(folder)
        assert file in text and any(word in text for word in ("cut short", "damaged", "no weights file")), text


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "nonsense", '"config"'])
def test_a_config_that_is_no_json_object(tmp_path: Path, content: str) -> None:
    folder = make.write(tmp_path / "head", make.midlayer_config(), make.eagle3_state())
    (folder / "config.json").write_text(content, encoding="utf-8")
    assert "config.json is damaged (not a JSON object)" in refused(folder)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert refused(tmp_path).startswith(f"{tmp_path} has no weights.")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"fc.weight": "../../../etc/model-00001.safetensors"}}), encoding="utf-8"
    )
    assert "lacks its weights file model-00001.safetensors" in refused(tmp_path)


def test_small_parts_that_are_no_fit_are_told_from_files(tmp_path: Path) -> None:
    """By fits, so that a check says what a run would."""
    d2t = torch.arange(make.DRAFT_VOCAB) * 5  # up to row 11 + 55
    state = {**make.eagle3_state(), "d2t": d2t}
    for file in ("model.safetensors", "pytorch_model.bin"):
        reason = fits(read_head(make.write(tmp_path / file, make.midlayer_config(), state, file)), TARGET).reason
        assert reason is not None and "drafts token 66, and toy-target has 40 tokens." in reason
    some = make.medusa_vllm_state(some=True)
    assert fits(read_head(make.write(tmp_path / "some", make.medusa_vllm_config(), some)), TARGET).reason is None
    for ids, said in (
        (torch.arange(make.DRAFT_VOCAB) + 30, "drafts token 41, and toy-target has 40 tokens."),
        (torch.arange(make.DRAFT_VOCAB) - 1, "maps its tokens to no distinct ones of the target (token_map)."),
        (torch.zeros(make.DRAFT_VOCAB, dtype=torch.int64), "maps its tokens to no distinct ones"),
    ):
        folder = make.write(tmp_path / "map", make.medusa_vllm_config(), {**some, "token_map": ids})
        assert said in refused(folder, "medusa")


@pytest.mark.parametrize(("mask", "own", "fine"), [(39, False, True), (40, False, False), (39, True, True), (40, True, False)])
def test_a_mask_without_an_embedding(tmp_path: Path, mask: int, own: bool, fine: bool) -> None:
    state = make.eagle3_state(first="layers.0", mask_hidden=True, own_embedding=own)
    folder = make.write(tmp_path / "head", make.speculators_config("peagle", mask_token_id=mask), state)
    reason = fits(read_head(folder), TARGET).reason
    assert reason is None if fine else "has token 40 as its mask, and there are 40 embeddings. Write the" in str(reason)


# -- no head, or another kind --------------------------------------------------------------------------


def test_a_reference_that_means_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpecviewError, match="there is no file or folder ./nowhere"):
        load_head("eagle3", "./nowhere", make.FakeTarget())  # type: ignore[arg-type]


def test_a_kind_without_a_bundled_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heads, "asset_path", lambda name: tmp_path / name)
    with pytest.raises(SpecviewError, match="^eagle has no bundled head. Name one: draft=FOLDER "):
        load_head("eagle", "bundled", make.FakeTarget())  # type: ignore[arg-type]
    make.write(tmp_path / "eagle", make.LLAMA, make.eagle1_state())
    assert load_head("eagle", "bundled", make.FakeTarget()).facts.kind == "eagle"  # type: ignore[arg-type]


# -- layer numbers and residual: told apart, or asked for ----------------------------------------------


def settled(config: dict[str, Any], layers: int = make.LAYERS, **answers: str) -> tuple[int, ...]:
    """The layers that a head of this config reads of a target of so many."""
    folder = Path(settled.folder)  # type: ignore[attr-defined]
    speculators = "transformer_layer_config" in config
    make.write(folder, config, make.eagle3_state(first="layers.0" if speculators else "midlayer"))
    return settle(read_head(folder), TargetFacts("toy-target", make.HIDDEN, layers, make.VOCAB), answers).aux_layers


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path) -> None:
    settled.folder = tmp_path / "settled"  # type: ignore[attr-defined]


def test_layer_numbers_by_layout() -> None:
    # Eight layers: entering 2, 4 and 5, which are the outputs of 1, 3 and 4.
    assert settled(make.midlayer_config()) == (2, 4, 5)
    assert settled(make.speculators_config()) == (2, 4, 5)
    assert settled(make.speculators_config(**{IDS: [1, 4, 7]})) == (1, 4, 7)
    assert settled(make.midlayer_config(**{NESTED: {IDS: [0, 4, 6]}})) == (1, 5, 7)
    # The usual layers say themselves which reading gives them, where the layout does not.
    assert settled(make.midlayer_config(**{IDS: [1, 3, 4]})) == (2, 4, 5)
    assert settled(make.midlayer_config(**{IDS: [2, 4, 5]})) == (2, 4, 5)


@pytest.mark.parametrize(
    "config",
    [
        make.midlayer_config(**{IDS: [1, 4, 6]}),  # of nobody's usual layers, and in no place that says
        make.midlayer_config(**{NESTED: {IDS: [2, 4, 5]}}),  # SpecForge's place, but vLLM's usual numbers
        make.speculators_config(**{IDS: [1, 3, 4]}),  # converted: the library's layout, SpecForge's numbers
    ],
)
def test_layer_numbers_are_asked_for(config: dict[str, Any]) -> None:
    ids = tuple(config.get(IDS) or config[NESTED][IDS])
    with pytest.raises(UsageError) as error:
        settled(config)
    text = one_line(error)
    assert ", ".join(map(str, ids)) in text
    assert text.endswith("Set the lane's option aux_ids=entering or output.")
    assert settled(config, aux_ids="entering") == ids
    assert settled(config, aux_ids="output") == tuple(n + 1 for n in ids)


def test_norm_before_residual_is_told_or_asked_for(tmp_path: Path) -> None:
    def residual(config: dict[str, Any], **answers: str) -> bool:
        parallel = config.get("speculators_model_type") == "peagle"
        first = "layers.0" if "transformer_layer_config" in config else "midlayer"
        folder = make.write(tmp_path / "head", config, make.eagle3_state(first=first, mask_hidden=parallel))
        return bool(settle(read_head(folder), TARGET, answers).sizes["norm_before_residual"])

    assert residual(make.midlayer_config()) is False
    assert residual(make.midlayer_config(norm_before_residual=True)) is True
    assert residual(make.speculators_config(norm_before_residual=True)) is True
    assert residual(make.speculators_config("peagle", norm_before_residual=None, mask_token_id=3)) is False
    missing = make.speculators_config(norm_before_residual=None)
    with pytest.raises(UsageError) as error:
        residual(missing)
    assert "Set the lane's option norm_before_residual=true or false." in one_line(error)
    assert residual(missing, norm_before_residual="true") is True
    assert residual(missing, norm_before_residual="false") is False
    assert residual(make.speculators_config(norm_before_residual=True), norm_before_residual="false") is False


# -- pickles -------------------------------------------------------------------------------------------


class Evil:
    """Pickles to a call that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


class EvilBuiltin(Evil):
    """The same by the means that no module needs to be imported for."""

    def __reduce__(self) -> Any:
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


def torch_zip(content: Any) -> bytes:
    """A file in torch's format whose pickle holds `content`."""
    made = io.BytesIO()
    torch.save(content, made)
    return made.getvalue()


@pytest.mark.parametrize("evil", [Evil, EvilBuiltin])
@pytest.mark.parametrize("form", ["zip", "legacy", "bare", "beside"])
def test_a_pickle_that_runs_code_is_refused_and_does_not(tmp_path: Path, evil: type[Evil], form: str) -> None:
    trap = tmp_path / "ran"
    state: dict[str, Any] = {**make.medusa_state(), "9.9.weight": evil(trap)}
    folder = make.write(tmp_path / "head", {"medusa_num_heads": 3, "medusa_num_layers": 1}, {}, "medusa_lm_head.pt")
    file = folder / "medusa_lm_head.pt"
    if form == "zip":
        file.write_bytes(torch_zip(state))
    elif form == "legacy":
        torch.save(state, file, _use_new_zipfile_serialization=False)
    elif form == "bare":
        file.write_bytes(pickle.dumps(evil(trap)))
    else:  # the outline is clean, and a second pickle in the archive is not
        made = io.BytesIO(torch_zip(make.medusa_state()))
        with zipfile.ZipFile(made, "a") as archive:
            archive.writestr("other/data.pkl", pickle.dumps(evil(trap)))
        file.write_bytes(made.getvalue())
    text = refused(folder, "medusa")
    assert not trap.exists()
    assert str(file) in text
    if form in ("zip", "legacy"):
        assert "opening it could run code, so it is not opened. Convert the weights to safetensors" in text
    # The trap works: what a careless program does makes the file.
    if form == "bare":
        pickle.loads(file.read_bytes())
        assert trap.exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_are_read_without_any_loader_of_torchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    whole = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    state = {
        "whole": whole, "cut": whole[1:4, 2:5], "turned": whole.T, "half": whole.half(), "coarse": whole.bfloat16(),
        "none": torch.zeros(0, 4), "one": torch.tensor(5), "yes": torch.tensor([True, False]),
    }  # fmt: skip
    file = tmp_path / "weights.bin"
    torch.save(state, file, _use_new_zipfile_serialization=not legacy)
    expected = torch.load(file, weights_only=True)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("torch's loader was asked"))
    found = files.load_tensors(files.stored_tensors([file]), state)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name
    assert found["cut"].untyped_storage().nbytes() == 9 * 4, "a view is read as itself, not with its whole storage"


def _hostile(name: str, folder: Path) -> Path:
    return CASES[f"head: {name}"](folder)


@pytest.mark.parametrize(("name", "reason"), [
    ("a packed outline of dicts", "it is compressed, as torch.save never does it"),
    ("an outline of dicts", "is no weights file of torch"),
    ("a stride of 0", "tensor '0.0.linear.weight' is larger than what is stored of it"),
    ("a storage larger than the file", "tensor '0.0.linear.weight' is larger than what is stored of it"),
    ("a storage that is missing", "is larger than what is stored of it"),
    ("a view behind its storage", "is larger than what is stored of it"),
    ("a view before its storage", "is damaged or no weights file"),
    ("copies of copies", "is damaged or no weights file"),
    ("a memo of 2^31", "holds no tensors|lacks tensors|holds no head"),
    ("tuples in tuples as a key", "is no weights file of torch|is damaged"),
    ("attributes of a function", "is damaged or no weights file"),
    ("code", "opening it could run code, so it is not opened"),
    ("code of old", "opening it could run code, so it is not opened"),
    ("an old one of 4 GB", "is damaged or no weights file"),
    ("an old one whose storage lies", "is damaged or no weights file"),
    ("a directory of 4 GB", "is damaged or no weights file"),
    ("blocks by the billion", "lacks tensors"),
    ("steps by the billion", "has n_predict 1000000000"),
    ("a layer of numbers", "is none of a head's"),
    ("pipe", "it is a pipe or a device, not a file|no weights"),
])
def test_a_hostile_head_is_refused_for_what_it_is(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(SpecviewError, match=reason) as caught:
        read_head(_hostile(name, tmp_path))
    assert one_line(caught) and len(str(caught.value)) < 600
    assert torch_utils_unharmed()


def torch_utils_unharmed() -> bool:
    """Whether no file has given the stand-ins attributes."""
    return not any(vars(stand_in) for stand_in in (pickles._tensor, pickles._parameter))


@pytest.mark.parametrize("legacy", [False, True])
def test_names_and_shapes_of_a_pickle(tmp_path: Path, legacy: bool) -> None:
    state = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.float16), "c": torch.nn.Parameter(torch.zeros(1)),
             "d": torch.zeros(5, dtype=torch.int64), "e": torch.zeros(6, 7).T, "step": 3}  # fmt: skip
    file = tmp_path / "weights.bin"
    torch.save({"state_dict": state} if legacy else state, file, _use_new_zipfile_serialization=not legacy)
    found = files.stored_tensors([file])
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} == {
        "a": ((2, 3), "F32"), "b": ((4,), "F16"), "c": ((1,), "F32"), "d": ((5,), "I64"), "e": ((7, 6), "F32"),
    }  # fmt: skip
    assert torch.equal(files.load_tensors(found, ["e"])["e"], state["e"])


@pytest.mark.parametrize("content", [b"", b"\x80", b"no pickle", pickle.dumps([1, 2]), pickle.dumps({1: 2})])
def test_files_that_are_no_weights(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.pt"
    file.write_bytes(content)
    with pytest.raises(SpecviewError) as error:
        files.stored_tensors([file])
    assert str(file) in one_line(error)


def test_safetensors_are_taken_before_pickles_and_a_named_file_before_all(tmp_path: Path) -> None:
    make.write(tmp_path, {}, make.medusa_state(), "medusa_lm_head.pt")
    make.write(tmp_path, {}, make.medusa_state(1), "medusa_lm_head.safetensors")
    (tmp_path / "optimizer.pt").write_bytes(b"x")
    assert files.weights_of(tmp_path) == (tmp_path / "medusa_lm_head.safetensors",)
    assert files.weights_of(tmp_path / "medusa_lm_head.pt") == (tmp_path / "medusa_lm_head.pt",)
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    assert files.weights_of(tmp_path) == (tmp_path / "medusa_lm_head.pt",)
    with pytest.raises(SpecviewError, match="holds no head's weights"):
        files.weights_of(tmp_path / "config.json")


def test_reading_a_layout_imports_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    make.write(tmp_path, {"medusa_num_heads": 3}, make.medusa_state(), "medusa_lm_head.pt")
    code = (
        "import sys; from pathlib import Path; from specview.heads.read import read_head;"
        f"assert read_head(Path({str(tmp_path)!r})).most_tokens == 3;"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert layouts.KIND_WORDS.keys() == {"eagle", "eagle3", "p-eagle", "medusa", "mlp-speculator", "mtp"}
