"""What the user asked of a training run, checked as far as no file is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specview.errors import UsageError

KINDS = ("eagle3", "medusa", "p-eagle", "draft")
LEAST_MINUTES = 1.0
MOST_ANSWER_TOKENS = 512  # half of the longest training text, so that a prompt has room
EAGLE_LAYERS = 3


@dataclass(frozen=True)
class TrainSettings:
    """What the user asked for. minutes bound the whole run; tokens and steps count instead of the clock."""

    kind: str
    out: Path
    target: str = "bundled"
    minutes: float = 60.0
    prompts: Path | None = None
    text: Path | None = None
    work: Path | None = None
    feature_budget_gb: float = 4.0
    draft_vocab: int | None = None
    layers: tuple[int, ...] | None = None
    start: Path | None = None
    device: str | None = None
    threads: int | None = None
    seed: int = 0
    answer_tokens: int = 128
    tokens: int | None = None  # answer tokens to write
    steps: int | None = None
    note: str = ""  # a paragraph for the small draft's card

    def checked(self) -> TrainSettings:
        """The settings, if they can work; raises UsageError, one line."""
        if self.kind not in KINDS:
            raise UsageError(f"there is no drafter {self.kind!r} to train.", f"Kinds: {', '.join(KINDS)}.")
        if self.steps is None and not LEAST_MINUTES <= self.minutes <= 60 * 24 * 30:
            raise UsageError(f"minutes is {self.minutes:g}.", f"Use {LEAST_MINUTES:g} or more.")
        if self.prompts is not None and self.text is not None:
            raise UsageError("prompts and text are both given.", "Give one of them.")
        for name, least in (
            ("draft_vocab", 16),
            ("threads", 1),
            ("answer_tokens", 8),
            ("tokens", 1),
            ("steps", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name.replace('_', '-')} is {value}.", f"Use {least} or more.")
        if self.answer_tokens > MOST_ANSWER_TOKENS:
            raise UsageError(f"answer-tokens is {self.answer_tokens}.", f"Use {MOST_ANSWER_TOKENS} or less.")
        if self.feature_budget_gb <= 0:
            raise UsageError(f"feature-budget is {self.feature_budget_gb:g} GB.", "Use more than 0.")
        if not 0 <= self.seed < 1 << 31:
            raise UsageError(f"seed is {self.seed}.", "Use 0 to 2147483647.")
        if self.kind in ("medusa", "draft") and self.layers is not None:
            raise UsageError(f"{self.kind} reads no layers of its choice.", "Leave layers out.")
        if self.layers is not None and len(self.layers) != EAGLE_LAYERS:
            named = ", ".join(map(str, self.layers)) or "none"
            raise UsageError(
                f"layers are {named}, and an EAGLE head reads three.",
                "Name three rising ones, such as 2,15,27.",
            )
        if self.kind == "draft" and self.draft_vocab is not None:
            raise UsageError(
                "a small draft model has the target's whole vocabulary.", "Leave draft-vocab out."
            )
        return self
