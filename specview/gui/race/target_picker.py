"""The target button and its panel: engine, model found here, file, folder or hub id."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QFileDialog,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPushButton,
)

from specview.gui.link.library import ENGINES, MODEL_FILES, FoundModel, Library
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import Check, Popover, Radio, button, label, set_tip
from specview.gui.race.words_button import WordsButton
from specview.gui.state.setup_words import model_name
from specview.settings.run import BUNDLED

_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LATER = "What ends its texts and what its files ask for is told here once it is loaded."
_REF = Qt.ItemDataRole.UserRole


class TargetPicker(WordsButton):
    """Shows the target with its engine; a press opens the panel. `changed` fires on every choice, `server_wanted` where a lane
    shall be decoded by a server."""

    changed = Signal()
    server_wanted = Signal()

    def __init__(self, library: Library) -> None:
        super().__init__("Target", least=64, most=330)
        self.library = library
        self.engine, self.target, self.dtype, self.trust = "transformers", BUNDLED, "", False
        self._panel = Popover(self)
        self._engines: dict[str, Radio] = {}
        self._reasons: dict[str, QLabel] = {}
        self._build_panel()
        self._fit()
        self.clicked.connect(self._open)
        library.changed.connect(self._refresh)
        theme.signals.changed.connect(self._fit)
        self._refresh()

    # -- values -----------------------------------------------------------------------------------

    def set_values(self, engine: str, target: str, trust: bool = False) -> None:
        """Choose engine and target."""
        self.engine, self.target, self.trust = engine, target, trust
        self.dtype = ""
        self._refresh()

    def set_dtype(self, dtype: str) -> None:
        """Show the number format that the loaded target has."""
        self.dtype = dtype
        self._tell()

    def set_about(self, lines: Iterable[str]) -> None:
        """Show what the loaded target's files say of its text; no lines before it is loaded."""
        self.about.setText("\n".join(lines) or _LATER)

    def choose(self, target: str) -> None:
        """Take a model, with an engine that can load it; trust in another model's code ends."""
        found = self._found(target)
        engines = found.engines if found else guess_engines(target)
        if self.engine not in engines:
            self.engine = engines[0]
        if target != self.target:
            self.trust = False
            self.dtype = ""
        self.target = target
        self._refresh()
        self.changed.emit()

    def choose_engine(self, engine: str) -> None:
        """Take an engine."""
        if engine != self.engine:
            self.engine = engine
            self.dtype = ""
            self._refresh()
            self.changed.emit()

    # -- the panel ----------------------------------------------------------------------------------

    def _build_panel(self) -> None:
        column = self._panel.column
        column.addWidget(label("Engine", "small"))
        group = QButtonGroup(self._panel)
        row = layout.row(gap=16)
        for name in ENGINES:
            choice = Radio(name)
            group.addButton(choice)
            choice.clicked.connect(lambda _=False, name=name: self.choose_engine(name))
            row.addWidget(choice)
            self._engines[name] = choice
        row.addStretch(1)
        column.addLayout(row)
        for name in ENGINES:
            reason = label("", "warning")
            reason.setWordWrap(True)
            reason.hide()
            column.addWidget(reason)
            self._reasons[name] = reason
        column.addWidget(label("Model", "small"))
        self.list = QListWidget()
        self.list.setAccessibleName("Models found on this machine")
        self.list.itemActivated.connect(self._picked)
        self.list.itemClicked.connect(self._picked)
        column.addWidget(self.list)
        self.open_file = QPushButton("Open file…")
        self.open_folder = QPushButton("Open folder…")
        self.rescan = QPushButton("Look again")
        self.server = button(
            QPushButton, "Add a server…", "Race a running llama-server, vLLM, SGLang or TensorRT-LLM beside the lanes here", self._want_server
        )
        column.addLayout(layout.row(self.open_file, self.open_folder, self.server, self.rescan, 1))
        self.open_file.clicked.connect(self.open_file_dialog)
        self.open_folder.clicked.connect(self._open_folder)
        self.rescan.clicked.connect(lambda: self.library.scan())  # not with what `clicked` says
        set_tip(self.rescan, "Look for models on this machine again")
        self.hub = QLineEdit()
        self.hub.setPlaceholderText("hub id: owner/name, or owner/name/file.gguf")
        self.hub.setAccessibleName("Hub id")
        self.use_hub = QPushButton("Use")
        self.use_hub.setEnabled(False)
        self.hub.textChanged.connect(lambda text: self.use_hub.setEnabled("/" in text.strip()))
        self.hub.returnPressed.connect(self._take_hub)
        self.use_hub.clicked.connect(self._take_hub)
        column.addLayout(layout.row((self.hub, 1), self.use_hub))
        column.addWidget(label("Run downloads it if it is not on this machine yet.", "small"))
        self.trust_box = Check("Run this model's own Python code (trust remote code)")
        set_tip(self.trust_box, "Only for a model whose authors you trust: its folder's code runs as you. Holds for "
                "this target, until it changes or specview is closed.")
        self.trust_box.toggled.connect(self._set_trust)
        column.addWidget(self.trust_box)
        self.about = label(_LATER, "small")
        self.about.setWordWrap(True)
        column.addWidget(self.about)

    def _open(self) -> None:
        self._panel.open_under(self)

    def _set_trust(self, trust: bool) -> None:
        if trust != self.trust:
            self.trust = trust
            self.changed.emit()

    def _picked(self, item: QListWidgetItem) -> None:
        self._panel.hide()
        self.choose(str(item.data(_REF)))

    def open_file_dialog(self) -> None:
        """Ask for a model file."""
        self._panel.hide()
        path, _ = QFileDialog.getOpenFileName(self.window(), "Open a target model", "", MODEL_FILES)
        if path:
            self.choose(path)

    def _want_server(self) -> None:
        self._panel.hide()
        self.server_wanted.emit()

    def _open_folder(self) -> None:
        self._panel.hide()
        path = QFileDialog.getExistingDirectory(self.window(), "Open a target model's folder")
        if path:
            self.choose(path)

    def _take_hub(self) -> None:
        text = self.hub.text().strip()
        if "/" in text:
            self._panel.hide()
            self.choose(text)

    # -- showing -------------------------------------------------------------------------------------

    def _found(self, target: str) -> FoundModel | None:
        return next((model for model in self.library.found.models if model.ref == target), None)

    def _refresh(self) -> None:
        for name, choice in self._engines.items():
            reason = self.library.engine_problem(name)
            choice.setChecked(name == self.engine)
            choice.setEnabled(not reason)
            set_tip(choice, reason or f"Decode with {name}")
            self._reasons[name].setText(reason)
            self._reasons[name].setVisible(bool(reason))
        self.list.clear()
        models = [model for model in self.library.found.models if not model.draft]
        if not any(model.ref == BUNDLED for model in models):
            models.insert(0, FoundModel(BUNDLED, model_name(BUNDLED), "bundled"))
        if not any(model.ref == self.target for model in models):
            models.append(FoundModel(self.target, model_name(self.target), self.target))
        for model in models:
            item = QListWidgetItem(f"{model.name}   {model.detail}")
            item.setData(_REF, model.ref)
            self.list.addItem(item)
            if model.ref == self.target:
                self.list.setCurrentItem(item)
        local_code = self.engine == "transformers" and self.target != BUNDLED
        self.trust_box.setEnabled(local_code)
        self.trust_box.setChecked(self.trust and local_code)
        self._tell()

    def _fit(self) -> None:
        """Follow the font."""
        self.list.setMinimumSize(theme.px(440), theme.px(170))

    def _tell(self) -> None:
        """Say target and engine; the number format, once it is known, in the tool tip."""
        self.set_parts((model_name(self.target), self.engine))
        text = " · ".join((self.words, *([_SHORT.get(self.dtype, self.dtype)] if self.dtype else [])))
        problem = self.library.engine_problem(self.engine)
        where = "comes with specview" if self.target == BUNDLED else self.target
        set_tip(self, "\n".join(part for part in (text, where, problem) if part))


def guess_engines(target: str) -> tuple[str, ...]:
    """Which engines can take a model that no scan has looked into."""
    return ENGINES if target.endswith(".gguf") else ("transformers",)

