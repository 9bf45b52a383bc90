"""The tour's pictures: each paints a moment of a few seconds from the recorded numbers, and starts again when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QFontMetricsF, QPainter

from specview.decoding.ledger import Round
from specview.decoding.phases import Stage, stages
from specview.files.figures import milliseconds, probability
from specview.gui.lanes.marks import lane_colour
from specview.gui.parts import theme
from specview.gui.parts.lane_markers import paint_marker
from specview.gui.parts.painted import CENTRE, LEFT, RIGHT, box, ink, pen, words_in
from specview.gui.parts.token_paint import TokenStyles
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel
from specview.gui.tour.story import TourRun, round_time, speed_text

TEXT_PX, TOKEN_PX = 14, 20
HOLD_S = 2.5
"""How long a picture's last moment stays."""


def part(t: float, begin: float, span: float) -> float:
    """How much of something that takes `span` seconds from `begin` on is done, 0 to 1."""
    return min(max((t - begin) / span, 0.0), 1.0)


def shown_text(text: str) -> str:
    """A token as it stands in a box: without the space before the word, blanks by their signs."""
    return visible(text.strip(" ") or text.replace(" ", "·"))


class Figure:
    """A picture that moves. length: seconds until all of it is there; said: what it shows, for who cannot see it."""

    length = 5.0
    said = ""

    def __init__(self, run: TourRun) -> None:
        self.run = run

    def paint(self, painter: QPainter, area: QRectF, t: float) -> None:
        """Paint the moment t, seconds from its start."""
        raise NotImplementedError


def _line(painter: QPainter, area: QRectF, text: str, tone: str = "ink", *, size: float = TEXT_PX, bold: bool = False,
          flags: int = LEFT) -> None:  # fmt: skip
    words_in(painter, area, text, theme.ui_font(size, bold=bold), ink(tone), flags)


def _model(painter: QPainter, area: QRectF, name: str, busy: float) -> None:
    """A model: a box with its name, brighter while it works."""
    now = theme.current()
    box(painter, area, pen(QColor(now.focus if busy else now.border), theme.px(2)), QColor(now.field), theme.px(8))
    if busy:
        done = area.adjusted(theme.px(8), area.height() - theme.px(10), -theme.px(8), -theme.px(6))
        done.setWidth(done.width() * busy)
        box(painter, done, None, QColor(now.focus), theme.px(2))
    words_in(painter, area, name, theme.ui_font(TEXT_PX, bold=True), ink("ink"), CENTRE)


class PlainFigure(Figure):
    """Plain decoding: a pass, a token, a pass, a token."""

    SHOWN, PASS_S = 8, 0.8

    def __init__(self, run: TourRun) -> None:
        super().__init__(run)
        self.rounds = [round_ for round_ in run.plain.rounds if round_.final is not None][: self.SHOWN]
        self.length = len(self.rounds) * self.PASS_S
        self.said = f"{len(self.rounds)} passes of the target, one after the other, give {len(self.rounds)} tokens."

    def paint(self, painter: QPainter, area: QRectF, t: float) -> None:
        styles, unit = TokenStyles(TOKEN_PX), theme.px(1)
        done = min(int(t / self.PASS_S), len(self.rounds))
        busy = part(t, done * self.PASS_S, self.PASS_S) if done < len(self.rounds) else 0.0
        model = QRectF(area.center().x() - 90 * unit, area.top() + 8 * unit, 180 * unit, 64 * unit)
        _model(painter, model, "target model", busy)
        widths = [max(_wide(styles, shown_text(_final(round_))), 52 * unit) for round_ in self.rounds]
        gap = 8 * unit
        x, top = area.center().x() - (sum(widths) + gap * (len(widths) - 1)) / 2, model.bottom() + 50 * unit
        for place, (round_, width) in enumerate(zip(self.rounds, widths, strict=True)):
            if place < done:
                fresh = place == done - 1 and busy < 0.35
                drop = (1 - part(t, done * self.PASS_S, 0.2)) * 30 * unit if fresh else 0.0
                _chip(painter, styles, "plain", x, top - drop, width, shown_text(_final(round_)))
                _line(painter, QRectF(x - gap, top + styles.line_height, width + 2 * gap, 24 * unit), f"pass {place + 1}", "muted",
                      size=11, flags=CENTRE)  # fmt: skip
            x += width + gap
        clock = self.rounds[done - 1].t if done else 0.0
        counted = f"{done} {'pass' if done == 1 else 'passes'}, {done} {'token' if done == 1 else 'tokens'}: {'it' if done == 1 else 'these'} took {milliseconds(clock)}"
        _line(painter, QRectF(area.left(), top + styles.line_height + 36 * unit, area.width(), 30 * unit), counted, size=17, bold=True,
              flags=CENTRE)  # fmt: skip


def _wide(styles: TokenStyles, text: str) -> float:
    return styles.measure(text, False) + 2 * styles.pad


def _chip(painter: QPainter, styles: TokenStyles, kind: str, x: float, top: float, room: float, text: str) -> None:
    """A token in its look, in the middle of its room; a plain one in a box."""
    ghost = kind in ("rejected", "ignored")
    wide = styles.measure(text, ghost) + 2 * styles.pad
    x += (room - wide) / 2
    if kind == "plain":
        box(painter, styles.chip(x, top, wide), pen(ink("border"), 1), QColor(theme.current().field))
    styles.paint_sample(painter, kind, x, top, text)


def _final(round_: Round) -> str:
    assert round_.final is not None
    return round_.final.text


class RoundFigure(Figure):
    """One round in its phases: the text so far, the guesses and what becomes of them, the two models at work.

    first and last: the stages that are played, by number; the others are there from the start, or do not come.
    """

    STAGE_S, BEGIN_S, PASS_S = 1.0, 0.6, 1.6

    def __init__(self, run: TourRun, round_: Round, before: Sequence[str], first: str = "draft", last: str = "") -> None:
        super().__init__(run)
        self.round, self.before = round_, [text for text in before if not text.isspace()][-4:]
        self.stages = stages(round_)
        names: list[str] = [stage.name for stage in self.stages]
        self.first = names.index(first)
        self.last = max(place for place, name in enumerate(names) if name == last) if last else len(names) - 1
        self.starts, at = [], self.BEGIN_S
        for place, stage in enumerate(self.stages):
            self.starts.append(0.0 if place < self.first else at)
            if self.first <= place <= self.last:
                at += self.PASS_S if stage.name == "verify" else self.STAGE_S
        self.length = at
        self.said = ". ".join(stage.words for stage in self.stages[self.first : self.last + 1]).capitalize() + "."

    def at(self, t: float) -> tuple[Stage | None, str, float]:
        """What is there at a moment, which stage is under way, and how much of that is done."""
        there: Stage | None = self.stages[self.first - 1] if self.first else None
        for place in range(self.first, self.last + 1):
            stage, start = self.stages[place], self.starts[place]
            span = self.PASS_S if stage.name == "verify" else self.STAGE_S
            if t < start:
                return there, "", 0.0
            if t < start + span:
                working = stage.name in ("draft", "verify")  # a model works before its result is there
                return (there if working else stage), stage.name, part(t, start, span)
            there = stage
        return there, "", 0.0

    def paint(self, painter: QPainter, area: QRectF, t: float) -> None:
        styles, unit = TokenStyles(TOKEN_PX), theme.px(1)
        stage, under_way, done = self.at(t)
        drafter = QRectF(area.center().x() - 250 * unit, area.top() + 8 * unit, 200 * unit, 54 * unit)
        target = drafter.translated(300 * unit, 0)
        _model(painter, drafter, f"drafter: {self.run.good.name}", done if under_way == "draft" else 0.0)
        _model(painter, target, "target model", done if under_way == "verify" else 0.0)
        cells = self._cells(styles, stage)
        gap = 10 * unit
        x = area.center().x() - (sum(width for *_, width in cells) + gap * (len(cells) - 1)) / 2
        top = drafter.bottom() + 56 * unit
        begin = x
        for text, kind, below, width in cells:
            if kind:
                _chip(painter, styles, kind, x, top, width, text)
                self._notes(painter, QRectF(x - gap * 2, top + styles.line_height + 4 * unit, width + 4 * gap, 20 * unit), below)
            x += width + gap
        if under_way == "verify":
            ahead = sum(width + gap for *_, width in cells[: len(self.before)])
            room = sum(width + gap for *_, width in cells[len(self.before) : len(self.before) + self.round.k])
            colour = QColor(theme.current().focus)
            colour.setAlpha(70)
            high = styles.line_height + 12 * unit
            painter.fillRect(QRectF(begin + ahead - gap / 2, top - 6 * unit, room * done, high), colour)
        said = next((one.words for one in self.stages if one.name == under_way == "verify"), stage.words if stage is not None else "")
        _line(painter, QRectF(area.left(), top + styles.line_height + 86 * unit, area.width(), 26 * unit), said, "muted", flags=CENTRE)

    def _notes(self, painter: QPainter, area: QRectF, below: Sequence[tuple[str, str]]) -> None:
        for text, tone in below:
            _line(painter, area, text, tone, size=12, flags=CENTRE)
            area.translate(0, area.height())

    def _cells(self, styles: TokenStyles, stage: Stage | None) -> list[tuple[str, str, list[tuple[str, str]], float]]:
        """(text, look, words under it, width) of every place, those included that are not there yet ('' is their look)."""
        cells: list[tuple[str, str, list[tuple[str, str]], float]] = [
            (shown_text(text), "plain", [], _wide(styles, shown_text(text))) for text in self.before
        ]
        verified = stage is not None and stage.name != "draft"
        for place, token in enumerate(self.round.drafted):
            state = "unseen" if stage is None else stage.states[place]
            text = shown_text(token.text)
            below = [] if token.q is None else [(f"q {probability(token.q)}", "muted")]
            if verified and token.p is not None:
                below.append((f"p {probability(token.p)}", "ink"))
            if state in ("accepted", "rejected", "ignored"):
                below.append((state, state if state != "ignored" else "muted"))
            wide = max(_wide(styles, text), theme.px(66))
            cells.append((text, "" if state == "unseen" else state, below, wide))
        final = self.round.final
        if final is not None:
            text, there = shown_text(final.text), stage is not None and stage.final
            wide = max(_wide(styles, text), theme.px(66))
            cells.append((text, final.kind if there else "", [(final.kind, final.kind)], wide))
        return cells


class RuleFigure(Figure):
    """min(1, p / q) of each judged guess, and the number that was drawn against it."""

    DRAW_S = 2.4

    def __init__(self, run: TourRun) -> None:
        super().__init__(run)
        self.tokens = [token for token in run.judged.drafted if token.verdict != "ignored" and token.accept is not None and token.u is not None]
        self.length = 0.6 + self.DRAW_S * len(self.tokens)
        self.said = " ".join(
            f"{shown_text(token.text)}: p {probability(token.p)}, q {probability(token.q)}, min(1, p / q) is {token.accept:.2f}; "
            f"{token.u:.2f} was drawn: {token.verdict}." for token in self.tokens
        )

    def paint(self, painter: QPainter, area: QRectF, t: float) -> None:
        styles, unit = TokenStyles(TOKEN_PX), theme.px(1)
        row = min(area.height() / max(len(self.tokens), 1), 130.0 * unit)
        for place, token in enumerate(self.tokens):
            assert token.accept is not None and token.u is not None
            begin = 0.6 + place * self.DRAW_S
            top = area.top() + place * row + 8 * unit
            grown, fall = part(t, begin - 0.6, 0.8), part(t, begin + 0.3, 1.2)
            judged = t >= begin + 1.5
            kind = token.verdict if judged else "drafted"
            styles.paint_sample(painter, kind, area.left() + 20 * unit, top + 22 * unit, shown_text(token.text))
            left = area.left() + 170 * unit
            for line, (name, value, tone) in enumerate((("p", token.p, "ink"), ("q", token.q, "muted"))):
                y = top + 8 * unit + line * 24 * unit
                _line(painter, QRectF(left, y, 110 * unit, 20 * unit), f"{name}  {probability(value)}", tone)
                bar = QRectF(left + 90 * unit, y + 4 * unit, 130 * unit * (value or 0.0) * grown, 12 * unit)
                box(painter, bar, None, QColor(theme.current().p_ink if name == "p" else theme.current().q_grey), 2)
            track = QRectF(left + 260 * unit, top + 18 * unit, area.right() - left - 400 * unit, 18 * unit)
            box(painter, track, pen(ink("border"), 1), QColor(theme.current().field), 4)
            kept = QRectF(track)
            kept.setWidth(track.width() * token.accept * grown)
            box(painter, kept, pen(ink("accepted"), 1.5), QColor(theme.current().accepted_tint), 4)
            _line(painter, track.translated(0, 24 * unit), f"min(1, p / q) = {token.accept:.2f}", "muted", size=12)
            if t >= begin + 0.3:
                x = track.left() + track.width() * (1 - (1 - fall) ** 3) * token.u
                painter.setPen(pen(ink("ink"), 2.5 * unit))
                painter.drawLine(QPointF(x, track.top() - 8 * unit), QPointF(x, track.bottom() + 4 * unit))
                _line(painter, QRectF(x - 60 * unit, track.top() - 30 * unit, 120 * unit, 20 * unit), f"u {token.u:.2f}", size=12, flags=CENTRE)
            if judged:
                sign = "u is below: accepted" if token.verdict == "accepted" else "u is above: rejected"
                verdict = QRectF(track.right() + 8 * unit, track.top() - 12 * unit, area.right() - track.right() - 8 * unit, 20 * unit)
                first, _, rest = sign.partition(": ")
                _line(painter, verdict, first, "muted", size=12)
                _line(painter, verdict.translated(0, 20 * unit), rest, token.verdict, bold=True)


class ResidualFigure(Figure):
    """What accepting and correcting give each token at the place of the rejected guess: together p."""

    length = 6.5

    def __init__(self, run: TourRun) -> None:
        super().__init__(run)
        self.said = " ".join(
            f"{shown_text(bars.text)}: p {probability(bars.p)}, q {probability(bars.q)}, from accepting {probability(bars.kept)}, "
            f"from correcting {probability(bars.left)}." for bars in run.bars
        )

    def paint(self, painter: QPainter, area: QRectF, t: float) -> None:
        unit, now = theme.px(1), theme.current()
        legend = (("q, the drafter's", now.q_grey, None), ("min(p, q): from accepting", now.accepted, now.accepted_tint),
                  ("max(0, p − q): from correcting", now.corrected, now.corrected_tint), ("p, the target's", now.ink, None))  # fmt: skip
        seen = (part(t, 0.3, 0.8), part(t, 2.0, 1.0), part(t, 3.6, 1.2), part(t, 0.3, 0.8))
        x = area.left() + 10 * unit
        metrics = QFontMetricsF(theme.ui_font(12))
        for (name, line, fill), there in zip(legend, seen, strict=True):
            if there:
                box(painter, QRectF(x, area.top() + 4 * unit, 16 * unit, 14 * unit), pen(QColor(line), 1.5), None if fill is None else QColor(fill), 2)
                _line(painter, QRectF(x + 22 * unit, area.top(), 300 * unit, 22 * unit), name, "muted", size=12)
            x += metrics.horizontalAdvance(name) + 44 * unit
        most = max(max(bars.p, bars.q) for bars in self.run.bars)
        floor, high = area.bottom() - 48 * unit, area.height() - 100 * unit
        slot = area.width() / len(self.run.bars)
        styles = TokenStyles(15)
        for place, bars in enumerate(self.run.bars):
            middle = area.left() + slot * (place + 0.5)
            wide = min(44.0 * unit, slot * 0.25)
            scale = high / most

            def bar(left: float, value: float, bottom: float, wide: float = wide, scale: float = scale) -> QRectF:
                return QRectF(left, bottom - value * scale, wide, max(value * scale, 1.0))

            box(painter, bar(middle - wide - 4 * unit, bars.q * seen[0], floor), pen(QColor(now.q_grey), 1.5), None, 2)
            box(painter, bar(middle - wide - 4 * unit, bars.kept * seen[1], floor), None, QColor(now.q_grey), 2)
            right = middle + 4 * unit
            if seen[1]:
                box(painter, bar(right, bars.kept * seen[1], floor), pen(QColor(now.accepted), 1.5), QColor(now.accepted_tint), 2)
            if seen[2] and bars.left:
                box(painter, bar(right, bars.left * seen[2], floor - bars.kept * scale), pen(QColor(now.corrected), 1.5),
                    QColor(now.corrected_tint), 2)  # fmt: skip
            painter.setPen(pen(ink("ink"), 2))
            level = floor - bars.p * seen[3] * scale
            painter.drawLine(QPointF(right - 3 * unit, level), QPointF(right + wide + 3 * unit, level))
            for text, at, tone in ((f"p {probability(bars.p)}", right + wide / 2, "ink"), (f"q {probability(bars.q)}", middle - wide / 2 - 4 * unit, "muted")):
                level = floor - (bars.p if tone == "ink" else bars.q) * seen[0] * scale
                _line(painter, QRectF(at - 50 * unit, level - 22 * unit, 100 * unit, 18 * unit), text, tone, size=11, flags=CENTRE)
            kind = "rejected" if bars.text == self.run.rejected.text else "corrected" if bars.text == _final(self.run.judged) and t > 4.8 else "plain"
            text = shown_text(bars.text)
            half = (styles.measure(text, kind == "rejected") + 2 * styles.pad) / 2
            styles.paint_sample(painter, kind, middle - half, floor + 10 * unit, text)
        painter.setPen(pen(ink("border"), 1))
        painter.drawLine(QPointF(area.left(), floor), QPointF(area.right(), floor))


class CostFigure(Figure):
    """Three lanes on their own clocks, and what a round of each costs and gives."""

    RACE_S = 7.0

    def __init__(self, run: TourRun) -> None:
        super().__init__(run)
        self.lanes: list[LaneModel] = [run.plain, run.good, run.bad]
        self.whole = max(lane.clock_s for lane in self.lanes)
        self.length = 0.5 + self.RACE_S
        self.most = max(round_time(lane) for lane in self.lanes)
        self.said = " ".join(
            f"{lane.name}: a round of {milliseconds(round_time(lane))} gives {run.race.metrics(lane).tokens_per_target_pass or 0:.1f} tokens; "
            f"{speed_text(run, lane)}." for lane in self.lanes
        )

    def paint(self, painter: QPainter, area: QRectF, t: float) -> None:
        unit, now = theme.px(1), theme.current()
        clock = part(t, 0.5, self.RACE_S) * self.whole
        row = min(area.height() / len(self.lanes), 100.0 * unit)
        x = area.left() + 190 * unit
        metrics = QFontMetricsF(theme.ui_font(11))
        legend = x
        for name, colour in (("drafting", now.phases[0]), ("verifying", now.phases[1]), ("the rest", now.phases[2])):
            box(painter, QRectF(legend, area.top() - 3 * unit, 12 * unit, 12 * unit), None, QColor(colour), 2)
            _line(painter, QRectF(legend + 17 * unit, area.top() - 6 * unit, 200 * unit, 18 * unit), name, "muted", size=11)
            legend += metrics.horizontalAdvance(name) + 36 * unit
        for place, lane in enumerate(self.lanes):
            index = self.run.race.lanes.index(lane)
            top = area.top() + 24 * unit + place * row
            paint_marker(painter, index, QPointF(area.left() + 8 * unit, top + 12 * unit), 11 * unit)
            _line(painter, QRectF(area.left() + 22 * unit, top, 165 * unit, 24 * unit), lane.name, bold=True)
            _line(painter, QRectF(area.left() + 22 * unit, top + 26 * unit, 165 * unit, 22 * unit), speed_text(self.run, lane), "muted", size=12)
            room = area.right() - x - 200 * unit
            left = x
            for name, colour in zip(("draft_s", "verify_s", "other_s"), now.phases, strict=True):
                width = room * float(lane.table[name].mean()) / self.most
                painter.fillRect(QRectF(left, top + 4 * unit, width, 16 * unit), QColor(colour))
                left += width
            gain = self.run.race.metrics(lane).tokens_per_target_pass or 0.0
            _line(painter, QRectF(left + 10 * unit, top, 260 * unit, 24 * unit),
                  f"{milliseconds(round_time(lane))} for {gain:.1f} {'token' if gain == 1 else 'tokens'}", size=12)  # fmt: skip
            track = QRectF(x, top + 34 * unit, area.right() - x - 60 * unit, 10 * unit)
            box(painter, track, None, QColor(now.border), 5 * unit)
            tokens = lane.table.tokens_at([clock])[0]
            shown = QRectF(track)
            shown.setWidth(track.width() * tokens / max(lane.emitted, 1))
            if tokens > 0:
                box(painter, shown, None, lane_colour(index), 5 * unit)
            _line(painter, QRectF(track.right() + 6 * unit, track.top() - 6 * unit, 54 * unit, 22 * unit), f"{tokens:.0f}", size=12, bold=True,
                  flags=RIGHT)  # fmt: skip


FIGURES: dict[str, Callable[[TourRun], Figure]] = {
    "plain": PlainFigure,
    "draft": lambda run: RoundFigure(run, run.judged, run.before, last="draft"),
    "verify": lambda run: RoundFigure(run, run.judged, run.before, "verify", "verify"),
    "judge": lambda run: RoundFigure(run, run.judged, run.before, "accepted"),
    "rule": RuleFigure,
    "residual": ResidualFigure,
    "bonus": lambda run: RoundFigure(run, run.full, run.full_before),
    "cost": CostFigure,
}
"""By the name in story.Step."""
