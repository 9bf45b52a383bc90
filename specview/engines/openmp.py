"""How long OpenMP's threads spin before they sleep: what decides speed when the cores are shared.

GCC's OpenMP, which llama.cpp and torch both run on under Linux, lets a waiting thread spin some
300,000 times. When another program holds a core, many of the hundreds of waits in a pass then last a time
slice. With too few spins the threads fall asleep in the pauses between two products, and waking them costs more
than the products. Measured on 2 cores, SmolLM2-135M:

    spins                                     2,000   5,000   7,000   10,000   300,000
    torch float32, idle, pass of 1 row, ms     28.3    25.1    24.6     24.6      24.4
    the same, 4 rows                           41.1    31.9    31.5     31.5      31.3
    llama.cpp Q4_1, idle, 1 row                10.5    10.8    10.8     10.8      11.0
    torch, beside 1 busy program, 1 row          58      ..   56-76      106       116
    the same, 3 rows, beside 2                   67      60      ..      113     1,527
"""

from __future__ import annotations

import os
import sys

SPINS = "6000"


def limit_spinning() -> None:
    """Make OpenMP's threads sleep soon; call before a library that uses OpenMP is first loaded.

    The user's own GOMP_SPINCOUNT or OMP_WAIT_POLICY stands. Without effect once OpenMP is loaded, and
    on systems whose OpenMP is not GCC's.
    """
    if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
