"""How much memory is free, asked before a long preparation; engines ask again before they load."""

from __future__ import annotations

from pathlib import Path

from specview.errors import SpecviewError

_MARGIN = 400 << 20  # the libraries themselves, activations, a short KV cache


def available_ram() -> int:
    """Bytes that can still be used: the system's figure, or the control group's when that is less."""
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text())
            cached = 0
            for line in (group / "memory.stat").read_text().splitlines():
                key, _, value = line.partition(" ")
                if key in ("inactive_file", "active_file"):  # given back when memory is wanted
                    cached += int(value)
            available = min(available, max(0, int(limit) - used + cached))
    except (OSError, ValueError):
        pass
    return available


def check_ram(name: str, needed: int) -> None:
    """Raise SpecviewError when `needed` bytes and a margin are more than the memory there is."""
    wanted, available = needed + _MARGIN, available_ram()
    if wanted > available:
        raise SpecviewError(
            f"{name} needs {wanted / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free.",
            "Close other programs, or choose a smaller or quantized model.",
        )
