"""A made-up `specview train`: prints the protocol of `--progress -`, minds the line "stop", then ends as it is told.

Run as a script: train_fake.py MODE FOLDER [the arguments of specview]. Modes: done, wait (until it is stopped), die
(a traceback and exit code 3), error (one event), deaf (never stops by itself), silent (ends without a word). It waits
for a file FOLDER/go where it would work.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def main() -> int:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "arguments.json").write_text(json.dumps(sys.argv[3:]), encoding="utf-8")
    stopped = threading.Event()
    ended = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                stopped.set()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    say(event="stage", stage="check", text="Checking the target", fraction=0.0, left_seconds=600)
    print("not JSON, and to be passed over", flush=True)
    say(event="step", step="many", loss=None)
    if mode == "die":
        print("Traceback (most recent call last):\n  File x\nMemoryError: no memory left", file=sys.stderr)
        return 3
    if mode == "silent":
        return 0
    if mode == "error":
        say(event="error", text="there is no file prompts.txt. Check the path.")
        return 2
    for step in range(1, 41):
        say(event="step", step=step, loss=9.0 / step, agreement=step / 80, learning_rate=1e-3, seconds=step,
            fraction=0.5 + step / 100, left_seconds=60 - step)
        if step % 10 == 0:
            say(event="heldout", step=step, alpha={"1": 0.3 + step / 200, "2": 0.2 + step / 200, "x": 1},
                tokens_per_target_pass={"1": 1.4, "2": 1.6})
    say(event="stage", stage="training", text="Training", fraction=0.9, left_seconds=60)
    (folder / "working").write_text(str(ended.is_set()), encoding="utf-8")
    while mode in ("wait", "deaf") and not (folder / "go").exists():
        if mode == "wait" and stopped.wait(0.02):
            (folder / "work").mkdir(exist_ok=True)
            (folder / "work" / "job.json").write_text("{}", encoding="utf-8")
            say(event="stopped", work=str(folder / "work"))
            return 130
        time.sleep(0.02)
    (folder / "eof").write_text(str(ended.is_set()), encoding="utf-8")
    say(event="done", folder=str(folder / "out"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
