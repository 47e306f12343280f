"""batch/v1 Job: one pod set ``main``.

A started Job's template carries what the queue gate added: three labels, the trace, the flavor's node selector and
tolerations. All of it is taken off again before the template is looked at, so that an evicted Job asks for what its
author wrote and its hash does not move. What was added is listed in an annotation of the Job. To forge it gains
nothing: what it hides from the Workload is hidden from the pods too, for the start writes the Workload's template.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import field

from contracts.durations import BadDuration
from contracts.kinds import Workload
from contracts.kinds.workload import JobReference, PlacementPolicy, PodSet, WorkloadSpec
from contracts.mirrors import JobStatus, Keyed, Mirror
from contracts.names import (
    ASKED_PARALLELISM_ANNOTATION,
    ATTEMPT_LABEL,
    CAPACITY_TIMEOUT_ANNOTATION,
    MAX_RUN_TIME_ANNOTATION,
    MIN_COUNT_ANNOTATION,
    PLACEMENT_POLICY_ANNOTATION,
    POD_SET_LABEL,
    PRIORITY_CLASS_LABEL,
    QUEUE_LABEL,
    QUEUE_TIMEOUT_ANNOTATION,
    READY_TIMEOUT_ANNOTATION,
    RECOVERY_TIMEOUT_ANNOTATION,
    SCHEDULER_NAME,
    START_TIMEOUT_ANNOTATION,
    TRACEPARENT_ANNOTATION,
    WORKLOAD_LABEL,
)
from contracts.quantities import BadQuantity
from layers.queue.clocks import whole_seconds
from layers.queue.demands import demands_of
from layers.queue.jobs.progress import progress_of
from layers.queue.snapshot import JobView

Json: TypeAlias = dict[str, Any]

POD_SET = "main"
ADDED_ANNOTATION = "trigate.dev/added-scheduling"
"""On a started Job: the node selector and tolerations in its template that are the flavor's, not the author's."""
OWN_CONTROLLER = "kubernetes.io/job-controller"
LONGEST_TIMEOUT = 30 * 24 * 3600
LARGEST_GANG = 100_000
LONGEST_LIST = 64 * 1024
"""Characters of `ADDED_ANNOTATION`: all labels and tolerations that the flavors of one gang may have are shorter."""
NO_QUEUE = "-"
"""Stands for the queue of a Job that names none: no LocalQueue can have this name."""
_OWN_LABELS = (WORKLOAD_LABEL, POD_SET_LABEL, ATTEMPT_LABEL)
_NOT_YET = (
    "trigate.dev/gang",
    "trigate.dev/group",
    "trigate.dev/group-jobs",
    "trigate.dev/topology-required",
    "trigate.dev/topology-preferred",
)
"""Asked for by a label or an annotation, it must be refused rather than left out."""
_CLOCKS = {
    QUEUE_TIMEOUT_ANNOTATION: "queue_timeout_seconds",
    CAPACITY_TIMEOUT_ANNOTATION: "capacity_timeout_seconds",
    START_TIMEOUT_ANNOTATION: "start_timeout_seconds",
    READY_TIMEOUT_ANNOTATION: "ready_timeout_seconds",
    RECOVERY_TIMEOUT_ANNOTATION: "recovery_timeout_seconds",
    MAX_RUN_TIME_ANNOTATION: "max_run_time_seconds",
}
_OWN_ANNOTATIONS = (
    *_CLOCKS,
    MIN_COUNT_ANNOTATION,
    PLACEMENT_POLICY_ANNOTATION,
    ASKED_PARALLELISM_ANNOTATION,
    ADDED_ANNOTATION,
)
_OWN_PREFIX = "trigate.dev/"
_NOTED = re.compile(r"([0-9]{1,9}) of ([0-9]{1,9})", re.ASCII)
_SECONDS_ON_PODS = tuple(_OWN_PREFIX + name for name in ("run-for", "fail-after", "terminate-for"))
"""On a simulated node a pod's own annotations say in seconds what it does; one that is no number would do nothing."""


class BatchJobSpec(Mirror, frozen=True):
    """A Job's spec; the template stays as it came, for it is carried whole."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool = False
    managed_by: str | None = None
    template: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"{}"))


class BatchJob(Keyed, frozen=True):
    """A Job of batch/v1 with its template."""

    spec: BatchJobSpec = BatchJobSpec()
    status: JobStatus = JobStatus()

    def __post_init__(self) -> None:
        super().__post_init__()
        if QUEUE_LABEL not in self.metadata.labels:
            # Of a Job that is not ours nothing is looked at: its template need not be kept.
            msgspec.structs.force_setattr(self, "spec", BatchJobSpec(suspend=self.spec.suspend))
        else:
            # As decoded it is a view into the whole page of the list, which would live as long as the Job.
            msgspec.structs.force_setattr(self.spec, "template", self.spec.template.copy())


def is_managed(job: BatchJob) -> bool:
    """Whether the Job is the queue gate's business."""
    return QUEUE_LABEL in job.metadata.labels


def view(job: BatchJob, priority_classes: Mapping[str, int], before: JobView | None = None) -> JobView:
    """The Job as the core sees it. Whatever is wrong with it becomes one of ``problems``; nothing is raised.

    ``before``: how it was seen last. Of a Job that cannot be read at all, what it asked for then stands.
    """
    try:
        return _view(job, priority_classes)
    except Exception as error:
        # It runs where every Job's changes are told: one that nobody foresaw must not stop the others.
        return _unreadable(job, f"{type(error).__name__}: {error}"[:300], before)


def _unreadable(job: BatchJob, why: str, before: JobView | None) -> JobView:
    meta, said = job.metadata, {c.type: c.status == "True" for c in job.status.conditions}
    if before is None or before.uid != meta.uid:
        asked = WorkloadSpec(
            job=JobReference(api_version="batch/v1", kind="Job", name=meta.name, uid=meta.uid),
            queue_name=NO_QUEUE,
            pod_sets=(PodSet(name=POD_SET, count=0, template={}),),
            template_hash="unreadable",
            created_at=meta.creation_timestamp or datetime.fromtimestamp(0, UTC),
        )
    else:
        asked = before.asked
    return JobView(
        key=job.key,
        resource_version=meta.resource_version,
        asked=asked,
        problems=(f"the Job cannot be read: {why}",),
        readable=False,
        suspended=job.spec.suspend,
        attempt=before.attempt if before else 0,
        never_started=job.status.start_time is None and (before is None or before.never_started),
        settled=_is_settled(job),
        finished=next((c for c in ("Complete", "Failed") if said.get(c)), None),
        deleted=meta.deletion_timestamp is not None,
    )


def _is_settled(job: BatchJob) -> bool:
    suspended = any(c.type == "Suspended" and c.status == "True" for c in job.status.conditions)
    return job.spec.suspend and suspended and not job.status.active and not job.status.terminating


def _view(job: BatchJob, priority_classes: Mapping[str, int]) -> JobView:
    problems: list[str] = []
    asked = workload_of(job, priority_classes, problems)
    status = job.status
    said = {c.type: c.status == "True" for c in status.conditions}
    finished = next((c for c in ("Complete", "Failed") if said.get(c)), None)
    template = _template(job)
    label = str(((template.get("metadata") or {}).get("labels") or {}).get(ATTEMPT_LABEL, ""))
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    progress = progress_of(
        status,
        asked=_parallelism(job),
        parallelism=parallelism,
        completions=job.spec.completions,
        indexed=job.spec.completion_mode == "Indexed",
        suspended=job.spec.suspend,
    )
    return JobView(
        key=job.key,
        resource_version=job.metadata.resource_version,
        asked=asked,
        problems=tuple(problems),
        suspended=job.spec.suspend,
        attempt=int(label) if label.isdecimal() and label.isascii() else 0,
        never_started=not label and status.start_time is None,
        settled=_is_settled(job),
        finished=finished,
        wanted={POD_SET: progress.wanted},
        needed={POD_SET: progress.needed},
        alive=progress.alive,
        short=progress.short,
        shrunk=_parallelism(job) != parallelism,
        deleted=job.metadata.deletion_timestamp is not None,
    )


def _wanted(job: BatchJob) -> int:
    """How many members a start of the Job as its author wrote it would run at once."""
    asked = _parallelism(job)
    return progress_of(
        job.status,
        asked=asked,
        parallelism=asked,
        completions=job.spec.completions,
        indexed=job.spec.completion_mode == "Indexed",
        suspended=True,
    ).wanted


def _parallelism(job: BatchJob) -> int:
    """The author's: what the Job has, unless it is what the queue gate has set; then what the gate has noted of it."""
    now = 1 if job.spec.parallelism is None else job.spec.parallelism
    noted = _NOTED.fullmatch(job.metadata.annotations.get(ASKED_PARALLELISM_ANNOTATION, ""))
    return int(noted[2]) if noted and int(noted[1]) == now else now


def workload_of(job: BatchJob, priority_classes: Mapping[str, int], problems: list[str]) -> WorkloadSpec:
    """What the Job asks for. A sentence is added to ``problems`` for each thing that cannot be taken as written."""
    template = _authors_template(job)
    parallelism = _parallelism(job)
    count = parallelism if job.spec.completions is None else min(parallelism, job.spec.completions)
    if count > LARGEST_GANG:
        problems.append(f"{count} members are to run at once, at most {LARGEST_GANG} can: lower spec.parallelism")
    within = max(0, min(count, LARGEST_GANG))
    meta = job.metadata
    pod_set = PodSet(
        name=POD_SET,
        count=within,
        completions=job.spec.completions,
        min_count=_min_count(job, count, problems),
        template=template,
    )
    if not meta.labels.get(QUEUE_LABEL):
        problems.append(f"the label {QUEUE_LABEL} is empty: create the Job anew with the name of a LocalQueue")
    problems += [f"{name} is not supported yet" for name in _NOT_YET if name in meta.labels or name in meta.annotations]
    problems += _unreadable_annotations(job, template)
    pod_spec = template.get("spec") or {}
    scheduler = pod_spec.get("schedulerName") or "default-scheduler"
    if scheduler != SCHEDULER_NAME:
        problems.append(
            f"the pod template's schedulerName is {scheduler}, it must be {SCHEDULER_NAME}: create the Job anew"
        )
    if pod_spec.get("nodeName"):
        problems.append(
            f"the pod template's nodeName is {pod_spec['nodeName']}, but the gang gate chooses the nodes: "
            "create the Job anew without it, with a nodeSelector if need be"
        )
    if pod_spec.get("schedulingGates"):
        problems.append("the pod template has schedulingGates, with which its pods would never start: leave them out")
    if job.spec.managed_by not in (None, OWN_CONTROLLER):
        problems.append(f"spec.managedBy is {job.spec.managed_by}: only Kubernetes' own Job controller is supported")
    timeouts = _timeouts(job, problems)
    spec = WorkloadSpec(
        job=JobReference(api_version="batch/v1", kind="Job", name=meta.name, uid=meta.uid),
        queue_name=meta.labels.get(QUEUE_LABEL) or NO_QUEUE,
        pod_sets=(pod_set,),
        priority=_priority(job, priority_classes, problems),
        template_hash=template_hash((pod_set,)),
        created_at=meta.creation_timestamp or datetime.fromtimestamp(0, UTC),
        placement_policy=_placement_policy(job, problems),
        **timeouts,
    )
    try:
        demands_of(spec)
    except BadQuantity as error:
        problems.append(f"the pod template: {error}")
    except ValueError as error:
        problems.append(f"the pod template cannot be read: {error}")
    return spec


def template_hash(pod_sets: tuple[PodSet, ...]) -> str:
    """The hash of what a charge is for: the templates and counts, in whatever order their keys are written."""
    form = [(p.name, p.count, p.completions, p.template) for p in pod_sets]
    return hashlib.sha256(json.dumps(form, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def start_patch(job: BatchJob, workload: Workload) -> Json:
    """The one merge patch that starts the very version ``job`` as the admitted ``workload``.

    Node selector and tolerations are those of the charged template and of the flavors, whatever the Job has now.
    """
    admission = workload.status.admission
    assert admission is not None  # an admitted Workload has one
    assigned = next(a for a in admission.pod_set_assignments if a.name == POD_SET)
    charged = next(p.template for p in workload.spec.pod_sets if p.name == POD_SET).get("spec") or {}
    selector: dict[str, str] = charged.get("nodeSelector") or {}
    tolerations = [_as_stored(t) for t in charged.get("tolerations") or []]
    added: Json = {
        "nodeSelector": {k: v for k, v in assigned.node_selector.items() if k not in selector},
        "tolerations": [t for t in map(_as_stored, assigned.tolerations) if t not in tolerations],
    }
    now = _template(job).get("spec") or {}
    gone: dict[str, str | None] = {key: None for key in now.get("nodeSelector") or {}}
    traceparent: dict[str, str | None] = {TRACEPARENT_ANNOTATION: workload.status.traceparent}
    labels = {
        WORKLOAD_LABEL: workload.metadata.name,
        POD_SET_LABEL: POD_SET,
        ATTEMPT_LABEL: str(workload.status.attempt),
    }
    pods: Json = {}
    if gone or selector or added["nodeSelector"]:
        pods["nodeSelector"] = {**gone, **selector, **added["nodeSelector"]}
    if now.get("tolerations") or tolerations or added["tolerations"]:
        pods["tolerations"] = [*tolerations, *added["tolerations"]]
    written = json.dumps(added, sort_keys=True, separators=(",", ":"))
    asked, size = _parallelism(job), assigned.count
    fewer = size < _wanted(job)
    noted: dict[str, str | None] = {}
    if fewer or ASKED_PARALLELISM_ANNOTATION in job.metadata.annotations:
        noted[ASKED_PARALLELISM_ANNOTATION] = f"{size} of {asked}" if fewer else None
    return {
        "metadata": {
            "resourceVersion": job.metadata.resource_version,
            "annotations": {ADDED_ANNOTATION: written, **noted, **traceparent},
        },
        "spec": {
            "suspend": False,
            **({"parallelism": size if fewer else asked} if noted else {}),
            "template": {"metadata": {"labels": labels, "annotations": traceparent}, "spec": pods},
        },
    }


def suspend_patch(job: BatchJob) -> Json:
    """The merge patch that suspends the very version ``job``, and gives it back the parallelism of its author."""
    version: Json = {"resourceVersion": job.metadata.resource_version}
    if ASKED_PARALLELISM_ANNOTATION not in job.metadata.annotations:
        return {"metadata": version, "spec": {"suspend": True}}
    gone = {"annotations": {ASKED_PARALLELISM_ANNOTATION: None}}
    return {"metadata": version | gone, "spec": {"suspend": True, "parallelism": _parallelism(job)}}


def _template(job: BatchJob) -> Json:
    try:
        found = msgspec.json.decode(job.spec.template)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _authors_template(job: BatchJob) -> Json:
    """The template without what the queue gate added, and without nulls, which mean absent."""
    template: Json = _without_nulls(_template(job))
    metadata: Json = template.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    started = ATTEMPT_LABEL in labels
    metadata = {
        **metadata,
        "labels": {k: v for k, v in labels.items() if k not in _OWN_LABELS},
        "annotations": {k: v for k, v in annotations.items() if k != TRACEPARENT_ANNOTATION},
    }
    spec: Json = template.get("spec") or {}
    if started:
        added = _added(job)
        spec = {
            **spec,
            "nodeSelector": {
                k: v for k, v in (spec.get("nodeSelector") or {}).items() if added["nodeSelector"].get(k) != v
            },
            "tolerations": [t for t in spec.get("tolerations") or [] if _as_stored(t) not in added["tolerations"]],
        }
    return {"metadata": _without_empty(metadata), "spec": _without_empty(spec, "nodeSelector", "tolerations")}


def _added(job: BatchJob) -> Json:
    """What the annotation lists; nothing when somebody made it unreadable."""
    text = job.metadata.annotations.get(ADDED_ANNOTATION, "{}")
    try:
        found = json.loads(text if len(text) <= LONGEST_LIST else "{}")
        return {"nodeSelector": dict(found.get("nodeSelector", {})), "tolerations": list(found.get("tolerations", []))}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {"nodeSelector": {}, "tolerations": []}


def _as_stored(toleration: Json) -> Json:
    """A toleration as the API server gives it back: without empty and unknown fields."""
    known = ("key", "operator", "value", "effect", "tolerationSeconds")
    return {k: toleration[k] for k in known if toleration.get(k) not in (None, "")}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _without_empty(piece: Json, *keys: str) -> Json:
    """``piece`` without its empty entries; with ``keys``: without those of them that are empty."""
    return {k: v for k, v in piece.items() if v or (keys and k not in keys)}


def _priority(job: BatchJob, classes: Mapping[str, int], problems: list[str]) -> int:
    """The label's. Nobody has checked what the template says: in a Job's, unlike in a pod, any priority may stand."""
    name = job.metadata.labels.get(PRIORITY_CLASS_LABEL)
    if name is None:
        return 0
    if name not in classes:
        problems.append(f"WorkloadPriorityClass {name} does not exist")
    return classes.get(name, 0)


def _timeouts(job: BatchJob, problems: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for annotation, name in _CLOCKS.items():
        text = job.metadata.annotations.get(annotation)
        if text is None:
            continue
        try:
            whole = whole_seconds(text if len(text) <= 32 else f"{text[:32]}…")
        except BadDuration as error:
            problems.append(f"{annotation}: {error}")
            continue
        if 1 <= whole <= LONGEST_TIMEOUT:
            found[name] = whole
        else:
            problems.append(f"{annotation}: {text!r} is not between 1s and {LONGEST_TIMEOUT // 3600}h")
    return found


def _min_count(job: BatchJob, count: int, problems: list[str]) -> int | None:
    text = job.metadata.annotations.get(MIN_COUNT_ANNOTATION)
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or int(text) < 1:
        problems.append(f"{MIN_COUNT_ANNOTATION}: {text[:32]!r} is not a number of members; write it like 5")
        return None
    if int(text) > max(1, count):
        problems.append(f"{MIN_COUNT_ANNOTATION} is {text}, more than the {count} members that run at once: lower it")
        return None
    return int(text)


def _placement_policy(job: BatchJob, problems: list[str]) -> PlacementPolicy | None:
    text = job.metadata.annotations.get(PLACEMENT_POLICY_ANNOTATION)
    if text is None or text in tuple(PlacementPolicy):
        return PlacementPolicy(text) if text else None
    problems.append(f"{PLACEMENT_POLICY_ANNOTATION}: {text[:32]!r} is none of {', '.join(PlacementPolicy)}")
    return None


def _unreadable_annotations(job: BatchJob, template: Json) -> list[str]:
    """Annotations with our prefix that say nothing to anybody: a slip of the pen must not be taken in silence."""
    known = (*_OWN_ANNOTATIONS, *_NOT_YET)
    found = [
        f"the annotation {name[:80]} is not known: leave it out, or mend its name"
        for name in sorted(job.metadata.annotations)
        if name.startswith(_OWN_PREFIX) and name not in known
    ]
    on_pods = (template.get("metadata") or {}).get("annotations") or {}
    found += [
        f"the pod template's annotation {name} is {str(on_pods[name])[:32]!r}, it must be a number of seconds"
        for name in _SECONDS_ON_PODS
        if name in on_pods and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", str(on_pods[name]), re.ASCII)
    ]
    return found
