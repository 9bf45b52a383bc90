"""What one of two programs does to a library that both use; it imports little, so that both begin soon."""

from __future__ import annotations

from pathlib import Path

from specview.errors import SpecviewError
from specview.library.library import RunLibrary


def change(folder: str, ids: list[str], seed: int) -> None:
    """Describe, delete and bring back each run, three times."""
    library = RunLibrary(Path(folder))
    for round_ in range(3):
        for run_id in ids:
            try:
                library.describe(run_id, note=f"{seed} {round_}")
            except SpecviewError:
                pass  # the other one has it in the trash just now
            library.delete([run_id])
            library.scan()
            library.restore([run_id])
