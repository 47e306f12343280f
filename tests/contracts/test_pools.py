"""What a node pool and its class may not say, because no node, claim or sum could bear it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.builders import a_node_class, a_node_pool, an_instance_type, an_offering


def test_a_price_is_a_number_that_can_be_added_up() -> None:
    a_node_class("kwok", an_instance_type("g", an_offering(price=1e9)))
    with pytest.raises(ValidationError, match="less than or equal to 1000000000"):
        a_node_class("kwok", an_instance_type("g", an_offering(price=1e303)))


def test_a_pools_labels_leave_room_for_those_that_every_node_gets() -> None:
    a_node_pool(labels={f"l{i}": "v" for i in range(48)})
    with pytest.raises(ValidationError, match="at most 48"):
        a_node_pool(labels={f"l{i}": "v" for i in range(49)})


@pytest.mark.parametrize("name", ["x" * 64, "-x", "two words", ""])
def test_what_becomes_a_label_of_the_node_is_a_labels_value(name: str) -> None:
    with pytest.raises(ValidationError):
        a_node_class("kwok", an_instance_type(name))
    with pytest.raises(ValidationError):
        a_node_class("kwok", an_instance_type("g", an_offering(name)))
