"""What one pod asks of a node, by the rule that kube-scheduler and the kubelet use."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.mirrors import Container, PodSpec
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
    nanos = _containers(spec)
    if spec.resources is not None:
        nanos |= _pod_level(spec, nanos)
    _accumulate(nanos, parse_nanos_of(spec.overhead))
    return {resource: amount_of(n, resource) for resource, n in nanos.items() if n}


def _containers(spec: PodSpec) -> dict[str, int]:
    running: dict[str, int] = {}
    for container in spec.containers:
        _accumulate(running, _requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        asked = _requests(container)
        if container.restart_policy == "Always":
            _accumulate(running, asked)
            _accumulate(sidecars, asked)
            step = sidecars
        else:
            step = dict(sidecars)
            _accumulate(step, asked)
        for resource, n in step.items():
            peak[resource] = max(n, peak.get(resource, 0))
    for resource, n in peak.items():
        running[resource] = max(n, running.get(resource, 0))
    return running


def _requests(container: Container) -> dict[str, int]:
    resources = container.resources
    return parse_nanos_of({**resources.limits, **resources.requests})


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
