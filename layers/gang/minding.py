"""Which members mind other pods, or are minded by them, and what is said of that when capacity is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from contracts.kinds.pod_group import PodClass
from contracts.names import HOSTNAME_LABEL
from contracts.pod_relations import Term
from layers.gang.snapshot import MemberClass, PodRow, PodSetDemand, Snapshot
from layers.gang.volumes import Volumes

Namespaces = Mapping[str, Mapping[str, str]]


def minding(world: Snapshot) -> Snapshot:
    """``world`` with every class of members that others mind marked as one to be placed one by one.

    A gang without demands of its own is one of them when a pod, or a member of another gang, has a required
    anti-affinity that means it. What such a gang lacks is told with what a node must offer it beside resources.
    """
    terms = {term for pod in world.nodes.minders for term in pod.relations.anti_affinity}
    classes = [p.members for gang in world.gangs for p in gang.demand.pod_sets]
    terms.update(term for members in classes for term in members.relations.anti_affinity)
    if not terms and not any(members.related for members in classes):
        return world

    def seen(pod_set: PodSetDemand, siblings: Sequence[PodSetDemand]) -> PodSetDemand:
        members = pod_set.members
        met = {t for t in terms if t.matches(members.namespace, members.labels, world.namespaces)}
        if not met and not members.related:
            return pod_set
        daemons = [pod for pod in world.nodes.pods if pod.daemon and not pod.over]
        wire = _told(pod_set, siblings, met, daemons, world.namespaces)
        unplanned = {*wire.unplanned, *_of_volumes(members.claims, world.volumes)}
        wire = wire.but(unplanned=tuple(sorted(unplanned)))
        return replace(pod_set, members=members.minding(), wire=wire)

    gangs = []
    for gang in world.gangs:
        before = gang.demand.pod_sets
        after = tuple(seen(p, before) for p in before)
        same = all(new is old for new, old in zip(after, before, strict=True))
        gangs.append(gang if same else replace(gang, demand=replace(gang.demand, pod_sets=after)))
    return replace(world, gangs=tuple(gangs))


def _told(
    pod_set: PodSetDemand,
    siblings: Sequence[PodSetDemand],
    met: Collection[Term],
    daemons: Sequence[PodRow],
    namespaces: Namespaces,
) -> PodClass:
    """The class as a shortfall tells it.

    A node that is bought is a new host, so whatever holds among hosts can be planned for. What holds over a wider
    domain cannot, nor can company, nor an even spread: the provisioner does not know who is where.
    """
    relations = pod_set.members.relations
    unplanned = [f"pod affinity over {t.topology_key}" for t in relations.affinity]
    unplanned += [f"topology spread over {s.topology_key}" for s in relations.spread]
    apart: list[str] = []
    for term in relations.anti_affinity:
        if term.topology_key != HOSTNAME_LABEL:
            unplanned.append(f"pod anti-affinity over {term.topology_key}")
        elif any(term.matches(d.namespace, d.labels, namespaces) for d in daemons):
            unplanned.append("pod anti-affinity to pods that run on every node")
    for term in set(met) - set(relations.anti_affinity):
        if term.topology_key != HOSTNAME_LABEL:
            unplanned.append(f"the anti-affinity of other pods over {term.topology_key}")
        elif any(term in d.relations.anti_affinity for d in daemons):
            unplanned.append("the anti-affinity of pods that run on every node")
    for other in siblings:
        if _keep_apart(pod_set.members, other.members, namespaces):
            if all(_is_alone(p, namespaces) for p in (pod_set, other)):
                apart.append(" and ".join(sorted({pod_set.name, other.name})))
            else:
                unplanned.append(f"anti-affinity between members of {pod_set.name} and {other.name}")
    ports = tuple({"hostPort": p.port, "protocol": p.protocol, "hostIP": p.address} for p in relations.ports)
    return pod_set.wire.but(
        host_ports=ports, apart=tuple(sorted(apart)), unplanned=tuple(sorted(dict.fromkeys(unplanned)))
    )


def _of_volumes(keys: Sequence[str], volumes: Volumes) -> Iterator[str]:
    """What of its volumes keeps a pod set from new nodes, or might."""
    for key in keys:
        claim, name = volumes.claim(key), key.rpartition("/")[2]
        if claim.trouble:
            yield f"volume claim {name}: {claim.trouble}"
        elif not claim.everywhere:
            yield f"volume claim {name} that some nodes only can reach"
        elif claim.one_pod or claim.one_node:
            yield f"volume claim {name} that one {'pod' if claim.one_pod else 'node'} only may have"


def _keep_apart(one: MemberClass, other: MemberClass, namespaces: Namespaces) -> bool:
    """Whether a member of each may not share a host."""
    return any(
        term.topology_key == HOSTNAME_LABEL and term.matches(whom.namespace, whom.labels, namespaces)
        for who, whom in ((one, other), (other, one))
        for term in who.relations.anti_affinity
    )


def _is_alone(pod_set: PodSetDemand, namespaces: Namespaces) -> bool:
    """Whether no two members of the pod set share a host anyway."""
    return pod_set.count == 1 or _keep_apart(pod_set.members, pod_set.members, namespaces)
