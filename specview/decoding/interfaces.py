"""What the decoding loop needs from engines, tokenizers and drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from specview.decoding.ledger import Array, Draft, Round
from specview.decoding.sampling import SamplingParams

OnChunk = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) between prefill chunks; raises `Stopped` to stop."""


Proceed = Callable[[float], bool]
"""Asked with each drafted token's confidence; False ends the draft after that token."""

OnFeatures = Callable[[Mapping[Any, Array]], None]
"""Called per prefill chunk with the features asked for, by layer: [tokens of the chunk, hidden]."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One target pass: logits [n, vocab] for the n tokens fed, features by layer [n, hidden]."""

    logits: Array
    features: Mapping[Any, Array] = field(default_factory=dict)


class Detokenizer(Protocol):
    """Joins tokens into text; a character split over tokens comes out with its last one."""

    def add(self, token: int) -> str:
        """Append a token and return the text that became complete with it (possibly empty)."""

    def peek(self, tokens: Sequence[int]) -> list[str]:
        """Texts that these tokens would add, one each, without adding them (for rejected drafts)."""

    def flush(self) -> str:
        """Return what is left incomplete, as replacement characters, and start anew."""


@dataclass(frozen=True, slots=True)
class End:
    """A token that ends a text, and which files or keys of the model say so."""

    token: int
    text: str
    sources: tuple[str, ...]

    def words(self) -> str:
        """The token as `2 <|im_end|> (config.json, known by its text)`."""
        text = self.text if self.text.isprintable() else repr(self.text)
        return f"{self.token} {text[:60]} ({', '.join(self.sources)})"


@dataclass(frozen=True, slots=True)
class Declared:
    """What a model's files declare of its text: the tokens that end it, and chat templates by name.

    left_out says what they ask of sampling that no lane does, bos_note that a raw prompt begins with BOS and a chat
    does not, weights_note where weights and configuration disagree; each one line, or "".
    """

    ends: tuple[End, ...] = ()
    templates: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""
    bos_note: str = ""
    weights_note: str = ""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a text."""
        return frozenset(end.token for end in self.ends)

    def ends_words(self) -> str:
        """All ends in one line."""
        return ", ".join(end.words() for end in self.ends)

    def lines(self) -> list[str]:
        """All that a user should know of it, a line each, none long."""
        named = [repr(name)[1:-1][:60] for name in self.templates if name != "default"]
        which = "besides the default one" if len(named) < len(self.templates) else "by name, and no default one"
        found = [
            f"A text ends at {self.ends_words()}." if self.ends else "No token ends a text.",
            f"Chat templates {which}: {', '.join(named)}." if named else "",
            self.bos_note,
            self.left_out,
            self.weights_note,
        ]
        return [line if len(line) <= 600 else f"{line[:600]}…" for line in found if line]


class Tokenizer(Protocol):
    """Text to ids and back. Text typed by a user never becomes a special token."""

    vocab_size: int
    bos_id: int | None
    eos_ids: frozenset[int]
    declared: Declared

    def encode(self, text: str) -> list[int]:
        """Encode bare text, without BOS."""

    def encode_raw(self, text: str) -> list[int]:
        """Encode a raw prompt: BOS where the model wants one; an empty prompt becomes BOS."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]], template: str | None = None) -> list[int]:
        """Render [{role, content}...] by the model's template of that name (None: its default), ready for the
        assistant's turn."""

    def token_text(self, token: int) -> str:
        """One token on its own, as text (special tokens by their name)."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; special tokens give their name."""

    def detokenizer(self) -> Detokenizer:
        """Make a new incremental detokenizer. EOS and other control tokens add no text."""


class Session(Protocol):
    """One sequence: its own KV cache over the shared weights."""

    length: int

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: OnChunk | None = None,
        features: Sequence[Any] = (),
        on_features: OnFeatures | None = None,
    ) -> None:
        """Feed tokens without logits, in chunks; on `Stopped` the session stays usable.

        Where features are asked for, on_features gets them chunk by chunk, before on_chunk is called.
        """

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        features: Sequence[Any] = (),
    ) -> Forward:
        """Feed tokens after the cache's end; length grows by len(tokens).

        features names hidden states: "last" is the one after the final norm, a number n the one after n
        layers (0: the embedding), as transformers' `hidden_states[n]`; no norm is applied to those.

        parents: per token the index in `tokens` of the one it follows, -1 for the cache's last token;
        None is a chain. Each token sees the cache and its own ancestors, at the position of its depth.
        After a tree only `keep`, or `truncate` to the length before it, may follow.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's tokens keep those of a path from the root, by index, in order.

        The rest are dropped; length is that before the forward plus len(path).
        """

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens: a pointer move, no copy."""

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""

    def close(self) -> None:
        """Free the cache."""


class BatchProbe(Protocol):
    """Several sequences of one length that share a pass, to measure what that costs. Made by Engine.batch_probe."""

    sequences: int
    length: int  # tokens that each holds
    how: str  # which forward runs, in words
    product_weights: int  # numbers that every row of a pass is multiplied by
    read_bytes: int  # weights that a pass reads

    def fill(self, tokens: Sequence[int], on_chunk: OnChunk | None = None) -> None:
        """Give every sequence these tokens, in place of what it held: computed once, then copied."""

    def forward(self, tokens: Sequence[Sequence[int]]) -> Array:
        """Feed n tokens to each sequence in one pass; return logits [sequences, n, vocab]."""

    def truncate(self, length: int) -> None:
        """Roll every sequence back to its first `length` tokens."""

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""

    def product_rate(self) -> tuple[float, str]:
        """Measure this model's matrix products of many rows: operations per second, and how that was found."""

    def read_rate(self) -> tuple[float, str] | None:
        """Measure how fast the device reads memory: bytes per second, and how; None on a CPU, or unknown."""

    def close(self) -> None:
        """Free the sequences."""


class Engine(Protocol):
    """One loaded model on one device; sessions share its weights."""

    name: str  # "transformers" or "llama.cpp"
    model_name: str
    device: str
    dtype: str
    vocab_size: int  # width of a logit row; may be padded beyond the tokenizer's
    context_length: int
    eos_ids: frozenset[int]
    weight_bytes: int
    tokenizer: Tokenizer
    check_mode: bool
    rollback_problem: str | None  # why this model's cache cannot be rolled back, or None
    exit_layers: int  # layers that early exit may stop after 1 to exit_layers - 1 of; 0 where it cannot
    exit_problem: str | None  # why it cannot, or None
    hidden_size: int  # of a feature
    layers: int  # features are named 0 to layers, and "last"

    @property
    def features_problem(self) -> str | None:
        """Why sessions give no features, or None."""

    def embed(self, ids: Sequence[int]) -> Array:
        """The embedding's rows of some ids, float [n, hidden], as the first layer gets them."""

    def project(self, hidden: Array) -> Array:
        """Logits float [n, vocab] of hidden states [n, hidden] that stand where "last" stands: the head alone."""

    def new_session(self, max_length: int, branches: int = 1) -> Session:
        """Make a session for up to max_length tokens and draft trees of up to `branches` leaves.

        max_length counts every token of a pass, those of a tree that are dropped later too.
        """

    def batch_probe(self, sequences: int, context: int, rows: int) -> BatchProbe:
        """Make a probe of so many sequences of `context` tokens each and passes of up to `rows` of each.

        Raises SpecviewError, one line, where the model or the engine cannot.
        """

    def batch_bytes(self, sequences: int, context: int, rows: int) -> int:
        """Bytes of memory that such a probe takes beside the weights."""

    def kv_bytes(self, length: int) -> int:
        """Bytes of KV cache for a sequence of that length."""

    def close(self) -> None:
        """Free the weights."""


@runtime_checkable
class EarlyExitSession(Protocol):
    """A session whose target can be left after its first layers (interfaces.Session besides)."""

    def forward_exit(self, tokens: Sequence[int], layer: int) -> Array:
        """Feed tokens after the cache's end and those fed so before, through the first `layer` layers.

        Returns logits [n, vocab] of the final norm and head over that layer's output. length stays:
        the tokens are pending. A following `forward` that begins with the pending tokens takes their
        hidden states up at that layer instead of running the first layers again; any other `forward`,
        `keep` or `truncate` drops them. Raises SpecviewError where layer is out of range.
        """


class Drafter(Protocol):
    """One drafting method on one sequence.

    written is set before `start`, where a continuation begins: so many of the last tokens of the prompt are output already.
    watched is set where somebody looks: a drafter that follows the text with a model of its own then keeps the logit rows
    of the tokens that it caught up with (Draft.caught_up), which cost no pass; copying a row is all that they may cost.
    full_context is the length of a drafter's own context once the text does not fit in it and nothing is drafted; else 0.
    """

    name: str
    exact_q: bool
    feature_layers: tuple[Any, ...]  # asked for in every target pass, for `observe`
    prompt_layers: tuple[Any, ...]  # asked for in the prefill, for `learn_prompt`
    written: int
    watched: bool

    @property
    def full_context(self) -> int:
        """See above."""

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Take the prompt (prefilling a draft model's own cache), before the target's own prefill."""

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Take the target's features of the next tokens of the prompt, chunk by chunk, all but its last token.

        Called only where prompt_layers asks for some, after `start`.
        """

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` tokens after `context` (the prompt and all output so far), while `proceed` agrees."""

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Learn what became of the last draft.

        features has the rows asked for by feature_layers (row 0 is the context's last token, row 1 + i the
        draft's token i), and under "riders" the logits [riders, vocab].
        """

    def close(self) -> None:
        """Free the drafter's own state."""


class LengthPolicy(Protocol):
    """Decides how many tokens the next round drafts (in a tree: how deep it may be)."""

    def start(self, k: int) -> None:
        """Begin a run with the user's k: the length, the first one, or the longest, by policy."""

    def budget(self) -> int:
        """Tokens to draft in the next round; 0 drafts nothing."""

    @property
    def proceed(self) -> Proceed | None:
        """Asked after every drafted token; None drafts to the budget."""

    def observe(self, round_: Round) -> None:
        """Learn from a finished round."""
