"""Templates of pods: requests, limits and constraints, with the defaults of the API server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.in_tree_volumes import AttachmentKey
from capcard_sched.model.objects import HostPort, PodObject, Toleration
from capcard_sched.model.pod_template import DEFAULT_CPU_MILLI, DEFAULT_MEMORY_BYTES, template_of
from capcard_sched.model.quantity import MAX_POD_AMOUNT, QuantityError
from capcard_sched.model.task_class import PodTemplate

GPU = "nvidia.com/gpu"
GI = 1024**3
Json = dict[str, Any]


def _pod(**spec: Any) -> PodObject:
    return msgspec.convert({"spec": spec}, PodObject)


def _c(requests: Json | None = None, limits: Json | None = None, **more: Any) -> Json:
    return {"resources": {"requests": requests, "limits": limits}, **more}


def _sidecar(requests: Json, limits: Json | None = None) -> Json:
    return _c(requests, limits, restartPolicy="Always")


REQUESTS = [
    pytest.param({"containers": []}, {}, {}, id="no containers"),
    pytest.param({"containers": [{}]}, {}, {}, id="a container that requests nothing"),
    pytest.param(
        {"containers": [_c({"cpu": "1500m", "memory": "1Gi", GPU: "1"})]},
        {"cpu": 1500, "memory": GI, GPU: 1000},
        {},
        id="one container",
    ),
    pytest.param(
        {"containers": [_c({"cpu": 1}), _c({"cpu": "1", "memory": 5}), {}]},
        {"cpu": 2000, "memory": 5},
        {},
        id="containers add up",
    ),
    pytest.param(
        {"containers": [_c(None, {GPU: "2"}), _c({GPU: "2"}, {GPU: "2"})]},
        {GPU: 4000},
        {GPU: 4000},
        id="a limit alone is also the request",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1"}, {"cpu": "2", "memory": "1Ki"})]},
        {"cpu": 1000, "memory": 1024},
        {"cpu": 2000, "memory": 1024},
        id="a request stays below its limit",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "0"}, {"cpu": "2"})]}, {"cpu": 0}, {"cpu": 2000}, id="an explicit zero is a request"
    ),
    pytest.param(
        {"containers": [_c({GPU: "1"})], "initContainers": [_c({GPU: "1"}), _c({GPU: "2"})]},
        {GPU: 2000},
        {},
        id="the largest init step",
    ),
    pytest.param(
        {
            "containers": [_c({GPU: "1"}, {GPU: "1"})],
            "initContainers": [_c(None, {GPU: "1"}), _c(None, {GPU: "2"})],
        },
        {GPU: 2000},
        {GPU: 2000},
        id="the largest init step, by limits",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "2", "memory": 10})], "initContainers": [_c({"cpu": "1", "memory": 20})]},
        {"cpu": 2000, "memory": 20},
        {},
        id="the maximum is taken per resource",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1"})], "initContainers": [_sidecar({"cpu": "2"})]},
        {"cpu": 3000},
        {},
        id="a sidecar runs beside the containers",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1"})], "initContainers": [_sidecar({"cpu": "2"}), _c({"cpu": "5"})]},
        {"cpu": 7000},
        {},
        id="a sidecar declared before an init step runs beside it",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1"})], "initContainers": [_c({"cpu": "5"}), _sidecar({"cpu": "2"})]},
        {"cpu": 5000},
        {},
        id="a sidecar declared after an init step does not",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1"}, {"cpu": "2"})], "overhead": {"cpu": "250m", "memory": "1Ki"}},
        {"cpu": 1250, "memory": 1024},
        {"cpu": 2250},
        id="overhead counts, on limits only where there are any",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1"})], "initContainers": [_c({"cpu": "4"})], "overhead": {"cpu": "500m"}},
        {"cpu": 4500},
        {},
        id="overhead is added to the init step too, as the kubelet admits",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1", GPU: "1"})], "resources": {"requests": {"cpu": "8", GPU: "9"}}},
        {"cpu": 8000, GPU: 1000},
        {},
        id="pod-level cpu wins, pod-level devices do not exist",
    ),
    pytest.param(
        {
            "containers": [_c({"cpu": "1"}, {"cpu": "3"})],
            "resources": {"limits": {"cpu": "4", "memory": "8Ki", "hugepages-2Mi": "2Mi"}},
        },
        {"cpu": 1000, "memory": 8192, "hugepages-2Mi": 2 * 1024**2},
        {"cpu": 4000, "memory": 8192, "hugepages-2Mi": 2 * 1024**2},
        id="a pod-level limit is the request where no container has one",
    ),
    pytest.param(
        {"containers": [_c({"cpu": "1"})], "resources": {"requests": {"cpu": "8"}}, "overhead": {"cpu": "1"}},
        {"cpu": 9000},
        {},
        id="overhead comes on top of pod-level resources",
    ),
    pytest.param(
        {"containers": [_c({"count/pods": "3", "requests.cpu": "1", "unknown": "1", "pods": "5", "rdma/hca": "1"})]},
        {"rdma/hca": 1000},
        {},
        id="what is not scheduled is left out, and a pod takes one slot",
    ),
    pytest.param(
        {"containers": [_c({"memory": "8Ei"}), _c({"memory": "8Ei"})]},
        {"memory": MAX_POD_AMOUNT},
        {},
        id="sums are capped like single quantities",
    ),
]


@pytest.mark.parametrize("spec, requests, limits", REQUESTS)
def test_effective_requests_and_limits(spec: Json, requests: dict[str, int], limits: dict[str, int]) -> None:
    template = template_of(_pod(**spec))
    assert template.requests == {**requests, "pods": 1}
    assert template.limits == limits


def test_amounts_are_sorted_so_that_equal_templates_are_equal_item_by_item() -> None:
    one = template_of(_pod(containers=[_c({"cpu": "1", GPU: "1", "memory": "1Gi"}, {GPU: "1", "cpu": "1"})]))
    two = template_of(_pod(containers=[_c({"memory": "1024Mi", "cpu": 1.0, GPU: 1}, {"cpu": "1000m", GPU: 1})]))
    assert asdict(one) == asdict(two)
    assert list(one.requests) == ["cpu", "memory", GPU, "pods"]
    assert list(one.limits.items()) == list(two.limits.items())


@pytest.mark.parametrize(
    "spec, cpu_milli, memory_bytes",
    [
        pytest.param({"containers": []}, 0, 0, id="no container"),
        pytest.param({"containers": [{}]}, 100, 200 * 1024**2, id="both unset"),
        pytest.param({"containers": [_c({"cpu": "2"})]}, 2000, 200 * 1024**2, id="memory unset"),
        pytest.param({"containers": [_c({"cpu": "0", "memory": "0"})]}, 0, 0, id="an explicit zero is not unset"),
        pytest.param({"containers": [_c(None, {"cpu": "2"})]}, 2000, 200 * 1024**2, id="a limit is a request"),
        pytest.param({"containers": [{}, {}, _c({"cpu": "1"})]}, 1200, 600 * 1024**2, id="per container"),
        pytest.param(
            {"containers": [{}], "initContainers": [_c({"cpu": "1", "memory": "1"})]},
            1000,
            200 * 1024**2,
            id="init steps by the usual maximum",
        ),
        pytest.param({"containers": [{}], "overhead": {"cpu": "1"}}, 1100, 200 * 1024**2, id="overhead"),
        pytest.param(
            {"containers": [{}], "resources": {"requests": {"cpu": "3"}}}, 3000, 200 * 1024**2, id="pod level"
        ),
    ],
)
def test_nonzero_requests_replace_missing_requests_of_a_container(
    spec: Json, cpu_milli: int, memory_bytes: int
) -> None:
    template = template_of(_pod(**spec))
    assert (template.nonzero_cpu_milli, template.nonzero_memory_bytes) == (cpu_milli, memory_bytes)


BAD = [
    (
        {"containers": [{}, _c({"cpu": "two"})]},
        "spec.containers[1].resources.requests[cpu]: 'two' is not a quantity: expected a number",
    ),
    (
        {"containers": [_c(None, {GPU: "1 card"})]},
        "spec.containers[0].resources.limits[nvidia.com/gpu]: '1 card' is not a quantity: unknown suffix ' card'",
    ),
    (
        {"containers": [{}], "initContainers": [_c({"memory": "1GB"})]},
        "spec.initContainers[0].resources.requests[memory]: '1GB' is not a quantity: unknown suffix 'GB'",
    ),
    ({"containers": [{}], "overhead": {"cpu": "x"}}, "spec.overhead[cpu]: 'x' is not a quantity"),
    (
        {"containers": [{}], "resources": {"requests": {"cpu": "1e"}}},
        "spec.resources.requests[cpu]: '1e' is not a quantity: unknown suffix 'e'",
    ),
    (
        {"containers": [{}], "resources": {"limits": {"memory": ""}}},
        "spec.resources.limits[memory]: '' is not a quantity",
    ),
    ({"containers": [_c({"cpu": "-1"})]}, "spec.containers[0].resources.requests[cpu]: '-1' is negative"),
    ({"containers": [_c({GPU: -1})]}, "spec.containers[0].resources.requests[nvidia.com/gpu]: '-1' is negative"),
    ({"containers": [_c({"cpu": "-1n"})]}, "spec.containers[0].resources.requests[cpu]: '-1n' is negative"),
    ({"containers": [_c(None, {"cpu": "-1"})]}, "spec.containers[0].resources.limits[cpu]: '-1' is negative"),
    ({"containers": [{}], "overhead": {"memory": "-1"}}, "spec.overhead[memory]: '-1' is negative"),
]


@pytest.mark.parametrize("spec, message", BAD)
def test_bad_quantities_are_named_by_their_path(spec: Json, message: str) -> None:
    with pytest.raises(QuantityError) as caught:
        template_of(_pod(**spec))
    assert str(caught.value).startswith(message)


_amounts = st.dictionaries(st.sampled_from(["cpu", "memory", GPU]), st.integers(0, 50), max_size=3)
_containers = st.lists(_amounts, min_size=1, max_size=3)
_init = st.lists(st.tuples(_amounts, st.booleans()), max_size=4)


@given(containers=_containers, init=_init)
def test_the_request_covers_every_moment_of_a_pods_life_and_no_more(
    containers: list[dict[str, int]], init: list[tuple[dict[str, int], bool]]
) -> None:
    pod = _pod(
        containers=[_c(dict(amounts)) for amounts in containers],
        initContainers=[_sidecar(dict(a)) if always else _c(dict(a)) for a, always in init],
    )
    # Replay the life: each start step with the sidecars so far, then everything together.
    moments: list[list[dict[str, int]]] = []
    running: list[dict[str, int]] = []
    for amounts, always in init:
        moments.append([*running, amounts])
        if always:
            running.append(amounts)
    moments.append([*running, *containers])
    names = {name for moment in moments for amounts in moment for name in amounts}
    unit = {"cpu": 1000, "memory": 1, GPU: 1000}
    expected = {n: unit[n] * max(sum(a.get(n, 0) for a in moment) for moment in moments) for n in names}
    assert template_of(pod).requests == {**expected, "pods": 1}


# --- the rest of the template ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, expected",
    [
        pytest.param({"containers": [{"ports": [{"containerPort": 80}]}]}, (), id="no host port"),
        pytest.param(
            {"containers": [{"ports": [{"hostPort": 80, "containerPort": 8080}]}]},
            (HostPort("", "TCP", 80),),
            id="defaults",
        ),
        pytest.param(
            {"containers": [{"ports": [{"hostPort": 9, "protocol": "UDP", "hostIP": "10.0.0.1"}]}]},
            (HostPort("10.0.0.1", "UDP", 9),),
            id="as written",
        ),
        pytest.param(
            {"containers": [{"ports": [{"hostPort": 9, "hostIP": "0.0.0.0"}, {"hostPort": 9}]}]},
            (HostPort("", "TCP", 9),),
            id="every address is written in two ways",
        ),
        pytest.param(
            {"containers": [{"ports": [{"containerPort": 80}]}], "hostNetwork": True},
            (HostPort("", "TCP", 80),),
            id="on the host's network every port is a host port",
        ),
        pytest.param(
            {
                "containers": [{"ports": [{"hostPort": 2}]}],
                "initContainers": [
                    {"ports": [{"hostPort": 1}], "restartPolicy": "Always"},
                    {"ports": [{"hostPort": 3}]},
                ],
            },
            (HostPort("", "TCP", 1), HostPort("", "TCP", 2)),
            id="sidecars keep theirs, init steps do not",
        ),
    ],
)
def test_host_ports(spec: Json, expected: tuple[HostPort, ...]) -> None:
    assert template_of(_pod(**spec)).host_ports == expected


def test_a_template_holds_everything_that_decides_placement() -> None:
    pod = _pod(
        containers=[{"image": "main:1"}, {"image": "side:2"}],
        initContainers=[{"image": "init:3"}],
        nodeSelector={"zone": "a"},
        affinity={"nodeAffinity": {}},
        tolerations=[{"key": "k", "operator": "Exists"}],
        topologySpreadConstraints=[{"maxSkew": 2, "topologyKey": "zone"}],
        volumes=[
            {"name": "x"},
            {"name": "y", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "z", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "disk", "awsElasticBlockStore": {"volumeID": "aws://zone/vol"}},
            {"name": "same", "awsElasticBlockStore": {"volumeID": "vol"}},
            {"name": "block", "portworxVolume": {"volumeID": "id"}},
        ],
        priorityClassName="high",
        preemptionPolicy="Never",
    )
    expected = PodTemplate(
        requests={"pods": 1},
        limits={},
        nonzero_cpu_milli=2 * DEFAULT_CPU_MILLI,
        nonzero_memory_bytes=2 * DEFAULT_MEMORY_BYTES,
        node_selector={"zone": "a"},
        affinity=pod.spec.affinity,
        tolerations=(Toleration("k", "Exists"),),
        spread=pod.spec.topology_spread_constraints or (),
        host_ports=(),
        images=("init:3", "main:1", "side:2"),
        volumes=("data", "-scratch"),
        own_volumes=("-scratch",),
        inline_volumes=(
            AttachmentKey("ebs.csi.aws.com", "vol"),
            AttachmentKey("pxd.portworx.com", "id", "kubernetes.io/portworx-volume"),
        ),
        priority_class_name="high",
        preemption_policy="Never",
    )
    assert asdict(template_of(pod)) == asdict(expected)


def test_an_empty_pod_has_an_empty_template() -> None:
    template = template_of(PodObject())
    assert template.requests == {"pods": 1}
    assert (template.node_selector, template.affinity, template.tolerations, template.spread) == ({}, None, (), ())
