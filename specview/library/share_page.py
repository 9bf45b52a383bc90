"""A race as one HTML file that plays it: the template of assets/share, and the recorded rounds as compact JSON.

The page needs no network and no other file. Its policy (the Content-Security-Policy in the template) lets nothing be loaded,
and its script sets text as text only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specview import __version__
from specview.decoding.ledger import Candidate, DraftedToken, FinalToken, Round, end_words, finished
from specview.decoding.speedup import Speedup
from specview.decoding.verification import is_lossy
from specview.drafting.plain import is_baseline
from specview.drafting.registry import title as lane_title
from specview.errors import SpecviewError
from specview.files.atomic import os_reason
from specview.files.figures import rate
from specview.files.reader import Trace
from specview.files.schema import Json, dumps
from specview.files.tables import printable
from specview.files.verdict import fastest, standings, verdict
from specview.library.export_protocol import protocol
from specview.library.exporters import equality_words, shown_rates
from specview.library.replay import trace_document
from specview.models.assets import asset_path
from specview.settings.branch import known_branch

LIKELIEST = 4
"""How many of the likeliest tokens of each place are shown."""
LONGEST_NAME = 40
"""Characters of one of them."""
FOLDER = "share"


def share_page(trace: Trace, *, title: str = "", run_id: str = "", note: str = "", tags: Sequence[str] = ()) -> str:
    """Return the page; `title` stands at its top."""
    try:
        page, css, js = (asset_path(f"{FOLDER}/page.{ending}").read_text(encoding="utf-8") for ending in ("html", "css", "js"))
    except OSError as error:
        raise SpecviewError(f"the template of the page cannot be read: {os_reason(error)}.", "Install specview again.") from None
    document = trace_document(trace)
    data = page_data(trace, document, title or "A specview run")
    data["protocol"] = protocol(trace, document, run_id=run_id, note=note, tags=tags)
    parts = {"version": __version__, "css": css.strip(), "js": js.strip(), "data": dumps(data).replace("<", "\\u003c")}
    for name, text in parts.items():  # the data last: nothing is looked for in it
        page = page.replace(f"{{{{{name}}}}}", text)
    return page


def page_data(trace: Trace, document: Json, title: str) -> Json:
    """What the page's script reads: words, and per lane its figures and rounds.

    A round is [t, draft_s, verify_s, other_s, drafted, final, parents], without what is absent at its end. A drafted token is
    [text, verdict (a, r or i), p, q, accept, u, likeliest by p, likeliest by q], a final one [text, kind (c, b or p), p,
    likeliest by p]; a likely one is [text, probability].
    """
    stand = standings(document["lanes"])
    plain = next((place for place, one in enumerate(stand) if one.plain and not one.differs), None)
    said, winner = verdict(stand), fastest([one.speedup for one in stand], plain)
    branch, recorded = known_branch(trace.run), trace.run.get("recorded_at")
    when = f", recorded {recorded[:10]}" if isinstance(recorded, str) else ""
    lanes = [{**_lane(trace, index, lane), "won": index == winner} for index, lane in enumerate(document["lanes"])]
    return {
        "title": _line(title), "headline": _line(said.sentence), "rest": _line(said.rest),
        "prompt": printable(trace.prompt_text), "given": "" if branch is None else printable(branch.given),
        "made": f"Made by specview {__version__}{_line(when)}. Each lane's clock counts only its own work.", "lanes": lanes,
    }  # fmt: skip


def _lane(trace: Trace, index: int, document: Json) -> Json:
    record = trace.records[index]
    plain, rule, metrics = is_baseline(record.settings), record.settings.get("rule"), document["metrics"] or {}
    notes = []
    if is_lossy(rule):
        notes.append(f"lossy: the rule {rule} changes what the target would have said")
    if not finished(record.end):
        notes.append(end_words(record.end))
    over = document.get("speedup_over")
    if over and not Speedup.from_dict(over).whole:
        notes.append(f"over {over['tokens']:.0f} tokens, plain {rate(over['plain_tokens_per_s'])} tok/s in that time")
    equal = document.get("equal_to_plain")
    if equal is not None and not equal["equal"]:
        notes.append(f"the text {equality_words(equal)}")
    return {
        "name": _line(lane_title(record.name, str(record.settings.get("method") or ""))), "plain": plain, "rule": rule,
        "lossy": is_lossy(rule), "note": _line(" · ".join(notes)), "k": _line(str(record.settings.get("k") or "")),
        "recorded": {
            "speedup": 1.0 if plain else document.get("speedup"), "rate": shown_rates(document)[0],
            "per_pass": metrics.get("tokens_per_target_pass"), "accept": metrics.get("acceptance_rate"),
        },
        "rounds": [_round(one) for one in record.rounds],
    }  # fmt: skip


def _round(round_: Round) -> list[Any]:
    times = [_short(value, 6) for value in (round_.t, round_.draft_s, round_.verify_s, round_.other_s)]
    drafted = [_drafted(token) for token in round_.drafted]
    final = None if round_.final is None else _final(round_.final)
    return _cut([*times, drafted, final, None if round_.parents is None else list(round_.parents)])


def _drafted(token: DraftedToken) -> list[Any]:
    numbers = [_short(value) for value in (token.p, token.q, token.accept, token.u)]
    return _cut([printable(token.text), token.verdict[0], *numbers, _likeliest(token.p_top), _likeliest(token.q_top)])


def _final(token: FinalToken) -> list[Any]:
    return _cut([printable(token.text), token.kind[0], _short(token.p), _likeliest(token.p_top)])


def _likeliest(top: Sequence[Candidate]) -> list[list[Any]] | None:
    return [[printable(text)[:LONGEST_NAME], _short(p, 3)] for _, text, p in top[:LIKELIEST]] or None


def _short(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


def _cut(values: list[Any]) -> list[Any]:
    """Without the Nones at its end."""
    while values and values[-1] is None:
        values.pop()
    return values


def _line(text: str) -> str:
    return " ".join(printable(text).split())
