"""A flavor whose nodes cannot be bought: the gang goes to the next one, and comes back when that is forgotten."""

from __future__ import annotations

from contracts.names import GPU
from contracts.reasons import Reason
from contracts.verdicts import Blocker
from tests.queue.worlds import World, a_cluster_queue, a_flavor

NO_STOCK = Blocker(reason=Reason.OUT_OF_STOCK, offering="on-demand")


def flavors(*names: str, gpus: int = 8, **spec: str) -> World:
    queue = a_cluster_queue(quota={name: {GPU: gpus} for name in names}, **spec)
    return World(queue, flavors=tuple(a_flavor(name, {"class": name}) for name in names))


def flavor(world: World, job: str = "train") -> str:
    admission = world.of(job).status.admission
    assert admission
    return admission.pod_set_assignments[0].flavors[GPU]


def failed(world: World, job: str = "train") -> list[str]:
    return [f.flavor for f in world.of(job).status.failed_flavors]


def the_purchase_fails(world: World) -> None:
    """Charged for a plan, of which nothing comes; the attempt ends, and the next one begins after its back-off."""
    world.purchase("train", "Planned")
    world.settle()
    assert world.cause("train") == "Planned"
    world.purchase("train", "Failed", NO_STOCK)
    world.settle()
    assert world.state("train") == "pending"
    world.passes(60)
    world.settle()


def no_nodes_can_be_bought(world: World, job: str = "train", possible: bool = False) -> None:
    world.does_not_fit(job, possible=possible)
    world.purchase(job, "Refused", NO_STOCK)
    world.settle()


def test_a_flavor_that_failed_in_provisioning_is_tried_after_the_next_one() -> None:
    world = flavors("on-demand", "spot")
    world.submit()
    world.settle()
    assert flavor(world) == "on-demand"

    the_purchase_fails(world)
    assert (flavor(world), failed(world)) == ("spot", ["on-demand"])

    the_purchase_fails(world)  # the last one was tried: from the first again
    assert (flavor(world), failed(world)) == ("on-demand", ["on-demand", "spot"])
    the_purchase_fails(world)
    assert (flavor(world), failed(world)) == ("spot", ["spot", "on-demand"])


def test_a_failed_flavor_is_taken_when_no_other_one_serves() -> None:
    world = flavors("on-demand", "spot")
    world.submit(pod={"nodeSelector": {"class": "on-demand"}})
    world.settle()

    the_purchase_fails(world)

    assert flavor(world) == "on-demand"


def test_a_failure_is_forgotten_after_five_minutes() -> None:
    world = flavors("on-demand", "spot")
    world.submit()
    world.settle()
    world.purchase("train", "Planned")
    world.settle()
    world.purchase("train", "Failed", NO_STOCK)
    world.settle()
    world.passes(300)
    world.settle()

    assert flavor(world) == "on-demand"


def test_a_gang_that_is_admitted_remembers_no_failures() -> None:
    world = flavors("on-demand", "spot")
    world.submit()
    world.settle()
    the_purchase_fails(world)
    world.place("train")
    world.settle()

    assert (world.state("train"), failed(world)) == ("admitted", [])


def test_x_03_a_reserved_gang_of_which_no_nodes_exist_or_can_be_bought_goes_to_the_next_flavor_at_once() -> None:
    world = flavors("on-demand", "spot")
    world.submit()
    world.settle()

    no_nodes_can_be_bought(world)

    status = world.of("train").status
    assert (flavor(world), failed(world), world.state("train")) == ("spot", ["on-demand"], "reserved")
    assert (status.reservation, status.attempt) == (2, 1)


def test_a_gang_that_no_flavor_has_nodes_for_stays_with_the_last_until_the_first_failure_is_forgotten() -> None:
    world = flavors("on-demand", "spot")
    world.submit()
    world.settle()
    no_nodes_can_be_bought(world)
    world.passes(100)
    no_nodes_can_be_bought(world)
    assert (flavor(world), failed(world)) == ("spot", ["on-demand"])
    due = world.wake_at()

    world.passes(200)
    assert due == world.now
    world.settle()
    assert (flavor(world), failed(world)) == ("on-demand", ["spot"])


def test_a_gang_that_could_run_when_others_end_keeps_its_flavor_and_its_place_in_line() -> None:
    world = flavors("on-demand", "spot")
    world.submit()
    world.settle()

    no_nodes_can_be_bought(world, possible=True)

    assert (flavor(world), failed(world)) == ("on-demand", [])


def test_an_answer_to_a_former_reservation_moves_nobody() -> None:
    world = flavors("on-demand", "spot", "reserved")
    world.submit()
    world.settle()
    no_nodes_can_be_bought(world)
    assert flavor(world) == "spot"

    assert world.settle() == []  # the refusal on record is of on-demand


def test_with_one_flavor_a_refusal_changes_nothing() -> None:
    world = flavors("on-demand")
    world.submit()
    world.settle()

    no_nodes_can_be_bought(world)

    assert (flavor(world), failed(world), world.of("train").status.reservation) == ("on-demand", [], 1)


def test_a_flavor_without_room_is_no_way_out() -> None:
    world = flavors("on-demand", "spot")
    world.submit("first", age=10, pod={"nodeSelector": {"class": "spot"}})
    world.submit()
    world.settle()
    world.place("first")
    world.settle()

    no_nodes_can_be_bought(world)

    assert (flavor(world), failed(world)) == ("on-demand", [])
