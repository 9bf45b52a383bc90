"""How long OpenMP's threads spin before they sleep: what decides speed when the cores are shared.

GCC's OpenMP, which llama.cpp and torch both run on under Linux, lets a waiting thread spin some
300,000 times. When another program holds a core, every one of the hundreds of waits in a pass then
lasts a time slice. Measured on 2 cores, SmolLM2-135M, one-token passes: llama.cpp (Q4_1) on an idle
machine 7.9 ms as it is, 8.7 with 1,000 spins, 8.4 with 2,500; beside many busy programs 805, 84 and
199 ms. transformers (float32) idle 48.9 ms and 51.3 with 2,500; busy 2,479 and 182 ms.
"""

from __future__ import annotations

import os
import sys

SPINS = "2000"


def limit_spinning() -> None:
    """Make OpenMP's threads sleep soon; call before a library that uses OpenMP is first loaded.

    The user's own GOMP_SPINCOUNT or OMP_WAIT_POLICY stands. Without effect once OpenMP is loaded, and
    on systems whose OpenMP is not GCC's.
    """
    if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
