"""Who is on which node, as far as pods mind one another: what a member meets on a node, counted as members are placed.

The rules are those of kube-scheduler's plugins NodePorts, InterPodAffinity, PodTopologySpread and those of volumes
(`layers.gang.volumes`), asked member by member: what is decided for a gang here, kube-scheduler would have decided for
its pods one after another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from contracts.matching import matches_node_affinity, matches_node_selector, untolerated_taint
from contracts.pod_relations import HostPort, Spread, Term, taken_by
from layers.gang.columns import NodeColumns
from layers.gang.snapshot import CORDON, MemberClass, NodeRow, PodRow
from layers.gang.volumes import Disk, Volumes

Labels = Mapping[str, str]
Pair = tuple[str, str]
"""A node label: key and value."""


class Clash(StrEnum):
    """What about other pods keeps a member off a node."""

    VOLUME = "Volume"
    HOST_PORT = "HostPort"
    ANTI_AFFINITY = "PodAntiAffinity"
    ANTI_AFFINITY_OF_OTHERS = "PodAntiAffinityOfOthers"
    SPREAD = "TopologySpread"
    AFFINITY = "PodAffinity"

    @property
    def lasts(self) -> bool:
        """Whether no further member that is placed can end it."""
        return self not in (Clash.SPREAD, Clash.AFFINITY)


class Domains:
    """How many matching pods each domain of a spread constraint has; knows the lowest count without a search."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self._levels = Counter(self.counts.values())
        self._lowest = min(self._levels, default=0)

    def copy(self) -> Domains:
        return Domains(self.counts)

    @property
    def lowest(self) -> int:
        return self._lowest

    def add(self, domain: str, count: int) -> None:
        """Count so many more, not fewer."""
        before = self.counts.get(domain)
        if before is not None:
            self._levels[before] -= 1
        self.counts[domain] = (before or 0) + count
        self._levels[self.counts[domain]] += 1
        if before is None:
            self._lowest = min(self._levels_present(), default=0)
        while self._levels and not self._levels[self._lowest]:
            self._lowest += 1

    def _levels_present(self) -> Iterable[int]:
        return (level for level, domains in self._levels.items() if domains)


@dataclass
class Tallies:
    """What members of one class meet: by node, by node label, by domain."""

    ports: dict[int, set[HostPort]]
    shut: Counter[Pair]
    """Node labels whose nodes are closed by the anti-affinity of others, by how many."""
    against: list[Counter[str]]
    """By own anti-affinity term: values of its topology key that have a pod it means."""
    toward: list[Counter[str]]
    """By own affinity term: values of its topology key that have a pod which all own terms mean."""
    spread: list[Domains]
    counts_itself: tuple[bool, ...]
    """By spread constraint: whether a member is one of the pods that it means."""
    users: dict[str, Counter[int]]
    """By volume claim of its own: how many pods use it on which node."""
    disks: dict[int, set[Disk]]
    """By node: what is attached, as far as its number is limited there."""

    def copy(self) -> Tallies:
        return Tallies(
            {i: set(ports) for i, ports in self.ports.items()},
            self.shut.copy(),
            [c.copy() for c in self.against],
            [c.copy() for c in self.toward],
            [d.copy() for d in self.spread],
            self.counts_itself,
            {claim: users.copy() for claim, users in self.users.items()},
            {i: set(disks) for i, disks in self.disks.items()},
        )


@dataclass(frozen=True)
class Meeting:
    """How a newcomer of one class counts for members of another."""

    ports: tuple[HostPort, ...]
    shuts: tuple[str, ...]
    """Topology keys of the newcomer's anti-affinity terms that mean the members."""
    against: tuple[bool, ...]
    toward: bool
    spread: tuple[bool, ...]
    claims: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.claims or self.ports or self.shuts or any(self.against) or self.toward or any(self.spread))


class Neighbours:
    """The pods that are bound and the empty slots that gangs hold, for classes that mind them."""

    def __init__(
        self,
        columns: NodeColumns,
        namespaces: Mapping[str, Labels],
        volumes: Volumes | None = None,
        without: Iterable[str] = (),
    ) -> None:
        """``namespaces``: the labels of each. The pods of jobs ``without`` do not count."""
        self.nodes: Sequence[NodeRow] = columns.rows
        self.namespaces = namespaces
        self.volumes = volumes or Volumes()
        self._pods, self._index = columns.pods, columns.index
        self._without, self._never = frozenset(without), frozenset[str]()
        self._by_namespace: dict[str, list[PodRow]] | None = None
        self._held: dict[str, list[tuple[int, MemberClass, int]]] = {}
        self._of_pods: dict[MemberClass, Tallies] = {}
        self._counted_on: dict[MemberClass, list[list[bool]]] = {}

    def hold(self, owner: str, slots: Iterable[tuple[int, MemberClass, int]]) -> None:
        """``owner`` has these empty slots: node's position, class, how many."""
        self._held[owner] = list(slots)

    def release(self, owner: str) -> None:
        self._held.pop(owner, None)

    @contextmanager
    def gone(self, jobs: Collection[str], owners: Collection[str]) -> Iterator[None]:
        """Within it, the pods of these jobs and the empty slots of these owners are not there."""
        never, of_pods = self._never, self._of_pods
        held = {owner: slots for owner, slots in self._held.items() if owner in owners}
        self._never, self._of_pods = never | frozenset(jobs), {}
        for owner in held:
            del self._held[owner]
        try:
            yield
        finally:
            self._never, self._of_pods = never, of_pods
            self._held |= held

    def clash(self, i: int, members: MemberClass, seen: Tallies) -> Clash | None:
        """What keeps one more member off node ``i``; None: nothing about other pods does."""
        relations, labels = members.relations, self.nodes[i].labels
        if members.claims and not self._has_volumes(i, members, seen):
            return Clash.VOLUME
        if relations.ports and i in seen.ports and taken_by(seen.ports[i], relations.ports):
            return Clash.HOST_PORT
        for anti, met in zip(relations.anti_affinity, seen.against, strict=True):
            value = labels.get(anti.topology_key)
            if value is not None and met[value]:
                return Clash.ANTI_AFFINITY
        if seen.shut and any(seen.shut[pair] for pair in labels.items()):
            return Clash.ANTI_AFFINITY_OF_OTHERS
        if relations.spread and not self._keeps_skew(i, members, seen):
            return Clash.SPREAD
        if relations.affinity and not self._is_beside(i, members, seen):
            return Clash.AFFINITY
        return None

    def _has_volumes(self, i: int, members: MemberClass, seen: Tallies) -> bool:
        node = self.nodes[i]
        for key in members.claims:
            claim, users = self.volumes.claim(key), seen.users[key]
            if claim.trouble or not claim.reaches(node.labels, node.name):
                return False
            if (claim.one_pod and users) or (claim.one_node and any(on != i for on in users)):
                return False
        return not self.volumes.beyond_limit(node.name, seen.disks.get(i, ()), members.claims)

    def _keeps_skew(self, i: int, members: MemberClass, seen: Tallies) -> bool:
        labels = self.nodes[i].labels
        for constraint, domains, more in zip(members.relations.spread, seen.spread, seen.counts_itself, strict=True):
            domain = labels.get(constraint.topology_key)
            if domain is None:
                return False
            lowest = domains.lowest if len(domains.counts) >= constraint.min_domains else 0
            if domains.counts.get(domain, 0) + more - lowest > constraint.max_skew:
                return False
        return True

    def _is_beside(self, i: int, members: MemberClass, seen: Tallies) -> bool:
        labels, terms = self.nodes[i].labels, members.relations.affinity
        values = [labels.get(term.topology_key) for term in terms]
        if any(value is None for value in values):
            return False
        if all(met[value or ""] for value, met in zip(values, seen.toward, strict=True)):
            return True
        # The first of a series that has an affinity to itself may go anywhere.
        first = not any(met.total() for met in seen.toward)
        return first and all(self._means(term, members.namespace, members.labels) for term in terms)

    def tallies(self, members: MemberClass) -> Tallies:
        """What members of the class meet now, as a value of the caller's own."""
        base = self._of_pods.get(members)
        if base is None:
            base = self._of_pods[members] = self._counted(members)
        seen = base.copy()
        for slots in self._held.values():
            met: dict[int, Meeting] = {}
            for i, others, count in slots:
                if id(others) not in met:
                    met[id(others)] = self.meeting(others, members)
                self.add(i, met[id(others)], members, seen, count)
        return seen

    def meeting(self, newcomer: MemberClass, members: MemberClass) -> Meeting:
        """How one of ``newcomer`` counts for ``members``."""
        return self._meeting(
            newcomer.namespace,
            newcomer.labels,
            newcomer.relations.ports,
            newcomer.relations.anti_affinity,
            newcomer.claims,
            members,
            terminating=False,
        )

    def _meeting(
        self,
        namespace: str,
        labels: Labels,
        ports: tuple[HostPort, ...],
        anti_affinity: tuple[Term, ...],
        claims: tuple[str, ...],
        members: MemberClass,
        *,
        terminating: bool,
    ) -> Meeting:
        relations = members.relations
        return Meeting(
            ports if relations.ports else (),
            tuple(t.topology_key for t in anti_affinity if self._means(t, members.namespace, members.labels)),
            tuple(self._means(t, namespace, labels) for t in relations.anti_affinity),
            bool(relations.affinity) and all(self._means(t, namespace, labels) for t in relations.affinity),
            tuple(
                # A selector that tests nothing counts nothing: so kube-scheduler has it.
                not terminating
                and namespace == members.namespace
                and not s.selector.matches_all
                and s.selector.matches(labels)
                for s in relations.spread
            ),
            claims if members.claims else (),
        )

    def _means(self, term: Term, namespace: str, labels: Labels) -> bool:
        return term.matches(namespace, labels, self.namespaces)

    def add(self, i: int, meeting: Meeting, members: MemberClass, seen: Tallies, count: int = 1) -> None:
        """Count ``count`` such newcomers on node ``i`` for ``members``."""
        if not meeting:
            return
        labels = self.nodes[i].labels
        if meeting.ports:
            seen.ports.setdefault(i, set()).update(meeting.ports)
        for key in meeting.shuts:
            if key in labels:
                seen.shut[key, labels[key]] += count
        for term, means, met in zip(members.relations.anti_affinity, meeting.against, seen.against, strict=True):
            if means and term.topology_key in labels:
                met[labels[term.topology_key]] += count
        if meeting.toward:
            for term, met in zip(members.relations.affinity, seen.toward, strict=True):
                if term.topology_key in labels:
                    met[labels[term.topology_key]] += count
        for claim in meeting.claims:
            if claim in seen.users:
                seen.users[claim][i] += count
        if meeting.claims and self.nodes[i].name in self.volumes.limits:
            seen.disks.setdefault(i, set()).update(self.volumes.disks(meeting.claims))
        if any(meeting.spread):
            counted = self._counts_on(members)
            for k, constraint in enumerate(members.relations.spread):
                if meeting.spread[k] and counted[k][i]:
                    seen.spread[k].add(labels[constraint.topology_key], count)

    def _counted(self, members: MemberClass) -> Tallies:
        relations = members.relations
        counted = self._counts_on(members)
        seen = Tallies(
            {},
            Counter(),
            [Counter() for _ in relations.anti_affinity],
            [Counter() for _ in relations.affinity],
            [
                Domains(dict.fromkeys((n.labels[s.topology_key] for n, c in zip(self.nodes, on, strict=True) if c), 0))
                for s, on in zip(relations.spread, counted, strict=True)
            ],
            tuple(s.selector.matches(members.labels) for s in relations.spread),
            {claim: Counter() for claim in members.claims},
            {},
        )
        for pod in self._concerning(members):
            i = self._index.get(pod.node)
            if i is not None:
                met = self._meeting(
                    pod.namespace,
                    pod.labels,
                    pod.relations.ports,
                    pod.relations.anti_affinity,
                    pod.claims,
                    members,
                    terminating=pod.terminating,
                )
                self.add(i, met, members, seen)
        return seen

    def _concerning(self, members: MemberClass) -> Iterable[PodRow]:
        """The pods that may count for the class: of namespaces that it minds, and those that mind or take ports."""
        if self._by_namespace is None:
            found: dict[str, list[PodRow]] = defaultdict(list)
            for pod in self._pods:
                if pod.node and not pod.over and not (pod.job_uid and pod.job_uid in self._without):
                    found[pod.namespace].append(pod)
            self._by_namespace = dict(found)
        relations = members.relations
        terms = (*relations.affinity, *relations.anti_affinity)
        for namespace, pods in self._by_namespace.items():
            every = (bool(relations.spread) and namespace == members.namespace) or any(
                t.covers(namespace, self.namespaces) for t in terms
            )
            for pod in pods:
                if (every or pod.relations or (members.claims and pod.claims)) and not (
                    pod.job_uid and pod.job_uid in self._never
                ):
                    yield pod

    def _counts_on(self, members: MemberClass) -> list[list[bool]]:
        """By spread constraint and node: whether pods on the node count."""
        found = self._counted_on.get(members)
        if found is None:
            keys = [s.topology_key for s in members.relations.spread]
            found = self._counted_on[members] = [
                [all(k in n.labels for k in keys) and _included(n, s, members) for n in self.nodes]
                for s in members.relations.spread
            ]
        return found


def _included(node: NodeRow, constraint: Spread, members: MemberClass) -> bool:
    if constraint.honors_affinity and not (
        matches_node_selector(node.labels, members.node_selector)
        and matches_node_affinity(node.labels, node.name, members.affinity)
    ):
        return False
    taints = (*node.taints, CORDON) if node.cordoned else node.taints
    return not constraint.honors_taints or untolerated_taint(members.tolerations, taints) is None


class Trial:
    """Members of one gang, placed one after another in thought, each seen by those that follow."""

    def __init__(self, neighbours: Neighbours, classes: Iterable[MemberClass]) -> None:
        self._neighbours = neighbours
        self._classes = list(dict.fromkeys(classes))
        self._seen = {c: neighbours.tallies(c) for c in self._classes if c.related}
        self._meetings = {
            newcomer: [(c, neighbours.meeting(newcomer, c)) for c in self._seen] for newcomer in self._classes
        }

    def clash(self, i: int, members: MemberClass) -> Clash | None:
        """What keeps one more member off node ``i``; None: nothing about other pods does."""
        return self._neighbours.clash(i, members, self._seen[members]) if members.related else None

    def place(self, i: int, members: MemberClass, count: int = 1) -> None:
        for others, meeting in self._meetings[members]:
            self._neighbours.add(i, meeting, others, self._seen[others], count)

    def count(self, i: int, members: MemberClass, k: int) -> int:
        """How many pods the domain of node ``i`` has by the class's ``k``-th spread constraint."""
        key = members.relations.spread[k].topology_key
        return self._seen[members].spread[k].counts.get(self._neighbours.nodes[i].labels.get(key, ""), 0)

    def has_companions(self, members: MemberClass) -> bool:
        """Whether some pod is there that the class's affinity means."""
        return any(met.total() for met in self._seen[members].toward)
