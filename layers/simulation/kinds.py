"""The kinds that the server serves, and what it does to each when it is created and changed.

Kubernetes' own kinds are given the defaults and held to the rules that somebody in this world can meet; the custom ones
follow their schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from contracts.base import GROUP, VERSION, Kind
from contracts.kinds import KINDS
from layers.simulation.refusing import Refused, invalid
from layers.simulation.schemas import CustomShape, Problems, shape_of

Json = dict[str, Any]
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
TOLERATED = 300
"""Seconds that a pod by default stays on a node that is not ready."""


@dataclass(frozen=True)
class Served:
    """One kind. ``prepare`` readies a new object, which has its uid already; ``change`` may refuse a changed one."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = True
    generations: bool = True
    unconditional: bool = True
    """Whether it may be replaced without saying which version of it."""
    shape: CustomShape | None = None
    prepare: Callable[[Json], Json] = field(default=lambda new: new)
    change: Callable[[Json, Json], Json] = field(default=lambda new, old: new)

    @property
    def api(self) -> str:
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    def shaped(self, new: Json, old: Json | None, name: str) -> Json:
        """Pruned, with defaults. Raises `Refused` with every field at fault."""
        if self.shape is None:
            return new
        problems = Problems()
        stored = self.shape.stored(new, old, problems)
        if problems.found:
            raise invalid(f"{self.kind}.{GROUP}", name, *problems.found)
        return stored


def served() -> list[Served]:
    """Every kind of this server."""
    return [
        Served("v1", "namespaces", "Namespace", False, generations=False, prepare=_new_namespace),
        Served("v1", "nodes", "Node", False, generations=False, prepare=_new_node),
        Served("v1", "pods", "Pod", prepare=_new_pod, change=_changed_pod),
        Served("v1", "persistentvolumeclaims", "PersistentVolumeClaim", generations=False),
        Served("v1", "persistentvolumes", "PersistentVolume", False, generations=False),
        Served("storage.k8s.io/v1", "csinodes", "CSINode", False, status=False, generations=False),
        Served("apps/v1", "daemonsets", "DaemonSet"),
        Served("batch/v1", "jobs", "Job", prepare=_new_job, change=_changed_job),
        Served("coordination.k8s.io/v1", "leases", "Lease", status=False, generations=False, unconditional=False),
        *(custom(kind) for kind in KINDS),
    ]


def custom(kind: type[Kind]) -> Served:
    """A custom kind of the product's group, as its definition says."""
    return Served(
        f"{GROUP}/{VERSION}",
        kind.PLURAL,
        kind.__name__,
        kind.NAMESPACED,
        unconditional=False,
        shape=_shape(kind),
        prepare=lambda new: {k: v for k, v in new.items() if k != "status"},
    )


@cache
def _shape(kind: type[Kind]) -> CustomShape:
    return shape_of(kind)


def _new_namespace(new: Json) -> Json:
    meta = new["metadata"]
    labels = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    spec = {**(new.get("spec") or {}), "finalizers": ["kubernetes"]}
    return {**new, "metadata": {**meta, "labels": labels}, "spec": spec, "status": {"phase": "Active"}}


def _new_node(new: Json) -> Json:
    """A node is tainted until its controller has seen that it is ready; its status may come with it."""
    spec, status = new.get("spec") or {}, new.get("status") or {}
    taints = list(spec.get("taints") or ())
    if not any(t.get("key") == NOT_READY for t in taints):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})
    if status.get("capacity") and not status.get("allocatable"):
        status = {**status, "allocatable": status["capacity"]}
    return {**new, "spec": {**spec, "taints": taints}, "status": status}


def _pod_spec(spec: Json) -> Json:
    stored = {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
        **{k: v for k, v in spec.items() if v is not None},
    }
    for name in ("containers", "initContainers"):
        if stored.get(name):
            stored[name] = [_container(one) for one in stored[name]]
    return stored


def _container(container: Json) -> Json:
    return {
        "imagePullPolicy": "IfNotPresent",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **container,
    }


def _new_pod(new: Json) -> Json:
    name = new["metadata"]["name"]
    spec = _pod_spec(new.get("spec") or {})
    if not spec.get("containers"):
        raise invalid("Pod", name, ("spec.containers", "Required value"))
    for group in ("containers", "initContainers"):
        if spec.get(group):
            spec[group] = [_with_requests(one) for one in spec[group]]
    tolerations = list(spec.get("tolerations") or ())
    for key in (NOT_READY, UNREACHABLE):
        if not any(_tolerates(t, key) for t in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED}
            )
    spec = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", **spec, "tolerations": tolerations}
    return {**new, "spec": spec, "status": {"phase": "Pending", "qosClass": "BestEffort"}}


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _with_requests(container: Json) -> Json:
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}}}


def _changed_pod(new: Json, old: Json) -> Json:
    """Of a pod's spec hardly anything can be changed."""
    free = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds")
    fixed, was = ({k: v for k, v in one["spec"].items() if k not in free} for one in (new, old))
    if fixed != was:
        raise invalid(
            "Pod", old["metadata"]["name"], ("spec", "Forbidden: pod updates may not change fields other than a few")
        )
    return new


def _new_job(new: Json) -> Json:
    meta, spec = new["metadata"], {k: v for k, v in (new.get("spec") or {}).items() if v is not None}
    name, uid = meta["name"], meta["uid"]
    if "parallelism" not in spec and "completions" not in spec:
        spec["completions"] = 1
    template = spec.get("template") or {}
    pod_spec = _pod_spec(template.get("spec") or {})
    if pod_spec["restartPolicy"] not in ("Never", "OnFailure"):
        words = f'Unsupported value: "{pod_spec["restartPolicy"]}": supported values: "OnFailure", "Never"'
        raise invalid("Job.batch", name, ("spec.template.spec.restartPolicy", words))
    if not pod_spec.get("containers"):
        raise invalid("Job.batch", name, ("spec.template.spec.containers", "Required value"))
    own = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
    labels = {**own, "controller-uid": uid, "job-name": name}
    template_meta = {k: v for k, v in (template.get("metadata") or {}).items() if v not in (None, {}, [])}
    author_labels = template_meta.get("labels")
    template = {
        **template,
        "metadata": {**template_meta, "labels": {**(author_labels or {}), **labels}},
        "spec": pod_spec,
    }
    if author_labels and not meta.get("labels"):
        meta = {**meta, "labels": author_labels}
    spec = {
        "parallelism": 1,
        "backoffLimit": 2**31 - 1 if "backoffLimitPerIndex" in spec else 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": False,
        **spec,
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
        "template": template,
    }
    for number in ("parallelism", "completions", "backoffLimit"):
        if number in spec and (not isinstance(spec[number], int) or spec[number] < 0):
            raise invalid("Job.batch", name, (f"spec.{number}", "Invalid value: must be greater than or equal to 0"))
    if spec["completionMode"] == "Indexed" and "completions" not in spec:
        raise invalid("Job.batch", name, ("spec.completions", "Required value: when completion mode is Indexed"))
    return {**new, "metadata": meta, "spec": spec, "status": {}}


_SCHEDULING = ("nodeSelector", "tolerations", "schedulingGates")


def _changed_job(new: Json, old: Json) -> Json:
    """As 1.36: a template's scheduling part may change while the Job is suspended and nothing of it runs."""
    name, spec, was = old["metadata"]["name"], new["spec"], old["spec"]
    for at in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy"):
        if spec.get(at) != was.get(at):
            raise _immutable(name, at)
    elastic = was["completionMode"] == "Indexed" and spec.get("completions") == spec.get("parallelism")
    if spec.get("completions") != was.get("completions") and not elastic:
        raise _immutable(name, "completions")
    if spec.get("template") is was["template"]:
        return new
    status = old.get("status") or {}
    begun = bool(status.get("startTime"))
    said = any(c.get("type") == "Suspended" and c.get("status") == "True" for c in status.get("conditions") or ())
    open_ = bool(was.get("suspend")) and (not begun or said) and not status.get("active")
    given, template = spec.get("template") or {}, was["template"]
    changed = {**given, "metadata": _without_empty(given.get("metadata")), "spec": _pod_spec(given.get("spec") or {})}
    changed["spec"] = {k: v for k, v in changed["spec"].items() if k not in _SCHEDULING or v}
    if _fixed(changed, open_) != _fixed(template, open_):
        raise _immutable(name, "template")
    return {**new, "spec": {**spec, "template": changed}}


def _fixed(template: Json, open_: bool) -> Json:
    """What may not change of a template."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    if open_:
        meta = {k: v for k, v in meta.items() if k not in ("labels", "annotations")}
        affinity = {k: v for k, v in (spec.get("affinity") or {}).items() if k != "nodeAffinity"}
        spec = {k: v for k, v in spec.items() if k not in (*_SCHEDULING, "affinity")}
        for group in ("containers", "initContainers"):
            if group in spec:
                spec[group] = [{k: v for k, v in one.items() if k != "resources"} for one in spec[group]]
        if affinity:
            spec["affinity"] = affinity
    return {**template, "metadata": meta, "spec": spec}


def _without_empty(piece: Json | None) -> Json:
    return {k: v for k, v in (piece or {}).items() if v not in (None, {}, [])}


def _immutable(name: str, at: str) -> Refused:
    return invalid("Job.batch", name, (f"spec.{at}", "Invalid value: field is immutable"))
