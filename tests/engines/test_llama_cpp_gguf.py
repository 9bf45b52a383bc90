"""The GGUF header reader, over hand-made bytes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.engines.llama_cpp_gguf import gguf_facts, split_parts
from specview.errors import SpecviewError


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def string(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def uint(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def strings(key: str, values: list[str]) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def floats(key: str, values: list[float]) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 6, len(values)) + struct.pack(f"<{len(values)}f", *values)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


PAIRS = [
    string("general.architecture", "llama"), string("general.name", "Náme"), uint("general.file_type", 3),
    uint("llama.context_length", 77), strings("tokenizer.ggml.tokens", [f"t{n}" for n in range(5000)]),
    floats("tokenizer.ggml.scores", [0.5] * 5000), string("tokenizer.ggml.model", "gpt2"),
    string("tokenizer.ggml.pre", "smollm"), string("tokenizer.chat_template", "{{ x }}"),
    text("llama.attention.head_count_kv") + struct.pack("<IIQ3I", 9, 4, 3, 1, 2, 3),
]
TENSORS = [tensor("a", (64, 4), 3, 0), tensor("b", (10,), 0, 160)]  # Q4_1: 20 bytes per 32


def file_bytes(pairs: list[bytes] = PAIRS, tensors: list[bytes] = TENSORS, data: int = 200, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_facts(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", file_bytes())
    facts = gguf_facts(path)
    facts.require_complete()
    assert facts.file_bytes == facts.expected_bytes == path.stat().st_size
    assert (facts.architecture, facts.name, facts.file_type, facts.vocab_size) == ("llama", "Náme", "Q4_1", 5000)
    assert (facts.tokenizer_model, facts.tokenizer_pre, facts.context_length) == ("gpt2", "smollm", 77)
    assert (facts.chat_template, facts.parameters, facts.tensors) == ("{{ x }}", 266, 2)
    assert facts.hparam("attention.head_count_kv") == [1, 2, 3] and facts.hparam("nothing", 9) == 9
    assert gguf_facts(str(path)) == facts


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
    with pytest.raises(SpecviewError, match="cut short|not a GGUF"):
        gguf_facts(path).require_complete()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 3000), st.binary(min_size=1, max_size=8))
def test_damage_is_an_error_or_harmless(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    raw = bytearray(file_bytes([*PAIRS[:4], *PAIRS[6:]]))
    at %= len(raw)
    raw[at : at + len(junk)] = junk
    try:
        gguf_facts(write(tmp_path_factory.mktemp("bad") / "m.gguf", bytes(raw))).require_complete()
    except SpecviewError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(("raw", "reason"), [
    (b"", "not a GGUF"), (b"GG", "not a GGUF"), (b"PK\3\4 a zip", "not a GGUF"), (b"GGUF", "cut short"),
    (b"GGUF\0\0\0\3" + bytes(16), "big-endian"), (file_bytes(version=1), "version 1"),
    (file_bytes([text("k") + struct.pack("<I", 99)]), "damaged header"),
])
def test_other_files(tmp_path: Path, raw: bytes, reason: str) -> None:
    with pytest.raises(SpecviewError, match=reason):
        gguf_facts(write(tmp_path / "m.gguf", raw))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecviewError, match="There is no file"):
        gguf_facts(tmp_path / "none.gguf")
    with pytest.raises(SpecviewError, match="is a folder"):
        gguf_facts(tmp_path)
    path = write(tmp_path / "locked.gguf", file_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(SpecviewError, match="permission denied"):
        gguf_facts(path)


def test_a_type_of_the_future_is_no_error(tmp_path: Path) -> None:
    facts = gguf_facts(write(tmp_path / "m.gguf", file_bytes([], [tensor("a", (64,), 999, 0)])))
    facts.require_complete()
    assert facts.file_type == "unknown" and facts.vocab_size is None and facts.context_length is None


def test_split_files(tmp_path: Path) -> None:
    pairs = [*PAIRS[:3], uint("split.count", 2)]
    first = write(tmp_path / "m-00001-of-00002.gguf", file_bytes(pairs))
    second = write(tmp_path / "m-00002-of-00002.gguf", file_bytes(pairs))
    assert split_parts(gguf_facts(first)) == [first, second]
    with pytest.raises(SpecviewError, match="Choose m-00001-of-00002.gguf"):
        split_parts(gguf_facts(second))
    with pytest.raises(SpecviewError, match="one of 2 files"):
        split_parts(gguf_facts(write(tmp_path / "other.gguf", file_bytes(pairs))))
    alone = write(tmp_path / "alone.gguf", file_bytes())
    assert split_parts(gguf_facts(alone)) == [alone]
