"""What one pod asks of a node, by the rule that kube-scheduler and the kubelet use."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.mirrors import Container, ContainerStatus, Pod, PodSpec
from contracts.quantities import ResourceAmounts, amount_of, parse_nanos_of

_POD_LEVEL = ("cpu", "memory", "hugepages-")


def pod_requests(spec: PodSpec) -> ResourceAmounts:
    """The amounts that a pod of ``spec`` takes of its node, without those of zero.

    The rule is that of ``k8s.io/component-helpers/resource.PodRequests`` (KEP-753 for sidecars, KEP-2837 for
    pod-level resources), together with the API server's defaulting, which a Job's template has not seen yet:

    * a container without a request for something it limits asks for the limit;
    * init container *i* needs its own plus all sidecars listed before it; the pod needs the most of any of these
      steps, and at least its containers plus all sidecars;
    * a pod-level request for CPU, memory or huge pages stands in place of the containers' sum;
    * the runtime's overhead comes on top.

    Everything is summed exactly and rounded once. The pod's slot on the node is not in it: callers count slots.
    Raises `contracts.quantities.BadQuantity`.
    """
    return _pod_requests(spec, {}, refused=False)


def held_requests(pod: Pod) -> ResourceAmounts:
    """The amounts that ``pod`` takes of its node now: `pod_requests`, and what a resize in place leaves taken.

    While a container is resized (KEP-1287) it counts with the most of what it asks for, was allotted and has; when
    the node has refused the resize as infeasible, what it asks for does not count. Raises
    `contracts.quantities.BadQuantity`.
    """
    status = pod.status
    given = {c.name: c for c in (*status.container_statuses, *status.init_container_statuses) if c.resources}
    refused = any(
        c.type == "PodResizePending" and c.status == "True" and c.reason == "Infeasible" for c in status.conditions
    )
    return _pod_requests(pod.spec, given, refused=refused)


def _pod_requests(spec: PodSpec, given: Mapping[str, ContainerStatus], *, refused: bool) -> ResourceAmounts:
    nanos = _containers(spec, given, refused=refused)
    if spec.resources is not None:
        nanos |= _pod_level(spec, nanos)
    _accumulate(nanos, parse_nanos_of(spec.overhead))
    return {resource: amount_of(n, resource) for resource, n in nanos.items() if n}


def _containers(spec: PodSpec, given: Mapping[str, ContainerStatus], *, refused: bool) -> dict[str, int]:
    running: dict[str, int] = {}
    for container in spec.containers:
        _accumulate(running, _requests(container, given.get(container.name), refused=refused))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        asked = _requests(container, given.get(container.name), refused=refused)
        if container.restart_policy == "Always":
            _accumulate(running, asked)
            _accumulate(sidecars, asked)
            step = sidecars
        else:
            step = dict(sidecars)
            _accumulate(step, asked)
        _raise_to(peak, step)
    _raise_to(running, peak)
    return running


def _requests(container: Container, given: ContainerStatus | None, *, refused: bool) -> dict[str, int]:
    resources = container.resources
    asked = parse_nanos_of({**resources.limits, **resources.requests})
    if given is None or given.resources is None:
        return asked
    held = parse_nanos_of(given.resources.requests)
    _raise_to(held, parse_nanos_of(given.allocated_resources))
    if not refused:
        _raise_to(held, asked)
    return held


def _pod_level(spec: PodSpec, containers: Mapping[str, int]) -> dict[str, int]:
    """The pod-level requests. A limit alone becomes the request where the containers ask for nothing of it.

    Huge pages cannot be overcommitted, so their limit always is the request.
    """
    assert spec.resources is not None
    asked, limits = spec.resources.requests, spec.resources.limits
    defaulted = {r: q for r, q in limits.items() if r.startswith("hugepages-") or r not in containers}
    return parse_nanos_of({r: q for r, q in {**defaulted, **asked}.items() if r.startswith(_POD_LEVEL)})


def _accumulate(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, n in more.items():
        total[resource] = total.get(resource, 0) + n


def _raise_to(total: dict[str, int], least: Mapping[str, int]) -> None:
    for resource, n in least.items():
        total[resource] = max(n, total.get(resource, 0))
