"""How a picture, an animation or a video is to look: theme, size, speed, title."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLineEdit, QPushButton, QWidget

from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import Choice, Field, set_tip

SIZES = (("640x360", "640 × 360"), ("960x540", "960 × 540"), ("1280x720", "1280 × 720"), ("1920x1080", "1920 × 1080"),
         ("1080x1080", "1080 × 1080, square"))  # fmt: skip
SPEEDS = (("0.125", "an eighth"), ("0.25", "a quarter"), ("0.5", "half"), ("1", "true speed"), ("2", "twice"), ("4", "four times"))
USUAL = {"png": "1280x720", "gif": "960x540", "video": "1280x720"}
LONGEST_TITLE = 120


class LookDialog(QDialog):
    """Asks how a form is to look; once accepted, `words` are the options of `specview export`."""

    def __init__(self, form: str, what: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(what)
        self.theme = Choice((("dark", "dark"), ("light", "light")))
        self.theme.set_value(theme.current().name)
        self.size_ = Choice(SIZES)
        self.size_.set_value(USUAL[form])
        self.speed = Choice(SPEEDS)
        self.speed.set_value("1")
        self.title = QLineEdit()
        self.title.setMaxLength(LONGEST_TITLE)
        self.title.setPlaceholderText("none: the sentence that says who won")
        self._moving = form != "png"
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        self.go = QPushButton("Choose file…")
        self.go.setProperty("kind", "primary")
        set_tip(self.go, "Choose where to write it (Enter)")
        self.go.setDefault(True)
        buttons.addButton(self.go, QDialogButtonBox.ButtonRole.AcceptRole)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        fields = [Field("Theme", self.theme, "Light on dark, or dark on light"), Field("Size, pixels", self.size_, "Width × height")]
        if self._moving:
            fields.append(Field("Speed", self.speed, "At true speed every lane takes as long as it did on its own clock"))
        title = Field("Title", self.title, "Stands at the top all the time")
        layout.column(layout.row(*fields, gap=10), title, buttons, on=self, gap=12, margins=None)
        self.go.setFocus()

    @property
    def words(self) -> list[str]:
        """The options as `specview export` takes them."""
        found = ["--theme", self.theme.value(), "--size", self.size_.value()]
        if self._moving:
            found += ["--speed", self.speed.value()]
        title = " ".join(self.title.text().split())
        return [*found, f"--title={title}"] if title else found
