"""Quota that follows nodes, reckoned anew from what the cluster says, without the gate's own sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
Amount = Callable[[object, str], int]
"""A quantity as an integer: thousandths of a core, else whole units."""


def written_out(holder: Json, objects: Mapping[str, Mapping[str, Json]], amount: Amount) -> Json:
    """The ClusterQueue or Cohort with a ``nominalQuota`` where it has ``fromNodes``. ``objects``: by kind and name."""
    groups = [
        {**group, "flavors": [_written(flavor, objects, amount) for flavor in group["flavors"]]}
        for group in holder["spec"].get("resourceGroups") or []
    ]
    return {**holder, "spec": {**holder["spec"], "resourceGroups": groups}}


def _written(flavor: Json, objects: Mapping[str, Mapping[str, Json]], amount: Amount) -> Json:
    says = flavor.get("fromNodes")
    known = objects.get("ResourceFlavor", {}).get(flavor["name"])
    if says is None:
        return flavor
    labels = (known or {}).get("spec", {}).get("nodeLabels") or {}
    resources = []
    for r in flavor["resources"]:
        total = 0
        if known is not None:
            total = _total(r["name"], labels, says.get("pools") == "Limits", objects, amount)
        share = total * says.get("percent", 100) // 100
        resources.append({**r, "nominalQuota": f"{share}m" if r["name"] == "cpu" else str(share)})
    return {**flavor, "resources": resources}


def _total(resource: str, labels: Json, grows: bool, objects: Mapping[str, Mapping[str, Json]], amount: Amount) -> int:
    of_pool: dict[str, int] = {}
    for node in objects.get("Node", {}).values():
        has = node["metadata"].get("labels") or {}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or [])
        if ready and "deletionTimestamp" not in node["metadata"] and _all_in(labels, has):
            n = amount((node["status"].get("allocatable") or {}).get(resource, "0"), resource)
            pool = has.get("trigate.dev/node-pool", "")
            of_pool[pool] = of_pool.get(pool, 0) + n
    for name, pool in objects.get("NodePool", {}).items() if grows else ():
        template, limits = pool["spec"]["template"], pool["spec"].get("limits") or {}
        sure = {
            r["key"]: r["values"][0]
            for r in template["spec"].get("requirements") or []
            if r["operator"] == "In" and len(r["values"]) == 1
        }
        sure |= (template.get("metadata") or {}).get("labels") or {}
        sure["trigate.dev/node-pool"] = name
        if resource in limits and "deletionTimestamp" not in pool["metadata"] and _all_in(labels, sure):
            of_pool[name] = max(of_pool.get(name, 0), amount(limits[resource], resource))
    return sum(of_pool.values())


def _all_in(labels: Json, has: Json) -> bool:
    return all(has.get(key) == value for key, value in labels.items())
