"""A folder of downloaded files may hold a json.py or a torch.py: none of it is ever run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specview import child
from specview.gui.train import process as training_process

ROOT = Path(__file__).parent.parent
LIBRARIES = (
    "torch", "numpy", "transformers", "tokenizers", "safetensors", "huggingface_hub", "llama_cpp", "PySide6", "jinja2",
    "pyqtgraph", "filelock", "psutil", "platformdirs", "gguf", "pip", "venv", "ensurepip", "sitecustomize", "usercustomize",
    "array_api_compat", "yaml", "requests", "httpx2", "regex", "tqdm", "packaging", "typing_extensions", "sympy", "triton",
)  # fmt: skip



def usual() -> dict[str, str]:
    """The environment of somebody who knows of no danger; packaging/test does."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


@pytest.fixture(scope="module")
def before_us(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What `python -m` itself imports before a line of ours runs, where only -P keeps the current folder out."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.py").write_text("import sys; print(*sys.modules)")
    line = [sys.executable, "-m", "probe"]
    done = subprocess.run(line, cwd=folder, env=usual(), capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def poison(folder: Path, names: set[str]) -> None:
    """Write modules that leave a mark."""
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(folder.parent / 'ran')!r}, 'a').write({name + ' '!r})\n")


@pytest.fixture
def poisoned(tmp_path: Path, before_us: set[str]) -> Path:
    """A folder with a module of every name that anything of ours might import."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    poison(folder, (sys.stdlib_module_names | set(LIBRARIES)) - before_us)
    return folder


@pytest.fixture
def wholly_poisoned(poisoned: Path, before_us: set[str]) -> Path:
    """And of every other name."""
    poison(poisoned, before_us - {"__main__", "probe"})
    return poisoned


def ran(poisoned: Path) -> str:
    mark = poisoned.parent / "ran"
    return mark.read_text() if mark.exists() else ""


def elsewhere(poisoned: Path) -> dict[str, str]:
    """An environment in which specview is found as if it were installed, and keeps what it makes in a place of the test's."""
    own = {f"SPECVIEW_{name}": str(poisoned.parent / name) for name in ("DATA", "CONFIG")}
    return {**usual(), "PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen", **own}


@pytest.mark.parametrize("command", [["--version"], ["run", "--k", "0"], ["runs", "list"], ["doctor"]])
def test_no_module_of_the_current_folder_is_run(command: list[str], poisoned: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specview", *command], cwd=poisoned, env=elsewhere(poisoned), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran(poisoned) == "" and "unexpected" not in done.stderr
    assert done.returncode == (2 if "run" in command else 0), done.stderr


def test_what_it_starts_takes_none_either(wholly_poisoned: Path) -> None:
    """Worker processes of the standard library are started with -c, which looks into the current folder first."""
    code = (
        "import sys; sys.argv = ['specview', '--version']\n"
        "from specview.cli import main\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
        "    import multiprocessing\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
    )
    script = wholly_poisoned.parent / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script], cwd=wholly_poisoned, env=elsewhere(wholly_poisoned), capture_output=True, text=True, check=False
    )
    assert ran(wholly_poisoned) == "" and done.returncode == 0, done.stderr


def test_a_training_takes_none(wholly_poisoned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where specview is not installed, and was started from the folder that it lies in."""
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(ROOT), *(place for place in sys.path if place != str(ROOT))])
    line = [*training_process.program(), "train", "eagle3", "--out", "o", "--target", "no such model", "--progress", "-"]
    done = subprocess.run(
        line, cwd=wholly_poisoned, env=child.environment(), capture_output=True, text=True, check=False
    )
    assert ran(wholly_poisoned) == "" and done.returncode == 1 and "no such model" in done.stdout, done.stderr
    assert child.environment()["PYTHONPATH"] == str(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path[1:], str(ROOT)])  # installed: it would hide the standard library's modules
    assert "PYTHONPATH" not in child.environment()


def test_a_chat_template_and_a_trial_of_a_model_take_none(wholly_poisoned: Path) -> None:
    code = (
        "import sys; sys.path.remove('')\n"
        "from specview.engines.templates import render\n"
        "from specview import child; import subprocess\n"
        "assert render('{{ 1 + 1 }}', {}, 'x') == '2'\n"
        "line = child.command('specview.models.llama_trial', 'no such file', '0')\n"
        "sys.exit(subprocess.run(line, env=child.environment()).returncode)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=wholly_poisoned, env=elsewhere(wholly_poisoned), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran(wholly_poisoned) == "" and done.returncode == 2, done.stderr  # refused in good order


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX sh")
def test_the_launcher_runs_none(wholly_poisoned: Path) -> None:
    """As far as it comes with a virtual environment that is there."""
    made = wholly_poisoned.parent / "venv"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(sys.executable)
    script = (
        f". {ROOT / 'packaging' / 'setup.sh'}\n"
        f"make_venv; find_python; pip --version; pip_has_own_sources; system_libraries xcb || :\n"
        '"$python" -c "import json, torch_is_not_here" 2>/dev/null || echo end\n'
    )
    done = subprocess.run(
        ["sh", "-c", script, str(ROOT / "packaging" / "specview")], cwd=wholly_poisoned, capture_output=True, text=True, check=False,
        env={**elsewhere(wholly_poisoned), "SPECVIEW_VENV": str(made), "SPECVIEW_PYTHON": sys.executable},
    )  # fmt: skip
    assert ran(wholly_poisoned) == "" and done.stdout.endswith("end\n"), done.stderr
