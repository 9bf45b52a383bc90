"""What the window remembers, and what it does with a file that it cannot use."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specview.decoding.sampling import SamplingParams
from specview.errors import UsageError
from specview.gui.state.settings_store import Remembered, SettingsStore, WindowState
from specview.gui.state.token_looks import TokenLooks
from specview.settings.run import LaneSettings, RunSettings, run_from_json, run_to_json

RUN = RunSettings(
    engine="llama.cpp",
    target="/models/a b/ünï.gguf",
    dtype="bfloat16",
    threads=3,
    gpu_layers=-1,
    context=4096,
    prompt="Olá <b>mundo</b>\n\ttab",
    system="Be brief.",
    chat=False,
    sampling=SamplingParams(0.7, 40, 0.95, 0.05, 7),
    max_tokens=99,
    observe="light",
    lanes=(
        LaneSettings(),
        LaneSettings(method="draft-model", name="mine", draft="/x/y.gguf", k=6, policy="confidence",
                     policy_options={"threshold": 0.3}, rule="typical"),
        LaneSettings(method="prompt-lookup", options={"match": "last"}),
    ),
)


def test_settings_survive(tmp_path):
    store = SettingsStore(tmp_path)
    looks = WindowState("abcd", {"rows": [1, 2]}, "light", 1.25, "all", ["bonus"], True, False, False, "match", False)
    assert store.save(Remembered(RUN, looks))
    kept = SettingsStore(tmp_path).load()
    assert kept.window == looks
    assert kept.run is not None
    assert kept.run.sampling == RUN.sampling
    assert kept.run.target == RUN.target
    assert kept.run.prompt == RUN.prompt
    assert [lane.method for lane in kept.run.lanes] == ["plain", "draft-model", "prompt-lookup"]
    assert kept.run.lanes[1].policy_options == {"threshold": 0.3}
    assert kept.run.lanes[2].options["match"] == "last"
    assert not list(tmp_path.glob("*.tmp"))


def test_trust_and_history_are_never_kept():
    run = replace(RUN, trust_remote_code=True, history=({"role": "user", "content": "x"},))
    text = json.dumps(run_to_json(run))
    assert "trust" not in text
    assert "history" not in text
    # nor taken from a file that somebody edited
    again = run_from_json({**run_to_json(run), "trust_remote_code": True})
    assert not again.trust_remote_code


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 99}', '{"version": 1, "window": 3, "run": 4}', "\x00\xff", "[" * 100_000,
     '{"version": 1, "window": {"font_scale": "big"}, "run": {"lanes": 1}}',
     '{"version": 1, "run": {"sampling": {"temperature": "hot"}, "lanes": []}}',
     '{"version": 1, "run": {"sampling": {"temperature": -1}, "lanes": []}}',
     '{"version": 1, "run": {"sampling": {}, "lanes": [{"method": "nonsense"}]}}',
     '{"version": 1, "run": {"sampling": {}, "lanes": [{"k": 5000, "method": "prompt-lookup"}]}}'],
)
def test_a_broken_file_is_ignored(tmp_path, text):
    (tmp_path / "window.json").write_text(text, encoding="latin-1")
    kept = SettingsStore(tmp_path).load()
    assert kept.window == WindowState()
    assert kept.run is None


def test_a_bad_run_leaves_the_looks(tmp_path):
    found = {"version": 1, "window": {"theme": "light"}, "run": {"lanes": "no"}}
    (tmp_path / "window.json").write_text(json.dumps(found))
    kept = SettingsStore(tmp_path).load()
    assert kept.run is None
    assert kept.window.theme == "light"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("x")
    assert not SettingsStore(tmp_path / "file" / "below").save(Remembered())


def test_the_prompt_is_for_the_user_alone(tmp_path):
    store = SettingsStore(tmp_path / "new" / "folder")
    for _ in range(2):
        assert store.save(Remembered(RunSettings(prompt="a secret"), WindowState()))
        assert store.path.stat().st_mode & 0o777 == 0o600
        store.path.chmod(0o644)  # as an earlier version left it
    assert store.path.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in store.path.parent.iterdir()] == ["window.json"]


def test_a_huge_prompt_is_left_out(tmp_path):
    store = SettingsStore(tmp_path)
    store.save(Remembered(replace(RUN, prompt="x" * 300_000)))
    assert store.path.stat().st_size < 10_000
    kept = store.load().run
    assert kept is not None
    assert kept.prompt == ""


def test_the_window_comes_back_as_it_was(make_window, qtbot):
    first = make_window()
    first.setup.field("temperature").set_value(0.7)
    first.setup.rule.set_value("match")
    first.setup.prompt.setPlainText("hello there")
    first.setup.field("threads").set_value(2)
    first.setup.field("stop").setPlainText("###\\n\n\\d")
    first.lanes.remove(2)
    first.actions_by_name["ghosts"].trigger()
    first.actions_by_name["linked"].trigger()
    first.page.legend.chips["bonus"].click()
    first.actions_by_name["inspector"].trigger()
    assert first.page.shown("inspector")
    first.actions_by_name["inspector"].trigger()
    first._set_theme("light")
    first._zoom(1)
    first.close()
    second = make_window()
    assert second.setup.field("temperature").value() == 0.7
    assert second.setup.rule.value() == "match"
    assert second.setup.prompt.toPlainText() == "hello there"
    assert second.setup.field("threads").value() == 2
    assert second.run_settings().stop == ("###\n", "\\d")
    assert [lane.method for lane in second.lane_settings] == ["plain", "draft-model"]
    looks = TokenLooks("first", off=frozenset({"bonus"}))
    assert second.page.looks == looks and all(panel.view._looks == looks for panel in second.page.panels)
    assert "the first one" in second.actions_by_name["ghosts"].text() and not second.page.legend.chips["bonus"].isChecked()
    assert not second.actions_by_name["linked"].isChecked() and not second.page.links.together
    assert not second.actions_by_name["inspector"].isChecked()
    assert not second.page.shown("inspector")
    assert second.lane_settings[1].rule == "auto"
    assert second.run_settings().lanes[1].rule == "match"


@pytest.mark.parametrize("names", [("seed", "temperature", "top_k", "threads", "context"), ("max_tokens", "top_p", "min_p", "gpu_layers")])
@pytest.mark.parametrize("text", ["x", "0", ""])
def test_unsound_fields_lose_nothing_else(make_window, names, text):
    first = make_window(start=False)
    first.setup.target.set_values("llama.cpp", "/models/b.gguf")
    first.setup.prompt.setPlainText("written before")
    sound = "temperature" if "max_tokens" in names else "max_tokens"
    first.setup.field("seed").set_value(5)
    first.setup.field(sound).set_value(77)
    for name in names:
        first.setup.field(name).setText(text)
    first.setup.prompt.setPlainText("written after")
    first.lanes.remove(2)
    first.setup.panel.system.setPlainText("Be brief.")
    first.setup.panel.chat.set_value("raw")
    first.close()
    second = make_window(start=False)
    assert second.setup.prompt.toPlainText() == "written after"
    assert (second.setup.target.engine, second.setup.target.target) == ("llama.cpp", "/models/b.gguf")
    assert [lane.method for lane in second.lane_settings] == ["plain", "draft-model"]
    run = second.run_settings()
    assert (run.system, run.chat) == ("Be brief.", False)
    assert (run.max_tokens if sound == "max_tokens" else run.sampling.temperature) == 77
    assert run.sampling.seed == (0 if "seed" in names and text == "0" else 5)


def test_a_prompt_of_a_workload_stays_one_beside_an_unsound_field(make_window, qtbot):
    first = make_window()
    qtbot.waitUntil(lambda: bool(first.library.found.workloads))
    first.setup._take_workload(next(w for w in first.library.found.workloads if w.name == "extract"))
    first.setup.field("seed").setText("")
    first.close()
    kept = first.store.load().run
    assert kept is not None and kept.workload == "extract" and "extract" in make_window(start=False).setup.caption.text()


def test_a_rule_that_does_not_fit_the_temperature_loses_nothing_else(make_window):
    first = make_window(start=False)
    first.setup.prompt.setPlainText("my long prompt")
    first.lane_settings[1] = replace(first.lane_settings[1], rule="greedy", k=7)
    first.lane_settings[2] = replace(first.lane_settings[2], rule="typical")
    first.setup.field("temperature").set_value(0.7)
    with pytest.raises(UsageError, match="greedy"):
        first.run_settings()
    first.close()
    second = make_window(start=False)
    assert second.setup.prompt.toPlainText() == "my long prompt" and second.setup.field("temperature").value() == 0.7
    assert [(lane.rule, lane.k) for lane in second.lane_settings[:3]] == [("auto", None), ("auto", 7), ("typical", None)]
    second.run_settings()


def test_parts_that_a_small_window_folded_come_back_with_their_sizes(make_window, qtbot):
    """What had no room is still wished for: no size of zero is kept, and one that was kept is not taken."""
    wide = make_window()
    assert not wide.page.shown("inspector"), "it opens when a token is chosen"
    wide.actions_by_name["inspector"].trigger()
    qtbot.waitUntil(lambda: all(wide.page.rows.sizes()) and all(wide.page.columns.sizes()))
    wide.close()
    small = make_window()
    small.resize(640, 420)
    qtbot.waitUntil(lambda: not small.page.shown("plots") and not small.page.shown("inspector"))
    small.close()
    kept = small.store.load().window
    assert kept.plots and kept.inspector
    assert all(size > 0 for sizes in kept.splitters.values() for size in sizes)
    kept.splitters = {"rows": [240, 0], "columns": [900, 0]}  # as an earlier version kept them
    small.store.save(Remembered(None, kept))
    again = make_window()  # comes back small, and grows
    again.resize(1280, 800)
    qtbot.waitUntil(lambda: again.page.shown("plots") and again.page.shown("inspector"))
    qtbot.waitUntil(lambda: again.page.rows.sizes()[1] >= 90 and again.page.columns.sizes()[1] >= 150)
    assert again.page.plot_holder.height() >= 90 and again.page.side.width() >= 150


def test_open_draft_trees_come_back_and_follow_their_lanes(make_window):
    window = make_window()
    window.page.focus_lane(1)
    assert window.actions_by_name["tree"].shortcut().toString() == "Ctrl+D"
    window.actions_by_name["tree"].trigger()
    method = window.page.panels[1].lane.method
    assert window.page.panels[1].tree_shown and window.page.trees == {method}
    window.lanes.move(1, 1)
    assert [panel.tree_shown for panel in window.page.panels[:3]] == [False, False, True]
    window.close()
    again = make_window()
    assert [panel.tree_shown for panel in again.page.panels if panel.lane.method == method] == [True]
    again.lanes.toggle_tree()
    again.page.focus_lane(0)
    again.lanes.toggle_tree()
    assert not again.page.panels[0].tree_shown, "plain drafts nothing"


@pytest.mark.parametrize(("kept", "mode"), [(True, "count"), (False, "count"), ("first", "first"), ("all", "all"), ("odd", "count"), (None, "count")])
def test_how_thrown_away_drafts_are_shown_is_read_whatever_version_kept_it(tmp_path, kept, mode):
    store = SettingsStore(tmp_path)
    window = {"ghosts": kept, "theme": "light", "uncoloured": ["accepted", "odd"]}
    store.path.write_text(json.dumps({"version": 1, "window": window}))
    found = store.load().window
    assert (found.ghosts, found.theme) == (mode, "light") and found.tokens == TokenLooks(mode, off=frozenset({"accepted"}))
    for _ in range(3):
        found.switch_tokens()
    assert found.ghosts == mode
