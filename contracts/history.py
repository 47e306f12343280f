"""The states an object has been through: one open, the last ones that ended.

A gate writes them with the status in which it leaves a state, so that the spans of a trace can be told again after a
restart: a span is a state with its recorded start and end, never a duration that somebody measured.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from contracts.base import Contract

MAX_ENDED = 16
MAX_CHANGES = 16


class Change(Contract):
    """The reason changed inside a state; becomes a span event."""

    at: datetime
    reason: str
    message: str = ""


class OpenState(Contract):
    """The state an object is in, since when, and the reasons it had meanwhile."""

    state: str
    start: datetime
    attempt: int
    changes: Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES)] = ()


class EndedState(Contract):
    """A state that was left: one span. ``result`` is the state that followed, or the outcome."""

    state: str
    start: datetime
    end: datetime
    attempt: int
    result: str
    error: bool = False
    changes: Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES)] = ()


class History(Contract):
    """``current`` is None before the first state and after the last."""

    current: OpenState | None = None
    ended: Annotated[tuple[EndedState, ...], Field(max_length=MAX_ENDED)] = ()

    def moved(
        self, state: str | None, *, now: datetime, attempt: int, result: str | None = None, error: bool = False
    ) -> History:
        """Leave the current state for ``state`` (None: for none). Already in it in this attempt: no change.

        ``result`` tells how the left state ended and defaults to the name of the next one. The oldest ended states
        beyond `MAX_ENDED` are dropped.
        """
        left = self.current
        if left and (left.state, left.attempt) == (state, attempt):
            return self
        if not left and state is None:
            return self
        ended = self.ended
        if left:
            how = result or state or "ended"
            was = EndedState(
                state=left.state, start=left.start, end=now, attempt=left.attempt, result=how, error=error,
                changes=left.changes,
            )  # fmt: skip
            ended = (*ended, was)[-MAX_ENDED:]
        return History(current=OpenState(state=state, start=now, attempt=attempt) if state else None, ended=ended)

    def noted(self, reason: str, message: str, *, now: datetime) -> History:
        """Add a change of reason to the current state; the same reason again changes nothing."""
        at = self.current
        if at is None or (at.changes and at.changes[-1].reason == reason):
            return self
        change = Change(at=now, reason=reason, message=message)
        return self.but(current=at.but(changes=(*at.changes, change)[-MAX_CHANGES:]))
