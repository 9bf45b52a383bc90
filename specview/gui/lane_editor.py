"""The lane editor: method, draft, length policy, rule and the drafter's options of one lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES, resolve_rule
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.gui.library import ENGINES, Library
from specview.gui.option_form import OptionForm
from specview.gui.widgets import Choice, NumberEdit, label, set_tip
from specview.racing.settings import BUNDLED, MAX_K, LaneSettings, RunSettings

MODEL_FILES = "GGUF models (*.gguf);;All files (*)"

RULE_TIPS = {
    "greedy": "keeps a drafted token that is the target's own argmax; temperature 0 only",
    "rejection": "keeps x with probability min(1, p/q), else draws from max(0, p - q); Leviathan 2023, Chen 2023",
    "match": "draws from p and keeps x where the draw is x",
    "typical": "keeps x where p(x) passes an entropy-dependent threshold; Medusa. Changes the output's distribution",
    "naive": "a teaching bug: on rejection it draws from p itself, which counts p twice",
}


def rule_text(rule: str) -> str:
    """Name a rule with whether it leaves the target's distribution as it is."""
    if rule == "greedy":
        return "greedy · exact at T 0"
    return f"{rule} · {'exact' if RULES[rule] else 'lossy'}"


def resolved_rule_text(rule: str, sampling: SamplingParams) -> str:
    """Name the rule that `rule` comes to with this sampling; `auto` says what it picks."""
    try:
        resolved = resolve_rule(rule, sampling)
    except SpecviewError:
        return rule_text(rule)
    return rule_text(resolved)


def model_name(ref: str, role: str = "target") -> str:
    """Name a model by its reference: bundled, a path or a hub id."""
    if ref == BUNDLED:
        return "SmolLM2-135M-Instruct" if role == "target" else "specview draft"
    name = Path(ref).name if "/" in ref or "\\" in ref else ref
    return name.removesuffix(".gguf") or ref


class LaneEditor(QDialog):
    """Edits one lane; `lane()` gives the result after it was accepted."""

    def __init__(self, lane: LaneSettings, run: RunSettings, rule: str, library: Library, parent: QWidget) -> None:
        """`run` gives the sampling and engine that the lane is checked against, `rule` the race's rule."""
        super().__init__(parent)
        self.setWindowTitle("Edit lane")
        self._lane, self._run, self._rule, self._library = lane, run, rule, library
        self._options: dict[str, Mapping[str, Any]] = {lane.method: lane.options}
        self._policy_options: dict[str, Mapping[str, Any]] = {lane.policy: lane.policy_options}
        self._method_shown, self._policy_shown = "", ""

        self.method = Choice(tuple((m.name, m.label) for m in METHODS.values() if m.drafts))
        self.method.set_value(lane.method)
        self._method_text = self._note()
        self.name = QLineEdit(lane.name)
        self.name.setPlaceholderText("the method's name")
        self.name.setMaxLength(40)
        self.draft = Choice()
        self.draft.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.draft.setMinimumContentsLength(22)
        self._fill_drafts(lane.draft)
        self.open_file = QPushButton("File…")
        self.open_folder = QPushButton("Folder…")
        self.draft_engine = Choice((("", f"as the target ({run.engine})"), *((name, name) for name in ENGINES)))
        self.draft_engine.set_value(lane.draft_engine or "")
        self._engine_text = self._note("warning")
        self.k = NumberEdit("k", lane.k, whole=True, minimum=1, maximum=MAX_K, optional=True, placeholder="auto")
        set_tip(self.k, f"Drafted tokens a round, 1 to {MAX_K}. Empty: 2 for transformers on a CPU, else 4.")
        self.policy = Choice(tuple((p.name, p.label) for p in POLICIES.values()))
        self.policy.set_value(lane.policy)
        self._policy_text = self._note()
        self.policy_form = OptionForm()
        inherited = resolved_rule_text(rule, run.sampling)
        self.rule = Choice((("auto", f"as the race ({inherited})"), *((name, rule_text(name)) for name in RULES)))
        self.rule.set_value(lane.rule)
        self._rule_text = self._note()
        self.form = OptionForm()
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
        made = replace(
            self._lane,
            method=self.method.value(),
            name=self.name.text().strip(),
            draft=self.draft.value() or BUNDLED,
            draft_engine=self.draft_engine.value() or None,
            k=self.k.value(),
            policy=self.policy.value(),
            policy_options=self.policy_form.values(),
            rule=self.rule.value(),
            options=self.form.values(),
        )
        effective = replace(made, rule=self._rule if made.rule == "auto" else made.rule)
        effective.checked(self._run.sampling)
        return made

    @property
    def problem(self) -> str:
        """Why the lane cannot work as edited, '' when it can."""
        return self._error.text()

    # -- layout ------------------------------------------------------------------------------------

    def _note(self, kind: str = "small") -> Any:
        made = label("", kind)
        made.setWordWrap(True)
        made.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        return made

    def _lay_out(self) -> None:
        form = QFormLayout()
        form.setVerticalSpacing(6)
        form.setHorizontalSpacing(14)
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        self._rows = form
        draft_row = QWidget()
        row = QHBoxLayout(draft_row)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.draft, 1)
        row.addWidget(self.open_file)
        row.addWidget(self.open_folder)
        self._draft_row = draft_row
        for caption, widget in (
            ("Method", self.method), ("", self._method_text), ("Name", self.name), ("Draft", draft_row),
            ("Draft engine", self.draft_engine), ("", self._engine_text), ("k", self.k),
            ("Draft length", self.policy), ("", self._policy_text), ("", self.policy_form), ("Rule", self.rule),
            ("", self._rule_text), ("Options", self.form),
        ):
            title = label(caption)
            inner = self.draft if widget is draft_row else widget
            title.setBuddy(inner)
            if caption:
                inner.setAccessibleName(caption)
            form.addRow(title, widget)
        column = QVBoxLayout(self)
        column.setContentsMargins(18, 16, 18, 14)
        column.setSpacing(10)
        column.addLayout(form)
        column.addWidget(self._error)
        column.addStretch(1)
        column.addWidget(self.buttons)
        self.setMinimumWidth(460)

    def _connect(self) -> None:
        self.method.currentIndexChanged.connect(self._show_method)
        self.policy.currentIndexChanged.connect(self._show_policy)
        for choice in (self.rule, self.draft, self.draft_engine):
            choice.currentIndexChanged.connect(self._check)
        self.k.edited.connect(self._check)
        self.name.textChanged.connect(self._check)
        self.form.changed.connect(self._check)
        self.policy_form.changed.connect(self._check)
        self.open_file.clicked.connect(self._open_file)
        self.open_folder.clicked.connect(self._open_folder)
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)

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
            self._keep(self.form, self._options, self._method_shown)
        self._method_shown = self.method.value()
        info = METHODS[self._method_shown]
        self._method_text.setText(info.description)
        for widget in (self._draft_row, self.draft_engine):
            self._rows.setRowVisible(widget, info.needs_draft_model)
        self.form.fill(info.options, self._options.get(info.name, {}))
        self._rows.setRowVisible(self.form, bool(info.options))
        self._check()

    def _show_policy(self) -> None:
        if self._policy_shown:
            self._keep(self.policy_form, self._policy_options, self._policy_shown)
        self._policy_shown = self.policy.value()
        info = POLICIES[self._policy_shown]
        self._policy_text.setText(info.description)
        self.policy_form.fill(info.options, self._policy_options.get(info.name, {}))
        self._rows.setRowVisible(self.policy_form, bool(info.options))
        self._check()

    @staticmethod
    def _keep(form: OptionForm, kept: dict[str, Mapping[str, Any]], name: str) -> None:
        """Remember a form's values while another method is shown; bad ones are forgotten."""
        try:
            kept[name] = form.values()
        except SpecviewError:
            kept.pop(name, None)

    def _check(self) -> None:
        rule = self.rule.value()
        effective = self._rule if rule == "auto" else rule
        try:
            resolved = resolve_rule(effective, self._run.sampling)
        except SpecviewError:
            resolved = effective
        self._rule_text.setText(RULE_TIPS.get(resolved, ""))
        engine = self.draft_engine.value() or self._run.engine
        needs = METHODS[self.method.value()].needs_draft_model
        missing = self._library.engine_problem(engine) if needs else ""
        self._engine_text.setText(missing)
        self._rows.setRowVisible(self._engine_text, bool(missing))
        try:
            self.lane()
            problem = missing
        except SpecviewError as error:
            problem = str(error)
        self._error.setText(problem)
        self.buttons.button(QDialogButtonBox.StandardButton.Ok).setEnabled(not problem)

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


class PlainNote(QDialog):
    """What the plain lane is: it has nothing to set."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Plain decoding")
        column = QVBoxLayout(self)
        column.setContentsMargins(18, 16, 18, 14)
        text = label(
            "The baseline: the target alone, one token a pass, by the same loop with an empty draft. "
            "Every speedup is measured against it in the same race. It has nothing to set and is always there."
        )
        text.setWordWrap(True)
        text.setMinimumWidth(360)
        text.setAlignment(Qt.AlignmentFlag.AlignTop)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        column.addWidget(text)
        column.addWidget(buttons)
