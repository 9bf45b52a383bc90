"""Real text as training sequences without labels; some of it teaches copying.

Labels cost a pass of the target per token, plain text costs nothing. A part is built as `a b a`: the
second `a` can only be predicted by looking back, which is what editing code and quoting ask for.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from specview.training.corpus import Corpus
from specview.training.shards import Labelled, ShardWriter

COPY_SHARE = 0.4
PIECE_TOKENS = (24, 96)
LONGEST = 320


def write_plain(corpus: Corpus, tokenizer: Any, output: ShardWriter, tokens: int, seed: int) -> int:
    """Write about `tokens` tokens of plain sequences; returns how many were written."""
    rng = random.Random(seed)
    texts = [*corpus.passages, *corpus.paragraphs]
    rng.shuffle(texts)
    count = 0
    earlier: list[int] = []
    for text in texts:
        if count >= tokens:
            break
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"][:LONGEST]
        if len(ids) < 64:
            continue
        written = len(ids) - 1
        kind = "plain"
        if earlier and rng.random() < COPY_SHARE:
            length = rng.randint(*PIECE_TOKENS)
            start = rng.randrange(max(1, len(ids) - length))
            piece = ids[start : start + length]
            between = earlier[: rng.randint(8, 120)]
            earlier = ids
            ids = [*piece, *between, *piece]
            # The first tokens of the second piece cannot be known to be its beginning.
            written, kind = len(piece) - 2, "copy"
        else:
            earlier = ids
        output.add(Labelled(torch.tensor(ids), None, None, kind, written))
        count += len(ids)
    output.flush()
    return count
