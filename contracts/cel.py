"""CEL rules for the schemas of the kinds: what the API server refuses at the door, and the sentence that it says."""

from __future__ import annotations

from typing import Any


def rules(*found: tuple[str, str]) -> dict[str, Any]:
    """Rules, each with what is said when it does not hold."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in found]}


def zero_or_more(field: str) -> dict[str, Any]:
    """The rule of a quantity that is never negative."""
    rule = "type(self) == int ? self >= 0 : isQuantity(self) && quantity(self).compareTo(quantity('0')) >= 0"
    return rules((rule, f"{field} must be a quantity of zero or more, such as 8 or 64Gi"))
