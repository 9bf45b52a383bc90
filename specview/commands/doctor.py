"""`specview doctor`: what works on this machine, and the mend for what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from specview import __version__
from specview.commands.arguments import Parser
from specview.commands.qt_libraries import missing_libraries, platform_name
from specview.commands.running import running
from specview.commands.window import check_display, install_line
from specview.errors import SpecviewError
from specview.files.report import Report, Table, Text
from specview.files.tables import Column

State = Literal["ok", "missing", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: ok, missing (something will not work), or a note."""

    name: str
    state: State
    text: str
    mend: str = ""


def main(argv: Sequence[str]) -> int:
    """Run the command: 0 when at least one engine can decode here, else 1."""
    parser = Parser("specview doctor", "Say what works on this machine, and what to do about the rest.")
    parser.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    parser.add_argument("--clean", action="store_true", help="instead, remove from the cache what trainings and killed "
                                                             "conversions left there")  # fmt: skip
    arguments = parser.parse_args(argv)
    with running(arguments) as run:
        if arguments.clean:
            return run.end(_clean())
        findings = [_guarded(name, check) for name, check in _CHECKS]
        rows = []
        for one in findings:
            rows += [asdict(one), *([{"text": f"-> {one.mend}"}] if one.mend else [])]
        table = Table((Column("state", ""), Column("name", ""), Column("text", "")), rows)
        run.end(Report("", [table], {"specview": __version__, "findings": [asdict(one) for one in findings]}))
    return 0 if any(one.state == "ok" for one in findings if one.name in ("transformers", "llama.cpp")) else 1


def _clean() -> Report:
    """Remove what takes room in the cache and is no use but to go on with; say what."""
    from specview.models.cache import size_words
    from specview.models.converted import remove_partials
    from specview.training import work

    removed: list[work.WorkFolder] = []
    kept: list[work.WorkFolder] = []
    for folder in work.work_folders():
        (removed if work.remove(folder) else kept).append(folder)
    partials = remove_partials()
    lines = [f"removed  {one.path}, {size_words(one.size_bytes)}" for one in removed]
    lines += [f"removed  {path}" for path in partials]
    lines += [f"kept     {one.path}, {size_words(one.size_bytes)}: a training is at work in it" for one in kept]
    return Report("", [Text(line) for line in lines or ["There is nothing to remove."]], {
        "specview": __version__,
        "removed": [*({"path": str(one.path), "bytes": one.size_bytes} for one in removed),
                    *({"path": str(path), "bytes": None} for path in partials)],
        "kept": [{"path": str(one.path), "bytes": one.size_bytes} for one in kept],
    })  # fmt: skip


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    """Run a check; a broken installation is a finding, not a crash."""
    try:
        return check()
    except SpecviewError as error:
        return Finding(name, "missing", error.cause, error.mend)
    except Exception as error:  # noqa: BLE001 - a library that cannot even be imported
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Finding(name, "missing", text[:300], "Install it again: packaging/specview does.")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, specview {__version__}"
    return Finding("Python", "ok", text)


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or os.cpu_count()
    text = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free, {cores} cores"
    return Finding("memory", "ok", text)


def _qt() -> Finding:
    version = _version("PySide6-Essentials") or _version("PySide6")
    if version is None or importlib.util.find_spec("PySide6") is None:
        return Finding("Qt", "missing", "PySide6 is not installed", "pip install 'PySide6-Essentials<6.12'")
    missing = missing_libraries(platform_name() or "xcb")
    if missing:
        return Finding("Qt", "missing", f"PySide6 {version}, without {', '.join(missing)}", install_line(missing))
    return Finding("Qt", "ok", f"PySide6 {version}")


def _display() -> Finding:
    name = platform_name() if sys.platform.startswith("linux") else platform.system()
    if not name:
        return Finding("display", "note", "none here", "The commands work without: specview compare")
    if not missing_libraries(name):  # their absence is Qt's finding
        try:
            check_display()
        except SpecviewError as error:
            return Finding("display", "missing", error.cause, "The commands work without: specview compare")
    return Finding("display", "ok", f"{name} {os.environ.get('DISPLAY', '')}".strip())


def _transformers() -> Finding:
    versions = {package: _version(package) for package in ("torch", "transformers")}
    lacking = [package for package, version in versions.items() if version is None]
    if lacking:
        return Finding("transformers", "missing", f"{' and '.join(lacking)} not installed", f"pip install {' '.join(lacking)}")
    import torch

    text = f"transformers {versions['transformers']}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    return Finding("transformers", "ok", text)


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("GPU", "note", "unknown: torch is not installed")
    import torch

    if torch.cuda.is_available():
        cards = []
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            cards.append(f"{torch.cuda.get_device_name(index)} ({free / 1e9:.0f} of {total / 1e9:.0f} GB free)")
        return Finding("GPU", "ok", f"CUDA {torch.version.cuda}: {', '.join(cards)}")
    if torch.backends.mps.is_available():
        return Finding("GPU", "ok", "Apple MPS")
    if torch.version.cuda is None and os.path.exists("/dev/nvidia0"):
        return Finding("GPU", "missing", "an NVIDIA card, but torch is a CPU build", "pip install --force-reinstall torch")
    return Finding("GPU", "note", "none that torch can use: models run on the CPU")


def _llama_cpp() -> Finding:
    version = _version("llama-cpp-python")
    if version is None:
        mend = "pip install llama-cpp-python (a C++ compiler is needed; the first build takes about 7 minutes)"
        return Finding("llama.cpp", "missing", "llama-cpp-python is not installed", mend)
    import llama_cpp

    raw = llama_cpp.llama_print_system_info()
    info = " ".join(raw.decode("utf-8", "replace").split()) if raw else ""
    offload = "GPU offload" if llama_cpp.llama_supports_gpu_offload() else "no GPU offload"
    return Finding("llama.cpp", "ok", f"llama-cpp-python {version}, {offload}; {info}".rstrip("; "))


def _bundled() -> Finding:
    from specview.models import bundled

    target = bundled.target_gguf()
    for engine in ("transformers", "llama.cpp"):
        bundled.draft(engine)
    return Finding("bundled pair", "ok", f"{target.name} and specview's draft")


def _video() -> Finding:
    version = _version("opencv-python-headless") or _version("opencv-python")
    if version is None:
        return Finding("video", "note", "OpenCV is not installed: races are exported as GIFs", "pip install 'specview[video]'")
    return Finding("video", "ok", f"OpenCV {version}")


def _cache() -> Finding:
    from specview.models.cache import cache_dir

    folder = cache_dir()
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not os.access(nearest, os.W_OK):
        return Finding("cache", "missing", f"no permission to write {folder}", "Set SPECVIEW_CACHE to another folder.")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return Finding("cache", "ok", f"{folder}, {size / 1e6:.0f} MB")


def _trainings() -> Finding:
    from specview.models.cache import size_words
    from specview.training.work import work_folders, work_root

    folders = work_folders()
    if not folders:
        return Finding("trainings", "ok", "they keep nothing in the cache")
    each = ", ".join(f"{folder.path.name} {size_words(folder.size_bytes)}" for folder in folders)
    text = f"they keep {size_words(sum(folder.size_bytes for folder in folders))} in {work_root()}: {each}"
    return Finding("trainings", "note", text, "specview doctor --clean removes it; one that was stopped then begins anew")


_CHECKS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("Python", _python),
    ("memory", _memory),
    ("Qt", _qt),
    ("display", _display),
    ("transformers", _transformers),
    ("GPU", _gpu),
    ("llama.cpp", _llama_cpp),
    ("bundled pair", _bundled),
    ("video", _video),
    ("cache", _cache),
    ("trainings", _trainings),
)
