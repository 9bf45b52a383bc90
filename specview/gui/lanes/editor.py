"""The lane editor: method, draft, length policy, rule and the drafter's options of one lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QFormLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QWidget,
)

from specview.decoding.verification import RULES, rule_label
from specview.drafting.lanes import checked_lane, default_k, heads_of, needs_draft
from specview.drafting.method import MethodInfo
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.gui.lanes.exit_scan_dialog import ExitScanDialog, ExitScans, exit_option
from specview.gui.lanes.head_chooser import HeadChooser, HeadPlace
from specview.gui.lanes.members_editor import MembersEditor
from specview.gui.lanes.menu import by_family
from specview.gui.lanes.option_form import OptionForm
from specview.gui.link.library import ENGINES, MODEL_FILES, Library
from specview.gui.link.pair_checks import PairChecks
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import Choice, NumberEdit, label, set_kind, set_tip
from specview.gui.state.display_text import tooltip
from specview.gui.state.setup_words import model_name, rule_words
from specview.racing.resolve import with_members
from specview.settings.options import HEAD, resolve
from specview.settings.run import BUNDLED, MAX_K, LaneSettings, RunSettings

MEMBERS = "members"


K_MEANS = {
    "constant": "the length of every draft, where the method finds that many",
    "heuristic": "the first round's length, from which it grows and shrinks",
    "confidence": "the longest draft; an unsure token ends it earlier",
    "adaptive": "the longest draft; each round's length is what promises the best speed",
    "off-below": "the length of a draft while drafting is on, where the method finds that many",
}
"""What k is for a length policy (LengthPolicy.start: the length, the first one, or the longest)."""


def _filled(fill: Callable[[Mapping[str, Any]], Mapping[str, Any]], given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Options as given, filled in; None where they do not fit."""
    try:
        return fill(given)
    except SpecviewError:
        return None


def _with_heads(lane: LaneSettings) -> Mapping[str, Any]:
    """A lane's options, where each member of a combined method names its own head."""
    if not METHODS[lane.method].combines:
        return lane.options
    chosen = {name: head.ref for name, head in heads_of(lane).items() if head.ref != BUNDLED}
    return {**lane.options, **{f"{name}.{HEAD.name}": ref for name, ref in chosen.items()}}


class LaneEditor(QDialog):
    """Edits one lane; `lane()` gives the result after it was accepted.

    All forms come from the declarations of methods, policies and options.
    """

    def __init__(
        self,
        lane: LaneSettings,
        run: RunSettings,
        rule: str,
        library: Library,
        parent: QWidget,
        *,
        problems: Mapping[str, str] | None = None,
        device: str = "",
        scans: ExitScans | None = None,
    ) -> None:
        """`run` gives the sampling and engine that the lane is checked against, `rule` the race's rule.

        problems: method -> why it cannot draft on this target. device is the loaded target's, '' while
        that is not known. scans measures exit layers on the engine thread, where there is one.
        """
        super().__init__(parent)
        self.setWindowTitle("Edit lane")
        self._lane, self._run, self._rule, self._library = lane, run, rule, library
        self._problems, self._device, self._scans = problems or {}, device or run.device or "", scans
        self._options: dict[str, Mapping[str, Any]] = {lane.method: _with_heads(self._named(lane))}
        self._policy_options: dict[str, Mapping[str, Any]] = {lane.policy: lane.policy_options}
        self._method_shown, self._policy_shown = "", ""

        self.method = Choice()
        self._fill_methods(lane.method)
        self._method_text = self._note()
        self.name = QLineEdit(lane.name)
        self.name.setPlaceholderText("the method's name")
        self.name.setMaxLength(40)
        self.members = MembersEditor()
        self.draft = Choice()
        self.draft.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.draft.setMinimumContentsLength(22)
        own = METHODS[lane.method].head
        self._fill_drafts(lane.draft if needs_draft(lane) else BUNDLED)
        place = HeadPlace(library, run.target, run.engine)
        self.head = HeadChooser(place, own_note=False)
        self.members.form.heads = place
        self._heads = {own: str(lane.options.get(HEAD.name) or lane.draft)} if own else {}
        self._head_kind = ""
        self.open_file = QPushButton("File…")
        self.open_folder = QPushButton("Folder…")
        self._pair_text = self._note()
        self.pairs = PairChecks(self)
        self.draft_engine = Choice((("", f"as the target ({run.engine})"), *((name, name) for name in ENGINES)))
        self.draft_engine.set_value(lane.draft_engine or "")
        self._engine_text = self._note("warning")
        self.k = NumberEdit(
            "k", lane.k, whole=True, minimum=1, maximum=MAX_K, optional=True, placeholder="auto", digits=10
        )
        self.policy = Choice(tuple((p.name, p.label) for p in POLICIES.values()))
        self.policy.set_value(lane.policy)
        self._policy_text = self._note()
        self.policy_form = OptionForm()
        inherited, _ = rule_words(rule, run.sampling)
        self.rule = Choice((("auto", f"as the race ({inherited})"), *((name, rule_label(name)) for name in RULES)))
        self.rule.set_value(lane.rule)
        self._rule_text = self._note()
        self.form = OptionForm()
        self.scan = QPushButton("Scan exit layers…")
        set_tip(self.scan, "Measure acceptance and cost of every exit layer on this target and prompt, "
                "and mark the best")
        self._error = label("", "error")
        self._error.setWordWrap(True)
        self._error.setMinimumHeight(self._error.fontMetrics().lineSpacing() * 2)
        self.buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel
        )
        self.buttons.button(QDialogButtonBox.StandardButton.Ok).setProperty("kind", "primary")
        self._lay_out()
        self._connect()
        self._show_method()
        self._show_policy()
        self._check()

    def lane(self) -> LaneSettings:
        """Return the lane as edited; raises UsageError where it cannot work."""
        info = METHODS[self.method.value()]
        options = self._method_options()
        if info.combines and not self.members.names():
            raise UsageError(f"{info.label} has no member.", "Add one.")
        made = replace(
            self._lane,
            method=info.name,
            name=self.name.text().strip(),
            draft=self._draft_of(info),
            draft_engine=self.draft_engine.value() or None,
            k=self.k.value(),
            policy=self.policy.value(),
            policy_options=self.policy_form.values(),
            rule=self.rule.value(),
            options=options,
        )
        effective = replace(made, rule=self._rule if made.rule == "auto" else made.rule)
        checked = checked_lane(effective, self._run.sampling)
        # Options that come to the same stay as they were: an unchanged lane keeps what it holds.
        before = self._lane
        if made.method == before.method and _filled(info.resolve, self._named(before).options) == checked.options:
            made = replace(made, options=before.options)
        policy = POLICIES[made.policy]
        if made.policy == before.policy and checked.policy_options == _filled(
            lambda given: resolve(policy.options, given, policy.name), before.policy_options
        ):
            made = replace(made, policy_options=before.policy_options)
        return made

    def _named(self, lane: LaneSettings) -> LaneSettings:
        """A lane with the members that it would run with here."""
        return with_members(lane, self._run.target, self._run.engine)

    def _draft_of(self, info: MethodInfo) -> str:
        """What the lane's draft names: a head for a method that drafts with one, else a model where one is needed."""
        if info.head:
            return self.head.value()
        return self.draft.value() if self._needs_draft else BUNDLED

    def _method_options(self) -> dict[str, Any]:
        """The method's own options and those of its members; raises UsageError where one does not fit."""
        options: dict[str, Any] = dict(self.form.values())
        if METHODS[self.method.value()].combines:
            options |= {MEMBERS: self.members.joined(), **self.members.values()}
        return options

    @property
    def _needs_draft(self) -> bool:
        """Whether the method, or a member of it, drafts with a model."""
        info = METHODS[self.method.value()]
        return info.needs_draft({MEMBERS: self.members.joined()} if info.combines else {})

    @property
    def problem(self) -> str:
        """Why the lane cannot work as edited, '' when it can."""
        return self._error.text()

    @property
    def pair_words(self) -> str:
        """What is said of the draft's tokenizer, '' while nothing is known."""
        return self._pair_text.text()

    # -- layout ------------------------------------------------------------------------------------

    def _note(self, kind: str = "small") -> Any:
        made = label("", kind)
        made.setWordWrap(True)
        made.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        return made

    def _lay_out(self) -> None:
        body = QWidget()
        body.setObjectName("scrolled")
        form = QFormLayout(body)
        form.setContentsMargins(0, 0, theme.px(10), 0)
        form.setVerticalSpacing(6)
        form.setHorizontalSpacing(14)
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        self._rows, self._body = form, body
        draft_row = QWidget()
        layout.row((self.draft, 1), self.open_file, self.open_folder, on=draft_row)
        self._draft_row = draft_row
        scan_row = QWidget()
        layout.row(self.scan, 1, on=scan_row)
        self._scan_row = scan_row
        for caption, widget in (
            ("Method", self.method), ("", self._method_text), ("Name", self.name),
            ("Members", self.members), ("Head", self.head), ("", self.head.note), ("Options", self.form), ("", scan_row), ("Draft", draft_row),
            ("", self._pair_text), ("Draft engine", self.draft_engine), ("", self._engine_text), ("k", self.k),
            ("Draft length", self.policy), ("", self._policy_text), ("", self.policy_form), ("Rule", self.rule),
            ("", self._rule_text),
        ):
            title = label(caption)
            inner = {draft_row: self.draft, self.members: self.members.list, self.head: self.head.choice}.get(
                widget, widget
            )
            title.setBuddy(inner)
            if caption and not inner.accessibleName():
                inner.setAccessibleName(caption)
            form.addRow(title, widget)
        self.form_scroll = QScrollArea()
        self.form_scroll.setWidgetResizable(True)
        self.form_scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        self.form_scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.form_scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.form_scroll.setWidget(body)
        layout.column((self.form_scroll, 1), self._error, self.buttons, on=self, gap=10, margins=(18, 16, 12, 14))
        self.setMinimumWidth(theme.px(500))

    def _fit_soon(self) -> None:
        """Fit once the layout knows how its lines wrap."""
        QTimer.singleShot(0, self, self._grow)

    def _grow(self) -> None:
        more = self.form_scroll.verticalScrollBar().maximum()
        room = self.screen().availableGeometry().height() - theme.px(60)
        if more > 0 and self.height() < room:
            self.resize(self.width(), min(self.height() + more, room))

    def _fit(self) -> None:
        """Grow with the form as far as the screen has room; beyond it the form scrolls. Never shrinks."""
        self._rows.activate()
        bar = self.form_scroll.verticalScrollBar().sizeHint().width()
        self.form_scroll.setMinimumWidth(self._body.minimumSizeHint().width() + bar)
        room = self.screen().availableGeometry()
        width = max(self.width(), self.minimumSizeHint().width())
        wish = self._rows.totalHeightForWidth(width - theme.px(40)) if self._rows.hasHeightForWidth() else (
            self._rows.sizeHint().height())
        rest = self._error.minimumHeight() + self.buttons.sizeHint().height() + theme.px(32)
        height = min(wish + rest, room.height() - theme.px(60))
        if height > self.height() or not self.isVisible():
            self.resize(min(width, room.width()), height)
            if self.isVisible() and self.frameGeometry().bottom() > room.bottom():
                self.move(self.x(), max(room.top(), room.bottom() - self.frameGeometry().height()))
        self._fit_soon()

    def showEvent(self, event: QShowEvent) -> None:
        """Take the height that the form needs."""
        self._fit()
        super().showEvent(event)

    def _order_tabs(self) -> None:
        """Let the keyboard follow the eye: forms that were filled anew would come last."""
        order: list[QWidget] = [self.method, self.name]
        order += self.members.focus_order() if METHODS[self._method_shown].combines else []
        order += self.head.fields() if METHODS[self._method_shown].head else []
        order += [*self.form.fields(), self.scan, self.draft, self.open_file, self.open_folder, self.draft_engine,
                  self.k, self.policy, *self.policy_form.fields(), self.rule,
                  *(button for button in self.buttons.buttons())]
        layout.tab_order(*order)

    def _connect(self) -> None:
        self.method.currentIndexChanged.connect(self._show_method)
        self.policy.currentIndexChanged.connect(self._show_policy)
        for choice in (self.rule, self.draft, self.draft_engine):
            choice.currentIndexChanged.connect(self._check)
        self.head.changed.connect(self._check)
        self.head.noted.connect(self._show_head_note)
        self.k.edited.connect(self._check)
        self.name.textChanged.connect(self._check)
        self.form.changed.connect(self._check)
        self.policy_form.changed.connect(self._check)
        self.members.changed.connect(self._members_changed)
        self.members.form.noted.connect(self._allow)
        self.open_file.clicked.connect(self._open_file)
        self.open_folder.clicked.connect(self._open_folder)
        self.scan.clicked.connect(self._scan_layers)
        self.pairs.changed.connect(self._show_pair)
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        self.finished.connect(self._close_checks)

    def _close_checks(self) -> None:
        self.pairs.close()
        self.head.close_checks()
        self.members.form.close_heads()

    def _fill_methods(self, chosen: str) -> None:
        """List the methods by family, with their words, in the order of the menu."""
        items = []
        for _, names in by_family(name for name, info in METHODS.items() if info.drafts):
            items += [(name, METHODS[name].label) for name in names]
        self.method.set_items(tuple(items))
        for row in range(self.method.count()):
            info = METHODS[str(self.method.itemData(row))]
            self.method.setItemData(row, tooltip(info.description), Qt.ItemDataRole.ToolTipRole)
        self.method.set_value(chosen)
        self.method.setMaxVisibleItems(20)

    def _fill_drafts(self, chosen: str) -> None:
        items = [(BUNDLED, f"{model_name(BUNDLED, 'draft')} (bundled)")]
        items += [(m.ref, f"{m.name} · {m.detail}") for m in self._library.found.models if m.ref != BUNDLED]
        if chosen not in {ref for ref, _ in items}:
            items.append((chosen, model_name(chosen, "draft")))
        self.draft.set_items(tuple(items))
        self.draft.set_value(chosen)
        set_tip(self.draft, "" if chosen == BUNDLED else chosen)

    # -- reactions ---------------------------------------------------------------------------------

    def _show_method(self) -> None:
        if self._method_shown:
            self._keep_method()
        self._method_shown = self.method.value()
        info = METHODS[self._method_shown]
        self._method_text.setText(info.description)
        given = self._options.get(info.name, {})
        if info.combines:
            given = self._named(replace(self._lane, method=info.name, options=given)).options
            self.members.fill(info.members(given), given, self._problems)
        self._rows.setRowVisible(self.members, info.combines)
        self._rows.setRowVisible(self.head, info.head is not None)
        if info.head is not None:
            self._head_kind = info.head
            self.head.fill(info.head, self._heads.get(info.head, BUNDLED))
        self._show_head_note()
        hidden = (MEMBERS,) if info.combines else (HEAD.name,) if info.head else ()
        self.form.fill(info.options, given, info.presets, hidden=hidden)
        self._rows.setRowVisible(self.form, bool(self.form.fields()))
        self._rows.setRowVisible(self._scan_row, self._scans is not None and exit_option(info) is not None)
        self._check()
        if self._policy_shown:
            self._order_tabs()
            self._fit()

    def _members_changed(self) -> None:
        self._check()
        if self._policy_shown:
            self._order_tabs()
            self._fit()

    def _show_policy(self) -> None:
        if self._policy_shown:
            self._policy_options[self._policy_shown] = self.policy_form.held()
        self._policy_shown = self.policy.value()
        info = POLICIES[self._policy_shown]
        self.policy_form.fill(info.options, self._policy_options.get(info.name, {}))
        self._rows.setRowVisible(self.policy_form, bool(info.options))
        self._check()
        self._order_tabs()
        self._fit()

    def _show_head_note(self) -> None:
        shown = METHODS[self.method.value()].head is not None and bool(self.head.words)
        self._rows.setRowVisible(self.head.note, shown)
        self._allow()
        if self._policy_shown:
            self._fit()

    def _keep_method(self) -> None:
        """Remember what the method's forms hold, values that do not fit too, while another is shown."""
        name = self._method_shown
        if METHODS[name].head:
            self._heads[self._head_kind] = self.head.value()
        options: dict[str, Any] = dict(self.form.held())
        if METHODS[name].combines:
            options |= {MEMBERS: self.members.joined(), **self.members.held()}
        self._options[name] = options

    def _check(self) -> None:
        rule = self.rule.value()
        effective = self._rule if rule == "auto" else rule
        self._rule_text.setText(rule_words(effective, self._run.sampling)[1])
        info = METHODS[self.method.value()]
        needs = self._needs_draft
        for row in (self._draft_row, self.draft_engine):
            self._rows.setRowVisible(row, needs)
        engine = self.draft_engine.value() or self._run.engine
        missing = self._library.engine_problem(engine) if needs else ""
        self._engine_text.setText(missing)
        self._rows.setRowVisible(self._engine_text, bool(missing))
        cannot = self._cannot(info)
        if needs and not missing:
            self.pairs.ask(self._run.target, self._run.engine, self.draft.value() or BUNDLED, engine)
        self._show_pair()
        if info.head:
            self.head.set_answers(self.form.answers())
        headless = self.head.problem() if info.head else self.members.head_problem() if info.combines else ""
        try:
            self.lane()
            problem = missing or cannot or headless
        except SpecviewError as error:
            problem = str(error)
        self._show_k(info)
        self._error.setText(problem)
        self._allow()

    def _allow(self) -> None:
        """Offer OK while nothing is known to be wrong; a head's own note says why it cannot draft."""
        info = METHODS[self.method.value()]
        refused = self.head.refusal() if info.head else self.members.head_refusal() if info.combines else ""
        self.buttons.button(QDialogButtonBox.StandardButton.Ok).setEnabled(not self.problem and not refused)

    def _cannot(self, info: MethodInfo) -> str:
        """Why the method, or a member of it, cannot draft on this target."""
        names = self.members.names() if info.combines else [info.name]
        found = [(name, self._problems[name]) for name in (info.name, *names) if name in self._problems]
        if not found:
            return ""
        name, reason = found[0]
        return f"{METHODS[name].label} cannot draft here: {reason.rstrip('.')}."

    def _show_k(self, info: MethodInfo) -> None:
        """Say which k an empty field gives, and what k is for this policy."""
        try:
            options = info.resolve(self._method_options())
            found, whose = default_k(LaneSettings(info.name, policy=self.policy.value(), options=options), self._device)
            standing = "2 or 4" if found is None else str(found)
        except SpecviewError:
            options, standing, whose = {}, "", ""
        self.k.setPlaceholderText(f"auto: {standing}" if standing else "auto")
        policy = POLICIES[self.policy.value()]
        means, about = K_MEANS.get(policy.name, policy.description), policy.description
        if policy.name == "constant" and info.combines:
            means = "the longest draft that a member may make"
            about = "k stays as it is: the longest draft that a member may make."
        elif policy.name == "constant" and options and info.drafted(options).leaves > 1:
            means = "the longest path of a draft, whose guesses branch"
            about = "k stays as it is: the longest path of a draft, whose guesses branch."
        if about != self._policy_text.text():
            self._policy_text.setText(about)
        empty = f"Empty: {standing}, {whose}." if standing else "Empty: automatic."
        words = f"Drafted tokens a round, 1 to {MAX_K}. With {policy.label}: {means}.\n{empty}"
        if self.k.accessibleDescription() != words:
            set_tip(self.k, words)

    def _show_pair(self) -> None:
        engine = self.draft_engine.value() or self._run.engine
        kind, words = ("small", "") if not self._needs_draft else self.pairs.words(
            self._run.target, self._run.engine, self.draft.value() or BUNDLED, engine
        )
        set_kind(self._pair_text, kind)
        self._pair_text.setText(words)
        self._rows.setRowVisible(self._pair_text, bool(words))

    def _scan_layers(self) -> None:
        """Measure the exit layers, and take the one that is chosen into the form."""
        if self._scans is None:
            return
        dialog = ExitScanDialog(self._scans, self)
        if dialog.exec() == QDialog.DialogCode.Accepted and dialog.chosen is not None:
            self.take_exit(*dialog.chosen)
        dialog.deleteLater()

    def take_exit(self, layer: int, k: int) -> None:
        """Put an exit layer and its best k into the form."""
        option = exit_option(METHODS[self.method.value()])
        if option is not None:
            self.form.set_value(option, layer)
            self.k.set_value(k)

    def _open_file(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "Open a draft model", "", MODEL_FILES)
        if path:
            self._fill_drafts(path)
            self._check()

    def _open_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, "Open a draft model's folder")
        if path:
            self._fill_drafts(path)
            self._check()
