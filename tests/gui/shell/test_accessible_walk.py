"""A walk through what a screen reader is told: every control of the window, its dialogs, presentation and tour has a name."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible, QAccessibleInterface
from PySide6.QtWidgets import QApplication, QWidget

from specview.gui.lanes.editor import LaneEditor
from tests.gui.shell_fake import ran

CONTROLS = {
    QAccessible.Role.Button,
    QAccessible.Role.ButtonMenu,
    QAccessible.Role.ButtonDropDown,
    QAccessible.Role.CheckBox,
    QAccessible.Role.RadioButton,
    QAccessible.Role.ComboBox,
    QAccessible.Role.EditableText,
    QAccessible.Role.SpinBox,
    QAccessible.Role.Slider,
    QAccessible.Role.MenuItem,
    QAccessible.Role.PageTab,
    QAccessible.Role.Table,
    QAccessible.Role.List,
    QAccessible.Role.Tree,
    QAccessible.Role.Link,
}
INNER = ("qt_spinbox_lineedit", "qt_scrollarea", "qt_menubar")
"""Parts of Qt's own, read as part of what holds them."""


def told(interface: QAccessibleInterface, path: str = "", depth: int = 0) -> Iterator[tuple[str, QAccessibleInterface]]:
    """Everything shown below an interface, with the way to it."""
    for place in range(interface.childCount()):
        child = interface.child(place)
        if child is None or not child.isValid() or child.state().invisible:
            continue
        widget = child.object()
        kind = type(widget).__name__ if widget is not None else child.role().name
        way = f"{path}/{kind}"
        yield way, child
        if depth < 40 and child.role() not in (QAccessible.Role.Table, QAccessible.Role.List, QAccessible.Role.Tree):
            yield from told(child, way, depth + 1)


def unnamed(top: QWidget) -> list[str]:
    """The controls shown in a window that say no name."""
    lacking = []
    for way, child in told(QAccessible.queryAccessibleInterface(top)):
        widget = child.object()
        if isinstance(widget, QWidget):
            if widget.objectName().startswith(INNER) or widget.focusProxy() is not None:
                continue
            holder = widget.parentWidget()
            # Not of Qt's own: PySide takes what `focusProxy` returns for a child of its widget, and where that is a view that
            # Python did not make, forgets all that lies below as soon as the view is let go of.
            if holder is not None and not holder.objectName().startswith(INNER) and holder.focusProxy() is widget:
                continue
        control = child.role() in CONTROLS or (isinstance(widget, QWidget) and widget.focusPolicy() & Qt.FocusPolicy.TabFocus)
        if control and not child.text(QAccessible.Text.Name).strip():
            lacking.append(f"{way} {child.role().name} {widget.objectName() if widget is not None else ''}")
    return lacking


def tops() -> list[QWidget]:
    return [widget for widget in QApplication.topLevelWidgets() if widget.isVisible()]


def test_every_control_shown_has_a_name(window, qtbot, monkeypatch):
    ran(qtbot, window)
    lacking: list[str] = []

    def look(where: str) -> None:
        qtbot.wait(30)
        for top in tops():
            lacking.extend(f"{where}: {line}" for line in unnamed(top))

    for title in window.tabs.titles:
        window.tabs.open(title)
        look(title)
    window.tabs.open("Race")
    window.page.open_inspector(1)
    window.page.focus_lane(1)
    window.page.panels[1].view.select_token(1, 0)
    look("inspector")
    window.page.toggle_tree(1)
    look("tree")
    for show in (window.show_settings, window.show_tuning, window.show_prompt_set, window.training.show, window.tour.show):
        before = set(tops())
        show()
        look(show.__qualname__)
        for top in set(tops()) - before:
            top.close()
    window.lane_menu.fill({})
    window.lane_menu.open_under(window.setup.add_lane)
    look("lane menu")
    window.lane_menu.close()
    with monkeypatch.context() as patched:
        patched.setattr(LaneEditor, "exec", lambda editor: (editor.show(), look("lane editor"), editor.close())[0])
        window.lanes.edit(1)
    window.presenting.toggle()
    look("presentation")
    window.presenting.toggle()
    assert sorted(set(lacking)) == []


def test_a_lanes_text_is_read_as_it_stands(window, qtbot):
    ran(qtbot, window)
    for panel in window.page.panels:
        interface = QAccessible.queryAccessibleInterface(panel.view)
        text = interface.textInterface()
        assert text is not None
        assert text.characterCount() > 20
        said = text.text(0, text.characterCount())
        assert said == "".join(token.text for token in panel.view.lines.layout.tokens if token.position is not None)


def test_a_lanes_key_works_from_every_tab(window, qtbot):
    window.tabs.open("Theory")
    window.go_to_lane(1)
    assert window.tabs.current == "Race"
    qtbot.waitUntil(window.page.panels[1].view.hasFocus)
