"""The product's admission policies (`deploy/admission`) in Python, under their own names, one function each.

A test asks both the real server and this one the same questions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from contracts.names import (
    ASKED_PARALLELISM_ANNOTATION,
    ATTEMPT_LABEL,
    DEFAULT_QUEUE,
    ENFORCE_ALSO_ANNOTATION,
    ENFORCE_EXCEPT_ANNOTATION,
    ENFORCE_LABEL,
    POD_SET_LABEL,
    QUEUE_LABEL,
    SCHEDULER_NAME,
    SYSTEM_NAMESPACE,
    WORKLOAD_FINALIZER,
    WORKLOAD_LABEL,
    service_account,
)
from contracts.quantities import parse_quantity
from layers.simulation.refusing import Refused, denied

Json = dict[str, Any]
MOST_PODS = 100_000
"""Pods of one gang."""
OWN_LABELS = (WORKLOAD_LABEL, POD_SET_LABEL, ATTEMPT_LABEL)
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
DAEMON_SET_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
GARBAGE_COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
NAMESPACE_CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"
_COLLECTORS = (GARBAGE_COLLECTOR, NAMESPACE_CONTROLLER, CONTROLLER_MANAGER)

_AUTHORS = {
    "workloads": "queue",
    "clusterqueues": "queue",
    "localqueues": "queue",
    "cohorts": "queue",
    "podgroups": "gang",
    "capacityrequests": "provisioning",
    "nodeclaims": "provisioning",
    "nodepools": "provisioning",
}
_BUILT_IN = ("pods", "nodes", "jobs", "namespaces", "leases")
_GATES = ("queue", "gang", "provisioning")


@dataclass(frozen=True)
class Attempt:
    """A write that wants in. ``new`` is None for DELETE, ``old`` for CREATE; of a binding ``new`` is the Binding."""

    operation: Literal["CREATE", "UPDATE", "DELETE"]
    plural: str
    subresource: str
    user: str
    name: str
    new: Json | None
    old: Json | None
    field_manager: str = ""

    @property
    def is_new(self) -> bool:
        return self.operation == "CREATE"


class Parameters(Protocol):
    """What policies read besides the write: the objects as they are stored."""

    def get(self, plural: str, name: str, namespace: str | None = None) -> Json | None: ...


_Said = Iterator[tuple[str, int]]


def mutated(attempt: Attempt, parameters: Parameters) -> Json:
    """trigate-jobs-are-held and trigate-jobs-get-the-default-queue.

    A new Job with a queue label is suspended and has our scheduler; in an enforced namespace that has a default queue,
    so is one without.
    """
    new = attempt.new or {}
    if not (attempt.is_new and attempt.plural == "jobs" and not attempt.subresource):
        return new
    meta, spec = new["metadata"], new.get("spec") or {}
    if QUEUE_LABEL not in _labels(new):
        namespace = meta.get("namespace") or ""
        if not _is_enforced(namespace, parameters) or parameters.get("localqueues", DEFAULT_QUEUE, namespace) is None:
            return new
        meta = {**meta, "labels": {**_labels(new), QUEUE_LABEL: DEFAULT_QUEUE}}
    template = spec.get("template") or {}
    held = {**(template.get("spec") or {}), "schedulerName": SCHEDULER_NAME}
    return {**new, "metadata": meta, "spec": {**spec, "suspend": True, "template": {**template, "spec": held}}}


def admit(attempt: Attempt, parameters: Parameters) -> None:
    """Return if every policy lets the write in. Raises `Refused` with the first policy's first objection."""
    for policy, objections in POLICIES.items():
        for message, code in objections(attempt):
            raise denied(attempt.plural, attempt.name, policy, policy, message, code)
    for policy, door in DOORS.items():
        for message, code in door(attempt, parameters):
            raise denied(attempt.plural, attempt.name, policy, policy, message, code)
    for gate in _GATES:
        refusal = _fenced(attempt, gate, parameters)
        if refusal is not None:
            raise refusal


def _fenced(attempt: Attempt, gate: str, parameters: Parameters) -> Refused | None:
    if attempt.user != service_account(gate) or not _is_fenced(attempt):
        return None
    lease = parameters.get("leases", f"trigate-{gate}", SYSTEM_NAMESPACE)
    if lease is None:
        return None
    holder = (lease.get("spec") or {}).get("holderIdentity") or ""
    if holder == attempt.field_manager:
        return None
    policy = "trigate-former-leaders-write-nothing"
    message = (
        f'the Lease trigate-{gate} is held by "{holder}", not by "{attempt.field_manager}": '
        "a former leader writes nothing"
    )
    return denied(attempt.plural, attempt.name, policy, f"{policy}-{gate}", message, 403)


def _is_fenced(attempt: Attempt) -> bool:
    plural, sub = attempt.plural, attempt.subresource
    if attempt.operation == "DELETE":
        return False
    if plural not in _BUILT_IN:
        return sub in ("", "status")
    if attempt.is_new:
        return (plural, sub) in (("pods", "binding"), ("nodes", ""))
    return (plural == "jobs" and sub == "") or (plural == "nodes" and sub in ("", "status"))


def _jobs_are_started_by_their_gate(attempt: Attempt) -> _Said:
    new, old = attempt.new or {}, attempt.old or {}
    if attempt.plural != "jobs" or attempt.subresource or attempt.operation == "DELETE":
        return
    if QUEUE_LABEL not in _labels(new) and QUEUE_LABEL not in _labels(old):
        return
    is_new, by_gate = attempt.is_new, attempt.user == service_account("queue")
    queue, former = _labels(new).get(QUEUE_LABEL, ""), _labels(old).get(QUEUE_LABEL, "")
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    finished = any(
        c.get("type") in ("Complete", "Failed") and c.get("status") == "True"
        for c in (old.get("status") or {}).get("conditions") or ()
    )
    suspended, was_suspended = bool(spec.get("suspend")), bool(old_spec.get("suspend"))
    if is_new and not re.search(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", queue):
        yield (
            (
                "the label trigate.dev/queue must be the name of a LocalQueue of this namespace: lower-case letters, "
                "digits, '-' and '.', for example trigate.dev/queue=team-a"
            ),
            422,
        )
    managed_by = spec.get("managedBy")
    if is_new and managed_by not in (None, "kubernetes.io/job-controller"):
        yield (
            (
                f"spec.managedBy is {managed_by}, but a Job with the label trigate.dev/queue is run by Kubernetes' "
                "own Job controller: leave managedBy out, or leave the label out"
            ),
            422,
        )
    pods, old_pods = ((one.get("template") or {}).get("spec") or {} for one in (spec, old_spec))
    if is_new and pods.get("nodeName"):
        yield (
            (
                "a Job with the label trigate.dev/queue leaves nodeName out of its pod template, its nodes are chosen "
                "for all pods together: use a nodeSelector or a required node affinity"
            ),
            422,
        )
    if pods.get("schedulingGates") and (is_new or (former != "" and not old_pods.get("schedulingGates"))):
        yield (
            (
                "a Job with the label trigate.dev/queue has no schedulingGates in its pod template: its pods are made "
                "when all of them may start, so leave them out"
            ),
            422,
        )
    parallelism, completions = spec.get("parallelism"), spec.get("completions")
    at_once = min(1 if parallelism is None else parallelism, MOST_PODS + 1 if completions is None else completions)
    if is_new and at_once > MOST_PODS:
        yield "a Job with the label trigate.dev/queue runs at most 100000 pods at once: lower spec.parallelism", 422
    if not is_new and not by_gate and not finished and queue != former:
        if former == "":
            yield (
                (
                    "the label trigate.dev/queue takes effect only when a Job is created: delete this Job and create "
                    "it with the label"
                ),
                422,
            )
        yield (
            (
                "the label trigate.dev/queue cannot be changed or dropped while the Job waits or runs: delete the "
                "Job and create it anew, in another queue or without the label"
            ),
            422,
        )
    by_others = not is_new and not by_gate and former != ""
    if by_others and not suspended and was_suspended:
        meta = new["metadata"]
        yield (
            (
                "only the queue gate starts this Job, by itself, as soon as it is admitted; "
                f'"trigate why {meta["name"]} -n {meta["namespace"]}" says what it waits for'
            ),
            422,
        )
    if by_others and not finished and suspended and not was_suspended:
        yield (
            (
                "only the queue gate suspends a Job with the label trigate.dev/queue: to stop it for good delete it, "
                "to send it back to its queue ask an administrator to set spec.active of its Workload to false and "
                "to true again"
            ),
            422,
        )
    raised = spec.get("parallelism", 1) > old_spec.get("parallelism", 1) or _completions(spec) > _completions(old_spec)
    if by_others and not finished and not suspended and not was_suspended and raised:
        yield (
            (
                "parallelism and completions of a running Job with the label trigate.dev/queue can be lowered but not "
                "raised, its quota was charged for what it had: delete the Job and create it in the new size"
            ),
            422,
        )
    notes = [(one.get("metadata", {}).get("annotations") or {}).get(ASKED_PARALLELISM_ANNOTATION) for one in (new, old)]
    if not by_gate and (notes[0] or "") != (notes[1] or ""):
        yield (
            (
                "the annotation trigate.dev/asked-parallelism is the queue gate's note of an elastic Job's own "
                "parallelism: leave it as it is, and out of a new Job"
            ),
            422,
        )
    if not by_gate and _own(_template_labels(spec)) != _own(_template_labels(old_spec)):
        yield (
            (
                "the labels trigate.dev/workload, trigate.dev/pod-set and trigate.dev/attempt of the pod template "
                "are set by the queue gate: leave them as they are, and out of a new Job"
            ),
            422,
        )


def _jobs_without_a_queue(attempt: Attempt) -> _Said:
    new, old = attempt.new or {}, attempt.old or {}
    if attempt.plural != "jobs" or attempt.subresource or attempt.operation == "DELETE":
        return
    if all(QUEUE_LABEL in _labels(one) for one in (new, old) if one):
        return
    asks, asked = (_scheduler_of(one) == SCHEDULER_NAME for one in (new, old))
    own, former = (_own(_template_labels(one.get("spec") or {})) for one in (new, old))
    # What it had before it may keep: a finished Job whose queue label was dropped has been a gang's.
    if (asks and not asked) or any(former.get(label, "") != value for label, value in own.items()):
        yield (
            (
                "pods of the scheduler trigate, or with its labels, belong to Jobs that have the label "
                "trigate.dev/queue: add that label with the name of a LocalQueue, or leave schedulerName and the "
                "labels out"
            ),
            422,
        )


def _members_are_made_by_jobs(attempt: Attempt) -> _Said:
    new = attempt.new or {}
    if attempt.plural != "pods" or attempt.subresource or not attempt.is_new:
        return
    member = (new.get("spec") or {}).get("schedulerName") == SCHEDULER_NAME or bool(_own(_labels(new)))
    if member and attempt.user not in (JOB_CONTROLLER, CONTROLLER_MANAGER):
        yield (
            (
                "pods of the scheduler trigate, or with its labels, are made by the Job controller alone: create a "
                "Job with the label trigate.dev/queue instead of a pod"
            ),
            403,
        )


def _members_stay_members(attempt: Attempt) -> _Said:
    new, old = attempt.new or {}, attempt.old or {}
    if attempt.plural != "pods" or attempt.subresource or attempt.operation != "UPDATE":
        return
    if WORKLOAD_LABEL not in _labels(new) and WORKLOAD_LABEL not in _labels(old):
        return
    if _own(_labels(new)) != _own(_labels(old)):
        yield (
            (
                "the labels trigate.dev/workload, trigate.dev/pod-set and trigate.dev/attempt say which gang a pod "
                "belongs to and cannot be added, changed or dropped; delete the pod if it should go"
            ),
            403,
        )
    owners = [[o.get("uid") for o in one["metadata"].get("ownerReferences") or ()] for one in (new, old)]
    if owners[0] != owners[1] and attempt.user not in (JOB_CONTROLLER, GARBAGE_COLLECTOR, CONTROLLER_MANAGER):
        yield "the owner of a gang's member cannot be changed; delete the pod if it should go", 403


def _statuses_have_one_author(attempt: Attempt) -> _Said:
    if attempt.operation != "UPDATE" or attempt.subresource != "status" or attempt.plural not in _AUTHORS:
        return
    gate = _AUTHORS[attempt.plural]
    if attempt.user != service_account(gate):
        yield (
            (
                f"the status of {attempt.plural} is written by the {gate} gate alone: change what the gate reads (the "
                "Job, the queues, the pools) and it will follow"
            ),
            403,
        )


_FIXED = (
    *("job", "queueName", "podSets", "priority", "templateHash", "createdAt"),
    *("deactivatedFor", "queueTimeoutSeconds", "capacityTimeoutSeconds", "startTimeoutSeconds"),
    *("readyTimeoutSeconds", "recoveryTimeoutSeconds", "maxRunTimeSeconds"),
)


def _workloads_are_made_by_the_queue_gate(attempt: Attempt) -> _Said:
    new, old = attempt.new or {}, attempt.old or {}
    if attempt.plural != "workloads" or attempt.subresource or attempt.operation == "DELETE":
        return
    if attempt.user == service_account("queue"):
        return
    if attempt.is_new:
        yield "Workloads are made by the queue gate: create a Job with the label trigate.dev/queue instead", 403
        return
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    if any(spec.get(k) != old_spec.get(k) for k in _FIXED):
        yield (
            (
                "of a Workload's spec only active may be changed by hand: false ends the attempt, true lets it try "
                "again; change the Job for the rest"
            ),
            403,
        )
    has, had = (WORKLOAD_FINALIZER in (one["metadata"].get("finalizers") or ()) for one in (new, old))
    if has != had and attempt.user not in _COLLECTORS:
        yield (
            (
                "the finalizer trigate.dev/workload is removed by the queue gate once nothing of the attempt is "
                "left: delete the Workload's Job and wait"
            ),
            403,
        )


def _gangs_are_made_by_their_gates(attempt: Attempt) -> _Said:
    plural, operation = attempt.plural, attempt.operation
    if attempt.subresource or plural not in ("podgroups", "capacityrequests", "nodeclaims"):
        return
    if plural == "nodeclaims" and operation == "DELETE":
        return
    gate = "gang" if plural == "podgroups" else "provisioning"
    if attempt.user == service_account(gate) or (attempt.user in _COLLECTORS and not attempt.is_new):
        return
    advice = (
        "delete one to give its node back, change its NodePool for the rest"
        if plural == "nodeclaims"
        else "create a Job with the label trigate.dev/queue, or delete it, and they will follow"
    )
    yield f"{plural} are made, changed and deleted by the {gate} gate alone: {advice}", 403


POLICIES: dict[str, Callable[[Attempt], _Said]] = {
    "trigate-jobs-are-started-by-their-gate": _jobs_are_started_by_their_gate,
    "trigate-jobs-without-a-queue": _jobs_without_a_queue,
    "trigate-members-are-made-by-jobs": _members_are_made_by_jobs,
    "trigate-members-stay-members": _members_stay_members,
    "trigate-statuses-have-one-author": _statuses_have_one_author,
    "trigate-workloads-are-made-by-the-queue-gate": _workloads_are_made_by_the_queue_gate,
    "trigate-gangs-are-made-by-their-gates": _gangs_are_made_by_their_gates,
}


def _jobs_have_a_queue(attempt: Attempt, parameters: Parameters) -> _Said:
    if not attempt.is_new or attempt.plural != "jobs" or attempt.subresource:
        return
    namespace = _namespace_of(attempt)
    if QUEUE_LABEL not in _labels(attempt.new or {}) and _is_enforced(namespace, parameters):
        yield (
            (
                f"Jobs of namespace {namespace} need a queue, and it has no LocalQueue called default that would take "
                f'this one: add the label trigate.dev/queue with a name that "kubectl get localqueues -n {namespace}" '
                "lists, or ask an administrator for a LocalQueue called default"
            ),
            422,
        )


def _devices_are_for_members(attempt: Attempt, parameters: Parameters) -> _Said:
    """Pods cannot be resized here, so that only new ones are asked."""
    if not attempt.is_new or attempt.plural != "pods" or attempt.subresource:
        return
    new, namespace = attempt.new or {}, _namespace_of(attempt)
    if not _is_enforced(namespace, parameters) or attempt.user.startswith("system:node:"):
        return
    spec = new.get("spec") or {}
    by_jobs = attempt.user in (JOB_CONTROLLER, CONTROLLER_MANAGER) and _controlled_by(new, "batch/v1", "Job")
    if spec.get("schedulerName") == SCHEDULER_NAME and _labels(new).get(WORKLOAD_LABEL) and by_jobs:
        return
    by_daemon_sets = attempt.user in (DAEMON_SET_CONTROLLER, CONTROLLER_MANAGER)
    of_daemon_set = by_daemon_sets and _controlled_by(new, "apps/v1", "DaemonSet")
    also = () if of_daemon_set else _listed(namespace, ENFORCE_ALSO_ANNOTATION, parameters)
    exempt = _listed(namespace, ENFORCE_EXCEPT_ANNOTATION, parameters)
    for requests in _requests(spec):
        asked = ", ".join(
            name
            for name in sorted(requests)
            if (name in also or ("/" in name and name not in exempt)) and parse_quantity(requests[name]) > 0
        )
        if asked:
            yield (
                (
                    f"{asked} in namespace {namespace} is for Jobs that a queue has admitted, and this pod is no "
                    f"member of one: run it as a Job with the label trigate.dev/queue, or leave {asked} out"
                ),
                403,
            )
    if spec.get("resourceClaims") and not of_daemon_set:
        yield (
            (
                "resourceClaims take devices that no queue counts, and in this namespace devices are for Jobs that a "
                "queue has admitted: leave resourceClaims out"
            ),
            403,
        )


DOORS: dict[str, Callable[[Attempt, Parameters], _Said]] = {
    "trigate-jobs-have-a-queue": _jobs_have_a_queue,
    "trigate-devices-are-for-members": _devices_are_for_members,
}
"""The policies that look at the namespace too."""


def _namespace_of(attempt: Attempt) -> str:
    return ((attempt.new or {}).get("metadata") or {}).get("namespace") or ""


def _is_enforced(namespace: str, parameters: Parameters) -> bool:
    return _labels(parameters.get("namespaces", namespace) or {}).get(ENFORCE_LABEL) == "true"


def _listed(namespace: str, annotation: str, parameters: Parameters) -> list[str]:
    meta = (parameters.get("namespaces", namespace) or {}).get("metadata") or {}
    return [name.strip() for name in ((meta.get("annotations") or {}).get(annotation) or "").split(",")]


def _controlled_by(obj: Json, api_version: str, kind: str) -> bool:
    return any(
        owner.get("controller") and (owner.get("apiVersion"), owner.get("kind")) == (api_version, kind)
        for owner in (obj.get("metadata") or {}).get("ownerReferences") or ()
    )


def _requests(pod_spec: Json) -> list[Json]:
    """Of each container, and of the pod as a whole."""
    parts = (*pod_spec.get("containers", ()), *pod_spec.get("initContainers", ()), pod_spec)
    return [(part.get("resources") or {}).get("requests") or {} for part in parts]


def _labels(obj: Json) -> dict[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def _template_labels(spec: Json) -> dict[str, str]:
    return _labels(spec.get("template") or {})


def _scheduler_of(job: Json) -> str:
    template = (job.get("spec") or {}).get("template") or {}
    return (template.get("spec") or {}).get("schedulerName") or ""


def _completions(spec: Json) -> int:
    found = spec.get("completions")
    return 2**31 - 1 if found is None else int(found)


def _own(labels: dict[str, str]) -> dict[str, str]:
    return {k: labels[k] for k in OWN_LABELS if k in labels}
