"""What many gates are told is decoded once, and nobody changes it."""

from __future__ import annotations

import pytest

from contracts.kinds import Workload
from layers.runtime.resources import decoder_of, decoders, resource_of
from layers.simulation.decoding import decoded_once
from tests.builders import a_workload

WORKLOADS = resource_of(Workload)


def test_the_same_text_gives_the_same_object_and_only_meanwhile() -> None:
    text = a_workload().model_dump_json(by_alias=True).encode()
    before = dict(decoders)

    with decoded_once():
        first, second = WORKLOADS.decode(text), WORKLOADS.decode(bytes(bytearray(text)))
    third = WORKLOADS.decode(text)

    assert (second is first, third is first, third == first) == (True, False, True)
    assert {k: v for k, v in decoders.items() if k in before} == before


def test_who_changes_what_all_share_is_found_out() -> None:
    text = a_workload().model_dump_json(by_alias=True).encode()

    with pytest.raises(AssertionError, match="was changed in place"), decoded_once():
        decoder_of(Workload)(text).metadata.labels["who"] = "me"
