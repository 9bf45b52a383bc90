"""The page that plays a race, in a real browser: what it shows, that it moves, and that nothing leaves it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.decoding.phases import stages
from specview.decoding.speedup import speedup
from specview.files.figures import rate, times_short
from specview.files.reader import Trace, read_trace
from specview.library.replay import trace_document
from specview.library.share_page import page_data, share_page
from specview.models.assets import asset_path
from tests import browser
from tests.browser import Browser, Page
from tests.gui.views_data import lookahead_round, make_rounds
from tests.library.recorded import SETTINGS, write_trace

WRITTEN = '<script>window.hacked = 1</script><img src="http://evil.example/x.png" onerror="window.hacked = 2">'
ODD = (WRITTEN, " </script>", "<!--", " 👩‍🚀", " שלום", "\x1b[2J\u202e", "\ud83d", "\n", "")


def recorded(folder: Path, rounds: int = 12) -> Trace:
    return read_trace(write_trace(folder / "a.jsonl", rounds=rounds))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if browser.CHROMIUM is None:
        pytest.skip(browser.MISSING)
    with browser.browser() as made:
        yield made


@pytest.fixture
def page(chromium: Browser) -> Page:
    made = chromium.page()
    made.prefer("dark")
    return made


def opened(page: Page, trace: Trace, folder: Path, **words: str) -> Page:
    (folder / "race.html").write_text(share_page(trace, **words), encoding="utf-8")
    page.open(folder / "race.html")
    return page


def outputs(page: Page) -> list[str]:
    """What each lane shows of its output, without the marks."""
    return list(page.evaluate("views.map((one) => [...one.settled.querySelectorAll('.part:not([hidden])')]"
                              ".map((part) => [...part.childNodes].map((piece) => piece.className === 'thrown' ? '' : piece.textContent).join('')).join(''))"))  # fmt: skip


# -- the file ------------------------------------------------------------------------------------------------


def test_three_lanes_of_256_tokens_take_less_than_a_megabyte(tmp_path: Path) -> None:
    trace = recorded(tmp_path, 256)
    for record in trace.records:
        while len(record.token_ids) > 256 + 5:
            record.rounds.pop()
        assert len(record.token_ids) >= 256
    assert len(share_page(trace).encode()) < 1_000_000


def test_its_colours_are_the_windows() -> None:
    from specview.gui.parts import theme

    css = asset_path("share/page.css").read_text(encoding="utf-8")
    for block, palette in zip(re.findall(r":root(?:\.light)? \{([^}]*)\}", css)[:2], (theme.DARK, theme.LIGHT), strict=True):
        for name, value in re.findall(r"--([a-z0-9-]+):(#\w+)", block):
            wanted = palette.lane_colors[int(name[-1])] if name.startswith("lane-") else getattr(palette, name.replace("-", "_"))
            assert value == wanted, name


def test_text_cannot_leave_the_data_block(tmp_path: Path) -> None:
    trace = recorded(tmp_path)
    trace.records[0].rounds[0] = Round(0, 0.04, 0.0, 0.04, 0.0, final=FinalToken(1, "plain", WRITTEN))
    trace.records[1].name = trace.prompt_text = f"{WRITTEN}{{{{js}}}}"
    made = share_page(trace, title=WRITTEN, note=WRITTEN, tags=[WRITTEN])
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', made, re.S)
    assert "<" not in block and json.loads(block)["lanes"][0]["rounds"][0][5][0] == WRITTEN
    assert made.count("<script") == 2 and made.count("</script>") == 2
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', made)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'") and "http" not in policy


def test_a_run_without_plain_and_one_without_a_round_make_a_page(tmp_path: Path) -> None:
    trace = recorded(tmp_path)
    for record in trace.records:
        record.rounds.clear()
    assert page_data(trace, trace_document(trace), "x")["lanes"][1]["rounds"] == []
    trace = read_trace(write_trace(tmp_path / "b.jsonl", settings=replace(SETTINGS, lanes=SETTINGS.lanes[1:], baseline=False)))
    lanes = page_data(trace, trace_document(trace), "x")["lanes"]
    assert [lane["recorded"]["speedup"] for lane in lanes] == [None, None] and not any(lane["won"] for lane in lanes)


# -- in the browser ------------------------------------------------------------------------------------------


def test_it_opens_with_the_figures_of_the_end_and_asks_for_nothing(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path)
    opened(page, trace, tmp_path, title="warm machine", note="![x](http://evil.example/x.png)")
    document = trace_document(trace)
    assert page.text("#title") == "warm machine" and page.text("#headline")
    assert outputs(page) == [record.text for record in trace.records]
    for place, lane in enumerate(document["lanes"], 1):
        head = page.text(f".lane:nth-child({place}) header")
        assert times_short(lane["speedup"]) in head if place > 1 else "1×" in head
        assert f"{rate(lane['speedup_over']['tokens_per_s'])} tok/s" in head if place > 1 else "tok/s" in head
        assert ("plain" in head and "in that time" in head) == (place > 1)  # the two gave different numbers of tokens
    assert page.evaluate("views.every((one) => one.text.scrollTop === 0)")
    assert page.text("#protocol") == "" and "SHA-256" in page.evaluate("document.querySelector('#protocol').textContent")
    assert page.evaluate("[...document.querySelectorAll('button, input, [role]')].filter((one) => "
                         "!(one.ariaLabel || one.innerText || one.closest('svg') || one.id === 'tip')).length") == 0  # fmt: skip
    assert page.requests == [(tmp_path / "race.html").resolve().as_uri()] and page.problems == []


def test_a_branch_shows_what_it_goes_on_from(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path)
    trace.run["branch"] = {"token_ids": [1, 2], "run": "r", "lane": "plain", "position": 1, "text": "Once <b>", "token": " upon"}
    trace.prompt_text = "Tell\n<i>me</i>"
    opened(page, trace, tmp_path)
    assert page.text(".lane:nth-child(2) .given") == "Once <b> upon" and outputs(page) == [record.text for record in trace.records]
    assert page.text("#prompt summary") == "Prompt: Tell <i>me</i>"


def test_odd_text_is_shown_as_text(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path)
    trace.records[1].rounds = [
        Round(place, 0.1 * (place + 1), 0.01, 0.08, 0.01, drafted=(DraftedToken(5, "rejected", 0.5, 0.1, 0.2, 0.6, text, p_top=((5, text, 0.4),)),),
              final=FinalToken(6, "corrected", text, p=0.5))
        for place, text in enumerate(ODD)
    ]  # fmt: skip
    trace.records[1].name = WRITTEN
    opened(page, trace, tmp_path, title=WRITTEN)
    shown = outputs(page)[1]
    assert shown == "".join(ODD).replace("\x1b", "␛").replace("\u202e", "‹202E›").replace("\ud83d", "?")
    assert page.text("#title") == WRITTEN and WRITTEN in page.text(".lane:nth-child(2) h2")
    for place in range(1, 2 * len(ODD)):
        page.evaluate(f"point(views[1].tokens()[{place}])")
    assert page.evaluate("window.hacked === undefined && document.scripts.length === 2 && document.images.length === 0")
    assert len(page.requests) == 1 and page.problems == []


@pytest.mark.parametrize("rule", ["greedy", "rejection", "match", "typical"])
def test_its_phases_are_those_of_the_replay(page: Page, tmp_path: Path, rule: str) -> None:
    trace = recorded(tmp_path)
    trace.records[1].rounds = make_rounds(40, 4, rule=rule, seed=3)
    trace.records[2].rounds = [
        *(lookahead_round(accepted=accepted, guesses=guesses) for accepted in (0, 1, 2, 3) for guesses in (2, 5)),
        replace(make_rounds(1, 3)[0], final=None),
        replace(make_rounds(1, 0)[0], final=None),
    ]
    opened(page, trace, tmp_path)
    for place, record in enumerate(trace.records):
        found = page.evaluate(f"lanes[{place}].rounds.map((round) => stages(round))")
        for mine, round_ in zip(found, record.rounds, strict=True):
            theirs = stages(round_)
            assert [(one["name"], tuple(one["states"]), one["final"]) for one in mine] == [(s.name, s.states, s.final) for s in theirs]
            assert [one["t"] for one in mine] == pytest.approx([s.t for s in theirs], rel=1e-4, abs=1e-5)


def test_at_a_moment_it_shows_what_the_lanes_had_by_then(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path, 30)
    opened(page, trace, tmp_path)
    recorded_ones = [lane["recorded"] for lane in page_data(trace, trace_document(trace), "x")["lanes"]]
    for moment in (0.0, 0.05, 0.31, 0.77, 1.2):
        page.evaluate(f"seek({moment})")
        ended = [[round_ for round_ in record.rounds if round_.t <= moment] for record in trace.records]
        assert outputs(page) == ["".join(round_.text for round_ in rounds) for rounds in ended]
        for place, rounds in enumerate(ended):
            mine = page.evaluate(f"lanes[{place}].figures({moment})")
            if not rounds or len(rounds) == len(trace.records[place].rounds):
                assert mine == (recorded_ones[place] if rounds else {})
                continue
            figures = fold(rounds)
            assert mine["per_pass"] == pytest.approx(figures.tokens_per_target_pass)
            assert mine["accept"] == pytest.approx(figures.acceptance_rate)
            assert mine["rate"] == pytest.approx(figures.decode_tokens_per_s, rel=1e-4)
            faster = speedup(rounds, ended[0], running=2) if place else None
            assert mine["speedup"] == pytest.approx(1.0 if not place else None if faster is None else faster.value, rel=1e-4)
    page.evaluate("seek(length)")
    found = [speedup(record.rounds, trace.records[0].rounds) for record in trace.records[1:]]
    assert [page.evaluate(f"lanes[{place}].figures(length).speedup") for place in (1, 2)] == pytest.approx([one.value for one in found if one])


def test_it_plays_at_true_speed_and_at_others(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path, 8)
    last = max(record.rounds[-1].t for record in trace.records)
    opened(page, trace, tmp_path)
    page.evaluate("window.seen = []; const plain = draw; draw = () => { plain(); seen.push([performance.now(), player.seconds]); }")
    page.click("#play")
    assert page.evaluate("player.playing && player.seconds < length")
    page.wait("!player.playing")
    frames = [one for one in page.evaluate("seen") if one[1] > 0]
    assert frames[-1][1] == pytest.approx(last, rel=1e-4)
    drift = [(one[0] - frames[0][0]) / 1e3 - (one[1] - frames[0][1]) for one in frames]
    assert median(map(abs, drift)) < 0.03  # of one frame it may be more where the machine is busy, and does not add up
    assert outputs(page) == [record.text for record in trace.records]
    page.click("#speeds button:nth-child(6)")
    assert page.evaluate("player.speed") == 4 and page.evaluate("document.querySelector('[aria-checked=true]').textContent") == "4×"
    page.evaluate("seen = []")
    page.click("#play")
    page.wait("!player.playing")
    took = page.evaluate("seen.at(-1)[0] - seen[0][0]") / 1e3
    assert took == pytest.approx(last / 4, abs=0.15)


def test_it_steps_by_round_and_by_phase_with_buttons_and_keys(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path, 6)
    opened(page, trace, tmp_path)
    ends = sorted({round_.t for record in trace.records for round_ in record.rounds})
    page.click("#start")
    for wanted in ends:
        page.click("#round")
        assert page.evaluate("player.seconds") == pytest.approx(wanted, rel=1e-4)
    page.click("#round-back")
    assert page.evaluate("player.seconds") == pytest.approx(ends[-2], rel=1e-4)
    page.evaluate("document.activeElement.blur()")
    page.key("Home", 36)
    assert outputs(page) == ["", "", ""]
    seen, visited = set(), [0.0]
    while not page.evaluate("player.seconds >= length"):
        page.key(".", 190, ".")
        visited.append(page.evaluate("player.seconds"))
        seen |= set(page.evaluate("[...views[1].now.children].map((one) => one.className.split(' ')[1]).filter(Boolean)"))
    moments = {stage.t for record in trace.records for round_ in record.rounds for stage in stages(round_)}
    assert all(min(abs(one - moment) for one in visited) < 2e-5 for moment in moments)
    assert seen == {"drafted", "accepted", "rejected", "ignored"} and "round" in page.text("#clock")
    page.key(" ", 32, " ")
    assert page.evaluate("player.playing")
    page.key(" ", 32, " ")
    page.key("+", 187, "+")
    assert not page.evaluate("player.playing") and page.evaluate("player.speed") == 2


def test_a_token_tells_its_numbers_to_the_pointer_and_the_keyboard(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path, 20)
    trace.records[1].settings["rule"] = "rejection"
    trace.records[1].rounds = make_rounds(20, 3, rule="rejection", seed=1)
    opened(page, trace, tmp_path)
    page.evaluate("views[1].text.scrollTop = 0")
    page.hover(".lane:nth-child(2) .accepted")
    said = page.text("#tip")
    index, first = next((r.index, t) for r in trace.records[1].rounds for t in r.drafted if t.verdict == "accepted")
    for wanted in ("accepted draft", f"round {index} ", "p ", "q ", "accept = min(1, p/q)", f"u {first.u:.2f}", "likeliest"):
        assert wanted in said, wanted
    page.hover(".lane:nth-child(2) .thrown")
    assert "thrown away in round" in page.text("#tip") and "rejected" in page.text("#tip")
    page.hover("#title")
    assert page.evaluate("tip.hidden")
    page.evaluate("views[1].text.focus()")
    page.key("ArrowRight", 39)
    page.key("ArrowRight", 39)
    assert page.evaluate("pointed === views[1].tokens()[1] && !tip.hidden")
    page.key("Escape", 27)
    assert page.evaluate("tip.hidden")


def test_themes_and_states_are_switched(page: Page, tmp_path: Path) -> None:
    opened(page, recorded(tmp_path), tmp_path)

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert ground() == "rgb(20, 22, 27)"
    page.prefer("light")
    page.wait("isLight()")
    assert ground() == "rgb(244, 245, 248)"
    page.click("#theme")
    assert ground() == "rgb(20, 22, 27)"
    tint = "getComputedStyle(document.querySelector('.text .corrected')).backgroundColor"
    before = page.evaluate(tint)
    page.click("#legend button:nth-child(2)")
    assert page.evaluate(tint) != before and page.evaluate("document.querySelectorAll('#legend [aria-pressed=false]').length") == 1
    page.click("#legend button:nth-child(4)")
    assert page.evaluate("getComputedStyle(document.querySelector('.text .thrown')).display") == "none"


def test_an_indentation_stays_with_its_text(page: Page, tmp_path: Path) -> None:
    trace = recorded(tmp_path)
    texts = ["if", " x", ":\n", " " * 7, " settings", *["[key.strip()]"] * 9, "\n" + " " * 4, "y" * 200]
    trace.records[1].rounds = [
        Round(place, 0.1 * (place + 1), 0.01, 0.08, 0.01, drafted=(DraftedToken(5, "rejected", text=" settings" if place == 4 else "no"),) if place > 3 else (), final=FinalToken(6, "corrected", text))
        for place, text in enumerate(texts)
    ]  # fmt: skip
    opened(page, trace, tmp_path)
    page.resize(390, 800)
    lefts = "[...views[1].text.querySelectorAll('.t')].filter((one) => one.offsetParent && /^(settings|yyy)/.test(one.textContent))" \
            ".map((one) => one.getClientRects()[0].left - views[1].settled.getBoundingClientRect().left)"  # fmt: skip
    assert [left > 20 for left in page.evaluate(lefts)] == [True, True]
    page.click("#legend button:nth-child(4)")  # without the counts of what was thrown away
    assert [left > 20 for left in page.evaluate(lefts)] == [True, True]
    assert outputs(page)[1] == "".join(texts)
    page.evaluate("seek(0.495)")  # " settings" is drafted
    assert page.evaluate("views[1].now.textContent") == " settings" and page.evaluate(lefts)[-1] > 20
    assert page.evaluate("views[1].text.scrollWidth <= views[1].text.clientWidth") and page.problems == []


@pytest.mark.parametrize(("wide", "high"), [(1280, 800), (390, 800)])
def test_it_fits_a_screen_and_a_telephone(page: Page, tmp_path: Path, wide: int, high: int) -> None:
    opened(page, recorded(tmp_path, 60), tmp_path)
    page.resize(wide, high)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("views.every((one) => one.text.clientHeight >= 150)")
    below = page.evaluate("document.querySelector('#transport').getBoundingClientRect().bottom")
    assert below <= high + 1
    page.evaluate("document.querySelector('#about').open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_printed_it_is_dark_on_light_and_whole(page: Page, tmp_path: Path) -> None:
    opened(page, recorded(tmp_path, 40), tmp_path)
    page.evaluate("seek(0.1)")
    page.send("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("isLight() && player.seconds === length && getComputedStyle(document.querySelector('#transport')).display") == "none"
    assert page.evaluate("views.every((one) => one.text.scrollHeight <= one.text.clientHeight + 1)")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not page.evaluate("isLight()")


def test_a_plot_is_read_with_the_pointer(page: Page, tmp_path: Path) -> None:
    opened(page, recorded(tmp_path, 20), tmp_path)
    page.hover(".plot:nth-child(1) svg")
    said = page.text(".plot:nth-child(1) output")
    assert "draft model 0." in said and "plain" not in said
    page.evaluate("seek(length / 2)")
    assert page.evaluate("plots[0].curves.every((one) => one.count < one.points.length)")


def test_a_long_text_still_plays(page: Page, tmp_path: Path) -> None:
    opened(page, recorded(tmp_path, 2500), tmp_path)
    page.evaluate("seek(length / 2)")
    took = page.evaluate("(() => { const took = []; for (let i = 1; i < 40; i++) { const a = performance.now(); seek(length / 2 + i / 30);"
                         " document.body.offsetHeight; took.push(performance.now() - a); } return took; })()")  # fmt: skip
    assert median(took) < 60  # 2 ms of a quiet machine; as one paragraph it was 300
