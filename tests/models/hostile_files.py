"""A hundred files and folders that nobody wishes well by: each is made by a function that is given an empty folder."""

from __future__ import annotations

import json
import math
import os
import pickle
import socket
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specview.files.schema import TRACE_SCHEMA
from tests.models.crafted_gguf import (
    EMBD,
    F32,
    F32_TENSOR,
    LIST,
    TEXT,
    U32,
    U64,
    Crafted,
    pairs,
    tensors,
    text,
)
from tests.models.gguf_mutations import MUTATIONS

Make = Callable[[Path], Path]
CASES: dict[str, Make] = {}
"""Name -> what makes it; the path that it returns is what a user would name or drop."""
MB, GB, TB = 1 << 20, 1 << 30, 1 << 40
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "hidden_act": "silu",
}  # fmt: skip
TOKENIZER = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
    "model": {"type": "BPE", "vocab": {chr(97 + n): n for n in range(16)}, "merges": []},
}  # fmt: skip
DEEP = b"[" * 100_000
WIDE_LISTS, WIDE_MAPS = b"[" + b"[]," * (5 * MB) + b"0]", b"[" + b'{"":0},' * (2 * MB) + b"0]"
ESCAPES = "\x1b]0;gone\x07\x1b[2J\x9b31m<img src=x onerror=1>\r\n\0"


def add(name: str, make: Make) -> None:
    """Note a case."""
    assert name not in CASES
    CASES[name] = make


def sparse(path: Path, size: int, start: bytes = b"", end: bytes = b"") -> Path:
    """A file of so many bytes that takes none on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
        file.seek(size - len(end))
        file.write(end)
    return path


def pipe(path: Path) -> Path:
    """A named pipe that nobody writes to."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def device(path: Path, target: str = "/dev/zero") -> Path:
    """A link to a device that gives bytes without end."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return path


def loop(path: Path) -> Path:
    """A link that leads to itself."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)
    return path


def instead(path: Path) -> Path:
    """A folder where a file is looked for."""
    path.unlink(missing_ok=True)
    path.mkdir()
    return path


STRANGE: dict[str, Callable[[Path], Path]] = {
    "pipe": pipe, "device": device, "loop": loop, "folder": instead, "sparse": lambda path: sparse(path, 4 * GB),
}  # fmt: skip


# -- GGUF ------------------------------------------------------------------------------------------------


def gguf(name: str, content: Crafted | Callable[[], bytes], size: int = 0) -> None:
    """A GGUF file; size, where given, is how long it is made by bytes that are not there."""

    def make(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(content.bytes() if isinstance(content, Crafted) else content())
        if size:
            os.truncate(path, size)
        return path

    add(f"gguf: {name}", make)


def head(version: int = 3, tensor_count: int = 0, pair_count: int = 0) -> bytes:
    """The beginning of a GGUF file."""
    return struct.pack("<4sIQQ", b"GGUF", version, tensor_count, pair_count)


def rope(width: int, rows: int = 4) -> Crafted:
    """A Llama 3 with attention heads of such a width."""
    made = pairs(llama__attention__key_length=(U32, width), llama__rope__freq_base=(F32, 5e5))
    return Crafted(metadata=made, tensors=tensors(rope_freqs__weight=((rows,), F32_TENSOR)))


gguf("heads of 4e7", rope(40_000_000))
gguf("heads of 1e9", rope(1_000_000_000))
gguf("rope factors of 8 GB", Crafted(tensors=tensors(rope_freqs__weight=((2 * GB,), F32_TENSOR)), data=False), 9 * GB)
gguf("a tensor of a terabyte", Crafted(tensors={**tensors(), "x": ((256 * GB,), F32_TENSOR)}, data=False), 2 * TB)
gguf("2^63 pairs", lambda: head(pair_count=1 << 63))
gguf("2^63 tensors", lambda: head(tensor_count=1 << 63))
gguf("300,000 pairs", lambda: head(pair_count=300_000) + b"".join(
    text(f"k{n}") + struct.pack("<II", U32, n) for n in range(300_000)))
gguf("300,000 tensors", lambda: head(tensor_count=300_000) + b"".join(
    text(f"t{n}") + struct.pack("<IQIQ", 1, 0, 0, 0) for n in range(300_000)))
gguf("a key of 2^63", lambda: head(pair_count=1) + struct.pack("<Q", 1 << 63))
gguf("a list of 2^40", lambda: head(pair_count=1) + text("x") + struct.pack("<IIQ", LIST, 0, 1 << 40))
gguf("a list of 2^62 texts", lambda: head(pair_count=1) + text("x") + struct.pack("<IIQ", LIST, TEXT, 1 << 62))
gguf("a list of 2^30 in 2 GB", lambda: head(pair_count=1) + text("x") + struct.pack("<IIQ", LIST, 0, 1 << 30), 2 * GB)
gguf("a text of 1 GB", lambda: head(pair_count=1) + text("x") + struct.pack("<IQ", TEXT, 1 << 30), 2 * GB)
gguf("lists in lists", lambda: head(pair_count=1) + text("x") + struct.pack("<IIQ", LIST, LIST, 1) * 1000)
gguf("a million tokens", lambda: Crafted(metadata=pairs(
    tokenizer__ggml__tokens=(LIST, (TEXT, [f"{n:x}" for n in range(1 << 20)])))).bytes())
gguf("500,000 lists of short texts", lambda: head(pair_count=1000) + b"".join(
    text(f"k{n}") + struct.pack("<IIQ", LIST, TEXT, 500) + text("ab") * 500 for n in range(1000)))
gguf("an architecture of 20 MB", lambda: Crafted(metadata=pairs(general__architecture=(TEXT, "a" * (20 * MB)))).bytes())
gguf("a template of 20 MB", lambda: Crafted(metadata=pairs(tokenizer__chat_template=(TEXT, "{" * (20 * MB)))).bytes())
gguf("escapes", Crafted(metadata=pairs(general__architecture=(TEXT, ESCAPES), general__name=(TEXT, ESCAPES))))
gguf("escapes in a tensor's name", Crafted(tensors=tensors(**{ESCAPES: ((EMBD,), F32_TENSOR)})))
gguf("expert_count as a text", MUTATIONS["llama__expert_count as a text"])
gguf("the split by a list", Crafted(metadata=pairs(tokenizer__ggml__pre=(LIST, (TEXT, ["a"])))))
gguf("tokens as a number", Crafted(metadata=pairs(tokenizer__ggml__tokens=(U32, 7))))
gguf("a context of 2^64", Crafted(metadata=pairs(llama__context_length=(U64, 2**64 - 1))))
gguf("a sound one cut", lambda: Crafted().bytes()[:-1000])
gguf("nothing", lambda: b"")
gguf("its first letters", lambda: b"GGUF")
for _name in ("block_count 4294967295", "attention__head_count 0", "embedding_length 0", "tokens no text", "tokens twice",
              "split of many", "alignment huge", "alignment 24", "a name twice", "a key twice", "tensors beyond the end",
              "scalar", "types texts", "epsilon nan", "rope factors zero", "queries of type 26", "no tensors",
              "heads by layer", "architecture as a number", "embedding of four dimensions"):  # fmt: skip
    gguf(_name, MUTATIONS[_name])
for _kind, _strange in STRANGE.items():
    add(f"gguf: {_kind}", lambda folder, strange=_strange: strange(folder / "model.gguf"))


# -- model folders ----------------------------------------------------------------------------------------


def safetensors(entries: dict[str, Any] | bytes, data: int = 0) -> bytes:
    """A safetensors file with such a header."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + bytes(data)


def model(folder: Path) -> Path:
    """A folder that looks like a small model."""
    made = folder / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(MODEL))
    (made / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    entry = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    (made / "model.safetensors").write_bytes(safetensors({"w": entry}, 64))
    return made


def part(file: str, name: str, content: bytes | Callable[[Path], object] | dict[str, Any]) -> None:
    """A model's folder with one file in it changed: to this content, to a dict as JSON, or by a function."""

    def make(folder: Path) -> Path:
        made = model(folder)
        if isinstance(content, dict):
            (made / file).write_text(json.dumps(content))
        elif isinstance(content, bytes):
            (made / file).write_bytes(content)
        else:
            content(made / file)
        return made

    add(f"{file}: {name}", make)


part("config.json", "100,000 brackets", DEEP)
part("config.json", "100,000 maps", b'{"a":' * 100_000)
part("config.json", "lists by the million", WIDE_LISTS)
part("config.json", "maps by the million", b'{"model_type": "llama", "x": ' + WIDE_MAPS + b"}")
part("config.json", "a number of a million digits", b'{"vocab_size": ' + b"9" * MB + b"}")
part("config.json", "no numbers", b'{"model_type": "llama", "hidden_size": NaN, "vocab_size": Infinity, "n_ctx": -Infinity}')
part("config.json", "a mark and sense", b"\xef\xbb\xbf" + json.dumps(MODEL).encode())
part("config.json", "UTF-16", json.dumps(MODEL).encode("utf-16"))
part("config.json", "no text", b'{"model_type": "\xff\xfe"}')
part("config.json", "nothing", b"")
part("config.json", "a list", b"[1, 2]")
part("config.json", "escapes", {**MODEL, "model_type": ESCAPES})
part("config.json", "a type of 10 MB", {**MODEL, "model_type": "x" * (10 * MB)})
part("config.json", "a type that is a list", {**MODEL, "model_type": [["llama"]]})
part("config.json", "text_config that is a list", {**MODEL, "text_config": [1], "layer_types": {"a": 1}})
part("config.json", "sizes without end", {**MODEL, "hidden_size": 1 << 63, "vocab_size": 10**30, "num_hidden_layers": 10**12})
part("config.json", "sizes of other kinds", {**MODEL, "hidden_size": "8", "num_hidden_layers": -1, "num_attention_heads": 0})
part("config.json", "ends by the million", {**MODEL, "eos_token_id": list(range(500_000))})
part("config.json", "code of its own", {**MODEL, "auto_map": {"AutoConfig": "../../evil.Evil"}})
part("model.safetensors", "a header of 2^63", struct.pack("<Q", 1 << 63) + b"{}")
part("model.safetensors", "a header of 15 MB", safetensors(WIDE_LISTS))
part("model.safetensors", "a deep header", safetensors(DEEP))
part("model.safetensors", "tensors without end", safetensors(
    {f"t{n}": {"dtype": "F32", "shape": [], "data_offsets": [0, 0]} for n in range(150_000)}))
part("model.safetensors", "shapes without end", safetensors({"w": {"dtype": "F32", "shape": [1 << 62] * 8, "data_offsets": [0, 4]}}, 4))
part("model.safetensors", "a shape of a million", safetensors({"w": {"dtype": "F32", "shape": [1] * 10**6, "data_offsets": [0, 4]}}, 4))
part("model.safetensors", "a shape below 0", safetensors({"w": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, 4))
part("model.safetensors", "a type that is a map", safetensors({"w": {"dtype": {}, "shape": [1], "data_offsets": [0, 4]}}, 4))
part("model.safetensors", "offsets beyond", safetensors({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 62]}}, 4))
part("model.safetensors", "a terabyte", lambda path: sparse(
    path, TB, safetensors({"w": {"dtype": "F32", "shape": [1 << 37], "data_offsets": [0, 1 << 39]}})))
part("model.safetensors.index.json", "brackets", DEEP)
part("model.safetensors.index.json", "files by the million", {"weight_map": {f"t{n}": f"f{n}" for n in range(200_000)}})
part("model.safetensors.index.json", "files elsewhere", {"weight_map": {"a": "../../../etc/passwd", "b": "/dev/zero", "c": "\0", "d": 7}})
part("tokenizer.json", "brackets", DEEP)
part("tokenizer.json", "lists by the million", b'{"model": {"vocab": ' + WIDE_LISTS + b"}}")
part("tokenizer.json", "merges that do not end", b'{"model": {"merges": [' + b'["a", "b"], ' * (2 * MB) + b'"')
part("tokenizer.json", "ids that are none", {"model": {"vocab": {"a": "x", "b": [1], "c": 1e400, "d": None}}, "added_tokens": 7})
part("tokenizer.json", "a decoder that is none", {**TOKENIZER, "decoder": {"type": "Sequence", "decoders": [7, None, "x"]}})
part("tokenizer_config.json", "brackets", DEEP)
part("tokenizer_config.json", "templates of no names", {"chat_template": [{"name": [1], "template": 7}], "eos_token": [1]})
part("tokenizer_config.json", "a template without end", {"chat_template": "{{ 9**(9**9) }}"})
part("tokenizer_config.json", "a template of 2 GB", {"chat_template": '{{ "x"*2000000000 }}'})
part("generation_config.json", "brackets", DEEP)
part("generation_config.json", "lists by the million", WIDE_LISTS)
part("generation_config.json", "no numbers", b'{"eos_token_id": [NaN, 1e999, "2", -1], "repetition_penalty": Infinity}')
for _file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
              "chat_template.jinja", "special_tokens_map.json", "model.safetensors.index.json"):  # fmt: skip
    part(_file, "pipe", pipe)
for _file, _kind in (("config.json", "device"), ("config.json", "loop"), ("config.json", "folder"), ("config.json", "sparse"),
                     ("tokenizer.json", "sparse"), ("model.safetensors", "device"), ("chat_template.jinja", "sparse"),
                     ("generation_config.json", "device")):  # fmt: skip
    part(_file, _kind, STRANGE[_kind])


# -- heads -------------------------------------------------------------------------------------------------


def medusa(name: str, content: Callable[[Path], object], file: str = "medusa_lm_head.pt", **config: Any) -> None:
    """A folder of Medusa heads, or of what its config says, whose weights file is made by `content`."""

    def make(folder: Path) -> Path:
        made = folder / "head"
        made.mkdir()
        usual = {} if "model_type" in config else {"medusa_num_heads": 1, "hidden_size": 4, "vocab_size": 8}
        (made / "config.json").write_text(json.dumps({**usual, **config}))
        content(made / file)
        return made

    add(f"head: {name}", make)


def archive(outline: bytes, entries: dict[str, bytes] | None = None, packed: bool = False) -> Callable[[Path], object]:
    """A weights file as torch.save writes it, with this outline and these storages."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as made:
            made.writestr("archive/data.pkl", outline)
            for key, data in (entries or {}).items():
                made.writestr(f"archive/data/{key}", data)

    return make


def tensor_outline(numbers: int, shape: str, strides: str, name: bytes = b"0.0.linear.weight", offset: int = 0) -> bytes:
    """The pickle of {name: a tensor in storage 0}; shape and strides as pickle operations."""
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpuJ" + struct.pack("<i", numbers) + b"tQ"
    key = b"X" + struct.pack("<I", len(name)) + name
    return (
        b"\x80\2}" + key + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"J" + struct.pack("<i", offset)
        + shape.encode("latin1") + strides.encode("latin1") + b"\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def ints(*numbers: int) -> str:
    """The pickle operations of a tuple of numbers."""
    return (b"(" + b"".join(b"J" + struct.pack("<i", n) for n in numbers) + b"t").decode("latin1")


def legacy(*pickles: bytes) -> bytes:
    """A file of torch's format before 1.6."""
    first = [pickle.dumps(value, protocol=2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    return b"".join([*first, *pickles])


_VIEW = tensor_outline(100_000_000, ints(4, 4), ints(4, 1))
medusa("a small view on a packed 400 MB", lambda path: archive(_VIEW, {"0": bytes(400 * MB)}, packed=True)(path))
medusa("a packed outline of dicts", lambda path: archive(b"\x80\2(" + b"}" * (60 * MB) + b"t.", packed=True)(path))
medusa("an outline of dicts", lambda path: archive(b"\x80\2(" + b"}" * (8 * MB) + b"t.")(path))
_PAIR = b"]q\0(" + b"K\1K\2\x86" * 5000 + b"e"
medusa("copies of copies", archive(
    b"\x80\2ccollections\nOrderedDict\nq\1" + _PAIR + b"0(" + b"h\1h\0\x85R" * 20_000 + b"t."))
medusa("a shape that is copied", archive(b"\x80\2(" + b"K\1" * 100_000 + b"tq\0" + tensor_outline(1, "h\0", "h\0")[2:]))
medusa("a memo of 2^31", archive(b"\x80\2}r\xff\xff\xff\x7f."))
medusa("a bytearray of 2^62", archive(b"\x80\5\x96" + struct.pack("<Q", 1 << 62)))
medusa("tuples in tuples as a key", archive(b"\x80\2}" + b")" + b"\x85" * 500_000 + b"K\1s."))
medusa("lists in lists", archive(b"\x80\2" + b"]" * 500_000 + b"a" * 499_999 + b"."))
medusa("attributes of a function", archive(b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n}X\4\0\0\0evilK\1sb."))
medusa("a stride of 0", archive(tensor_outline(1, ints(30_000, 30_000), ints(0, 0)), {"0": bytes(4)}))
medusa("a storage larger than the file", archive(_VIEW, {"0": bytes(64)}))
medusa("a view before its storage", archive(tensor_outline(16, ints(4, 4), ints(4, 1), offset=-8), {"0": bytes(64)}))
medusa("a view behind its storage", archive(tensor_outline(16, ints(4, 4), ints(4, 1), offset=8), {"0": bytes(64)}))
medusa("a storage that is missing", archive(tensor_outline(16, ints(4, 4), ints(4, 1))))
medusa("code", archive(b"\x80\2cos\nsystem\nX\x0f\0\0\0touch /tmp/gonetR."))
medusa("code of old", lambda path: path.write_bytes(legacy(b"\x80\2cos\nsystem\n.")))
medusa("an old one of 4 GB", lambda path: sparse(path, 4 * GB, legacy()))
medusa("an old one whose storage lies", lambda path: path.write_bytes(legacy(
    tensor_outline(16, ints(4, 4), ints(4, 1)), pickle.dumps(["0"], protocol=2), struct.pack("<q", 1 << 60))))
medusa("a directory of 4 GB", lambda path: sparse(
    path, 4 * GB, end=struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, 3 * GB, MB, 0)))
medusa("an archive's end alone", lambda path: path.write_bytes(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)))
medusa("blocks by the billion", lambda path: path.write_bytes(safetensors(
    {"blocks.999999999.layers.999999999.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}, 64)),
    "model.safetensors")
medusa("layers by the billion", lambda path: path.write_bytes(safetensors(
    {n: {"dtype": "F32", "shape": [8, 16], "data_offsets": [0, 512]} for n in ("fc.weight", "layers.99999999999.x.weight",
     "layers.0.self_attn.q_proj.weight")}, 512)), "model.safetensors", **{**MODEL, "architectures": ["LlamaForCausalLMEagle"]})
medusa("steps by the billion", lambda path: path.write_bytes(safetensors(
    {"forget_emb.0.weight": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}, 128)), "model.safetensors",
    method="sum_lstm", n_predict=10**9, input_hidden_dim=4)
medusa("a target of no width", lambda path: path.write_bytes(safetensors(
    {n: {"dtype": "F32", "shape": [8, 24], "data_offsets": [0, 768]} for n in ("fc.weight", "midlayer.hidden_norm.weight")}, 768)),
    "model.safetensors", **{**MODEL, "target_hidden_size": 0, "draft_vocab_size": 4})
medusa("a layer of numbers", lambda path: path.write_bytes(safetensors(
    {"layers." + "9" * 5000 + ".x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
     "layers.0.hidden_norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 4)), "model.safetensors", **MODEL)
medusa("a map of 100 million tokens", lambda path: sparse(path, GB, safetensors(
    {"d2t": {"dtype": "I64", "shape": [100_000_000], "data_offsets": [0, 800_000_000]},
     "fc.weight": {"dtype": "F32", "shape": [8, 24], "data_offsets": [0, 768]},
     "midlayer.hidden_norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}})), "model.safetensors",
    **{**MODEL, "draft_vocab_size": 100_000_000})
for _kind in ("pipe", "device", "loop", "folder", "sparse"):
    medusa(_kind, STRANGE[_kind])


# -- traces and prompts ------------------------------------------------------------------------------------


def lines(name: str, content: bytes | Callable[[Path], object]) -> None:
    """A file of JSON lines: a trace, or a set of prompts."""

    def make(folder: Path) -> Path:
        path = folder / "lines.jsonl"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
        return path

    add(f"lines: {name}", make)


def trace(**changes: Any) -> bytes:
    """A trace's first line."""
    lane = {"name": "plain", "method": "plain"}
    head_ = {"schema": TRACE_SCHEMA, "run": {"target": "x", "seed": 1}, "prompt_text": "a", "prompt_ids": [1], "lanes": [lane]}
    return json.dumps({**head_, **changes}).encode() + b"\n"


lines("brackets", DEEP)
lines("a trace with brackets", trace() + DEEP)
lines("a header of lists", b'{"schema": "' + TRACE_SCHEMA.encode() + b'", "run": ' + WIDE_LISTS + b"}\n")
lines("a line of lists", trace() + WIDE_LISTS + b"\n")
lines("a line of 30 MB", trace() + b'{"lane": 0, "x": "' + b"a" * (30 * MB) + b'"}\n')
lines("no end of the first line", b'{"prompt": "' + b"a" * (30 * MB))
lines("lanes by the million", trace(lanes=[{"name": "x"}] * 200_000))
lines("escapes", trace(lanes=[{"name": ESCAPES, "method": ESCAPES}], run={"target": ESCAPES}))
lines("the year 1", trace(run={"recorded_at": "0001-01-01T00:00:00+14:00"}))
lines("after 9999", trace(run={"recorded_at": "99999-01-01"}))
lines("no numbers", trace(prompt_ids=[math.nan, math.inf, 1 << 63, -1]) + b'{"lane": 1e400, "index": NaN}\n')
lines("rounds of 2^63", trace() + b'{"lane": 0, "index": 9223372036854775808, "accepted": 18446744073709551616}\n')
lines("no text", trace() + b"\xff\xfe\xfd\n")
lines("a mark in front", b"\xef\xbb\xbf" + trace())
lines("half characters", b'{"prompt": "\\ud800"}\n')
lines("prompts in brackets", b'{"prompt": ' + DEEP)
lines("a prompt of 3 MB and escapes", json.dumps({"prompt": ESCAPES * 100_000}).encode())
lines("an option that writes", trace(lanes=[{"name": "s", "method": "suffix", "option_store": "../../gone"}]))
for _kind, _strange in STRANGE.items():
    lines(_kind, lambda path, strange=_strange: strange(path))


# -- what is no file, names --------------------------------------------------------------------------------


def _socket(folder: Path) -> Path:
    here = os.open(folder, os.O_RDONLY)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/model.gguf")
    finally:
        os.close(here)
    return folder / "model.gguf"


def _named(name: str | bytes, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        path = Path(os.fsdecode(os.path.join(os.fsencode(folder), os.fsencode(name))))
        path.write_bytes(content)
        return path

    return make


def _dark(folder: Path) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(Crafted().bytes())
    path.chmod(0)
    return path


def _crowd(folder: Path) -> Path:
    crowd = instead(folder / "crowd")
    for number in range(2000):
        (crowd / f"{number}.gguf").symlink_to("0.gguf")
    return crowd


def _pit(folder: Path) -> Path:
    pit = here = instead(folder / "pit")
    for _ in range(60):
        here = instead(here / "d")
    (here / "model.gguf").write_bytes(b"GGUF")
    (pit / "round").symlink_to(pit)
    return pit


add("name: a socket", _socket)
add("name: escapes", _named("\x1b[2J\n<b>.gguf", Crafted(metadata=pairs(llama__expert_count=(TEXT, "x"))).bytes()))
add("name: no text", _named(b"\xff\xfe.gguf", b"GGUF"))
add("name: nobody may read it", _dark)
add("name: a crowd of links in a circle", _crowd)
add("name: deep folders in a circle", _pit)
add("name: a text that is a device", lambda folder: device(folder / "prompt.txt"))
add("name: a text that is a pipe", lambda folder: pipe(folder / "prompt.txt"))
add("name: a text of 4 GB", lambda folder: sparse(folder / "prompt.txt", 4 * GB))
add("name: a text that is none", _named("prompt.txt", b"\xff\xfe\0"))
assert len(CASES) >= 100
