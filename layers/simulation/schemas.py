"""What the API server does to a custom resource by its structural schema: prune, default, validate.

The schema is compiled once into nested functions. Rules in CEL are few; each that a kind has is written here as a
function, and a kind with a rule that is not here cannot be served.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any

from contracts.base import Kind
from contracts.crds import schema_of
from contracts.durations import seconds
from contracts.quantities import BadQuantity, parse_quantity

Json = dict[str, Any]
REMEMBERED = 1024
"""Texts of which it is remembered whether they match a pattern, for each pattern: most come again and again."""
_ABSENT: Any = object()
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.IGNORECASE)


class UnknownRule(LookupError):
    """A CRD has a CEL rule that the server in memory would not check: it rather does not start."""


@dataclass
class Problems:
    """What is wrong, each with the path of its field."""

    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        self.found.append((path, message))


Shape = Callable[[Any, Any, str, Problems], Any]
"""value, the value before, path, problems → the value as it is stored."""


@dataclass(frozen=True)
class CustomShape:
    """A kind's top-level fields (``spec``, ``status``, …), each with what is done to it."""

    parts: dict[str, Shape]
    required: tuple[str, ...]
    defaults: Json
    checks: tuple[Check, ...] = ()
    """Rules about the whole object."""

    def stored(self, value: Json, before: Json | None, problems: Problems) -> Json:
        """``value`` pruned and with defaults; what is the same object as in ``before`` was looked at already."""
        known = before or {}
        stored: Json = {}
        for name, one in value.items():
            shape = self.parts.get(name)
            if name in ("apiVersion", "kind", "metadata") or (shape and one is known.get(name, _ABSENT)):
                stored[name] = one
            elif shape is not None and one is not None:
                stored[name] = shape(one, known.get(name, _ABSENT), name, problems)
        for name, default in self.defaults.items():
            stored.setdefault(name, default)
        for name in self.required:
            if name not in stored:
                problems.add(name, "Required value")
        if not problems.found:
            for message in filter(None, (check(stored, before or _ABSENT) for check in self.checks)):
                problems.add("<nil>", message)
        return stored


def shape_of(kind: type[Kind]) -> CustomShape:
    """The shape of a custom resource. Raises `UnknownRule` for a CEL rule without a function here."""
    schema = schema_of(kind)
    own = {k: v for k, v in schema["properties"].items() if k not in ("apiVersion", "kind", "metadata")}
    return CustomShape(
        {name: _shape(part) for name, part in own.items()},
        tuple(name for name in schema.get("required", ()) if name in own),
        {name: part["default"] for name, part in own.items() if "default" in part},
        tuple(_rule(rule["rule"], rule["message"]) for rule in schema.get("x-kubernetes-validations", ())),
    )


def _shape(schema: Json) -> Shape:
    kind = schema.get("type")
    checks = _checks(schema)
    if schema.get("x-kubernetes-int-or-string"):
        inner: Shape = _int_or_string
    elif kind == "object":
        inner = _object(schema)
    elif kind == "array":
        inner = _array(schema)
    else:
        inner = _scalar(kind)
    if not checks:
        return inner

    def checked(value: Any, before: Any, path: str, problems: Problems) -> Any:
        count = len(problems.found)
        stored = inner(value, before, path, problems)
        if len(problems.found) == count:
            for check in checks:
                message = check(stored, before)
                if message:
                    problems.add(path, message)
        return stored

    return checked


def _object(schema: Json) -> Shape:
    properties: Json = schema.get("properties", {})
    shapes = {name: _shape(part) for name, part in properties.items()}
    defaults = {name: part["default"] for name, part in properties.items() if "default" in part}
    nullable = {name for name, part in properties.items() if part.get("nullable")}
    required = tuple(schema.get("required", ()))
    values = _shape(schema["additionalProperties"]) if isinstance(schema.get("additionalProperties"), dict) else None
    keeps_unknown = bool(schema.get("x-kubernetes-preserve-unknown-fields"))

    def shaped(value: Any, before: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, dict):
            problems.add(path, f'Invalid value: "{_type_of(value)}": must be of type object')
            return value
        stored: Json = {}
        old = before if isinstance(before, dict) else {}
        for name, one in value.items():
            shape = shapes.get(name, values)
            if one is None and name in shapes and name not in nullable:
                continue
            if shape is not None:
                stored[name] = shape(one, old.get(name, _ABSENT), f"{path}.{name}", problems)
            elif keeps_unknown:
                stored[name] = one
        for name, default in defaults.items():
            if name not in stored:
                stored[name] = default
        for name in required:
            if name not in stored:
                problems.add(f"{path}.{name}", "Required value")
        return stored

    return shaped


def _array(schema: Json) -> Shape:
    shape = _shape(schema["items"])
    kind = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys", ())

    def shaped(value: Any, before: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, list):
            problems.add(path, f'Invalid value: "{_type_of(value)}": must be of type array')
            return value
        stored = [shape(one, _ABSENT, f"{path}[{at}]", problems) for at, one in enumerate(value)]
        if kind in ("map", "set"):
            names = [
                tuple(one.get(k) for k in keys) if kind == "map" and isinstance(one, dict) else one for one in stored
            ]
            for at, name in enumerate(names):
                if name in names[:at]:
                    problems.add(f"{path}[{at}]", f"Duplicate value: {name}")
        return stored

    return shaped


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def _scalar(kind: str | None) -> Shape:
    if kind is None:
        return lambda value, before, path, problems: value
    types = _TYPES[kind]

    def shaped(value: Any, before: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "boolean"):
            problems.add(path, f'Invalid value: "{_type_of(value)}": must be of type {kind}')
        return value

    return shaped


def _int_or_string(value: Any, before: Any, path: str, problems: Problems) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        problems.add(path, f'Invalid value: "{_type_of(value)}": must be of type integer or string')
    return value


Check = Callable[[Any, Any], str | None]
_NUMBER = (int, float)
_BOUNDS: tuple[tuple[str, type | tuple[type, ...], Callable[[Any], Any], Callable[[Any, Any], bool], str], ...] = (
    ("maxLength", str, len, gt, "may not be longer than"),
    ("minLength", str, len, lt, "may not be shorter than"),
    ("maxItems", list, len, gt, "must have no more items than"),
    ("minItems", list, len, lt, "must have no fewer items than"),
    ("maxProperties", dict, len, gt, "must have no more properties than"),
    ("minProperties", dict, len, lt, "must have no fewer properties than"),
    ("maximum", _NUMBER, float, gt, "should be less than or equal to"),
    ("minimum", _NUMBER, float, lt, "should be greater than or equal to"),
    ("exclusiveMaximum", _NUMBER, float, ge, "should be less than"),
    ("exclusiveMinimum", _NUMBER, float, le, "should be greater than"),
)
"""Keyword, the values that it is about, what it measures, when that is refused, and the words."""


def _checks(schema: Json) -> list[Check]:
    """The bounds and rules of one place, each answering what is wrong or None."""
    found: list[Check] = []
    for keyword, kind, measure, refuses, words in _BOUNDS:
        limit = schema.get(keyword)
        if limit is True:  # draft 4: the bound itself stands beside
            limit = schema[keyword.removeprefix("exclusive").lower()]
        if limit is not None and limit is not False:
            found.append(_bound(kind, measure, refuses, limit, f"Invalid value: {words} {limit}"))
    if "enum" in schema:
        known = schema["enum"]
        listed = ", ".join(f'"{word}"' for word in known)
        found.append(lambda v, _: None if v in known else f'Unsupported value: "{v}": supported values: {listed}')
    if "pattern" in schema:
        found.append(
            _matching(
                lru_cache(REMEMBERED)(re.compile(schema["pattern"]).search), f"should match '{schema['pattern']}'"
            )
        )
    if schema.get("format") == "date-time":
        found.append(_matching(_DATE.fullmatch, "must be of type date-time"))
    for rule in schema.get("x-kubernetes-validations", ()):
        found.append(_rule(rule["rule"], rule["message"]))
    return found


def _bound(
    kind: type | tuple[type, ...],
    measure: Callable[[Any], Any],
    refuses: Callable[[Any, Any], bool],
    limit: float,
    words: str,
) -> Check:
    return lambda v, _: words if isinstance(v, kind) and refuses(measure(v), limit) else None


def _matching(matches: Callable[[str], object], words: str) -> Check:
    return lambda v, _: None if not isinstance(v, str) or matches(v) else f"Invalid value: {words}"


def _is_quantity_of_zero_or_more(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and parse_quantity(value) >= 0
    except (BadQuantity, ValueError, TypeError):
        return False


def _is_one(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and parse_quantity(value) == 1
    except (BadQuantity, ValueError, TypeError):
        return False


def _quotas(spec: Json) -> list[Json]:
    return [r for g in spec.get("resourceGroups", ()) for f in g["flavors"] for r in f["resources"]]


def _limits_below(name: str) -> Callable[[Any, Any], bool]:
    """Limits only where the field that names the cohort is set."""
    return lambda spec, _: (
        name in spec
        or not any(limit in quota for quota in _quotas(spec) for limit in ("borrowingLimit", "lendingLimit"))
    )


def _lends_what_it_has(spec: Any, _: Any) -> bool:
    return all(
        parse_quantity(quota["lendingLimit"]) <= parse_quantity(quota["nominalQuota"])
        for quota in _quotas(spec)
        if "lendingLimit" in quota and "nominalQuota" in quota
    )


def _has_nominal_or_follows_nodes(flavor: Any, _: Any) -> bool:
    return all(("nominalQuota" in quota) != ("fromNodes" in flavor) for quota in flavor["resources"])


_EVERY_QUOTA = "self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(q, {0})))"
_NO_LIMITS = _EVERY_QUOTA.format("!has(q.borrowingLimit) && !has(q.lendingLimit)")
_LENDS = (
    "!has(q.lendingLimit) || !has(q.nominalQuota) || "
    "quantity(string(q.lendingLimit)).compareTo(quantity(string(q.nominalQuota))) <= 0"
)
_ONE_QUANTITY = "type({0}) == int ? {0} >= 0 : isQuantity({0}) && quantity({0}).compareTo(quantity('0')) >= 0"
_RULES: dict[str, Callable[[Any, Any], bool]] = {
    "has(self.fromNodes) ? self.resources.all(r, !has(r.nominalQuota)) : self.resources.all(r, has(r.nominalQuota))": (
        _has_nominal_or_follows_nodes
    ),
    "self == oldSelf": lambda value, before: before is _ABSENT or value == before,
    _ONE_QUANTITY.format("self"): lambda value, _: _is_quantity_of_zero_or_more(value),
    f"self.all(k, {_ONE_QUANTITY.format('self[k]')})": lambda value, _: all(
        _is_quantity_of_zero_or_more(one) for one in value.values()
    ),
    "self.all(g, g.coveredResources.all(r, self.filter(h, r in h.coveredResources).size() == 1))": lambda value, _: all(
        times == 1 for times in Counter(r for group in value for r in set(group["coveredResources"])).values()
    ),
    f"has(self.cohortName) || !has(self.resourceGroups) || {_NO_LIMITS}": _limits_below("cohortName"),
    f"has(self.parentName) || !has(self.resourceGroups) || {_NO_LIMITS}": _limits_below("parentName"),
    f"!has(self.resourceGroups) || {_EVERY_QUOTA.format(_LENDS)}": _lends_what_it_has,
    "!has(self.queueingStrategy) || self.queueingStrategy == 'BoundedOvertaking' || !has(self.reservationAfter)": (
        lambda value, _: (
            value.get("queueingStrategy", "BoundedOvertaking") == "BoundedOvertaking" or "reservationAfter" not in value
        )
    ),
    "!has(self.fairSharing) || !has(self.preemption) || !has(self.preemption.borrowWithinCohort) || "
    "!has(self.preemption.borrowWithinCohort.policy) || self.preemption.borrowWithinCohort.policy == 'Never'": (
        lambda value, _: (
            "fairSharing" not in value
            or value.get("preemption", {}).get("borrowWithinCohort", {}).get("policy", "Never") == "Never"
        )
    ),
    "duration(self) > duration('0s')": lambda value, _: seconds(value) > 0,
    "duration(self) >= duration('1s')": lambda value, _: seconds(value) >= 1,
    "duration(has(self.usageSamplingInterval) ? self.usageSamplingInterval : '5m') <= "
    "duration(has(self.usageHalfLifeTime) ? self.usageHalfLifeTime : '168h')": lambda value, _: (
        seconds(value.get("usageSamplingInterval", "5m")) <= seconds(value.get("usageHalfLifeTime", "168h"))
    ),
    "!has(self.maxPriorityThreshold) || (has(self.policy) && self.policy != 'Never')": lambda value, _: (
        "maxPriorityThreshold" not in value or value.get("policy", "Never") != "Never"
    ),
    "!has(self.spec) || !has(self.spec.parentName) || self.spec.parentName != self.metadata.name": lambda value, _: (
        (value.get("spec") or {}).get("parentName") != value["metadata"]["name"]
    ),
}


def _rule(rule: str, message: str) -> Check:
    holds = _RULES.get(" ".join(rule.split()))
    if holds is None:
        raise UnknownRule(f"this rule has no function here: {rule}")
    return lambda value, before: None if holds(value, before) else f"Invalid value: {message}"


def _type_of(value: Any) -> str:
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")
