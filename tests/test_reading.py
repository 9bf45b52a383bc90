"""Files of strangers: plain ones only, bounded before anything is allocated, and nothing but OSError and ValueError."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from specview import reading
from specview.reading import MAX_CONFIG, MAX_TABLE, open_regular, parse_json, read_bytes, read_json, read_text


def test_what_is_no_plain_file_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "loop", "zero", ".", "none"):
        with pytest.raises(OSError):
            open_regular(tmp_path / name)
    with pytest.raises(OSError, match="it is a pipe or a device"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        open_regular(tmp_path)


def test_a_pipe_that_takes_a_file_s_place_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "file"
    file.write_bytes(b"")
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: real(file if path == tmp_path / "pipe" else path, **options))
    with pytest.raises(OSError, match="it is a pipe or a device"):
        open_regular(tmp_path / "pipe")


def test_sizes_hold_before_reading_and_where_a_size_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abcd")
    assert read_bytes(file, 4) == b"abcd"
    with pytest.raises(ValueError, match="it has 4 bytes"):
        read_bytes(file, 3)
    with file.open("r+b") as grown:
        grown.truncate(1 << 40)
    with pytest.raises(ValueError, match="1,099,511,627,776 bytes"):
        read_bytes(file)
    real = os.fstat
    monkeypatch.setattr(reading.os, "fstat", lambda fd: os.stat_result((stat.S_IFREG, *real(fd)[1:6], 0, *real(fd)[7:10])))
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_bytes(file, 10)


def test_text_is_utf_8_with_one_kind_of_line_end(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("á\r\nb\rc\n".encode())
    assert read_text(tmp_path / "text") == "á\nb\nc\n"
    (tmp_path / "text").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_text(tmp_path / "text")


def test_json_with_a_mark_in_front_is_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"eos_token_id": 2}')
    assert read_json(tmp_path / "x.json") == {"eos_token_id": 2}


@pytest.mark.parametrize(("data", "reason"), [
    (b"[" * 50_000, "nested too deeply"), (b'{"a":' * 20_000, "nested too deeply"),
    (b"[" + b"[]," * 80_000 + b"0]", "too many values"), (b"[" + b'{"":0},' * 50_000 + b"0]", "too many values"),
    (b"9" * 5000, "digits"), (b"", "Expecting value"), (b'"\xff"', "decode"),
])
def test_json_that_is_none_or_too_much_is_a_value_error(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(data, MAX_CONFIG)


def test_the_largest_tables_known_are_read() -> None:
    """As many tensors as DeepSeek-V3 has, by names as long."""
    names = {
        f"model.layers.{n // 1500}.mlp.experts.{n % 256}.gate_proj.weight_scale_inv.{n}": f"model-{n % 163:05d}-of-000163.safetensors"
        for n in range(91_991)
    }
    data = json.dumps({"weight_map": names}, indent=2).encode()
    assert len(data) > 8 << 20 and parse_json(data, MAX_TABLE)["weight_map"] == names
