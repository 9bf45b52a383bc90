"""The conversation: earlier turns, the line for the next one, and what can be done with the run besides."""

from __future__ import annotations

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QFont, QGuiApplication, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QPushButton, QSizePolicy, QToolButton, QWidget

from specview.gui.link.controller import Controller
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import button, menu_button
from specview.gui.state import conversation
from specview.gui.state.conversation import Said
from specview.gui.state.display_text import clipboard, symbol

LONGEST = 100_000
MOST_PX = 92


class Turns(QPlainTextEdit):
    """What was said so far, as plain text that can be read, scrolled and selected; as high as it needs, up to some lines."""

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setTabChangesFocus(True)
        self.setUndoRedoEnabled(False)
        self.setAccessibleName("Earlier turns")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Maximum)
        self.said: tuple[Said, ...] = ()
        theme.signals.changed.connect(self.updateGeometry)

    def show_turns(self, said: tuple[Said, ...]) -> None:
        """Show these turns, the last in view."""
        if said == self.said:
            return
        self.said = said
        self.clear()
        cursor, bold = QTextCursor(self.document()), QTextCharFormat()
        bold.setFontWeight(QFont.Weight.DemiBold)
        for place, one in enumerate(said):
            cursor.insertText(f"{'' if not place else chr(10)}{one.who}: ", bold)
            text = "".join(c if c == "\n" else symbol(c) for c in one.text.strip())
            cursor.insertText(text, QTextCharFormat())
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        lines = self.document().size().height()  # a plain text document counts lines
        high = lines * self.fontMetrics().lineSpacing() + 2 * self.document().documentMargin() + 2 * theme.px(5)
        return QSize(theme.px(300), min(round(high), theme.px(MOST_PX)))

    def minimumSizeHint(self) -> QSize:
        return QSize(theme.px(100), min(self.sizeHint().height(), theme.px(40)))


class Conversation(QWidget):
    """Shown after a run: the turns before it, foldable, and the line for the next one.

    Signals: sent(text): the next turn is wished for; forgotten: a new conversation is to begin; left: the keyboard was on
    what cannot be pressed any more.
    """

    sent = Signal(str)
    forgotten = Signal()
    left = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.on_its_way = ""  # the turn that was sent and has not begun
        self._left = -1  # the run after which a new conversation was asked for
        self.line = QLineEdit()
        self.line.setAccessibleName("Follow-up message")
        self.line.setMaxLength(LONGEST)
        self.line.setAcceptDrops(False)
        self.send = button(QPushButton, "Send", "Run the next turn: the conversation so far, plain's reply, then this "
                           "message (Enter)", self._send)  # fmt: skip
        self.more = button(QPushButton, "Continue", "Go on past the token limit, in the same sessions (Ctrl+G)")
        self.menu_button, menu = menu_button("⋯", "More about the conversation")
        self.menu_button.setAccessibleName("Conversation")
        self.copy_action = menu.addAction("Copy the conversation as Markdown")
        self.copy_action.triggered.connect(self.copy)
        self.new_action = menu.addAction("New conversation")
        self.new_action.triggered.connect(self.forget)
        self.fold = button(QToolButton, "", "Show or fold the earlier turns", self._toggle, kind="caption")
        self.new = button(QToolButton, "New conversation", "Forget these turns; the prompt stays", self.forget, kind="caption")
        self.turns = Turns()
        self._folded = False
        self.past = QWidget()
        layout.column(layout.row(self.fold, 1, self.new), self.turns, on=self.past, gap=2)
        layout.column(
            self.past, layout.row((self.line, 1), self.send, self.more, self.menu_button, gap=8),
            on=self, gap=2, margins=(10, 0, 10, 0)
        )
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._fit()
        theme.signals.changed.connect(self._fit)
        self.line.returnPressed.connect(self._send)
        self.line.textChanged.connect(self.refresh)
        controller.state_changed.connect(self.refresh)
        controller.lanes_changed.connect(self.refresh)
        self.refresh()

    def _fit(self) -> None:
        """A low row: the text has the room."""
        for one in (self.line, self.send, self.more, self.menu_button):
            one.setFixedHeight(theme.px(29))

    def refresh(self) -> None:
        """Show what there is, enable what can be done now, and say in the empty line why it cannot be."""
        controller = self._controller
        settings, turn = controller.settings, controller.can_follow_up
        # What has the keyboard is not taken away from under it: Qt would pass on what is typed to a neighbour.
        self.line.setEnabled(turn or controller.racing or self.line.hasFocus())
        if self.send.hasFocus() and not turn:
            self.line.setFocus()
        self.send.setEnabled(turn and bool(self.line.text().strip()))
        if self.more.hasFocus() and not controller.can_continue:
            self.left.emit()
        self.more.setEnabled(controller.can_continue)
        raw = settings is not None and not settings.chat
        self.line.setPlaceholderText(
            "Follow-up message, then Enter" if turn
            else "Follow-ups need the chat form (in the settings)" if raw and not controller.racing
            else f"Wait: {controller.job} is under way" if controller.job
            else "After a run: type a follow-up message here"
        )
        said = conversation.earlier(settings)
        self.turns.show_turns(said)
        self.past.setVisible(bool(said))
        self._name_fold()
        self._show()

    def _show(self) -> None:
        """There is a line after a run, and it stays while the next one is under way."""
        controller = self._controller
        if not controller.racing:
            ran = controller.settings is not None and any(lane.decoded for lane in controller.race.lanes)
            self.setVisible(((ran or bool(self.turns.said)) and not self.ended) or self.line.hasFocus() or bool(self.line.text().strip()))

    @property
    def ended(self) -> bool:
        """Whether a new conversation is to begin after the race on screen."""
        return self._controller.race.run_id == self._left

    def leave(self) -> None:
        """Show neither turns nor line until the next run."""
        self._left = self._controller.race.run_id
        self._show()

    def _toggle(self) -> None:
        self._folded = not self._folded
        self._name_fold()

    def _name_fold(self) -> None:
        count = (len(self.turns.said) + 1) // 2
        words = "1 earlier turn" if count == 1 else f"{count} earlier turns"
        self.fold.setText(f"{'▸' if self._folded else '▾'} {words}")
        self.fold.setAccessibleName(f"{'Show' if self._folded else 'Fold'} {words}")
        self.turns.setVisible(not self._folded)

    def _send(self) -> None:
        text = self.line.text()
        if self._controller.can_follow_up and text.strip():
            self.line.setFocus()
            self.sent.emit(text)

    def turn_taken(self) -> None:
        """The turn that was sent has started: its text goes, what was typed after it stays."""
        self.line.setText(self.line.text().removeprefix(self.on_its_way))
        self.on_its_way = ""
        self.refresh()

    def copy(self) -> None:
        """Put the conversation on the clipboard, as Markdown."""
        said = conversation.whole(self._controller.settings, self._controller.race)
        QGuiApplication.clipboard().setText(clipboard(conversation.markdown(said)))

    def forget(self) -> None:
        """Begin a new conversation: the turns go, the line with them until the next run."""
        self.line.clear()
        self.forgotten.emit()
        self.leave()
