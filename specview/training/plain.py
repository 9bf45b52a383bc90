"""Real text as training sequences without labels, most of it arranged to teach copying.

Labels cost a pass of the target per token, plain text costs nothing. Editing code, quoting and
repeating ask a drafter to look back for what it is in the middle of and to go on as the text did
there. A tiny model does not learn that from a few hundred thousand tokens of answers (the first
weights gave 16% of a repeated text's tokens, fewer than of new text), so most sequences here are
`a b a`, where the second `a` can be told from the first; in part of them the tokens of `a` are
shuffled, so that nothing else tells. Half of the copies stand in a chat: without those, copying was
learnt outside chats and half of it was missing inside.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from specview.training.chat import ChatLayout
from specview.training.corpus import Corpus
from specview.training.shards import Labelled, unlabelled

# Shares of the sequences; the rest is text as it stands.
COPY_KINDS = ("copy", "shuffled-copy", "framed-copy")
COPY_SHARE, SHUFFLED_SHARE = 0.5, 0.35
FRAMED_SHARE = 0.5  # of the copies
PIECE_TOKENS, BETWEEN_TOKENS = (12, 72), (0, 100)
LONGEST = 256


def tokenized(corpus: Corpus, tokenizer: Any, seed: int) -> Iterator[list[int]]:
    """The corpus's passages and paragraphs as token ids, in random order."""
    texts = [*corpus.passages, *corpus.paragraphs]
    random.Random(seed).shuffle(texts)
    for text in texts:
        yield tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def plain_sequences(
    texts: Iterable[list[int]], layout: ChatLayout | None, tokens: int, seed: int
) -> Iterator[Labelled]:
    """About `tokens` tokens of sequences of the kind `plain` and of COPY_KINDS.

    With a layout, half of the copies are framed: the first piece is in the user turn, whose beginning
    is `layout.before`, and the second is the answer.
    """
    rng = random.Random(seed)
    count = 0
    earlier: list[int] = []
    for ids in texts:
        if count >= tokens:
            break
        if len(ids) < 64:
            continue
        share = rng.random()
        if share < COPY_SHARE + SHUFFLED_SHARE and earlier:
            length = rng.randint(*PIECE_TOKENS)
            start = rng.randrange(max(1, len(ids) - length))
            piece = ids[start : start + length]
            kind = "copy"
            if share < SHUFFLED_SHARE:
                piece, kind = rng.sample(ids, min(length, len(ids))), "shuffled-copy"
            between = earlier[: rng.randint(*BETWEEN_TOKENS)]
            sequence = [*piece, *between, *piece]
            if layout and rng.random() < FRAMED_SHARE:
                sequence, kind = [*layout.before, *piece, *between, *layout.between, *piece], "framed-copy"
            # Where the second piece begins cannot be known: its first two tokens carry no loss.
            written = len(piece) - 2
        else:
            sequence, kind = ids[:LONGEST], "plain"
            written = len(sequence) - 1
        earlier = ids
        count += len(sequence)
        yield unlabelled(sequence, kind, written)
