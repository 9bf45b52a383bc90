"""Files of the user: whole or untouched, private where they hold texts, and what is never written over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from specview import cli, disk
from specview.errors import SpecviewError
from specview.files.atomic import OutputFile
from specview.files.writer import TraceWriter

SAFETENSORS = (2).to_bytes(8, "little") + b"{}"
TRACE = b'{"schema": "specview.trace/1", "run": {}, "prompt": {}, "lanes": []}\n'


def no_check(folder: Path) -> None:
    pass


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder, of which only names and first bytes are right."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "generation_config.json", "model.safetensors.index.json", "README.md"):
        (folder / name).write_text("{}")
    for name in ("pytorch_model.bin", "head.pt"):
        (folder / name).write_bytes(b"PK")
    (folder / "model.safetensors").write_bytes(SAFETENSORS)
    (folder / "blob-of-weights").write_bytes(SAFETENSORS)
    (folder / "blob-of-gguf").write_bytes(b"GGUF\3\0\0\0")
    (folder / "target.gguf").write_bytes(b"GGUF\3\0\0\0")
    return folder


def test_no_output_goes_over_a_models_file(model: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in model.iterdir()}
    for path in before:
        link = tmp_path / f"link to {path.name}"
        link.symlink_to(path)
        for name in (path, link):
            for make in (lambda p: OutputFile(p, "table"), lambda p: TraceWriter(p)):
                with pytest.raises(SpecviewError, match="model's") as caught:
                    make(name)
                assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in model.iterdir()} == before
    with OutputFile(model / "results.json", "table") as file:  # a result of one's own may lie there, and be replaced
        file.write("1")
    with OutputFile(model / "results.json", "table") as file:
        file.write("2")
    assert (model / "results.json").read_text() == "2"


def test_a_recorded_run_or_a_sweep_is_no_place_for_a_table(tmp_path: Path) -> None:
    for name, data, words in (
        ("run.jsonl", TRACE, "a recorded run"),
        ("sweep.jsonl", b'{"schema":"specview.sweep/1"}\n', "a sweep"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(SpecviewError, match=words):
            OutputFile(path, "JSON document")
        assert path.read_bytes() == data
    TraceWriter(tmp_path / "run.jsonl", {"schema": "specview.trace/1"}).close()  # a trace replaces a trace
    with pytest.raises(SpecviewError, match="a sweep"):
        TraceWriter(tmp_path / "sweep.jsonl")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["compare", "--prompts", "in.jsonl", "--json", "in.jsonl"], "--json and the input 'in.jsonl'"),
        (["compare", "--prompts", "in.jsonl", "--csv", "./sub/../in.jsonl"], "--csv and the input"),
        (["run", "--prompt-file", "in.txt", "--trace", "hard link"], "--trace and the input 'in.txt'"),
        (["run", "--prompt-file", "in.txt", "--json", "link"], "--json and the input"),
        (["run", "--lane", "suffix,tie=yes,store=in.txt", "--json", "in.txt"], "--json and the input 'in.txt'"),
        (["compare", "--json", "new", "--trace", "sub/../new"], "--json and --trace"),
        (["sweep", "--out", "new.jsonl", "--json", "new.jsonl"], "--json and --out"),
        (["sweep", "--prompts", "in.jsonl", "--markdown", "in.jsonl"], "--markdown and the input"),
        (["check", "x.gguf", "in.txt", "--json", "in.txt"], "--json and the input"),
        (["train", "draft", "--out", "o", "--text", "in.txt", "--json", "in.txt"], "--json and the input"),
        (["what-if", "run.jsonl", "--costs", "costs.json", "--json", "costs.json"], "--json and the input 'costs.json'"),
        (["runs", "export", "run.jsonl", "--csv", "new", "--json", "new"], "--json and --csv"),
    ],
)
def test_an_output_is_no_other_files_of_the_command(
    command: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "in.txt").write_text("a")
    (tmp_path / "costs.json").write_text("{}")
    (tmp_path / "run.jsonl").write_bytes(TRACE)
    (tmp_path / "link").symlink_to("in.txt")
    os.link(tmp_path / "in.txt", tmp_path / "hard link")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert cli.main(command) == 2
    assert words in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_places_are_compared_as_the_disk_has_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert disk.same_place(tmp_path / "link" / "new" / "x", tmp_path / "a" / "y" / ".." / "new" / "x")
    assert not disk.same_place(tmp_path / "a" / "new", tmp_path / "a" / "other")
    assert disk.within(tmp_path / "link" / "new" / "x", tmp_path / "a") and disk.within(tmp_path / "a", tmp_path / "link")
    assert not disk.within(tmp_path / "ab", tmp_path / "a") and not disk.within(tmp_path / "a", tmp_path / "a" / "b")


_KILLED = """
import os, sys
from pathlib import Path
from specview import disk
part = disk.PartFile(Path(sys.argv[1]))
part.file.write(b"half")
part.file.flush()
with disk.new_folder(Path(sys.argv[2]), lambda folder: None) as folder:
    (folder / "half").write_text("")
    os._exit(1)
"""


def test_what_a_killed_writer_left_goes_at_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "ABANDONED_S", -1.0)
    file, folder = tmp_path / "file.json", tmp_path / "folder"
    subprocess.run([sys.executable, "-c", _KILLED, file, folder], check=False)
    assert len(list(tmp_path.iterdir())) == 2  # both hidden, under names of their own
    (tmp_path / ".file.json.notours.specview-part").write_text("")
    (tmp_path / ".other.json.0123abcd.specview-part").write_text("")
    with disk.PartFile(file), disk.new_folder(folder, no_check) as made:
        assert made.is_dir()
        disk.write_whole(file, b"new")  # another writer of the same file: the one at work keeps its own
        assert len(list(tmp_path.glob(".file.json.????????.specview-part"))) == 1
        with disk.new_folder(folder, no_check):
            assert made.is_dir()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"file.json", "folder", ".file.json.notours.specview-part", ".other.json.0123abcd.specview-part"}


def test_a_folder_that_was_moved_aside_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill between the two renames."""
    monkeypatch.setattr(disk, "ABANDONED_S", -1.0)
    aside = tmp_path / ".folder.0123abcd.specview-old"
    aside.mkdir()
    (aside / "weights").write_text("old")
    disk.sweep(tmp_path / "folder")
    assert (tmp_path / "folder" / "weights").read_text() == "old" and not aside.exists()


def test_a_young_file_is_another_programs(tmp_path: Path) -> None:
    young = tmp_path / ".x.0123abcd.specview-part"
    young.write_text("")
    disk.write_whole(tmp_path / "x", b"")
    assert young.exists()


def test_the_umask_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the whole process's: another thread's file would be born open to all."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was set"))
    with OutputFile(tmp_path / "a", "table") as file:
        file.write("x")
    disk.write_whole(tmp_path / "b", b"x", private=True)


def test_files_of_ours_are_for_the_user_alone(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    (tmp_path / "old").write_text("open to all")
    for name in ("old", "new"):
        disk.write_whole(tmp_path / name, b"x", private=True)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder").mkdir(mode=0o755)
    for name in ("folder", "other"):
        disk.private_folder(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_writers_on_threads_leave_one_whole_file(tmp_path: Path) -> None:
    def write(data: bytes) -> Callable[[], None]:
        return lambda: disk.write_whole(tmp_path / "x", data)

    texts = [bytes([65 + number]) * 100_000 for number in range(6)]
    threads = [threading.Thread(target=write(data)) for data in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_bytes() in texts and [path.name for path in tmp_path.iterdir()] == ["x"]
