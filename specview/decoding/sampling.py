"""Sampling: its settings, logits to a decision distribution (penalties and filters), and one draw from it.

Array-namespace generic: a row is a numpy array or a torch tensor and stays on its device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from array_api_compat import array_namespace, is_torch_array

from specview.decoding.ledger import Array
from specview.fields import check, declared, setting
from specview.late import late

if TYPE_CHECKING:
    import numpy as np
else:
    np = late("numpy")

Purpose = Literal["target", "draft", "accept", "residual"]
_PURPOSES: dict[str, int] = {"target": 0, "draft": 1, "accept": 2, "residual": 3}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings, applied alike to target and draft.

    The order is penalties, temperature, top-k, top-p, min-p. temperature 0 is greedy; top_k 0, top_p 1 and
    min_p 0 switch their filter off.
    """

    temperature: float = setting(
        0.0, "0 is greedy: always the likeliest token (default)", minimum=0, maximum=1e30, group="sampling",
        form="Sampling", fits="0 (greedy) to 1e30", step=0.1,
    )  # fmt: skip
    top_k: int = setting(
        0, "keep the k likeliest tokens; 0 is off (default)", minimum=0, label="top-k", group="sampling", form="Filters",
        fits="0 (off) or more",
    )  # fmt: skip
    top_p: float = setting(
        1.0, "keep the smallest set of tokens with this much probability; 1 is off (default)", above=0, maximum=1,
        label="top-p", group="sampling", form="Filters", fits="a value above 0 and up to 1 (1 is off)",
    )  # fmt: skip
    min_p: float = setting(
        0.0, "drop tokens below this share of the likeliest one's probability; 0 is off (default)", minimum=0, maximum=1,
        label="min-p", group="sampling", form="Filters", fits="a value from 0 (off) to 1",
    )  # fmt: skip
    seed: int = setting(
        0, "reproduces a sampled run; each later turn has a seed made from it", minimum=0, maximum=2**63 - 1,
        group="sampling", form="Sampling", fits="a whole number from 0 to 2^63 - 1",
    )  # fmt: skip
    repetition_penalty: float = setting(
        1.0, "divides the positive logits of tokens in prompt or output, and multiplies the negative ones, as in transformers "
        "and vLLM; 1 is off (default)", minimum=0.01, maximum=100, label="repetition penalty", group="sampling",
        form="Penalties", fits="0.01 to 100 (1 is off)",
    )  # fmt: skip
    presence_penalty: float = setting(
        0.0, "is taken off the logits of tokens in the output, as in vLLM and OpenAI; 0 is off (default)", minimum=-2, maximum=2,
        label="presence penalty", group="sampling", form="Penalties",
    )  # fmt: skip
    frequency_penalty: float = setting(
        0.0, "is taken off a token's logit each time that it is in the output, as in vLLM and OpenAI; 0 is off (default)",
        minimum=-2, maximum=2, label="frequency penalty", group="sampling", form="Penalties",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse values that have no meaning."""
        check(self)

    @property
    def greedy(self) -> bool:
        """Whether the target decides by argmax."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether what was said before changes what may come next."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def part(self, *, prompt: int = 0, repeat: int = 0, turn: int = 0) -> SamplingParams:
        """The sampling of one part of a run, counted from 0, with a seed of its own made from this one.

        Parts would else draw the same numbers at the same positions of their outputs. The first part has this seed
        itself, and so have all at temperature 0. The seed is a whole run's: given alone it repeats the part.
        """
        if self.greedy or not (prompt or repeat or turn):
            return self
        sequence = np.random.SeedSequence(self.seed, spawn_key=(prompt, repeat, turn))
        return replace(self, seed=int(sequence.generate_state(1)[0]))

    def later(self, turns: int) -> SamplingParams:
        """The sampling so many turns later in a conversation: each turn's seed is made from that of the one before."""
        return self if turns <= 0 else self.part(turn=1).later(turns - 1)


def sampling_words(settings: Mapping[str, Any]) -> str:
    """Say the sampling settings that make a difference: 'temperature 0.7, top-k 40'."""
    temperature = settings.get("temperature", 0.0)
    on = [
        f"{one.words} {settings[name]:g}"
        for name, one in declared(SamplingParams).items()
        if name not in ("temperature", "seed") and settings.get(name, one.default) != one.default
        and (temperature > 0 or one.form != "Filters")
    ]  # fmt: skip
    return ", ".join([f"temperature {temperature:g}", *on])


def uniform(seed: int, position: int, purpose: Purpose, index: int = 0) -> float:
    """One number in [0, 1) from the stream keyed by (seed, output position, purpose).

    index counts further numbers of one key: the siblings that are tried at one position, the tokens of one draft.
    A draft's numbers are keyed by the position where its round begins. No two rounds begin at one, so a token that
    was drafted and not judged tells nothing of a later draft, whatever is learned from it.

    Counter-based (Philox), so that the number at a position does not depend on how many were drawn
    before: a seed reproduces a run whatever the draft lengths were.
    """
    bits = np.random.Philox(
        key=np.array([seed, position * len(_PURPOSES) + _PURPOSES[purpose]], dtype=np.uint64),
        counter=np.array([0, index, 0, 0], dtype=np.uint64),
    )
    return float(np.random.Generator(bits).random())


class Penalties:
    """The penalties on what a context has said, for logit rows after it and after the paths of a draft.

    Repetition counts the prompt too (Keskar et al. 2019, as in transformers and vLLM), presence and frequency the output
    alone (OpenAI, vLLM), in that order. A row depends on the tokens that lead to it and on nothing else: so p and q are
    the distributions that plain decoding would have at the same place.
    """

    def __init__(self, sampling: SamplingParams, prompt_length: int) -> None:
        self._sampling, self._prompt_length = sampling, prompt_length
        self._counts: dict[int, int] = {}  # token -> how often it is in the output
        self._length = 0

    def follow(self, context: Sequence[int]) -> None:
        """Take in what the context has more than at the last call."""
        if len(context) < self._length:  # another text
            self._counts, self._length = {}, 0
        for place in range(self._length, len(context)):
            token = context[place]
            self._counts[token] = self._counts.get(token, 0) + (place >= self._prompt_length)
        self._length = len(context)

    def rows(self, logits: Array, paths: Sequence[Sequence[int]], places: Mapping[int, int] | None = None) -> Array:
        """Penalised logits [rows, vocab], in float32 at least: row i is that after the context and paths[i].

        places gives a token's column where the rows are over other ids than the tokens (a head's own).
        """
        xp = array_namespace(logits)
        bare = _at_least_float32(xp, logits)
        found = xp.asarray(bare, copy=True)

        def put(rows: slice, counts: Mapping[int, int]) -> None:
            width = logits.shape[-1]
            columns = {token: token if places is None else places.get(token, width) for token in counts}
            ids = [column for column in columns.values() if column < width]
            if not ids:
                return
            said = [count for token, count in counts.items() if columns[token] < width]
            times = xp.asarray(said, dtype=found.dtype, device=found.device)
            values = bare[rows, ids]
            values = xp.where(values < 0, values * self._sampling.repetition_penalty, values / self._sampling.repetition_penalty)
            values = values - self._sampling.frequency_penalty * times
            found[rows, ids] = values - self._sampling.presence_penalty * xp.astype(times > 0, found.dtype)

        put(slice(None), self._counts)
        for row, path in enumerate(paths):
            put(slice(row, row + 1), {token: self._counts.get(token, 0) + path.count(token) for token in dict.fromkeys(path)})
        return found


def probabilities(logits: Array, sampling: SamplingParams) -> Array:
    """Decision distributions of logit rows.

    logits: [..., vocab], any float type. Returns the same shape in float32 (float64 stays), each row
    summing to 1: temperature, top-k, top-p, min-p in that order; one-hot at temperature 0. Ties at a
    filter's edge are all kept. Raises ValueError on a row with NaN or +inf, or with no finite logit.
    """
    xp = array_namespace(logits)
    logits = _at_least_float32(xp, logits)
    top = xp.max(logits, axis=-1, keepdims=True)
    if not bool(xp.all(xp.isfinite(top))):
        raise ValueError("logits are not finite")
    if sampling.greedy:
        best = xp.argmax(logits, axis=-1, keepdims=True)
        ids = xp.arange(logits.shape[-1], device=best.device)
        return xp.astype(ids == best, logits.dtype)
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        least = largest(logits, sampling.top_k)[..., -1:]
        logits = xp.where(logits >= least, logits, -math.inf)
    # Subtract before dividing: at a tiny temperature the quotient alone would overflow.
    p = xp.exp((logits - top) / max(sampling.temperature, 1e-30))
    p = p / xp.sum(p, axis=-1, keepdims=True)
    if sampling.top_p < 1:
        p = _keep_top_p(xp, p, sampling.top_p)
    if sampling.min_p > 0:
        p = xp.where(p >= sampling.min_p * xp.max(p, axis=-1, keepdims=True), p, 0.0)
    if sampling.top_p < 1 or sampling.min_p > 0:
        p = p / xp.sum(p, axis=-1, keepdims=True)
    return p


def likeliest_ids(logits: Array) -> list[int]:
    """The likeliest id of each row of logits [n, vocab], the lowest of equals; -1 for a row with a NaN, +inf, or nothing finite."""
    if str(getattr(logits, "device", "")) == "cpu":
        # numpy's argmax takes a tenth of torch's; and behind a target pass, which leaves little in the processor's
        # caches, each operation of torch costs some 100 microseconds (measured).
        logits = np.asarray(logits)
    xp = array_namespace(logits)
    ids = xp.argmax(logits, axis=-1)
    # argmax stops at a NaN, and a row of -inf alone has -inf as its best.
    best = xp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    return [token if finite else -1 for token, finite in zip(ids.tolist(), xp.isfinite(best).tolist(), strict=True)]


def softmax(logits: Array) -> Array:
    """Raw distributions at temperature 1 without filters; [..., vocab] to the same shape."""
    return probabilities(logits, _RAW)


def largest(values: Array, count: int) -> Array:
    """The `count` largest entries along the last axis, in descending order."""
    if is_torch_array(values):
        return values.topk(count, dim=-1).values
    size = values.shape[-1]
    part = np.partition(values, size - count, axis=-1)[..., size - count :]
    return np.flip(np.sort(part, axis=-1), axis=-1)


def top_entries(row: Array, count: int) -> tuple[list[int], list[float]]:
    """Ids and values of the `count` largest entries of one row, in descending order."""
    count = min(count, row.shape[-1])
    if is_torch_array(row):
        found = row.topk(count)
        return found.indices.tolist(), found.values.tolist()
    ids = np.argpartition(row, row.shape[-1] - count)[-count:]
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return ids.tolist(), row[ids].tolist()


def draw(p: Array, u: float) -> int:
    """Draw one id from a row p [vocab] by inverting its cumulative sum at u in [0, 1).

    p need not be normalised. An entry of zero is never drawn.
    """
    xp = array_namespace(p)
    if is_torch_array(p):
        # Summed in float64 where the device has it: float32 loses small entries of a large vocabulary.
        wide = xp.float32 if p.device.type == "mps" else xp.float64
        total = p.cumsum(-1, dtype=wide)
        index = int(xp.searchsorted(total, total[-1:] * u, right=True))
    else:
        total = np.cumsum(p, dtype=np.float64)
        index = int(np.searchsorted(total, total[-1] * u, side="right"))
    if index >= p.shape[-1]:  # u * total rounded up to the total
        index = int(xp.max(xp.nonzero(p > 0)[0]))
    return index


def as_like(row: Array, like: Array) -> Array:
    """Bring a row from another namespace or device to that of `like`, in its dtype if that is float32."""
    if is_torch_array(like):
        xp = array_namespace(like)
        return xp.as_tensor(row, device=like.device)
    return row.detach().float().cpu().numpy() if is_torch_array(row) else row


def fit_width(row: Array, width: int) -> Array:
    """Cut or zero-pad a probability row to `width` entries (vocabularies padded to different sizes)."""
    size = row.shape[-1]
    if size == width:
        return row
    if size > width:
        return row[..., :width]
    xp = array_namespace(row)
    return xp.concat(
        [row, xp.zeros((*row.shape[:-1], width - size), dtype=row.dtype, device=row.device)], axis=-1
    )


def _at_least_float32(xp: Any, values: Array) -> Array:
    return values if values.dtype in (xp.float32, xp.float64) else xp.astype(values, xp.float32)


def _keep_top_p(xp: Any, p: Array, top_p: float) -> Array:
    """Zero what lies outside the smallest set of likeliest entries that holds top_p."""
    size = p.shape[-1]
    count = min(size, 512)
    while True:
        ordered = largest(p, count)
        before = xp.cumulative_sum(ordered, axis=-1) - ordered
        inside = before < top_p
        if count == size or not bool(xp.any(inside[..., -1])):
            break
        count = min(size, count * 8)
    # `inside` is a prefix of at least one entry; its last value is the cut.
    kept = xp.sum(xp.astype(inside, xp.int64), axis=-1, keepdims=True)
    cut = xp.take_along_axis(ordered, kept - 1, axis=-1)
    return xp.where(p >= cut, p, 0.0)


_RAW = SamplingParams(temperature=1.0)
