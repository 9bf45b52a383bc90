"""Recorded runs in the window: as the live race was, said to be recorded, and Run leads back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent

from specview.decoding.sampling import SamplingParams
from specview.errors import SpecviewError
from specview.files.figures import METRICS
from specview.files.reader import read_trace
from specview.gui.link.open_run import Pick, open_picks, recorded_race
from specview.gui.state import figures, lane_words
from specview.gui.state.view_model import RaceModel
from specview.library.library import RunLibrary
from specview.settings.run import MAX_LANES, LaneSettings
from tests.files.test_reader import VALUES, places
from tests.gui.shell_fake import FakeBackend
from tests.library.recorded import FACTS, SETTINGS, race_events, write_trace


def live(**options: object) -> RaceModel:
    """The race that was told live."""
    race = RaceModel()
    for event in race_events(**options):  # type: ignore[arg-type]
        race.apply(event)
    return race


def shown(race: RaceModel) -> list:
    """All that a view draws of a race, real numbers as a file keeps them."""
    found = []
    for lane in race.lanes:
        speedup, metrics = race.speedup(lane), race.metrics(lane)
        found.append((
            lane.name, lane.settings["method"], lane.state, lane.end, lane.prefill_s, lane.kv_bytes, lane.draft_weight_bytes,
            lane.tokens, lane.text, lane.emitted, [float(f"{v:.5g}") for v in lane.table["t"]],
            lane.table.sums("emitted").tolist(), lane.equality and (lane.equality.equal, lane.equality.first_difference, lane.equality.logit_margin),
            None if speedup is None else f"{speedup.value:.5g}", f"{metrics.decode_tokens_per_s:.5g}", metrics.accepted,
            str(lane_words.verdict(lane)),
        ))  # fmt: skip
    return found


def open_in(qtbot, window, *paths: Path, lanes=None):
    window.recorded.open([Pick(path, "", lanes) for path in paths])
    qtbot.waitUntil(lambda: not window.recorded.opener.busy, timeout=10_000)


def ended(window, qtbot):
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=10_000)


def run(window, qtbot):
    window.run()
    ended(window, qtbot)


# -- the model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["done", "stopped"])
def test_a_recorded_race_is_the_live_one(tmp_path, end):
    trace = read_trace(write_trace(tmp_path / "a.jsonl", rounds=30, end=end))
    told, read = shown(live(rounds=30, end=end)), shown(recorded_race(trace))
    assert [lane[:-1] for lane in told] == [lane[:-1] for lane in read]  # the badge counts what was compared


def test_a_crashed_run_opens_with_what_it_has_and_says_so(tmp_path):
    path = write_trace(tmp_path / "a.jsonl", rounds=9, end=None)
    path.write_bytes(path.read_bytes()[:-20])
    opened = open_picks([Pick(path)], [read_trace(path)])
    assert [len(lane.rounds) for lane in opened.race.lanes] == [9, 9, 8]
    assert [lane.state for lane in opened.race.lanes] == ["ended"] * 3
    assert any("ends early" in remark for remark in opened.remarks)
    assert opened.race.speedup(opened.race.lanes[1]) is not None
    assert opened.race.metrics(opened.race.lanes[1]).draft_cost is not None


def test_more_lanes_than_fit_are_named(tmp_path):
    many = replace(SETTINGS, lanes=SETTINGS.lanes[:1] + tuple(LaneSettings("prompt-lookup", f"l{i}", k=2) for i in range(4)))
    path = write_trace(tmp_path / "a.jsonl", settings=many, rounds=3)
    header, *rest = path.read_text(encoding="utf-8").splitlines()
    value = json.loads(header)
    value["lanes"] += [dict(value["lanes"][1], name="one more")]
    path.write_text("\n".join([json.dumps(value), *rest]) + "\n", encoding="utf-8")
    opened = open_picks([Pick(path)], [read_trace(path)])
    assert len(opened.race.lanes) == MAX_LANES and any("1 more lanes" in remark for remark in opened.remarks)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 0.999), value=VALUES, line=st.sampled_from([0, 0, 0, 1, -1, -2]))
def test_whatever_a_file_says_can_be_drawn(tmp_path, place, value, line):
    path = write_trace(tmp_path / "a.jsonl", rounds=2)
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    paths = places(lines[line])
    *way, last = paths[int(place * len(paths))]
    inside = lines[line]
    for step in way:
        inside = inside[step]
    inside[last] = value
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    try:
        opened = open_picks([Pick(path)], [read_trace(path)])
    except SpecviewError:
        return
    for lane in opened.race.lanes:
        metrics = opened.race.metrics(lane)
        lane_words.setup(lane.settings), lane_words.verdict(lane), lane_words.state(lane), lane_words.lossy(lane.settings)
        lane_words.shares(lane_words.members(lane.settings), metrics), figures.details(metrics)
        figures.spread(opened.race.speedup(lane))
        for name in ("decode_tokens_per_s", "tokens_per_target_pass", "acceptance_rate"):
            METRICS[name].text(getattr(metrics, name))


# -- the window ----------------------------------------------------------------------------------------------


def test_a_kept_race_opens_as_it_ended_without_a_model(window, qtbot, script):
    run(window, qtbot)
    told = shown(window.controller.race)
    panels = [panel.number.accessibleDescription() for panel in window.page.panels]
    assert all(panels)
    (entry,) = RunLibrary().scan()
    assert entry.source == "window" and entry.end == "done" and not window.recorded.bar.isVisible()
    window.setup.set_prompt("something else")
    script.log.clear()
    open_in(qtbot, window, entry.path)
    assert window.controller.recorded is not None and window.page.headline.said.sentence.startswith("Recorded: ")
    assert "Recorded run" in window.recorded.bar.words
    assert window.recorded.bar.isVisible() and script.log == []
    for before, after in zip(told, shown(window.controller.race), strict=True):
        assert after[:-1] == before[:-1]  # the made-up race's badge says 128 whatever was compared
    assert [panel.number.accessibleDescription() for panel in window.page.panels] == panels
    assert window.setup.prompt.toPlainText() == "something else"
    assert not window.controller.can_continue and not window.controller.can_follow_up
    panel = window.page.panels[1]
    panel.token_selected.emit(3, 0)
    assert window.page.selected is panel.lane


def test_run_races_what_is_set_up(window, qtbot, tmp_path, script):
    setup = window.own_settings()
    open_in(qtbot, window, write_trace(tmp_path / "a.jsonl"))
    assert [lane.name for lane in window.controller.race.lanes] == ["plain", "draft-model", "prompt-lookup"]
    assert window.controller.race.facts["target_model_name"] == FACTS["target_model_name"]
    window.run()
    assert window.controller.recorded is None and not window.recorded.bar.isVisible()
    ended(window, qtbot)
    assert [len(lane.rounds) for lane in window.controller.race.lanes] == [script.rounds] * len(setup.lanes)
    assert window.controller.settings.prompt == setup.prompt != SETTINGS.prompt
    assert window.controller.can_continue


def test_a_recorded_run_stays_until_lanes_are_set_up_and_its_own_cannot_be_changed(window, qtbot, tmp_path):
    open_in(qtbot, window, write_trace(tmp_path / "a.jsonl"))
    held = [lane.tokens for lane in window.controller.race.lanes]
    window.setup.set_prompt("typed on")
    window._settings_changed()
    assert [lane.tokens for lane in window.controller.race.lanes] == held and window.controller.recorded is not None
    count = len(window.lane_settings)
    for change in (lambda: window.lanes.remove(2), lambda: window.lanes.edit(1), lambda: window.lanes.move(1, 1)):
        window.clear_message()
        change()
        assert "recorded run" in window.banner.message
    assert len(window.lane_settings) == count and not window.page.panels[1]._editable
    window.lanes.add_method("suffix")
    assert window.controller.recorded is None and len(window.page.panels) == count + 1
    assert not any(lane.rounds for lane in window.controller.race.lanes) and window.page.panels[1]._editable


SET_UP = replace(
    SETTINGS, engine="llama.cpp", target="bundled", prompt="mine, half typed", system="be brief", max_tokens=77, threads=2,
    sampling=SamplingParams(0.7, 40, 0.9, 0.05, 11), observe="light", history=({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}),
    lanes=(LaneSettings(), LaneSettings("suffix", "my lane", k=5, options={"store": "mine.npz"})),
)  # fmt: skip


def setup_of(window) -> tuple:
    return window.own_settings(), window.setup.rule.value(), window.setup.prompt.toPlainText(), list(window.lane_settings)


def test_opening_and_closing_leave_the_setup_as_it_is(window, qtbot, tmp_path):
    window.show_setup(SET_UP, "match")
    before = setup_of(window)
    paths = [write_trace(tmp_path / f"{name}.jsonl") for name in ("a", "b")]
    for change in (window.controller.recorded_changed, window.controller.state_changed):  # whoever looks meanwhile
        change.connect(lambda: [panel.lane for panel in window.page.panels])
    for count in (1, 2):
        open_in(qtbot, window, *paths[:count])
        assert setup_of(window) == before and len(window.page.panels) > 2
        qtbot.mouseClick(window.recorded.bar.close_button, Qt.MouseButton.LeftButton)
        assert window.controller.recorded is None and not window.recorded.bar.isVisible()
        assert setup_of(window) == before and window.controller.state == "ready"
        assert [panel.lane.name for panel in window.page.panels] == ["plain", "my lane"]
        assert [len(lane.rounds) for lane in window.controller.race.lanes] == [0, 0]
    open_in(qtbot, window, paths[0])
    window.setup.set_prompt("typed while it was open")
    window.recorded.close_run()
    assert window.setup.prompt.toPlainText() == "typed while it was open"
    window.recorded.close_run()  # nothing is open
    assert [panel.lane.name for panel in window.page.panels] == ["plain", "my lane"]


def test_closing_brings_the_live_race_back(window, qtbot, tmp_path):
    run(window, qtbot)
    race, controller = window.controller.race, window.controller
    before = shown(race), list(race.lanes), race.ended, controller.ran, controller.settings, window.page.headline.said
    texts = [panel.view.accessibleName() for panel in window.page.panels]
    for paths in (["a"], ["a", "b"]):
        open_in(qtbot, window, *(write_trace(tmp_path / f"{name}.jsonl", rounds=7) for name in paths))
        assert race.lanes != before[1] and not controller.can_continue
        window.page.transport.seek(0.1)
        window.recorded.close_run()
        assert (shown(race), race.lanes, race.ended, controller.ran, controller.settings, window.page.headline.said) == before
        assert [panel.view.accessibleName() for panel in window.page.panels] == texts
        assert controller.can_continue and controller.can_follow_up and not controller.stale
    open_in(qtbot, window, tmp_path / "a.jsonl")
    window.setup.set_prompt("another prompt")
    window.recorded.close_run()
    assert controller.stale
    window.continue_run()
    qtbot.waitUntil(lambda: len(race.lanes[0].rounds) == 40 and controller.state == "ended", timeout=10_000)


def test_its_settings_are_taken_over_on_wish_and_it_stays_on_screen(window, qtbot, tmp_path, script):
    run(window, qtbot)
    live = list(window.controller.race.lanes)
    path = write_trace(tmp_path / "a.jsonl", settings=replace(SETTINGS, prompt="another"))
    open_in(qtbot, window, path)
    lanes = list(window.controller.race.lanes)
    qtbot.mouseClick(window.recorded.bar.take, Qt.MouseButton.LeftButton)
    assert window.setup.prompt.toPlainText() == "another"
    assert [lane.method for lane in window.lane_settings] == [lane.method for lane in SETTINGS.lanes]
    assert window.controller.recorded is not None and window.controller.race.lanes == lanes
    window.recorded.close_run()
    assert window.setup.prompt.toPlainText() == "another"
    assert [panel.lane.name for panel in window.page.panels] == ["plain", "draft-model", "prompt-lookup"]
    assert window.controller.race.lanes[0] is live[0] and window.controller.stale  # plain is set up still
    open_in(qtbot, window, path)
    window.recorded.take_over()
    run(window, qtbot)
    assert window.controller.settings.prompt == "another" and window.controller.settings.lanes[1].k == 4
    open_in(qtbot, window, path, path)
    assert not window.recorded.bar.take.isEnabled()


def test_a_window_that_closes_keeps_its_users_setup(window, qtbot, tmp_path):
    window.show_setup(replace(SET_UP, history=()), "auto")
    open_in(qtbot, window, write_trace(tmp_path / "a.jsonl"))
    window.close()
    kept = window.store.load().run
    assert kept.prompt == SET_UP.prompt and kept.sampling == SET_UP.sampling and [lane.method for lane in kept.lanes] == ["plain", "suffix"]


@pytest.mark.parametrize("observe", ["full", "off"])
def test_a_run_without_texts_is_one_where_no_token_has_any(tmp_path, observe):
    path = write_trace(tmp_path / "a.jsonl", rounds=3)
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]
    tokens = [token for one in rounds if "index" in one for token in (*one["drafted"], one["final"])]
    for token in tokens if observe == "off" else [token for one in rounds[:3] for token in (*one["drafted"], one["final"])]:
        token["text"] = ""  # the first token of a text is often empty: half of a character, a mark of its beginning
    path.write_text("\n".join([header, *map(json.dumps, rounds)]) + "\n", encoding="utf-8")
    opened = open_picks([Pick(path)], [read_trace(path)])
    assert any("without texts" in remark for remark in opened.remarks) == (observe == "off")


def test_reading_a_long_trace_can_be_stopped(window, qtbot, tmp_path, monkeypatch):
    import threading

    reading, go_on = threading.Event(), threading.Event()

    def slow(path, tell):
        reading.set()
        while not go_on.is_set():
            tell(0.5)
            go_on.wait(0.002)
        raise AssertionError("it was not stopped")

    monkeypatch.setattr("specview.gui.link.open_run.read_trace", slow)
    bar = window.recorded.bar
    window.recorded.open([Pick(tmp_path / "a.jsonl")])
    qtbot.waitUntil(lambda: bar.isVisible() and "50%" in bar.words, timeout=5000)
    assert bar.close_button.text() == "Stop" and not bar.take.isVisible()
    qtbot.mouseClick(bar.close_button, Qt.MouseButton.LeftButton)
    assert not bar.isVisible()
    qtbot.waitUntil(lambda: not window.recorded.opener.busy, timeout=5000)
    assert window.controller.recorded is None and window.banner.message == "" and reading.is_set()


# -- models that a file names --------------------------------------------------------------------------------


@pytest.fixture
def foreign(window, qtbot, tmp_path, script, monkeypatch):
    """A stranger's run on screen; gives what was asked, and what is answered can be put into `answers`."""
    lanes = (LaneSettings(), LaneSettings("draft-model", draft="owner/draft", k=4), LaneSettings("suffix", options={"store": "/any/path"}),
             LaneSettings("cascade", options={"members": "suffix+eagle3", "eagle3.head": "//host/head"}))  # fmt: skip
    path = write_trace(tmp_path / "a.jsonl", settings=replace(SETTINGS, target="owner/name", trust_remote_code=True, lanes=lanes))
    asked, answers = [], []
    monkeypatch.setattr("specview.gui.race.foreign_models.ask", lambda parent, title, text, *_, **__: (asked.append(text), answers.pop())[1])
    open_in(qtbot, window, path)
    return asked, answers


def test_a_strangers_run_names_nothing_before_its_settings_are_taken_over(window, foreign):
    assert len(window.page.panels) == 4 and window.controller.recorded is not None
    assert window.foreign.waiting == {} and not names_of(window) & {*NAMED, "/any/path"}


def names_of(window) -> set:
    settings = window.run_settings()
    return {settings.target, *(lane.draft for lane in settings.lanes), *(str(v) for lane in settings.lanes for v in lane.options.values())}


NAMED = {"owner/name", "owner/draft", "//host/head"}


def test_what_a_stranger_names_is_in_no_setting_before_it_was_asked_about(window, qtbot, foreign):
    asked, _ = foreign
    window.recorded.take_over()
    assert len(window.page.panels) == 4 and window.controller.recorded is not None and asked == []
    assert not names_of(window) & {*NAMED, "/any/path"} and not window.run_settings().trust_remote_code
    words = window.banner.message
    assert "Run asks first" in words and all(name in words for name in NAMED) and "/any/path" not in words
    window.setup.target.choose("mine.gguf")
    assert window.foreign.waiting == {}
    window.open_race(replace(window.own_settings(), target="owner/name"))  # as a cell of a sweep's file is
    assert "Run asks first" in window.banner.message and "owner/name" in window.banner.message


@pytest.mark.parametrize(("answer", "names"), [("use", NAMED), ("own", set()), ("", set())])
def test_run_asks_about_the_models_that_a_file_named(window, qtbot, script, foreign, answer, names):
    asked, answers = foreign
    answers.append(answer)
    window.recorded.take_over()
    window.setup.field("temperature").set_value(0.5)
    window.run()
    assert len(asked) == 1 and all(name in asked[0] for name in NAMED)
    assert names_of(window) & NAMED == names and "/any/path" not in names_of(window)
    assert window.controller.racing == bool(answer) and (window.controller.recorded is None) == bool(answer)
    if not answer:
        assert set(window.foreign.waiting) == NAMED
        return
    settings = window.controller.settings
    assert settings.sampling.temperature == 0.5 and not settings.trust_remote_code
    assert (settings.target == "owner/name") == (answer == "use")
    ended(window, qtbot)
    window.run()  # answered for this session
    assert len(asked) == 1
    ended(window, qtbot)


def test_measuring_a_strangers_target_is_asked_about_too_and_one_chosen_since_is_what_runs(window, qtbot, script, foreign):
    asked, answers = foreign
    answers.append("")
    window.tabs.open("Why")
    why = window.tabs.made("Why")
    why.show_lane(1)
    why.measure_v()
    assert len(asked) == 1 and "owner/name" in asked[0] and not window.controller.busy_with
    asked.clear()
    window.setup.target.choose("mine.gguf")
    run(window, qtbot)
    assert asked == [] and window.controller.settings.target == "mine.gguf"


def test_a_run_of_one_lane_opens_alone_and_run_adds_plain(window, qtbot, tmp_path, script):
    single = replace(SETTINGS, lanes=(LaneSettings("prompt-lookup", k=2),), baseline=False)
    open_in(qtbot, window, write_trace(tmp_path / "a.jsonl", settings=single))
    assert [panel.lane.name for panel in window.page.panels] == ["prompt-lookup"]
    assert window.controller.race.speedup(window.controller.race.lanes[0]) is None
    window.recorded.take_over()
    run(window, qtbot)
    assert [lane.name for lane in window.controller.race.lanes] == ["plain", "prompt-lookup"]


def test_what_is_no_trace_is_one_line_in_the_banner_and_a_trace_can_be_dropped(window, qtbot, tmp_path):
    path = tmp_path / "bad.jsonl"
    for content, says in ((b"\x00\x01", "not the header"), (b"", "is empty"), (b'{"schema": "specview.trace/7"}\n', "specview.trace/7")):
        path.write_bytes(content)
        window.intake.take(path)
        qtbot.waitUntil(lambda says=says: says in window.banner.message, timeout=5000)
        assert window.controller.recorded is None and not window.recorded.bar.isVisible()
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(write_trace(tmp_path / "a.jsonl")))])
    drop = QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    window.dropEvent(drop)
    qtbot.waitUntil(lambda: window.controller.recorded is not None, timeout=5000)
    assert drop.isAccepted()


def test_the_last_of_several_wishes_is_opened_and_nothing_over_a_running_race(window, qtbot, tmp_path, script):
    paths = [write_trace(tmp_path / f"{name}.jsonl", rounds=20) for name in "abc"]
    for path in paths:
        window.recorded.open([Pick(path)])
    qtbot.waitUntil(lambda: window.controller.recorded is not None, timeout=10_000)
    assert window.controller.recorded.picks[0].path == paths[2]
    script.round_s = 0.02
    window.run()
    window.intake.take(paths[0])
    assert "A race is running" in window.banner.message
    window.recorded.open([Pick(paths[0])])
    assert not window.recorded.opener.busy and window.controller.recorded is None
    window.controller.stop()
    ended(window, qtbot)


def test_settings_of_another_specview_leave_those_set_up(window, qtbot, tmp_path):
    path = write_trace(tmp_path / "a.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"method": "prompt-lookup"', '"method": "tomorrow"', 1), encoding="utf-8")
    before = window.setup.prompt.toPlainText(), list(window.lane_settings)
    open_in(qtbot, window, path)
    assert [lane.method for lane in window.controller.race.lanes] == ["plain", "draft-model", "tomorrow"]
    assert (window.setup.prompt.toPlainText(), window.lane_settings) == before
    assert "no method 'tomorrow'" in window.recorded.bar.words and not window.recorded.bar.take.isEnabled()


def test_a_run_whose_model_is_gone_opens_and_run_says_which(window, qtbot, tmp_path, monkeypatch):
    from specview.racing.race import Race

    gone = str(tmp_path / "gone" / "model.gguf")
    path = write_trace(tmp_path / "a.jsonl", settings=replace(SETTINGS, target=gone, engine="llama.cpp"))
    open_in(qtbot, window, path)
    assert len(window.page.panels[1].lane.rounds) == 12
    window.recorded.take_over()
    monkeypatch.setattr(FakeBackend, "start", lambda self, run, run_id: Race(run, run_id))
    monkeypatch.setattr("specview.gui.race.foreign_models.ask", lambda *_, **__: "use")
    window.run()
    assert window.run_settings().target == gone
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=20_000)
    assert gone in window.banner.message or "model.gguf" in window.banner.message


# -- beside one another, and played --------------------------------------------------------------------------


def test_runs_stand_beside_one_another_and_say_what_differs(window, qtbot, tmp_path):
    first = write_trace(tmp_path / "a.jsonl", rounds=20)
    same, other = write_trace(tmp_path / "b.jsonl", rounds=20, seed=9), write_trace(tmp_path / "c.jsonl", prompt_ids=(7,))
    setup = list(window.lane_settings)
    open_in(qtbot, window, first, same)
    lanes = window.controller.race.lanes
    assert [lane.name for lane in lanes] == ["plain · 1", "draft-model · 1", "prompt-lookup · 1", "draft-model · 2", "prompt-lookup · 2"]
    race = window.controller.race
    assert race.baseline is lanes[0] and all(race.speedup(lane) is not None for lane in lanes[1:])
    assert window.lane_settings == setup and "1: a; 2: b" in window.recorded.bar.words
    window._settings_changed()
    assert window.controller.recorded is not None and len(window.page.panels) == 5
    open_in(qtbot, window, first, other)
    lanes = window.controller.race.lanes
    assert [lane.differs for lane in lanes] == ["", "", "", "other prompt", "other prompt"]
    assert [race.speedup(lane) is None for lane in lanes] == [True, False, False, True, True]
    assert "Not comparable: other prompt" in window.page.panels[3].number.accessibleDescription()
    assert "not comparable" in str(lane_words.verdict(lanes[3])) and "1 lanes are left out" in window.recorded.bar.words


# -- keeping -------------------------------------------------------------------------------------------------


def test_a_run_that_cannot_be_kept_and_a_fault_of_the_keeper_are_told_and_it_goes_on(window, qtbot, tmp_path, monkeypatch, script):
    from specview.library.keeping import RunKeeper

    def fault(self, event):
        raise ValueError("a fault")

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "file"))
    for says in ("this run is not kept", "not kept"):
        run(window, qtbot)
        assert says in window.banner.message and window.controller.race.ended.end == "done"
        assert [len(lane.rounds) for lane in window.controller.race.lanes] == [script.rounds] * 3
        window.clear_message()
        monkeypatch.setattr(RunKeeper, "take", fault)


def test_a_continued_race_is_one_kept_run(window, qtbot, script):
    run(window, qtbot)
    window.continue_run()
    qtbot.waitUntil(lambda: len(window.controller.race.lanes[0].rounds) == 40 and window.controller.state == "ended", timeout=10_000)
    (entry,) = RunLibrary().scan()
    assert [len(record.rounds) for record in read_trace(entry.path).records] == [40] * 3 and entry.end == "done"


def test_a_later_turn_is_kept_with_what_came_before(window, qtbot):
    run(window, qtbot)
    window.next_turn("and then?")
    qtbot.waitUntil(lambda: len(RunLibrary().scan()) == 2 and window.controller.state == "ended", timeout=10_000)
    last = RunLibrary().find("last")
    assert last.prompt == "and then?"
    opened = open_picks([Pick(last.path)], [read_trace(last.path)])
    assert opened.settings is not None and [turn["role"] for turn in opened.settings.history] == ["user", "assistant"]
