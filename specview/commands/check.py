"""`specview check TARGET DRAFT`: whether this draft or trained head can serve this target, how, and why not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specview.commands.arguments import Parser
from specview.commands.outputs import Outputs
from specview.commands.running import stop_on_signals
from specview.commands.terminal import ProgressLine, safe_text, table
from specview.decoding.interfaces import Engine
from specview.decoding.verification import RULES
from specview.engines.declared import of_gguf
from specview.engines.gguf_file import gguf_facts
from specview.engines.transformers_tokenizer import load_tokenizer
from specview.errors import EngineMissing, SpecviewError, UsageError
from specview.files.schema import Json
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
    for flag in ("engine", "draft_engine"):
        value = getattr(arguments, flag)
        if value not in (None, *ENGINES):
            raise UsageError(f"there is no engine {value!r}.", f"Engines: {', '.join(ENGINES)}.")
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        target = _find(arguments.target, arguments.engine, "target")
        head = named_head(arguments.draft, target.path)
        if head is not None:
            return _check_head(target, head, arguments, outputs, should_stop)
        # The bundled draft comes as a file of each kind: take the one of the target's engine.
        default = target.engines[0] if arguments.draft.strip() == BUNDLED else None
        draft = _find(arguments.draft, arguments.draft_engine or arguments.engine or default, "draft")
        facts = {"target": _facts(target), "draft": _facts(draft)}
        engines = (arguments.engine, arguments.draft_engine or arguments.engine)
        problem = _engine_problem(target, engines[0]) or _engine_problem(draft, engines[1])
        report = None
        if problem or not arguments.load:
            report = pair_from_files(_tokenizer_of(target), _tokenizer_of(draft), (target.name, draft.name))
        if report is None and not problem:
            report, problem = _loaded(target, draft, engines, should_stop)
        if problem:
            report = _refused(report, problem)
        assert report is not None
        notes = [*_size_notes(facts["target"], facts["draft"]), *_declared(target)]
        outputs.document(_document(facts, report, notes))
        if not outputs.to_stdout:
            sys.stdout.write(safe_text(_text(facts, report, notes)))
    return 0 if report.ok else 1


def _check_head(
    target: ModelRef, head: Path, arguments: Any, outputs: Outputs, should_stop: Callable[[], bool]
) -> int:
    """Tell whether a head serves the target; 0 where it does, else 1."""
    assert target.path is not None
    if arguments.draft_engine is not None:
        raise UsageError("--draft-engine is for models: a head runs beside its target.", "Leave it out.")
    report = check_head(target.path, head, target_name=target.name)
    problem = _engine_problem(target, arguments.engine)
    if arguments.load and report.ok and not problem:
        problem = _head_loaded(target, arguments.engine, head, report, should_stop)
    if problem:
        report = replace(report, ok=False, reason=problem, question="")
    facts = _facts(target)
    report = replace(report, notes=(*report.notes, *_declared(target)))
    outputs.document(_head_document(facts, report, head))
    if not outputs.to_stdout:
        sys.stdout.write(safe_text(_head_text(facts, report, head)))
    return 0 if report.ok else 1


def _head_bytes(report: HeadReport) -> int | None:
    if report.facts is None:
        return None
    files = {stored.file for _, stored in report.facts.tensors.values()}
    return sum(file.stat().st_size for file in files)


def _head_document(target: ModelFacts, report: HeadReport, head: Path) -> Json:
    about, facts = report.target, report.facts
    found = asdict(target)
    for key in ("hidden_size", "layers", "vocab_size"):
        found[key] = getattr(about, key, None)
    return {
        "ok": report.ok,
        "reason": report.reason or None,
        "mode": "head",
        "question": report.question or None,
        "notes": list(report.notes),
        "target": found,
        "head": None
        if facts is None
        else {
            "name": head.resolve().name,
            "kind": facts.kind,
            "layout": facts.layout,
            "trained_for": facts.target_name or None,
            "hidden_size": facts.hidden_size,
            "reads_layers": list(report.aux_layers) or None if facts.aux_ids or report.aux_layers else None,
            "vocabulary": facts.vocab_size or None,
            "draft_vocabulary": facts.draft_vocab_size or None,
            "most_tokens": facts.most_tokens,
            "own_embedding": facts.own_embedding,
            "own_output": facts.own_output,
            "parameters": facts.parameters,
            "file_bytes": _head_bytes(report),
        },
    }


def _head_text(target: ModelFacts, report: HeadReport, head: Path) -> str:
    about, facts = report.target, report.facts
    if report.ok and report.question:
        verdict = f"yes, once you say how to read it: {report.question}"
    elif report.ok:
        verdict = f"yes: {head.resolve().name} can draft for {target.name}."
    else:
        verdict = f"no: {report.reason}"
    if facts is None:
        return f"{verdict}\n"
    layers = ", ".join(map(str, report.aux_layers))
    reads = f"after {layers}" if layers else "-" if facts.kind in ("eagle3", "p-eagle") else "the last"
    drafts = facts.draft_vocab_size or facts.vocab_size
    own = drafts != facts.vocab_size and bool(facts.vocab_size)
    rows = [
        ["", "target", "head"],
        ["model", target.name, head.resolve().name],
        ["kind", target.architecture, KIND_WORDS[facts.kind].removeprefix("an ").removeprefix("a ")],
        ["layout", "-", facts.layout],
        ["trained for", "-", facts.target_name or "-"],
        ["parameters", _count(target.parameters), _count(facts.parameters)],
        ["size on disk", _size(target.file_bytes), _size(_head_bytes(report))],
        ["hidden size", _number(about.hidden_size if about else None), _number(facts.hidden_size)],
        ["layers", _number(about.layers if about else None), reads],
        ["vocabulary", _number(about.vocab_size if about else None), _number(facts.vocab_size or None)],
        ["drafts", "-", f"{drafts:,} of them" if own else "all of them"],
        ["most tokens", "-", _number(facts.most_tokens) if facts.most_tokens else "any"],
    ]
    return "".join([f"{verdict}\n\n", table(rows, left=3), *(f"{note}\n" for note in report.notes)])


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
            model.name, gguf.architecture, gguf.parameters, gguf.file_bytes, gguf.context_length, model.engines
        )
    folder = inspect_folder(path, needs_tokenizer=False)
    nested = folder.config.get("text_config")
    configs: list[Mapping[str, Any]] = [folder.config, *([nested] if isinstance(nested, Mapping) else [])]
    lengths = (config.get(key) for config in configs for key in _CONTEXT_KEYS)
    context = next((length for length in lengths if isinstance(length, int)), None)
    return ModelFacts(model.name, folder.model_type, folder.parameters, folder.file_bytes, context, model.engines)


def _loaded(
    target: ModelRef, draft: ModelRef, engines: tuple[str | None, str | None], should_stop: Callable[[], bool]
) -> tuple[PairReport, str | None]:
    """The report on the loaded models, and why the target cannot be drafted for at all (or None)."""
    progress = ProgressLine(sys.stderr)
    opened: list[Engine] = []
    try:
        for model, engine, role in ((target, engines[0], "target"), (draft, engines[1], "draft")):
            opened.append(
                load_engine(
                    model,
                    engine or model.engines[0],
                    role="target" if role == "target" else "draft",
                    progress=progress.show,
                    should_stop=should_stop,
                )
            )
        problem = opened[0].rollback_problem
        return check_pair(*opened), f"{target.name} cannot be drafted for: {problem}" if problem else None
    finally:
        progress.clear()
        for engine_ in opened:
            engine_.close()


def _head_loaded(
    target: ModelRef, engine: str | None, head: Path, report: HeadReport, should_stop: Callable[[], bool]
) -> str | None:
    """Why a head does not load beside its loaded target, or None. One with an open question is not loaded itself."""
    assert report.facts is not None
    progress = ProgressLine(sys.stderr)
    opened: Engine | None = None
    try:
        opened = load_engine(
            target, engine or target.engines[0], role="target", progress=progress.show, should_stop=should_stop
        )
        problem = opened.rollback_problem or opened.features_problem
        if problem:
            return f"{target.name} cannot be drafted for: {problem}"
        if not report.question:
            try:
                load_head(report.facts.kind, str(head), opened, progress=progress.show, should_stop=should_stop)
            except EngineMissing:
                raise
            except SpecviewError as error:
                return str(error)
        return None
    finally:
        progress.clear()
        if opened is not None:
            opened.close()


def _engine_problem(model: ModelRef, engine: str | None) -> str | None:
    if engine is None or engine in model.engines:
        return None
    kind = model.architecture or model.kind
    return f"the {engine} engine cannot load {model.name} ({kind}). Choose the {model.engines[0]} engine for it."


def _refused(report: PairReport | None, reason: str) -> PairReport:
    return replace(report or PairReport(False), ok=False, reason=reason, approach={}, notes=())


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


def _document(facts: Mapping[str, ModelFacts], report: PairReport, notes: Sequence[str]) -> Json:
    found = {role: asdict(model) for role, model in facts.items()}
    found["target"]["vocabulary"], found["draft"]["vocabulary"] = report.target_vocab, report.draft_vocab
    return {
        "ok": report.ok,
        "reason": report.reason or None,
        "mode": report.mode,
        "approach": dict(report.approach),
        "shared": report.shared,
        "share": report.share,
        "different": report.different,
        "first_difference": list(report.differences[0]) if report.differences else None,
        "notes": [*report.notes, *notes],
        **found,
    }


def _text(facts: Mapping[str, ModelFacts], report: PairReport, notes: Sequence[str]) -> str:
    target, draft = facts["target"], facts["draft"]
    if not report.ok:
        verdict = f"no: {report.reason}"
    elif report.mode == "same":
        verdict = f"yes: {draft.name} can draft for {target.name}; they have the same tokenizer."
    else:
        verdict = f"yes, translated: {report.reason}"
    rows = [
        ["", "target", "draft"],
        ["model", target.name, draft.name],
        ["architecture", target.architecture, draft.architecture],
        ["parameters", _count(target.parameters), _count(draft.parameters)],
        ["size on disk", _size(target.file_bytes), _size(draft.file_bytes)],
        ["context length", _number(target.context_length), _number(draft.context_length)],
        ["vocabulary", _number(report.target_vocab), _number(report.draft_vocab)],
        ["engines", ", ".join(target.engines), ", ".join(draft.engines)],
    ]
    parts = [f"{verdict}\n\n", table(rows, left=3)]
    if report.mode == "foreign":
        parts.append(f"shared texts    {report.shared:,}, {percent(report.share, 1)} of the target's\n")
    if report.ok:
        rules: dict[str, list[str]] = {}
        for rule, how in report.approach.items():
            rules.setdefault(how, []).append(rule)
        parts.append("\n")
        parts += [f"rules {', '.join(names)}: {WORDS[how]}\n" for how, names in rules.items()]
        unserved = [rule for rule in RULES if rule not in report.approach]
        if unserved:
            parts.append(f"rules {', '.join(unserved)}: not with this draft, for no token is shared\n")
    told = report.notes if report.mode == "same" else ()
    return "".join([*parts, *(f"{note}\n" for note in [*told, *notes])])


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.1f} M"


def _size(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.0f} MB"
