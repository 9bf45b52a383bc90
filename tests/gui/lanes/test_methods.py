"""Every method one click away: the menu, the editor's forms from declarations, the scan, the pair's words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QDialogButtonBox, QFileDialog, QLabel, QWidget

from specview.decoding.interfaces import Declared, End
from specview.drafting.lanes import needs_draft
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS, fitting
from specview.gui.lanes.editor import LaneEditor
from specview.gui.lanes.menu import FAMILIES, RECOMMENDED, LaneMenu, Row, by_family, known_problems
from specview.gui.lanes.option_form import OptionForm
from specview.gui.link.head_checks import FoundHead, heads_for, needs_choice
from specview.gui.link.library import Found
from specview.settings.run import LaneSettings
from tests.gui.methods_fake import PRESETS

pytestmark = pytest.mark.usefixtures("made_up")


def ok(editor: LaneEditor) -> bool:
    return editor.buttons.button(QDialogButtonBox.StandardButton.Ok).isEnabled()


def wait_ended(qtbot, window) -> None:
    window.run()
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=10_000)


# -- the menu ---------------------------------------------------------------------------------------------


@pytest.fixture
def menu(qtbot):
    """A menu under a widget of its own."""
    parent = QWidget()
    qtbot.addWidget(parent)
    parent.show()
    yield LaneMenu(parent)
    parent.hide()


def listed(menu: LaneMenu) -> dict[str, Row]:
    return {row.name: row for row in menu.shown() if row.name}


def test_the_menu_lists_every_method_what_fits_first_then_by_family(menu, qtbot):
    menu.fill({"x-suffix": "no room"}, ["x-window", "draft-model", "x-cascade"])
    found = listed(menu)
    assert set(found) == {name for name, info in METHODS.items() if info.drafts}
    for name, row in found.items():
        info = METHODS[name]
        assert row.title == info.label + ("…" if needs_choice(name) else "") and info.description in row.note
        assert bool(row.problem) == (name == "x-suffix")
    order = list(found)
    assert order[:3] == ["x-window", "draft-model", "x-cascade"] and all(found[name].first for name in order[:3])
    assert order[3:] == [name for _, names in by_family(order[3:]) for name in names]
    assert [family for family, _ in by_family(found)] == [
        "draft model", "trained head", "n-gram", "self", "combined",
    ]
    assert [row.title for row in menu.shown() if not row.name] == [RECOMMENDED, *FAMILIES.values()]
    # its words are plain text, and follow the line that is chosen, with the keyboard or the mouse
    menu.open_under(menu.parentWidget())
    assert menu.current is found["x-window"] and menu.about.text() == METHODS["x-window"].description
    place = menu.shown().index(found["x-cascade"])
    qtbot.mouseMove(menu.list.viewport(), menu.list.visualItemRect(menu.list.item(place)).center())
    menu.list.itemEntered.emit(menu.list.item(place))
    assert menu.about.text() == METHODS["x-cascade"].description in menu.filter.accessibleDescription()
    assert all(label.textFormat() == Qt.TextFormat.PlainText for label in menu.findChildren(QLabel))
    menu.grab()
    menu.hide()


def test_typing_hides_what_does_not_match_and_enter_takes_the_first(menu, qtbot):
    menu.fill({"x-suffix": "no room"}, ["draft-model"])
    menu.open_under(menu.parentWidget())
    chosen = []
    menu.method_chosen.connect(chosen.append)
    qtbot.keyClicks(menu.filter, "suffix")
    assert {"suffix", "x-suffix"} <= set(listed(menu)) and "eagle3" not in listed(menu)
    assert menu.current is not None and menu.current.name == "suffix", "one that cannot run is not chosen"
    assert all(row.name or later.name for row, later in zip(menu.shown(), menu.shown()[1:], strict=False)), "no empty heading"
    for _ in "suffix":
        qtbot.keyClick(menu.filter, Qt.Key.Key_Backspace)
    qtbot.keyClicks(menu.filter, "window of guesses")
    assert list(listed(menu)) == ["x-window"], "what it says counts too"
    qtbot.keyClick(menu.filter, Qt.Key.Key_Escape)
    assert menu.isVisible() and menu.filter.text() == "" and len(listed(menu)) > 9
    qtbot.keyClicks(menu.filter, "no such thing")
    assert menu.current is None and "No method" in menu.about.text()
    qtbot.keyClick(menu.filter, Qt.Key.Key_Return)
    assert menu.isVisible() and chosen == []
    menu.filter.clear()
    qtbot.keyClicks(menu.filter, "eagle-3")
    qtbot.keyClick(menu.filter, Qt.Key.Key_Return)
    assert chosen == ["eagle3"] and not menu.isVisible()


def test_a_method_that_cannot_run_is_reached_its_reason_read_and_not_taken(menu, qtbot):
    reason = "its cache is a <b>sliding</b> window, " * 6
    menu.fill({"x-suffix": reason})
    menu.open_under(menu.parentWidget())
    qtbot.keyClicks(menu.filter, "x-suffix")
    assert list(listed(menu)) == ["x-suffix"] and menu.about.text() == f"Not here: {reason}"
    chosen = []
    menu.method_chosen.connect(chosen.append)
    qtbot.keyClick(menu.filter, Qt.Key.Key_Return)
    menu.list.itemClicked.emit(menu.list.currentItem())
    assert chosen == [] and menu.isVisible()
    assert "&lt;b&gt;" in menu.list.currentItem().toolTip()
    menu.hide()


def test_the_menu_leads_to_the_editor_and_to_tuning(menu, qtbot):
    menu.fill({})
    menu.open_under(menu.parentWidget())
    for one, signal in ((menu.editor, menu.editor_asked), (menu.tune, menu.tuning_asked)):
        menu.open_under(menu.parentWidget())
        with qtbot.waitSignal(signal):
            one.setFocus()
            qtbot.keyClick(one, Qt.Key.Key_Space)
        assert not menu.isVisible()


def test_what_fits_a_target_is_told_by_what_is_here(window):
    assert fitting({"eagle3", "medusa"})[:2] == ["draft-model", "eagle3"]
    assert fitting(())[:3] == ["draft-model", "prompt-lookup", "suffix"]
    assert "suffix" not in fitting((), problems={"suffix"}, there={"draft-model"})
    assert not any(METHODS[name].seldom_pays for name in fitting({"eagle3"}))
    window.library.found = Found(heads=(FoundHead("/h", "eagle", "my head", "", "owner/Some-Model"),))
    assert heads_for("bundled", "transformers") >= {"eagle3", "medusa"} and heads_for("bundled", "llama.cpp") == set()
    assert heads_for("/models/some-model", "transformers", window.library.found.heads) == {"eagle"}
    there = {lane.method for lane in window.lane_settings}
    assert len(window.lanes.recommended()) == 3 and not there & set(window.lanes.recommended())


def test_lanes_of_a_first_start_follow_the_target_until_they_are_changed(make_window):
    window = make_window()
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "eagle3"]
    window.setup.target.choose("/models/other.gguf")
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "prompt-lookup"]
    window.setup.target.choose("bundled")
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "eagle3"]
    window.lanes.add_method("suffix")
    window.setup.target.choose("/models/other.gguf")
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "eagle3", "suffix"]


def test_a_method_is_a_lane_one_click_away(window, qtbot):
    before = list(window.lane_settings)
    qtbot.mouseClick(window.setup.add_lane, Qt.MouseButton.LeftButton)
    menu = window.lane_menu
    assert menu.isVisible()
    menu.choose("x-cascade")
    assert not menu.isVisible()
    assert window.lane_settings == [*before, LaneSettings(method="x-cascade")]
    assert [panel.lane.name for panel in window.page.panels][-1] == "x-cascade"
    assert window.run_settings().lanes[-1].options["members"] == "x-simple+draft-model"
    wait_ended(qtbot, window)
    lane = window.controller.race.lanes[-1]
    assert set(lane.metrics().by_drafter) == {"x-simple", "draft-model"}
    window.page._on_numbers()
    assert "93% of oracle" in window.page.panels[-1].shares.mark.text


def test_the_menu_is_reached_and_used_with_the_keyboard(window, qtbot):
    qtbot.keyClick(window, Qt.Key.Key_L, Qt.KeyboardModifier.ControlModifier)
    menu = window.lane_menu
    qtbot.waitUntil(menu.isVisible)
    qtbot.waitUntil(menu.filter.hasFocus)
    names = list(listed(menu))
    assert menu.current is not None and menu.current.name == names[0] == window.lanes.recommended()[0]
    for name in names[1:4]:
        qtbot.keyClick(menu.filter, Qt.Key.Key_Down)
        assert menu.current.name == name
    taken = menu.current.name
    qtbot.keyClick(menu.filter, Qt.Key.Key_Return)
    assert window.lane_settings[-1] == LaneSettings(method=taken)
    assert not menu.isVisible()
    # space on the button opens it too
    window.setup.add_lane.setFocus()
    qtbot.keyClick(window.setup.add_lane, Qt.Key.Key_Space)
    assert menu.isVisible()
    qtbot.keyClick(menu.filter, Qt.Key.Key_Escape)
    assert not menu.isVisible()


def test_what_cannot_run_on_the_engine_says_why_before_and_after_loading(window, qtbot, script):
    assert "early-exit" in known_problems("llama.cpp")
    assert all(isinstance(reason, str) for reason in known_problems("llama.cpp").values())
    assert known_problems("transformers") == {}
    window.setup.target.set_values("llama.cpp", "bundled")
    assert "early-exit" in window.lanes.problems()
    window.lanes.open_menu()
    rows = listed(window.lane_menu)
    assert rows["early-exit"].problem and "Not here" in rows["early-exit"].words
    assert not rows["x-suffix"].problem
    window.lane_menu.hide()
    # once loaded, the target itself says
    script.facts = ("cpu", {"x-suffix": "its cache is a <b>sliding</b> window"}, Declared())
    window.setup.target.set_values("transformers", "bundled")
    assert window.lanes.problems() == {}
    wait_ended(qtbot, window)
    qtbot.waitUntil(lambda: bool(window.lanes.problems()))
    assert window.lanes.problems() == {"x-suffix": "its cache is a <b>sliding</b> window"}


def test_a_loaded_target_tells_what_its_files_declare(window, qtbot, script):
    picker, panel = window.setup.target, window.setup.panel
    assert "once it is loaded" in picker.about.text() and panel.template.count() == 1
    script.facts = ("cpu", {}, Declared(
        (End(2, "<b>end</b>", ("config.json",)),), {"default": "d", "rag": "r", "tool_use": "t"}, "Left out: x.", "A raw prompt y."
    ))  # fmt: skip
    wait_ended(qtbot, window)
    qtbot.waitUntil(lambda: "config.json" in picker.about.text())
    assert picker.about.text().splitlines() == [
        "A text ends at 2 <b>end</b> (config.json).", "Chat templates besides the default one: rag, tool_use.",
        "A raw prompt y.", "Left out: x.",
    ]  # fmt: skip
    assert picker.about.textFormat() == Qt.TextFormat.PlainText
    assert [panel.template.itemData(place) for place in range(panel.template.count())] == ["", "rag", "tool_use"]
    assert window.run_settings().chat_template is None
    panel.template.set_value("rag")
    assert window.run_settings().chat_template == "rag"
    window.setup.tell_target(None)  # not loaded: what is chosen stays
    assert window.run_settings().chat_template == "rag"
    picker.choose("owner/another")
    assert window.run_settings().chat_template is None and panel.template.count() == 1


def test_a_chosen_template_is_remembered(make_window):
    first = make_window(start=False)
    first.setup.show_settings(replace(first.run_settings(), chat_template="rag"), "auto")
    first.close()
    assert make_window(start=False).run_settings().chat_template == "rag"


def test_the_editor_can_come_first(window, qtbot, monkeypatch):
    asked = []
    monkeypatch.setattr(window.lanes, "ask", lambda lane, title: asked.append(lane.method) or replace(lane, k=3))
    window.lane_menu.fill({})
    window.lane_menu.editor.click()
    assert asked and window.lane_settings[-1].k == 3
    assert asked[0] not in [lane.method for lane in window.lane_settings[:-1]]


# -- option forms -------------------------------------------------------------------------------------------


def test_a_preset_fills_the_form_which_stays_editable(qtbot):
    form = OptionForm()
    qtbot.addWidget(form)
    info = METHODS["x-simple"]
    form.fill(info.options, {"preset": "text"}, info.presets)
    assert form.values() == {"preset": "text", "size_n": 8, "size_m": 48, "min_hits": 2}
    with qtbot.waitSignal(form.changed):
        form.field("preset").set_value("code")
    assert form.values() == info.resolve({})
    form.field("size_n").setText("9")
    assert form.values()["size_n"] == 9 and form.values()["preset"] == "code"
    for name, values in PRESETS.items():
        form.field("preset").set_value("text" if name == "code" else "code")
        form.field("preset").set_value(name)
        assert values.items() <= form.values().items()
    # given values stand over the preset's
    form.fill(info.options, {"preset": "text", "min_hits": 7}, info.presets)
    assert form.values()["min_hits"] == 7 and form.values()["size_n"] == 8


def test_a_store_is_a_file(qtbot, monkeypatch):
    form = OptionForm()
    qtbot.addWidget(form)
    form.fill(METHODS["x-suffix"].options, {})
    assert form.values()["store"] == ""
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, **__: ("/tmp/a tree.bin", ""))
    with qtbot.waitSignal(form.changed):
        form._files["store"].click()
    assert form.values()["store"] == "/tmp/a tree.bin"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, **__: ("", ""))
    form._files["store"].click()
    assert form.values()["store"] == "/tmp/a tree.bin"
    assert form._files["store"] in form.fields() and form._files["store"].accessibleName()


def test_every_registered_method_has_a_form_that_gives_its_own_defaults(make_editor):
    """Whatever is in the registry: the form's values are what the method resolves to by itself."""
    for name, info in METHODS.items():
        if not info.drafts:
            continue
        editor = make_editor(LaneSettings(method=name))
        assert ok(editor), (name, editor.problem)
        lane = editor.lane()
        assert info.resolve(lane.options) == info.resolve({}), name
        for field in (*editor.form.fields(), *editor.members.form.fields()):
            assert field.accessibleName()
        editor.reject()


# -- members of a combined method ---------------------------------------------------------------------------


def test_members_are_added_moved_and_removed(make_editor, qtbot):
    editor = make_editor(LaneSettings(method="x-cascade"))
    members = editor.members
    assert members.isVisible() and members.names() == ["x-simple", "draft-model"]
    members._fill_menu()
    offered = [action.data() for action in members.menu.actions() if action.data()]
    assert "x-cascade" not in offered and "x-simple" not in offered and "x-suffix" in offered and "plain" not in offered
    next(action for action in members.menu.actions() if action.data() == "x-suffix").trigger()
    assert members.names() == ["x-simple", "draft-model", "x-suffix"]
    assert members.list.currentRow() == 2
    members.list.setFocus()
    qtbot.keyClick(members.list, Qt.Key.Key_Up, Qt.KeyboardModifier.AltModifier)
    assert members.names() == ["x-simple", "x-suffix", "draft-model"] and members.list.currentRow() == 1
    qtbot.mouseClick(members.down, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(members.up, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(members.up, Qt.MouseButton.LeftButton)
    assert members.names() == ["x-suffix", "x-simple", "draft-model"] and not members.up.isEnabled()
    assert editor.lane().options["members"] == "x-suffix+x-simple+draft-model"
    qtbot.keyClick(members.list, Qt.Key.Key_Up, Qt.KeyboardModifier.AltModifier)
    assert members.names()[0] == "x-suffix"
    qtbot.keyClick(members.list, Qt.Key.Key_Delete)
    assert members.names() == ["x-simple", "draft-model"]
    assert editor.lane() == LaneSettings(method="x-cascade")  # as it was
    for _ in range(2):
        qtbot.mouseClick(members.remove, Qt.MouseButton.LeftButton)
    assert editor.problem == "x cascade has no member. Add one." and not ok(editor)
    assert members.form.fields() == [] and members.title.full == "" and not members.remove.isEnabled()
    qtbot.keyClick(members.list, Qt.Key.Key_Delete)  # nothing left to remove
    members.add_member("x-simple")
    assert ok(editor)


def test_each_member_has_its_own_options(make_editor):
    given = {"members": "x-simple+x-suffix", "x-simple.preset": "text", "x-suffix.shared": True, "patience": 4}
    editor = make_editor(LaneSettings(method="x-cascade", options=given))
    members = editor.members
    assert editor.form.values() == {"patience": 4}
    assert members.form.values()["size_n"] == 8
    members.form.field("min_hits").setText("5")
    members.list.setCurrentRow(1)
    assert members.form.values()["shared"] is True
    members.form.field("max_depth").setText("9")
    options = editor.lane().options
    assert options["x-simple.min_hits"] == 5 and options["x-simple.size_n"] == 8
    assert options["x-suffix.max_depth"] == 9 and options["x-suffix.shared"] is True
    assert METHODS["x-cascade"].resolve(options)["x-simple.preset"] == "text"
    members.form.field("max_depth").setText("900")
    assert "max depth is 900" in editor.problem and not ok(editor)
    # another method and back: nothing is lost
    members.form.field("max_depth").setText("9")
    editor.method.set_value("x-simple")
    assert not members.isVisible()
    editor.method.set_value("x-cascade")
    assert editor.lane().options == options


def test_a_bad_value_resets_nothing(make_editor):
    """Another member, method or policy and back: good values stand, the bad text too, and it is said all along."""
    given = {"members": "x-simple+x-suffix"}
    editor = make_editor(LaneSettings(method="x-cascade", options=given))
    members = editor.members
    members.form.field("size_n").setText("33")
    members.form.field("min_hits").setText("many")
    members.list.setCurrentRow(1)
    assert "min_hits is 'many'" in editor.problem and not ok(editor)
    members.list.setCurrentRow(0)
    assert members.form.field("size_n").text() == "33" and members.form.field("min_hits").text() == "many"
    assert members.form.field("min_hits").property("invalid") == "true"
    editor.form.field("patience").setText("99")
    editor.method.set_value("x-window")
    assert ok(editor)
    editor.form.field("window").setText("")
    editor.method.set_value("x-cascade")
    assert editor.form.field("patience").text() == "99"
    assert members.form.field("size_n").text() == "33" and members.form.field("min_hits").text() == "many"
    assert not ok(editor)
    members.form.field("min_hits").setText("7")
    editor.form.field("patience").setText("3")
    assert ok(editor)
    options = editor.lane().options
    assert (options["x-simple.size_n"], options["x-simple.min_hits"], options["patience"]) == (33, 7, 3)
    editor.method.set_value("x-window")
    assert editor.form.field("window").text() == "" and not ok(editor)


def test_a_bad_value_of_a_policy_stays(make_editor):
    editor = make_editor(LaneSettings(method="draft-model", policy="confidence"))
    name = next(iter(editor.policy_form.held()))
    editor.policy_form.field(name).setText("7e9")
    editor.policy.set_value("constant")
    assert ok(editor)
    editor.policy.set_value("confidence")
    assert editor.policy_form.field(name).text() == "7e9" and not ok(editor)


def test_the_draft_row_follows_the_members(make_editor):
    editor = make_editor(LaneSettings(method="x-cascade"))
    assert editor.draft.isVisible() and editor.draft_engine.isVisible()
    editor.members.list.setCurrentRow(1)
    editor.members.remove_current()
    assert not editor.draft.isVisible() and not editor.draft_engine.isVisible()
    editor.members.add_member("draft-model")
    assert editor.draft.isVisible()
    assert needs_draft(editor.lane())


def test_a_member_that_cannot_run_here_is_said(make_editor):
    editor = make_editor(LaneSettings(method="x-cascade"), problems={"early-exit": "its forward cannot be left early."})
    assert ok(editor)
    editor.members.add_member("early-exit")
    assert editor.problem == "early exit cannot draft here: its forward cannot be left early." and not ok(editor)
    editor.members._fill_menu()
    editor.members.remove_current()
    editor.members._fill_menu()
    action = next(a for a in editor.members.menu.actions() if a.data() == "early-exit")
    assert not action.isEnabled()


def test_the_keyboard_follows_the_eye(make_editor, qtbot):
    editor = make_editor(LaneSettings(method="x-cascade"))
    editor.activateWindow()
    editor.method.setFocus()
    reached = []
    for _ in range(60):
        widget = QApplication.focusWidget()
        if widget is None or widget in reached:
            break
        reached.append(widget)
        editor.focusNextChild()
    members = editor.members
    wanted = [editor.method, editor.name, members.list, members.add, members.form.field("size_n"),
              editor.form.field("patience"), editor.draft, editor.k, editor.policy, editor.rule]
    places = [reached.index(widget) for widget in wanted]
    assert places == sorted(places)


def test_opening_and_closing_the_editor_changes_no_lane(make_editor):
    """So that it keeps the run it shows; a changed value is told."""
    for lane in (LaneSettings(method="x-simple"), LaneSettings(method="x-cascade"),
                 LaneSettings(method="x-cascade", options={"members": "x-suffix", "x-suffix.shared": True})):
        editor = make_editor(lane)
        assert editor.lane() == lane
        editor.reject()
    editor.members.form.field("max_depth").setText("3")
    assert editor.lane().options["x-suffix.max_depth"] == 3


# -- k ----------------------------------------------------------------------------------------------------------


def test_k_says_its_default_and_what_it_means(make_editor):
    editor = make_editor(LaneSettings(method="x-simple", options={"preset": "text"}), device="cpu")
    assert editor.k.placeholderText() == "auto: 48"
    editor.form.field("size_m").setText("31")
    assert editor.k.placeholderText() == "auto: 31"
    assert "the default of x simple" in editor.k.accessibleDescription()
    editor.method.set_value("x-suffix")
    assert editor.k.placeholderText() == "auto: 2" and "the length of every draft" in editor.k.accessibleDescription()
    editor.policy.set_value("heuristic")
    assert "first round's length" in editor.k.accessibleDescription()
    editor.policy.set_value("adaptive")
    assert editor.k.placeholderText() == "auto: 16" and "longest" in editor.k.accessibleDescription()
    editor.form.field("max_depth").setText("x")
    assert editor.k.placeholderText() == "auto"  # nothing can be said of a form that does not fit


def test_a_constant_k_is_not_every_methods_draft_length(make_editor):
    editor = make_editor(LaneSettings(method="x-simple"))
    assert editor._policy_text.text() == POLICIES["constant"].description
    editor.method.set_value("cascade")
    assert "longest draft that a member may make" in editor._policy_text.text()
    assert "longest draft that a member may make" in editor.k.accessibleDescription()
    editor.method.set_value("lookahead")
    assert "longest path" in editor._policy_text.text() and "longest path" in editor.k.accessibleDescription()
    editor.method.set_value("medusa")
    editor.form.set_value("tree", "chain")
    assert editor._policy_text.text() == POLICIES["constant"].description, "a chain has no guesses that branch"
    editor.form.set_value("tree", "fixed")
    assert "longest path" in editor._policy_text.text()
    editor.policy.set_value("heuristic")
    assert editor._policy_text.text() == POLICIES["heuristic"].description
    editor.policy.set_value("constant")
    editor.method.set_value("x-simple")
    assert editor._policy_text.text() == POLICIES["constant"].description



def test_long_forms_fit_a_small_screen_and_scroll(make_editor, qtbot, monkeypatch):
    from PySide6.QtCore import QRect
    from PySide6.QtGui import QScreen

    monkeypatch.setattr(QScreen, "availableGeometry", lambda self: QRect(0, 0, 1280, 500))
    editor = make_editor(LaneSettings(method="x-cascade", policy="confidence"))
    qtbot.wait(30)
    assert editor.height() <= 500 and editor.width() <= 1280
    bar = editor.form_scroll.verticalScrollBar()
    assert bar.maximum() > 0
    assert editor.form_scroll.horizontalScrollBar().maximum() == 0
    assert editor.buttons.isVisible() and editor.rect().contains(editor.buttons.geometry())


def test_forms_of_all_methods_fit_a_laptop(make_editor, qtbot):
    for name in ("x-simple", "x-suffix", "early-exit", "prompt-lookup"):
        editor = make_editor(LaneSettings(method=name))
        qtbot.wait(20)
        assert editor.height() <= 740
        editor.reject()
