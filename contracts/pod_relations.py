"""What a pod demands of the pods around it: host ports, affinity to and against pods, even spread over a topology.

Parsed once per object, hashable, and complete: whoever holds a `Relations` needs the pod's spec no more. Preferred
terms and ``ScheduleAnyway`` constraints are no demands and are left out. The rules are those of kube-scheduler's
plugins NodePorts, InterPodAffinity and PodTopologySpread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contracts.matching import matches_requirement
from contracts.mirrors import NodeSelectorRequirement, PodSpec

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EVERY_ADDRESS = "0.0.0.0"


@dataclass(frozen=True, order=True)
class HostPort:
    """A port that a pod takes on its node."""

    port: int
    protocol: str = "TCP"
    address: str = EVERY_ADDRESS

    def __str__(self) -> str:
        at = "" if self.address == EVERY_ADDRESS else f"{self.address}:"
        return f"{at}{self.port}/{self.protocol}"


@dataclass(frozen=True)
class Selector:
    """Tests of labels that must all pass. ``requirements`` None matches nothing, an empty tuple everything."""

    requirements: tuple[NodeSelectorRequirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` pass every test."""
        return self.requirements is not None and all(matches_requirement(labels, r) for r in self.requirements)

    @property
    def matches_all(self) -> bool:
        """Whether it tests nothing."""
        return self.requirements == ()


@dataclass(frozen=True)
class Term:
    """Pods, and the label of nodes within whose equal values a pod must, or must not, be beside one of them.

    A namespace counts when it is named or its labels match ``namespace_selector``, which is None for none.
    """

    topology_key: str
    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector | None = None

    def matches(
        self, namespace: str, labels: Mapping[str, str], of_namespaces: Mapping[str, Mapping[str, str]]
    ) -> bool:
        """Whether a pod with ``labels`` is meant; ``of_namespaces``: the labels of each namespace."""
        return self.covers(namespace, of_namespaces) and self.selector.matches(labels)

    def covers(self, namespace: str, of_namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether pods of ``namespace`` may be meant."""
        if namespace in self.namespaces:
            return True
        return self.namespace_selector is not None and self.namespace_selector.matches(of_namespaces.get(namespace, {}))


@dataclass(frozen=True)
class Spread:
    """Over the values of a node label, counts of matching pods may differ by ``max_skew`` at most.

    With fewer values than ``min_domains`` the lowest count is taken to be zero. ``honors_affinity``: nodes that the
    pod's own node selector and affinity rule out do not count; ``honors_taints``: nor do nodes whose taints it does not
    tolerate.
    """

    topology_key: str
    max_skew: int
    selector: Selector
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


@dataclass(frozen=True)
class Relations:
    """All that a pod demands of others on its node and around it."""

    ports: tuple[HostPort, ...] = ()
    affinity: tuple[Term, ...] = ()
    anti_affinity: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ports or self.affinity or self.anti_affinity or self.spread)


NO_RELATIONS = Relations()


def relations_of(spec: PodSpec, namespace: str, labels: Mapping[str, str]) -> Relations:
    """The demands of a pod with ``labels`` in ``namespace``, the same before and after the API server's defaulting.

    The server writes the keys of ``matchLabelKeys`` into the selectors of a pod, not of a template; tests that stand
    twice count once.
    """
    affinity, constraints = spec.affinity, spec.topology_spread_constraints
    ports = host_ports(spec)
    toward = affinity.pod_affinity if affinity else None
    against = affinity.pod_anti_affinity if affinity else None
    if not (ports or toward or against or constraints):
        return NO_RELATIONS
    found = Relations(
        ports,
        tuple(_term(t, namespace, labels) for t in (toward or {}).get(REQUIRED) or ()),
        tuple(_term(t, namespace, labels) for t in (against or {}).get(REQUIRED) or ()),
        tuple(
            _spread(c, labels) for c in constraints if c.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        ),
    )
    return found or NO_RELATIONS


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """The ports of the node that containers and sidecars take; on the host's network that is every port they name."""
    found: set[HostPort] = set()
    sidecars = (c for c in spec.init_containers if c.restart_policy == "Always")
    for container in (*spec.containers, *sidecars):
        for port in container.ports:
            taken = port.host_port or (port.container_port if spec.host_network else 0)
            if taken > 0:
                found.add(HostPort(taken, port.protocol or "TCP", port.host_ip or EVERY_ADDRESS))
    return tuple(sorted(found))


def host_port_of(raw: Mapping[str, Any]) -> HostPort:
    """A port as a container, or a shortfall, writes it."""
    return HostPort(int(raw["hostPort"]), raw.get("protocol") or "TCP", raw.get("hostIP") or EVERY_ADDRESS)


def taken_by(ports: Iterable[HostPort], wanted: Iterable[HostPort]) -> HostPort | None:
    """The first of ``wanted`` that ``ports`` leave no room for: the wildcard stands for every address but ``::``.

    The work is that of reading both once, for a pod may name thousands.
    """
    used: dict[tuple[int, str], set[str]] = {}
    for port in ports:
        used.setdefault((port.port, port.protocol), set()).add(port.address)
    for port in wanted:
        taken = used.get((port.port, port.protocol))
        if taken and (port.address == EVERY_ADDRESS or port.address in taken or EVERY_ADDRESS in taken):
            return port
    return None


def _term(raw: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> Term:
    selector, among = _selector(raw.get("labelSelector")), raw.get("namespaceSelector")
    named = raw.get("namespaces") or ()
    extra = [_test(k, "In", labels[k]) for k in raw.get("matchLabelKeys") or () if k in labels]
    extra += [_test(k, "NotIn", labels[k]) for k in raw.get("mismatchLabelKeys") or () if k in labels]
    return Term(
        raw.get("topologyKey") or "",
        _and(selector, extra),
        frozenset(named) if named or among is not None else frozenset({namespace}),
        _selector(among) if among is not None else None,
    )


def _spread(raw: Mapping[str, Any], labels: Mapping[str, str]) -> Spread:
    extra = [_test(k, "In", labels[k]) for k in raw.get("matchLabelKeys") or () if k in labels]
    return Spread(
        raw.get("topologyKey") or "",
        int(raw.get("maxSkew") or 1),
        _and(_selector(raw.get("labelSelector")), extra),
        int(raw.get("minDomains") or 1),
        (raw.get("nodeAffinityPolicy") or "Honor") == "Honor",
        (raw.get("nodeTaintsPolicy") or "Ignore") == "Honor",
    )


def _selector(raw: Mapping[str, Any] | None) -> Selector:
    if raw is None:
        return Selector(None)
    tests = [_test(key, "In", value) for key, value in (raw.get("matchLabels") or {}).items()]
    tests += [_test(e["key"], e["operator"], *(e.get("values") or ())) for e in raw.get("matchExpressions") or ()]
    return _and(Selector(()), tests)


def _and(selector: Selector, more: Iterable[NodeSelectorRequirement]) -> Selector:
    """Both, each test once and in one order; nothing stays nothing."""
    if selector.requirements is None:
        return selector
    every = {(r.key, r.operator, r.values): r for r in (*selector.requirements, *more)}
    return Selector(tuple(every[key] for key in sorted(every)))


def _test(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key=key, operator=operator, values=tuple(sorted(values)))
