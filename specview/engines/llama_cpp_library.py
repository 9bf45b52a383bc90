"""The llama.cpp library: imported when first used, started once, kept silent.

What llama.cpp would print on stderr is swallowed; its latest error lines are kept, to say why
something failed.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specview.engines.openmp import limit_spinning
from specview.errors import EngineMissing

_LEVEL_ERROR, _LEVEL_CONTINUED = 4, 5  # ggml_log_level counts none 0, debug 1, info 2, warn 3
_error_lines: deque[str] = deque(maxlen=16)
_keep: list[Any] = []  # ctypes callbacks that C code holds


@cache
def llama() -> Any:
    """Return the module of llama-cpp-python's low-level functions, started and silenced.

    Raises EngineMissing where it is not installed or its library cannot be loaded.
    """
    limit_spinning()
    try:
        import llama_cpp.llama_cpp as module
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != "llama_cpp":
            raise EngineMissing(
                f"llama-cpp-python cannot be imported: {error}.", "Install it anew: pip install llama-cpp-python."
            ) from error
        raise EngineMissing(
            "llama.cpp is not installed here.",
            "Run `pip install llama-cpp-python` (it needs a C++ compiler and takes some minutes), "
            "or choose the transformers engine.",
        ) from None
    except (OSError, RuntimeError) as error:
        raise EngineMissing(
            f"llama.cpp's library cannot be loaded: {error}.",
            "Install it anew: pip install --force-reinstall --no-cache-dir llama-cpp-python.",
        ) from error
    callback = module.llama_log_callback(_Log().line)
    _keep.append(callback)
    module.llama_log_set(callback, ctypes.c_void_p(0))
    module.llama_backend_init()
    return module


@dataclass(frozen=True, slots=True)
class Ggml:
    """ggml's own calls on a tensor of a graph, given by its address.

    name, numbers, rows and bytes say what it is; get(tensor, to, offset, bytes) copies its data.
    set_abort_callback(function) returns the function before; None where this ggml does not have it.
    """

    name: Any
    numbers: Any
    rows: Any
    bytes: Any
    get: Any
    set_abort_callback: Any


@cache
def ggml() -> Ggml:
    """Return ggml's calls, of the very library that llama.cpp runs on."""
    lib = _ggml_base()
    # Calls of a few nanoseconds: they keep the interpreter's lock.
    quick = ctypes.PyDLL(lib._name, handle=lib._handle)

    def call(source: Any, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(source, name)
        function.restype, function.argtypes = result, arguments
        return function

    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    has_abort_callback = hasattr(lib, "ggml_set_abort_callback")
    return Ggml(
        name=call(quick, "ggml_get_name", ctypes.c_char_p, pointer),
        numbers=call(quick, "ggml_nelements", ctypes.c_int64, pointer),
        rows=call(quick, "ggml_nrows", ctypes.c_int64, pointer),
        bytes=call(quick, "ggml_nbytes", size, pointer),
        get=call(lib, "ggml_backend_tensor_get", None, pointer, pointer, size, size),
        set_abort_callback=call(lib, "ggml_set_abort_callback", pointer, pointer) if has_abort_callback else None,
    )


def _ggml_base() -> Any:
    """The library that has ggml's calls.

    A wheel holds copies in place of links (libggml-base.so, libggml-base.so.0), so loading one by name may
    give a second library with variables of its own. llama.cpp's own handle finds the right one, except on
    Windows, where a handle does not reach what a library depends on, but there is one copy.
    """
    library = llama()._lib
    if hasattr(library, "ggml_get_name"):
        return library
    import llama_cpp
    from llama_cpp._ctypes_extensions import load_shared_library

    return load_shared_library("ggml-base", Path(llama_cpp.__file__).parent / "lib")


class _Log:
    """Takes llama.cpp's log: pieces of lines, of which only errors are kept."""

    def __init__(self) -> None:
        self._level = 0

    def line(self, level: int, text: bytes | None, _data: Any) -> None:
        """Called from C for every piece; must not raise."""
        if level != _LEVEL_CONTINUED:
            self._level = level
        if self._level != _LEVEL_ERROR or not text:
            return
        piece = text.decode("utf-8", errors="replace")
        if level == _LEVEL_CONTINUED and _error_lines:
            _error_lines[-1] += piece
        else:
            _error_lines.append(piece)


def forget_errors() -> None:
    """Forget the error lines so far; call before what may fail."""
    _error_lines.clear()


def last_error() -> str:
    """Return llama.cpp's first complaint since `forget_errors`, without its function names."""
    for raw in list(_error_lines):
        line = raw.strip().rstrip(".")
        for prefix in ("llama_model_load: error loading model: ", "error loading model: "):
            if prefix in line:
                return line.split(prefix, 1)[1]
        head, colon, rest = line.partition(": ")
        if colon and " " not in head:
            line = rest
        if line:
            return line
    return "it gave no reason"


def pointer(array: Any, kind: Any) -> Any:
    """Where a numpy array's numbers are, for a field of llama.cpp's; the array must stay alive as long."""
    return array.ctypes.data_as(ctypes.POINTER(kind))


def physical_cores() -> int:
    """Cores of this machine that this process may use, hyper-threads not counted."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable))


def device_name(gpu_layers: int) -> str:
    """Name where the model runs: "cpu", or the GPUs that llama.cpp offloads layers to."""
    if gpu_layers == 0 or not llama().llama_supports_gpu_offload():
        return "cpu"
    return ", ".join(_gpu_names()) or "gpu"


def _gpu_names() -> list[str]:
    from llama_cpp._ggml import libggml

    try:
        libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
        libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
        libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
        libggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
        libggml.ggml_backend_dev_name.restype = ctypes.c_char_p
        libggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    except AttributeError:  # the library does not show them
        return []
    devices = [libggml.ggml_backend_dev_get(index) for index in range(libggml.ggml_backend_dev_count())]
    gpu, integrated_gpu = 1, 2  # enum ggml_backend_dev_type
    return [
        libggml.ggml_backend_dev_name(device).decode("utf-8", errors="replace")
        for device in devices
        if libggml.ggml_backend_dev_type(device) in (gpu, integrated_gpu)
    ]
