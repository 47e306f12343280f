"""Durations as people write them in Kubernetes: ``90s``, ``10m``, ``1h30m``, ``250ms``."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}


LONGEST = 10 * 365 * 86_400
"""Seconds. What is to last longer lasts as long: no wait is, and a moment that far from now can still be told."""


class BadDuration(ValueError):
    """A text that is not a duration."""


def seconds(text: str) -> float:
    """The duration in seconds, at most `LONGEST`. Raises `BadDuration`.

    >>> seconds("1h30m"), seconds("250ms"), seconds("0s"), seconds("9999999999999999h") == LONGEST
    (5400.0, 0.25, 0.0, True)
    """
    if not re.fullmatch(PATTERN, text):
        raise BadDuration(f"{text!r} is not a duration; write it like 90s, 10m or 1h30m")
    return float(min(LONGEST, sum(Fraction(number) * _SECONDS[unit] for number, unit in _PART.findall(text))))


def _checked(text: str) -> str:
    seconds(text)
    return text


Duration = Annotated[
    str,
    AfterValidator(_checked),
    WithJsonSchema({"type": "string", "maxLength": 32, "pattern": PATTERN}),
]
