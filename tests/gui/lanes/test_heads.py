"""Lanes of trained heads: the menu, the chooser in the editor, what is said of a head, lossy rules wherever they show."""

from __future__ import annotations

import json
from pathlib import Path
from threading import current_thread

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialogButtonBox, QFileDialog, QInputDialog, QWidget

from specview.decoding.sampling import SamplingParams
from specview.drafting.lanes import flat_settings, heads_of
from specview.drafting.method import MethodInfo
from specview.drafting.registry import METHODS
from specview.gui.lanes import head_chooser, members_editor
from specview.gui.lanes.editor import LaneEditor
from specview.gui.lanes.head_chooser import HeadChooser
from specview.gui.lanes.menu import LaneMenu, by_family
from specview.gui.lanes.panel import LanePanel
from specview.gui.link import head_checks, pair_checks
from specview.gui.link.head_checks import FoundHead, HeadQuestion, find_heads, head_in, needs_choice
from specview.gui.link.library import Found, FoundModel, Library
from specview.gui.shell import intake
from specview.gui.state import lane_words
from specview.gui.state.view_model import LaneModel
from specview.racing.resolve import checked_run
from specview.settings.events import Equality, LaneRound
from specview.settings.options import Option
from specview.settings.run import BUNDLED, LaneSettings, RunSettings
from tests.gui.views_data import make_race, make_rounds


def _make(context):
    raise AssertionError("made-up methods never draft")


FAKES = (
    MethodInfo("x-head", "x head", "Drafts from hidden states.", _make, (
        Option("tree", "chain", "The draft's shape.", choices=("chain", "dynamic"), label="shape"),
    ), head="eagle3", family="trained head"),
    MethodInfo("x-medusa", "x medusa", "Several heads.", _make, head="medusa", family="trained head"),
    MethodInfo("x-both", "x both", "In order.", _make, (
        Option("members", "prompt-lookup+x-head", "Drafters in order, joined by +."),
    ), family="combined", combines=True),
)
HERE = FoundHead("/heads/one", "eagle3", "one", "for a-target · /heads")
OTHER = FoundHead("owner/heads", "medusa", "owner/heads", "hub cache")


@pytest.fixture(autouse=True)
def checks(monkeypatch) -> None:
    """Of the made-up methods only Medusa's has a bundled head."""
    for info in FAKES:
        monkeypatch.setitem(METHODS, info.name, info)
    for module in (head_checks, head_chooser, members_editor):
        monkeypatch.setattr(module, "has_bundled", lambda kind: kind == "medusa")
    monkeypatch.setattr(pair_checks, "check", lambda pair: ("small", ""))
    monkeypatch.setattr(
        head_checks, "check",
        lambda q: ("warning" if "bad" in q.ref else "small", f"{q.kind} in {q.ref} {dict(q.answers)}"),
    )


@pytest.fixture
def library(qtbot) -> Library:
    made = Library()
    made.found = Found(models=(FoundModel("bundled", "SmolLM2", "bundled"),), heads=(HERE, OTHER))
    return made


def ok(editor: LaneEditor) -> bool:
    return editor.buttons.button(QDialogButtonBox.StandardButton.Ok).isEnabled()


def offered(chooser: HeadChooser) -> list[str]:
    return [str(chooser.choice.itemData(row)) for row in range(chooser.choice.count())]


# -- the menu -----------------------------------------------------------------------------------------------------


def test_trained_heads_are_a_group_that_says_which_need_a_choice(qtbot):
    parent = QWidget()
    qtbot.addWidget(parent)
    menu = LaneMenu(parent)
    menu.fill({})
    found = {row.name: row for row in menu.shown() if row.name}
    group = dict(by_family(found))["trained head"]
    assert {"x-head", "x-medusa"} <= set(group) and all(METHODS[name].head for name in group)
    assert found["x-head"].title == "x head…" and "to choose one" in found["x-head"].words
    assert found["x-medusa"].title == "x medusa" and needs_choice("x-head") and not needs_choice("x-medusa")
    assert "ship inside the target" in found["mtp"].words


def test_a_head_that_is_bundled_is_one_click_another_opens_the_chooser(window, qtbot, monkeypatch):
    before = list(window.lane_settings)
    window.lanes.add_method("x-medusa")
    assert window.lane_settings == [*before, LaneSettings(method="x-medusa")]
    window.library.found = Found(heads=(HERE,))
    asked: list[LaneSettings] = []

    def edit(lane, title):
        asked.append(lane)
        return lane if len(asked) > 1 else None

    monkeypatch.setattr(window.lanes, "ask", edit)
    window.lanes.add_method("x-head")
    assert asked == [LaneSettings(method="x-head", draft="/heads/one")] and len(window.lane_settings) == len(before) + 1
    window.lanes.add_method("x-head")
    assert window.lane_settings[-1] == asked[0]
    assert "Trained head: /heads/one" in window.page.panels[-1]._name.accessibleDescription()


# -- the chooser ----------------------------------------------------------------------------------------------------


def test_the_editor_offers_the_heads_of_the_kind_and_says_what_one_is(make_editor, qtbot, monkeypatch):
    editor = make_editor(LaneSettings(method="x-head", draft="/heads/one"))
    assert offered(editor.head) == [BUNDLED, "/heads/one"]
    assert editor.head.choice.itemText(0) == "none bundled: choose one"
    assert not editor.draft.isVisible() and editor.head.isVisible() and "head" not in editor.form._fields
    qtbot.waitUntil(lambda: editor.head.words.startswith("eagle3 in /heads/one"))
    assert editor.head.note.isVisible() and ok(editor)
    assert editor.lane() == LaneSettings(method="x-head", draft="/heads/one")
    # how the head is read is part of the question
    editor.form.set_value("aux_ids", "output")
    qtbot.waitUntil(lambda: "'aux_ids': 'output'" in editor.head.words)
    editor.form.set_value("aux_ids", "auto")
    # without one there is nothing to add
    editor.head.set_value(BUNDLED)
    assert not ok(editor) and "choose a folder or a hub id" in editor.problem
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *a: "/bad/folder")
    qtbot.mouseClick(editor.head.open_folder, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: editor.head.words.startswith("eagle3 in /bad/folder"))
    assert not ok(editor), "it is known that it cannot draft"
    assert editor.head.note.property("kind") == "warning" and editor.lane().draft == "/bad/folder"
    monkeypatch.setattr(QInputDialog, "getText", lambda *a: (" owner/name ", True))
    qtbot.mouseClick(editor.head.open_hub, Qt.MouseButton.LeftButton)
    assert editor.lane().draft == "owner/name" and ok(editor)


def test_heads_and_drafts_are_kept_apart_while_methods_change(make_editor):
    editor = make_editor(LaneSettings(method="x-head", draft="/heads/one"))
    editor.method.set_value("draft-model")
    assert editor.lane().draft == BUNDLED and editor.draft.isVisible() and not editor.head.isVisible()
    editor.method.set_value("x-medusa")
    assert editor.head.value() == BUNDLED and editor.head.choice.itemText(0) == "bundled with specview"
    assert offered(editor.head) == [BUNDLED, "owner/heads"] and ok(editor)
    editor.method.set_value("x-head")
    assert editor.lane().draft == "/heads/one"
    editor.method.set_value("prompt-lookup")
    assert editor.lane().draft == BUNDLED


def test_a_lane_that_names_its_head_as_an_option_is_shown_with_it(make_editor):
    editor = make_editor(LaneSettings(method="x-head", options={"head": "/elsewhere"}))
    assert editor.head.value() == "/elsewhere"
    lane = editor.lane()
    assert heads_of(lane)["x-head"].ref == "/elsewhere"


def test_members_of_a_combined_lane_choose_their_own_heads(make_editor, qtbot):
    editor = make_editor(LaneSettings(method="x-both"))
    assert not ok(editor) and "x head" in editor.problem
    editor.members.list.setCurrentRow(1)
    chooser = editor.members.form.field("head")
    assert isinstance(chooser, HeadChooser) and offered(chooser) == [BUNDLED, "/heads/one"]
    assert set(chooser.fields()) <= set(editor.members.focus_order())
    chooser.set_value("/heads/one")
    assert ok(editor), editor.problem
    qtbot.waitUntil(lambda: chooser.words.startswith("eagle3 in /heads/one"))
    assert heads_of(editor.lane())["x-head"].ref == "/heads/one"
    chooser.set_value("/bad/one")
    qtbot.waitUntil(lambda: chooser.words.startswith("eagle3 in /bad/one"))
    assert not ok(editor)
    chooser.set_value("/heads/one")
    assert ok(editor)
    editor.members.list.setCurrentRow(0)
    assert ok(editor) and heads_of(editor.lane())["x-head"].ref == "/heads/one"
    editor.members.add_member("x-medusa")
    assert ok(editor) and heads_of(editor.lane())["x-medusa"].ref == BUNDLED


def test_a_combined_lane_whose_draft_names_the_head_keeps_it(make_editor):
    editor = make_editor(LaneSettings(method="x-both", draft="/heads/one"))
    assert ok(editor) and heads_of(editor.lane())["x-head"].ref == "/heads/one"
    editor.members.add_member("draft-model")
    assert heads_of(editor.lane())["x-head"].ref == "/heads/one" and editor.lane().draft == BUNDLED


# -- what is said of a head ------------------------------------------------------------------------------------------


def save_medusa(folder: Path, hidden: int = 576, vocab: int = 49152) -> Path:
    """Medusa heads of one residual block each, with a config; vocab rows are few unless asked for."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    tensors = {}
    for head in range(2):
        tensors[f"{head}.0.linear.weight"] = np.zeros((hidden, hidden), np.float16)
        tensors[f"{head}.0.linear.bias"] = np.zeros(hidden, np.float16)
        tensors[f"{head}.1.weight"] = np.zeros((vocab, hidden), np.float16)
    save_file(tensors, str(folder / "medusa_lm_head.safetensors"))
    (folder / "config.json").write_text(json.dumps({
        "medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "owner/some-target", "version": "2",
    }))
    return folder


@pytest.fixture
def real_check(monkeypatch):
    monkeypatch.undo()
    return head_checks.check


def test_a_head_is_described_from_its_files_before_it_is_loaded(tmp_path, real_check):
    folder = save_medusa(tmp_path / "small", hidden=8, vocab=16)
    question = HeadQuestion("medusa", str(folder), BUNDLED, "transformers")
    kind, words = real_check(question)
    assert kind == "warning" and words.startswith("Medusa heads") and "drafts up to" in words
    assert "trained for owner/some-target" in words and "It does not fit" in words and "576" in words
    kind, words = real_check(HeadQuestion("eagle3", str(folder), BUNDLED, "transformers"))
    assert kind == "warning" and "This method drafts with an EAGLE-3 head" in words
    assert real_check(HeadQuestion("medusa", "owner/name", BUNDLED, "transformers")) == ("small", head_checks.FETCHED)
    kind, words = real_check(HeadQuestion("medusa", str(tmp_path / "none"), BUNDLED, "transformers"))
    assert kind == "warning" and "there is no file or folder" in words
    (folder / "medusa_lm_head.safetensors").write_bytes(b"cut")
    kind, words = real_check(question)
    assert kind == "warning" and "\n" not in words and words
    for engine in ("transformers", "llama.cpp"):
        kind, words = real_check(HeadQuestion("mtp", BUNDLED, BUNDLED, engine))
        assert kind == "warning" and "has no next-token-prediction modules" in words, engine


def test_heads_on_this_machine_are_found_off_the_qt_thread(qtbot, tmp_path, monkeypatch):
    from specview.gui.link import library as module
    from specview.models import catalog, hub

    save_medusa(tmp_path / "place" / "deep" / "heads", hidden=4, vocab=8)
    (tmp_path / "place" / "nothing").mkdir()
    monkeypatch.setattr(head_checks, "heads_folder", lambda: tmp_path / "none")
    monkeypatch.setattr(catalog, "usual_places", lambda: [tmp_path / "place"])
    monkeypatch.setattr(hub, "cached_ids", list)
    (made,) = find_heads()
    assert (made.kind, made.name) == ("medusa", "heads") and "some-target" in made.detail
    monkeypatch.setattr(module, "_models", list)
    library = Library()
    library.scan()
    qtbot.waitUntil(lambda: bool(library.found.heads), timeout=20_000)
    assert library.found.heads == (made,)
    library.close()


def test_a_head_that_is_dropped_becomes_a_lane_by_way_of_its_editor(window, qtbot, tmp_path, monkeypatch):
    folder = save_medusa(tmp_path / "heads", hidden=4, vocab=8)
    shown: list[LaneSettings] = []
    monkeypatch.setattr(window.lanes, "ask", lambda lane, title: shown.append(lane) or lane)
    monkeypatch.setattr(window.intake, "ask_role", lambda path: pytest.fail("it is no model"))
    threads: list[str] = []
    monkeypatch.setattr(intake, "head_in", lambda path: threads.append(current_thread().name) or head_in(path))
    window.intake.take(folder)
    qtbot.waitUntil(lambda: bool(shown), timeout=20_000)
    assert threads == ["specview-files"], "a folder is read off the Qt thread"
    assert shown[0].draft == str(folder) and METHODS[shown[0].method].head == "medusa"
    assert window.lane_settings[-1] == shown[0]


# -- lossy rules --------------------------------------------------------------------------------------------------------


def test_a_lossy_rule_is_named_wherever_its_numbers_show(qtbot):
    race = make_race(4)
    lane = race.lanes[3]
    assert lane.settings["rule"] == "typical"
    for round_ in make_rounds(6, 4, rule="typical"):
        race.apply(LaneRound(1, 3, round_))
    assert "Medusa" in lane_words.lossy(lane.settings)
    assert lane_words.setup(lane.settings)[0].text == "lossy"
    panel = LanePanel(race, 3)
    qtbot.addWidget(panel)
    for width in (150, 262, 420):
        panel.resize(width, 400)
        panel.refresh_figures()
        assert panel.number.beside()[0] == ("lossy", "warning") and "lossy" in panel.line.shown_text()
    assert all("Lossy" in piece.tip for piece in panel.line.pieces if piece.name != "k") and "Lossy" in panel.number.shown.tip
    assert lane_words.verdict(lane).text == "lossy"
    lane.equality = Equality(True, 40, None, None, None)
    verdict = lane_words.verdict(lane)
    assert verdict.text == "lossy · same text here" and verdict.tone == "warning" and verdict.short == "lossy"
    lane.equality = Equality(False, 40, 7, 0.1, 0.2)
    assert lane_words.verdict(lane).text == "lossy · ≠ differs at 7"
    exact = LanePanel(race, 1)
    qtbot.addWidget(exact)
    exact.refresh_figures()
    assert not exact.number.shown.lossy and lane_words.lossy(race.lanes[1].settings) == ""


def test_plots_call_a_lossy_lane_lossy(qtbot):
    from specview.gui.parts.plots import PlotStrip

    race = make_race(4)
    for index in range(4):
        for round_ in make_rounds(6, 4 if index else 0, rule=str(race.lanes[index].settings["rule"])):
            race.apply(LaneRound(1, index, round_))
    strip = PlotStrip(race)
    qtbot.addWidget(strip)
    strip.resize(900, 200)
    strip.show()
    strip.load()
    strip.refresh(now=True)
    strip._catch_up()
    for name in ("acceptance_rate", "tokens_per_target_pass", "decode_tokens_per_s"):
        said = {name: series.value for name, series in strip.cards[name].picture.series.items()}
        assert said["3"].endswith(" lossy") and not said["1"].endswith("lossy")


def test_medusas_rule_on_a_medusa_lane_is_lossy_from_the_settings_on():
    run = RunSettings(sampling=SamplingParams(0.7), lanes=(LaneSettings(), LaneSettings(method="x-medusa", rule="typical")))
    flat = flat_settings(checked_run(run), checked_run(run).lanes[1])
    assert lane_words.lossy(flat) and lane_words.verdict(LaneModel("x", flat)).text == "lossy"


def test_heads_go_where_the_users_data_goes(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "data"))
    assert head_checks.heads_folder() == tmp_path / "data" / "heads"


@pytest.mark.parametrize("kind", sorted({info.head for info in METHODS.values() if info.head and info.head != head_checks.INSIDE}))
def test_training_is_offered_for_what_it_can_make(kind):
    from specview.training.asked import KINDS

    words = head_checks.no_head(kind, "this method")
    assert ("train one" in words) == (kind in KINDS)
    if kind not in KINDS:
        assert "cannot be trained here" in words and "Hub has some" in words
        assert not head_checks.has_bundled(kind)
