"""`python -m specview`."""

from __future__ import annotations

import sys

from specview.cli import main

if __name__ == "__main__":
    sys.exit(main())
