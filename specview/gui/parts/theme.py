"""The two palettes, the fonts and the one style sheet; widgets restyle when `signals.changed` fires.

Token states, lanes and phases have hues of their own, from Okabe and Ito's colour-blind-safe set.
A widget that paints reads `current()` when it paints; one that caches pens or formats rebuilds them on
`signals.changed`. Fonts come from `ui_font` and `mono_font`, which follow the user's font scale.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

CHOICES = ("system", "dark", "light")
BASE_PX = 13
SCALES = (0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6, 1.8, 2.0)


@dataclass(frozen=True, slots=True)
class Theme:
    """One palette; every colour is '#rrggbb'.

    ground is behind panels, field inside inputs and chips, ink is text; muted is secondary text, faint
    is for text that should recede (both readable, 4.5:1). accent fills the main button (text on it:
    accent_ink), focus is the focus ring. accepted, corrected, bonus and rejected are token states; the
    *_tint colours go behind their text. lane_colors: plain grey first, then one per further lane.
    phases: draft, verify, other. p_ink and q_grey are the inspector's bars.
    """

    name: str
    ground: str
    panel: str
    field: str
    border: str
    ink: str
    muted: str
    faint: str
    accent: str
    accent_ink: str
    focus: str
    accepted: str
    accepted_tint: str
    corrected: str
    corrected_tint: str
    bonus: str
    bonus_tint: str
    rejected: str
    lane_colors: tuple[str, str, str, str, str]
    phases: tuple[str, str, str]
    p_ink: str
    q_grey: str
    error: str
    error_tint: str
    warning: str
    warning_tint: str


DARK = Theme(
    name="dark",
    ground="#14161b",
    panel="#1b1e25",
    field="#242832",
    border="#2f3440",
    ink="#e8ebf1",
    muted="#9aa3b3",
    faint="#8a93a4",
    accent="#2f6fe4",
    accent_ink="#ffffff",
    focus="#6ea3ff",
    accepted="#2fbf8f",
    accepted_tint="#1d3f37",
    corrected="#f0a33c",
    corrected_tint="#44331f",
    bonus="#62b0ee",
    bonus_tint="#233b54",
    rejected="#d685b4",
    lane_colors=("#8e97a8", "#a394ff", "#ff8a5c", "#ffe04a", "#9ff0f5"),
    phases=("#c9ad5e", "#5b7fc4", "#7d8696"),
    p_ink="#f2f4f8",
    q_grey="#8e97a8",
    error="#ff8f8f",
    error_tint="#43242a",
    warning="#f0b860",
    warning_tint="#3d3320",
)

LIGHT = Theme(
    name="light",
    ground="#f4f5f8",
    panel="#ffffff",
    field="#eef0f5",
    border="#d5d9e2",
    ink="#1a1e27",
    muted="#596375",
    faint="#646d7f",
    accent="#2f6ae0",
    accent_ink="#ffffff",
    focus="#2f6ae0",
    accepted="#007a57",
    accepted_tint="#d3ede4",
    corrected="#9c5c00",
    corrected_tint="#fbe9cd",
    bonus="#1f6fb2",
    bonus_tint="#d5e7f7",
    rejected="#a8417f",
    lane_colors=("#616b7d", "#6a54d9", "#c9541d", "#5a3012", "#0a5a8a"),
    phases=("#c9a94f", "#6f8fd0", "#a3abb9"),
    p_ink="#1a1e27",
    q_grey="#616b7d",
    error="#b3261e",
    error_tint="#fde4e2",
    warning="#8a5a00",
    warning_tint="#fdf0d5",
)


class _Signals(QObject):
    """`changed` fires after the palette or the font scale changed."""

    changed = Signal()


signals = _Signals()
_theme: Theme = DARK
_choice = "dark"
_scale = 1.0


def current() -> Theme:
    """Return the palette in use."""
    return _theme


def colour(name: str) -> str:
    """Return a colour of the palette in use by its name, 'phase 0' to 'phase 2' among them; '#rrggbb' is its own."""
    if name.startswith("phase "):
        return _theme.phases[int(name[-1])]
    return str(getattr(_theme, name, name))


def choice() -> str:
    """Return what the user chose: system, dark or light."""
    return _choice


def font_scale() -> float:
    """Return the factor on every font size; 1.0 is 13 pixels for text."""
    return _scale


def px(size: float) -> int:
    """Scale a length in pixels with the fonts."""
    return max(1, round(size * _scale))


@lru_cache(maxsize=2)
def _family(kind: str) -> str:
    """Pick an installed family for 'ui' or 'mono'; the system's own on Windows and macOS."""
    general = kind == "ui"
    wish = QFontDatabase.SystemFont.GeneralFont if general else QFontDatabase.SystemFont.FixedFont
    preferred: tuple[str, ...]
    if sys.platform == "win32":
        preferred = ("Segoe UI Variable Text", "Segoe UI") if general else ("Cascadia Mono", "Consolas")
    elif sys.platform == "darwin":
        preferred = () if general else ("SF Mono", "Menlo")
    elif general:
        preferred = ("Inter", "Noto Sans", "Cantarell", "Ubuntu", "Open Sans", "Roboto", "Liberation Sans",
                     "DejaVu Sans")
    else:
        preferred = ("JetBrains Mono", "Noto Sans Mono", "DejaVu Sans Mono", "Liberation Mono", "Noto Mono")
    installed = set(QFontDatabase.families()) if preferred else set()
    return next((name for name in preferred if name in installed), QFontDatabase.systemFont(wish).family())


def ui_font(size: float = BASE_PX, *, bold: bool = False) -> QFont:
    """Return the interface font at `size` pixels (before the user's scale)."""
    font = QFont(_family("ui"))
    font.setPixelSize(px(size))
    font.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    return font


def mono_font(size: float = BASE_PX, *, bold: bool = False) -> QFont:
    """Return the fixed-width font at `size` pixels (before the user's scale)."""
    font = QFont(_family("mono"))
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setFixedPitch(True)
    font.setPixelSize(px(size))
    font.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    return font


def resolve(name: str) -> Theme:
    """Turn a choice into a palette; 'system' follows the desktop, dark where it does not say."""
    if name == "system":
        light = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Light
        return LIGHT if light else DARK
    return LIGHT if name == "light" else DARK


def apply(app: QApplication, name: str, scale: float | None = None) -> Theme:
    """Dress the application in the chosen theme and font scale, and tell every widget."""
    global _theme, _choice, _scale
    _choice = name if name in CHOICES else "system"
    _theme = resolve(_choice)
    if scale is not None:
        _scale = min(max(scale, SCALES[0]), SCALES[-1])
    app.setPalette(palette(_theme))
    app.setFont(ui_font())
    app.setStyleSheet(style_sheet(_theme))
    signals.changed.emit()
    return _theme


def palette(theme: Theme) -> QPalette:
    """Build the Qt palette; widgets that the style sheet leaves alone are drawn from it."""
    made = QPalette()
    role = QPalette.ColorRole
    for key, colour in (
        (role.Window, theme.panel), (role.WindowText, theme.ink), (role.Base, theme.field),
        (role.AlternateBase, theme.panel), (role.Text, theme.ink), (role.Button, theme.field),
        (role.ButtonText, theme.ink), (role.BrightText, theme.ink), (role.ToolTipBase, theme.field),
        (role.ToolTipText, theme.ink), (role.PlaceholderText, theme.muted), (role.Link, theme.focus),
        (role.LinkVisited, theme.focus), (role.Highlight, theme.accent), (role.HighlightedText, theme.accent_ink),
        (role.Light, theme.border), (role.Midlight, theme.border), (role.Mid, theme.border),
        (role.Dark, theme.border), (role.Shadow, theme.ground), (role.Accent, theme.accent),
    ):
        made.setColor(key, QColor(colour))
    for key in (role.WindowText, role.Text, role.ButtonText):
        made.setColor(QPalette.ColorGroup.Disabled, key, QColor(theme.faint))
    return made


def style_sheet(theme: Theme) -> str:
    """Build the one style sheet.

    Object names and the dynamic property `kind` pick the variants: buttons `primary` and `flat`,
    frames `panel`, `bar`, `chip`, labels `title`, `muted`, `small`.
    """
    small = px(11)
    pad, tall = px(5), px(8)
    return f"""
QMainWindow, QDialog, QWidget#page {{ background: {theme.ground}; }}
QDialog {{ background: {theme.panel}; }}
QDialogButtonBox {{ dialogbuttonbox-buttons-have-icons: 0; }}
QFrame[kind="panel"] {{ background: {theme.panel}; border: 1px solid {theme.border}; border-radius: 7px; }}
QFrame[kind="panel"][selected="true"] {{ border: 1px solid {theme.focus}; }}
QFrame[kind="bar"] {{ background: {theme.panel}; border: none; border-bottom: 1px solid {theme.border}; }}
QFrame[kind="tabs"] {{ background: {theme.panel}; border: none; border-bottom: 1px solid {theme.border}; }}
QTabBar {{ background: transparent; }}
QTabBar::tab {{ color: {theme.muted}; background: transparent; padding: {px(6)}px {px(12)}px {px(5)}px;
    border: none; border-bottom: 2px solid transparent; }}
QTabBar::tab:hover {{ color: {theme.ink}; }}
QTabBar::tab:selected {{ color: {theme.ink}; border-bottom: 2px solid {theme.accent}; }}
QTabBar::tab:selected:focus {{ border-bottom: 2px solid {theme.focus}; background: {theme.field}; }}
QTabWidget::pane {{ border: none; }}
QTableView {{ color: {theme.ink}; background: {theme.field}; border: 1px solid {theme.border};
    border-radius: 6px; outline: none; selection-background-color: {theme.accent};
    selection-color: {theme.accent_ink}; gridline-color: {theme.border}; }}
QTableView:focus {{ border: 2px solid {theme.focus}; }}
QFrame[kind="side"] {{ background: {theme.panel}; border: none; border-left: 1px solid {theme.border};
    border-right: 1px solid {theme.border}; }}
QFrame[kind="inset"] {{ background: {theme.field}; border: none; border-radius: 6px; }}
QFrame#banner[kind="error"] {{ background: {theme.error_tint}; border: 1px solid {theme.error}; border-radius: 6px; }}
QFrame#banner[kind="warning"] {{ background: {theme.warning_tint}; border: 1px solid {theme.warning};
    border-radius: 6px; }}
QFrame#banner[kind="note"] {{ background: {theme.panel}; border: 1px solid {theme.focus}; border-radius: 6px; }}
QFrame#banner QLabel {{ color: {theme.ink}; background: transparent; }}
QLabel {{ background: transparent; }}
QLabel[kind="title"] {{ font-weight: 600; }}
QLabel[kind="muted"] {{ color: {theme.muted}; }}
QLabel[kind="small"] {{ color: {theme.muted}; font-size: {small}px; }}
QLabel[kind="error"] {{ color: {theme.error}; }}
QLabel[kind="warning"] {{ color: {theme.warning}; }}
QLabel[kind="small warning"] {{ color: {theme.warning}; font-size: {small}px; }}
QLabel[kind="chip"] {{ color: {theme.muted}; background: {theme.field}; border: 1px solid {theme.border};
    border-radius: 5px; padding: 1px {pad}px; font-size: {small}px; }}
QPushButton, QToolButton {{ color: {theme.ink}; background: {theme.field}; border: 1px solid {theme.border};
    border-radius: 6px; padding: {pad}px {px(12)}px; }}
QToolButton {{ padding: {pad}px {tall}px; }}
QPushButton:hover, QToolButton:hover {{ border-color: {theme.muted}; }}
QPushButton:pressed, QToolButton:pressed, QPushButton:checked, QToolButton:checked {{ background: {theme.border}; }}
QPushButton:disabled, QToolButton:disabled {{ color: {theme.faint}; background: transparent; }}
QPushButton:focus, QToolButton:focus {{ border: 2px solid {theme.focus}; padding: {pad - 1}px {px(12) - 1}px; }}
QToolButton:focus {{ padding: {pad - 1}px {tall - 1}px; }}
QPushButton::menu-indicator, QToolButton::menu-indicator {{ image: none; width: 0; }}
QPushButton[kind="primary"] {{ color: {theme.accent_ink}; background: {theme.accent};
    border-color: {theme.accent}; font-weight: 600; padding: {pad}px {px(18)}px; }}
QPushButton[kind="primary"]:hover {{ border-color: {theme.ink}; }}
QPushButton[kind="primary"]:focus {{ border: 2px solid {theme.ink}; padding: {pad - 1}px {px(18) - 1}px; }}
QPushButton[kind="primary"]:disabled {{ color: {theme.faint}; background: {theme.field};
    border-color: {theme.border}; }}
QPushButton[kind="stop"] {{ border-color: {theme.muted}; font-weight: 600; padding: {pad}px {px(18)}px; }}
QPushButton[kind="stop"]:focus {{ border: 2px solid {theme.focus}; padding: {pad - 1}px {px(18) - 1}px; }}
QPushButton[invalid="true"] {{ color: {theme.error}; border-color: {theme.error}; }}
QToolButton[kind="link"] {{ color: {theme.focus}; background: transparent; border: 1px solid transparent;
    padding: 0 {px(3)}px; font-size: {small}px; border-radius: 3px; }}
QToolButton[kind="link"]:hover {{ text-decoration: underline; }}
QToolButton[kind="link"]:focus {{ border: 1px solid {theme.focus}; }}
QPushButton[kind="flat"], QToolButton[kind="flat"] {{ background: transparent; border: 1px solid transparent;
    padding: {px(2)}px {px(5)}px; }}
QToolButton[kind="flat"]:disabled {{ color: {theme.ink}; }}
QPushButton[kind="flat"]:hover, QToolButton[kind="flat"]:hover {{ background: {theme.field}; }}
QPushButton[kind="flat"]:focus, QToolButton[kind="flat"]:focus {{ border: 1px solid {theme.focus}; }}
QToolButton[kind="caption"] {{ color: {theme.muted}; background: transparent; border: 1px solid transparent;
    padding: 0 {px(2)}px; font-size: {small}px; border-radius: 3px; }}
QToolButton[kind="caption"]:hover {{ color: {theme.ink}; }}
QToolButton[kind="caption"]:checked {{ color: {theme.ink}; background: {theme.field};
    border: 1px solid {theme.muted}; }}
QToolButton[kind="caption"]:focus {{ color: {theme.ink}; border: 1px solid {theme.focus}; }}
QPushButton[kind="headline"] {{ color: {theme.ink}; background: transparent; border: 1px solid transparent;
    padding: 0; font-size: {px(12)}px; font-weight: 600; border-radius: 3px; text-align: left; }}
QPushButton[kind="headline"]:hover {{ background: {theme.field}; }}
QPushButton[kind="headline"]:focus {{ border: 1px solid {theme.focus}; padding: 0; }}
QLineEdit, QSpinBox, QDoubleSpinBox, QComboBox, QPlainTextEdit {{ color: {theme.ink}; background: {theme.field};
    border: 1px solid {theme.border}; border-radius: 6px; padding: {px(4)}px {px(7)}px;
    selection-background-color: {theme.accent}; selection-color: {theme.accent_ink};
    placeholder-text-color: {theme.muted}; }}
QLineEdit:hover, QSpinBox:hover, QDoubleSpinBox:hover, QComboBox:hover {{ border-color: {theme.muted}; }}
QLineEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus, QPlainTextEdit:focus {{
    border: 2px solid {theme.focus}; padding: {px(4) - 1}px {px(7) - 1}px; }}
QLineEdit:disabled, QSpinBox:disabled, QDoubleSpinBox:disabled, QComboBox:disabled {{ color: {theme.faint};
    background: transparent; }}
QLineEdit[invalid="true"], QSpinBox[invalid="true"], QDoubleSpinBox[invalid="true"] {{
    border-color: {theme.error}; }}
QComboBox {{ padding-right: {px(20)}px; combobox-popup: 0; }}
QComboBox::drop-down {{ border: none; width: {px(18)}px; }}
QComboBox::down-arrow {{ image: none; }}
QComboBox QAbstractItemView {{ color: {theme.ink}; background: {theme.field}; border: 1px solid {theme.border};
    selection-background-color: {theme.accent}; selection-color: {theme.accent_ink}; outline: none; }}
QComboBox QAbstractItemView::item {{ padding: {px(3)}px {px(6)}px; }}
QListWidget {{ color: {theme.ink}; background: {theme.field}; border: 1px solid {theme.border};
    border-radius: 6px; outline: none; padding: 3px; }}
QListWidget:focus {{ border: 2px solid {theme.focus}; padding: 2px; }}
QListWidget::item {{ padding: {px(3)}px; }}
QListWidget::item:selected {{ background: {theme.accent}; color: {theme.accent_ink}; border-radius: 4px; }}
QTableWidget {{ color: {theme.ink}; background: {theme.field}; border: 1px solid {theme.border};
    border-radius: 6px; outline: none; selection-background-color: {theme.accent};
    selection-color: {theme.accent_ink}; }}
QTableWidget:focus {{ border: 2px solid {theme.focus}; }}
QTableView::item:selected {{ background: {theme.accent}; color: {theme.accent_ink}; }}
QTableView::item {{ padding: 0 {px(6)}px; }}
QHeaderView {{ background: transparent; border: none; }}
QHeaderView::section {{ color: {theme.muted}; background: {theme.panel}; border: none;
    border-bottom: 1px solid {theme.border}; padding: {px(4)}px {px(6)}px; font-size: {small}px; }}
QCheckBox, QRadioButton {{ color: {theme.ink}; spacing: {px(6)}px; }}
QMenu {{ color: {theme.ink}; background: {theme.field}; border: 1px solid {theme.border}; padding: {px(4)}px; }}
QMenu::item {{ padding: {px(4)}px {px(22)}px; border-radius: 4px; }}
QMenu::item:selected {{ background: {theme.accent}; color: {theme.accent_ink}; }}
QMenu::item:disabled {{ color: {theme.faint}; background: transparent; }}
QMenu::separator {{ height: 1px; background: {theme.border}; margin: {px(4)}px {px(6)}px; }}
QToolTip {{ color: {theme.ink}; background: {theme.field}; border: 1px solid {theme.border};
    padding: {px(4)}px; }}
QProgressBar {{ background: {theme.field}; border: none; border-radius: 3px; min-height: 6px; max-height: 6px; }}
QProgressBar::chunk {{ background: {theme.accent}; border-radius: 3px; }}
QSlider {{ background: transparent; min-height: {px(22)}px; border: 1px solid transparent; border-radius: 5px; }}
QSlider:focus {{ border-color: {theme.focus}; }}
QSlider::groove:horizontal {{ background: {theme.field}; height: {px(6)}px; border-radius: 3px; }}
QSlider::sub-page:horizontal {{ background: {theme.accent}; border-radius: 3px; }}
QSlider::sub-page:horizontal:disabled {{ background: {theme.border}; }}
QSlider::handle:horizontal {{ background: {theme.ink}; width: {px(12)}px; margin: -{px(5)}px 0; border-radius: 5px; }}
QSlider::handle:horizontal:disabled {{ background: {theme.faint}; }}
QScrollArea, QScrollArea > QWidget > QWidget#scrolled {{ background: transparent; border: none; }}
QScrollBar:vertical {{ background: transparent; width: 10px; margin: 0; }}
QScrollBar:horizontal {{ background: transparent; height: 10px; margin: 0; }}
QScrollBar::handle {{ background: {theme.border}; border-radius: 4px; min-height: 28px; min-width: 28px;
    margin: 1px; }}
QScrollBar::handle:hover {{ background: {theme.faint}; }}
QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
QAbstractScrollArea::corner {{ background: transparent; border: none; }}
QSplitter::handle {{ background: transparent; }}
QSplitter::handle:hover {{ background: {theme.border}; }}
"""
