"""Stop strings: a text that comes token by token ends where one of them is complete, and is cut before it.

As llama.cpp's antiprompts, vLLM's and OpenAI's `stop`: the token that completes a stop string is the last one, the text
has nothing of the string and nothing behind it. Of several the one that is complete first counts, of two that are
complete at once the longer: how the text is split into tokens and rounds makes no difference. What may be the beginning
of a stop string is held back until that is known. One that begins in text that was given and is complete behind it counts
too; what was given stays, and is no part of what is returned.
"""

from __future__ import annotations

from collections.abc import Sequence

from specview.decoding.interfaces import Detokenizer, Tokenizer
from specview.decoding.observation import Observer, after


class StopText:
    """A detokenizer (interfaces.Detokenizer) that leaves out a stop string and all behind it; `found` is that string.

    given is the text before what comes, of which inner knows.
    """

    def __init__(self, inner: Detokenizer, strings: Sequence[str], given: str = "") -> None:
        self.found = ""
        self._inner, self._strings, self._held = inner, strings, ""
        self._longest = max(map(len, strings))
        self._given = given[max(0, len(given) - self._longest + 1) :]

    def add(self, token: int) -> str:
        """Append a token; return the text that is sure to stay, now that it is there."""
        text = self._held + self._inner.add(token)
        if self.found:
            return ""
        seen, before = self._given + text, len(self._given)
        places = {one: seen.find(one, max(0, before - len(one) + 1)) for one in self._strings}
        complete = [(at + len(one), -len(one), one) for one, at in places.items() if at >= 0]
        if complete:
            end, length, self.found = min(complete)
            self._held = ""
            return text[: max(0, end + length - before)]
        starts = range(max(0, len(seen) - self._longest + 1), len(seen))
        begin = next((at for at in starts if any(one.startswith(seen[at:]) for one in self._strings)), len(seen))
        stay = max(0, begin - before)
        self._given, self._held = seen[begin:before], text[stay:]
        return text[:stay]

    def peek(self, tokens: Sequence[int]) -> list[str]:
        """Texts of tokens that are not added: as without stop strings."""
        return self._inner.peek(tokens)

    def release(self) -> str:
        """What was held back, at the end of a text that has no stop string."""
        held, self._held = self._held, ""
        return held

    def flush(self) -> str:
        """What was held back, and what is left incomplete; nothing behind a stop string."""
        return "" if self.found else self.release() + self._inner.flush()


class Stops:
    """The stop strings of one lane: looks for them in its tokens, whatever is observed of their texts.

    An observer that keeps texts gets a detokenizer that leaves out what is cut. given are the tokens that the output goes
    on from.
    """

    def __init__(
        self, strings: Sequence[str], tokenizer: Tokenizer, observer: Observer | None = None, given: Sequence[int] = ()
    ) -> None:
        inner, before = after(tokenizer, given)
        self._text = StopText(inner, strings, before)
        self._parts: list[str] = []
        self._shown: StopText | None = None
        if observer is not None and observer.detokenizer is not None:
            observer.detokenizer = self._shown = StopText(observer.detokenizer, strings, before)

    @property
    def end(self) -> str:
        """How a text ends that has one: the end that names it."""
        return f"stop: {self._text.found!r}"

    def kept(self, tokens: Sequence[int]) -> int | None:
        """Add the tokens of a round; how many of them stay where a stop string is complete in them, None where none is."""
        for count, token in enumerate(tokens, start=1):
            self._parts.append(self._text.add(token))
            if self._text.found:
                return count
        return None

    def release(self) -> str:
        """The output ends, or stands at its limit: a stop string that has only begun is none. The text held back so far."""
        self._parts.append(self._text.release())
        return "" if self._shown is None else self._shown.release()

    def text(self) -> str:
        """The output so far, cut."""
        return "".join(self._parts) + self._text.flush()
