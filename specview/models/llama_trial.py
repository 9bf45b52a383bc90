"""A GGUF file is tried in a process of its own before llama.cpp gets it in this one.

Where llama.cpp meets a value or a tensor that it did not expect it ends its process, be that a window. So a file that it
has not loaded before is loaded in a child, which runs a few tokens through it: what comes of that is known before the
window's own process loads it. What decides is in the header, so a header that was survived is remembered.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from specview import child
from specview.engines.gguf_file import gguf_facts, split_parts
from specview.errors import SpecviewError
from specview.models.cache import ProgressFn, Remembered, ShouldStop, Watch
from specview.reading import open_regular

_SURVIVED = Remembered("llama_cpp_survived.json")
_POLL_S = 0.05
_SURVIVES, _FAULT, _REFUSED = 0, 1, 2  # exit codes of a child that ended by itself
_TOKENS = (1, 2, 3)
_survived: set[str] = set()


def require_survival(
    path: Path, gpu_layers: int = 0, *, progress: ProgressFn | None = None, should_stop: ShouldStop | None = None
) -> None:
    """Raise SpecviewError where llama.cpp would end the process over a GGUF file; Stopped.

    Says nothing of a file that it refuses in good order: loading it tells.
    """
    key = _key(path, gpu_layers)
    if key in _survived or key in _SURVIVED.load():
        return
    watch = Watch(progress, should_stop)
    watch.tell(f"Trying {path.name} in a process of its own (first time only)")
    with tempfile.TemporaryFile() as complaints:
        trial = child.start(
            __name__, str(path), str(gpu_layers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=complaints, env=child.environment(GGML_NO_BACKTRACE="1"),  # no debugger is started where it is ended
        )  # fmt: skip
        try:
            while True:
                watch.check()
                try:
                    code = trial.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            trial.kill()
            trial.wait()
        if code not in (_SURVIVES, _FAULT, _REFUSED):
            raise SpecviewError(
                f"llama.cpp ends its process over {path.name} ({_reason(code, complaints)}).",
                "Choose another GGUF file, or update llama-cpp-python.",
            )
    if code == _SURVIVES:
        _survived.add(key)
        _SURVIVED.keep(key, True)


def _key(path: Path, gpu_layers: int) -> str:
    """What a trial's outcome depends on: the headers of the file and its other parts, and the llama.cpp at hand."""
    import importlib.metadata

    digest = hashlib.sha256(f"{importlib.metadata.version('llama-cpp-python')} {bool(gpu_layers)}".encode())
    for part in split_parts(gguf_facts(path)):
        facts = gguf_facts(part)
        with open_regular(part) as file:
            digest.update(file.read(min((tensor.offset for tensor in facts.tensors.values()), default=facts.size)))
    return digest.hexdigest()


def _reason(code: int, complaints: BinaryIO) -> str:
    """What llama.cpp said at its end, or by which signal it came."""
    size = complaints.seek(0, os.SEEK_END)
    complaints.seek(max(0, size - 4096))
    for line in reversed(complaints.read().decode("utf-8", "replace").splitlines()):
        if (found := re.search(r"[\w-]+\.\w+:\d+: .*", line)) is not None:
            return found[0].strip()[:200]
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"code {code}"


def main(arguments: Sequence[str]) -> int:
    """Load a file and run some tokens through it; return the exit code."""
    from specview.engines import llama_cpp_engine

    try:
        import resource
    except ImportError:  # Windows writes no core files
        pass
    else:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        engine = llama_cpp_engine.load(arguments[0], gpu_layers=int(arguments[1]))
        session = engine.new_session(min(len(_TOKENS), engine.context_length))
        session.forward(_TOKENS[: session.max_length])
        session.close()
        _ = engine.features_problem
        engine.close()
    except SpecviewError:
        return _REFUSED
    return _SURVIVES


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
