"""A drafter is one file: no method's name stands in logic outside its own, and its entry says what code asks of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import specview
from specview.drafting.method import MethodInfo
from specview.drafting.registry import METHODS, methods_for
from specview.heads.layouts import KIND_WORDS

ROOT = Path(specview.__file__).parent

ALSO_WORDS = {"plain", "auto", "suffix", "server", *KIND_WORDS}
"""Names that mean other things too: a token's kind, a step of an explanation, a column; the rule and other options'
default; a tokenizer's key; the kinds of trained heads, which are names of file formats. They are a method's name
where the expression around them speaks of methods."""
SPEAKS_OF_METHODS = re.compile(r"method|lanesettings|settings_of", re.IGNORECASE)
OTHER_ENGINES = {f"remote/launch_{name}.py" for name in ("table", "old", "faults")}
"""Data: what other engines call methods, beside our names where there is one; who reads it goes by the table."""
ONCE = {
    ("drafting/registry.py", "draft-model"),  # what a lane drafts with where no method is named
    ("drafting/registry.py", "prompt-lookup"),  # one of the lanes of a first start
}
"""The places that may name a method, once each."""
SHOWN = [
    "plain", "draft-model", "pard", "prompt-lookup", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod",
    "suffix", "lookahead", "early-exit", "medusa", "mlp-speculator", "mtp", "eagle", "eagle2", "eagle3", "p-eagle",
    "cascade", "auto",
]  # fmt: skip
"""The methods as they are shown; a new one stands among them without a change here."""


def own_files() -> dict[str, str]:
    """Method name -> the file that its entry stands in."""
    found = {}
    for path in (ROOT / "drafting").glob("*.py"):
        module = __import__(f"specview.drafting.{path.stem}", fromlist=["_"])
        for value in vars(module).values():
            if isinstance(value, MethodInfo):
                found[value.name] = f"drafting/{path.name}"
    return found


def words_around(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> str:
    """What a string is compared with, given to, or set as."""
    around, text, keyed = parents[node], "", False
    while isinstance(around, ast.Tuple | ast.List | ast.Set | ast.Starred | ast.IfExp | ast.BoolOp | ast.Dict):
        if isinstance(around, ast.Dict):
            pairs = zip(around.keys, around.values, strict=True)
            text += "" if keyed else "".join(ast.unparse(key) for key, value in pairs if key and value is node)
            keyed = True
        elif isinstance(around, ast.IfExp | ast.BoolOp):
            text += ast.unparse(around)
        node, around = around, parents[around]
    if isinstance(around, ast.arguments):
        named = [*zip(reversed(around.args), reversed(around.defaults), strict=False),
                 *zip(around.kwonlyargs, around.kw_defaults, strict=True)]  # fmt: skip
        return text + "".join(one.arg for one, default in named if default is node)
    if isinstance(around, ast.Call):
        plain = [ast.unparse(one) for one in around.args if isinstance(one, ast.Constant)]
        return " ".join([text, ast.unparse(around.func), *plain])
    if isinstance(around, ast.Assign | ast.AnnAssign):
        targets = around.targets if isinstance(around, ast.Assign) else [around.target]
        return " ".join([text, *(ast.unparse(target) for target in targets)])
    if isinstance(around, ast.keyword):
        return f"{text} {around.arg}"
    return text if isinstance(around, ast.Return) else text + ast.unparse(around)


def names_in_logic(source: str) -> Iterator[tuple[int, str]]:
    """The line and the name of every method named by a string of its own; docstrings and longer texts do not count."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or node.value not in METHODS or isinstance(parents[node], ast.Expr):
            continue
        if node.value in ALSO_WORDS and not SPEAKS_OF_METHODS.search(words_around(node, parents)):
            continue
        yield node.lineno, str(node.value)


def test_no_method_is_named_in_logic_outside_its_own_file() -> None:
    own = own_files()
    assert own.keys() == METHODS.keys()
    found, once = [], []
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for line, name in names_in_logic(path.read_text(encoding="utf-8")):
            if file in OTHER_ENGINES:
                continue
            if (file, name) in ONCE:
                once.append((file, name))
            elif own[name] != file:
                found.append(f"specview/{file}:{line} names {name!r}: ask METHODS[...] for what it needs to know instead")
    assert not found, "\n".join(found)
    assert sorted(once) == sorted(ONCE)


@pytest.mark.parametrize(
    "line",
    [
        'if lane.method == "plain": ...',
        'plain = [one for one in lanes if one.settings.get("method") != "plain"]',
        'lane = LaneSettings("auto")',
        'settings = settings_of(arguments, ("plain",))',
        'shown = METHODS["eagle3"]',
        'if self.method.name not in ("pard", "p-eagle"): ...',
        'if method.name == "lookahead": ...',
        'KINDS = {"ngram-mod": 1}',
        'lane.method = "medusa" if small else "eagle"',
        'name = settings.get("method", "plain")',
        'METHOD_OF = {"draft": "eagle3"}',
        'def race(method="auto"): ...',
    ],
)
def test_a_name_in_logic_is_seen(line: str) -> None:
    assert list(names_in_logic(line))


@pytest.mark.parametrize(
    "line",
    [
        '"""plain"""',
        'if token.kind == "plain": ...',
        'rule = settings.rule or "auto"',
        'if facts.kind in ("eagle3", "p-eagle"): ...',
        'label = "no draft-model here"',
        'suffix = kinds.get("suffix")',
        'def tune(methods=(), rule="auto"): ...',
        'editor(methods, rule.value() or "auto")',
        'config = {"kind": "eagle3", "methods": 1}',
    ],
)
def test_the_same_word_with_another_meaning_is_not(line: str) -> None:
    assert not list(names_in_logic(line))


def test_what_the_methods_say_of_themselves() -> None:
    """As the code asked by name before: a change here is a change of what is computed."""
    says = {
        field: {name for name in SHOWN if getattr(METHODS[name], field)}
        for field in (
            "copies", "steps_draft_model", "follows_text", "one_pass", "learns_lengths", "shares_passes", "rides_passes",
            "always_tree", "published_tree", "seldom_pays", "head_for_model", "members_among",
        )
    }  # fmt: skip
    assert says == {
        "copies": {"prompt-lookup", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "suffix"},
        "steps_draft_model": {"draft-model"},
        "follows_text": {"draft-model", "early-exit"},
        "one_pass": {"pard", "p-eagle"},
        "learns_lengths": {"ngram-map-k", "ngram-map-k4v", "ngram-mod"},
        "shares_passes": {"early-exit"},
        "rides_passes": {"lookahead"},
        "always_tree": {"eagle2"},
        "published_tree": {"medusa"},
        "seldom_pays": {"pard", "lookahead", "early-exit"},
        "head_for_model": {"auto"},
        "members_among": {"cascade", "auto"},
    }
    of_kinds = {kind: [kind] for kind in KIND_WORDS} | {"eagle": ["eagle", "eagle2"], "draft": ["draft-model"]}
    assert {kind: methods_for(kind) for kind in (*KIND_WORDS, "draft")} == of_kinds


def test_they_are_shown_in_this_order() -> None:
    assert [name for name in METHODS if name in SHOWN] == SHOWN
