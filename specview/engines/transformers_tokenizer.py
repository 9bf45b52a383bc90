"""A Hugging Face tokenizer as interfaces.Tokenizer.

A folder whose tokenizer.json says all is read by the `tokenizers` library alone, which starts at once;
for every other one transformers' AutoTokenizer is asked.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from specview.decoding.interfaces import Declared
from specview.engines.chat import ModelTokenizer
from specview.engines.declared import of_folder, of_gguf, read_json, token_content
from specview.engines.gguf_file import GgufFile
from specview.engines.transformers_config import code_error
from specview.errors import SpecviewError
from specview.reading import parse_json, read_bytes, require_light

_MAX_TOKENIZER, _MAX_VOCABULARY = 48 << 20, 12 << 20  # bytes: Gemma 3's tokenizer.json has 33 MB, without merges 8 MB
_MAX_LIGHT, _MAX_SMALL = 24 << 20, 1 << 20
# Classes that add nothing to what tokenizer.json says (names of transformers 5 and 4).
_PLAIN_CLASSES = frozenset({None, "TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer"})


class TransformersTokenizer(ModelTokenizer):
    """Text to ids and back. Text typed by a user never becomes a special token."""

    def __init__(
        self,
        backend: Any,
        *,
        bos_token: str | None,
        eos_token: str | None,
        declared: Declared,
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
        self.special_tokens = {token.content: int(id_) for id_, token in added.items() if token.special}
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), 1 + max(self._added, default=-1))
        named = backend.token_to_id(bos_token) if bos_token else None
        self.bos_id = named if named is not None else bos_id
        self.declared, self.eos_ids = declared, declared.eos_ids
        decoder = backend.decoder
        self._token_bytes = make_token_bytes(json.loads(decoder.__getstate__()) if decoder is not None else None)
        self.prefix = self._find_prefix()

    def _find_prefix(self) -> list[int]:
        bare = self._tokenize("a", special=False)
        with self._lock:
            whole = _ids(self._backend, "a", add_special_tokens=True)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start]
        return []

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        with self._lock:
            self._backend.encode_special_tokens = not special
            return _ids(self._backend, text, add_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; special tokens give their name, ids without a token nothing."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._backend.id_to_token(int(token))
        return b"" if piece is None else self._token_bytes(piece)


def load_tokenizer(
    folder: Path, config: Mapping[str, Any], *, gguf: GgufFile | None = None, trust_remote_code: bool = False
) -> TransformersTokenizer:
    """Load the tokenizer of a model folder; of one made from a GGUF file, what that declares counts.

    Raises SpecviewError where the folder has none that can be used.
    """
    settings = read_json(folder / "tokenizer_config.json")
    content = _tokenizer_json(folder)
    lock = Lock()
    if content is not None and _says_all(folder, settings):
        names = {**read_json(folder / "special_tokens_map.json"), **settings}
        bos_token, eos_token = token_content(names.get("bos_token")), token_content(names.get("eos_token"))
        try:
            backend, lock = _backend(content)
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise SpecviewError(
                f"{folder / 'tokenizer.json'} cannot be read ({error}).", "Download it again."
            ) from None
    else:
        loaded = auto_tokenizer(folder, trust_remote_code)
        backend, bos_token, eos_token = loaded.backend_tokenizer, loaded.bos_token, loaded.eos_token
        backend.no_truncation()
        backend.no_padding()
    _require_bounded(folder, backend)
    bos_id = config.get("bos_token_id")
    first = backend.token_to_id(bos_token) if bos_token else None
    with lock:
        adds_bos = first is not None and _ids(backend, "a", add_special_tokens=True)[:1] == [first]
    if gguf is not None:
        declared = of_gguf(gguf, adds_bos=adds_bos)
    else:
        declared = of_folder(
            folder,
            config,
            id_of=backend.token_to_id,
            text_of=backend.id_to_token,
            added={token.content: int(id_) for id_, token in backend.get_added_tokens_decoder().items()},
            bos_token=bos_token,
            eos_token=eos_token,
            adds_bos=adds_bos,
        )
    return TransformersTokenizer(
        backend,
        bos_token=bos_token,
        eos_token=eos_token,
        declared=declared,
        bos_id=bos_id if isinstance(bos_id, int) else None,
        lock=lock,
    )


def _ids(backend: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    try:
        return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)
    except BaseException as error:
        # The library panics, which is no Exception, where a regular expression of the model's own takes too long.
        if type(error).__name__ != "PanicException":
            raise
        raise SpecviewError(f"The model's tokenizer fails on this text ({error}).", "Choose another model.") from None


_MOST_GROWTH = 100


def _require_bounded(folder: Path, backend: Any) -> None:
    """Raise SpecviewError for a tokenizer that first makes far more text of a text: the library then takes any memory."""
    normalizer = backend.normalizer
    if normalizer is not None and _growth(json.loads(normalizer.__getstate__())) > _MOST_GROWTH:
        raise SpecviewError(
            f"The tokenizer in {folder} makes more than {_MOST_GROWTH} characters of one.", "Choose another model."
        )


def _growth(step: Mapping[str, Any]) -> float:
    """How many characters a normalizer makes of one, at most; 1 for those of Unicode and the like."""
    if step.get("type") == "Sequence":
        return math.prod(_growth(inner) for inner in step["normalizers"])
    if step.get("type") == "Prepend":
        return 1 + len(step["prepend"])
    if step.get("type") == "Replace":
        pattern = step["pattern"].get("String")  # a regular expression may match the empty text
        return max(1.0, len(step["content"]) / len(pattern)) if pattern else 1 + len(step["content"])
    return 1


@lru_cache(maxsize=2)
def _backend(content: bytes) -> tuple[Any, Lock]:
    """A tokenizer.json's tokenizer: a draft has its target's, and reading it takes a while."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_buffer(content)
    backend.no_truncation()
    backend.no_padding()
    return backend, Lock()


def auto_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    """A folder's tokenizer as transformers makes it, with a `backend_tokenizer`.

    Raises SpecviewError, which says what it needs, where it cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # noqa: BLE001 - transformers raises OSError, ValueError, KeyError, ... alike
        raise _cannot_load(folder, str(error).strip() or type(error).__name__) from None
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise SpecviewError(
            f"The tokenizer in {folder} is Python code without a tokenizer.json.",
            "Use a version of the model that has a tokenizer.json.",
        )
    return tokenizer


def _cannot_load(folder: Path, reason: str) -> SpecviewError:
    """What a tokenizer needs that transformers could not load for `reason`, which often names something else."""
    if "trust_remote_code" in reason:
        return code_error(f"The tokenizer in {folder}")
    models = sorted(path.name for path in folder.glob("*.model") if path.name != "tiktoken.model")
    if models and not (folder / "tokenizer.json").is_file() and importlib.util.find_spec("sentencepiece") is None:
        return SpecviewError(
            f"{models[0]} in {folder} is a SentencePiece model, and the package that reads it is not installed here.",
            "Install it: pip install sentencepiece.",
        )
    return SpecviewError(f"The tokenizer in {folder} cannot be loaded ({reason.splitlines()[0]}).", "Check the folder.")


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


_MERGES = re.compile(rb'"merges"\s*:\s*\[')


def read_vocabulary(path: Path) -> dict[str, Any]:
    """Return what a tokenizer.json says of its tokens: all but the merges, which are most of it.

    Raises OSError, and ValueError where it is no JSON object or larger than any tokenizer's.
    """
    value = parse_json(_without_merges(read_bytes(path, _MAX_TOKENIZER)), _MAX_LIGHT)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _without_merges(content: bytes) -> bytes:
    """A tokenizer.json without its merges, which its library writes last; raises ValueError where the rest is too much."""
    rest, begun, end = content, _MERGES.search(content), content.rfind(b"]")
    last = begun is not None and not content[end + 1 :].strip(b" \t\r\n}") and b'"added_tokens"' not in content[begun.end() :]
    if begun is not None and last:
        rest = content[: begun.end()] + content[end:]
    if len(rest) > _MAX_VOCABULARY:
        raise ValueError(f"it has {len(rest):,} bytes beside its merges")
    require_light(rest, _MAX_LIGHT)
    return rest


def _tokenizer_json(folder: Path) -> bytes | None:
    """The content of a folder's tokenizer.json; None where it has none. Raises SpecviewError where it is no tokenizer's."""
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        return None
    try:
        content = read_bytes(path, _MAX_TOKENIZER)
        if len(content) > _MAX_SMALL:
            _without_merges(content)
        return content
    except OSError as error:
        raise SpecviewError(f"{path} cannot be read ({error.strerror or error}).", "Check the file.") from None
    except ValueError as error:
        raise SpecviewError(f"{path} is no tokenizer's ({error}).", "Download it again.") from None


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
