"""`python -m specview.training draft`: make the bundled draft anew, in one command.

Ctrl-C stops after the step under way; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from specview.errors import SpecviewError


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    main = argparse.ArgumentParser(prog="python -m specview.training", description=__doc__)
    commands = main.add_subparsers(dest="command", required=True)
    draft = commands.add_parser("draft", help="make the bundled draft: data, training, export, card")
    draft.add_argument("--out", type=Path, default=Path("assets/draft"), help="folder of the finished asset")
    draft.add_argument("--minutes", type=float, default=100.0, help="for data and training together")
    draft.add_argument("--data-share", type=float, default=0.5, help="part of the minutes that goes to data")
    draft.add_argument("--start", type=Path, help="checkpoint of the same shape to go on from")
    draft.add_argument("--target", type=Path, help="folder of the target (default: the bundled one)")
    draft.add_argument("--target-gguf", type=Path, help="GGUF whose vocabulary is copied")
    draft.add_argument("--work", type=Path, help="folder for data and checkpoints (default: in the cache)")
    draft.add_argument("--seed", type=int, default=0)
    draft.add_argument("--note", default="", help="a paragraph for the model card")
    draft.add_argument("--threads", type=int, default=2, help="processor threads")
    return main


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 130 stopped."""
    options = parser().parse_args(arguments)
    began = time.monotonic()
    stopped = False

    def on_interrupt(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_interrupt)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.0f}s  {text}", file=sys.stderr, flush=True)

    try:
        from specview.models import bundled
        from specview.models.cache import cache_dir
        from specview.models.converted import convert
        from specview.training.draft import Recipe, make

        target_gguf = options.target_gguf or bundled.target_gguf()
        recipe = Recipe(
            target=options.target or convert(target_gguf),
            target_gguf=target_gguf,
            work=options.work or cache_dir() / "training" / "draft",
            out=options.out,
            minutes=options.minutes,
            data_share=options.data_share,
            start=options.start,
            seed=options.seed,
            threads=options.threads,
            note=options.note,
        )
        done = make(recipe, lambda: stopped, say)
    except (SpecviewError, OSError, ValueError) as error:
        print(f"specview.training: {error}", file=sys.stderr)
        return 1
    return 0 if done else 130


if __name__ == "__main__":
    sys.exit(main())
