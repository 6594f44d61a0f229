"""The output of `kubectl describe` for pending objects: the reason with figures."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, pod, pod_group, queue
from tests.controlplane.processes import output
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.expectations import until

A10, H200 = "A10", "NVIDIA-H200"
_CARD = {"cpu": "100m", "nvidia.com/gpu": "1"}
_CONF = CARD_CONF.replace("{name: capacity-card}", "{name: capacity-card, arguments: {publishCardUsage: true}}")
_AGE = re.compile(r"(<\S+>|\d+[smh]\S*( \(x\d+ over \d+[smh]\S*\))?)")


class Row(NamedTuple):
    """A line of the table of events."""

    type: str
    reason: str
    age: str
    source: str
    message: str


class Described:
    """The text of `kubectl describe`, in parts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.head, _, events = text.partition("\nEvents:")
        #: Oldest first, as kubectl has them.
        self.events = [Row(*re.split(r"\s{2,}", line.strip(), maxsplit=4)) for line in events.splitlines()[3:] if line]

    def value(self, name: str) -> str:
        """The value behind `Name:`, the first of that name."""
        matched = re.search(rf"^ *{re.escape(name)}: +(.*)$", self.head, re.MULTILINE)
        assert matched is not None, f"no {name} in\n{self.head}"
        return matched[1].strip()

    def messages_of(self, reason: str) -> list[tuple[str, str]]:
        """Source and message of the events with this reason."""
        return [(event.source, event.message) for event in self.events if event.reason == reason]


Describe = Callable[[str], Awaitable[Described]]


@pytest.fixture
def describe(cluster: Cluster, control_plane: ControlPlane) -> Describe:
    async def describe_object(what: str) -> Described:
        command = [str(control_plane.programs / "kubectl"), "--kubeconfig", str(control_plane.kubeconfig)]
        command += ["-n", cluster.namespace, "describe", what]
        return Described(await output(*command))

    return describe_object


async def _until_emitted(cluster: Cluster, reason: str, names: set[str]) -> None:
    """Wait for events with this reason about all of these objects, and for their conditions, which come along."""
    for name in names:
        await until(cluster, "events", namespace="*", reason=reason, involvedObject={"name": name})


async def test_pending_objects_show_the_reason_with_figures(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, describe: Describe, tmp_path: Path
) -> None:
    await cluster.create_all([gpu_node("n1", A10, 8), gpu_node("n2", H200, 2), queue("q", cards={A10: 4, H200: 8})])
    await cluster.create(queue("broken", annotations={keys.CARD_QUOTA: '{"A10": 2.5}'}))
    await cluster.create_all(gang("runs", 3, queue="q", cards=A10, requests=_CARD))
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=_CONF) as daemon:
        await until(cluster, "queues", "q", metadata={"annotations": {keys.CARD_ALLOCATED: '{"A10":3}'}})
        await until(cluster, "podgroups", "runs", status={"phase": "Running", "running": 3})
        # Pods and their group may arrive in either order: the group itself states the request of the job.
        waits = [*gang("waits", 2, queue="q", cards=A10, requests=_CARD), pod("odd", queue="q", cards="A10||B")]
        waits[0]["metadata"]["annotations"][keys.CARD_REQUEST] = '{"A10": 2}'
        nodes = gang("nodes", 3, queue="q", cards=H200, requests=_CARD)
        early = pod_group("early", queue="q", annotations={keys.CARD_REQUEST: '{"A10": 3}'})
        await cluster.create_all([item for item in [*waits, *nodes, early] if item["kind"] == "Pod"])
        await cluster.create_all([item for item in [*waits, *nodes, early] if item["kind"] == "PodGroup"])
        await _until_emitted(cluster, "InsufficientScalarQuota", {"waits", "waits-0", "waits-1", "early"})
        await _until_emitted(cluster, "Unschedulable", {"nodes"})
        await _until_emitted(cluster, "CanNeverStart", {"nodes", "nodes-0", "nodes-1", "nodes-2"})
        await _until_emitted(cluster, "GetTaskRequestResourceFailed", {"odd"})

        # A pod that the quota rejects: the reason once, from Volcano's source, and in its condition.
        shown = await describe("pod/waits-0")
        short = (
            "Queue <q> has insufficient <A10> quota: requested <2000>, total would be <5000>, but capability is <4000>"
        )
        assert shown.messages_of("InsufficientScalarQuota") == [("volcano.capacity-card", short)]
        assert shown.messages_of("FailedScheduling") == []
        assert re.search(r"PodScheduled +False", shown.head)
        condition = (await cluster.get("pods", "waits-0"))["status"]["conditions"][0]
        assert (condition["reason"], condition["message"]) == ("QuotaPending", short)

        # PodGroups of a job with pods, of one without, and of one that no node can take.
        for name, phase, reason, text in (
            ("waits", "Pending", "NotEnoughResources", f": {short}"),
            ("early", "Pending", "InsufficientScalarQuota", "total would be <6000>, but capability is <4000>"),
            ("nodes", "Inqueue", "NotEnoughResources", "1 node(s) didn't have card <NVIDIA-H200>."),
        ):
            shown = await describe(f"podgroup/{name}")
            assert (shown.value("Phase"), shown.value("Reason")) == (phase, reason), name
            assert shown.value("Message").endswith(text), name
            assert shown.events[-1].source == "capcard-sched", name

        # A wrong annotation, on the pod and on the queue.
        wrong = "Get request resource failed, Queue <q>, error: <invalid card name <A10||B>: empty alternative>"
        assert (await describe("pod/odd")).messages_of("GetTaskRequestResourceFailed") == [
            ("volcano.capacity-card", wrong)
        ]
        ((source, text),) = (await describe("queue/broken")).messages_of("InvalidCardQuota")
        assert source == "capcard-sched"
        assert "<A10>: 2.5 is not a whole number" in text

        # The queue: what it may use, what it uses.
        shown = await describe("queue/q")
        assert '{"A10": 4, "NVIDIA-H200": 8}' in shown.head
        assert f'{keys.CARD_ALLOCATED}: {{"A10":3}}' in shown.head
        assert (shown.value("nvidia.com/gpu"), shown.value("Cpu"), shown.value("State")) == ("3", "300m", "Open")

        # Running pods.
        shown = await describe("pod/runs-0")
        assert [(event.type, event.reason, event.message) for event in shown.events] == [
            ("Normal", "Scheduled", f"Successfully assigned {cluster.namespace}/runs-0 to n1")
        ]
        assert re.search(r"PodScheduled +True", shown.head)
        shown = await describe("podgroup/runs")
        assert (shown.value("Phase"), shown.value("Running")) == ("Running", "3")
        assert shown.messages_of("Scheduled") == [("capcard-sched", "pod group is ready")]

        for what in ("pod/waits-0", "podgroup/waits", "queue/broken"):
            for event in (await describe(what)).events:
                assert _AGE.fullmatch(event.age), f"{what}: {event}"
                assert event.type == "Warning"
        await daemon.stop()
