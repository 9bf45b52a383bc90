"""The setup in words: a model's name, what a rule comes to, and the settings that make a difference. No Qt."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES, idle_rule_note, resolve_rule, rule_label
from specview.errors import SpecviewError
from specview.fields import Setting
from specview.settings.run import BUNDLED, RunSettings, shared_settings

SETTINGS = {name: one for name, one in shared_settings().items() if one.form}
"""Every setting that has a field in the window's setup, by name: what declares a form."""


def model_name(ref: str, role: str = "target") -> str:
    """Name a model by its reference: bundled, a path or a hub id."""
    if ref == BUNDLED:
        return "SmolLM2-135M-Instruct" if role == "target" else "specview draft"
    name = Path(ref).name if "/" in ref or "\\" in ref else ref
    return name.removesuffix(".gguf") or ref


def rule_words(rule: str, sampling: SamplingParams) -> tuple[str, str]:
    """The rule that `rule` comes to with this sampling, named, and what it does here."""
    try:
        rule = resolve_rule(rule, sampling)
    except SpecviewError:
        pass  # Run refuses it, and says why
    tip = RULES[rule].tip if rule in RULES else ""
    return rule_label(rule), " ".join(filter(None, (tip, idle_rule_note(rule, sampling))))


def setup_parts(run: RunSettings, rule: str, without: Collection[str] = ()) -> list[str]:
    """What the lanes of a run share, in short parts, the most telling first: 'temperature 0.7', 'match', '192 tokens'.

    rule is the one of lanes that have none of their own. Of the other settings those count that differ from the usual,
    and without names those of which nothing is said.
    """
    sampling = run.sampling
    parts: list[str] = []
    later: list[str] = []
    if "temperature" not in without:
        parts.append("greedy" if sampling.greedy else f"temperature {sampling.temperature:g}")
    if rule != "auto" and "rule" not in without:
        parts.append(f"rule {rule}")
    for name, one in SETTINGS.items():
        value = getattr(sampling if hasattr(sampling, name) else run, name)
        idle = sampling.greedy and "temperature" not in without and (name == "seed" or one.form == "Filters")
        if name not in (*without, "temperature", "max_tokens") and value != one.default and not idle:
            (parts if one.form in ("Filters", "Penalties") else later).append(_part(one, value))
    if "max_tokens" not in without:
        parts.append(f"{run.max_tokens:,} {'token' if run.max_tokens == 1 else 'tokens'}")
    prompt = [words for words, said in (
        ("raw", not run.chat), ("system text", bool(run.system)), (f"template {run.chat_template}", bool(run.chat_template))
    ) if said and words not in without]  # fmt: skip
    return parts + later + prompt


def _part(one: Setting, value: Any) -> str:
    """One setting that differs from the usual."""
    if one.repeated:
        return f"{len(value)} {one.words}{'' if len(value) == 1 else 's'}"
    if isinstance(value, bool):
        return one.words
    return f"{one.words} {value:g}" if isinstance(value, float) else f"{one.words} {value}"


def taken_words(run: RunSettings, own: Collection[str] = ()) -> str:
    """What a view takes from the race that is set up, but for what it sets itself (settings, or the prompt)."""
    parts = [f"{model_name(run.target)} ({run.engine})", *setup_parts(run, "auto", own)]
    return "with " + " · ".join(parts if "prompt" in own else [*parts, _prompt(run)])


def _prompt(run: RunSettings) -> str:
    """Which prompt it is, in short: the workload's name, or how it begins."""
    if run.workload:
        return f"the prompt '{run.workload}'"
    text = " ".join(run.prompt.split())
    return f"the prompt “{text[:32].rstrip()}{'…' if len(text) > 32 else ''}”" if text else "no prompt"
