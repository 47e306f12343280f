"""The accountant's own reckoning of quota that follows nodes, and the gate's, of the same cluster."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from contracts.kinds import ClusterQueue, NodePool, ResourceFlavor
from contracts.mirrors import Node
from contracts.names import GPU
from e2e.following import written_out
from e2e.reading import Json, amount
from layers.queue.from_nodes import supplies
from layers.queue.quota_objects import nominal_quotas

LABELS = st.fixed_dictionaries({}, optional={"gpu": st.sampled_from(["a", "b"]), "zone": st.sampled_from(["x", "y"])})
FLAVOR: Json = {"metadata": {"name": "any"}, "spec": {"nodeLabels": {"gpu": "a"}}}


@st.composite
def nodes(draw: st.DrawFn) -> list[Json]:
    found = []
    for i in range(draw(st.integers(0, 4))):
        labels = draw(LABELS) | draw(st.sampled_from([{}, {"trigate.dev/node-pool": "p0"}]))
        meta = {"name": f"n{i}", "labels": labels}
        meta |= draw(st.sampled_from([{}, {}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}]))
        ready = draw(st.sampled_from(["True", "False", "Unknown"]))
        allocatable = {GPU: str(draw(st.integers(0, 8))), "cpu": f"{draw(st.integers(0, 9000))}m"}
        status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]}
        found.append({"metadata": meta, "status": status})
    return found


@st.composite
def pools(draw: st.DrawFn) -> list[Json]:
    found = []
    for i in range(draw(st.integers(0, 2))):
        values = draw(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2, unique=True))
        required = {"key": "gpu", "operator": draw(st.sampled_from(["In", "NotIn"])), "values": values}
        spec = {
            "nodeClassRef": {"kind": "KwokNodeClass", "name": "c"},
            "requirements": draw(st.sampled_from([[], [required]])),
        }
        template = {"metadata": {"labels": draw(LABELS)}, "spec": spec}
        limits = draw(
            st.fixed_dictionaries(
                {}, optional={GPU: st.integers(0, 32).map(str), "nodes": st.just("2"), "cpu": st.just("8")}
            )
        )
        found.append({"metadata": {"name": f"p{i}"}, "spec": {"template": template, "limits": limits}})
    return found


@given(nodes(), pools(), st.integers(1, 100), st.sampled_from(["Live", "Limits"]))
def test_both_say_the_same_of_any_cluster(nodes: list[Json], pools: list[Json], percent: int, grows: str) -> None:
    flavor = {
        "name": "any",
        "fromNodes": {"percent": percent, "pools": grows},
        "resources": [{"name": GPU}, {"name": "cpu"}],
    }
    spec = {"resourceGroups": [{"coveredResources": [GPU, "cpu"], "flavors": [flavor]}]}
    queue: Json = {"metadata": {"name": "red"}, "spec": spec}
    objects = {"Node": nodes, "NodePool": pools, "ResourceFlavor": [FLAVOR]}

    by_name = {kind: {o["metadata"]["name"]: o for o in found} for kind, found in objects.items()}
    written = written_out(queue, by_name, amount)["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    supply = supplies(
        ["any"],
        {"any": ResourceFlavor.model_validate(FLAVOR)},
        [msgspec.convert(n, Node) for n in nodes],
        [NodePool.model_validate(p) for p in pools],
    )
    derived = nominal_quotas(ClusterQueue.model_validate(queue).spec.resource_groups, supply)

    assert derived == {("any", r["name"]): amount(r["nominalQuota"], r["name"]) for r in written}
