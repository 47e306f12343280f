"""The life of a claim, row by row of its table; the simulated cloud's answers; the writes to a node."""

from __future__ import annotations

import pytest

from contracts.kinds.capacity import ClaimOwner, ClassReference, NodeClaim, NodeClaimSpec
from contracts.mirrors import Node
from contracts.names import GPU, HELD_FOR_ANNOTATION, NODE_CLAIM_LABEL, REMOVING_ANNOTATION
from contracts.reasons import Reason
from layers.provisioning import lifecycle
from layers.provisioning.lifecycle import Failed, Launch, Reached, Terminate, Wait, next_act
from layers.provisioning.providers import Instance, LaunchRefused, NotYet, OutOfStock, kwok_cloud
from layers.provisioning.steps import HoldNode, KeepNode, LiftHold, MarkRemoving, node_operations
from tests.builders import NOW, a_node, a_node_class, an_instance_type, an_offering
from tests.provisioning.cloud import at, patched


def a_claim(name: str = "train-1-0", *, reached: str = "", deleted: bool = False, **spec: object) -> NodeClaim:
    """A claim created at NOW with one GPU; ``reached``: launched, registered or initialized, all at NOW."""
    full = {
        "node_pool": "pool",
        "node_class": ClassReference(name="kwok"),
        "owner": ClaimOwner(namespace="team", capacity_request="train", pod_group_uid="u", reservation=1),
        "instance_type": "gpu-1",
        "zone": "z1",
        "capacity_type": "on-demand",
        "capacity": {"cpu": "64", GPU: "1"},
        **spec,
    }
    claim = NodeClaim(spec=NodeClaimSpec.model_validate(full))
    meta = {"name": name, "uid": f"uid-{name}", "creation_timestamp": NOW}
    claim = claim.but(metadata=claim.metadata.but(**meta, deletion_timestamp=NOW if deleted else None))
    stages = ("", "launched", "registered", "initialized")
    if stages.index(reached) >= 1:
        claim = lifecycle.launched(claim, "kwok://x", NOW, NOW)
    if stages.index(reached) >= 2:
        claim = lifecycle.registered(claim, the_node(), NOW)
    if stages.index(reached) >= 3:
        claim = lifecycle.initialized(claim, NOW)
    return claim


def the_node(name: str = "train-1-0", **fields: object) -> Node:
    """The claim's node, ready and with its GPU."""
    fields = {"gpus": 1, "labels": {NODE_CLAIM_LABEL: name}, **fields}
    return a_node(name, **fields)  # type: ignore[arg-type]  # passed through


def reason_of(act: object) -> Reason:
    assert isinstance(act, Failed)
    return act.blocker.reason


def test_a_new_claim_is_launched_until_its_deadline() -> None:
    assert next_act(a_claim(), None, at(119)) == Launch(at(120))
    assert reason_of(next_act(a_claim(), None, at(120))) is Reason.LAUNCH_FAILED


def test_a_launched_claim_waits_for_its_node_until_its_deadline() -> None:
    claim = a_claim(reached="launched")

    assert next_act(claim, None, at(299)) == Wait(at(300))
    assert reason_of(next_act(claim, None, at(300))) is Reason.REGISTRATION_TIMEOUT


def test_a_node_of_another_origin_with_the_claims_name_is_not_its_node() -> None:
    assert next_act(a_claim(reached="launched"), a_node("train-1-0"), at(1)) == Wait(at(300))


def test_a_node_registers_its_claim() -> None:
    act = next_act(a_claim(reached="launched"), the_node(gpus=0, ready=False), at(5))

    assert isinstance(act, Reached)
    assert act.claim.status.node_name == "train-1-0"


@pytest.mark.parametrize(
    ("node", "missing"),
    [
        (the_node(ready=False), ("Ready",)),
        (the_node(gpus=0), (GPU,)),
        (the_node(taints=({"key": "agent", "effect": "NoSchedule"},)), ("startup taint agent",)),
        (the_node(), ()),
    ],
    ids=["not ready", "no GPU", "startup taint", "complete"],
)
def test_a_node_is_awaited_until_pods_can_run_on_it(node: Node, missing: tuple[str, ...]) -> None:
    claim = a_claim(reached="registered", startup_taints=({"key": "agent", "effect": "NoSchedule"},))

    assert lifecycle.awaited(claim, node) == missing
    assert isinstance(next_act(claim, node, at(299)), Wait if missing else Reached)


def test_p_b11_the_resource_that_never_came_is_named() -> None:
    act = next_act(a_claim(reached="registered"), the_node(gpus=0), at(300))

    assert isinstance(act, Failed)
    assert (act.blocker.reason, act.blocker.resource) == (Reason.INITIALIZATION_TIMEOUT, GPU)


@pytest.mark.parametrize("reached", ["registered", "initialized"])
def test_p_b15_p_b17_a_node_that_vanished_is_lost(reached: str) -> None:
    assert reason_of(next_act(a_claim(reached=reached), None, at(1))) is Reason.NODE_LOST


@pytest.mark.parametrize("reached", ["", "launched", "registered", "initialized"])
def test_p_b09_a_deleted_claim_is_terminated_whatever_it_had_reached(reached: str) -> None:
    assert next_act(a_claim(reached=reached, deleted=True), None, at(999)) == Terminate()


def test_a_failed_claim_rests() -> None:
    act = next_act(a_claim(), None, at(120))
    assert isinstance(act, Failed)
    failed = lifecycle.failed(a_claim(), act.blocker, at(120), 1, "t")

    assert next_act(failed, None, at(9999)) == Wait()


# ---- the simulated cloud --------------------------------------------------------------------------------------------


def test_the_launch_delay_counts_from_the_claims_creation() -> None:
    slow = a_node_class("kwok", an_instance_type(launchDelay="5s"))

    assert kwok_cloud.launch(slow, a_claim(), [], at(4)) == NotYet(at(5))
    assert kwok_cloud.launch(slow, a_claim(), [], at(5)) == Instance("kwok://kwok/train-1-0", at(5))


def test_stock_counts_the_instances_of_the_offering_and_not_the_claim_itself() -> None:
    scarce = a_node_class("kwok", an_instance_type("gpu-1", an_offering(stock=1)), stockRetryAfter="30s")
    launched = a_claim(reached="launched")

    assert isinstance(kwok_cloud.launch(scarce, launched, [launched], NOW), Instance)
    with pytest.raises(OutOfStock) as refused:
        kwok_cloud.launch(scarce, a_claim("other-1-0"), [launched], NOW)
    assert refused.value.retry_at == at(30)


def test_an_injected_failure_hits_only_its_positions() -> None:
    failing = a_node_class("kwok", failures=[{"stage": "Launch", "firstPosition": 3, "message": "quota"}])

    assert isinstance(kwok_cloud.launch(failing, a_claim("g-1-2"), [], NOW), Instance)
    with pytest.raises(LaunchRefused, match="quota"):
        kwok_cloud.launch(failing, a_claim("g-1-3"), [], NOW)


def test_a_node_is_born_held_with_its_startup_taints_and_without_late_devices() -> None:
    late = a_node_class("kwok", an_instance_type(registrationDelay="1s", advertisementDelay="20s"))
    claim = a_claim(reached="launched", startup_taints=({"key": "agent", "effect": "NoSchedule"},))
    body = kwok_cloud.node_body(late, claim, at(1))

    assert body["spec"]["unschedulable"] is True
    assert body["metadata"]["annotations"][HELD_FOR_ANNOTATION] == "u"
    assert body["spec"]["taints"] == [{"key": "agent", "effect": "NoSchedule"}]
    assert GPU not in body["status"]["allocatable"]
    assert (kwok_cloud.registers_at(late, claim), kwok_cloud.advertises_at(late, claim)) == (at(1), at(21))


def test_what_the_system_keeps_is_not_allocatable() -> None:
    kept = a_node_class("kwok", an_instance_type(cpu="8", overhead={"cpu": "500m"}))

    (kind,) = kwok_cloud.catalog(kept)
    assert (kind.capacity["cpu"], kind.allocatable["cpu"]) == (8000, 7500)


# ---- writes to a node -----------------------------------------------------------------------------------------------


def test_a_hold_and_its_end_leave_the_node_as_it_was() -> None:
    node = the_node(metadata={"annotations": {"a": "b"}})
    held = patched(node, node_operations(HoldNode(node, "u")))

    assert (held.spec.unschedulable, held.metadata.annotations) == (True, {"a": "b", HELD_FOR_ANNOTATION: "u"})
    assert patched(held, node_operations(LiftHold(held))) == node


@pytest.mark.parametrize("cordoned", [True, False])
def test_a_node_that_is_kept_after_all_keeps_a_persons_cordon(cordoned: bool) -> None:
    node = the_node(cordoned=cordoned, metadata={"annotations": {"a": "b"}})
    going = patched(node, node_operations(MarkRemoving(node)))

    assert (going.spec.unschedulable, REMOVING_ANNOTATION in going.metadata.annotations) == (True, True)
    assert patched(going, node_operations(KeepNode(going))) == node
