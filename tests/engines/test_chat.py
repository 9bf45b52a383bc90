"""Chat templates: rendering, and special strings typed by a user."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.engines.chat import mark_special, render_chat
from specview.errors import SpecviewError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = {"<|im_start|>": 1, "<|im_end|>": 2, "<s>": 3, "<|im_end|>x": 4}
PARSE = re.compile("|".join(re.escape(name) for name in sorted(SPECIAL, key=len, reverse=True)) + "|.", re.DOTALL)


def encode_text(text: str) -> list[int]:
    """One id per character, from 1000."""
    return [1000 + ord(character) for character in text]


def encode_template(text: str) -> list[int]:
    """The same, but special strings are parsed."""
    return [SPECIAL[part] if part in SPECIAL else 1000 + ord(part) for part in PARSE.findall(text)]


def chat(template: str | None, *contents: str, parse: bool = False, role: str = "user", bos: str = "<s>") -> list[int]:
    return render_chat(
        {} if template is None else {"default": template},
        [{"role": role, "content": content} for content in contents],
        special_tokens=SPECIAL,
        encode_text=encode_text,
        bos_token=bos,
        eos_token="<|im_end|>",
        encode_template=encode_template if parse else None,
    )


def plain(content: str) -> list[int]:
    """What CHATML should give for one user message."""
    return [1, *encode_text("user\n" + content), 2, *encode_text("\n"), 1, *encode_text("assistant\n")]


@pytest.mark.parametrize("parse", [False, True])
def test_ordinary_chat_equals_ordinary_tokenization(parse: bool) -> None:
    rendered = "<|im_start|>user\nhi ç🎉\t\n<|im_end|>\n<|im_start|>assistant\n"
    assert chat(CHATML, "hi ç🎉\t\n", parse=parse) == encode_template(rendered) == plain("hi ç🎉\t\n")


@pytest.mark.parametrize("parse", [False, True])
@pytest.mark.parametrize(
    "content",
    ["<|im_end|>", "a<|im_end|>x b", "<|im_start|><|im_start|>", "<|im_<|im_end|>end|>", "<s>", "\ue000<s>\ue001", "<",
     "", "im_end|>", " <|im_end|>\n"],
)
def test_typed_special_strings_stay_text(content: str, parse: bool) -> None:
    assert chat(CHATML, content, parse=parse) == plain(content)


@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<s>", "x", "<", "|", ">", " ", "\ue000"]),
                max_size=12), st.booleans())
def test_typed_special_strings_stay_text_in_any_mixture(parts: list[str], parse: bool) -> None:
    content = "".join(parts)
    assert chat(CHATML, content, parse=parse) == plain(content)


@pytest.mark.parametrize(("template", "content", "text"), [
    ("<|{{ messages[0].content }}", "im_end|>", "<|im_end|>"),
    ("{{ messages[0].content | trim }}end|>", "<|im_ ", "<|im_end|>"),
    ("{{ messages[0].content }}{{ messages[1].content }}", "<|im_", "<|im_<|im_"),
    ("<{{ messages[0].content | trim }}>", " s\n", "<s>"),
])
def test_user_and_template_cannot_form_one_together(template: str, content: str, text: str) -> None:
    assert chat(template, content, content) == encode_text(text)
    assert chat(template, content, content, parse=True) == encode_text(text)


@pytest.mark.parametrize("parse", [False, True])
def test_bos_from_the_template_comes_once(parse: bool) -> None:
    assert chat("{{ bos_token }}{{ messages[0].content }}", "a", parse=parse) == [3, *encode_text("a")]


def test_one_character_special_token() -> None:
    ids = render_chat(
        {"default": "#{{ messages[0].content }}#"}, [{"role": "user", "content": "a#b"}], special_tokens={"#": 9},
        encode_text=encode_text, bos_token=None, eos_token=None,
    )
    assert ids == [9, *encode_text("a#b"), 9]


def test_no_special_tokens_at_all() -> None:
    ids = render_chat({"default": "{{ messages[0].content }}"}, [{"role": "user", "content": "<s>"}], special_tokens={},
                      encode_text=encode_text, bos_token=None, eos_token=None)
    assert ids == encode_text("<s>")


def test_marks_do_not_touch_clean_text() -> None:
    assert mark_special("plain text, 3 < 4 > 2", list(SPECIAL), "\ue000") == "plain text, 3 < 4 > 2"


@pytest.mark.parametrize(("template", "text"), [
    ("{% for m in messages %}\n    {%- if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}", "b"),
    ("{{ messages | tojson }}", '[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]'),
    ("{% generation %}x{{ messages[0].content }}{% endgeneration %}y", "xay"),
    ("    {% if true %}\nz{% endif %}", "z"),
    ("{{ strftime_now('%%') }}{{ tools is none }}{{ unknown_token }}", "%True"),
])
def test_template_language(template: str, text: str) -> None:
    assert chat(template, "a", "b") == encode_text(text)


@pytest.mark.parametrize(("template", "reason"), [
    (None, "no chat template"),
    ("{% if", "cannot be read (line 1"),
    ("{{ raise_exception('Conversation roles must alternate') }}", "Conversation roles must alternate"),
    ("{{ messages[7].content.strip() }}", "refuses this chat"),
    ("{{ messages.append(1) }}", "refuses this chat"),
    ("{{ ''.__class__.__mro__ }}", "refuses this chat"),
    ("{{ 1 / 0 }}", "refuses this chat"),
])
def test_refusals_are_one_line(template: str | None, reason: str) -> None:
    with pytest.raises(SpecviewError) as caught:
        chat(template, "a")
    assert reason in str(caught.value) and "--raw" in str(caught.value) and "\n" not in str(caught.value)


def test_a_refused_system_role_says_what_to_leave_out() -> None:
    with pytest.raises(SpecviewError, match="System role not supported.*Leave the system text out"):
        chat("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}", "a",
             role="system")
