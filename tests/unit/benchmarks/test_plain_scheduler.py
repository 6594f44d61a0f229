"""The engine and the plain scheduler decide the same, pod by pod: on the workloads and on random clusters."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.measure import NOW, build_core, encode, take_in
from benchmarks.plain_scheduler import schedule
from benchmarks.workloads import WORKLOADS, make
from capcard_sched.framework.core import Core
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.intents import Bind
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, QueueObject

Documents = tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]


def engine(core: Core) -> dict[str, str]:
    """Placements of one session of the engine."""
    result = core.step((), NOW)
    assert result.report.errors == []
    return {f"{i.namespace}/{i.name}": i.node for i in result.intents if isinstance(i, Bind)}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_placed_the_same(name: str, seed: int) -> None:
    workload = make(name, 40, 400, seed)
    core = build_core()
    take_in(core, encode(workload))
    assert engine(core) == schedule(*workload.documents())


# --- random clusters --------------------------------------------------------------------------------------------------

MODELS = ("A", "B", "C")
CARDS = ("", "A", "B", "A|B", "B|C", "C|A|B")


@st.composite
def clusters(draw: st.DrawFn) -> Documents:
    """A few nodes, two queues, a few groups of identical or mixed pods, some of which run already."""
    nodes = [draw(_nodes(number)) for number in range(draw(st.integers(1, 5)))]
    queues = [draw(_queues(name)) for name in ("p", "q")]
    groups, pods = [], []
    for number in range(draw(st.integers(1, 6))):
        size, minimum = draw(st.integers(1, 6)), draw(st.integers(0, 4))
        phase = draw(st.sampled_from(["Pending", "Inqueue", "Inqueue"]))
        groups.append(
            {
                "metadata": {"name": f"g{number}", "namespace": "default", "uid": f"g{number}"},
                "spec": {"queue": draw(st.sampled_from("pq")), "minMember": minimum},
                "status": {"phase": phase},
            }
        )
        template = draw(_templates())
        for member in range(size):
            if draw(st.integers(0, 4)) == 0:
                template = draw(_templates())
            pods.append(_pod(f"g{number}", member, template))
    return nodes, queues, groups, pods


@st.composite
def _nodes(draw: st.DrawFn, number: int) -> dict[str, Any]:
    model = draw(st.sampled_from(MODELS))
    labels = {"nvidia.com/gpu.product": model, "nvidia.com/gpu.memory": "81920", "zone": draw(st.sampled_from("xy"))}
    amounts = {
        "cpu": str(draw(st.integers(2, 16))),
        "memory": f"{draw(st.integers(4, 32))}Gi",
        "pods": str(draw(st.sampled_from([3, 110]))),
        "nvidia.com/gpu": str(draw(st.integers(1, 8))),
    }
    taints = [{"key": "k", "value": "v", "effect": draw(st.sampled_from(["NoSchedule", "NoExecute"]))}]
    return {
        "metadata": {"name": f"n{number}", "labels": labels},
        "spec": {"taints": draw(st.sampled_from([[], [], [], taints])), "unschedulable": draw(st.integers(0, 9)) == 0},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


@st.composite
def _queues(draw: st.DrawFn, name: str) -> dict[str, Any]:
    quota = {model: draw(st.sampled_from([0, 1, 2, 3, 5, 8])) for model in MODELS}
    capability = draw(st.sampled_from([None, None, None, {"cpu": "6"}, {"memory": "12Gi"}]))
    return {
        "metadata": {"name": name, "annotations": {"volcano.sh/card.quota": msgspec.json.encode(quota).decode()}},
        "spec": {"priority": draw(st.integers(0, 1))} | ({"capability": capability} if capability else {}),
        "status": {"state": "Open"},
    }


@st.composite
def _templates(draw: st.DrawFn) -> dict[str, Any]:
    requests = {"cpu": f"{draw(st.integers(1, 30))}00m", "memory": f"{draw(st.integers(1, 30))}00Mi"}
    notes, limits = {}, {}
    card = draw(st.sampled_from(CARDS))
    if card:
        notes["volcano.sh/card.name"] = card
        limits = {"nvidia.com/gpu": str(draw(st.sampled_from([1, 1, 2, 3])))}
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "resources": {"requests": requests | limits, "limits": limits}}]
    }
    if draw(st.integers(0, 3)) == 0:
        spec["nodeSelector"] = {"zone": draw(st.sampled_from("xy"))}
    if draw(st.booleans()):
        spec["tolerations"] = [{"key": "k", "operator": "Exists"}]
    return {"notes": notes, "spec": spec}


def _pod(group: str, member: int, template: dict[str, Any]) -> dict[str, Any]:
    name = f"{group}-pod-{member}"
    notes = {"scheduling.k8s.io/group-name": group, **template["notes"]}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": notes},
        "spec": {"schedulerName": "capcard-sched", **template["spec"]},
        "status": {"phase": "Pending"},
    }


def engine_on(documents: Documents) -> dict[str, str]:
    core = build_core()
    for objects, kind in zip(documents, (NodeObject, QueueObject, PodGroupObject, PodObject), strict=True):
        for body in objects:
            core.apply(ObjectChanged(msgspec.convert(body, kind)))
    return engine(core)


@settings(max_examples=2 * settings().max_examples)
@given(clusters())
def test_random_clusters_are_placed_the_same(documents: Documents) -> None:
    assert engine_on(documents) == schedule(*documents)


@given(clusters())
def test_running_pods_are_counted_the_same(documents: Documents) -> None:
    nodes, queues, groups, pods = documents
    placed = schedule(*documents)
    running = {name for name in placed if int(name.rpartition("-")[2]) % 2 == 0}
    for pod in pods:
        name = f"default/{pod['metadata']['name']}"
        if name in running:
            pod["spec"]["nodeName"] = placed[name]
            pod["status"]["phase"] = "Running"
    for group in groups:
        if any(name.startswith(f"default/{group['metadata']['name']}-") for name in running):
            group["status"]["phase"] = "Running"
    assert engine_on((nodes, queues, groups, pods)) == schedule(nodes, queues, groups, pods)
