"""Status conditions: what is true of an object now, and since when.

A condition's ``lastTransitionTime`` moves only when its status does, and setting what already stands returns an equal
tuple, so that "nothing to write" is an equality.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from contracts.base import Contract

Status: TypeAlias = Literal["True", "False", "Unknown"]

# The grammars and bounds of metav1.Condition, so that every tool that reads conditions reads ours.
_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)
_REASON = r"^[A-Z][A-Za-z0-9]*$"
_MAX_MESSAGE = 32768


class Condition(Contract):
    """One observation of an object, as ``kubectl wait --for=condition=…`` reads it."""

    type: Annotated[str, Field(max_length=316, pattern=_TYPE)]
    status: Status
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=_REASON)] = Field(
        description="Why, as one stable CamelCase word."
    )
    message: Annotated[str, Field(max_length=_MAX_MESSAGE)] = Field(
        default="", description="Why, as a sentence; never parsed."
    )
    observed_generation: Annotated[int, Field(ge=0)] = Field(
        default=0, description="The metadata.generation that the observation was made of."
    )
    last_transition_time: AwareDatetime = Field(description="When the status last changed.")


def set_condition(
    conditions: Iterable[Condition],
    type: str,
    status: Status | bool | None,
    reason: str,
    message: str,
    now: datetime,
    generation: int = 0,
) -> tuple[Condition, ...]:
    """``conditions`` with this one set in its old place, or last when it is new. ``None`` is Unknown.

    Raises pydantic's ValidationError on a reason that is not CamelCase and on a naive ``now``.
    """
    before = tuple(conditions)
    said: Status = status if isinstance(status, str) else "Unknown" if status is None else "True" if status else "False"
    old = find(before, type)
    if old is not None and (old.status, old.reason, old.message, old.observed_generation) == (
        said,
        reason,
        message,
        generation,
    ):
        return before
    since = old.last_transition_time if old and old.status == said else now
    if generation < 0 or since.tzinfo is None:
        new = Condition(
            type=type, status=said, reason=str(reason), observed_generation=generation, last_transition_time=since
        )
    else:
        new = _checked(type, said, str(reason)).but(
            message=message[:_MAX_MESSAGE], observed_generation=generation, last_transition_time=since
        )
    if old is None:
        return (*before, new)
    return tuple(new if condition.type == type else condition for condition in before)


@lru_cache(maxsize=1024)
def _checked(type: str, status: Status, reason: str) -> Condition:
    """A condition of these words, for copies: the same few are set all the time, and each look over them takes long."""
    return Condition(type=type, status=status, reason=reason, last_transition_time=datetime(1970, 1, 1, tzinfo=UTC))


def drop_condition(conditions: Iterable[Condition], type: str) -> tuple[Condition, ...]:
    """``conditions`` without that of ``type``."""
    return tuple(condition for condition in conditions if condition.type != type)


def find(conditions: Iterable[Condition], type: str) -> Condition | None:
    """The condition of ``type``, or None."""
    for condition in conditions:  # a plain loop: every pass asks this thousands of times
        if condition.type == type:
            return condition
    return None


def is_true(conditions: Iterable[Condition], type: str) -> bool:
    """Whether the condition of ``type`` is there and True. An absent or Unknown one is not."""
    return _has(conditions, type, "True")


def all_true(conditions: Iterable[Condition]) -> frozenset[str]:
    """The types of all conditions that are True: for who asks for more than two."""
    return frozenset([condition.type for condition in conditions if condition.status == "True"])


def is_false(conditions: Iterable[Condition], type: str) -> bool:
    """Whether the condition of ``type`` is there and False. An absent or Unknown one is not."""
    return _has(conditions, type, "False")


def _has(conditions: Iterable[Condition], type: str, status: Status) -> bool:
    condition = find(conditions, type)
    return condition is not None and condition.status == status
