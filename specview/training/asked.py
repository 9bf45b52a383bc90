"""What the user asks of a training run: one declaration of its settings, from which flags, checks and command lines follow."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from specview.errors import UsageError

KINDS: Mapping[str, tuple[str, str]] = {
    "eagle3": ("EAGLE-3 head", "one layer that reads three of the target's hidden states; drafts token by token"),
    "medusa": ("Medusa heads", "small heads on the last hidden state, one for each of four tokens ahead"),
    "p-eagle": ("P-EAGLE head", "an EAGLE-3 head that drafts all its tokens in one pass"),
    "draft": ("small draft model", "a model of its own with the target's vocabulary, hidden 192"),
}
"""Kind of drafter -> its name, and what it is."""
MOST_ANSWER_TOKENS = 512  # half of the longest training text, so that a prompt has room
EAGLE_LAYERS = 3
Sort = Literal["text", "path", "whole", "real", "layers"]


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting on the command line: what it is, its group of the help, and the least and greatest value."""

    help: str
    sort: Sort = "text"
    group: str = ""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    name: str = ""  # where it is not the field's own


def _flag(default: Any, help_: str, sort: Sort = "text", group: str = "", **more: Any) -> Any:
    return field(default=default, metadata={"flag": Flag(help_, sort, group, **more)})


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What the user asked for. minutes bound the whole run; tokens and steps count instead of the clock."""

    kind: str
    target: str = _flag("bundled", "a model folder, a hub id, or a GGUF that transformers can run dequantized (default: bundled)")
    out: Path = field(metadata={"flag": Flag("where the drafter is saved", "path", metavar="FOLDER")})
    minutes: float = _flag(60.0, "for data and training together (default: 60)", "real", least=1, most=60 * 24 * 30)
    prompts: Path | None = _flag(
        None, 'JSON Lines with "prompt" or "text", or a prompt a line, which the target answers (default: built-in ones)',
        "path", "data", metavar="FILE",
    )  # fmt: skip
    text: Path | None = _flag(None, "your own text, which the target only labels", "path", "data", metavar="FILE")
    feature_budget_gb: float = _flag(
        4.0, "disk for the target's hidden states (default: 4)", "real", "data", metavar="GB", name="feature-budget"
    )
    work: Path | None = _flag(None, "data and checkpoints (default: in the cache)", "path", "data", metavar="FOLDER")
    answer_tokens: int = _flag(
        128, "longest answer of the target, up to 512 (default: 128)", "whole", "data", least=8, most=MOST_ANSWER_TOKENS
    )
    draft_vocab: int | None = _flag(
        None, "tokens a head drafts, the most frequent ones (default: by its size)", "whole", "drafter", metavar="N", least=16
    )
    layers: tuple[int, ...] | None = _flag(
        None, "the hidden states an EAGLE head reads, after so many layers (default: 2, half of them, all but 3)",
        "layers", "drafter", metavar="N,N,N",
    )  # fmt: skip
    start: Path | None = _flag(None, "a drafter of the same kind to go on from", "path", "drafter", metavar="FOLDER")
    tokens: int | None = _flag(None, "answer tokens to write, instead of by the clock", "whole", "run", metavar="N", least=1)
    steps: int | None = _flag(None, "training steps, instead of by the clock", "whole", "run", metavar="N", least=1)
    device: str | None = _flag(None, "cpu, cuda, mps, for the target (default: the best there is; only cpu is tested)", group="run")
    threads: int | None = _flag(None, "CPU threads", "whole", "run", least=1)
    seed: int = _flag(0, "of data and training (default: 0)", "whole", "run", least=0, most=(1 << 31) - 1)
    note: str = _flag("", "a paragraph for the card", group="run")

    def checked(self) -> TrainSettings:
        """The settings, if they can work; raises UsageError, one line."""
        if self.kind not in KINDS:
            raise UsageError(f"there is no drafter {self.kind!r} to train.", f"Kinds: {', '.join(KINDS)}.")
        if self.prompts is not None and self.text is not None:
            raise UsageError("prompts and text are both given.", "Give one of them.")
        for one, flag in flags():
            value = getattr(self, one.name)
            if value is None or one.name == "minutes" and self.steps is not None:
                continue
            for bound, beyond, words in ((flag.least, -1, "or more"), (flag.most, 1, "or less")):
                if bound is not None and (value - bound) * beyond > 0:
                    raise UsageError(f"{flag_name(one)} is {value:g}.", f"Use {bound:.10g} {words}.")
        if self.feature_budget_gb <= 0:
            raise UsageError(f"feature-budget is {self.feature_budget_gb:g} GB.", "Use more than 0.")
        if self.kind in ("medusa", "draft") and self.layers is not None:
            raise UsageError(f"{self.kind} reads no layers of its choice.", "Leave layers out.")
        if self.layers is not None and len(self.layers) != EAGLE_LAYERS:
            named = ", ".join(map(str, self.layers)) or "none"
            raise UsageError(
                f"layers are {named}, and an EAGLE head reads three.", "Name three rising ones, such as 2,15,27."
            )
        if self.kind == "draft" and self.draft_vocab is not None:
            raise UsageError("a small draft model has the target's whole vocabulary.", "Leave draft-vocab out.")
        return self

    def arguments(self, leaving_out: Container[str] = ()) -> list[str]:
        """The arguments of `specview` that ask for this: target, out, minutes, and what is not as by default."""
        found = ["train", self.kind]
        for one, flag in flags():
            value = getattr(self, one.name)
            if one.name in leaving_out or (value == one.default and one.name not in ("target", "minutes")):
                continue
            text = ",".join(map(str, value)) if flag.sort == "layers" else f"{value:g}" if flag.sort == "real" else str(value)
            found += [f"--{flag_name(one)}", text]
        return found


def flags() -> list[tuple[Field[Any], Flag]]:
    """The settings that have a flag, in order."""
    return [(one, one.metadata["flag"]) for one in fields(TrainSettings) if "flag" in one.metadata]


def flag_name(one: Field[Any]) -> str:
    """A setting's flag, without its dashes."""
    name: str = one.metadata["flag"].name
    return name or one.name.replace("_", "-")


def same_run(first: TrainSettings, second: TrainSettings) -> bool:
    """Whether both are for the same drafter from the same data: one may go on where the other stopped."""
    return all(getattr(first, name) == getattr(second, name) for name in ("kind", "target", "prompts", "text"))
