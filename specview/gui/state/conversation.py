"""The turns of a conversation: what was said and what plain replied, as Markdown too. Plain Python: no Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specview.files.tables import markdown_block
from specview.gui.state.view_model import RaceModel
from specview.settings.run import RunSettings


class Said(NamedTuple):
    """What one of the two said."""

    who: str
    text: str


WHO: Mapping[str, str] = {"user": "You", "assistant": "Plain's reply", "system": "System"}


def earlier(settings: RunSettings | None) -> tuple[Said, ...]:
    """The turns before the one on screen."""
    if settings is None:
        return ()
    return tuple(Said(WHO.get(message["role"], message["role"]), message["content"]) for message in settings.history)


def whole(settings: RunSettings | None, race: RaceModel) -> tuple[Said, ...]:
    """All turns, the one on screen last, with plain's reply as far as it goes."""
    if settings is None:
        return ()
    first = (Said(WHO["system"], settings.system),) if settings.system else ()
    plain = race.baseline
    reply = (Said(WHO["assistant"], plain.reply),) if plain is not None and plain.reply else ()
    return (*first, *earlier(settings), Said(WHO["user"], settings.prompt), *reply)


def markdown(turns: Sequence[Said]) -> str:
    """A conversation to be pasted; what was said is text, never markup."""
    return "\n".join(f"**{one.who}**\n\n{markdown_block(one.text)}" for one in turns)
