"""Calls against a real HTTP server on loopback; seconds are virtual and exact."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.mirrors import Pod
from layers.runtime.api import Api
from layers.runtime.electing import Fence, LeadershipLost
from layers.runtime.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotSent,
    ServerError,
    TooManyRequests,
    Unreachable,
    UnsupportedServer,
)
from layers.runtime.resources import NODES, PODS
from tests.runtime.wire import Wire, a_list, a_pod, drops, hangs, refuses, says, says_html

pytestmark = pytest.mark.looptime

POD = "/api/v1/namespaces/red/pods/w-0"
ALL = "/api/v1/pods"


def the_pod(name: str = "w-0", version: int = 7) -> Pod:
    return PODS.decode(msgspec.json.encode(a_pod(name, version)))


async def test_a_read_carries_the_token_and_says_who_asks(wire: Wire, api: Api) -> None:
    wire.on("GET", POD, says(a_pod("w-0", 7)))

    assert await api.get(PODS, "w-0", "red") == the_pod()
    assert wire.requests[0].headers["Authorization"] == "Bearer let-me-in"
    assert wire.requests[0].headers["User-Agent"] == "trigate-test/1"
    assert wire.requests[0].query == {}, "no resourceVersion: a consistent read"


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
    ],
)
async def test_an_error_status_is_raised_with_the_servers_words(
    wire: Wire, api: Api, status: int, reason: str, error: type[ApiError]
) -> None:
    wire.on("GET", POD, refuses(status, reason, "so it is"))

    with pytest.raises(error) as raised:
        await api.get(PODS, "w-0", "red")

    assert (type(raised.value), raised.value.status, raised.value.message) == (error, status, "so it is")
    assert len(wire.requests) == 1


async def test_a_read_that_a_gateway_answers_is_repeated_and_then_raised(wire: Wire, api: Api, looptime: Any) -> None:
    wire.on("GET", POD, says_html)

    with pytest.raises(ServerError, match="bad gateway"):
        await api.get(PODS, "w-0", "red")

    assert [r.at for r in wire.requests] == pytest.approx([0.0, 0.1, 0.3, 0.7])


async def test_a_read_recovers(wire: Wire, api: Api) -> None:
    wire.on("GET", POD, says_html, drops, refuses(500, "InternalError"), says(a_pod("w-0", 7)))

    assert await api.get(PODS, "w-0", "red") == the_pod()


async def test_a_200_that_is_not_the_apis_is_an_error(wire: Wire, api: Api) -> None:
    wire.on("GET", POD, says("hello"))
    wire.on("GET", ALL, says("hello"))

    with pytest.raises(ServerError):
        await api.get(PODS, "w-0", "red")
    with pytest.raises(ServerError):
        await api.list(PODS)


async def test_the_server_says_when_to_come_back(wire: Wire, api: Api, looptime: Any) -> None:
    wire.on(
        "POST", "/api/v1/namespaces/red/pods", refuses(429, "TooManyRequests", Retry_After="7"), says(a_pod("w-0", 7))
    )

    assert await api.create(PODS, {"metadata": {"name": "w-0"}}, "red") == the_pod()
    assert looptime == 7


async def test_too_many_requests_is_raised_in_the_end(wire: Wire, api: Api, looptime: Any) -> None:
    wire.on("GET", POD, refuses(429, "TooManyRequests", details={"retryAfterSeconds": 2}))

    with pytest.raises(TooManyRequests):
        await api.get(PODS, "w-0", "red")
    assert looptime == 6


@pytest.mark.parametrize("fault", [drops, says_html, hangs], ids=lambda f: f.__name__)
async def test_a_write_of_unknown_outcome_is_never_repeated(wire: Wire, api: Api, fault: Any, looptime: Any) -> None:
    wire.on("POST", "/api/v1/namespaces/red/pods", fault)

    with pytest.raises((Unreachable, ServerError)) as raised:
        await api.create(PODS, {"metadata": {"name": "w-0"}}, "red")

    assert not isinstance(raised.value, NotSent)
    assert len(wire.requests) == 1
    assert looptime == (10 if fault is hangs else 0)


async def test_a_read_never_waits_for_ever(wire: Wire, api: Api, looptime: Any) -> None:
    wire.on("GET", POD, hangs)

    with pytest.raises(Unreachable, match="no answer within 10 s"):
        await api.get(PODS, "w-0", "red")

    assert looptime == pytest.approx(4 * 10 + 0.1 + 0.2 + 0.4)


async def test_a_write_to_nobody_was_not_sent(wire: Wire, api: Api, looptime: Any) -> None:
    await wire.stop()

    with pytest.raises(NotSent):
        await api.create(PODS, {"metadata": {"name": "w-0"}}, "red")

    assert looptime == pytest.approx(0.7), "it was tried four times: nothing can have happened"


async def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(
    wire: Wire, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    wire.on("GET", POD, says(a_pod("w-0", 7)))

    assert await api.get(PODS, "w-0", "red") == the_pod()


async def test_a_list_is_read_in_pages_of_one_version(wire: Wire, api: Api) -> None:
    wire.on("GET", ALL, says(a_list(9, a_pod("w-0", 7), more="next")), says(a_list(9, a_pod("w-1", 8))))

    page = await api.list_page(PODS, label_selector="a=b", field_selector="spec.nodeName=n")

    assert ([p.metadata.name for p in page.items], page.resource_version) == (["w-0", "w-1"], "9")
    assert [r.query for r in wire.requests] == [
        {"limit": "500", "labelSelector": "a=b", "fieldSelector": "spec.nodeName=n"},
        {"limit": "500", "labelSelector": "a=b", "fieldSelector": "spec.nodeName=n", "continue": "next"},
    ]


async def test_a_list_that_need_not_be_consistent_may_come_from_the_watch_cache(wire: Wire, api: Api) -> None:
    wire.on("GET", ALL, says(a_list(9)))

    assert await api.list(PODS, consistent=False) == []
    assert wire.requests[0].query["resourceVersion"] == "0"


async def test_a_list_whose_continuation_expires_begins_anew(wire: Wire, api: Api) -> None:
    half = says(a_list(9, a_pod("w-0", 7), more="next"))
    wire.on("GET", ALL, half, refuses(410, "Expired"), says(a_list(12, a_pod("w-1", 11))))

    assert [p.metadata.name for p in await api.list(PODS)] == ["w-1"]


async def test_one_bad_object_does_not_hide_the_others(wire: Wire, api: Api) -> None:
    bad = a_pod("bad", 8) | {"spec": {"containers": "none"}}
    wire.on("GET", ALL, says(a_list(9, a_pod("w-0", 7), bad)))

    page = await api.list_page(PODS)

    assert [p.metadata.name for p in page.items] == ["w-0"]
    assert [(u.key, u.resource_version) for u in page.undecodable] == [("red/bad", "8")]


async def test_a_json_patch_whose_test_fails_is_a_conflict(wire: Wire, api: Api) -> None:
    wire.on("PATCH", POD, refuses(422, "Invalid", "the server rejected our request"))
    wire.on("GET", POD, says(a_pod("w-0", 7)))
    guarded: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": "6"}]

    with pytest.raises(Conflict):
        await api.patch_json(PODS, "w-0", guarded, "red")

    assert wire.requests[0].headers["Content-Type"] == "application/json-patch+json"
    assert wire.requests[0].body == guarded


async def test_a_json_patch_that_cannot_be_applied_to_the_tested_version_is_not_a_conflict(
    wire: Wire, api: Api
) -> None:
    wire.on("PATCH", POD, refuses(422, "Invalid", "the server rejected our request"))
    wire.on("GET", POD, says(a_pod("w-0", 7)))
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}

    with pytest.raises(Invalid):
        await api.patch_json(PODS, "w-0", [test, {"op": "remove", "path": "/spec/nope"}], "red")


async def test_a_json_patch_that_makes_nonsense_is_not_a_conflict(wire: Wire, api: Api) -> None:
    cause = {"field": "spec.suspend", "message": "must be a boolean"}
    wire.on("PATCH", POD, refuses(422, "Invalid", details={"causes": [cause]}))

    with pytest.raises(Invalid) as raised:
        await api.patch_json(PODS, "w-0", [{"op": "test", "path": "/x", "value": 1}], "red")

    assert raised.value.causes == ("spec.suspend: must be a boolean",)


async def test_a_merge_patch_without_a_version_is_refused_here(wire: Wire, api: Api) -> None:
    wire.on("PATCH", POD, says(a_pod("w-0", 8)))

    with pytest.raises(ValueError, match="unguarded"):
        await api.patch_merge(PODS, "w-0", {"metadata": {"labels": {"a": "b"}}}, "red")
    assert wire.requests == []

    await api.patch_merge(PODS, "w-0", {"metadata": {"resourceVersion": "7"}}, "red")
    await api.patch_merge(PODS, "w-0", {"metadata": {}}, "red", unguarded=True)
    assert {r.headers["Content-Type"] for r in wire.requests} == {"application/merge-patch+json"}


async def test_deleting_what_is_gone_is_a_success(wire: Wire, api: Api) -> None:
    wire.on("DELETE", POD, refuses(404, "NotFound"))

    await api.delete(PODS, "w-0", "red", uid="uid-w-0", resource_version="7", grace_seconds=0)

    assert wire.requests[0].body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": "uid-w-0", "resourceVersion": "7"},
        "gracePeriodSeconds": 0,
    }


async def test_another_object_of_the_name_is_not_deleted(wire: Wire, api: Api) -> None:
    wire.on("DELETE", POD, refuses(409, "Conflict", "the uid in the precondition is not the uid in record"))

    with pytest.raises(Conflict):
        await api.delete(PODS, "w-0", "red", uid="uid-w-0")


async def test_a_bind_is_for_the_pod_of_this_uid_only(wire: Wire, api: Api) -> None:
    wire.on("POST", POD + "/binding", says({"kind": "Status", "status": "Success"}, 201))

    await api.bind(the_pod(), "node-1")

    assert wire.requests[0].body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "w-0", "namespace": "red", "uid": "uid-w-0"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
    }


async def test_a_bind_can_be_rehearsed(wire: Wire, api: Api) -> None:
    wire.on("POST", POD + "/binding", says({"kind": "Status", "status": "Success"}, 201))

    await api.bind(the_pod(), "node-1", dry_run=True)

    assert wire.requests[0].query == {"dryRun": "All"}


async def test_a_former_leader_reads_but_no_longer_writes(wire: Wire, api: Api) -> None:
    wire.on("GET", POD, says(a_pod("w-0", 7)))
    fence = Fence("replica-1", clock=asyncio.get_running_loop().time)
    api.fence = fence
    fence.prove(until=3.0)
    await asyncio.sleep(3.0)

    assert await api.get(PODS, "w-0", "red") == the_pod()
    with pytest.raises(LeadershipLost):
        await api.bind(the_pod(), "node-1")

    assert wire.asked("POST") == []


async def test_a_leaders_write_ends_within_its_leadership_and_bears_its_name(
    wire: Wire, api: Api, looptime: Any
) -> None:
    wire.on("POST", POD + "/binding", hangs)
    api.fence = Fence("replica-1", clock=asyncio.get_running_loop().time)
    api.fence.prove(until=3.0)

    with pytest.raises(Unreachable):
        await api.bind(the_pod(), "node-1")

    assert looptime == 3
    assert wire.requests[0].query == {"fieldManager": "replica-1"}


@pytest.mark.parametrize(("minor", "ok"), [("35", False), ("36", True), ("36+", True), ("41", True)])
async def test_an_old_control_plane_is_refused_with_a_sentence(
    wire: Wire, kubeconfig: Path, minor: str, ok: bool
) -> None:
    wire.on("GET", "/version", says({"major": "1", "minor": minor}))

    if ok:
        await (await Api.connect(kubeconfig)).close()
        return
    with pytest.raises(UnsupportedServer, match=r"is Kubernetes 1\.35; Trigate needs 1\.36 or newer"):
        await Api.connect(kubeconfig)


async def test_without_a_kubeconfig_or_a_pod_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(NotSent):
        await Api.connect(None)
    with pytest.raises(NotSent):
        await Api.connect(tmp_path / "none")


async def test_every_answer_is_counted(wire: Wire, api: Api) -> None:
    wire.on("GET", "/api/v1/nodes/a", refuses(404, "NotFound"))
    wire.on("GET", POD, drops, drops, says(a_pod("w-0", 7)))

    await api.get(PODS, "w-0", "red")
    with pytest.raises(NotFound):
        await api.get(NODES, "a")

    assert api.meters.value("api_requests_total", verb="get", resource="nodes", code="404") == 1
    assert api.meters.value("api_requests_total", verb="get", resource="pods", code="none") == 1
    assert api.meters.value("api_requests_total", verb="get", resource="pods", code="200") == 1
