"""The claim for the extended resources of a pod, and the amounts of nodes with devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.devices.extended_resources import extended_claim_name, extended_requests
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.device_objects import (
    EXTENDED_CLAIM,
    DeviceClassObject,
    ResourceClaimObject,
    ResourceSliceObject,
)
from capcard_sched.model.intents import Bind, ReleaseClaims
from capcard_sched.model.objects import Container, PodObject, PodSpec, ResourceRequirements
from capcard_sched.model.pod_requests import pod_amounts
from capcard_sched.model.pod_template import template_of
from capcard_sched.model.task_class import ContainerAmounts
from capcard_sched.testing import Harness
from tests.lines import executed_lines

CASES: Final = yaml.safe_load((Path(__file__).parent / "extended.yaml").read_text("utf-8"))
_CLASSES: Final = {
    "nvidia.com/gpu": "gpu",
    "example.com/nic": "nic",
    "deviceclass.resource.kubernetes.io/gpu": "gpu",
}
_GPU: Final = "nvidia.com/gpu"


def _containers(init: list[str], containers: list[str]) -> list[ContainerAmounts]:
    """Ordinary containers, then init containers, as a class has them; named `c<n>`, init containers first."""
    found: list[ContainerAmounts] = []
    for index, text in enumerate((*init, *containers)):
        words = text.split()
        amounts = {name: int(amount) * 1000 for name, _, amount in (word.partition("=") for word in words) if amount}
        extended = tuple(sorted(item for item in amounts.items() if "/" in item[0]))
        is_init = index < len(init)
        found.append(
            ContainerAmounts(f"c{index}", extended, extended, is_init, words[0] == "sidecar", tuple(sorted(amounts)))
        )
    return [*found[len(init) :], *found[: len(init)]]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_requests_of_a_pod_and_its_mappings(case: dict[str, Any]) -> None:
    containers = _containers(case.get("init", []), case["containers"])
    found = extended_requests(containers, _CLASSES)
    requests = [(each.name, each.exactly) for each in found.spec.requests or ()]
    assert [f"{name} {one.device_class_name} {one.count}" for name, one in requests if one] == case["requests"]
    mapped = [f"{each.container_name} {each.resource_name} {each.request_name}" for each in found.mappings]
    assert mapped == case["mappings"]


_AMOUNTS: Final = st.integers(0, 4)


@given(st.lists(st.tuples(_AMOUNTS, st.booleans()), max_size=4), st.lists(_AMOUNTS, min_size=1, max_size=4))
def test_the_devices_are_as_many_as_the_pod_requests_effectively(init: list[tuple[int, bool]], main: list[int]) -> None:
    """The amount that nodes and queues are charged, which is summed by other code."""

    def container(index: int, amount: int, *, sidecar: bool = False) -> Container:
        resources = ResourceRequirements(requests={_GPU: str(amount)}, limits={_GPU: str(amount)})
        return Container(name=f"c{index}", resources=resources, restart_policy="Always" if sidecar else None)

    spec = PodSpec(
        containers=tuple(container(index + len(init), amount) for index, amount in enumerate(main)),
        init_containers=tuple(container(index, amount, sidecar=stays) for index, (amount, stays) in enumerate(init)),
    )
    template = template_of(PodObject(spec=spec))
    found = extended_requests(template.device_containers, {_GPU: "gpu"})
    counts = {each.name: each.exactly.count for each in found.spec.requests or () if each.exactly is not None}
    assert sum(counts.values()) * 1000 == pod_amounts(spec).requests.get(_GPU, 0)
    for index, amount in enumerate([*(amount for amount, _ in init), *main]):
        requests = [each.request_name for each in found.mappings if each.container_name == f"c{index}"]
        assert len(set(requests)) == len(requests)
        assert sum(counts[name] for name in requests) >= amount


def test_the_name_of_a_claim_follows_from_the_pod() -> None:
    name = extended_claim_name("p", "uid")
    assert name.startswith("p-extended-resources-")
    assert name == extended_claim_name("p", "uid")
    assert name != extended_claim_name("p", "other")
    assert len(extended_claim_name("p" * 253, "uid")) == 63


@pytest.mark.parametrize(
    ("namespace", "controller", "annotation"),
    [("default", True, "true"), ("other", True, "true"), ("default", False, "true"), ("default", True, "yes")],
)
def test_a_claim_of_an_earlier_attempt_is_one_of_the_pod_itself(
    namespace: str, controller: bool, annotation: str
) -> None:
    """Tenants write annotations and owners of their claims: the pod of another namespace does not wait for them."""
    h = Harness("actions: 'allocate'\ntiers:\n- plugins: [{name: gang}, {name: predicates}]\n")
    h.queue("default")
    h.node("n1", cpu="8")
    h.group("g", queue="default")
    h.pod("p", group="g", cpu="1")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "default-p-uid", "controller": controller}
    meta = {"name": "c", "namespace": namespace, "uid": "c", "annotations": {EXTENDED_CLAIM: annotation}}
    claim = {"metadata": {**meta, "ownerReferences": [owner]}, "spec": {"devices": {}}}
    h.apply(ObjectChanged(msgspec.convert(claim, ResourceClaimObject)))
    intents = h.step().intents
    released = [each for each in intents if isinstance(each, ReleaseClaims)]
    is_left = (namespace, controller, annotation) == ("default", True, "true")
    assert [wanted.claim for each in released for wanted in each.claims] == (["c"] if is_left else [])
    assert any(isinstance(each, Bind) for each in intents) is not is_left


_CONF: Final = "actions: 'allocate'\ntiers:\n- plugins: [{name: gang}, {name: predicates}]\n"
_NAMED: Final = "deviceclass.resource.kubernetes.io/"


def _with_devices() -> Harness:
    h = Harness(_CONF)
    h.queue("default")
    h.node("n1", cpu="8")
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "pool": pool, "nodeName": "n1", "devices": [{"name": "g0"}, {"name": "g1"}]}
    h.apply(ObjectChanged(msgspec.convert({"metadata": {"name": "s"}, "spec": spec}, ResourceSliceObject)))
    return h


def _offer(h: Harness, name: str) -> None:
    h.apply(ObjectChanged(msgspec.convert({"metadata": {"name": name}, "spec": {}}, DeviceClassObject)))
    h.step()


def _request(h: Harness, by: str, resource: str) -> None:
    if by == "pod":
        h.group("g", queue="default")
        h.pod("p", group="g", requests={resource: "1"}, limits={resource: "1"})
    else:
        h.group("g", queue="default", min_resources={resource: "1"})
    h.step()


@pytest.mark.parametrize("by", ["pod", "group"])
def test_a_node_offers_a_class_that_is_created_before_or_after_a_request_for_it(by: str) -> None:
    h, resource = _with_devices(), f"{_NAMED}late"
    _request(h, by, resource)
    assert not h.state.nodes.by_name["n1"].backed
    _offer(h, "late")
    assert h.state.nodes.by_name["n1"].backed[resource].devices == 2
    h.apply(ObjectGone("DeviceClass", "", "late"))
    h.step()
    assert not h.state.nodes.by_name["n1"].backed
    _offer(h, "late")
    assert h.state.nodes.by_name["n1"].backed[resource].devices == 2
    other = _with_devices()
    _offer(other, "late")
    assert not other.state.nodes.by_name["n1"].backed, "nothing requests the class"
    _request(other, by, resource)
    assert other.state.nodes.by_name["n1"].backed[resource].devices == 2


@given(st.lists(st.sampled_from(["pod", "group"]), min_size=1, max_size=6))
def test_names_that_were_requested_once_cost_sessions_nothing(kinds: list[str]) -> None:
    def cost(gone: int) -> int:
        h = _with_devices()
        _offer(h, "c")
        for index in range(gone):
            for by in kinds:
                _request(h, by, f"{_NAMED}{by}{index}")
                h.delete_pod("p")
                h.delete_group("g")
                h.step()
        h.state.classes.prune(set())

        def session() -> None:
            h.queue("default", weight=2)
            h.step()

        return executed_lines(session)

    few, many = cost(1), cost(12)
    assert many <= few + 20, (few, many)
