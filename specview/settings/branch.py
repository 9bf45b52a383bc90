"""A branch: a run that goes on from a place in another run's output, with a token chosen there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

FACT = "branch"
"""What a branch is called among a run's facts, and so in traces and documents."""

_Id = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


@dataclass(frozen=True, slots=True)
class Branch:
    """The output that a run is given, and whose it is: it decodes what follows.

    token_ids are the ids of that output, the chosen token's the last: exact, no text is tokenized anew. run is the parent
    (its id in the runs library, or its file; "" where it was not kept), lane the parent's lane, position the chosen
    token's place in that lane's own output. text is what all but the chosen token read, token what that one adds; both ""
    where they were not recorded.
    """

    token_ids: tuple[_Id, ...]
    run: str = ""
    lane: str = ""
    position: int = 0
    text: str = ""
    token: str = ""

    @property
    def given(self) -> str:
        """The text that the output goes on from."""
        return self.text + self.token

    @property
    def words(self) -> str:
        """Where it goes on from, in one line: continues 2026-08-01-1f from position 12 of lane eagle3 with ' cat'."""
        lane = f" of lane {self.lane}" if self.lane else ""
        token = repr(self.token) if self.token else f"token {self.token_ids[-1]}"
        return f"continues {self.run or 'a run that was not kept'} from position {self.position}{lane} with {token}"


def branch_of(facts: Mapping[str, Any]) -> Branch | None:
    """The branch that a run's facts tell, whoever wrote them; None where it is none. Raises TypeError for what cannot be one."""
    found = facts.get(FACT)
    if found is None:
        return None
    try:
        branch = msgspec.convert(found, Branch)
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from None
    if not branch.token_ids:
        raise TypeError("the branch has no tokens")
    return branch


def known_branch(facts: Mapping[str, Any]) -> Branch | None:
    """As `branch_of`, for those who show a run: None for what cannot be a branch, too."""
    try:
        return branch_of(facts)
    except TypeError:
        return None
