"""What a pod demands of the pods around it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contracts.pod_relations import HostPort, taken_by

ANY = "0.0.0.0"
ADDRESSES = st.sampled_from([ANY, "::", "10.0.0.1", "10.0.0.2"])
PORTS = st.builds(HostPort, st.integers(80, 82), st.sampled_from(["TCP", "UDP"]), ADDRESSES)


@given(used=st.lists(PORTS, max_size=4), wanted=st.lists(PORTS, max_size=4))
def test_a_port_is_taken_by_one_of_its_number_and_protocol_on_its_address_or_on_all_of_them(
    used: list[HostPort], wanted: list[HostPort]
) -> None:
    def conflict(one: HostPort, other: HostPort) -> bool:
        same = (one.port, one.protocol) == (other.port, other.protocol)
        return same and (one.address == other.address or ANY in (one.address, other.address))

    assert taken_by(used, wanted) == next((w for w in wanted if any(conflict(w, u) for u in used)), None)
