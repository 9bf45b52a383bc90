"""How long OpenMP's threads spin before they sleep: what decides speed when the cores are shared.

GCC's OpenMP, which llama.cpp and torch both run on under Linux, lets a waiting thread spin some
300,000 times. When another program holds a core, many of the hundreds of waits in a pass then last a time
slice. With too few spins the threads fall asleep in the pauses between two products, and waking them costs more
than the products. Measured on 2 cores, SmolLM2-135M:

    spins                                     2,000   6,000  10,000   14,000  20,000  300,000
    torch float32, idle, pass of 1 row, ms     28.3    25.1    24.6             24.6     24.4
    the same, 4 rows                           41.1    31.9    31.5             32.0     31.3
    a race's pass of 1 row, idle                       26.0    25.6     24.8    24.8     25.4
    the same, 3 rows                                   32.3    31.4     30.4    30.4     31.0
    beside 1 busy program, 1 row                 58      86     106      108     119      116
    beside 2 (unsteady), 3 rows                  67   65-95     113   65-135  72-181    1,527
    llama.cpp Q4_1, idle, 1 row                10.5    10.8    10.8     11.1             11.0

(6,000 stands for 5,000 in the first two rows, 14,000 for 12,000 beside busy programs.)
"""

from __future__ import annotations

import os
import sys

SPINS = "10000"


def limit_spinning() -> None:
    """Make OpenMP's threads sleep soon; call before a library that uses OpenMP is first loaded.

    The user's own GOMP_SPINCOUNT or OMP_WAIT_POLICY stands. Without effect once OpenMP is loaded, and
    on systems whose OpenMP is not GCC's.
    """
    if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
