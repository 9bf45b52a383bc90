"""The lane editor, option forms, number fields and the target picker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialogButtonBox, QWidget

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import rule_label
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import UsageError
from specview.gui.lanes.editor import LaneEditor, model_name
from specview.gui.lanes.option_form import OptionForm
from specview.gui.link import pair_checks
from specview.gui.link.library import Found, FoundModel, Library
from specview.gui.parts.option_field import option_tip
from specview.gui.parts.widgets import NumberEdit
from specview.gui.race.target_picker import TargetPicker, guess_engines
from specview.settings.options import Option
from specview.settings.run import LaneSettings, RunSettings

OPTIONS = (
    Option("longest", 3, "Longest n-gram.", 1, 8, label="n-gram, longest"),
    Option("share", 0.5, "A share.", 0.0, 1.0),
    Option("fast", True, "Go fast."),
    Option("match", "first", "Which one.", choices=("first", "last")),
    Option("note", "x", "Any text."),
)


@pytest.fixture(autouse=True)
def _no_files_are_compared(monkeypatch) -> None:
    monkeypatch.setattr(pair_checks, "check", lambda pair: ("small", ""))


@pytest.fixture
def library(qtbot) -> Library:
    made = Library()
    made.found = Found(models=(FoundModel("bundled", "SmolLM2", "bundled"),
                               FoundModel("/m/a<b>.gguf", "a<b>", "llama · 1.00 GB", ("llama.cpp",)),
                               FoundModel("/m/folder", "folder", "qwen2", ("transformers",))))
    return made


def ok(editor: LaneEditor):
    return editor.buttons.button(QDialogButtonBox.StandardButton.Ok)


def make_editor(qtbot, library, lane, run=None, rule="auto") -> LaneEditor:
    parent = QWidget()
    qtbot.addWidget(parent)
    editor = LaneEditor(lane, run or RunSettings(), rule, library, parent)
    editor.holder = parent  # pytest-qt keeps no reference
    editor.show()
    return editor


# -- option forms -----------------------------------------------------------------------------------


def test_a_form_gives_typed_values(qtbot):
    form = OptionForm()
    qtbot.addWidget(form)
    form.fill(OPTIONS, {"longest": 5, "match": "last"})
    assert form.values() == {"longest": 5, "share": 0.5, "fast": True, "match": "last", "note": "x"}
    with qtbot.waitSignal(form.changed):
        form.field("fast").setChecked(False)
    form.field("share").setText("0.25")
    assert form.values()["share"] == 0.25
    assert form.values()["fast"] is False
    form.field("longest").setText("9")
    with pytest.raises(UsageError, match="n-gram, longest is 9. Use a value from 1 to 8"):
        form.values()
    form.fill((), {})
    assert form.values() == {}


def test_tips_say_meaning_range_and_default(qtbot):
    tip = option_tip(OPTIONS[0])
    assert "Longest n-gram." in tip
    assert "from 1 to 8" in tip
    assert "from 0 to 1,000,000." in option_tip(Option("many", 1, "Many.", 0, 1_000_000))
    assert "Default: 3" in tip
    assert "Default: yes" in option_tip(OPTIONS[2])
    form = OptionForm()
    qtbot.addWidget(form)
    for method in (*METHODS.values(), *POLICIES.values()):
        form.fill(method.options, {})
        assert set(form.values()) == {option.name for option in method.options}
        for option in method.options:
            assert form.field(option.name).toolTip()
            assert form.field(option.name).accessibleName()


# -- numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "k is empty. Use a whole number."), ("x", "k is 'x'. Use a whole number."), ("1.5", "whole number"),
     ("0", "k is 0. Use a value from 1 to 64."), ("500", "k is 500."), ("-1", "k is -1."), ("1e3", "whole number"),
     ("٣٣٣", "k is ٣٣٣"), ("9" * 5000, "k is")],
)
def test_numbers_that_do_not_fit(qtbot, text, words):
    edit = NumberEdit("k", 4, whole=True, minimum=1, maximum=64)
    qtbot.addWidget(edit)
    edit.setText(text)
    assert words in edit.problem()
    assert edit.property("invalid") == "true"
    edit.setText("8")
    assert edit.problem() == ""
    assert edit.property("invalid") == "false"


def test_numbers_step_and_take_a_comma(qtbot):
    edit = NumberEdit("t", 0.0, minimum=0, maximum=1, step=0.1)
    qtbot.addWidget(edit)
    edit.show()
    qtbot.keyClick(edit, Qt.Key.Key_Down)
    assert edit.value() == 0
    for _ in range(3):
        qtbot.keyClick(edit, Qt.Key.Key_Up)
    assert edit.value() == 0.3
    edit.setText("0,7")
    assert edit.value() == 0.7
    empty = NumberEdit("k", None, whole=True, minimum=1, optional=True)
    qtbot.addWidget(empty)
    assert empty.value() is None
    qtbot.keyClick(empty, Qt.Key.Key_Up)
    assert empty.value() == 2


# -- the lane editor -----------------------------------------------------------------------------------------


def test_an_unchanged_lane_comes_back_as_it_was(qtbot, library):
    lane = LaneSettings(method="draft-model", name="mine", k=6, policy="confidence",
                        policy_options={"threshold": 0.3}, rule="match", draft="/m/folder")
    editor = make_editor(qtbot, library, lane)
    assert editor.lane() == lane
    assert ok(editor).isEnabled()
    assert editor.problem == ""


def test_validation_is_inline(qtbot, library):
    editor = make_editor(qtbot, library, LaneSettings(method="prompt-lookup"))
    for text in ("0", "500", "x"):
        editor.k.setText(text)
        assert editor.problem.startswith("k is")
        assert not ok(editor).isEnabled()
    editor.k.setText("")
    assert ok(editor).isEnabled()
    assert editor.lane().k is None
    editor.form.field(METHODS["prompt-lookup"].options[0].name).setText("-4")
    assert editor.problem
    assert not ok(editor).isEnabled()


def test_rules_say_whether_they_are_exact(qtbot, library):
    run = RunSettings(sampling=SamplingParams(temperature=1.0))
    editor = make_editor(qtbot, library, LaneSettings(method="prompt-lookup"), run, "match")
    texts = [editor.rule.itemText(i) for i in range(editor.rule.count())]
    assert texts[0] == "as the race (match · exact)"
    assert "typical (Medusa) · lossy" in texts
    assert "naive · lossy" in texts
    assert rule_label("rejection") == "rejection · exact"
    editor.rule.set_value("greedy")
    assert "temperature 0" in editor.problem
    assert not ok(editor).isEnabled()
    editor.rule.set_value("typical")
    assert ok(editor).isEnabled()


def test_methods_and_policies_bring_their_own_options(qtbot, library):
    editor = make_editor(qtbot, library, LaneSettings(method="prompt-lookup", options={"match": "last"}))
    assert not editor.draft.isVisible()
    editor.method.set_value("draft-model")
    assert editor.draft.isVisible()
    assert editor.lane().method == "draft-model"
    assert editor.lane().options == METHODS["draft-model"].resolve({})
    editor.method.set_value("prompt-lookup")
    assert editor.lane().options["match"] == "last"
    editor.policy.set_value("confidence")
    editor.policy_form.field("threshold").setText("0.9")
    assert editor.lane().policy_options == {"threshold": 0.9}
    editor.policy.set_value("constant")
    assert editor.lane().policy_options == {}


def test_a_missing_draft_engine_is_said(qtbot, library):
    library.found = replace(library.found, engines=(("transformers", ""), ("llama.cpp", "no llama_cpp here.")))
    editor = make_editor(qtbot, library, LaneSettings(method="draft-model"))
    editor.draft_engine.set_value("llama.cpp")
    assert editor.problem == "no llama_cpp here."
    assert not ok(editor).isEnabled()
    editor.method.set_value("prompt-lookup")
    assert ok(editor).isEnabled()


def test_names_of_models():
    assert model_name("/a/b/x-1.gguf") == "x-1"
    assert model_name("C:\\models\\y.gguf") in ("y", "C:\\models\\y")
    assert model_name("owner/name") == "name"
    assert "SmolLM2" in model_name("bundled")


# -- the target picker --------------------------------------------------------------------------------------------


def test_the_picker_takes_a_model_and_an_engine_that_can_load_it(qtbot, library):
    picker = TargetPicker(library)
    qtbot.addWidget(picker)
    assert picker.list.count() == 3
    with qtbot.waitSignal(picker.changed):
        picker.choose("/m/a<b>.gguf")
    assert picker.engine == "llama.cpp"
    assert "a<b>" in picker.text()
    picker.trust = True
    picker.choose("/m/folder")
    assert picker.engine == "transformers"
    assert not picker.trust
    picker.choose("owner/name")
    assert picker.engine == "transformers"
    assert picker.list.count() == 4
    assert guess_engines("x/y/z.gguf") == ("transformers", "llama.cpp")
    picker.choose("/m/a<b>.gguf")
    assert "&lt;b&gt;" in picker.toolTip()


def test_look_again_finds_models_too(qtbot, library, monkeypatch):
    there = [FoundModel("/m/new.gguf", "new", "llama", ("llama.cpp",))]
    monkeypatch.setattr("specview.gui.link.library._models", lambda: list(there))
    monkeypatch.setattr("specview.gui.link.library._heads", list)
    picker = TargetPicker(library)
    qtbot.addWidget(picker)
    with qtbot.waitSignal(library.changed, timeout=20_000):
        picker.rescan.click()
    assert [model.ref for model in library.found.models] == ["/m/new.gguf"]
    assert any(picker.list.item(row).text().startswith("new") for row in range(picker.list.count()))
    library.close()


def test_trust_is_per_target_and_never_for_the_bundled_one(qtbot, library):
    picker = TargetPicker(library)
    qtbot.addWidget(picker)
    assert not picker.trust_box.isEnabled()
    picker.choose("/m/folder")
    assert picker.trust_box.isEnabled()
    with qtbot.waitSignal(picker.changed):
        picker.trust_box.setChecked(True)
    assert picker.trust
    picker.choose("bundled")
    assert not picker.trust
    assert not picker.trust_box.isChecked()


def test_the_hub_line(qtbot, library):
    picker = TargetPicker(library)
    qtbot.addWidget(picker)
    assert not picker.use_hub.isEnabled()
    picker.hub.setText("owner/name/file.gguf")
    assert picker.use_hub.isEnabled()
    picker.use_hub.click()
    assert picker.target == "owner/name/file.gguf"


def test_a_scan_that_fails_is_no_error(qtbot, monkeypatch):
    from specview.gui.link import library as module

    def broken():
        raise RuntimeError("disk on fire")

    monkeypatch.setattr("specview.models.catalog.list_models", broken)
    made = Library()
    with qtbot.waitSignal(made.changed, timeout=20_000):
        made.scan()
    assert made.found.models == ()
    assert dict(made.found.engines)["transformers"] == ""
    assert len(made.found.workloads) >= 12
    assert module.default_workload("nonsense") is None
    made.close()
