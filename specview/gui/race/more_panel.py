"""The More panel: system text, chat or raw, filters, and the engine's settings."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QGridLayout, QPlainTextEdit, QWidget

from specview.engines.templates import DEFAULT
from specview.gui.parts import theme
from specview.gui.parts.widgets import Check, Choice, Field, NumberEdit, Popover, label, set_tip
from specview.settings.run import RunSettings

_USUAL = (("", "the default one"),)


class MorePanel(Popover):
    """Settings that are seldom changed; `changed` fires on every edit."""

    changed = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.system = QPlainTextEdit()
        self.system.setTabChangesFocus(True)
        self.system.setPlaceholderText("none: the model's template may have one of its own")
        self._fit()
        theme.signals.changed.connect(self._fit)
        self.chat = Choice((("chat", "chat: the model's own template"), ("raw", "raw: the text as it is")))
        self.template = Choice(_USUAL)
        self.top_k = NumberEdit("top-k", 0, whole=True, minimum=0)
        self.top_p = NumberEdit("top-p", 1.0, minimum=0, maximum=1, step=0.05)
        self.min_p = NumberEdit("min-p", 0.0, minimum=0, maximum=1, step=0.05)
        self.device = Choice((("", "automatic"), ("cpu", "CPU"), ("cuda", "CUDA"), ("mps", "MPS")))
        self.dtype = Choice(
            (("", "automatic"), ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"))
        )
        self.threads = NumberEdit(
            "threads", None, whole=True, minimum=1, maximum=1024, optional=True, placeholder="auto"
        )
        self.gpu_layers = NumberEdit("GPU layers", 0, whole=True, minimum=-1, maximum=10_000)
        self.context = NumberEdit(
            "context", None, whole=True, minimum=8, maximum=10_000_000, optional=True, placeholder="auto", digits=7
        )
        self.observe = Choice((("full", "full"), ("light", "light")))
        self.check_mode = Check("Check mode")
        set_tip(
            self.check_mode,
            "Pads one-row passes so that a correct loop equals plain decoding exactly. For checks, not for speed.",
        )
        self._lay_out()
        self.system.textChanged.connect(self.changed)
        for number in (self.top_k, self.top_p, self.min_p, self.threads, self.gpu_layers, self.context):
            number.edited.connect(self.changed)
        for choice in (self.chat, self.template, self.device, self.dtype, self.observe):
            choice.currentIndexChanged.connect(self.changed)
        self.check_mode.toggled.connect(self.changed)

    def _fit(self) -> None:
        """Follow the font."""
        self.system.setFixedHeight(theme.px(58))

    def _lay_out(self) -> None:
        self.column.addWidget(label("Prompt", "title"))
        self.column.addWidget(Field("System text", self.system, "What the system turn of the chat says"))
        self.column.addWidget(Field("Form", self.chat, "Chat wraps the prompt in the model's template; raw feeds it "
                                    "as typed"))
        self._template_field = Field("Chat template", self.template, "One of the model's own by name")
        self._template_field.hide()
        self.column.addWidget(self._template_field)
        self._grid("Filters", (
            ("Top-k", self.top_k, "Keep the k likeliest tokens; 0 is off"),
            ("Top-p", self.top_p, "Keep the smallest set of tokens with this much probability; 1 is off"),
            ("Min-p", self.min_p, "Drop tokens below this share of the likeliest one's probability; 0 is off"),
        ))
        self._grid("Engine", (
            ("Device", self.device, "Where transformers computes; automatic takes a GPU where there is one"),
            ("Number format", self.dtype, "dtype of the weights in transformers; automatic: the fastest that keeps the stored weights exact"),
            ("Threads", self.threads, "CPU threads; empty leaves it to the engine"),
            ("GPU layers", self.gpu_layers, "Layers that llama.cpp puts on the GPU; -1 is all"),
            ("Context", self.context, "Longest prompt and output in tokens for llama.cpp; empty fits the run"),
            ("Observe", self.observe, "full computes the likeliest tokens for the inspector, between rounds, off "
             "every lane's clock; light leaves them out"),
        ))
        self.column.addWidget(self.check_mode)

    def _grid(self, title: str, rows: tuple[tuple[str, QWidget, str], ...]) -> None:
        self.column.addWidget(label(title, "title"))
        grid = QGridLayout()
        grid.setHorizontalSpacing(14)
        grid.setVerticalSpacing(6)
        for place, (caption, widget, tip) in enumerate(rows):
            grid.addWidget(Field(caption, widget, tip), place // 3, place % 3)
        grid.setColumnStretch(3, 1)
        self.column.addLayout(grid)

    def offer_templates(self, names: Iterable[str]) -> None:
        """Offer a loaded target's chat templates; none takes no choice away, for the target may not be loaded yet."""
        if named := [name for name in names if name != DEFAULT]:
            self._fill_templates(named)

    def forget_template(self) -> None:
        """Take the default one: another model was chosen."""
        self._fill_templates(())

    def _fill_templates(self, names: Iterable[str]) -> None:
        held = self.template.value()
        self.template.set_items((*_USUAL, *((name, name) for name in names)))
        self._template_field.setVisible(self.template.count() > 1)
        if self.template.value() != held:
            self.changed.emit()

    def show_settings(self, run: RunSettings) -> None:
        """Show these settings."""
        self.blockSignals(True)
        self.system.setPlainText(run.system)
        self.chat.set_value("chat" if run.chat else "raw")
        self._fill_templates(() if run.chat_template is None else (run.chat_template,))
        self.template.set_value(run.chat_template or "")
        self.top_k.set_value(run.sampling.top_k)
        self.top_p.set_value(run.sampling.top_p)
        self.min_p.set_value(run.sampling.min_p)
        self.device.set_value(run.device or "")
        self.dtype.set_value(run.dtype or "")
        self.threads.set_value(run.threads)
        self.gpu_layers.set_value(run.gpu_layers)
        self.context.set_value(run.context)
        self.observe.set_value("full" if run.observe == "full" else "light")
        self.check_mode.setChecked(run.check_mode)
        self.blockSignals(False)
