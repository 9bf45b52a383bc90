"""Where results are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from specview.disk import private_folder
from specview.files.atomic import cannot_write


def data_folder(name: str = "", *, make: bool = False) -> Path:
    """The folder of the user's data (SPECVIEW_DATA where it is set, else the platform's), or one in it.

    make: make it, for nobody else to look into, where it is not there; raises SpecviewError, one line, where that fails.
    """
    if given := os.environ.get("SPECVIEW_DATA"):
        folder = Path(os.path.expanduser(given))
    else:
        import platformdirs

        folder = Path(platformdirs.user_data_dir("specview", appauthor=False))
    if name:
        folder = folder / name
    if make:
        try:
            private_folder(folder)
        except OSError as error:
            raise cannot_write(folder, "folder", error) from None
    return folder
