"""What the tests of the lanes' room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QWidget
from shiboken6 import isValid

from specview.gui.lanes import head_chooser, members_editor
from specview.gui.lanes.editor import LaneEditor
from specview.gui.link import head_checks, pair_checks
from specview.gui.link.library import Found, FoundModel, Library
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.methods_fake import made_up_methods


@pytest.fixture
def made_up() -> Iterator[None]:
    """Methods made up for tests stand among the real ones."""
    with made_up_methods():
        yield


@pytest.fixture
def library(qtbot) -> Library:
    made = Library()
    made.found = Found(models=(FoundModel("bundled", "SmolLM2", "bundled"),))
    return made


@pytest.fixture
def checks(monkeypatch) -> None:
    """Comparing tokenizers and looking at heads reads no files."""
    monkeypatch.setattr(pair_checks, "check", lambda pair: ("small", f"compared {pair[2]}"))
    monkeypatch.setattr(head_checks, "check", lambda question: ("small", f"read {question.ref}"))
    for module in (head_checks, head_chooser, members_editor):
        monkeypatch.setattr(module, "has_bundled", lambda kind: True)


@pytest.fixture
def make_editor(qtbot, library, checks) -> Iterator[object]:
    """Make editors, of which nothing is left."""
    made = []

    def make(lane: LaneSettings, run: RunSettings | None = None, **more) -> LaneEditor:
        parent = QWidget()
        qtbot.addWidget(parent)
        editor = LaneEditor(lane, run or RunSettings(), "auto", library, parent, **more)
        made.append((editor, parent))
        with qtbot.waitExposed(editor):
            editor.show()
        return editor

    yield make
    for editor, _ in made:
        if isValid(editor):
            editor.reject()
