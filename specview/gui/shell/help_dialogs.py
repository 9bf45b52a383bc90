"""The Help menu's two dialogs: keyboard shortcuts and About."""

from __future__ import annotations

import math

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFrame,
    QGridLayout,
    QMessageBox,
    QScrollArea,
    QWidget,
)

import specview
from specview.gui.parts import layout
from specview.gui.parts.widgets import label

SHORTCUTS = (
    ("Run", "Ctrl+Enter or F5"), ("Stop", "Esc"), ("Continue past the limit", "Ctrl+G"),
    ("Add a lane: menu of methods", "Ctrl+L"), ("Edit the lane with the focus", "Ctrl+Shift+L"), ("Move a lane", "Alt+Left, Alt+Right"),
    ("Remove a lane", "Alt+Delete"), ("Go to lane 1 to 5", "Ctrl+1 to Ctrl+5"), ("Go through tokens", "arrow keys"),
    ("Go to a tab", "Alt+1 to Alt+6"), ("Go to the prompt", "Ctrl+P"),
    ("All menus", "F10"), ("Sampling and other settings", "Ctrl+,"), ("Go to the follow-up line", "Ctrl+Shift+M"), ("Copy a lane's text", "Ctrl+Shift+C"),
    ("Fold the inspector", "Ctrl+I"), ("Fold the plots", "Ctrl+J"), ("Thrown-away drafts: a count, the first, all", "Ctrl+R"),
    ("Continue from the token under the cursor", "B"),
    ("Live draft tree of the lane with the focus", "Ctrl+D"), ("In a tree: along it, zoom, go on live", "arrow keys, + - 0, Space"),
    ("Spaces and newlines as marks", "Ctrl+W"), ("Font larger, smaller, normal", "Ctrl++, Ctrl+-, Ctrl+0"),
    ("Open a target model", "Ctrl+O"), ("Open a recorded run", "Ctrl+Shift+O"), ("Runs: open, rename, delete, undo", "Enter, F2, Del, Ctrl+Z"),
    ("Play or pause a race again, or one under way", "Space"), ("A phase back, on; a round back, on", ", . < >"),
    ("Play slower, faster", "[ ]"), ("Scrubber: by phases, by the leader's rounds, to an end", "arrow keys, Page Up/Down, Home/End"),
    ("Train a drafter", "Ctrl+T"), ("Export the race", "Ctrl+Shift+E"),
    ("Tune: the fastest method here", "Ctrl+Shift+Y"), ("Run a prompt set", "Ctrl+Shift+P"),
    ("Present: full screen, big tokens", "F11"),
)


def show_shortcuts(parent: QWidget) -> None:
    """Show what the keys do, in two columns; where the screen is too small for them they scroll."""
    dialog, body, view = QDialog(parent), QWidget(), QScrollArea()
    dialog.setWindowTitle("Keyboard shortcuts")
    body.setObjectName("scrolled")
    grid = QGridLayout(body)
    grid.setHorizontalSpacing(20)
    rows = math.ceil(len(SHORTCUTS) / 2)
    for place, (what, keys) in enumerate(SHORTCUTS):
        column, row = divmod(place, rows)
        grid.addWidget(label(what), row, 2 * column)
        grid.addWidget(label(keys, "muted"), row, 2 * column + 1)
    view.setWidget(body)
    view.setFrameShape(QFrame.Shape.NoFrame)
    view.setAccessibleName("Keyboard shortcuts")
    room, whole = parent.screen().availableSize(), body.sizeHint()
    bar = view.verticalScrollBar().sizeHint().width()
    view.setMinimumSize(min(whole.width() + bar, room.width() - 60), min(whole.height() + bar, room.height() - 140))
    buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    buttons.rejected.connect(dialog.reject)
    layout.column((view, 1), buttons, on=dialog, margins=(10, 10, 10, 14))
    dialog.exec()
    dialog.deleteLater()


def show_about(parent: QWidget) -> None:
    """Show what this is."""
    box = QMessageBox(parent)
    box.setWindowTitle("About specview")
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(f"specview {specview.__version__}")
    box.setInformativeText(
        "A desktop playground for speculative decoding: it runs a target model and a drafter on this machine, "
        "colours every token by how it got there, and plots what the method is worth against plain decoding "
        "of the same prompt.\n\nApache-2.0. Bundled target: SmolLM2-135M-Instruct (Apache-2.0)."
    )
    box.exec()
    box.deleteLater()
