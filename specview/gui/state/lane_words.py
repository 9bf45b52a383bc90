"""What a lane's panel says: chips, badge, state. Plain Python: no Qt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specview.decoding.ledger import end_words, finished
from specview.decoding.metrics import Metrics, draft_full_words
from specview.decoding.verification import RULES, is_lossy
from specview.drafting.plain import BASELINE
from specview.files.figures import METRICS, number, percent
from specview.gui.state.view_model import LaneModel

Tone = Literal["neutral", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A chip or badge: its words, its tone and what its tool tip says; fewer words where room is short."""

    text: str
    tone: Tone = "neutral"
    tip: str = ""
    short: str = ""


def short_model(name: str) -> str:
    """Shorten a model's path, file or hub id to what tells it apart."""
    last = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
    return last.removesuffix(".gguf") or name


LOSSY = "lossy"


def lossy(settings: Mapping[str, Any]) -> str:
    """What to say beside the figures of a lane whose rule changes the output's distribution; '' for exact rules."""
    rule = str(settings.get("rule"))
    if not is_lossy(rule):
        return ""
    name = "typical, Medusa's own rule," if rule == "typical" else rule
    return f"Lossy: the rule {name} changes what the target would have said. Its speed is no exact method's."


def chips(settings: Mapping[str, Any]) -> list[Mark]:
    """Return the chips of a lane: draft, k, length policy, rule, then options that were changed."""
    if settings.get("method") in (None, BASELINE):
        return [Mark("one token a pass", tip="Plain decoding: every target pass gives one token.")]
    found: list[Mark] = []
    if (draft := settings.get("draft")) and (words := _draft_words(settings)):
        found.append(Mark(short_model(str(draft)), tip=f"{words}: {draft}"))
    if settings.get("k") is not None:
        found.append(Mark(f"k {settings['k']}", tip=_k_tip(settings)))
    if policy := settings.get("policy"):
        tip = "Draft length policy."
        extra = [f"{k.removeprefix('policy_')} {v}" for k, v in settings.items() if k.startswith("policy_")]
        found.append(Mark(str(policy), tip="\n".join([tip, *extra])))
    if rule := settings.get("rule"):
        found.append(Mark(str(rule), tip=f"Acceptance rule {rule}: {RULES[rule].tip if rule in RULES else ''}"))
        if words := lossy(settings):
            found.insert(0, Mark(LOSSY, "warning", words))
    longest, shortest = settings.get("option_ngram_max"), settings.get("option_ngram_min")
    if longest is not None and shortest is not None:
        found.insert(0, Mark(f"n {longest}–{shortest}", tip="Runs of last tokens looked up, longest first."))
    return found + _changed_options(settings)


def _draft_words(settings: Mapping[str, Any]) -> str:
    """What the lane's draft names; '' where only members' own heads draft, which are among the options."""
    from specview.drafting.registry import METHODS

    method = METHODS.get(str(settings.get("method")))
    if method is None or method.needs_draft_model:
        return "Draft model"
    if method.head:
        return "Trained head"
    chosen = settings.get("option_members")
    own = {} if chosen is None else {"members": chosen}
    names = (settings.get(f"option_{name}.head") for name in method.heads(own))
    return "Draft model" if method.needs_draft(own) else "" if any(names) else "Trained head"


def _k_tip(settings: Mapping[str, Any]) -> str:
    from specview.drafting.registry import METHODS

    method = METHODS.get(str(settings["method"]))
    if method is not None and method.combines:
        return "The longest draft that a member may make in a round."
    if method is not None and method.shape is not None and settings.get("option_tree") != "chain":
        return "The longest path of a round's draft. Guesses branch, so a round may draft more tokens in all."
    return "Tokens drafted in a round, at most."


def _changed_options(settings: Mapping[str, Any]) -> list[Mark]:
    """Chips of the options that are not the default (or the preset's own value), members' options by their names."""
    options = {
        key.removeprefix("option_"): value for key, value in settings.items() if key.startswith("option_")
    }
    method = str(settings.get("method"))
    found = []
    for name, value in options.items():
        member, dot, own = name.rpartition(".")
        owner = member if dot else method
        theirs = {k.removeprefix(f"{member}."): v for k, v in options.items()} if dot else options
        standing = _standing(owner, theirs)
        if name in ("ngram_max", "ngram_min") or standing.get(own) == value:
            continue
        shown = " → ".join(str(value).split("+")) if name == "members" else _short(value)
        words = f"{own.replace('_', ' ')} {shown}"
        found.append(Mark(f"{member} {words}" if dot else shown if name == "members" else words,
                          tip=f"Option {name} = {value}"))
    return found


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "on" if value is True else "off" if value is False else str(value)


def _standing(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a method's options are where only its preset was chosen."""
    from specview.drafting.registry import METHODS
    from specview.settings.options import overlay

    known = METHODS.get(method)
    if known is None:
        return {}
    default = {option.name: option.default for option in known.options}
    preset = {"preset": options["preset"]} if "preset" in options else {}
    # A preset that is not the default one is itself worth a chip.
    return {**default, **overlay(known.options, known.presets, preset), "preset": default.get("preset")}


def members(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The members of a combined method's lane, in order; () for other lanes."""
    from specview.drafting.registry import METHODS

    method = METHODS.get(str(settings.get("method")))
    if method is None or not method.combines:
        return ()
    chosen = settings.get("option_members")
    return method.members({} if chosen is None else {"members": chosen})


def oracle(metrics: Metrics) -> list[str]:
    """How near a lane came to an oracle, in words; [] while that is not known."""
    share = metrics.oracle_share
    return [] if share is None else [f"{percent(share)} of oracle"]


def shares(names: Sequence[str], metrics: Metrics) -> Mark:
    """Each member's share of the drafts and its acceptance rate, in the members' order."""
    by = metrics.by_drafter
    parts: list[str] = []
    tips: list[str] = []
    for name in (*names, *(other for other in by if other not in names)):
        own = by.get(name)
        if own is None:
            parts.append(f"{name} 0%")
            tips.append(f"{name}: drafted nothing")
            continue
        parts.append(f"{name} {percent(own['share'])} α {number(own['acceptance_rate'])}")
        tips.append(
            f"{name}: {own['rounds']:.0f} drafts, {percent(own['share'])} of all; accepted / judged "
            f"{own['accepted']:.0f} / {own['judged']:.0f} = {number(own['acceptance_rate'])}; "
            f"accepted / proposed {number(own['draft_acceptance'])}"
        )
    if not by:
        return Mark(" → ".join(names), tip="Members in order. Their shares show here once they draft.")
    tips.insert(0, "Share of this lane's rounds with a draft, and acceptance rate α, by member:")
    if metrics.oracle_share is not None:
        tips.append(METRICS["oracle_share"].tooltip(f"here {percent(metrics.oracle_share)}"))
    return Mark(" · ".join(parts), tip="\n".join(tips))


def badge(lane: LaneModel) -> Mark:
    """Return the one verdict on a lane's output."""
    if lane.differs:
        return Mark(f"not comparable: {lane.differs}", "warning",
                    f"From a run with {lane.differs} than the first lane's: a speedup over that lane would mean nothing.")
    if lane.plain:
        return Mark("baseline, measured", tip="The target alone, on the same prompt and device, timed beside the others.")
    if lane.state == "ended" and lane.end == "error" and not lane.rounds:
        return Mark("did not run", "bad", lane.error)
    if lane.state == "ended" and lane.end == "stopped" and not lane.rounds:
        return Mark("did not run", tip="Stopped before its first round: there is no output to judge.")
    rule = str(lane.settings.get("rule", "auto"))
    equality = lane.equality
    told = lossy(lane.settings)
    if equality is not None and equality.equal and told:
        return Mark(f"{LOSSY} · = plain here, {equality.compared} tokens", "warning",
                    f"All {equality.compared} tokens compared are those of plain decoding.\n{told}")
    if equality is not None and equality.equal:
        return Mark(f"= plain, {equality.compared} tokens", "good",
                    f"All {equality.compared} tokens compared are those of plain decoding.", "= plain")
    if equality is not None and equality.first_difference is not None:
        return _difference(lane)
    if is_lossy(rule):
        return Mark("lossy rule", "warning", f"{told}\n{rule}: {RULES[rule].tip}")
    if rule in RULES:
        return Mark("✓ exact rule", "good",
                    f"{rule}: {RULES[rule].tip}\nThe output is distributed as the target alone would give it.")
    return Mark(f"rule {rule}", tip="The rule is chosen when the run starts: greedy at temperature 0, else rejection.")


def _difference(lane: LaneModel) -> Mark:
    equality = lane.equality
    assert equality is not None
    margin, kernel = equality.logit_margin, equality.kernel_margin
    told = lossy(lane.settings)
    words = f"{LOSSY} · ≠ plain at {equality.first_difference}" if told else f"≠ plain at {equality.first_difference}"
    tip = [f"The first token that differs from plain decoding's is at position {equality.first_difference}."]
    tone: Tone = "warning"
    if margin is not None:
        words += f" · margin {margin:.2g}"
        tip.append(f"There plain's two best logits are {margin:.3g} apart.")
    if kernel is not None:
        tip.append(f"One-row and many-row passes of this model file differ by up to {kernel:.3g} in a logit.")
        if margin is not None:
            inside = margin <= 2 * kernel
            tone = "neutral" if inside else "bad"
            tip.append("So a near tie fell the other way: rounding, not a fault." if inside
                       else "That does not explain the difference.")
    else:
        tip.append("How far one-row and many-row passes of this file differ was not measured.")
    if told:
        tip.append(f"{told} So a difference is expected.")
        tone = "warning"
    return Mark(words, tone, "\n".join(tip))


def state(lane: LaneModel) -> Mark:
    """Return the words for what a lane is doing or how it ended, and where its draft went silent."""
    mark = _state(lane)
    if lane.stale:
        tip = "\n".join(part for part in ("Target, prompt, lanes or sampling have changed since. Run again.", mark.tip) if part)
        mark = Mark(f"the run before · {mark.text}", mark.tone, tip, f"run before · {mark.short or mark.text}")
    if lane.table.draft_full is None:
        return mark
    at, context = lane.table.draft_full
    tip = "\n".join(part for part in (draft_full_words(at, context), mark.tip) if part)
    tone: Tone = "bad" if mark.tone == "bad" else "warning"
    return Mark(f"{mark.text} · no drafts from token {at + 1}", tone, tip, f"{mark.short or mark.text} · no drafts")


_ENDS: Mapping[str | None, Mark] = {
    "eos": Mark("ended by itself (EOS)", tip="The model gave its end-of-sequence token.", short="EOS"),
    "limit": Mark("token limit reached", tip="Continue to go on past the limit.", short="limit"),
    "context": Mark("context full", "warning", "The target takes no more tokens, prompt and output together: a longer "
                    "context, or a shorter prompt, gives more."),
    "stopped": Mark("stopped", "warning", "Stopped by you; what was decoded is kept."),
}  # fmt: skip


def _state(lane: LaneModel) -> Mark:
    if lane.state == "idle":
        return Mark("not started" if lane.rounds else "ready")
    if lane.state != "ended":
        usual = {"prefill": "reading the prompt", "loading": "waiting"}.get(lane.state, "running")
        return Mark(lane.progress_text or usual)
    if finished(lane.end):
        return _ENDS.get(lane.end) or Mark(end_words(lane.end))
    return _ENDS.get(lane.end) or Mark(lane.error or "ended by an error", "bad", lane.error)


def placeholder(lane: LaneModel) -> str:
    """Return the words of an empty text area."""
    if lane.state == "ended":
        return lane.error or "No tokens."
    if lane.state in ("loading", "prefill"):
        return "The text streams here once the prompt is read."
    if lane.state == "running":
        return "First round under way."
    if lane.plain:
        return "Plain decoding, the baseline. Press Run: its tokens stream here."
    return "Press Run: tokens stream here, coloured by how they got there."
