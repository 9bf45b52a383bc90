"""`suffix`: continue the text as its own past, and that of earlier runs, most often went on.

SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), as in snowflakedb/ArcticInference, which vLLM's
method "suffix" calls; parameters and defaults are vLLM's suffix_decoding_*. Two trees: one over this
prompt and output, one over the outputs of earlier runs where runs are tied; the better-scoring draft of the
two is proposed. Unlike there the second does not hold the output being written: the first has it.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specview.decoding.interfaces import OnChunk
from specview.disk import PartFile
from specview.drafting.base import Guess
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.ngram_index import SEPARATOR, TIE, EarlierRuns, TiedDrafter
from specview.drafting.suffix_tree import Continuation, SuffixTree
from specview.errors import SpecviewError, UsageError
from specview.late import late
from specview.settings.options import Option, Value

if TYPE_CHECKING:
    import numpy as np
else:
    np = late("numpy")

BYTES_PER_TOKEN = 450  # of a tree, measured (tests/benchmarks/drafter_time.py)
FORMAT = "specview.suffix/1"
_NO_STORE = (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error)
"""What numpy raises for a file that is none."""

OPTIONS = (
    Option(
        "max_tree_depth",
        24,
        "Tokens of a match and its draft together, at most (vLLM: suffix_decoding_max_tree_depth, default 24).",
        2,
        256,
        label="depth",
    ),
    Option(
        "max_spec_factor",
        1.0,
        "A match of L tokens drafts at most this times L tokens "
        "(vLLM: suffix_decoding_max_spec_factor, default 1.0).",
        0.0,
        64.0,
        label="draft per match",
    ),
    Option(
        "max_spec_offset",
        0.0,
        "Tokens drafted beyond max_spec_factor times the match (ArcticInference: max_spec_offset, default 0; "
        "vLLM has it at 0).",
        0.0,
        64.0,
        label="extra draft tokens",
    ),
    Option(
        "min_token_prob",
        0.1,
        "The draft ends where its tokens' shares of what followed before, multiplied, fall below this "
        "(vLLM: suffix_decoding_min_token_prob, default 0.1).",
        0.0,
        1.0,
        label="minimum probability",
    ),
    Option(
        "max_cached_requests",
        10000,
        "Earlier runs kept, oldest dropped first; 0 keeps none. Counts where runs are tied "
        "(vLLM: suffix_decoding_max_cached_requests, default 10000).",
        0,
        1_000_000,
        label="maximum earlier runs",
    ),
    Option(
        "memory_mb",
        64,
        "Megabytes for the tree of earlier runs, about 2,300 tokens each; the oldest runs are dropped first. "
        "Counts where runs are tied.",
        1,
        65536,
        label="memory",
    ),
    TIE,
    Option(
        "store",
        "",
        "A file (.npz) that keeps the earlier runs: read where it exists, written when a run is done. "
        "It holds their token ids. Needs tied runs; empty keeps them in memory only.",
    ),
)


@dataclass(slots=True)
class SuffixMemory:
    """The outputs of earlier runs, and a tree over them for every depth that was asked for."""

    runs: EarlierRuns
    trees: dict[int, tuple[SuffixTree, int, int]] = field(default_factory=dict)  # (tree, runs dropped, taken)

    def tree(self, depth: int) -> SuffixTree:
        """Return the tree: grown by new runs, or built anew where old ones were dropped."""
        tree, dropped, taken = self.trees.get(depth) or (SuffixTree(depth), self.runs.dropped, 0)
        if dropped != self.runs.dropped:
            tree, taken = SuffixTree(depth), 0
        for run in list(self.runs.runs)[taken:]:
            tree.extend(run)
            tree.extend((SEPARATOR,))
        self.trees[depth] = (tree, self.runs.dropped, len(self.runs.runs))
        return tree


class Suffix(TiedDrafter[SuffixMemory]):
    """Drafts the likeliest continuation of the longest matches that pay; knows each token's share."""

    name = "suffix"
    OPTIONS = OPTIONS

    def __init__(
        self,
        options: Mapping[str, Value] | None = None,
        memory: SuffixMemory | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__(options, memory)
        self._depth = int(self.options["max_tree_depth"])
        self._limits = (
            float(self.options["max_spec_factor"]),
            float(self.options["max_spec_offset"]),
            float(self.options["min_token_prob"]),
        )
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Drop the text's tree."""
        self._tree = SuffixTree(self._depth)
        self._earlier: SuffixTree | None = None
        self._earlier_tokens = 0
        self._match = (0, 0)  # state and length of the context's longest suffix among the earlier runs
        self._found = Continuation()

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run, whose output alone is kept."""
        super().begin(prompt, on_chunk)
        self._text = []

    def read(self, prompt: Sequence[int]) -> None:
        """Build the prompt's tree, and match the prompt's end among the earlier runs."""
        self._tree.extend(prompt)
        if self._memory is not None:
            self._earlier = self._memory.tree(self._depth)
            self._rematch(prompt)

    def guess(self, context: Sequence[int], budget: int) -> Guess:
        """Continue the better of the two trees' matches."""
        new = context[self._tree.tokens :]
        self._tree.extend(new)
        found = self._tree.continuation(self._tree.end, self._tree.end_length, budget, *self._limits)
        earlier = self._earlier
        if earlier is not None:
            if earlier.tokens != self._earlier_tokens:  # another lane's run ended: states may have parted
                self._rematch(context)
            else:
                for token in new:
                    self._match = earlier.step(*self._match, token)
            other = earlier.continuation(*self._match, budget, *self._limits)
            if other.score > found.score:
                found = other
        self._found = found
        return found.tokens

    def confidences(self, tokens: Guess) -> Sequence[float] | None:
        """Return each token's share of what followed its path; their product is vLLM's token probability."""
        return self._found.shares

    def keep(self, memory: SuffixMemory, text: list[int]) -> None:
        """Leave the output to the next run, and write the store.

        Raises SpecviewError where the store cannot be written; the runs stay in memory.
        """
        memory.runs.add(text)
        if self._store is not None:
            self._store.save(memory.runs)

    def _rematch(self, context: Sequence[int]) -> None:
        assert self._earlier is not None
        self._earlier_tokens = self._earlier.tokens
        self._match = (0, 0)
        for token in context[-self._depth :]:
            self._match = self._earlier.step(*self._match, token)


@dataclass(frozen=True, slots=True)
class Store:
    """A file of earlier runs: token ids, and which tokenizer they are of (numpy's .npz, no pickle)."""

    path: Path
    tokenizer: str
    vocab_size: int

    def check(self) -> None:
        """Raise UsageError where no file can be written there."""
        folder = self.path.parent
        try:
            fits = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
            fits = fits and (not self.path.exists() or self.path.is_file()) and "\0" not in str(self.path)
        except OSError:  # a name too long, a folder that cannot be looked into
            fits = False
        if not fits:
            raise UsageError(
                f"suffix: no store can be written to {self.path}.", "Name a file in a folder that you can write to."
            )

    def load(self) -> list[np.ndarray]:
        """Return the runs, oldest first; none where there is no file.

        Raises SpecviewError where the file is not a store, or is another tokenizer's.
        """
        if not self.path.exists():
            return []
        tokens, lengths = self._read("tokens", "lengths")
        fits = tokens.ndim == lengths.ndim == 1 and tokens.dtype == np.int32 and lengths.dtype == np.int64
        fits = fits and not (lengths < 0).any() and int(lengths.sum()) == len(tokens)
        if not fits or (tokens < 0).any() or (tokens >= self.vocab_size).any():
            raise self._no_store()
        return np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []

    def save(self, runs: EarlierRuns) -> None:
        """Write all runs, in one step: a reader finds the old file or the new one.

        Raises SpecviewError where that fails, or where the file is no store of this tokenizer's; it stays as it was.
        """
        lengths = np.array([len(run) for run in runs.runs], dtype=np.int64)
        tokens = np.concatenate([np.asarray(run, dtype=np.int32) for run in runs.runs] or [np.zeros(0, np.int32)])
        if self.path.exists():  # it may have come there since it was loaded
            self._read()
        try:
            with PartFile(self.path, private=True) as part:
                np.savez_compressed(
                    part.file, format=np.array(FORMAT), tokenizer=np.array(self.tokenizer), tokens=tokens, lengths=lengths
                )
                part.put()
        except OSError as error:
            raise SpecviewError(
                f"suffix: the store {self.path} could not be written ({error.strerror or error}).",
                "The earlier runs stay in memory until specview ends; free space or name another file.",
            ) from None

    def _read(self, *names: str) -> list[np.ndarray]:
        """Arrays of the file; raises SpecviewError where it is not a store of this tokenizer's."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                kind, tokenizer, found = str(file["format"]), str(file["tokenizer"]), [file[name] for name in names]
        except _NO_STORE:
            raise self._no_store() from None
        if kind != FORMAT:
            raise self._no_store()
        if tokenizer != self.tokenizer:
            raise SpecviewError(
                f"suffix: the runs in {self.path} are of another tokenizer ({tokenizer}) than this target's "
                f"({self.tokenizer}).",
                "Name another file for this target.",
            )
        return found

    def _no_store(self) -> SpecviewError:
        return SpecviewError(
            f"suffix: {self.path} is not a store of earlier runs, or is damaged.",
            "Name another file, or delete this one to start anew.",
        )


def tokenizer_mark(context: DrafterContext) -> str:
    """Return a short name of the target's tokenizer: its size and a hash over a sample of its tokens."""
    if context.target is None:
        return f"{context.vocab_size:,} ids"
    tokenizer = context.target.tokenizer
    digest = hashlib.sha256(str(tokenizer.vocab_size).encode())
    for token in range(0, tokenizer.vocab_size, max(1, tokenizer.vocab_size // 512)):
        digest.update(tokenizer.token_bytes(token) + b"\0")
    return f"{tokenizer.vocab_size:,} tokens, {digest.hexdigest()[:12]}"


def make(context: DrafterContext) -> Suffix:
    """Make the drafter, over the earlier runs where runs are tied.

    Raises UsageError for a store without tied runs, SpecviewError for one that cannot be used.
    """
    options = context.options
    name = str(options["store"]).strip()
    if not options["tie"]:
        if name:
            raise UsageError("suffix: a store keeps earlier runs, and tie is off.", "Set tie=yes, or leave out the store.")
        return Suffix(options)
    max_tokens, max_runs = int(options["memory_mb"]) * (1 << 20) // BYTES_PER_TOKEN, int(options["max_cached_requests"])
    store = None
    if name:
        store = Store(Path(os.path.expanduser(name)).absolute(), tokenizer_mark(context), context.vocab_size)
        store.check()
        key = f"suffix {store.path}"
    else:
        key = f"suffix {','.join(f'{one.name}={options[one.name]}' for one in OPTIONS if one is not TIE)}"
    memory = context.memory.get(key)
    if memory is None:
        memory = SuffixMemory(EarlierRuns(max_tokens, max_runs))
        for run in store.load() if store is not None else ():
            memory.runs.add(run.tolist())
        context.memory[key] = memory
    memory.runs.max_tokens, memory.runs.max_runs = max_tokens, max_runs
    memory.runs.evict()
    return Suffix(options, memory, store)


METHOD = MethodInfo(
    "suffix",
    "suffix",
    "Suffix trees over this text and earlier runs; the longer the match, the longer the draft "
    "(SuffixDecoding, arXiv 2411.04975).",
    make,
    OPTIONS,
    longest="max_tree_depth",
    place=6,
)
