"""Labels, annotations, finalizers and names that more than one gate reads or writes."""

from __future__ import annotations

import hashlib

QUEUE_LABEL = "trigate.dev/queue"
ENFORCE_LABEL = "trigate.dev/enforce"
"""On a Namespace, "true": its Jobs have a queue, and devices are for their members alone."""
ENFORCE_ALSO_ANNOTATION = "trigate.dev/enforce-also"
"""On an enforced Namespace: resources besides devices that are for members alone, separated by commas."""
ENFORCE_EXCEPT_ANNOTATION = "trigate.dev/enforce-except"
"""On an enforced Namespace: devices that any pod may have, separated by commas."""
DEFAULT_QUEUE = "default"
"""The LocalQueue that takes the Jobs of an enforced namespace that name none."""
PRIORITY_CLASS_LABEL = "trigate.dev/priority-class"
WORKLOAD_LABEL = "trigate.dev/workload"
POD_SET_LABEL = "trigate.dev/pod-set"
ATTEMPT_LABEL = "trigate.dev/attempt"
NODE_POOL_LABEL = "trigate.dev/node-pool"
CAPACITY_TYPE_LABEL = "trigate.dev/capacity-type"
NODE_CLAIM_LABEL = "trigate.dev/node-claim"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
ZONE_LABEL = "topology.kubernetes.io/zone"
HOSTNAME_LABEL = "kubernetes.io/hostname"

QUEUE_TIMEOUT_ANNOTATION = "trigate.dev/queue-timeout"
CAPACITY_TIMEOUT_ANNOTATION = "trigate.dev/capacity-timeout"
START_TIMEOUT_ANNOTATION = "trigate.dev/start-timeout"
READY_TIMEOUT_ANNOTATION = "trigate.dev/ready-timeout"
RECOVERY_TIMEOUT_ANNOTATION = "trigate.dev/recovery-timeout"
MAX_RUN_TIME_ANNOTATION = "trigate.dev/max-run-time"
MIN_COUNT_ANNOTATION = "trigate.dev/min-count"
PLACEMENT_POLICY_ANNOTATION = "trigate.dev/placement-policy"
ASKED_PARALLELISM_ANNOTATION = "trigate.dev/asked-parallelism"
"""On a started elastic Job: ``SET of ASKED``, the parallelism that the queue gate has set and the author's own."""
TRACEPARENT_ANNOTATION = "tracing.k8s.io/traceparent"
HELD_FOR_ANNOTATION = "trigate.dev/held-for"
"""On a Node: the uid of the PodGroup it is held for. The Node is cordoned as long as it stands."""
REMOVING_ANNOTATION = "trigate.dev/removing"
"""On a Node: the cordon is provisioning's own, set before an idle node is deleted."""

WORKLOAD_FINALIZER = "trigate.dev/workload"
"""On a Workload: it outlives its deleted Job until its charge may end."""
NODE_CLAIM_FINALIZER = "trigate.dev/termination"
"""On a NodeClaim: it outlives its deletion until the instance is terminated."""
CAPACITY_REQUEST_FINALIZER = "trigate.dev/purchase"
"""On a CapacityRequest: it outlives its deletion until nothing that was bought for it is in flight."""

SCHEDULER_NAME = "trigate"
SYSTEM_NAMESPACE = "trigate-system"
GPU = "nvidia.com/gpu"


def service_account(gate: str) -> str:
    """The user name of a gate's ServiceAccount: the one identity that may write what the gate alone writes."""
    return f"system:serviceaccount:{SYSTEM_NAMESPACE}:trigate-{gate}"


def workload_name(kind: str, name: str, uid: str) -> str:
    """The name of a job object's Workload, PodGroup and CapacityRequest: a valid label value, unique by uid.

    >>> workload_name("Job", "train", "7d0c1b9e-0000-4000-8000-000000000001")
    'job-train-7a258'
    """
    digest = hashlib.sha256(uid.encode()).hexdigest()[:5]
    return f"{kind.lower()}-{name}"[:57].rstrip("-.") + f"-{digest}"
