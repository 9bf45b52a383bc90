"""Finding a trained head by its name, checking it against a target's files, and telling it from a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from specview.errors import SpecviewError, UsageError
from specview.heads.fit import TargetFacts, target_of_files
from specview.models import heads, hub
from specview.models.heads import check_before, find_head, head_facts, load_head, named_head
from specview.models.pair_check import check_head
from tests.heads import fabricate as make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make.write(tmp_path / "head", make.speculators_config(), make.eagle3_state(first="layers.0"))


def put_in_cache(repo_id: str, source: Path) -> Path:
    """A repository in the hub's cache (that of the fixture `cache`), as its library lays it out."""
    snapshot = hub.hub_cache() / f"models--{repo_id.replace('/', '--')}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for file in source.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    return snapshot


# -- names ---------------------------------------------------------------------------------------------


def test_folders_files_and_cached_ids(cache: Path, folder: Path) -> None:
    assert find_head("eagle3", str(folder)) == folder
    assert find_head("eagle3", str(folder / "model.safetensors")) == folder / "model.safetensors"
    assert find_head("eagle3", "lab/head") is None  # to be fetched
    snapshot = put_in_cache("lab/head", folder)
    assert find_head("eagle3", "lab/head") == snapshot
    assert load_head("eagle3", "lab/head", make.FakeTarget()).facts.folder == snapshot  # type: ignore[arg-type]
    (snapshot / "config.json").unlink()
    assert find_head("eagle3", "lab/head") is None


def test_the_modules_of_a_target_are_in_its_own_folder(folder: Path) -> None:
    assert find_head("mtp", "bundled", folder) == folder
    with pytest.raises(SpecviewError, match="not on this machine yet"):
        find_head("mtp", "bundled", None)


class Hub:
    """Stands for the Hub: files by name, and what was downloaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
        self.files = files
        self.fetched: list[str] = []
        monkeypatch.setattr(hub, "_Repository", self)
        self.sizes = {name: len(data) for name, data in files.items()}
        self.ggufs: list[str] = []

    def __call__(self, repo_id: str, watch: Any) -> Any:
        self.repo_id = repo_id
        return self

    def download(self, names: list[str]) -> Path:
        self.fetched += names
        snapshot = hub.hub_cache() / f"models--{self.repo_id.replace('/', '--')}" / "snapshots" / "abc"
        snapshot.mkdir(parents=True, exist_ok=True)
        for name in names:
            (snapshot / name).write_bytes(self.files[name])
        return snapshot / names[-1]


def test_a_head_is_fetched_without_its_pickles_where_it_can_be(
    cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    found = Hub(monkeypatch, {**whole, "pytorch_model.bin": b"x", "README.md": b"x", "modeling.py": b"x"})
    load_head("eagle3", "lab/head", make.FakeTarget())  # type: ignore[arg-type]
    assert found.fetched == ["config.json", "model.safetensors"]
    load_head("eagle3", "lab/head", make.FakeTarget())  # type: ignore[arg-type]
    assert found.fetched == ["config.json", "model.safetensors"]  # from the cache now


def test_a_head_with_pickles_alone_is_fetched_with_them(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make.write(tmp_path / "m", {"medusa_num_heads": 3}, make.medusa_state(), "medusa_lm_head.pt")
    found = Hub(monkeypatch, {file.name: file.read_bytes() for file in source.iterdir()})
    assert load_head("medusa", "lab/m", make.FakeTarget()).facts.most_tokens == 3  # type: ignore[arg-type]
    assert found.fetched == ["config.json", "medusa_lm_head.pt"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (make.speculators_config(layer={"hidden_size": 4096}), "lab/x: the head reads hidden states of 4,096 numbers"),
        (make.midlayer_config(target_hidden_size=64), "lab/x: the head reads hidden states of 64 numbers"),
        ({**make.LLAMA, "num_hidden_layers": 30}, "is a whole model of 30 layers, no head"),
    ],
)
def test_what_a_config_rules_out_is_not_downloaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], said: str
) -> None:
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": b"gigabytes"}
    found = Hub(monkeypatch, files)
    with pytest.raises(SpecviewError, match=said):
        load_head("eagle3", "lab/x", make.FakeTarget())  # type: ignore[arg-type]
    assert found.fetched == ["config.json"]


@pytest.mark.parametrize(
    ("files", "lacking"), [({"config.json": b"{}"}, "weights"), ({"model.safetensors": b"x"}, "config.json")]
)
def test_a_repository_that_is_no_head(
    cache: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], lacking: str
) -> None:
    found = Hub(monkeypatch, files)
    with pytest.raises(SpecviewError, match=f"^lab/x is no trained head: it has no {lacking}"):
        load_head("eagle3", "lab/x", make.FakeTarget())  # type: ignore[arg-type]
    assert not found.fetched


def test_facts_for_files(folder: Path) -> None:
    found = head_facts(load_head("eagle3", str(folder), make.FakeTarget()))  # type: ignore[arg-type]
    assert found["head"] == "head" and found["layout"] == "EAGLE-3, speculators layout"
    assert found["trained_for"] == "lab/toy-target" and found["reads_layers"] == "2,4,5"
    assert len(found["sha256"]) == 64 and found["weight_bytes"] > 1000


# -- against a target's files --------------------------------------------------------------------------


def target_folder(path: Path, **config: Any) -> Path:
    """A model folder as far as its sizes go."""
    path.mkdir()
    save_file({"model.layers.0.self_attn.q_proj.weight": np.ones((4, 4), np.float32)}, path / "model.safetensors")
    made = {"hidden_size": make.HIDDEN, "num_hidden_layers": make.LAYERS, "vocab_size": make.VOCAB, **config}
    (path / "config.json").write_text(json.dumps(made), encoding="utf-8")
    return path


def test_sizes_of_targets_from_their_files(tmp_path: Path, make_gguf: Any) -> None:
    assert target_of_files(target_folder(tmp_path / "t")) == TargetFacts("t", make.HIDDEN, make.LAYERS, make.VOCAB)
    nested = {"hidden_size": 7, "text_config": {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 9}}
    assert target_of_files(target_folder(tmp_path / "v", **nested), "name") == TargetFacts("name", 32, 3, 9)
    gguf = make_gguf("target.gguf")
    found = target_of_files(gguf)
    assert found is not None and found.name == "target" and found.layers > 0
    with_modules = make_gguf("mtp.gguf", extra={"llama.nextn_predict_layers": 1})
    fewer = target_of_files(with_modules)
    assert fewer is not None and fewer.layers == found.layers - 1  # the modules are no layers of the target
    assert target_of_files(target_folder(tmp_path / "odd", hidden_size="big")) is None


def test_a_gguf_target_is_checked_from_its_metadata(tmp_path: Path, make_gguf: Any) -> None:
    gguf = make_gguf("target.gguf")
    about = target_of_files(gguf)
    assert about is not None
    head = make.write(tmp_path / "head", make.midlayer_config(), make.eagle3_state())
    report = check_head(gguf, head)
    assert not report.ok and f"those of target have {about.hidden_size}" in report.reason


def test_check_before_says_nothing_of_what_is_not_here(tmp_path: Path, folder: Path, cache: Path) -> None:
    check_before("eagle3", "lab/head", "lab/target", "transformers")
    check_before("eagle3", str(folder), "lab/target", "transformers")


def test_check_before_refuses_by_files(make_folder: Any, folder: Path) -> None:
    target = make_folder("target")
    config = {"hidden_size": 64, "num_hidden_layers": 8, "vocab_size": 40}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SpecviewError, match="holds an EAGLE-3 head for lab/toy-target that reads hidden states of 16"):
        check_before("eagle3", str(folder), str(target), "transformers")
    with pytest.raises(UsageError, match="this lane drafts with Medusa heads"):
        check_before("medusa", str(folder), str(target), "transformers")


def test_report_of_a_head_that_fits(tmp_path: Path, folder: Path) -> None:
    report = check_head(target_folder(tmp_path / "toy-target"), folder)
    assert report.ok and report.aux_layers == (2, 4, 5) and not report.question
    assert report.words() == "An EAGLE-3 head that was trained for lab/toy-target and serves toy-target."
    other = check_head(target_folder(tmp_path / "other"), folder)
    assert other.ok and "on another model than that, other will accept few of its tokens." in other.words()


def test_report_asks_what_the_layout_leaves_open(tmp_path: Path) -> None:
    config = make.midlayer_config(eagle_aux_hidden_state_layer_ids=[1, 4, 6])
    head = make.write(tmp_path / "head", config, make.eagle3_state())
    target = target_folder(tmp_path / "toy-target")
    report = check_head(target, head)
    assert report.ok and report.aux_layers == () and report.question.endswith("aux_ids=entering or output.")
    assert report.question in report.words()
    assert check_head(target, head, answers={"aux_ids": "output"}).aux_layers == (2, 5, 7)


def test_report_of_a_damaged_head_and_of_another_kind(tmp_path: Path, folder: Path) -> None:
    target = target_folder(tmp_path / "toy-target")
    report = check_head(target, folder, kind="medusa")
    assert not report.ok and "holds an EAGLE-3 head, and this lane drafts with Medusa heads" in report.words()
    assert "has no next-token-prediction modules" in check_head(target, target, kind="mtp").words()
    (folder / "model.safetensors").write_bytes(b"")
    report = check_head(target, folder)
    assert not report.ok and "cut short" in report.words() and report.facts is None


# -- heads and models apart ----------------------------------------------------------------------------


def test_a_model_is_no_head(cache: Path, make_folder: Any, make_gguf: Any, folder: Path, tmp_path: Path) -> None:
    assert named_head(str(folder)) == folder
    assert named_head(str(make_folder("model"))) is None
    assert named_head(str(make_gguf("model.gguf"))) is None
    assert named_head("bundled") is None
    assert named_head("lab/model") is None
    put_in_cache("lab/head", folder)
    assert named_head("lab/head") is not None
    (folder / "model.safetensors").write_bytes(b"")  # a damaged head is one all the same
    assert named_head(str(folder)) == folder
    config = {**make.LLAMA, "model_type": "mimo", "num_hidden_layers": make.LAYERS}
    mimo = make.write(tmp_path / "mimo", config, make.mimo_state())
    (mimo / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert named_head(str(mimo)) is None  # as the draft of another target it is a model
    assert named_head(str(mimo), mimo) == mimo


def test_a_bundled_head_is_named_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "asset_path", lambda name: tmp_path / name)
    made = make.write(tmp_path / "medusa", {"medusa_num_heads": 3}, make.medusa_state(), "medusa_lm_head.safetensors")
    assert named_head("medusa") == made
    with pytest.raises(SpecviewError, match="eagle3 has no bundled head"):
        named_head("eagle3")


def test_a_folder_without_a_tokenizer_is_no_model(tmp_path: Path, make_folder: Any, folder: Path) -> None:
    config = {**make.LLAMA, "model_type": "mimo", "num_hidden_layers": make.LAYERS}
    mimo = make.write(tmp_path / "mimo", config, make.mimo_state())
    assert named_head(str(mimo)) == mimo  # the modules alone
    (mimo / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert named_head(str(mimo)) is None
    for name, content in (("model.safetensors", b"\xff" * 99), ("config.json", b"\xff{"), ("config.json", None)):
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        assert named_head(str(folder)) == folder, (name, content)
    plain = make.write(tmp_path / "plain", make.LLAMA, make.llama_layer(make.Weights(0), "model.layers.0", make.HIDDEN))
    assert named_head(str(plain)) is None  # a model that lost its tokenizer
    (tmp_path / "empty").mkdir()
    assert named_head(str(tmp_path / "empty")) is None


@pytest.mark.parametrize("more", [{"model_type": "qwen3_next"}, {"layer_types": ["linear_attention", "full_attention"]}])
def test_a_target_that_cannot_be_rolled_back(tmp_path: Path, folder: Path, more: dict[str, Any]) -> None:
    report = check_head(target_folder(tmp_path / "toy-target", **more), folder)
    assert not report.ok and report.words().startswith("toy-target cannot be drafted for: ")
    assert report.words().endswith("after a rejection. Choose another target.")


def test_a_gguf_target_with_a_recurrent_state(make_gguf: Any, folder: Path) -> None:
    report = check_head(make_gguf("target.gguf", extra={"llama.ssm.conv_kernel": 4}), folder)
    assert not report.ok and report.words().startswith("target cannot be drafted for: it keeps a recurrent state")
