"""`specview check TARGET DRAFT`: whether this draft or trained head can serve this target, how, and why not."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specview.commands.arguments import Parser
from specview.commands.running import Running, running
from specview.decoding.interfaces import Engine
from specview.decoding.verification import RULES
from specview.engines.declared import of_gguf
from specview.engines.gguf_file import gguf_facts
from specview.engines.transformers_tokenizer import load_tokenizer
from specview.errors import EngineMissing, SpecviewError, UsageError
from specview.files.report import Report, Table, Text
from specview.files.tables import Column
from specview.heads.layouts import KIND_WORDS
from specview.models import bundled
from specview.models.catalog import BUNDLED, ENGINES, ModelRef, Role, resolve
from specview.models.gguf_tokenizer import adds_bos
from specview.models.heads import load_head, named_head
from specview.models.loading import load_engine
from specview.models.model_folder import has_tokenizer, inspect_folder
from specview.models.pair_check import (
    WORDS,
    HeadReport,
    PairReport,
    check_head,
    check_pair,
    pair_from_files,
    percent,
)

_DESCRIPTION = """\
Say whether a draft can serve a target: which approach applies for which rules, how much of the vocabulary
is shared, context lengths and sizes. Of a trained head (EAGLE, EAGLE-3, P-EAGLE, Medusa, MLP speculator, MTP) it says
what it is, which target it was trained for, which layers it reads and whether this target fits. Reads files only,
unless --load is given or a tokenizer is stored in a form that needs its library. Exit code 0: it can; 1: it cannot,
and why."""

_EXAMPLES = """\
examples:
  specview check bundled bundled
  specview check target.gguf draft.gguf --json -
  specview check Qwen/Qwen2.5-1.5B-Instruct HuggingFaceTB/SmolLM2-135M-Instruct
  specview check bundled eagle3
  specview check target.gguf path/to/head"""

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's files say of it; None where they do not."""

    name: str
    architecture: str
    parameters: int | None
    file_bytes: int | None
    context_length: int | None
    engines: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """Run the command: 0 when the draft can serve the target, else 1."""
    arguments = _parser().parse_args(argv)
    for engine in (arguments.engine, arguments.draft_engine):
        if engine not in (None, *ENGINES):
            raise UsageError(f"there is no engine {engine!r}.", f"Engines: {', '.join(ENGINES)}.")
    with running(arguments) as run:
        target = _find(arguments.target, arguments.engine, "target")
        head = named_head(arguments.draft, target.path)
        report = _check_pair(target, arguments, run) if head is None else _check_head(target, head, arguments, run)
        run.end(report)
    return 0 if report.data["ok"] else 1


def _check_pair(target: ModelRef, arguments: argparse.Namespace, run: Running) -> Report:
    """What a draft model is to the target."""
    # The bundled draft comes as a file of each kind: take the one of the target's engine.
    default = target.engines[0] if arguments.draft.strip() == BUNDLED else None
    draft = _find(arguments.draft, arguments.draft_engine or arguments.engine or default, "draft")
    facts = _facts(target), _facts(draft)
    engines = (arguments.engine, arguments.draft_engine or arguments.engine)
    problem = _engine_problem(target, engines[0]) or _engine_problem(draft, engines[1])
    report = None
    if problem or not arguments.load:
        report = pair_from_files(_tokenizer_of(target), _tokenizer_of(draft), (target.name, draft.name))
    if report is None and not problem:
        with ExitStack() as opened:
            first, second = _load(target, engines[0], "target", run, opened), _load(draft, engines[1], "draft", run, opened)
            report = check_pair(first, second)
            if first.rollback_problem:
                problem = f"{target.name} cannot be drafted for: {first.rollback_problem}"
    if problem:
        report = replace(report or PairReport(False), ok=False, reason=problem, approach={}, notes=())
    assert report is not None
    return _pair_report(*facts, report, [*_size_notes(*facts), *_declared(target)])


def _check_head(target: ModelRef, head: Path, arguments: argparse.Namespace, run: Running) -> Report:
    """What a trained head is to the target."""
    assert target.path is not None
    if arguments.draft_engine is not None:
        raise UsageError("--draft-engine is for models: a head runs beside its target.", "Leave it out.")
    report = check_head(target.path, head, target_name=target.name)
    problem = _engine_problem(target, arguments.engine)
    if arguments.load and report.ok and not problem:
        problem = _head_loaded(target, arguments.engine, head, report, run)
    if problem:
        report = replace(report, ok=False, reason=problem, question="")
    return _head_report(_facts(target), replace(report, notes=(*report.notes, *_declared(target))), head)


def _parser() -> Parser:
    parser = Parser("specview check", _DESCRIPTION, _EXAMPLES)
    parser.usage = "specview check [options] TARGET DRAFT"
    kinds = "bundled, a GGUF file, a model folder, or a hub id that is in the cache"
    parser.add_argument("target", metavar="TARGET", help=kinds)
    parser.add_argument("draft", metavar="DRAFT",
                        help="likewise, or a trained head: its folder, a weights file, a hub id that is in the cache, "
                             "or the kind of a bundled one (eagle3, medusa, p-eagle)")  # fmt: skip
    parser.add_argument("--engine", help="transformers or llama.cpp (default: one that can load the model)")
    parser.add_argument("--draft-engine", help="the draft's engine (default: --engine); a head has none")
    parser.add_argument("--load", action="store_true", help="load both: tells of caches that cannot be rolled back too")
    parser.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    return parser


def _find(spec: str, engine: str | None, role: Role) -> ModelRef:
    """The model a name means, which must be on this machine."""
    found = resolve(spec, engine or ENGINES[0], role)
    if found.path is None:
        raise SpecviewError(
            f"{spec} is not in the Hugging Face cache, and a check downloads nothing.",
            "Run it once, which downloads it, or give a path.",
        )
    return found


def _tokenizer_of(model: ModelRef) -> Path:
    """The file or folder that holds a model's tokenizer."""
    assert model.path is not None
    if model.spec == BUNDLED and model.path.is_dir() and not has_tokenizer(model.path):
        return bundled.target_gguf()  # the bundled draft has its target's, which is not stored twice
    return model.path


def _declared(model: ModelRef) -> list[str]:
    """What a target's files say of its text, a line each, or why they cannot be read."""
    assert model.path is not None
    try:
        if model.path.is_file():
            gguf = gguf_facts(model.path)
            return of_gguf(gguf, adds_bos=adds_bos(gguf)).lines()
        return load_tokenizer(model.path, inspect_folder(model.path).config).declared.lines()
    except SpecviewError as error:
        return [str(error)]


def _facts(model: ModelRef) -> ModelFacts:
    path = model.path
    assert path is not None
    if path.is_file():
        gguf = gguf_facts(path)
        return ModelFacts(
            model.name, gguf.architecture, gguf.parameters, gguf.size, gguf.context_length, model.engines
        )
    folder = inspect_folder(path, needs_tokenizer=False)
    nested = folder.config.get("text_config")
    configs: list[Mapping[str, Any]] = [folder.config, *([nested] if isinstance(nested, Mapping) else [])]
    lengths = (config.get(key) for config in configs for key in _CONTEXT_KEYS)
    context = next((length for length in lengths if isinstance(length, int)), None)
    return ModelFacts(model.name, folder.model_type, folder.parameters, folder.file_bytes, context, model.engines)


def _load(model: ModelRef, engine: str | None, role: Role, run: Running, opened: ExitStack) -> Engine:
    made = load_engine(model, engine or model.engines[0], role=role, progress=run.progress.show, should_stop=run.should_stop)
    return opened.enter_context(closing(made))


def _head_loaded(target: ModelRef, engine: str | None, head: Path, report: HeadReport, run: Running) -> str | None:
    """Why a head does not load beside its loaded target, or None. One with an open question is not loaded itself."""
    assert report.facts is not None
    with ExitStack() as opened:
        loaded = _load(target, engine, "target", run, opened)
        problem = loaded.rollback_problem or loaded.features_problem
        if problem:
            return f"{target.name} cannot be drafted for: {problem}"
        if not report.question:
            try:
                load_head(report.facts.kind, str(head), loaded, progress=run.progress.show, should_stop=run.should_stop)
            except EngineMissing:
                raise
            except SpecviewError as error:
                return str(error)
    return None


def _engine_problem(model: ModelRef, engine: str | None) -> str | None:
    if engine is None or engine in model.engines:
        return None
    kind = model.architecture or model.kind
    return f"the {engine} engine cannot load {model.name} ({kind}). Choose the {model.engines[0]} engine for it."


def _size_notes(target: ModelFacts, draft: ModelFacts) -> list[str]:
    """What sizes and context lengths mean for the pair."""
    notes = []
    if target.context_length and draft.context_length and draft.context_length < target.context_length:
        notes.append(
            f"The draft reads {draft.context_length:,} tokens, the target {target.context_length:,}: "
            "beyond that nothing is drafted."
        )
    if target.parameters and draft.parameters and 2 * draft.parameters > target.parameters:
        share = draft.parameters / target.parameters
        notes.append(
            f"The draft has {share:.2g} times the target's parameters: a step of it may cost too much to be worth it."
        )
    if not set(target.engines) & set(draft.engines):
        notes.append(
            f"They need different engines: --engine {target.engines[0]} --draft-engine {draft.engines[0]}."
        )
    return notes


# -- reports ----------------------------------------------------------------------------------------------


def _beside(draft: str, rows: Iterable[tuple[str, object, object]]) -> Table:
    """What is known of the target and of what drafts for it, side by side."""
    columns = Column("what", ""), Column("target", "target"), Column("draft", draft)
    return Table(columns, [dict(zip(("what", "target", "draft"), row, strict=True)) for row in rows])


def _pair_report(target: ModelFacts, draft: ModelFacts, report: PairReport, notes: Sequence[str]) -> Report:
    if not report.ok:
        verdict = f"no: {report.reason}"
    elif report.mode == "same":
        verdict = f"yes: {draft.name} can draft for {target.name}; they have the same tokenizer."
    else:
        verdict = f"yes, translated: {report.reason}"
    table = _beside("draft", [
        ("model", target.name, draft.name),
        ("architecture", target.architecture, draft.architecture),
        ("parameters", _count(target.parameters), _count(draft.parameters)),
        ("size on disk", _size(target.file_bytes), _size(draft.file_bytes)),
        ("context length", _number(target.context_length), _number(draft.context_length)),
        ("vocabulary", _number(report.target_vocab), _number(report.draft_vocab)),
        ("engines", ", ".join(target.engines), ", ".join(draft.engines)),
    ])  # fmt: skip
    told = []
    if report.mode == "foreign":
        told.append(f"shared texts: {report.shared:,}, {percent(report.share, 1)} of the target's")
    if report.ok:
        rules: dict[str, list[str]] = {}
        for rule in (*report.approach, *(rule for rule in RULES if rule not in report.approach)):
            how = report.approach.get(rule)
            rules.setdefault("not with this draft, for no token is shared" if how is None else WORDS[how], []).append(rule)
        told += [f"rules {', '.join(names)}: {how}" for how, names in rules.items()]
    told += [*(report.notes if report.mode == "same" else ()), *notes]
    return Report("", [Text(verdict), table, *map(Text, told)], {
        "ok": report.ok,
        "reason": report.reason or None,
        "mode": report.mode,
        "approach": dict(report.approach),
        "shared": report.shared,
        "share": report.share,
        "different": report.different,
        "first_difference": list(report.differences[0]) if report.differences else None,
        "notes": [*report.notes, *notes],
        "target": asdict(target) | {"vocabulary": report.target_vocab},
        "draft": asdict(draft) | {"vocabulary": report.draft_vocab},
    })  # fmt: skip


def _head_report(target: ModelFacts, report: HeadReport, head: Path) -> Report:
    facts = report.facts
    about = {key: getattr(report.target, key, None) for key in ("hidden_size", "layers", "vocab_size")}
    name = head.resolve().name
    if report.ok and report.question:
        verdict = f"yes, once you say how to read it: {report.question}"
    elif report.ok:
        verdict = f"yes: {name} can draft for {target.name}."
    else:
        verdict = f"no: {report.reason}"
    data: dict[str, Any] = {
        "ok": report.ok,
        "reason": report.reason or None,
        "mode": "head",
        "question": report.question or None,
        "notes": list(report.notes),
        "target": asdict(target) | about,
        "head": None,
    }
    if facts is None:
        return Report("", [Text(verdict)], data)
    bytes_ = sum(file.stat().st_size for file in {stored.file for _, stored in facts.tensors.values()})
    data["head"] = {
        "name": name,
        "kind": facts.kind,
        "layout": facts.layout,
        "trained_for": facts.target_name or None,
        "hidden_size": facts.hidden_size,
        "reads_layers": list(report.aux_layers) or None,
        "vocabulary": facts.vocab_size or None,
        "draft_vocabulary": facts.draft_vocab_size or None,
        "most_tokens": facts.most_tokens,
        "own_embedding": facts.own_embedding,
        "own_output": facts.own_output,
        "parameters": facts.parameters,
        "file_bytes": bytes_,
    }
    layers = ", ".join(map(str, report.aux_layers))
    reads = f"after {layers}" if layers else None if facts.kind in ("eagle3", "p-eagle") else "the last"
    drafts = facts.draft_vocab_size or facts.vocab_size
    own = drafts != facts.vocab_size and bool(facts.vocab_size)
    table = _beside("head", [
        ("model", target.name, name),
        ("kind", target.architecture, KIND_WORDS[facts.kind].removeprefix("an ").removeprefix("a ")),
        ("layout", None, facts.layout),
        ("trained for", None, facts.target_name),
        ("parameters", _count(target.parameters), _count(facts.parameters)),
        ("size on disk", _size(target.file_bytes), _size(bytes_)),
        ("hidden size", _number(about["hidden_size"]), _number(facts.hidden_size)),
        ("layers", _number(about["layers"]), reads),
        ("vocabulary", _number(about["vocab_size"]), _number(facts.vocab_size or None)),
        ("drafts", None, f"{drafts:,} of them" if own else "all of them"),
        ("most tokens", None, _number(facts.most_tokens) if facts.most_tokens else "any"),
    ])  # fmt: skip
    return Report("", [Text(verdict), table, *map(Text, report.notes)], data)


def _number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value / 1e6:,.1f} M"


def _size(value: int | None) -> str | None:
    return None if value is None else f"{value / 1e6:,.0f} MB"
