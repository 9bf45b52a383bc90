"""The launcher and the pins."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
needs_sh = pytest.mark.skipif(sys.platform == "win32", reason="POSIX sh")


def requirements(path: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def pins() -> dict[str, str]:
    found = {}
    for requirement in requirements(PACKAGING / "constraints.txt"):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        found[canonicalize_name(requirement.name)] = specifier.version
    return found


def sh(script: str, venv: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the launcher's functions loaded and nothing installed."""
    return subprocess.run(
        ["sh", "-c", f". {PACKAGING / 'setup.sh'}\n{script}", str(PACKAGING / "specview")],
        env={**os.environ, "SPECVIEW_VENV": str(venv), **environment},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=60,
    )  # fmt: skip


def test_the_pins_lie_in_the_ranges_of_the_project() -> None:
    known = pins()
    extras = PROJECT["optional-dependencies"].values()
    for text in (*PROJECT["dependencies"], *(text for extra in extras for text in extra)):
        requirement = Requirement(text)
        version = known[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text}: {version}"


def test_every_test_tool_is_pinned() -> None:
    for requirement in requirements(PACKAGING / "requirements-test.txt"):
        assert canonicalize_name(requirement.name) in pins()


@needs_sh
@pytest.mark.parametrize("name", ["specview", "test", "setup.sh", "../.ci/run"])
def test_the_scripts_are_posix_sh(name: str) -> None:
    subprocess.run(["sh", "-n", str(PACKAGING / name)], check=True)


@needs_sh
def test_without_python_or_venv_it_names_the_package(tmp_path: Path) -> None:
    done = sh("make_venv", tmp_path / "venv", SPECVIEW_PYTHON="no-such-python")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "python3-venv" in done.stderr
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "half-python"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec {sys.executable} "$@"\n')
    fake.chmod(0o755)
    done = sh("make_venv", tmp_path / "venv", SPECVIEW_PYTHON=str(fake))
    assert done.returncode == 1 and "lacks the venv module" in done.stderr and "-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


@needs_sh
def test_a_folder_of_the_users_is_never_cleared(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "thesis.txt").write_text("work")
    done = sh("make_venv", tmp_path / "venv")
    assert done.returncode == 1 and "is no virtual environment" in done.stderr
    assert (tmp_path / "venv" / "thesis.txt").read_text() == "work"


@needs_sh
def test_llama_cpp_is_left_out_without_a_compiler_and_when_its_build_fails(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")  # says that nothing is installed
    (venv / "bin" / "python").chmod(0o755)
    nothing = "has_compiler() { return 1; }\npip() { echo pip; }\n"
    done = sh(f"{nothing}install_llama_cpp\ninstall_llama_cpp", venv)
    assert done.returncode == 0 and done.stdout == ""
    assert done.stderr.count("no C++ compiler") == 1  # said once, not at every start
    failing = "has_compiler() { return 0; }\npip() { return 1; }\n"
    done = sh(f"{failing}install_llama_cpp\necho on", venv)
    assert done.stdout == "on\n" and "about 7 minutes" in done.stderr and "could not be built" in done.stderr


@needs_sh
def test_a_llama_cpp_that_crashes_is_built_anew_without_amx_or_left_out(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text('#!/bin/sh\ncase "$2" in *load_engine*) [ -e "$0.good" ] || kill -SEGV $$ ;; esac\n')
    python.chmod(0o755)
    start = "has_compiler() { return 0; }\namx_breaks() { return 1; }\n"
    mended = start + f'pip() {{ echo "$CXXFLAGS: $*"; case "$CXXFLAGS" in *amx*) : >"{python}.good" ;; esac; }}\n'
    done = sh(f"CXXFLAGS=\n{mended}install_llama_cpp", venv)
    first, second = done.stdout.splitlines()
    assert first.startswith(": install") and "amx" not in first
    assert "-mno-amx-tile" in second and "--no-cache-dir --force-reinstall --no-deps" in second
    assert "building it anew" in done.stderr and "left out;" not in done.stderr
    Path(f"{python}.good").unlink()
    (venv / ".specview-llama").unlink()
    done = sh(f"{start}pip() {{ echo $*; }}\ninstall_llama_cpp", venv)
    assert done.stdout.splitlines()[-1] == "uninstall -y llama-cpp-python" and "is left out" in done.stderr
    known_bad = start.replace("return 1", "return 0") + 'pip() { echo "$CXXFLAGS: $*"; }\n'
    Path(f"{python}.good").touch()
    done = sh(f"CXXFLAGS=-O2\n{known_bad}rm -f {venv}/.specview-llama\ninstall_llama_cpp", venv)
    assert done.stdout.startswith("-O2 -mno-amx-tile") and "--no-cache-dir" in done.stdout


@needs_sh
def test_steps_are_taken_again_only_when_the_pins_change(tmp_path: Path) -> None:
    script = 'one=$(stamp_of base)\nmark_done base "$one"\ndone_before base "$one" && echo done\n'
    script += 'done_before base "$(stamp_of base other)" || echo again\n'
    assert sh(script, tmp_path).stdout == "done\nagain\n"


def test_the_desktop_file_is_well_formed() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(PACKAGING / "specview.desktop", encoding="utf-8")
    assert parser["Desktop Entry"]["Exec"] == "specview"


@needs_sh
@pytest.mark.parametrize(
    ("sources", "card", "chosen", "asked"),
    [
        ("no", "no", "auto", "--extra-index-url https://download.pytorch.org/whl/cpu torch"),
        ("no", "yes", "auto", "torch"),
        ("yes", "no", "auto", "torch"),
        ("no", "no", "pypi", "torch"),
        ("yes", "yes", "cpu", "--extra-index-url https://download.pytorch.org/whl/cpu torch"),
        ("yes", "yes", "file:///wheels", "--extra-index-url file:///wheels torch"),
    ],
)
def test_where_torch_comes_from(tmp_path: Path, sources: str, card: str, chosen: str, asked: str) -> None:
    script = (
        f"python=false\nuname() {{ echo Linux; }}\nhas_nvidia() {{ [ {card} = yes ]; }}\n"
        f"pip_has_own_sources() {{ [ {sources} = yes ]; }}\n"
        'pip() { shift 3; echo "$@"; }\ninstall_torch\n'
    )
    assert sh(script, tmp_path, SPECVIEW_TORCH_INDEX=chosen).stdout == f"{asked}\n"
