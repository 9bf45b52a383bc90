"""What a model's files declare of its text: which tokens end it, its chat templates, how they would have it sampled.

Both engines read it here, so that a model has the same ends in both. End tokens are spread over many places and no
program reads them all: the union counts. A token that only its text gives away is an end where llama.cpp takes it for
one (its src/llama-vocab.cpp, special_eog_ids).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specview import reading
from specview.decoding.interfaces import Declared, End
from specview.engines import templates
from specview.engines.gguf_file import GgufFile
from specview.errors import SpecviewError

BY_TEXT = "known by its text"

_END_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
})  # fmt: skip
_FILL_IN_TEXTS: Mapping[str, frozenset[str]] = {
    "fim_pad": frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    "fim_rep": frozenset({"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}),
    "fim_sep": frozenset({"<|file_sep|>"}),
}
"""Tokens of filling in code that end a text, by what GGUF metadata calls them; known by text where it does not."""
_INNER_ENDS = (
    # what makes the last one an end of parts of an answer only
    ({"<|return|>"}, {"<|call|>", "<|calls|>"}, "<|end|>"),
    ({"<|flush|>"}, {"<|call|>", "<|calls|>"}, "<|end|>"),
    ({"<|tool_response>"}, {"<|tool_response>"}, "</s>"),
)

_NEUTRAL: Mapping[str, Any] = {
    "repetition_penalty": 1, "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "suppress_tokens": [],
    "begin_suppress_tokens": [], "bad_words_ids": [], "sequence_bias": {}, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "guidance_scale": 1, "num_beams": 1,
    "penalty_alpha": 0, "watermarking_config": None, "stop_strings": [],
}  # fmt: skip
"""What generation_config.json may ask of every token, with the value that asks nothing."""
_ADVICE: Mapping[str, Any] = {
    "do_sample": False, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "top_h": None, "typical_p": 1,
    "epsilon_cutoff": 0, "eta_cutoff": 0,
}  # fmt: skip
"""How it would have tokens sampled."""
_GGUF_NEUTRAL: Mapping[str, Any] = {"penalty_repeat": 1, "mirostat": 0, "xtc_probability": 0}
_GGUF_ADVICE: Mapping[str, Any] = {"temp": 1, "top_k": 0, "top_p": 1, "min_p": 0}


def of_gguf(gguf: GgufFile, *, adds_bos: bool) -> Declared:
    """Return what a GGUF file's metadata declare; adds_bos: whether a raw prompt begins with BOS."""
    metadata = gguf.metadata
    tokens: Sequence[str] = metadata.get("tokenizer.ggml.tokens") or ()
    named: list[tuple[int, str]] = []
    by_text = set(_END_TEXTS)
    special: dict[str, str] = {}
    for name in ("bos", "eos", "eot", "eom", *_FILL_IN_TEXTS):
        key = f"tokenizer.ggml.{name}_token_id"
        token = metadata.get(key)
        if not (isinstance(token, int) and 0 <= token < len(tokens)):
            by_text |= _FILL_IN_TEXTS.get(name, frozenset())
            continue
        special[name] = tokens[token]
        if name != "bos":
            named.append((token, key))
    named += [(token, BY_TEXT) for token, text in enumerate(tokens) if text in by_text]
    asked = {key: metadata.get(f"general.sampling.{key}") for key in (*_GGUF_NEUTRAL, *_GGUF_ADVICE)}
    suppressed = {"suppress_tokens": metadata.get("tokenizer.ggml.suppress_tokens")}
    found = _gguf_templates(metadata)
    return Declared(
        _union(named, lambda token: tokens[token]),
        found,
        _left_out({**asked, **suppressed}, {**_GGUF_NEUTRAL, "suppress_tokens": []}, _GGUF_ADVICE, "the GGUF file"),
        _bos_note(found, special.get("bos"), special.get("eos"), adds_bos),
    )


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    found = {name.removeprefix(f"{key}."): text for name, text in metadata.items() if name.startswith(f"{key}.")}
    return _only_texts({templates.DEFAULT: metadata.get(key)} | found)


def of_folder(
    folder: Path,
    config: Mapping[str, Any],
    *,
    id_of: Callable[[str], int | None],
    text_of: Callable[[int], str | None],
    added: Mapping[str, int],
    bos_token: str | None,
    eos_token: str | None,
    adds_bos: bool,
) -> Declared:
    """Return what a model folder declares.

    id_of and text_of are its tokenizer's, added the tokens outside its vocabulary proper; adds_bos: whether a raw
    prompt begins with BOS. Raises SpecviewError for a file that is there and cannot be read.
    """
    generation = read_json(folder / "generation_config.json")
    settings = read_json(folder / "tokenizer_config.json")
    nested = config.get("text_config")
    named: list[tuple[int, str]] = []
    for source, values in (
        ("generation_config.json", generation),
        ("config.json", config),
        ("config.json", nested if isinstance(nested, Mapping) else {}),
    ):
        named += [(token, source) for token in _ids(values.get("eos_token_id"))]
    for source in ("tokenizer_config.json", "special_tokens_map.json"):
        text = token_content((settings if source.startswith("tok") else read_json(folder / source)).get("eos_token"))
        token = None if text is None else id_of(text)
        if token is not None:
            named.append((token, source))
    by_text = _END_TEXTS.union(*_FILL_IN_TEXTS.values())
    named += [(token, BY_TEXT) for text, token in added.items() if text in by_text]
    source, asked = ("generation_config.json", generation) if generation else ("config.json", config)
    found = folder_templates(folder, settings)
    return Declared(
        _union(named, text_of),
        found,
        _left_out(asked, _NEUTRAL, _ADVICE, source),
        _bos_note(found, bos_token, eos_token, adds_bos),
    )


def folder_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a folder's chat templates by name, as transformers finds them; settings: its tokenizer_config.json."""
    files = {templates.DEFAULT: folder / "chat_template.jinja"}
    files |= {path.name.removesuffix(".jinja"): path for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    found = {name: text for name, path in files.items() if (text := _read(reading.read_text, path)) is not None}
    if found:
        return found
    stored = settings.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(stored, list):
        named = [item for item in stored if isinstance(item, Mapping) and isinstance(item.get("name"), str)]
        stored = {item["name"]: item.get("template") for item in named}
    return _only_texts(stored if isinstance(stored, Mapping) else {templates.DEFAULT: stored})


def _bos_note(named: Mapping[str, str], bos_token: str | None, eos_token: str | None, adds_bos: bool) -> str:
    """Say where a raw prompt begins with BOS and a chat does not."""
    template = named.get(templates.DEFAULT)
    if not (adds_bos and bos_token and template):
        return ""
    try:
        chat = templates.render_chat_text(template, [{"role": "user", "content": "a"}], bos_token, eos_token)
    except (SpecviewError, templates.TemplateRefusal):
        return ""
    if chat.startswith(bos_token):
        return ""
    return f"A raw prompt begins with {bos_token}, a chat does not: the model's chat template writes none."


def token_content(token: Any) -> str | None:
    """The text of a special token as tokenizer_config.json writes it, a string or an object."""
    value = token.get("content") if isinstance(token, Mapping) else token
    return value if isinstance(value, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """Read one of a model's JSON files; {} where there is none. Raises SpecviewError for one that cannot be read."""
    value = _read(reading.read_json, path)
    return value if isinstance(value, dict) else {}


def _read(read: Callable[[Path], Any], path: Path) -> Any:
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SpecviewError(f"{path} cannot be read ({error}).", "Download it again.") from None


def _union(named: Iterable[tuple[int, str]], text_of: Callable[[int], str | None]) -> tuple[End, ...]:
    sources: dict[int, dict[str, None]] = {}
    for token, source in named:
        sources.setdefault(token, {})[source] = None
    ends = [End(token, text_of(token) or "", tuple(found)) for token, found in sorted(sources.items())]
    texts = {end.text for end in ends}
    inner = {text for first, second, text in _INNER_ENDS if first & texts and second & texts}
    return tuple(end for end in ends if end.text not in inner)


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 31]


def _only_texts(found: Mapping[Any, Any]) -> dict[str, str]:
    return {name: text for name, text in found.items() if isinstance(name, str) and isinstance(text, str) and text}


def _left_out(asked: Mapping[str, Any], rules: Mapping[str, Any], advice: Mapping[str, Any], source: str) -> str:
    """Say what a model's files ask of sampling; no lane does it, for all must decode alike."""
    parts = []
    found = [f"{key} {_short(asked[key])}" for key, value in rules.items() if asked.get(key) not in (None, value)]
    if found:
        parts.append(f"Left out in every lane: {', '.join(found)} of {source}.")
    found = [f"{key} {_short(asked[key])}" for key, value in advice.items() if asked.get(key) not in (None, value)]
    if found:
        parts.append(f"Recommended by {source} and not taken, for the run's own settings count: {', '.join(found)}.")
    return " ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 53):
        return f"{value:.6g}"
    try:
        return f"({len(value)} of them)"
    except TypeError:
        return "(set)"
