"""The target's chat layout as token ids, for writing training text and held-out answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.engines import templates
from specview.engines.transformers_tokenizer import auto_tokenizer

_MARK = "\x00here\x00"


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer saved beside a target's weights, as a transformers tokenizer; raises SpecviewError."""
    return auto_tokenizer(folder, trust_remote_code=False)


@dataclass(frozen=True)
class ChatLayout:
    """Token ids around one user turn: before it, between it and the answer, and what ends an answer."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, tokenizer: Any) -> ChatLayout:
        """Read the layout out of the tokenizer's own chat template.

        Raises ValueError when the template drops or changes the user's text.
        """
        named = tokenizer.chat_template
        text = templates.render_chat_text(
            templates.choose(named if isinstance(named, dict) else {templates.DEFAULT: named}, None),
            [{"role": "user", "content": _MARK}],
            tokenizer.bos_token,
            tokenizer.eos_token,
        )
        if text.count(_MARK) != 1:
            raise ValueError("the chat template does not hold the user's text as it is")
        before, between = text.split(_MARK)

        def ids(part: str) -> tuple[int, ...]:
            return tuple(tokenizer(part, add_special_tokens=False)["input_ids"])

        return cls(ids(before), ids(between), tokenizer.eos_token_id)

    def render(self, tokenizer: Any, user: str) -> list[int]:
        """Ids of a conversation with one user turn, up to where the answer starts.

        Special tokens spelled out in `user` are read as plain text.
        """
        text = tokenizer(user, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [*self.before, *text, *self.between]
