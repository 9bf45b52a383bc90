"""A Hugging Face tokenizer as interfaces.Tokenizer.

A folder whose tokenizer.json says all is read by the `tokenizers` library alone, which starts at once;
for every other one transformers' AutoTokenizer is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from specview.engines.chat import render_chat
from specview.engines.detokenize import ByteDetokenizer
from specview.errors import SpecviewError, UsageError
from specview.reading import parse_json, read_bytes, read_json, read_text

_MAX_TOKENIZER = 48 << 20  # bytes: Gemma 3's tokenizer.json has 33 MB
# Classes that add nothing to what tokenizer.json says (names of transformers 5 and 4).
_PLAIN_CLASSES = frozenset({None, "TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer"})


class TransformersTokenizer:
    """Text to ids and back. Text typed by a user never becomes a special token."""

    def __init__(
        self,
        backend: Any,
        *,
        bos_token: str | None,
        eos_token: str | None,
        chat_template: str | None,
        eos_ids: frozenset[int],
        bos_id: int | None = None,
        lock: Lock | None = None,
    ) -> None:
        """Wrap a `tokenizers.Tokenizer`.

        bos_id, where given, stands in for a bos_token that the tokenizer does not name; lock guards a
        backend that others use too.
        """
        self._backend = backend
        self._lock = lock or Lock()  # parsing of special tokens is a switch of the shared backend
        self._bos_token, self._eos_token = bos_token, eos_token
        added = backend.get_added_tokens_decoder()
        self._added: dict[int, str] = {int(id_): token.content for id_, token in added.items()}
        self._special = {token.content: int(id_) for id_, token in added.items() if token.special}
        self.vocab_size: int = max(
            backend.get_vocab_size(with_added_tokens=True), 1 + max(self._added, default=-1)
        )
        named = backend.token_to_id(bos_token) if bos_token else None
        self.bos_id: int | None = named if named is not None else bos_id
        self.eos_ids = eos_ids
        self.chat_template = chat_template
        self._silent = frozenset(self._special.values()) | eos_ids
        decoder = backend.decoder
        self._token_bytes = make_token_bytes(
            json.loads(decoder.__getstate__()) if decoder is not None else None
        )
        self._prefix = self._find_prefix()

    def _find_prefix(self) -> list[int]:
        """The ids that the model's ordinary tokenization puts before a text (BOS, as a rule)."""
        bare = self._encode("a", special=False)
        with self._lock:
            whole = list(self._backend.encode("a", add_special_tokens=True).ids)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start]
        return []

    def _encode(self, text: str, *, special: bool) -> list[int]:
        with self._lock:
            self._backend.encode_special_tokens = not special
            return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """Encode bare text, without BOS."""
        return self._encode(text, special=False)

    def encode_raw(self, text: str) -> list[int]:
        """Encode a raw prompt: BOS where the model wants one; an empty prompt becomes BOS."""
        tokens = self._prefix + self.encode(text)
        if tokens:
            return tokens
        if self.bos_id is None:
            raise UsageError("The prompt is empty, and this model has no BOS token.", "Write a prompt.")
        return [self.bos_id]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Render [{role, content}...] by the model's template, ready for the assistant's turn."""
        return render_chat(
            self.chat_template,
            messages,
            special_tokens=self._special,
            encode_text=self.encode,
            bos_token=self._bos_token,
            eos_token=self._eos_token,
            encode_template=lambda text: self._encode(text, special=True),
        )

    def token_text(self, token: int) -> str:
        """One token on its own, as text (special tokens by their name)."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; special tokens give their name, ids without a token nothing."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._backend.id_to_token(int(token))
        return b"" if piece is None else self._token_bytes(piece)

    def detokenizer(self) -> ByteDetokenizer:
        """Make a new incremental detokenizer. EOS and other control tokens add no text."""
        return ByteDetokenizer(self.token_bytes, self._silent)


def load_tokenizer(
    folder: Path, config: Mapping[str, Any], eos_ids: frozenset[int], *, trust_remote_code: bool = False
) -> TransformersTokenizer:
    """Load the tokenizer of a model folder.

    Raises SpecviewError where the folder has none that can be used.
    """
    settings = _read_json(folder / "tokenizer_config.json")
    bos_id = config.get("bos_token_id")
    fallback_bos = bos_id if isinstance(bos_id, int) else None
    if _says_all(folder, settings):
        names = {**_read_json(folder / "special_tokens_map.json"), **settings}
        try:
            backend, lock = _backend((folder / "tokenizer.json").read_bytes())
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise SpecviewError(
                f"{folder / 'tokenizer.json'} cannot be read ({error}).", "Download it again."
            ) from None
        return TransformersTokenizer(
            backend,
            bos_token=_content(names.get("bos_token")),
            eos_token=_content(names.get("eos_token")),
            chat_template=_folder_template(folder, settings),
            eos_ids=eos_ids,
            bos_id=fallback_bos,
            lock=lock,
        )
    return _auto_tokenizer(folder, eos_ids, fallback_bos, trust_remote_code)


@lru_cache(maxsize=2)
def _backend(content: bytes) -> tuple[Any, Lock]:
    """A tokenizer.json's tokenizer: a draft has its target's, and reading it takes a while."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_buffer(content)
    backend.no_truncation()
    backend.no_padding()
    return backend, Lock()


def _auto_tokenizer(
    folder: Path, eos_ids: frozenset[int], bos_id: int | None, trust_remote_code: bool
) -> TransformersTokenizer:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # noqa: BLE001 - transformers raises OSError, ValueError, KeyError, ... alike
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpecviewError(
            f"The tokenizer in {folder} cannot be loaded ({reason}).", "Check the folder."
        ) from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise SpecviewError(
            f"The tokenizer in {folder} is Python code without a tokenizer.json.",
            "Use a version of the model that has a tokenizer.json.",
        )
    backend.no_truncation()
    backend.no_padding()
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    return TransformersTokenizer(
        backend,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        chat_template=template,
        eos_ids=eos_ids,
        bos_id=bos_id,
    )


def read_eos_ids(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids that end an answer: those of generation_config.json and of config.json; may be none."""
    text = config.get("text_config")
    found: set[int] = set()
    for source in (
        _read_json(folder / "generation_config.json"),
        config,
        text if isinstance(text, Mapping) else {},
    ):
        value = source.get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        found.update(
            item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0
        )
    return frozenset(found)


def _says_all(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether tokenizer.json alone defines the tokenizer."""
    if not (folder / "tokenizer.json").is_file() or settings.get("auto_map"):
        return False
    if settings.get("tokenizer_class") not in _PLAIN_CLASSES:
        return False
    listed = settings.get("added_tokens_decoder")
    if not isinstance(listed, Mapping):
        return True
    try:
        added = read_vocabulary(folder / "tokenizer.json").get("added_tokens")
    except (OSError, ValueError):
        return False
    known = added if isinstance(added, list) else []
    return set(listed) <= {str(token.get("id")) for token in known if isinstance(token, Mapping)}


def _folder_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    try:
        return read_text(folder / "chat_template.jinja")
    except OSError:
        template: Any = settings.get("chat_template") or _read_json(folder / "chat_template.json").get(
            "chat_template"
        )
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _content(token: Any) -> str | None:
    value = token.get("content") if isinstance(token, Mapping) else token
    return value if isinstance(value, str) else None


_MERGES = re.compile(
    rb'"merges"\s*:\s*\[(?:[^][{}"]++|"(?:[^"\\]++|\\.)*+"|\[(?:[^][{}"]++|"(?:[^"\\]++|\\.)*+")*+\])*+\]'
)


def read_vocabulary(path: Path) -> dict[str, Any]:
    """Return what a tokenizer.json says of its tokens: all but the merges, which are most of it.

    Raises OSError, and ValueError where it is no JSON object or larger than any tokenizer's.
    """
    value = parse_json(_MERGES.sub(b'"merges":[]', read_bytes(path, _MAX_TOKENIZER), count=1))
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _byte_alphabet() -> dict[str, int]:
    """The byte-level BPE alphabet: which character stands for which byte (GPT-2's table).

    Printable Latin-1 characters stand for themselves, the other bytes for 256, 257, ... in order.
    """
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in kept}
    others = (byte for byte in range(256) if byte not in set(kept))
    table.update((chr(256 + index), byte) for index, byte in enumerate(others))
    return table


_BYTES = _byte_alphabet()


def make_token_bytes(decoder: Any) -> Any:
    """Return the function from a vocabulary entry to its bytes that goes with a decoder's description."""
    kinds: dict[str, Mapping[str, Any]] = {}
    if isinstance(decoder, Mapping):
        steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
        kinds = {str(step.get("type")): step for step in steps or [] if isinstance(step, Mapping)}
    if "ByteLevel" in kinds:
        return _byte_level
    if "BPEDecoder" in kinds:
        suffix = str(kinds["BPEDecoder"].get("suffix") or "</w>")
        return lambda piece: piece.replace(suffix, " ").encode()
    if "WordPiece" in kinds:
        prefix = str(kinds["WordPiece"].get("prefix") or "##")
        return lambda piece: (piece[len(prefix) :] if piece.startswith(prefix) else " " + piece).encode()
    return _sentencepiece


def _byte_level(piece: str) -> bytes:
    if all(character in _BYTES for character in piece):
        return bytes(_BYTES[character] for character in piece)
    return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace("▁", " ").encode()
