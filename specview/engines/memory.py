"""How much memory is free, and the one line for what does not fit into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specview.errors import SpecviewError


def free(place: Any = None) -> int:
    """Bytes that can still be used on a torch device; of a CPU the system's figure, or the control group's when that is less."""
    if place is not None and place.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(place)[0])
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text())
            lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
            # What files take is given back when memory is wanted.
            cached = sum(int(line[1]) for line in lines if line[0] in ("inactive_file", "active_file"))
            available = min(available, max(0, int(limit) - used + cached))
    except (OSError, ValueError, IndexError):
        pass
    return available


def require(name: str, needed: int, place: Any = None, margin: int = 0) -> None:
    """Raise SpecviewError when `needed` bytes and a margin are more than the memory there is."""
    wanted, available = needed + margin, free(place)
    if wanted > available:
        where = f"memory on {place}" if place is not None and place.type == "cuda" else "memory"
        raise SpecviewError(
            f"{name} needs {wanted / 1e9:.1f} GB of {where}, and {available / 1e9:.1f} GB are free.",
            "Close other programs, or choose a smaller or quantized model or a shorter run.",
        )
