"""What can be wrong with a GGUF file that its header's form allows: each as a change of the tiny Llama."""

from __future__ import annotations

import math

import numpy as np

from tests.models.crafted_gguf import (
    BOOL,
    EMBD,
    F16_TENSOR,
    F32,
    F32_TENSOR,
    FFN,
    HEADS,
    I32,
    LAYERS,
    LIST,
    Q4_1_TENSOR,
    TEXT,
    U32,
    U64,
    VOCAB,
    WIDTH,
    Crafted,
    pairs,
    tensors,
    text,
)  # fmt: skip


def _pairs(**changes: object) -> Crafted:
    return Crafted(metadata=pairs(**changes))  # type: ignore[arg-type]


def _tensors(**changes: object) -> Crafted:
    return Crafted(tensors=tensors(**changes))  # type: ignore[arg-type]


def _filled(which: str, value: float) -> Crafted:
    return Crafted(fill=lambda name, values: np.full_like(values, value) if name.endswith(which) else values)


MUTATIONS: dict[str, Crafted] = {
    # sizes
    **{
        f"{key} {value}": _pairs(**{f"llama__{key}": (U32, value)})
        for key in ("attention__head_count", "attention__head_count_kv", "attention__key_length", "attention__value_length",
                    "rope__dimension_count", "embedding_length", "feed_forward_length", "block_count", "expert_count",
                    "expert_used_count", "context_length", "vocab_size")
        for value in (0, 1, 3, 7, 17, 1000, 600_000, 2**31, 2**32 - 1)
    },
    "experts": _pairs(llama__expert_count=(U32, 8), llama__expert_used_count=(U32, 2)),
    "more experts used than there are": _pairs(llama__expert_count=(U32, 2), llama__expert_used_count=(U32, 8)),
    "too many experts": _pairs(llama__expert_count=(U32, 10**6), llama__expert_used_count=(U32, 1)),
    "heads by layer": _pairs(llama__attention__head_count=(LIST, (U32, [4, 2]))),
    "heads by one layer": _pairs(llama__attention__head_count=(LIST, (U32, [4]))),
    "no heads by layer": _pairs(llama__attention__head_count_kv=(LIST, (U32, []))),
    "heads by layer, none": _pairs(llama__attention__head_count_kv=(LIST, (U32, [0, 2]))),
    # kinds
    **{
        f"{key} as a text": _pairs(**{key: (TEXT, "many")})
        for key in ("llama__block_count", "llama__expert_count", "llama__context_length", "general__alignment",
                    "llama__rope__freq_base", "tokenizer__ggml__bos_token_id", "tokenizer__ggml__tokens", "split__count")
    },
    "architecture as a number": _pairs(general__architecture=(U32, 7)),
    "architecture unknown": _pairs(general__architecture=(TEXT, "no\x1b[31msuch")),
    "architecture missing": _pairs(general__architecture=None),
    "architecture of another kind": _pairs(general__architecture=(TEXT, "mamba")),
    "epsilon missing": _pairs(llama__attention__layer_norm_rms_epsilon=None),
    **{
        f"epsilon {value}": _pairs(llama__attention__layer_norm_rms_epsilon=(F32, value))
        for value in (0.0, -1.0, math.nan, math.inf)
    },
    **{f"freq_base {value}": _pairs(llama__rope__freq_base=(F32, value)) for value in (0.0, -1.0, math.nan, math.inf)},
    **{
        f"rope scaling {kind} {factor}": _pairs(
            llama__rope__scaling__type=(TEXT, kind), llama__rope__scaling__factor=(F32, factor)
        )
        for kind in ("linear", "yarn", "longrope", "strange") for factor in (0.0, math.nan, 4.0)
    },
    "sliding window": _pairs(llama__attention__sliding_window=(U32, 0)),
    "nextn": _pairs(llama__nextn_predict_layers=(U32, 1)),
    "nextn of all": _pairs(llama__nextn_predict_layers=(U32, 5)),
    "not causal": _pairs(llama__attention__causal=(BOOL, False)),
    "pooling": _pairs(llama__pooling_type=(U32, 99)),
    # the vocabulary
    **{f"tokenizer {kind}": _pairs(tokenizer__ggml__model=(TEXT, kind))
       for kind in ("llama", "bert", "t5", "rwkv", "plamo2", "none", "no_vocab", "strange", "")},
    "pre strange": _pairs(tokenizer__ggml__pre=(TEXT, "strange")),
    "pre missing": _pairs(tokenizer__ggml__pre=None),
    "tokens missing": _pairs(tokenizer__ggml__tokens=None),
    "tokens none": _pairs(tokenizer__ggml__tokens=(LIST, (TEXT, []))),
    "tokens one": _pairs(tokenizer__ggml__tokens=(LIST, (TEXT, ["a"]))),
    "tokens twice": _pairs(tokenizer__ggml__tokens=(LIST, (TEXT, ["a"] * VOCAB))),
    "tokens empty": _pairs(tokenizer__ggml__tokens=(LIST, (TEXT, [""] * VOCAB))),
    "tokens no text": _pairs(tokenizer__ggml__tokens=(LIST, (TEXT, [b"\xff\xfe" + bytes([n % 256]) for n in range(VOCAB)]))),
    "tokens numbers": _pairs(tokenizer__ggml__tokens=(LIST, (U32, list(range(VOCAB))))),
    "tokens more": _pairs(tokenizer__ggml__tokens=(LIST, (TEXT, [f"t{n}" for n in range(1000)]))),
    "tokens fewer": _pairs(tokenizer__ggml__tokens=(LIST, (TEXT, [f"t{n}" for n in range(200)]))),
    "types missing": _pairs(tokenizer__ggml__token_type=None),
    "types fewer": _pairs(tokenizer__ggml__token_type=(LIST, (I32, [1] * 3))),
    "types strange": _pairs(tokenizer__ggml__token_type=(LIST, (I32, [99] * VOCAB))),
    "types texts": _pairs(tokenizer__ggml__token_type=(LIST, (TEXT, ["a"] * VOCAB))),
    "all bytes": _pairs(tokenizer__ggml__token_type=(LIST, (I32, [6] * VOCAB))),
    "sentencepiece without bytes": _pairs(tokenizer__ggml__model=(TEXT, "llama"), tokenizer__ggml__scores=(LIST, (F32, [0.0] * VOCAB))),
    "scores fewer": _pairs(tokenizer__ggml__model=(TEXT, "llama"), tokenizer__ggml__scores=(LIST, (F32, [0.0] * 3))),
    "scores nan": _pairs(tokenizer__ggml__model=(TEXT, "llama"), tokenizer__ggml__scores=(LIST, (F32, [math.nan] * VOCAB))),
    "merges missing": _pairs(tokenizer__ggml__merges=None),
    "merges no space": _pairs(tokenizer__ggml__merges=(LIST, (TEXT, ["ab", "", " "]))),
    "merges spaces": _pairs(tokenizer__ggml__merges=(LIST, (TEXT, ["a b c", " a b", "a  b"]))),
    "merges unknown": _pairs(tokenizer__ggml__merges=(LIST, (TEXT, ["no such"]))),
    "merges numbers": _pairs(tokenizer__ggml__merges=(LIST, (U32, [1, 2]))),
    "bos beyond": _pairs(tokenizer__ggml__bos_token_id=(U32, 10**6)),
    "eos beyond": _pairs(tokenizer__ggml__eos_token_id=(U32, 2**32 - 1)),
    "eos negative": _pairs(tokenizer__ggml__eos_token_id=(I32, -1)),
    "add bos without bos": _pairs(tokenizer__ggml__add_bos_token=(BOOL, True), tokenizer__ggml__bos_token_id=None),
    "add eos without eos": _pairs(tokenizer__ggml__add_eos_token=(BOOL, True), tokenizer__ggml__eos_token_id=(U32, 10**6)),
    "template strange": _pairs(tokenizer__chat_template=(TEXT, "{% for")),
    # tensors
    "no tensors": Crafted(tensors={}),
    **{f"{name} missing": _tensors(**{name: None})
       for name in ("token_embd__weight", "output_norm__weight", "blk__1__attn_q__weight", "blk__0__ffn_down__weight")},
    "embedding of fewer rows": _tensors(token_embd__weight=((VOCAB - 60, EMBD), F32_TENSOR)),
    "embedding turned": _tensors(token_embd__weight=((EMBD, VOCAB), F32_TENSOR)),
    "embedding flat": _tensors(token_embd__weight=((VOCAB * EMBD,), F32_TENSOR)),
    "embedding of four dimensions": _tensors(token_embd__weight=((2, 2, VOCAB // 4, EMBD), F32_TENSOR)),
    "queries too wide": _tensors(blk__0__attn_q__weight=((2 * EMBD, EMBD), F32_TENSOR)),
    "keys too wide": _tensors(blk__0__attn_k__weight=((EMBD, EMBD), F32_TENSOR)),
    "norm of one": _tensors(output_norm__weight=((1,), F32_TENSOR)),
    "norm of none": _tensors(output_norm__weight=((0,), F32_TENSOR)),
    "down of none": _tensors(blk__0__ffn_down__weight=((EMBD, 0), F32_TENSOR)),
    "scalar": _tensors(output_norm__weight=((), F32_TENSOR)),
    "norm in halves": _tensors(output_norm__weight=((EMBD,), F16_TENSOR)),
    "norm in blocks": _tensors(output_norm__weight=((EMBD,), Q4_1_TENSOR)),
    "inner norm in blocks": _tensors(blk__0__attn_norm__weight=((EMBD,), Q4_1_TENSOR)),
    "weights in blocks": _tensors(blk__0__attn_q__weight=((EMBD, EMBD), Q4_1_TENSOR)),
    **{f"embedding of type {kind}": _tensors(token_embd__weight=((VOCAB, EMBD), kind))
       for kind in (2, 8, 10, 16, 24, 26, 27, 28, 30, 34, 39, 40, 41, 99, 2**31)},
    **{f"queries of type {kind}": _tensors(blk__0__attn_q__weight=((EMBD, EMBD), kind))
       for kind in (24, 25, 26, 27, 28, 31, 34)},
    **{f"norm of type {kind}": _tensors(output_norm__weight=((EMBD,), kind)) for kind in (8, 24, 26, 27, 28, 30)},
    "bias": _tensors(blk__0__attn_q__bias=((EMBD,), F32_TENSOR)),
    "bias too long": _tensors(blk__0__attn_q__bias=((EMBD + 1,), F32_TENSOR)),
    "rope factors": _tensors(rope_freqs__weight=((WIDTH // 2,), F32_TENSOR)),
    "rope factors too few": _tensors(rope_freqs__weight=((2,), F32_TENSOR)),
    "rope factors zero": Crafted(
        tensors=tensors(rope_freqs__weight=((WIDTH // 2,), F32_TENSOR)),
        fill=lambda name, values: values * 0 if name.startswith("rope") else values,
    ),
    "a layer more": _tensors(blk__2__attn_norm__weight=((EMBD,), F32_TENSOR)),
    "unknown tensor": _tensors(strange__weight=((EMBD,), F32_TENSOR)),
    "a name too long": _tensors(**{"a" * 100: ((EMBD,), F32_TENSOR)}),
    "a name of nothing": _tensors(**{"": ((EMBD,), F32_TENSOR)}),
    "a name twice": Crafted(
        tensor_count=len(tensors()) + 1,
        more_tensors=text("output_norm.weight") + b"\1\0\0\0" + EMBD.to_bytes(8, "little") + bytes(12),
    ),
    "a key twice": Crafted(
        pair_count=len(pairs()) + 1, more_pairs=text("llama.block_count") + bytes([4, 0, 0, 0, 1, 0, 0, 0])
    ),
    "tensors that overlap": Crafted(offsets=lambda name, offset: 0),
    "tensors in disorder": Crafted(offsets=lambda name, offset: offset + 4),
    "tensors beyond the end": Crafted(offsets=lambda name, offset: 2**62),
    # numbers
    "weights nan": _filled("attn_q.weight", math.nan), "weights infinite": _filled("ffn_up.weight", math.inf),
    "weights huge": _filled("ffn_down.weight", 3e38), "embedding nan": _filled("token_embd.weight", math.nan),
    "norms zero": _filled("norm.weight", 0.0),
    # alignment
    **{f"alignment {value}": Crafted(metadata=pairs(general__alignment=(U32, value)), alignment=value)
       for value in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 4096)},
    **{f"alignment said {said} laid {laid}": Crafted(metadata=pairs(general__alignment=(U32, said)), alignment=laid)
       for said, laid in ((24, 32), (64, 32), (16, 32), (32, 16), (128, 64))},
    "alignment 0": _pairs(general__alignment=(U32, 0)),
    "alignment of 64 bits": _pairs(general__alignment=(U64, 32)),
    "alignment huge": _pairs(general__alignment=(U32, 2**31)),
    "trailing": Crafted(trailing=b"\xff" * 1000),
    # parts
    "split of two": _pairs(split__count=(U32, 2), split__no=(U32, 0)),
    "split of many": _pairs(split__count=(U32, 2_000_000), split__no=(U32, 0)),
    "layers and heads": _pairs(llama__block_count=(U32, LAYERS - 1), llama__attention__head_count=(U32, HEADS * 2)),
    "inner too small": _pairs(llama__feed_forward_length=(U32, FFN // 2)),
}  # fmt: skip
GOOD = (
    "trailing", "rope factors", "bias", "weights in blocks", *(f"alignment {value}" for value in (1, 2, 4, 8, 16, 32, 64, 128)),
)
"""Changes that leave a sound model."""
