"""Dequantizing GGUF files for transformers: right, atomic, checked, stoppable, one at a time."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specview.engines.gguf_file import read_gguf
from specview.errors import SpecviewError, Stopped
from specview.models import converted, dequantize
from specview.models.converted import MANIFEST, WEIGHTS, convert, converted_root, find_converted, problem_with

Make = Callable[..., Path]


def _logits(folder: Path, ids: list[int]) -> np.ndarray:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("quantization", ["F32", "F16", "Q4_1", "Q8_0"])
def test_logits_equal_those_of_transformers_own_loading(make_gguf: Make, cache: Path, quantization: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = make_gguf(quantization=quantization, tied=quantization != "F16")
    ids = [1, 5, 77, 200, 33, 259]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].float().numpy()
    folder = convert(path)
    np.testing.assert_array_equal(_logits(folder, ids), expected)


def test_config_comes_from_the_metadata(make_gguf: Make, cache: Path) -> None:
    path = make_gguf(tied=False, extra={"tokenizer.ggml.eot_token_id": 0})
    folder = convert(path)
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 50000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["num_key_value_heads"] == 2
    assert config["head_dim"] == 16
    assert config["max_position_embeddings"] == 256
    assert config["tie_word_embeddings"] is False
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def test_halves_apart_undoes_llama_cpps_permutation() -> None:
    rows = np.arange(2 * 8 * 3).reshape(16, 3)
    # as llama.cpp's converter writes them: [heads, 2, half, ...] with the middle axes swapped
    stored = rows.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
    np.testing.assert_array_equal(dequantize.halves_apart(stored, 2), rows)


def test_bfloat16_rounds_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(dequantize._bfloat16(values), expected)


def test_large_models_are_written_as_bfloat16(make_gguf: Make, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    path = make_gguf()
    wide = load_file(convert(path) / WEIGHTS)
    monkeypatch.setattr(dequantize, "MAX_FLOAT32_PARAMETERS", 10)
    monkeypatch.setattr(dequantize, "_ROWS_AT_ONCE", 1000)
    shutil.rmtree(cache)
    folder = convert(path)
    narrow = load_file(folder / WEIGHTS)
    assert folder.name.endswith("bfloat16")
    assert narrow.keys() == wide.keys()
    for name, tensor in narrow.items():
        assert torch.equal(tensor, wide[name].to(torch.bfloat16))


def test_llama3_frequencies_are_recovered_or_refused(make_gguf: Make, cache: Path) -> None:
    transformers = pytest.importorskip("transformers")
    width, theta = 16, 50000.0
    config = transformers.LlamaConfig(
        head_dim=width, hidden_size=64, num_attention_heads=4, max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    plain = 1 / theta ** (np.arange(0, width, 2) / width)
    factors = (plain / rotary.inv_freq.numpy()).astype(np.float32)
    path = make_gguf(tensors={"rope_freqs.weight": factors})
    rope = dequantize.hf_config(read_gguf(path))["rope_parameters"]
    assert rope["rope_type"] == "llama3"
    assert rope["factor"] == pytest.approx(8.0)
    odd = make_gguf("odd.gguf", tensors={"rope_freqs.weight": np.linspace(1, 3, 8, dtype=np.float32)})
    with pytest.raises(SpecviewError, match="rotary frequencies"):
        convert(odd)


@pytest.mark.parametrize(
    ("extra", "factor"),
    [
        ({}, None),
        ({"llama.rope.scaling.factor": 4.0}, 4.0),  # no type is linear
        ({"llama.rope.scale_linear": 4.0}, 4.0),  # the older name
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "llama.rope.scale_linear": 2.0}, 4.0),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        ({"llama.rope.scaling.type": "linear"}, None),
    ],
)
def test_logits_are_near_llama_cpps_whatever_the_rotary_scaling(make_gguf: Make, cache: Path, extra: dict[str, Any], factor: float | None) -> None:
    pytest.importorskip("llama_cpp")
    from specview.engines import llama_cpp_engine

    path = make_gguf(extra=extra)
    assert dequantize.hf_config(read_gguf(path))["rope_parameters"].get("factor") == factor
    ids = [5, 77, 200, 33, 259, *range(40, 90)]
    engine = llama_cpp_engine.load(path, threads=1)
    try:
        session = engine.new_session(64)
        rows = np.asarray(session.forward(ids).logits)
        session.close()
    finally:
        engine.close()
    ours = _logits(convert(path), ids)
    assert np.abs(ours - rows[:, : ours.shape[1]]).max() < 0.02 * max(1.0, np.abs(ours).max())


def test_a_folder_that_an_earlier_version_misread_is_made_again(make_gguf: Make, cache: Path) -> None:
    """specview 1 took a factor without a type for none."""
    path = make_gguf(extra={"llama.rope.scaling.factor": 4.0})
    folder = convert(path)
    config, manifest = folder / "config.json", folder / MANIFEST
    right = json.loads(config.read_text())
    config.write_text(json.dumps({**right, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}))
    said = json.loads(manifest.read_text())
    said["files"]["config.json"] = {"size": config.stat().st_size, "sha256": converted.sha256_of(config)}
    manifest.write_text(json.dumps(said))
    assert problem_with(folder, converted.sha256_of(path)) is None and find_converted(path) is None
    assert json.loads((convert(path) / "config.json").read_text()) == right


def test_what_cannot_be_converted_says_which_engine_can(make_gguf: Make, cache: Path) -> None:
    for path, reason in (
        (make_gguf("a.gguf", architecture="mamba"), "architecture is 'mamba'"),
        (make_gguf("b.gguf", tensors={"blk.0.strange.weight": np.ones(4, np.float32)}), "has no place"),
        (make_gguf("c.gguf", extra={"llama.rope.scaling.type": "yarn"}), "rotary scaling"),
        (make_gguf("f.gguf", extra={"llama.rope.scaling.attn_factor": 1.5}), "scale attention"),
        (make_gguf("g.gguf", extra={"llama.attention.key_length": 16, "llama.rope.partial": 8}), "llama.rope.partial"),
        (make_gguf("h.gguf", extra={"llama.rope.scale_linear": "four"}), "llama.rope.scale_linear"),
        (make_gguf("i.gguf", extra={"llama.attention.value_length": 8}), "of another width"),
        (
            make_gguf(
                "j.gguf", extra={"llama.rope.scaling.factor": 2.0}, tensors={"rope_freqs.weight": np.ones(8, np.float32)}
            ),
            "scaled twice",
        ),
        (make_gguf("d.gguf", extra={"llama.expert_count": 8}), "mixture of experts"),
        (make_gguf("e.gguf", pre="something-new"), "splits text by 'something-new'"),
    ):
        with pytest.raises(SpecviewError, match=reason) as caught:
            convert(path)
        assert "llama.cpp engine" in str(caught.value)
    assert not converted_root().exists()


def test_second_start_reuses_it_and_reports_progress_once(make_gguf: Make, cache: Path) -> None:
    path = make_gguf()
    assert find_converted(path) is None
    seen: list[tuple[str, float | None]] = []
    folder = convert(path, progress=lambda text, fraction: seen.append((text, fraction)))
    fractions = [fraction for text, fraction in seen if "Converting" in text]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    made = (folder / WEIGHTS).stat().st_mtime_ns
    seen.clear()
    assert convert(path, progress=lambda text, fraction: seen.append((text, fraction))) == folder
    assert find_converted(path) == folder
    assert not seen
    assert (folder / WEIGHTS).stat().st_mtime_ns == made


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: _flip(folder / WEIGHTS),
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]),
        lambda folder: (folder / WEIGHTS).unlink(),
        lambda folder: _flip(folder / "tokenizer.json"),
        lambda folder: (folder / "config.json").write_text("{}"),
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_text("[]"),
        lambda folder: (folder / MANIFEST).write_text('{"schema": "specview.converted/1"}'),
        lambda folder: [path.unlink() for path in folder.iterdir()],
    ],
)
def test_a_damaged_cache_is_built_again(make_gguf: Make, cache: Path, damage: Callable[[Path], Any]) -> None:
    path = make_gguf()
    folder = convert(path)
    good = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != MANIFEST}
    damage(folder)
    assert find_converted(path) is None
    assert convert(path) == folder
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.name != MANIFEST} == good


def test_a_copied_cache_is_hashed_and_used(make_gguf: Make, cache: Path) -> None:
    path = make_gguf()
    folder = convert(path)
    os.utime(folder / WEIGHTS)
    assert find_converted(path) == folder


def test_a_changed_source_is_converted_anew(make_gguf: Make, cache: Path) -> None:
    first = convert(make_gguf(seed=0))
    second = convert(make_gguf(seed=1))
    assert first != second
    assert (first / WEIGHTS).read_bytes() != (second / WEIGHTS).read_bytes()


def _swap(path: Path, other: bytes, by_rename: bool) -> None:
    """Put other bytes at a path, with the size and change time of those that were there."""
    before = path.stat()
    assert len(other) == before.st_size and other != path.read_bytes()
    if by_rename:
        beside = path.with_name("beside")
        beside.write_bytes(other)
        os.replace(beside, path)
    else:
        path.write_bytes(other)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("by_rename", [True, False])
def test_another_file_of_the_same_size_and_time_is_converted_anew(make_gguf: Make, cache: Path, by_rename: bool) -> None:
    """As cp -p, tar and rsync leave it: its weights are not those that were converted."""
    path = make_gguf(seed=0)
    first = convert(path)
    _swap(path, make_gguf("other.gguf", seed=1).read_bytes(), by_rename)
    assert find_converted(path) is None
    second = convert(path)
    assert second != first and (second / WEIGHTS).read_bytes() != (first / WEIGHTS).read_bytes()


@pytest.mark.parametrize("by_rename", [True, False])
def test_converted_weights_are_not_trusted_by_size_and_time(make_gguf: Make, cache: Path, by_rename: bool) -> None:
    path = make_gguf()
    folder = convert(path)
    good = (folder / WEIGHTS).read_bytes()
    _swap(folder / WEIGHTS, good[:-1] + bytes([good[-1] ^ 1]), by_rename)
    assert find_converted(path) is None
    assert (convert(path) / WEIGHTS).read_bytes() == good


def test_where_a_disk_keeps_no_inode_times_the_content_tells(
    make_gguf: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = make_gguf(seed=0), Path.stat

    class Old:
        """Times and numbers of a disk that has only the old ones."""

        def __init__(self, found: os.stat_result) -> None:
            self.st_size, self.st_mtime_ns, self.st_mode = found.st_size, found.st_mtime_ns, found.st_mode
            self.st_ino = self.st_ctime_ns = 0

    other = make_gguf("other.gguf", seed=1).read_bytes()
    monkeypatch.setattr(Path, "stat", lambda path, **more: Old(real(path, **more)))
    before = converted.sha256_of(path)
    assert converted.remembered_sha256(path) == before
    monkeypatch.undo()
    monkeypatch.setenv("SPECVIEW_CACHE", str(cache))
    _swap(path, other, False)
    monkeypatch.setattr(Path, "stat", lambda path, **more: Old(real(path, **more)))
    assert converted.remembered_sha256(path) is None


def test_leftovers_of_a_crash_are_removed(make_gguf: Make, cache: Path) -> None:
    path = make_gguf()
    folder = convert(path)
    shutil.rmtree(folder)
    stale = converted_root() / f".partial-{folder.name}-abc"
    stale.mkdir()
    (stale / WEIGHTS).write_bytes(b"half")
    convert(path)
    assert not stale.exists()


@pytest.mark.parametrize("after", [0, 1, 3, 12])
def test_stop_leaves_nothing_behind(make_gguf: Make, cache: Path, after: int) -> None:
    path = make_gguf()
    calls = 0

    def should_stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > after

    with pytest.raises(Stopped):
        convert(path, should_stop=should_stop)
    left = [entry for entry in converted_root().glob("*") if entry.is_dir()] if converted_root().exists() else []
    assert not left
    assert problem_with(convert(path), converted.sha256_of(path)) is None


class _Full(io.BytesIO):
    """A file on a disk that is full after 20 kB."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_full_disk(make_gguf: Make, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_gguf()
    monkeypatch.setattr(converted, "_open_weights", lambda path: _Full())
    with pytest.raises(SpecviewError, match="the disk is full") as caught:
        convert(path)
    assert "SPECVIEW_CACHE" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [entry for entry in converted_root().iterdir() if entry.is_dir()]


def test_too_little_room_is_told_before_writing(
    make_gguf: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    monkeypatch.setattr(converted, "_open_weights", lambda path: pytest.fail("written"))
    with pytest.raises(SpecviewError, match=r"needs \d+ MB .* 0 MB are free"):
        convert(path)


def test_no_permission(make_gguf: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_gguf()
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "shut"))

    def refuse(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SpecviewError, match="no permission to write") as caught:
        convert(path)
    assert "SPECVIEW_CACHE" in str(caught.value)


def test_a_cache_path_that_is_a_file(make_gguf: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_gguf()
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    monkeypatch.setenv("SPECVIEW_CACHE", str(blocked))
    with pytest.raises(SpecviewError, match="could not be written"):
        convert(path)


def _convert_in_process(path: str, barrier: Any, results: Any) -> None:
    barrier.wait()
    folder = convert(Path(path))
    results.put((str(folder), (folder / WEIGHTS).stat().st_ino))


def test_concurrent_starts_build_it_once(make_gguf: Make, cache: Path) -> None:
    path = make_gguf(quantization="Q8_0")
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    barrier, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_convert_in_process, args=(str(path), barrier, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert len(set(got)) == 1, "the folder was built more than once"


def test_waiting_for_another_start_can_be_stopped(make_gguf: Make, cache: Path) -> None:
    from filelock import FileLock

    path = make_gguf()
    folder = convert(path)
    shutil.rmtree(folder)
    held = threading.Event()
    texts: list[str] = []

    def progress(text: str, _: float | None) -> None:
        texts.append(text)
        held.set()

    with FileLock(converted_root() / f".{folder.name}.lock"), pytest.raises(Stopped):
        convert(path, progress=progress, should_stop=held.is_set)
    assert "Waiting for another specview" in texts[0]


def test_a_draft_without_a_tokenizer_gets_the_targets(make_gguf: Make, make_folder: Make, cache: Path) -> None:
    source = make_gguf()
    folder = make_folder("draft", tokenizer=False)
    copy = converted.with_tokenizer(folder, source)
    assert (copy / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert (copy / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert (copy / "tokenizer.json").read_bytes() == (convert(source) / "tokenizer.json").read_bytes()
    assert converted.with_tokenizer(folder, source) == copy
    _flip(copy / WEIGHTS)
    assert converted.with_tokenizer(folder, source) == copy
    assert (copy / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
