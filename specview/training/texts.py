"""What the target is asked to write for training, and what is kept for measuring.

Prompts are the built-in ones, the user's, or pieces of the user's own text, which is then only labelled. Some of each
are held out: the target answers them greedily, and no training text comes from them.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specview.errors import SpecviewError, Stopped
from specview.training.asked import MOST_ANSWER_TOKENS, TrainSettings
from specview.training.chat import ChatLayout
from specview.training.corpus import default_roots, read_corpus
from specview.training.evaluate import greedy_continuations
from specview.training.generate import LANES, TEMPERATURES, Lane, Writer
from specview.training.prompts import LONG_KINDS, SETS, SHORT_KINDS, Prompt, Prompts, PromptSource, held_out
from specview.training.shards import ONE_SHARD, Labelled, ShardWriter, read_shard, shard_files, unlabelled
from specview.training.target import TargetModel
from specview.training.teacher import LONGEST, BatchWriter

CORPUS_FILES = 3000
PIECE_TOKENS = 256  # of the user's own text
HELD_TEXTS = 24  # of the user's prompts or pieces, at most
LEAST_PROMPTS, LEAST_TEXT_TOKENS = 10, 1000
CACHE_BYTES = 2 << 30  # keys and values of all writers
MOST_FILE_BYTES = 256 << 20
USER_KIND, TEXT_KIND = "user", "text"
_CHUNK = 100_000
_STOP_S = 2.0  # how long a writer is waited for when the run is broken off


class UserPrompts:
    """The user's prompts, in random order, again and again."""

    def __init__(self, texts: Sequence[str], rng: random.Random) -> None:
        self.own_texts: list[str] = []
        self._texts, self._rng, self._left = list(texts), rng, list[str]()

    def is_held_out(self, text: str) -> bool:
        """Nothing drawn from here is."""
        return False

    def draw(self, kinds: dict[str, float]) -> Prompt:
        """The next one."""
        if not self._left:
            self._left = self._rng.sample(self._texts, len(self._texts))
        return Prompt(USER_KIND, self._left.pop())


@dataclass(frozen=True)
class HeldOutText:
    """What the target answers for measuring: the tokens before the answer, their kind and set."""

    set: str
    kind: str
    tokens: list[int]


@dataclass(frozen=True)
class Material:
    """What training text is made of.

    prompts are the user's (None: the built-in ones), pieces the user's own text as tokens (None: the target
    writes); held_out is kept for measuring.
    """

    layout: ChatLayout
    held_out: tuple[HeldOutText, ...]
    prompts: tuple[str, ...] | None = None
    pieces: tuple[list[int], ...] | None = None

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the held-out sets; the last one decides nothing."""
        return tuple(dict.fromkeys(text.set for text in self.held_out))


def read_prompts(file: Path) -> list[str]:
    """The prompts of a file, each once: JSON Lines with "prompt" or "text", or a prompt a line.

    Raises SpecviewError, one line, where it cannot be read or holds too few.
    """
    texts: list[str] = []
    for number, line in enumerate(_read(file).splitlines(), 1):
        line = line.strip()
        if not line:
            continue
        value: Any = line
        if line[0] == "{" or file.suffix == ".jsonl":
            try:
                value = json.loads(line)
            except ValueError:
                raise SpecviewError(
                    f"line {number} of {file} is no JSON.", "Write one JSON object a line, or plain lines."
                ) from None
            if isinstance(value, dict):
                value = value.get("prompt", value.get("text"))
        if not isinstance(value, str):
            raise SpecviewError(
                f'line {number} of {file} has no "prompt" or "text".', "Give each line one of them."
            )
        if value.strip():
            texts.append(value.strip())
    texts = list(dict.fromkeys(texts))
    if len(texts) < LEAST_PROMPTS:
        raise SpecviewError(
            f"{file} holds {len(texts)} prompts, and training needs {LEAST_PROMPTS}.",
            "Give more, or leave it out.",
        )
    return texts


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            raise SpecviewError(f"{file} is larger than {MOST_FILE_BYTES >> 20} MB.", "Give a part of it.")
        return file.read_text("utf-8-sig")
    except FileNotFoundError:
        raise SpecviewError(f"there is no file {file}.", "Check the path.") from None
    except UnicodeDecodeError:
        raise SpecviewError(f"{file} is not UTF-8 text.", "Save it as UTF-8.") from None
    except OSError as error:
        raise SpecviewError(
            f"{file} cannot be read ({error.strerror or error}).", "Check the file."
        ) from None


def chat_layout(tokenizer: Any) -> ChatLayout:
    """The target's chat layout; for a model without one, its beginning of text and a blank line."""
    if getattr(tokenizer, "chat_template", None):
        try:
            layout = ChatLayout.of(tokenizer)
            if layout.before:
                return layout
        except Exception:  # noqa: BLE001 - a template is a program: whatever it raises, the plain layout serves
            pass
    before = _beginning(tokenizer)
    blank = tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    return ChatLayout(tuple(before or blank[-1:]), tuple(blank), -1 if end is None else end)


def _beginning(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before every text."""
    bos = getattr(tokenizer, "bos_token_id", None)
    given = list(tokenizer("a")["input_ids"])
    return [bos] if bos is not None and given[:1] == [bos] else []


def material_of(tokenizer: Any, prompts: Path | None, text: Path | None, seed: int) -> Material:
    """Read what the settings name, and keep some of it for measuring. Raises SpecviewError, one line."""
    layout = chat_layout(tokenizer)
    if text is not None:
        pieces = _pieces(text, tokenizer)
        held = min(HELD_TEXTS, max(1, len(pieces) // 20))
        step = len(pieces) // held
        kept = set(range(step - 1, step * held, step))
        return Material(
            layout,
            tuple(HeldOutText("held-out", TEXT_KIND, pieces[i][: len(pieces[i]) // 2]) for i in sorted(kept)),
            pieces=tuple(piece for i, piece in enumerate(pieces) if i not in kept),
        )
    if prompts is None:
        return Material(
            layout,
            tuple(
                HeldOutText(name, prompt.kind, layout.render(tokenizer, prompt.text))
                for name in SETS
                for prompt in held_out(name)
            ),
        )
    room = LONGEST - MOST_ANSWER_TOKENS
    texts = [text for text in read_prompts(prompts) if len(layout.render(tokenizer, text)) <= room]
    if len(texts) < LEAST_PROMPTS:
        raise SpecviewError(
            f"{prompts} holds {len(texts)} prompts of at most {room} tokens, and training needs {LEAST_PROMPTS}.",
            "Shorten them, or give more.",
        )
    random.Random(seed).shuffle(texts)
    held = min(HELD_TEXTS, max(2, len(texts) // 10))
    return Material(
        layout,
        tuple(HeldOutText("held-out", USER_KIND, layout.render(tokenizer, text)) for text in texts[:held]),
        prompts=tuple(texts[held:]),
    )


def _pieces(file: Path, tokenizer: Any) -> list[list[int]]:
    text = _read(file)
    ids: list[int] = []
    for at in range(0, len(text), _CHUNK):
        ids += tokenizer(text[at : at + _CHUNK], add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]
    if len(ids) < LEAST_TEXT_TOKENS:
        raise SpecviewError(
            f"{file} holds {len(ids)} tokens, and training needs {LEAST_TEXT_TOKENS}.", "Give a longer text."
        )
    before = _beginning(tokenizer)
    size = PIECE_TOKENS - len(before)
    pieces = [[*before, *ids[at : at + size]] for at in range(0, len(ids), size)]
    return pieces if len(pieces[-1]) >= 32 else pieces[:-1]


def texts_of(folder: Path) -> Iterator[Labelled]:
    """The texts of a folder in the order they were finished, which a resumed run finds again."""
    for path in shard_files(folder):
        if not path.name.startswith("plain-"):
            yield from read_shard(path)


def lanes_for(
    bytes_per_token: int, layout: ChatLayout, tokenizer: Any, material: Material, answer: int
) -> tuple[Lane, ...]:
    """The writers' slots: as many as the cache's memory allows, as long as the prompts need.

    bytes_per_token are those of a position in the caches of all writers together.
    """
    if material.prompts is None:
        more = max(0, answer - TrainSettings.answer_tokens)  # the lanes are made for answers of that length
        chat = bool(tokenizer.chat_template)
        lanes = tuple(
            Lane(lane.slots, min(LONGEST, lane.capacity + more), lane.kinds, lane.invented if chat else 0.0)
            for lane in LANES
        )
    else:
        longest = max(len(layout.render(tokenizer, text)) for text in material.prompts)
        lanes = (Lane(128, min(LONGEST, longest + answer + 1), {USER_KIND: 1.0}, 0.0),)
    needed = bytes_per_token * sum(lane.slots * lane.capacity for lane in lanes)
    share = min(1.0, CACHE_BYTES / needed)
    return tuple(
        Lane(max(1, int(lane.slots * share)), lane.capacity, lane.kinds, lane.invented) for lane in lanes
    )


def prompt_maker(
    material: Material,
    tokenizer: Any,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
    enough: Callable[[], bool] = lambda: False,
) -> Callable[[random.Random], Prompts]:
    """A maker of prompt sources, one for each writer; reading the built-in text ends early where it is `enough`.

    Raises Stopped when asked to.
    """
    if material.prompts is not None:
        texts = material.prompts
        return lambda rng: UserPrompts(texts, rng)
    corpus = read_corpus(default_roots(), CORPUS_FILES, seed, stop, enough)
    kept = [prompt.text for name in SETS for prompt in held_out(name)]
    return lambda rng: PromptSource(corpus, kept, rng)


def write_in_slots(
    target: TargetModel,
    layout: ChatLayout,
    tokenizers: Sequence[Any],
    make: Callable[[random.Random], Prompts],
    lanes: tuple[Lane, ...],
    folder: Path,
    seed: int,
    answer: int,
    enough: Callable[[int], bool],
    told: Callable[[int], None],
    filling: Callable[[int, int], None] = lambda filled, slots: None,
) -> None:
    """Let one writer per core, each on one thread, write shards until `enough` (answer tokens written).

    Two small products run better than one split in two. Answers under way at the end are kept as far as they are.
    filling is told how many of all slots have a prompt, as long as not all have; told, the answer tokens written.
    """
    before = len(list(folder.glob("written-*")))  # a resumed run draws anew
    failures: list[BaseException] = []
    writers: list[Writer] = []

    def work(index: int) -> None:
        torch.set_num_threads(1)
        own = (seed * 1000 + before) * 100 + index
        try:
            writer = Writer(
                target,
                tokenizers[index],
                make(random.Random(own)),
                ShardWriter(folder, f"written-{index}"),
                own,
                lanes,
                answer,
                layout,
            )
            writers.append(writer)
            writer.run(lambda: bool(failures) or enough(sum(w.written for w in writers)), lambda text: None)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failures.append(error)

    # Daemons: a second Ctrl-C ends the program, whatever they are at.
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(tokenizers))]
    slots = len(threads) * sum(lane.slots for lane in lanes)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)
                filled = sum(w.filled for w in list(writers))
                if filled < slots:
                    filling(filled, slots)
                else:
                    told(sum(w.written for w in writers))
    except BaseException as error:
        failures.append(error)  # which stops the writers at their next step
        for thread in threads:
            thread.join(_STOP_S)
        raise
    if failures:
        raise failures[0]


def write_in_batches(
    writer: BatchWriter,
    tokenizer: Any,
    layout: ChatLayout,
    source: Prompts,
    folder: Path,
    seed: int,
    answer: int,
    batch: int,
    enough: Callable[[int], bool],
    told: Callable[[int], None],
) -> None:
    """Let `generate` write batch after batch until `enough`; every batch is a shard, drawn from its number."""
    done = len(list(folder.glob("written-*")))
    kinds = {**SHORT_KINDS, **dict.fromkeys(LONG_KINDS, 0.1)}
    written = 0

    def stop() -> bool:
        return enough(written)

    for _ in range(done):  # a resumed run draws on from where it was
        for _ in range(batch):
            source.draw(kinds)
    while not enough(written):
        rng = random.Random(f"{seed} {done}")
        temperature = rng.choices(list(TEMPERATURES), list(TEMPERATURES.values()))[0]
        drawn = [source.draw(kinds) for _ in range(batch)]
        prompts = [layout.render(tokenizer, prompt.text)[:LONGEST] for prompt in drawn]
        try:
            answers = writer.write(prompts, answer, temperature, seed * 100_003 + done, stop)
        except Stopped:
            return
        shard = ShardWriter(folder, "written", ONE_SHARD)
        for prompt, tokens, said in zip(drawn, prompts, answers, strict=True):
            if said:
                shard.add(unlabelled([*tokens, *said], prompt.kind, len(said)))
                written += len(said)
        shard.flush()
        done += 1
        told(written)


def copy_pieces(pieces: Sequence[list[int]], folder: Path, most_tokens: int) -> None:
    """Write the user's own text as shards, in random order, up to so many tokens."""
    writer = ShardWriter(folder, "read", ONE_SHARD)
    order = list(range(len(pieces)))
    random.Random(0).shuffle(order)
    total = 0
    for index in order:
        total += len(pieces[index])
        if total > most_tokens and index != order[0]:
            break
        writer.add(unlabelled(pieces[index], TEXT_KIND, 0))
    writer.flush()


def answer_held_out(
    texts: Sequence[HeldOutText],
    write: Callable[[Sequence[list[int]]], list[list[int]]],
    folder: Path,
) -> dict[str, list[Labelled]]:
    """The target's greedy answers by set, read from `folder` where they were written before."""
    result: dict[str, list[Labelled]] = {}
    for name in dict.fromkeys(text.set for text in texts):
        file = folder / f"{name}.safetensors"
        if not file.exists():
            chosen = [text for text in texts if text.set == name]
            answers = write([text.tokens for text in chosen])
            writer = ShardWriter(folder, f"part-{name}", ONE_SHARD)
            for text, answer in zip(chosen, answers, strict=True):
                writer.add(unlabelled([*text.tokens, *answer], text.kind, len(answer)))
            writer.flush()
            next(folder.glob(f"part-{name}-*.safetensors")).rename(file)
        result[name] = list(read_shard(file))
    return result


def greedy_writer(
    model: TargetModel | BatchWriter, end: int | None, limit: int, stop: Callable[[], bool]
) -> Callable[[Sequence[list[int]]], list[list[int]]]:
    """What answers held-out texts, greedily."""
    if isinstance(model, TargetModel):
        return lambda texts: greedy_continuations(model, texts, end, limit, stop)
    return lambda texts: [
        answer
        for at in range(0, len(texts), 8)
        for answer in model.write(texts[at : at + 8], limit, 0.0, 0, stop)
    ]
