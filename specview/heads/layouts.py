"""What a folder with a trained head holds: read from its config and its tensors' names, without torch.

The published layouts are those of shared LAYOUTS.md; each has a reader here that says what the head is,
which target it was trained for and which tensors it must have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["eagle", "eagle3", "p-eagle", "medusa", "mlp-speculator", "mtp"]


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """A head before its weights are loaded.

    layout        which published layout the folder has, in words
    hidden_size   of the target's features that it reads
    vocab_size    of the target it was trained for; draft_vocab_size of its own logits
    aux_layers    the target's hidden states it reads, after so many layers; () where it reads only the last
    target_layers how many layers the target must have at least
    target_name   the target it was trained for, by its config, or ""
    most_tokens   how many tokens it can draft at most (Medusa's heads, MTP modules, a speculator's), None: any
    own_embedding, own_output  whether it brings its own, or uses the target's
    config        its config.json
    """

    kind: Kind
    layout: str
    folder: Path
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    aux_layers: tuple[int, ...] = ()
    target_layers: int = 1
    target_name: str = ""
    most_tokens: int | None = None
    own_embedding: bool = False
    own_output: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
