"""Which nodes a member may run on at all, and why not on the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from contracts.matching import (
    matches_node_affinity,
    matches_node_selector,
    matches_term,
    tolerates,
    untolerated_taint,
)
from contracts.reasons import Reason
from layers.gang.snapshot import MemberClass, NodeRow

PREFER_NO_SCHEDULE = "PreferNoSchedule"
"""The effect of a taint that is a wish."""


def obstacle(node: NodeRow, members: MemberClass) -> Reason | None:
    """What keeps every gang's ``members`` off ``node``, whoever they are; None: nothing but holds and room may.

    The cordon is not asked here, for it keeps some gangs off and not others: see `closed`.
    """
    if not node.ready:
        return Reason.NODES_NOT_READY
    if not matches_node_selector(node.labels, members.node_selector):
        return Reason.NODE_SELECTOR_UNMATCHED
    if not matches_node_affinity(node.labels, node.name, members.affinity):
        return Reason.AFFINITY_UNSATISFIABLE
    if untolerated_taint(members.tolerations, node.taints) is not None:
        return Reason.TAINTS_NOT_TOLERATED
    return None


def reluctance(node: NodeRow, members: MemberClass) -> int:
    """How much ``members`` would rather be elsewhere, 0 the least. It says which node is first, never who may.

    The weights of the terms of their preferred node affinity that it does not meet, and one for each taint
    PreferNoSchedule that they do not tolerate.
    """
    missed = sum(p.weight for p in members.preferred if not matches_term(node.labels, node.name, p.preference))
    soft = (t for t in node.taints if t.effect == PREFER_NO_SCHEDULE)
    return missed + sum(1 for t in soft if not any(tolerates(toleration, t) for toleration in members.tolerations))


def read_by(members: MemberClass) -> Callable[[NodeRow], Hashable]:
    """What `obstacle` reads of a node: where it is the same, the obstacle is. So alike nodes are looked at once."""
    terms = members.affinity.node_selector_terms if members.affinity else ()
    keys = tuple({*members.node_selector, *(r.key for term in terms for r in term.match_expressions)})
    named = any(term.match_fields for term in terms)

    def read(node: NodeRow) -> Hashable:
        labels = node.labels
        return node.ready, node.taints, tuple(map(labels.get, keys)), node.name if named else None

    return read


def closed(node: NodeRow, group_uid: str, *, bears_cordons: bool = False, standing: bool = False) -> Reason | None:
    """Whether the node's hold or cordon keeps the gang of ``group_uid`` off; None: it does not.

    A node held for the gang is cordoned for its sake. ``standing``: the gang already has a place there, which the
    provisioner's own cordon before a removal does not break; a person's cordon does.
    """
    if node.held_for == group_uid:
        return None
    if node.held_for is not None:
        return Reason.HELD_FOR_ANOTHER_GANG
    if not node.cordoned or (standing and node.removing):
        return None
    if bears_cordons and not node.removing:
        return None
    return Reason.NODES_NOT_READY


def unusable(node: NodeRow, group_uid: str, *, bears_cordons: bool = False) -> str | None:
    """What keeps the gang from binding a member to ``node`` as it was just read, in words; None: nothing does.

    The provisioner's cordon before a removal does, although the gang has a place there. It asks for holds after it has
    cordoned, this is asked after the hold was written: so one of the two sees the other, and if it was the provisioner,
    the cordon goes again.
    """
    if not node.ready:
        return f"node {node.name} is not ready"
    why = closed(node, group_uid, bears_cordons=bears_cordons)
    return f"node {node.name} is closed to this gang: {why.value}" if why else None
