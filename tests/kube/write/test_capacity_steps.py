"""The steps of the writer of ProvisioningRequests on objects in memory: what it creates and what it leaves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from capcard_sched.kube.client import ApiError, Client
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.writes.capacity_requests import CapacityCall, CapacityRequests
from capcard_sched.kube.writes.leadership_gate import LeadershipGate
from capcard_sched.kube.writes.write_call import WriterContext, WriteResult
from capcard_sched.model.deltas import CapacityRequestRefused, Delta
from capcard_sched.model.intents import Intent, RequestCapacity, RequestedPods, WithdrawRequest
from capcard_sched.model.provisioning import DEMAND_DIGEST

POD_PATH = "/api/v1/namespaces/team/pods/"
TEMPLATES = "/api/v1/namespaces/team/podtemplates"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/team/provisioningrequests"
REQUEST = RequestCapacity("team", "g-provisioning-1", "g", "uid-g", "check-capacity.autoscaling.x-k8s.io",
                          (RequestedPods("a", 1), RequestedPods("b", 3)), {DEMAND_DIGEST: "d"})  # fmt: skip
WITHDRAWAL = WithdrawRequest("team", "g-provisioning-1", "", "uid-g", 2)


class Objects:
    """The objects of an API server by path, for the three methods that the writer sends."""

    def __init__(self, *, served: bool = True) -> None:
        self.by_path: dict[str, dict[str, Any]] = {}
        self.served = served
        #: Paths of objects with a finalizer.
        self.kept: set[str] = set()
        #: Method and path to the error of the next request.
        self.errors: dict[tuple[str, str], ApiError] = {}
        self._uids = itertools.count()
        for name in ("a", "b"):
            spec = {"nodeName": "", "schedulingGates": [{"name": "x"}], "containers": [{"name": name}]}
            self.by_path[POD_PATH + name] = {"metadata": {"name": name, "labels": {"of": name}}, "spec": spec}

    def put(self, path: str, owner: str = "", notes: dict[str, str] | None = None, *, controller: bool = True) -> None:
        """An object that is there already."""
        group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "name": "g", "uid": owner}
        owners = [{**group, "controller": controller}] if owner else []
        name = path.rpartition("/")[2]
        self.by_path[path] = {"metadata": {"name": name, "uid": f"old-{name}", "ownerReferences": owners,
                                           "annotations": notes}}  # fmt: skip

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: Any) -> bytes:
        if (error := self.errors.pop((method, path), None)) is not None:
            raise error
        if not self.served and path.startswith("/apis/"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if method == "POST":
            made = msgspec.json.decode(body)
            full = f"{path}/{made['metadata']['name']}"
            if full in self.by_path:
                raise ApiError(409, "AlreadyExists", "it exists")
            made["metadata"]["uid"] = f"uid-{next(self._uids)}"
            self.by_path[full] = made
            return msgspec.json.encode(made)
        if path not in self.by_path:
            raise ApiError(404, "NotFound", "it does not exist")
        if method == "DELETE":
            given = msgspec.json.decode(body)["preconditions"]["uid"]
            assert given == self.by_path[path]["metadata"]["uid"]
            if path not in self.kept:
                del self.by_path[path]
            return b"{}"
        return msgspec.json.encode(self.by_path[path])

    @property
    def made(self) -> set[str]:
        """Names of templates and requests."""
        return {path.rpartition("/")[2] for path in self.by_path if not path.startswith(POD_PATH)}


async def send(objects: Objects, *intents: RequestCapacity | WithdrawRequest) -> list[Delta]:
    """Send each intent until it ends; returns what the core learns."""
    deltas: list[Delta] = []

    def deliver(_: float, delta: Delta) -> None:
        deltas.append(delta)

    def submit(_: Sequence[Intent]) -> None:
        raise AssertionError("the writer queues nothing")

    gate = LeadershipGate(lambda: math.inf)
    context = WriterContext(cast("Client", objects), gate, Observer(), lambda: 0.0, deliver, submit)
    writer = CapacityRequests(context)
    for intent in intents:
        call = CapacityCall(writer, intent, gate.term)
        for _ in range(50):
            outcome = await writer.send(call)
            writer.end(call, outcome)
            if outcome.result is not WriteResult.AGAIN:
                break
        else:
            raise AssertionError("it does not end")
    return deltas


EVERYTHING = {"g-provisioning-1", "g-provisioning-1-0", "g-provisioning-1-1"}


async def test_templates_have_the_specs_of_the_pods_and_the_owner_of_the_request() -> None:
    objects = Objects()
    assert await send(objects, REQUEST) == []
    assert objects.made == EVERYTHING
    template, request = (
        objects.by_path[f"{TEMPLATES}/g-provisioning-1-1"],
        objects.by_path[f"{REQUESTS}/{REQUEST.name}"],
    )
    assert template["template"] == {"metadata": {"labels": {"of": "b"}}, "spec": {"containers": [{"name": "b"}]}}
    assert request["spec"] == {
        "provisioningClassName": REQUEST.provisioning_class,
        "podSets": [
            {"podTemplateRef": {"name": "g-provisioning-1-0"}, "count": 1},
            {"podTemplateRef": {"name": "g-provisioning-1-1"}, "count": 3},
        ],
    }
    owner = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "name": "g", "uid": "uid-g",
             "controller": True}  # fmt: skip
    assert template["metadata"]["ownerReferences"] == request["metadata"]["ownerReferences"] == [owner]


async def test_the_owner_of_the_request_of_a_group_of_kubernetes_is_that_group() -> None:
    objects = Objects()
    await send(objects, msgspec.structs.replace(REQUEST, group="kube:g"))
    [owner] = objects.by_path[f"{REQUESTS}/{REQUEST.name}"]["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["name"]) == ("scheduling.k8s.io/v1beta1", "g")


async def test_what_an_interrupted_attempt_left_is_replaced() -> None:
    objects = Objects()
    objects.put(f"{TEMPLATES}/g-provisioning-1-0", owner="uid-g")
    assert await send(objects, REQUEST) == []
    assert objects.made == EVERYTHING
    assert objects.by_path[f"{TEMPLATES}/g-provisioning-1-0"]["template"]["spec"] == {"containers": [{"name": "a"}]}


async def test_a_template_that_a_finalizer_keeps_refuses_the_request() -> None:
    objects = Objects()
    path = f"{TEMPLATES}/g-provisioning-1-1"
    objects.put(path, owner="uid-g")
    objects.kept.add(path)
    [refused] = await send(objects, REQUEST)
    assert isinstance(refused, CapacityRequestRefused)
    assert "g-provisioning-1-1 exists, and is not deleted" in refused.message


async def test_a_request_whose_response_was_lost_is_there() -> None:
    objects = Objects()
    objects.put(f"{REQUESTS}/{REQUEST.name}", "uid-g", {DEMAND_DIGEST: "d"})
    assert await send(objects, REQUEST) == []


@pytest.mark.parametrize("path", [f"{TEMPLATES}/g-provisioning-1-0", f"{REQUESTS}/g-provisioning-1"])
@pytest.mark.parametrize(("owner", "controller"), [("", True), ("uid-of-another", True), ("uid-g", False)])
async def test_an_object_of_another_owner_is_neither_used_nor_deleted(path: str, owner: str, controller: bool) -> None:
    objects = Objects()
    objects.put(path, owner, controller=controller)
    before = objects.by_path[path]
    [refused] = await send(objects, REQUEST, WITHDRAWAL)
    assert isinstance(refused, CapacityRequestRefused)
    assert (refused.name, refused.group, refused.is_unavailable) == ("g-provisioning-1", "g", False)
    assert objects.by_path[path] is before
    assert objects.made == {path.rpartition("/")[2]}


async def test_a_withdrawal_deletes_what_there_is() -> None:
    objects = Objects()
    assert await send(objects, REQUEST, WITHDRAWAL, WITHDRAWAL) == []
    assert objects.made == set()


async def test_without_the_kind_or_the_right_requests_are_unavailable() -> None:
    [refused] = await send(Objects(served=False), REQUEST)
    assert isinstance(refused, CapacityRequestRefused)
    assert refused.is_unavailable
    right = 'podtemplates is forbidden: User "s" cannot create resource "podtemplates" in API group "" in the namespace'
    quota = 'podtemplates "x" is forbidden: exceeded quota: q, requested: count/podtemplates=1, used: 0, limited: 0'
    for message, is_unavailable in ((right, True), (quota, False)):
        objects = Objects()
        objects.errors["POST", TEMPLATES] = ApiError(403, "Forbidden", message)
        [refused] = await send(objects, REQUEST)
        assert isinstance(refused, CapacityRequestRefused)
        assert (refused.is_unavailable, refused.message) == (is_unavailable, message)


async def test_a_pod_that_is_gone_refuses_the_request_alone() -> None:
    objects = Objects()
    del objects.by_path[f"{POD_PATH}b"]
    [refused] = await send(objects, REQUEST)
    assert isinstance(refused, CapacityRequestRefused)
    assert (refused.message, refused.is_unavailable) == ("pod b does not exist", False)
    assert objects.made == set()
