"""Add a server…: the address of a running engine, what it says of itself, and a lane that it decodes."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLineEdit, QPushButton, QWidget

from specview.errors import SpecviewError
from specview.gui.link.background import Background
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import Field, button, label
from specview.gui.state.display_text import visible
from specview.racing.resolve import served_lanes
from specview.settings.run import LaneSettings

_HELP = "A llama-server, vLLM, SGLang or TensorRT-LLM that runs already. Nothing is sent to any other host."
_KEY_TIP = "Kept in memory while specview runs, and written nowhere. SPECVIEW_API_KEY gives it without typing."


class ServerDialog(QDialog):
    """Asks for a server and looks at it; once accepted, `lane` is what it decodes."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Add a server")
        self.lane: LaneSettings | None = None
        self._work = Background(self, "specview-server")
        self._looked: LaneSettings | None = None
        self.address = QLineEdit()
        self.address.setPlaceholderText("http://127.0.0.1:8080")
        self.key = QLineEdit()
        self.key.setEchoMode(QLineEdit.EchoMode.Password)
        self.key.setPlaceholderText("only where it wants one")
        self.look = button(QPushButton, "Look", "Ask the server what it is (Enter)", self.look_now)
        self.said = label(_HELP, "small")
        self.said.setWordWrap(True)
        self.said.setAccessibleName("What the server says of itself")
        self.add = button(QPushButton, "Add lane", "Add a lane that this server decodes", self._accept, kind="primary")
        self.add.setEnabled(False)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        buttons.addButton(self.add, QDialogButtonBox.ButtonRole.ActionRole)
        buttons.rejected.connect(self.reject)
        self.look.setDefault(True)
        self.address.textChanged.connect(self._changed)
        self.key.textChanged.connect(self._changed)
        layout.column(
            Field("Address", layout_row(self.address, self.look), "http://HOST:PORT, or https://"),
            Field("Key", self.key, _KEY_TIP), (self.said, 1), buttons, on=self, gap=10, margins=None,
        )  # fmt: skip
        self.resize(theme.px(560), theme.px(260))
        self.address.setFocus()

    def look_now(self) -> None:
        """Ask the server, off the Qt thread."""
        typed, key = self.address.text().strip(), self.key.text().strip()
        self.said.setText("Asking the server…")
        self.look.setEnabled(False)
        self._work.only(lambda: _ask(typed, key), self._found, self._failed)

    def _found(self, answer: tuple[LaneSettings, str]) -> None:
        self._looked, words = answer
        self.said.setText("\n".join(map(visible, words.splitlines())))
        self.look.setEnabled(True)
        self.add.setEnabled(True)
        self.add.setDefault(True)
        self.add.setFocus()

    def _failed(self, words: str) -> None:
        self.said.setText(visible(words))
        self.look.setEnabled(True)

    def _changed(self) -> None:
        self._work.drop()
        self._looked = None
        self.said.setText(_HELP)
        self.look.setEnabled(True)
        self.look.setDefault(True)
        self.add.setEnabled(False)

    def _accept(self) -> None:
        if self._looked is not None:
            self.lane = self._looked
            self.accept()

    def done(self, result: int) -> None:
        """Close, and want no answer any more."""
        self._work.close()
        super().done(result)


def layout_row(*parts: QWidget) -> QWidget:
    """Widgets in a row, as one; the first takes the room."""
    made = QWidget()
    layout.row((parts[0], 1), *parts[1:], on=made)
    made.setFocusProxy(parts[0])
    return made


def _ask(typed: str, key: str) -> tuple[LaneSettings, str]:
    """The lane, its address without the key, which is remembered, and what answers there in words. Raises SpecviewError."""
    from specview.remote import keys
    from specview.remote.address import Secret, is_address
    from specview.remote.client import Client
    from specview.remote.engines.known import attach

    if not typed:
        raise SpecviewError("There is no address yet.", "Type one, as in http://127.0.0.1:8080.")
    url = keys.take(typed if is_address(typed) else f"http://{typed}", Secret(key) if key else None)
    with Client(url) as client:
        _, server = attach(client)
    (lane,) = served_lanes(url)
    return replace(lane, name=server.engine), "\n".join([f"{server.words}.", *server.notes])
