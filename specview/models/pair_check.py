"""Whether a draft or a trained head can serve a target, and how: told before a lane starts.

A draft of the same tokenizer proposes its own tokens. One of another tokenizer is translated
(specview.drafting.universal): its text is re-encoded for the rules that need no q, and it is restricted to
the tokens that both have for those that do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specview.decoding.interfaces import Engine
from specview.drafting.universal import APPROACHES
from specview.drafting.universal_vocabulary import Pairing, Vocabulary, is_padding, pairing_of
from specview.engines.gguf_file import (
    TOKEN_CONTROL,
    TOKEN_UNKNOWN,
    TOKEN_UNUSED,
    TOKEN_USER_DEFINED,
    read_gguf,
)
from specview.engines.transformers_tokenizer import make_token_bytes, read_vocabulary
from specview.errors import SpecviewError, UsageError
from specview.heads.fit import TargetFacts, fits, settle, target_of_files, undraftable
from specview.heads.layouts import KIND_WORDS, HeadFacts
from specview.heads.read import read_head
from specview.models.heads import head_of_kind

_MEND = "Choose a draft of the same family."
_NAMED_DIFFERENCES = 2  # two tokens that changed places

WORDS = {
    "same": "it drafts the target's own tokens",
    "re-encode": "its text is re-encoded in the target's tokens",
    "intersection": "it drafts the tokens that both have",
}
"""Approach -> what it means, for people."""


@dataclass(frozen=True, slots=True)
class PairReport:
    """ok, or the reason why not (one line, with the mend).

    mode: one tokenizer, or a foreign one; then `reason` says so even where it drafts all the same.
    shared: how many ids stand for the same (same), or how many different texts are one token in both
    (foreign); share: that over the target's. different: how many ids both have for different tokens; differences: the
    first of those, each (id, the target's token, the draft's token).
    approach: rule -> "same", "re-encode" or "intersection"; a rule that nothing serves is not in it. notes
    say in plain words what applies, and what differs without mattering to correctness.
    """

    ok: bool
    reason: str = ""
    shared: int = 0
    target_vocab: int = 0
    draft_vocab: int = 0
    different: int = 0
    differences: tuple[tuple[int, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    mode: Literal["same", "foreign"] = "same"
    share: float = 0.0
    approach: Mapping[str, str] = field(default_factory=dict)

    def raise_if_not_ok(self) -> None:
        """Raise SpecviewError with the reason when the pair does not fit."""
        if not self.ok:
            raise SpecviewError(self.reason)


@dataclass(frozen=True, slots=True)
class HeadReport:
    """Whether a trained head serves a target, told from files alone; `reason` says why not (one line, with the mend).

    facts are None where the head's files are no head's; target where the target's do not say. aux_layers are
    the target's hidden states that it reads, () where only the last or where the user must say. question is what the
    lane's options must settle, a sentence, or "".
    """

    ok: bool
    reason: str = ""
    facts: HeadFacts | None = None
    target: TargetFacts | None = None
    aux_layers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    question: str = ""

    def words(self) -> str:
        """What it comes to, in one line."""
        if not self.ok or self.facts is None:
            return self.reason
        kind = KIND_WORDS[self.facts.kind]
        whose = f" that was trained for {self.facts.target_name}" if self.facts.target_name else ""
        serves = f" and serves {self.target.name}" if self.target is not None else ""
        more = " ".join(part for part in (self.question, *self.notes) if part)
        return f"{kind[:1].upper()}{kind[1:]}{whose}{serves}. {more}".strip()


def check_head(
    target: Path,
    head: Path,
    *,
    target_name: str = "",
    kind: str | None = None,
    answers: Mapping[str, str] | None = None,
) -> HeadReport:
    """Say whether a head's folder or file serves a target's file or folder; reads headers and configs only.

    kind is what the lane's method drafts with, None for any; answers are the lane's, by option (heads.fit.settle).
    """
    try:
        facts = read_head(head) if kind is None else head_of_kind(kind, head)
    except SpecviewError as error:
        return HeadReport(False, str(error))
    try:
        about = target_of_files(target, target_name)
        problem = undraftable(target, target_name or (target.stem if target.is_file() else target.resolve().name))
    except SpecviewError as error:
        return HeadReport(False, str(error), facts)
    if problem is not None:
        return HeadReport(False, problem, facts, about)
    if about is None:
        note = "Whether it fits is told when the target is loaded."
        return HeadReport(True, facts=facts, notes=(*facts.notes, note))
    fit = fits(facts, about)
    if fit.reason is not None:
        return HeadReport(False, fit.reason, facts, about)
    try:
        settled = settle(facts, about, answers)
    except UsageError as error:
        return HeadReport(True, "", facts, about, (), fit.notes, str(error))
    except SpecviewError as error:
        return HeadReport(False, str(error), facts, about)
    return HeadReport(True, "", settled, about, settled.aux_layers, fit.notes)


_SAME = dict.fromkeys(APPROACHES, "same")


def check_pair(target: Engine, draft: Engine) -> PairReport:
    """Compare the tokenizers of two loaded engines, id by id."""
    if target.tokenizer is draft.tokenizer:
        size = target.tokenizer.vocab_size
        return PairReport(True, shared=size, target_vocab=size, draft_vocab=size, share=1.0, approach=_SAME)
    report = _compare(target.model_name, draft.model_name, pairing_of(target, draft))
    notes = list(report.notes)
    if report.mode == "same" and report.ok and target.eos_ids != draft.eos_ids:
        notes.append(
            f"They end a text with different tokens ({_ids(target.eos_ids)} and {_ids(draft.eos_ids)}): "
            "the target's count."
        )
    if report.mode == "same" and report.ok and target.vocab_size != draft.vocab_size:
        notes.append(f"Their rows of logits are padded to {target.vocab_size} and {draft.vocab_size}.")
    return replace(report, notes=tuple(notes))


def pair_from_files(target: Path, draft: Path, names: tuple[str, str] | None = None) -> PairReport | None:
    """Compare two models' tokenizer files (a GGUF's metadata, a folder's tokenizer.json).

    names are what to call them, where not by their files. Reads no weights. None when a tokenizer is stored in another form: then `check_pair` after loading.
    """
    first = vocabulary_in(target)
    second = first if draft == target else vocabulary_in(draft)
    if first is None or second is None:
        return None
    return _compare(*(names or (_name(target), _name(draft))), Pairing(first, second))


def _name(path: Path) -> str:
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def _ids(ids: frozenset[int]) -> str:
    return ", ".join(str(token) for token in sorted(ids)) or "none"


def vocabulary_in(path: Path) -> Vocabulary | None:
    """What the ids of a model's tokenizer file stand for; None where it has none that is read here."""
    return _of_gguf(path) if path.is_file() else _of_folder(path)


_GGUF_DECODERS = {"gpt2": "ByteLevel", "llama": "Metaspace", "t5": "Metaspace", "bert": "Metaspace"}


def _of_gguf(path: Path) -> Vocabulary | None:
    metadata: Mapping[str, Any] = read_gguf(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    decoder = _GGUF_DECODERS.get(str(metadata.get("tokenizer.ggml.model")))
    if not tokens or decoder is None:
        return None
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    to_bytes = make_token_bytes({"type": decoder})
    named = [
        (token, name, kind)
        for token, (name, kind) in enumerate(zip(tokens, kinds, strict=False))
        if name and kind != TOKEN_UNUSED and not is_padding(name)
    ]
    as_spelled = (TOKEN_CONTROL, TOKEN_UNKNOWN, TOKEN_USER_DEFINED)
    specials = frozenset(token for token, _name, kind in named if kind in as_spelled[:2])
    return Vocabulary(
        {token: name.encode() if kind in as_spelled else to_bytes(name) for token, name, kind in named},
        lambda: specials,
    )


def _of_folder(path: Path) -> Vocabulary | None:
    try:
        document = read_vocabulary(path / "tokenizer.json")
        entries = document["model"]["vocab"]
        if isinstance(entries, list):  # Unigram: [piece, score]
            pairs = [(index, str(entry[0])) for index, entry in enumerate(entries)]
        else:
            pairs = [(int(index), str(token)) for token, index in entries.items()]
        added = {int(entry["id"]): entry for entry in document.get("added_tokens", ())}
        names = {token: str(entry["content"]) for token, entry in added.items()}
        to_bytes = make_token_bytes(document.get("decoder"))
    except (OSError, ValueError, ArithmeticError, AttributeError, LookupError, TypeError):
        return None
    found = {token: to_bytes(piece) for token, piece in pairs if piece and token not in added and not is_padding(piece)}
    found |= {token: name.encode() for token, name in names.items() if name and not is_padding(name)}
    specials = frozenset(token for token, entry in added.items() if entry.get("special"))
    return Vocabulary(found, lambda: specials)


def _compare(target_name: str, draft_name: str, pairing: Pairing) -> PairReport:
    report = PairReport(
        True,
        shared=pairing.compared,
        target_vocab=len(pairing.target.tokens),
        draft_vocab=len(pairing.draft.tokens),
        share=1.0,
        approach=_SAME,
    )
    if pairing.same:
        notes = []
        if report.target_vocab != report.draft_vocab:
            notes.append(f"{report.shared} tokens agree, of {report.target_vocab} and {report.draft_vocab} in all.")
        if lacking := report.target_vocab - report.shared:
            notes.append(
                f"The draft lacks {lacking:,} of the target's tokens: it drafts none of those, and guesses worse where "
                "the text has one."
            )
        return replace(report, notes=tuple(notes))
    return _foreign(report, target_name, draft_name, pairing)


def _foreign(report: PairReport, target_name: str, draft_name: str, pairing: Pairing) -> PairReport:
    """What a draft with another tokenizer can do."""
    report = replace(
        report,
        mode="foreign",
        shared=pairing.shared_texts,
        share=pairing.shared_share,
        different=len(pairing.different),
        differences=tuple(
            (token, _shown(pairing.target.tokens[token]), _shown(pairing.draft.tokens[token]))
            for token in pairing.different[:_NAMED_DIFFERENCES]
        ),
        approach={},
    )
    other = f"draft {draft_name} has another tokenizer than {target_name}"
    if not pairing.target.texts or not pairing.draft.texts:
        which = target_name if not pairing.target.texts else draft_name
        return replace(report, ok=False, reason=f"{other}, and {which} has no tokens for text. {_MEND}")
    of_text, of_q = (_listed(rule for rule, how in APPROACHES.items() if how == one) for one in ("re-encode", "intersection"))
    notes = [f"Rules {of_text}: {WORDS['re-encode']} (vocabulary re-encode)."]
    approach: dict[str, str] = dict(APPROACHES)
    if report.shared:
        notes.append(f"Rules {of_q}: {WORDS['intersection']} (vocabulary intersection).")
    else:
        notes.append(f"Rules {of_q}: not with this draft, for no token is shared; use match.")
        approach = {rule: how for rule, how in approach.items() if how != "intersection"}
    count = f"{report.shared:,} of the target's {len(pairing.target.ids):,} texts ({percent(report.share)})"
    reason = f"{other}: {count} are one token of the draft too."
    if report.differences:
        named = " and ".join(f"{token} ({ours} in the target, {theirs} in the draft)" for token, ours, theirs in report.differences)
        differ = "differs" if report.different == 1 else "differ"
        first = ":" if report.different <= len(report.differences) else ", first"
        reason += f" {report.different:,} of {pairing.compared:,} ids {differ}{first} {named}."
    return replace(report, reason=reason, approach=approach, notes=tuple(notes))


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def percent(share: float, digits: int = 0) -> str:
    """A share for people: 0% and 100% only where it is none and all."""
    text, step = f"{share:.{digits}%}", 10.0**-digits
    if text == f"{0:.{digits}%}" and share > 0:
        return f"under {step:.{digits}f}%"
    if text == f"{1:.{digits}%}" and share < 1:
        return f"over {100 - step:.{digits}f}%"
    return text


def _shown(token: bytes) -> str:
    """A token for a message: quoted, control characters escaped, never long."""
    text = token.decode("utf-8", errors="backslashreplace")
    return repr(text if len(text) <= 40 else text[:40] + "…")
