"""Amounts of resources: text on the wire, integers inside.

An *amount* is an integer in the resource's own unit: CPU in milli, everything else in whole units (bytes, devices,
pods). Kubernetes keeps a quantity down to a nano unit and rounds what is finer away from zero, so a quantity is an
integer of nanos; an amount is rounded once, at the end, away from zero. No float takes part, and Python's integers
do not overflow: a sum of huge requests is huge, never negative.

What a person wrote is never rewritten: `Quantity` keeps its spelling. `format_quantity` is for amounts of our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Strict, WithJsonSchema

ResourceAmounts: TypeAlias = dict[str, int]
"""Resource name → amount in the resource's unit (CPU in milli, everything else whole)."""

Written: TypeAlias = str | int | float
"""A quantity as it may stand in a JSON or YAML document."""

CPU: Final = "cpu"
NANO: Final = 10**9
INT64: Final = 2**63 - 1

_BINARY = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5, "Ei": 1024**6}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_NANOS = {
    "n": 1,
    "u": 10**3,
    "m": 10**6,
    "": NANO,
    **{suffix: NANO * factor for suffix, factor in {**_DECIMAL, **_BINARY}.items()},
}
# What the door lets in must be readable behind it: `Quantity` tells the API server the same bounds.
_MAX_TEXT = 64
_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<only>[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)
_PATTERN = r"^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"


class BadQuantity(ValueError):
    """A text that is no quantity, or too long for one. The message is a sentence for its author."""


def parse(text: Written, resource: str) -> int:
    """The amount of ``resource`` that ``text`` means, rounded away from zero.

    Raises `BadQuantity`.

    >>> parse("1500m", "cpu"), parse("1500m", "memory"), parse("16Gi", "memory"), parse(8, "nvidia.com/gpu")
    (1500, 2, 17179869184, 8)
    """
    return amount_of(parse_nanos(text), resource)


def parse_quantity(text: Written) -> Fraction:
    """The value of ``text`` in whole units, exact down to the nano unit. Raises `BadQuantity`.

    >>> parse_quantity("300m") * 1000
    Fraction(300, 1)
    """
    return Fraction(parse_nanos(text), NANO)


def parse_nanos(text: Written) -> int:
    """The value of ``text`` in nano units: what to add and multiply before anything is rounded. Raises `BadQuantity`.

    A float means the shortest decimal that a person would have typed for it: 0.1 is a tenth. Kubernetes caps at
    2^63-1 without a word; here a text of up to 64 characters, with an exponent of up to two digits, is exact.
    """
    if isinstance(text, bool):
        raise BadQuantity(f"{text!r} is not a quantity: write a number such as 2, 500m or 16Gi")
    return _parse_nanos(text if isinstance(text, str) else repr(text))


@lru_cache(maxsize=8192)
def _parse_nanos(text: str) -> int:
    # A bound on the length, for the work of a thousand digits is the author's to choose.
    if len(text) > _MAX_TEXT:
        raise BadQuantity(f"{text[:16]!r}… is not a quantity: it has {len(text)} characters, the most is {_MAX_TEXT}")
    found = _GRAMMAR.fullmatch(text)
    if found is None:
        raise BadQuantity(f"{text!r} is not a quantity: write a number such as 2, 500m or 16Gi")
    whole, part = found["whole"] or "0", found["part"] or found["only"] or ""
    shift = int(found["exponent"] or 0) - len(part)
    scaled = int(whole + part) * _NANOS[found["suffix"] or ""]
    power: int = 10 ** abs(shift)
    nanos = scaled * power if shift >= 0 else -(-scaled // power)
    return -nanos if found["sign"] == "-" else nanos


def amount_of(nanos: int, resource: str) -> int:
    """Nano units as an amount of ``resource``, rounded away from zero as Kubernetes does."""
    unit = NANO // 1000 if resource == CPU else NANO
    return -(-nanos // unit) if nanos >= 0 else nanos // unit


def nanos_of(amount: int, resource: str) -> int:
    """An amount of ``resource`` in nano units: `amount_of`, the other way round."""
    return amount * (NANO // 1000 if resource == CPU else NANO)


def format_nanos(nanos: int) -> str:
    """Nano units, exact, in the coarsest decimal unit below one that leaves an integer.

    >>> format_nanos(8 * 10**9), format_nanos(7_999_500_000), format_nanos(1)
    ('8', '7999500u', '1n')
    """
    for suffix, unit in (("", NANO), ("m", 10**6), ("u", 10**3)):
        if nanos % unit == 0:
            return f"{nanos // unit}{suffix}"
    return f"{nanos}n"


def format_quantity(amount: int, resource: str) -> str:
    """``amount`` in the canonical spelling of Kubernetes: the largest suffix that leaves an integer.

    >>> format_quantity(1500, "cpu"), format_quantity(2000, "cpu"), format_quantity(17179869184, "memory")
    ('1500m', '2', '16Gi')
    """
    if resource == CPU:
        if amount % 1000:
            return f"{amount}m"
        amount //= 1000
    suffixes = _BINARY if counts_bytes(resource) else _DECIMAL
    for suffix, factor in reversed(suffixes.items()):
        if amount and amount % factor == 0:
            return f"{amount // factor}{suffix}"
    return str(amount)


@lru_cache(maxsize=4096)
def describe(amount: int, resource: str) -> str:
    """``amount`` for a sentence: exact, and as short as that allows.

    >>> describe(1500, "cpu"), describe(8, "nvidia.com/gpu"), describe(1536 * 1024**2, "memory")
    ('1.5', '8', '1.5Gi')
    """
    if resource == CPU:
        return _decimal(Fraction(amount, 1000))
    if not counts_bytes(resource):
        return str(amount)
    spellings = [
        _decimal(Fraction(amount, factor)) + suffix
        for suffix, factor in (*reversed(_BINARY.items()), *reversed(_DECIMAL.items()))
        if abs(amount) >= factor and amount * 100 % factor == 0
    ]
    return min((*spellings, str(amount)), key=len)


def _decimal(value: Fraction) -> str:
    """A value of at most three decimals, without trailing zeros."""
    thousandths = abs(value.numerator) * 1000 // value.denominator
    whole, part = divmod(thousandths, 1000)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{part:03}".rstrip("0").rstrip(".")


def counts_bytes(resource: str) -> bool:
    """Whether amounts of ``resource`` are bytes."""
    return resource in {"memory", "ephemeral-storage", "storage"} or resource.startswith("hugepages-")


def parse_resources(written: Mapping[str, Written] | None) -> ResourceAmounts:
    """Every entry parsed; an entry of zero stays. Raises `BadQuantity` that names the resource."""
    return {resource: amount_of(nanos, resource) for resource, nanos in parse_nanos_of(written).items()}


def parse_nanos_of(written: Mapping[str, Written] | None) -> dict[str, int]:
    """Every entry in nano units. Raises `BadQuantity` that names the resource."""
    nanos = {}
    for resource, text in (written or {}).items():
        try:
            nanos[resource] = parse_nanos(text)
        except BadQuantity as bad:
            raise BadQuantity(f"{resource}: {bad}") from None
    return nanos


def format_resources(amounts: Mapping[str, int]) -> dict[str, str]:
    """Every entry in canonical spelling, in name order so that equal amounts are equal documents."""
    return {resource: format_quantity(amounts[resource], resource) for resource in sorted(amounts)}


def add(*amounts: Mapping[str, int]) -> ResourceAmounts:
    """The sum by resource; a resource that one of them lacks counts as zero there."""
    return _sum(amounts)


def subtract(amounts: Mapping[str, int], *less: Mapping[str, int]) -> ResourceAmounts:
    """``amounts`` without ``less``; what goes below zero stays visible as negative."""
    result = dict(amounts)
    for resource, amount in _sum(less).items():
        result[resource] = result.get(resource, 0) - amount
    return result


def scale(amounts: Mapping[str, int], times: int) -> ResourceAmounts:
    """``amounts``, ``times`` over."""
    return {resource: amount * times for resource, amount in amounts.items()}


def without_zeros(amounts: Mapping[str, int]) -> ResourceAmounts:
    """``amounts`` without its entries of zero."""
    return {resource: amount for resource, amount in amounts.items() if amount}


def fits(asked: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """Whether ``free`` has all that is asked. What ``free`` does not list is zero there: asking zero of it fits."""
    return all(amount <= free.get(resource, 0) for resource, amount in asked.items() if amount > 0)


def lacking(asked: Mapping[str, int], free: Mapping[str, int]) -> ResourceAmounts:
    """How much of each resource ``free`` lacks for ``asked``, in name order; empty when it fits."""
    return {r: asked[r] - max(free.get(r, 0), 0) for r in sorted(asked) if asked[r] > max(free.get(r, 0), 0)}


def _sum(amounts: Iterable[Mapping[str, int]]) -> ResourceAmounts:
    total: ResourceAmounts = {}
    for each in amounts:
        for resource, amount in each.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _as_written(value: Any) -> str:
    if not isinstance(value, str | int):
        raise BadQuantity(f"{value!r} is not a quantity: write an integer, or a text such as '500m'")
    if parse_nanos(value) < 0:
        raise BadQuantity(f"{str(value)!r} is negative: a quantity here is zero or more")
    return str(value)


Quantity = Annotated[
    str,
    BeforeValidator(_as_written),
    Strict(),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "maxLength": _MAX_TEXT,
            "pattern": _PATTERN,
        }
    ),
]
"""A quantity on the wire, zero or more: a text or an integer comes in, its spelling is kept."""


def _within_int64(amount: Any) -> Any:
    return max(-INT64, min(amount, INT64)) if isinstance(amount, int) else amount


Amount = Annotated[int, BeforeValidator(_within_int64)]
"""An amount as a JSON integer. The API server refuses one beyond int64, so what is larger is told as the largest."""
