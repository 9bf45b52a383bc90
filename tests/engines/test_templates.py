"""Chat templates are programs from outside: they render within limits, and as transformers renders them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from specview.engines import templates
from specview.errors import SpecviewError, UsageError

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Olá <b>&"}]

TOO_MUCH = {
    "power": "{{ 9**(9**9) }}",
    "power in a loop": "{% set ns = namespace(x=9) %}{% for i in range(9) %}{% set ns.x = ns.x ** ns.x %}{% endfor %}",
    "repeat": '{{ "x"*2000000000 }}',
    "repeat a tuple": "{{ (1,)*10**9 }}",
    "repeat lists": "{{ [[0]*99999]*99999|list }}",
    "repeat under the limit of memory": '{{ "x" * 60000000 }}',
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "doubling": '{% set ns = namespace(s="x") %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}',
    "join": '{{ range(99999)|list|join("x"*10000) }}',
    "replace": '{{ ("a"*100000)|replace("a","b"*100000) }}',
    "center": '{{ "a"|center(999999999) }}',
    "ljust": '{{ "a".ljust(2000000000) }}',
    "indent": '{{ "a\nb"|indent(999999999) }}',
    "width": '{{ "%999999999d" % 1 }}',
    "width of format": '{{ "{:999999999d}".format(1) }}',
    "width of the filter": '{{ "%999999999d"|format(1) }}',
    "indented JSON": "{{ messages|tojson(indent=999999999) }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "slices": "{{ range(2)|slice(10**9)|list }}",
    "a long sum": "{{ 1" + "+1" * 400_000 + " }}",  # of 100,000 the memory was now enough, now not
    "a long reason": '{{ raise_exception("x"*30000000) }}',
    "a long date": '{{ strftime_now("%Y"*30000000) }}',
    "much text": '{{ "ab" * 400000 }}',
}
REFUSED = {
    "range": "{{ range(10**9)|list }}",
    "macro recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "loop recursion": "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "nesting": "{{" + "(" * 50_000 + ")" * 50_000 + "}}",
    "attribute": "{{ ''.__class__.__mro__ }}",
    "a file": "{% include '/etc/passwd' %}",
    "nothing said": "{{ raise_exception('') }}",
}


def render(template: str) -> str:
    return templates.render_chat_text(template, CHAT, "<s>", "</s>")


@pytest.fixture(scope="module", autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    templates.stop()


TRY_EACH = """
import json, resource, sys
from specview.engines import templates
from specview.errors import SpecviewError
chat = [{"role": "user", "content": "a"}]
told = []
for template in json.load(sys.stdin):
    try:
        told.append(str(len(templates.render_chat_text(template, chat, "<s>", "</s>"))))
    except SpecviewError as error:
        told.append(str(error))
told.append(templates.render_chat_text("{{ bos_token }}still here", chat, "<s>", "</s>"))
templates.stop()
own = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
kilobytes = [int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]
json.dump({"told": told, "kilobytes": kilobytes, "seconds": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])}, sys.stdout)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux counts in kilobytes")
def test_no_template_takes_more_than_its_limits() -> None:
    """In a program of its own: the memory of a small one's children is what is measured."""
    done = subprocess.run(
        [sys.executable, "-c", TRY_EACH], input=json.dumps(list(TOO_MUCH.values())), stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    *told, last = found["told"]
    for name, words in zip(TOO_MUCH, told, strict=True):
        assert words.startswith("The model's chat template ") and "--raw" in words and "\n" not in words, name
    assert last == "<s>still here"
    assert max(found["kilobytes"]) < 100 << 10
    assert found["seconds"] < 2 * len(TOO_MUCH)  # of processor time, which a busy machine does not change


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_short(name: str) -> None:
    with pytest.raises(templates.TemplateRefusal) as caught:
        render(REFUSED[name])
    assert 0 < len(str(caught.value)) <= 300 and "\n" not in str(caught.value)


def test_the_parent_ends_what_the_system_does_not_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is neither a limit of memory nor a timer."""
    slow = [sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(slow, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    monkeypatch.setattr(templates, "_process", process)
    with pytest.raises(SpecviewError, match="was stopped"):
        render("x")
    assert process.returncode == -signal.SIGKILL if os.name == "posix" else process.returncode is not None


def test_a_process_that_has_gone_is_started_again() -> None:
    assert render("a") == "a"
    gone = templates._running()
    gone.kill()
    gone.wait()
    assert render("b") == "b" and templates._running().pid != gone.pid


def test_an_interrupted_rendering_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    process = templates._running()

    def interrupt() -> bytes:
        raise KeyboardInterrupt

    broken = SimpleNamespace(pid=process.pid, stdin=process.stdin, stdout=SimpleNamespace(readline=interrupt))
    with monkeypatch.context() as patch:
        patch.setattr(templates, "_running", lambda: broken)
        with pytest.raises(KeyboardInterrupt):
            render("a")
    assert render("b") == "b"


def test_a_huge_template_is_not_tried() -> None:
    with pytest.raises(SpecviewError, match="2,000,000 characters"):
        render("x" * 2_000_000)


def test_a_long_chat_is_no_offence() -> None:
    text = "word " * 400_000
    assert templates.render("{{ messages[0].content }}", {"messages": [{"content": text}]}) == text


SAME = [
    "{% for m in messages %}\n  {%- if loop.first %}{% continue %}{% endif %}\n{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}",
    "{{ bos_token }}{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ eos_token }}{{ tools is none }}{{ documents }}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ messages[0].content }}{{ x }}{% endgeneration %}{{ x }}",
    "{{ strftime_now('%d %%') }}|{{ add_generation_prompt }}|{{ missing }}|{{ '%5.2f' | format(2.5) }}",
    "{% macro turn(m) %}<|{{ m.role }}|>{{ m.content | replace('<', '[') | upper }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{{ messages[-1].content[::-1] }}{{ messages | map(attribute='role') | join(',') }}{{ dict(a=1).a }}",
]  # fmt: skip


@pytest.mark.parametrize("template", SAME)
def test_ordinary_templates_render_as_in_transformers(template: str) -> None:
    library: Any = pytest.importorskip("transformers.utils.chat_template_utils")
    found = library.render_jinja_template(
        [[dict(turn) for turn in CHAT]], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    theirs = found[0][0] if isinstance(found, tuple) else found[0]
    assert render(template) == theirs


def test_a_template_is_chosen_by_name() -> None:
    named = {"default": "D", "tool_use": "T"}
    assert (templates.choose(named, None), templates.choose(named, "tool_use")) == ("D", "T")
    with pytest.raises(UsageError, match="no chat template 'rag'. Its templates: default, tool_use"):
        templates.choose(named, "rag")
    with pytest.raises(SpecviewError, match=r"no default chat template, but named ones: rag, tool_use\. Choose one \(--chat-template"):
        templates.choose({"tool_use": "T", "rag": "R"}, None)
    for name in (None, "rag"):
        with pytest.raises(SpecviewError, match="has no chat template. Send the prompt raw"):
            templates.choose({}, name)
