"""Kubernetes' raw objects, read without any code of the product, not even its grammar of a quantity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

Json = dict[str, Any]
Objects = Mapping[str, list[Json]]
Amounts = Counter[str]

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(text: object) -> Fraction:
    """The value of a quantity.

    >>> quantity("1500m"), quantity("2Gi"), quantity(8), quantity("1e3")
    (Fraction(3, 2), Fraction(2147483648, 1), Fraction(8, 1), Fraction(1000, 1))
    """
    said = str(text)
    number = said.rstrip("numkMGTPEi")
    suffix = said[len(number) :]
    factor = Fraction(2 ** _BINARY[suffix]) if suffix in _BINARY else Fraction(f"1e{_DECIMAL[suffix]}")
    return Fraction(number) * factor


def amount(text: object, resource: str) -> int:
    """The quantity in whole units, of CPU in thousandths; rounded up."""
    value = quantity(text) * (1000 if resource == "cpu" else 1)
    return -(-value.numerator // value.denominator)


def amounts(written: Mapping[str, object] | None) -> Amounts:
    """Every entry as an amount."""
    return Counter({r: amount(text, r) for r, text in (written or {}).items()})


def asked(pod_spec: Json) -> Amounts:
    """What a pod of this spec takes of its node, its slot included."""
    running: Amounts = Counter()
    sidecars: Amounts = Counter()
    peak: Amounts = Counter()
    for container in pod_spec.get("initContainers") or []:
        own = _of_container(container)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            peak |= sidecars
        else:
            peak |= sidecars + own
    for container in pod_spec.get("containers") or []:
        running += _of_container(container)
    return ((running + sidecars) | peak) + amounts(pod_spec.get("overhead")) + Counter({"pods": 1})


def _of_container(container: Json) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def key_of(o: Json) -> str:
    meta = o["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def status(o: Json) -> Json:
    return o.get("status") or {}


def conditions(o: Json) -> Iterable[Json]:
    return status(o).get("conditions") or []


def true(o: Json, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in conditions(o))


def false(o: Json, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "False" for c in conditions(o))


def ending(o: Json) -> bool:
    return bool(o["metadata"].get("deletionTimestamp")) or true(o, "Evicted") or true(o, "Finished")


def blockers(o: Json) -> list[Json]:
    return (status(o).get("verdict") or {}).get("blockers") or []


def is_live(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName")) and phase(pod) not in ("Succeeded", "Failed")


def phase(pod: Json) -> str:
    return str(status(pod).get("phase", ""))


def attempt(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get("trigate.dev/attempt", ""))


def is_of(pod: Json, pod_set: str, workload: Json | None = None) -> bool:
    mine = (pod["metadata"].get("labels") or {}).get("trigate.dev/pod-set", pod_set) == pod_set
    return mine and (workload is None or attempt(pod) == str(status(workload).get("attempt")))


def tolerates(toleration: Json, taint: Json) -> bool:
    effects = toleration.get("effect") in (None, "", taint["effect"])
    keys = toleration.get("key") in (None, "", taint["key"])
    if toleration.get("operator") == "Exists":
        return effects and keys
    return effects and toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")


def compared(about: str, said: Json, truth: Mapping[str, int | tuple[int, int]]) -> Iterator[str]:
    """What is said other than it is; of some fields only the least and the most are known."""
    for field, value in truth.items():
        least, most = value if isinstance(value, tuple) else (value, value)
        if not least <= said.get(field, 0) <= most:
            yield f"{about} says {field} {said.get(field)}: {between(least, most)}"


def between(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"
