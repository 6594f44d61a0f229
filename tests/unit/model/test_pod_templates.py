"""Templates of pods: requests, limits, CPUs of their own and constraints, with the defaults of the API server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.in_tree_volumes import AttachmentKey
from capcard_sched.model.objects import HostPort, PodObject, PodSpec, Toleration
from capcard_sched.model.pod_requests import DEFAULT_CPU_MILLI, DEFAULT_MEMORY_BYTES
from capcard_sched.model.pod_template import own_cpus, template_of
from capcard_sched.model.quantity import MAX_POD_AMOUNT, QuantityError
from capcard_sched.model.task_class import PodTemplate

GPU = "nvidia.com/gpu"
GI = 1024**3
Json = dict[str, Any]


def _pod(**spec: Any) -> PodObject:
    return msgspec.convert({"spec": spec}, PodObject)


def _c(requests: Json | None = None, limits: Json | None = None, **more: Any) -> Json:
    return {"resources": {"requests": requests, "limits": limits}, **more}


def _amounts_of(text: str) -> Json:
    pairs = (pair.split("=") for pair in text.split())
    return {GPU if name == "gpu" else name: amount for name, amount in pairs}


def _spec(text: str) -> Json:
    """The spec of a pod: `a cpu=1 memory=1Gi / cpu=2; init b cpu=3; overhead cpu=1`, requests / limits.

    `init`: an init container, `sidecar`: one with restartPolicy Always, `pod`: resources of the pod; `/ same`: limits
    are the requests.
    """
    spec: Json = {"containers": [], "initContainers": []}
    for part in filter(None, text.split(";")):
        kind, name, *amounts = part.split() if part.split()[0] in ("init", "sidecar") else ("", *part.split())
        requests, _, limits = (" " + " ".join(amounts)).partition(" /")
        found = _amounts_of(requests), _amounts_of(requests if limits.strip() == "same" else limits)
        if name == "overhead":
            spec["overhead"] = found[0]
        elif name == "pod":
            spec |= _c(*found)
        else:
            always: Json = {"restartPolicy": "Always"} if kind == "sidecar" else {}
            spec["initContainers" if kind else "containers"].append(_c(*found, name=name, **always))
    return spec


#: Name, pod, its requests beside one pod slot, its limits.
REQUESTS: list[tuple[str, str, dict[str, int], dict[str, int]]] = [
    ("no containers", "", {}, {}),
    ("a container that requests nothing", "a", {}, {}),
    ("one container", "a cpu=1500m memory=1Gi gpu=1", {"cpu": 1500, "memory": GI, GPU: 1000}, {}),
    ("containers add up", "a cpu=1; b cpu=1 memory=5; c", {"cpu": 2000, "memory": 5}, {}),
    ("a limit alone is also the request", "a / gpu=2; b gpu=2 / gpu=2", {GPU: 4000}, {GPU: 4000}),
    ("a request stays below its limit", "a cpu=1 / cpu=2 memory=1Ki",
     {"cpu": 1000, "memory": 1024}, {"cpu": 2000, "memory": 1024}),
    ("an explicit zero is a request", "a cpu=0 / cpu=2", {"cpu": 0}, {"cpu": 2000}),
    ("the largest init step", "a gpu=1; init i gpu=1; init j gpu=2", {GPU: 2000}, {}),
    ("the largest init step, by limits", "a gpu=1 / same; init i / gpu=1; init j / gpu=2", {GPU: 2000}, {GPU: 2000}),
    ("the maximum is taken per resource", "a cpu=2 memory=10; init i cpu=1 memory=20", {"cpu": 2000, "memory": 20}, {}),
    ("a sidecar runs beside the containers", "a cpu=1; sidecar s cpu=2", {"cpu": 3000}, {}),
    ("a sidecar declared before an init step runs beside it", "a cpu=1; sidecar s cpu=2; init i cpu=5",
     {"cpu": 7000}, {}),
    ("a sidecar declared after an init step does not", "a cpu=1; init i cpu=5; sidecar s cpu=2", {"cpu": 5000}, {}),
    ("overhead counts, on limits only where there are any", "a cpu=1 / cpu=2; overhead cpu=250m memory=1Ki",
     {"cpu": 1250, "memory": 1024}, {"cpu": 2250}),
    ("overhead is added to the init step too, as the kubelet admits", "a cpu=1; init i cpu=4; overhead cpu=500m",
     {"cpu": 4500}, {}),
    ("pod-level cpu wins, pod-level devices do not exist", "a cpu=1 gpu=1; pod cpu=8 gpu=9",
     {"cpu": 8000, GPU: 1000}, {}),
    ("a pod-level limit is the request where no container has one",
     "a cpu=1 / cpu=3; pod / cpu=4 memory=8Ki hugepages-2Mi=2Mi",
     {"cpu": 1000, "memory": 8192, "hugepages-2Mi": 2 * 1024**2},
     {"cpu": 4000, "memory": 8192, "hugepages-2Mi": 2 * 1024**2}),
    ("overhead comes on top of pod-level resources", "a cpu=1; pod cpu=8; overhead cpu=1", {"cpu": 9000}, {}),
    ("what is not scheduled is left out, and a pod takes one slot",
     "a count/pods=3 requests.cpu=1 unknown=1 pods=5 rdma/hca=1", {"rdma/hca": 1000}, {}),
    ("sums are capped like single quantities", "a memory=8Ei; b memory=8Ei", {"memory": MAX_POD_AMOUNT}, {}),
]  # fmt: skip


@pytest.mark.parametrize("text, requests, limits", [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS])
def test_effective_requests_and_limits(text: str, requests: dict[str, int], limits: dict[str, int]) -> None:
    template = template_of(_pod(**_spec(text)))
    assert template.requests == {**requests, "pods": 1}
    assert template.limits == limits


#: Name, pod, milli-cpu, MiB.
NONZERO = [
    ("no container", "", 0, 0),
    ("both unset", "a", 100, 200),
    ("memory unset", "a cpu=2", 2000, 200),
    ("an explicit zero is not unset", "a cpu=0 memory=0", 0, 0),
    ("a limit is a request", "a / cpu=2", 2000, 200),
    ("per container", "a; b; c cpu=1", 1200, 600),
    ("init steps by the usual maximum", "a; init i cpu=1 memory=1", 1000, 200),
    ("overhead", "a; overhead cpu=1", 1100, 200),
    ("pod level", "a; pod cpu=3", 3000, 200),
]


@pytest.mark.parametrize("text, cpu, memory", [row[1:] for row in NONZERO], ids=[row[0] for row in NONZERO])
def test_nonzero_requests_replace_missing_requests_of_a_container(text: str, cpu: int, memory: int) -> None:
    template = template_of(_pod(**_spec(text)))
    assert (template.nonzero_cpu_milli, template.nonzero_memory_bytes) == (cpu, memory * 1024**2)


#: Name, pod, names and CPUs of the containers with CPUs of their own: of QoS class Guaranteed, and whole.
OWN_CPUS: list[tuple[str, str, tuple[tuple[str, int], ...] | None]] = [
    ("whole CPUs", "a cpu=2 memory=1Gi / same", (("a", 2),)),
    ("in thousandths", "a cpu=2000m memory=1Gi / same", (("a", 2),)),
    ("fractions", "a cpu=1500m memory=1Gi / same", ()),
    ("limits are requests", "a / cpu=2 memory=1Gi", (("a", 2),)),
    ("the same amount otherwise", "a cpu=2.0 / cpu=2 memory=1Gi", (("a", 2),)),
    ("with devices", "a cpu=2 memory=1Gi gpu=1 / same", (("a", 2),)),
    ("several, in order", "a cpu=1 memory=1 / same; b cpu=500m memory=1 / same; c cpu=3 memory=1 / same",
     (("a", 1), ("c", 3))),
    ("one requests nothing", "a cpu=2 memory=1Gi / same; b", None),
    ("burstable", "a cpu=1 memory=1Gi / cpu=2 memory=1Gi", None),
    ("no limits", "a cpu=2 memory=1Gi", None),
    ("no memory", "a / cpu=2", None),
    ("a limit of nothing", "a / cpu=0 memory=1", None),
    ("unreadable", "a / cpu=x memory=1", None),
    ("no container", "", None),
    ("init containers end", "a cpu=2 memory=1Gi / same; init i cpu=8 memory=1Gi / same", (("a", 2),)),
    ("init containers count", "a cpu=2 memory=1Gi / same; init i", None),
    ("sidecars last", "a cpu=2 memory=1 / same; init i cpu=8 memory=1 / same; sidecar s cpu=1 memory=1 / same",
     (("s", 1), ("a", 2))),
    ("for the whole pod", "a; pod / cpu=2 memory=1Gi", ()),
    ("burstable as a whole", "a cpu=2 memory=1Gi / same; pod cpu=1 / cpu=2 memory=1Gi", None),
    ("huge pages of the pod decide nothing", "a cpu=2 memory=1Gi / same; pod / hugepages-2Mi=4Mi", (("a", 2),)),
]  # fmt: skip


@pytest.mark.parametrize("text, expected", [row[1:] for row in OWN_CPUS], ids=[row[0] for row in OWN_CPUS])
def test_own_cpus(text: str, expected: tuple[tuple[str, int], ...] | None) -> None:
    assert own_cpus(msgspec.convert(_spec(text), PodSpec)) == expected


def test_amounts_are_sorted_so_that_equal_templates_are_equal_item_by_item() -> None:
    one = template_of(_pod(containers=[_c({"cpu": "1", GPU: "1", "memory": "1Gi"}, {GPU: "1", "cpu": "1"})]))
    two = template_of(_pod(containers=[_c({"memory": "1024Mi", "cpu": 1.0, GPU: 1}, {"cpu": "1000m", GPU: 1})]))
    assert asdict(one) == asdict(two)
    assert list(one.requests) == ["cpu", "memory", GPU, "pods"]
    assert list(one.limits.items()) == list(two.limits.items())


#: Pod, and its error.
BAD = [
    ("a; b cpu=two", "spec.containers[1].resources.requests[cpu]: 'two' is not a quantity: expected a number"),
    ("a / gpu=1card", f"spec.containers[0].resources.limits[{GPU}]: '1card' is not a quantity: unknown suffix 'card'"),
    ("a; init i memory=1GB",
     "spec.initContainers[0].resources.requests[memory]: '1GB' is not a quantity: unknown suffix 'GB'"),
    ("a; overhead cpu=x", "spec.overhead[cpu]: 'x' is not a quantity"),
    ("a; pod cpu=1e", "spec.resources.requests[cpu]: '1e' is not a quantity: unknown suffix 'e'"),
    ("a; pod / memory=", "spec.resources.limits[memory]: '' is not a quantity"),
    ("a cpu=-1", "spec.containers[0].resources.requests[cpu]: '-1' is negative"),
    ("a cpu=-1n", "spec.containers[0].resources.requests[cpu]: '-1n' is negative"),
    ("a / gpu=-1", f"spec.containers[0].resources.limits[{GPU}]: '-1' is negative"),
    ("a; overhead memory=-1", "spec.overhead[memory]: '-1' is negative"),
]  # fmt: skip


@pytest.mark.parametrize("text, message", BAD)
def test_bad_quantities_are_named_by_their_path(text: str, message: str) -> None:
    with pytest.raises(QuantityError) as caught:
        template_of(_pod(**_spec(text)))
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
        initContainers=[_c(dict(a), restartPolicy="Always" if always else None) for a, always in init],
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


def _ports(*containers: Json, **more: Any) -> Json:
    return {"containers": [{"ports": [one]} for one in containers], **more}


#: Name, pod, its host ports.
PORTS: list[tuple[str, Json, tuple[HostPort, ...]]] = [
    ("no host port", _ports({"containerPort": 80}), ()),
    ("defaults", _ports({"hostPort": 80, "containerPort": 8080}), (HostPort("", "TCP", 80),)),
    ("as written", _ports({"hostPort": 9, "protocol": "UDP", "hostIP": "10.0.0.1"}), (HostPort("10.0.0.1", "UDP", 9),)),
    ("every address is written in two ways", _ports({"hostPort": 9, "hostIP": "0.0.0.0"}, {"hostPort": 9}),
     (HostPort("", "TCP", 9),)),
    ("on the host's network every port is a host port", _ports({"containerPort": 80}, hostNetwork=True),
     (HostPort("", "TCP", 80),)),
    ("sidecars keep theirs, init steps do not", _ports({"hostPort": 2}, initContainers=[
        {"ports": [{"hostPort": 1}], "restartPolicy": "Always"}, {"ports": [{"hostPort": 3}]}]),
     (HostPort("", "TCP", 1), HostPort("", "TCP", 2))),
]  # fmt: skip


@pytest.mark.parametrize("spec, expected", [row[1:] for row in PORTS], ids=[row[0] for row in PORTS])
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
