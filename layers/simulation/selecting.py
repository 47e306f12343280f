"""Label and field selectors, as the query of a list says them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")


class BadSelector(ValueError):
    """The selector cannot be read."""


@dataclass(frozen=True)
class Selector:
    """Requirements that all must hold: key, operator (in, notin, exists, missing), values."""

    requirements: tuple[tuple[str, str, frozenset[str]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Raises `BadSelector`.

        >>> Selector.parse("a=b,c in (d, e),!f").holds({"a": "b", "c": "e"})
        True
        >>> Selector.parse("a!=b").holds({"a": "b"})
        False
        """
        return cls(tuple(_requirement(part.strip()) for part in re.split(r",(?![^(]*\))", text) if part.strip()))

    def holds(self, labels: dict[str, str]) -> bool:
        for key, operator, values in self.requirements:
            has = key in labels
            if operator == "in":
                ok = has and labels[key] in values
            elif operator == "notin":
                ok = not has or labels[key] not in values
            else:
                ok = has == (operator == "exists")
            if not ok:
                return False
        return True


def matches(selector: Selector, obj: dict[str, Any]) -> bool:
    """Whether the object's labels hold."""
    return not selector.requirements or selector.holds(obj["metadata"].get("labels") or {})


def _requirement(part: str) -> tuple[str, str, frozenset[str]]:
    found = _SET.match(part)
    if found:
        return found[1], found[2], frozenset(v.strip() for v in found[3].split(","))
    for sign, operator in (("!=", "notin"), ("==", "in"), ("=", "in")):
        if sign in part:
            key, value = part.split(sign, 1)
            return key.strip(), operator, frozenset({value.strip()})
    if re.fullmatch(r"!?[A-Za-z0-9._/-]+", part):
        return (part[1:], "missing", frozenset()) if part.startswith("!") else (part, "exists", frozenset())
    raise BadSelector(f"unable to parse requirement: {part!r}")


def fields_match(selector: Selector, obj: dict[str, Any]) -> bool:
    """Whether the object's fields hold, by their paths; an absent one is empty."""
    if not selector.requirements:
        return True
    return selector.holds({key: str(_field(obj, key)) for key, _, _ in selector.requirements})


def _field(obj: dict[str, Any], path: str) -> Any:
    value: Any = obj
    for part in path.split("."):
        value = (value or {}).get(part)
    return "" if value is None else value
