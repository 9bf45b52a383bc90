"""What a lane's panel says: its name, its one number and one line of figures, its verdict, its state. Plain Python: no Qt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specview.decoding.ledger import end_words, finished
from specview.decoding.metrics import Metrics, draft_full_words
from specview.decoding.speedup import Speedup
from specview.decoding.verification import RULES, is_lossy
from specview.drafting.plain import BASELINE
from specview.drafting.served import URL
from specview.files.figures import METRICS, MISSING, number, percent, rate, times_short
from specview.files.verdict import fastest
from specview.gui.state import figures
from specview.gui.state.view_model import LaneModel, RaceModel

Tone = Literal["neutral", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Words, their tone and what their tool tip says; fewer words where room is short."""

    text: str
    tone: Tone = "neutral"
    tip: str = ""
    short: str = ""


def short_model(name: str) -> str:
    """Shorten a model's path, file or hub id to what tells it apart."""
    last = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
    return last.removesuffix(".gguf") or name


def title(lane: LaneModel) -> str:
    """A lane's name as it is read: where it begins with its method's name, that method's label."""
    from specview.drafting.registry import title

    return title(lane.name, lane.method)


LOSSY = "lossy"


def lossy(settings: Mapping[str, Any]) -> str:
    """What to say beside the figures of a lane whose rule changes the output's distribution; '' for exact rules."""
    rule = str(settings.get("rule"))
    if not is_lossy(rule):
        return ""
    name = "typical, Medusa's own rule," if rule == "typical" else rule
    return f"Lossy: the rule {name} changes what the target would have said. Its speed is no exact method's."


def setup(settings: Mapping[str, Any]) -> list[Mark]:
    """What a lane is set up as: lossy if it is, draft, k, length policy, rule, then options that were changed."""
    if url := settings.get(f"option_{URL.name}"):
        return [
            Mark(str(url).partition("//")[2], tip=f"A server decodes this lane: {url}"),
            Mark("wall-clock", tip="Timed as its tokens arrive: it shares neither this device nor the virtual time of the lanes here."),
        ]
    if settings.get("method") in (None, BASELINE):
        return [Mark("one token a pass", tip="Plain decoding: every target pass gives one token.")]
    found: list[Mark] = []
    if (draft := settings.get("draft")) and (words := _draft_words(settings)):
        found.append(Mark(short_model(str(draft)), tip=f"{words}: {draft}"))
    if settings.get("k") is not None:
        found.append(Mark(f"k {settings['k']}", tip=_k_tip(settings)))
    if policy := settings.get("policy"):
        extra = [f"{k.removeprefix('policy_')} {v}" for k, v in settings.items() if k.startswith("policy_")]
        found.append(Mark(str(policy), tip=", ".join(["Draft length policy", *extra])))
    if rule := settings.get("rule"):
        found.append(Mark(str(rule), tip=f"Acceptance rule {rule}: {RULES[rule].tip if rule in RULES else ''}"))
        if words := lossy(settings):
            found.insert(0, Mark(LOSSY, "warning", words))
    longest, shortest = settings.get("option_ngram_max"), settings.get("option_ngram_min")
    if longest is not None and shortest is not None:
        found.insert(0, Mark(f"n {longest}–{shortest}", tip="Runs of last tokens looked up, longest first."))
    return found + _changed_options(settings)


def about(settings: Mapping[str, Any]) -> str:
    """What a lane is set up as, a line each, with what every part of it means."""
    return "\n".join(mark.text if not mark.tip else mark.tip if mark.text in mark.tip else f"{mark.text}: {mark.tip}" for mark in setup(settings))


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
    """The options that are not the default (or the preset's own value), members' options by their names."""
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
    # A preset that is not the default one is itself worth a word.
    return {**default, **overlay(known.options, known.presets, preset), "preset": default.get("preset")}


def members(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The members of a combined method's lane, in order; () for other lanes."""
    from specview.drafting.registry import METHODS

    method = METHODS.get(str(settings.get("method")))
    if method is None or not method.combines:
        return ()
    chosen = settings.get("option_members")
    return method.members({} if chosen is None else {"members": chosen})


def shares(names: Sequence[str], metrics: Metrics) -> Mark:
    """Each member's share of the drafts and its acceptance rate, in the members' order; before them how near it came to an oracle."""
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
        parts.insert(0, f"{percent(metrics.oracle_share)} of oracle")
        tips.append(METRICS["oracle_share"].tooltip(f"here {percent(metrics.oracle_share)}"))
    return Mark(" · ".join(parts), tip="\n".join(tips))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a lane's line: a figure between the words before and after it, or (tone) its verdict.

    short stands for the words after the figure, or for the verdict, where room is short.
    """

    name: str
    value: str
    before: str = ""
    after: str = ""
    short: str | None = None
    tip: str = ""
    tone: Tone | None = None

    def text(self, brief: bool = False) -> str:
        """The piece in words."""
        if self.tone is not None:
            return self.short if brief and self.short else self.value
        after = self.short if brief and self.short is not None else self.after
        return " ".join(part for part in (self.before, self.value, after) if part)


@dataclass(frozen=True, slots=True)
class BigFigure:
    """A lane's one number, its speedup: what stands small beside it, and what its tool tip says."""

    text: str
    spread: str = ""
    lossy: bool = False
    muted: bool = False
    tip: str = ""


def headline(lane: LaneModel, race: RaceModel, metrics: Metrics) -> BigFigure:
    """The number that a lane is read by; metrics are its `race.metrics`."""
    figure, speedup, told = METRICS["speedup"], race.speedup(lane), lossy(lane.settings)
    if lane.differs:
        return BigFigure(MISSING, muted=True, tip=figure.tooltip(f"Not comparable: {lane.differs}."))
    if lane.plain and lane is race.baseline:
        return BigFigure("1×" if lane.rounds else MISSING, muted=True, tip=figure.tooltip("This lane is plain decoding itself."))
    value, spread = (None, "") if speedup is None else (speedup.value, figures.spread(speedup))
    tip = figure.tooltip(figures.speedup_details(speedup, metrics))
    return BigFigure(
        times_short(value), spread and f"{spread}×", bool(told), lane.stale or value is None, "\n".join(filter(None, (tip, told)))
    )


def line(lane: LaneModel, race: RaceModel, metrics: Metrics) -> tuple[Piece, ...]:
    """A lane's line: tok/s, tokens a pass, acceptance rate, k, and the verdict on its output at the end."""
    speedup, told = race.speedup(lane), lossy(lane.settings)
    details = figures.details(metrics)

    def figure(name: str, value: Any, more: str = "", *, before: str = "", after: str = "", short: str | None = None) -> Piece:
        one = METRICS[name]
        tip = one.tooltip("\n".join(filter(None, (details.get(name, ""), more))))
        return Piece(name, one.text(value), before, after, short, "\n".join(filter(None, (tip, told))))

    over = _over(speedup)
    speed = figure("decode_tokens_per_s", figures.shown_rate(speedup, metrics), figures.beside(speedup),
                  after=f"tok/s over {over}" if over else "tok/s", short=f"vs {over.split(' ')[-1]} tok/s" if over else "tok/s")  # fmt: skip
    found = [speed]
    if not lane.plain:
        k, policy = lane.settings.get("k"), str(lane.settings.get("policy") or "constant")
        found += [
            figure("tokens_per_target_pass", metrics.tokens_per_target_pass, after="tokens a pass", short="tok/pass"),
            figure("acceptance_rate", metrics.acceptance_rate, before="accepts"),
        ]
        if k is not None:
            tip = f"{_k_tip(lane.settings)}\nDraft length policy: {policy}."
            found.append(Piece("k", str(k), "k", "" if policy == "constant" else policy, "", tip))
    mark = verdict(lane)
    if mark.text:
        found.append(Piece("verdict", mark.text, short=mark.short, tip=mark.tip, tone=mark.tone))
    return tuple(found)


def _over(speedup: Speedup | None) -> str:
    """Over how many tokens the figures beside plain's are, where they are not of whole runs, and plain's then; '' else."""
    if speedup is None or speedup.whole:
        return ""
    return f"{speedup.tokens:.0f} tokens, plain {rate(speedup.plain_tokens_per_s)}"


def winner(race: RaceModel) -> LaneModel | None:
    """The lane that was fastest, once all have ended; None before that, and where none is clearly ahead of the others."""
    plain = race.baseline
    if plain is None or not plain.rounds or any(lane.state != "ended" for lane in race.lanes):
        return None
    place = fastest([race.speedup(lane) if lane.rounds else None for lane in race.lanes], race.lanes.index(plain))
    return None if place is None else race.lanes[place]


def verdict(lane: LaneModel) -> Mark:
    """Return the one verdict on a lane's output; without words where there is none to give."""
    if lane.stale:
        return Mark("run before", "warning", "Target, prompt, lanes or sampling have changed since. Run again.")
    if lane.differs:
        return Mark(f"not comparable: {lane.differs}", "warning",
                    f"From a run with {lane.differs} than the first lane's: a speedup over that lane would mean nothing.",
                    "not comparable")  # fmt: skip
    if lane.plain:
        return Mark("")
    if lane.state == "ended" and not lane.rounds and lane.end in ("error", "stopped"):
        stopped = "Stopped before its first round: there is no output to judge."
        return Mark("did not run", *(("bad", lane.error) if lane.end == "error" else ("neutral", stopped)))
    rule, told, equality = str(lane.settings.get("rule", "auto")), lossy(lane.settings), lane.equality
    if equality is not None and equality.equal:
        tip = f"All {equality.compared} tokens compared are those of plain decoding."
        if told:
            return Mark(f"{LOSSY} · same text here", "warning", f"{tip}\n{told}", LOSSY)
        return Mark("✓ same text", "good", tip, "✓ same")
    if equality is not None and equality.first_difference is not None:
        return _difference(lane)
    if told:
        return Mark(LOSSY, "warning", f"{told}\n{rule}: {RULES[rule].tip}")
    if rule in RULES:
        return Mark("✓ exact", "good",
                    f"{rule}: {RULES[rule].tip}\nThe output is distributed as the target alone would give it.")  # fmt: skip
    return Mark("")


def _difference(lane: LaneModel) -> Mark:
    equality = lane.equality
    assert equality is not None
    margin, kernel = equality.logit_margin, equality.kernel_margin
    told = lossy(lane.settings)
    at = equality.first_difference
    tip = [f"The first token that differs from plain decoding's is at position {at}."]
    tone: Tone = "warning"
    if margin is not None:
        tip.append(f"There plain's two best logits are {margin:.3g} apart.")
    if kernel is not None:
        tip.append(f"One-row and many-row passes of this model file differ by up to {kernel:.3g} in a logit.")
        if margin is not None:
            inside = margin <= 2 * kernel
            tone = "neutral" if inside else "bad"
            tip.append("So a near tie fell the other way: rounding, not a fault." if inside
                       else "That does not explain the difference.")  # fmt: skip
    else:
        tip.append("How far one-row and many-row passes of this file differ was not measured.")
    if told:
        tip.append(f"{told} So a difference is expected.")
        return Mark(f"{LOSSY} · ≠ differs at {at}", "warning", "\n".join(tip), LOSSY)
    return Mark(f"≠ differs at {at}", tone, "\n".join(tip), f"≠ at {at}")


def state(lane: LaneModel) -> Mark:
    """Return the words for what a lane is doing or how it ended, and where its draft went silent."""
    mark = _state(lane)
    if lane.table.draft_full is None:
        return mark
    at, context = lane.table.draft_full
    tip = "\n".join(part for part in (draft_full_words(at, context), mark.tip) if part)
    tone: Tone = "bad" if mark.tone == "bad" else "warning"
    return Mark(f"{mark.text} · no drafts from token {at + 1}", tone, tip)


def notice(lane: LaneModel) -> Mark:
    """What has to be said of a lane beneath its text: an error, a stop, a draft that went silent; mostly nothing."""
    mark = state(lane)
    return Mark("") if mark.tone == "neutral" else mark


def progress(lane: LaneModel) -> tuple[float | None, str]:
    """How far a lane is, 0 to 1 (None: not known), and in words."""
    words = state(lane).text
    if lane.state in ("loading", "prefill"):
        return lane.progress, words
    limit = lane.settings.get("max_tokens")
    if not lane.rounds:
        return 0.0, words
    if not isinstance(limit, int) or limit <= 0:
        return (1.0 if lane.state == "ended" else None), f"{lane.emitted} tokens, {words}"
    limit = max(limit, lane.emitted) if lane.state != "ended" or lane.end == "limit" else limit
    return min(1.0, lane.emitted / limit), f"{lane.emitted} of {limit} tokens, {words}"


_ENDS: Mapping[str | None, Mark] = {
    "eos": Mark("ended by itself (EOS)", tip="The model gave its end-of-sequence token."),
    "limit": Mark("token limit reached", tip="Continue to go on past the limit."),
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
        return "No tokens."
    if lane.state in ("loading", "prefill"):
        return "The text streams here once the prompt is read."
    if lane.state == "running":
        return "First round under way."
    if lane.plain:
        return "Plain decoding, the baseline. Press Run: its tokens stream here."
    return "Press Run: tokens stream here, coloured by how they got there."
