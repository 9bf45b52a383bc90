"""Whether a draft can serve a target: the same tokenizer, told before a lane starts.

Vocabularies are compared id by id over the range that both have. Rows of logits padded to different
widths do not matter (152064 against 151936): padding stands for no token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from specview.decoding.interfaces import Engine
from specview.engines.gguf_file import TOKEN_UNUSED, read_gguf
from specview.errors import SpecviewError

_MEND = "Choose a draft of the same family."
_PADDING = re.compile(r"\[PAD\d*\]|<(?:unused|extra_id_|reserved_|dummy)[^>]*>|\[unused\d+\]|<\|(?:dummy|unused)_?\d+\|>")
_MIN_SHARED = 0.9
_read: WeakKeyDictionary[Any, dict[int, bytes]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class PairReport:
    """ok, or the reason why not (one line, with the mend); shared is how many ids were compared.

    first_difference is (id, the target's token, the draft's token). notes say what differs without
    mattering to correctness.
    """

    ok: bool
    reason: str = ""
    shared: int = 0
    target_vocab: int = 0
    draft_vocab: int = 0
    first_difference: tuple[int, str, str] | None = None
    notes: tuple[str, ...] = ()

    def raise_if_not_ok(self) -> None:
        """Raise SpecviewError with the reason when the pair does not fit."""
        if not self.ok:
            raise SpecviewError(self.reason)


def check_pair(target: Engine, draft: Engine) -> PairReport:
    """Compare the tokenizers of two loaded engines, id by id."""
    if target.tokenizer is draft.tokenizer:
        size = target.tokenizer.vocab_size
        return PairReport(True, shared=size, target_vocab=size, draft_vocab=size)
    report = _compare(
        target.model_name,
        draft.model_name,
        _vocabulary_of(target),
        _vocabulary_of(draft),
    )
    notes = list(report.notes)
    if report.ok and target.eos_ids != draft.eos_ids:
        notes.append(
            f"They end a text with different tokens ({_ids(target.eos_ids)} and {_ids(draft.eos_ids)}): "
            "the target's count."
        )
    if report.ok and target.vocab_size != draft.vocab_size:
        notes.append(f"Their rows of logits are padded to {target.vocab_size} and {draft.vocab_size}.")
    return _with_notes(report, notes)


def pair_from_files(target: Path, draft: Path) -> PairReport | None:
    """Compare two models' tokenizer files (a GGUF's metadata, a folder's tokenizer.json).

    Reads no weights. None when a tokenizer is stored in another form: then `check_pair` after loading.
    """
    first, second = _vocabulary_in(target), _vocabulary_in(draft)
    if first is None or second is None:
        return None
    return _compare(_name(target), _name(draft), first, second)


def _name(path: Path) -> str:
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def _ids(ids: frozenset[int]) -> str:
    return ", ".join(str(token) for token in sorted(ids)) or "none"


def _with_notes(report: PairReport, notes: list[str]) -> PairReport:
    return replace(report, notes=tuple(notes))


def _vocabulary_of(engine: Engine) -> dict[int, bytes]:
    """Id -> bytes of an engine's tokenizer, padding left out; read once per engine."""
    known = _read.get(engine)
    if known is not None:
        return known
    tokenizer = engine.tokenizer
    token_bytes = tokenizer.token_bytes
    vocabulary = {}
    for token in range(min(tokenizer.vocab_size, engine.vocab_size)):
        try:
            value = token_bytes(token)
        except (KeyError, IndexError, ValueError, TypeError):  # an id that stands for nothing
            continue
        if value and not (value[0] in b"[<" and _is_padding(value.decode("utf-8", errors="replace"))):
            vocabulary[token] = value
    _read[engine] = vocabulary
    return vocabulary


def _is_padding(text: str) -> bool:
    return _PADDING.fullmatch(text) is not None


def _vocabulary_in(path: Path) -> dict[int, bytes] | None:
    """Id -> spelling in a model's tokenizer file, padding left out; None where it has none we read."""
    if path.is_file():
        metadata: Mapping[str, Any] = read_gguf(path).metadata
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not tokens:
            return None
        kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
        pairs = [(index, token) for index, token in enumerate(tokens) if kinds[index] != TOKEN_UNUSED]
    else:
        try:
            document = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
            vocabulary = document["model"]["vocab"]
            if isinstance(vocabulary, list):  # Unigram: [piece, score]
                pairs = [(index, entry[0]) for index, entry in enumerate(vocabulary)]
            else:
                pairs = [(int(index), token) for token, index in vocabulary.items()]
            pairs += [(int(entry["id"]), entry["content"]) for entry in document.get("added_tokens", ())]
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return None
    return {index: token.encode() for index, token in pairs if token and not _is_padding(token)}


def _compare(
    target_name: str, draft_name: str, target: Mapping[int, bytes], draft: Mapping[int, bytes]
) -> PairReport:
    shared = target.keys() & draft.keys()
    report = PairReport(True, shared=len(shared), target_vocab=len(target), draft_vocab=len(draft))
    other = f"draft {draft_name} has another tokenizer than {target_name}:"
    different = [token for token in shared if target[token] != draft[token]]
    if different:
        token = min(different)
        in_target, in_draft = _shown(target[token]), _shown(draft[token])
        return replace(
            report,
            ok=False,
            reason=f"{other} token {token} is {in_draft} there and {in_target} here "
            f"({len(different)} of {len(shared)} differ). {_MEND}",
            first_difference=(token, in_target, in_draft),
        )
    if len(shared) < _MIN_SHARED * max(len(target), len(draft), 1):
        counts = f"{len(draft)} tokens there and {len(target)} here, {len(shared)} of them the same"
        return replace(report, ok=False, reason=f"{other} {counts}. {_MEND}")
    if len(target) != len(draft):
        return replace(report, notes=(f"{len(shared)} tokens agree, of {len(target)} and {len(draft)} in all.",))
    return report


def _shown(token: bytes) -> str:
    """A token for a message: quoted, control characters escaped, never long."""
    text = token.decode("utf-8", errors="backslashreplace")
    return repr(text if len(text) <= 40 else text[:40] + "…")
