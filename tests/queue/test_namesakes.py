"""A job or a Workload that was deleted and made again is another one: what answers the former is no answer."""

from __future__ import annotations

from contracts.base import ObjectMeta, OwnerReference
from tests.queue.worlds import TEAM, World


def test_the_plan_for_a_former_workload_of_the_name_is_not_charged() -> None:
    """Found by the exhaustive worlds: a Workload made again was charged for the plan that its namesake had left."""
    world = World()
    world.submit()
    world.settle()
    world.does_not_fit("train")
    world.purchase("train", "Planned")
    request = world.requests[world.key("train")]
    owner = OwnerReference(api_version="trigate.dev/v1alpha1", kind="PodGroup", name="train", uid="pg-of-the-former")
    former = ObjectMeta(name=request.metadata.name, namespace=TEAM, uid="cr-former", owner_references=(owner,))
    world.requests[request.key] = request.but(metadata=former)

    world.settle()
    assert world.state("train") == "reserved"

    del world.pod_groups[request.key]  # its own PodGroup is not seen yet
    world.settle()
    assert world.state("train") == "reserved"
