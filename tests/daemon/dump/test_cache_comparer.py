"""The cache comparer finds no difference in equal states and names every modification."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import pytest

from capcard_sched.daemon.diagnosis.cache_comparer import CacheDifference, compare, lasting
from capcard_sched.model import deltas
from capcard_sched.model.annotations import CARD_ASSIGNED, COOLDOWN_TIME, NODE_VGPU_REGISTER
from capcard_sched.model.card_registration import RegisteredCard, encode_registration
from capcard_sched.model.hyper_nodes import HyperNode
from capcard_sched.model.limits import Budget, Quota
from capcard_sched.model.numa import CpuTopology, NumaFacts
from capcard_sched.model.objects import PodConditionObject, PodObject
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.document import to_document
from tests import objects
from tests.daemon.dump.listed import Listed

CARD = "NVIDIA-H200"


def cluster() -> Listed:
    """Two nodes and two queues; a gang that runs, one that waits, a foreign pod, an ended one and a lonely one."""
    h = Listed(run=True)
    h.gpu_node("n1", count=4)
    h.gpu_node("n2", count=4)
    h.queue("q", cards={CARD: 4}, capability={"cpu": "64", "memory": "1Ti"})
    h.queue("r", cards={CARD: 2})
    h.priority_class("high", 100)
    h.group("runs", min_member=2, priority_class="high")
    h.group("waits", queue="r", min_member=2, min_task_member={"worker": 2})
    for name in ("a", "b"):
        h.pod(name, group="runs", card=CARD, cards=2)
    for name in ("c", "d"):
        h.pod(name, group="waits", card=CARD, cards=2, role="worker")
    h.pod("foreign", group=None, node="n2", scheduler="default-scheduler")
    h.pod("ended", group="runs", node="n1", phase="Succeeded")
    h.pod("lonely", group=None, annotations={"scheduling.volcano.sh/queue-name": "q"})
    h.step()
    h.settle()
    return h


def waiting_for_an_echo(echo: Literal["late", "none"] = "none", **pod: Any) -> tuple[Listed, str]:
    """The cluster in which pod `e` is bound and the watch has not shown it, and its node."""
    h = cluster()
    h.echo = echo
    h.pod("e", **{"group": "runs", "requests": {"cpu": "2"}, **pod})
    h.step()
    h.deliver()
    return h, h.binds["e"]


def unexpected(found: list[CacheDifference]) -> list[CacheDifference]:
    return [difference for difference in found if not difference.expected]


def test_a_cluster_that_has_come_to_rest_equals_its_list() -> None:
    h = cluster()
    assert set(h.binds) == {"a", "b", "lonely"}
    assert compare(h.state, h.listing()) == []
    assert compare(h.state, h.listing()[::-1]) == []


def test_comparing_changes_nothing() -> None:
    h = cluster()
    before = to_document(h.state)
    compare(h.state, [])
    assert to_document(h.state) == before
    assert h.step().idle


@pytest.mark.parametrize(("echo", "shows"), [("none", "Pending"), ("late", "Running on {}")])
def test_a_binding_that_the_watch_has_not_shown_yet_is_expected(echo: Literal["late", "none"], shows: str) -> None:
    h, node = waiting_for_an_echo(echo)
    there = shows.format(node)
    assert compare(h.state, h.listing()) == [
        CacheDifference("Pod", "default/e", "status", f"Binding on {node}", there, expected=True)
    ]
    h.catch_up()
    h.settle()
    assert unexpected(compare(h.state, h.listing())) == []


def test_the_card_of_a_binding_that_the_watch_has_not_shown_is_no_difference() -> None:
    h = cluster()
    h.queue("s", cards={CARD: 4})
    h.group("next", queue="s")
    h.echo = "late"
    h.pod("e", group="next", card=f"{CARD}|NVIDIA-A100", cards=1)
    h.step()
    h.deliver()
    assert h.bind_annotations["e"] == {CARD_ASSIGNED: CARD}
    assert [each.field for each in compare(h.state, h.listing())] == ["status"]


def shown(h: Listed, name: str, node: str) -> deltas.Delta:
    """The pod as the API server has it once it is bound there and runs."""
    delta = h.objects["Pod", f"default/{name}"]
    assert isinstance(delta, deltas.ObjectChanged)
    assert isinstance(delta.object, PodObject)
    spec = msgspec.structs.replace(delta.object.spec, node_name=node)
    status = msgspec.structs.replace(delta.object.status, phase="Running")
    return deltas.ObjectChanged(msgspec.structs.replace(delta.object, spec=spec, status=status))


def test_since_when_a_pod_cools_down_shows_with_its_binding() -> None:
    h, node = waiting_for_an_echo(annotations={COOLDOWN_TIME: "10m"})
    bound = shown(h, "e", node)
    assert isinstance(bound, deltas.ObjectChanged)
    assert isinstance(bound.object, PodObject)
    scheduled = PodConditionObject("PodScheduled", "True", last_transition_time="2026-01-01T00:00:00Z")
    status = msgspec.structs.replace(bound.object.status, conditions=(scheduled,))
    there = deltas.ObjectChanged(msgspec.structs.replace(bound.object, status=status))
    assert unexpected(compare(h.state, [*h.listing(), there])) == []
    h.state.apply(there)
    assert [item.field for item in compare(h.state, [*h.listing(), bound])] == ["cooldown"]


def test_a_binding_that_came_out_on_another_node_is_named() -> None:
    h, node = waiting_for_an_echo()
    other = "n1" if node == "n2" else "n2"
    found = unexpected(compare(h.state, [*h.listing(), shown(h, "e", other)]))
    assert CacheDifference("Pod", "default/e", "node", node, other) in found
    assert {(item.kind, item.name) for item in found if item.field == "used"} == {("Node", "n1"), ("Node", "n2")}


def test_an_eviction_under_way_is_expected() -> None:
    h = cluster()
    task = h.task("a")
    assert task.node is not None
    node = task.node.name
    h.state.release(task)
    assert compare(h.state, h.listing()) == [
        CacheDifference("Pod", "default/a", "status", f"Releasing on {node}", f"Running on {node}", expected=True)
    ]


def test_an_eviction_of_a_pod_that_is_bound_elsewhere_is_not_expected() -> None:
    h = cluster()
    task = h.task("a")
    assert task.node is not None
    h.state.release(task)
    found = compare(h.state, [*h.listing(), shown(h, "a", "n1" if task.node.name == "n2" else "n2")])
    assert {"node", "status"} <= {each.field for each in found if each.name == "default/a" and not each.expected}


def test_a_pod_left_alone_after_a_refused_binding_is_no_difference() -> None:
    h = cluster()
    h.echo = "none"
    h.pod("e", group="runs", requests={"cpu": "2"})
    h.step()
    h.apply(deltas.BindFailed("default", "e", h.task("e").uid, "no", retry_after=5.0))
    h._deltas, kept = [d for d in h._deltas if not isinstance(d, deltas.BindFailed)], h._deltas[-1]
    h.deliver()
    h.state.apply(kept)
    assert h.task("e").held
    assert compare(h.state, h.listing()) == []


def test_a_job_whose_pods_are_gone_equals_the_listed_one_that_never_had_any() -> None:
    h = cluster()
    h.group("short")
    h.pod("brief", group="short")
    h.step()
    h.delete_pod("brief")
    h.settle()
    assert h.job("short").had_tasks
    assert compare(h.state, h.listing()) == []


# --- tampering --------------------------------------------------------------------------------------------------------


#: Of the statements below.
WORDS = {each.__name__: each for each in (Budget, CpuTopology, HyperNode, NumaFacts, Quota, TaskStatus)}
#: Statements, and the beginning of the line that names what they change.
TAMPERING = """
nodes.used[by_name["n1"].row, 0] += 1
  Node n1: used: cache {'cpu':
nodes.releasing[by_name["n1"].row, 1] += 1
  Node n1: releasing: cache {'memory': 1}, API {}
nodes.nonzero_used[by_name["n2"].row, 1] += 1
  Node n2: nonzero_used: cache [
nodes.total_used[0] += 1
  Cluster: total_used: cache
queue.allocated[0] += 1
  Queue q: allocated: cache {'cpu':
queue.annotations = {'volcano.sh/card.quota': '40'}
  Queue q: annotations: cache {'volcano.sh/card.quota': '40'}, API
runs.allocated = runs.allocated + 1
  PodGroup default/runs: allocated: cache
runs.counts[TaskStatus.RUNNING] += 1
  PodGroup default/runs: counts: cache {'Running': 3, 'Succeeded': 1}, API {'Running': 2, 'Succeeded'
waits.phase = type(waits.phase).RUNNING
  PodGroup default/waits: phase: cache Running, API
waits.pending = {}
  PodGroup default/waits: pending: cache also nothing, API also default-c-uid, default-d-uid
waits.roles["worker"][0] += 1
  PodGroup default/waits: roles: cache {'worker': [3,
del state.schedulable["default/waits"]
  PodGroup default/waits: schedulable: cache False, API True
c.priority = 7
  Pod default/c: priority: cache 7, API 1
a.assigned_card = "NVIDIA-A100"
  Pod default/a: assigned_card: cache NVIDIA-A100, API
c.cls.requests = {**c.cls.requests, "cpu": 5}
  Pod default/c: requests: cache {'cpu': 5,
by_name["n1"].labels = {}
  Node n1: labels: cache {}, API {'kubernetes.io/hostname': 'n1',
del by_name["n2"].tasks[foreign.uid]
  Node n2: tasks: cache also nothing, API also default-foreign-uid
gone("Node", "", "n2")
  Node n2: object: cache none, API uid cluster-n2-uid
gone("Pod", "default", "c")
  Pod default/c: object: cache none, API Pending, uid default-c-uid
gone("Queue", "", "r")
  Queue r: object: cache none, API uid cluster-r-uid
gone("PodGroup", "default", "waits")
  PodGroup default/waits: uid: cache none, API default-waits-uid
gone("PodGroup", "default", "waits")
  PodGroup default/waits: min_task_member: cache {}, API {'worker': 2}
state.apply(pod("more", group="runs", node="n1"))
  Pod default/more: object: cache Running on n1, uid
state.namespaces["default"] = {"a": "b"}
  Namespace default: object: cache {'labels': {'a': 'b'}}, API none
state.quotas["default"] = {"q": Quota("default", "q", {"cpu": 1}, {"cpu": 0})}
  ResourceQuota default/q: object: cache {'hard': {'cpu': 1},
state.budgets["default"] = {"b": Budget("default", "b", None, 0, frozenset())}
  PodDisruptionBudget default/b: object: cache {'selector': None,
state.numa["n1"] = NumaFacts("n1", "static", "none", CpuTopology((), (), (), ()), 0, 0, frozenset())
  Numatopology n1: object: cache {'cpu_policy': 'static',
state.hyper_nodes["leaf"] = HyperNode("leaf", 1, "", ())
  HyperNode leaf: object: cache {'tier': 1,
state.apply(pod("bad", group="runs", requests={"cpu": "?"}))
  Cluster: unreadable: cache {'Pod default/bad':
"""


@pytest.mark.parametrize("statement, line", re.findall(r"^(\S.*)\n  (.*)$", TAMPERING, re.MULTILINE))
def test_a_tampered_field_is_named(statement: str, line: str) -> None:
    h = cluster()
    state = h.state
    tasks = {name: h.task(name) for name in ("a", "c", "foreign")}
    jobs = {name: h.job(name) for name in ("runs", "waits")}
    places = {"state": state, "nodes": state.nodes, "by_name": state.nodes.by_name, "queue": state.queues["q"]}
    gone = lambda *key: state.apply(deltas.ObjectGone(*key))  # noqa: E731
    exec(statement, {**globals(), **places, **tasks, **jobs, "gone": gone, "pod": objects.pod})
    lines = [difference.render() for difference in unexpected(compare(h.state, h.listing()))]
    assert any(found.startswith(line) for found in lines), lines


def test_only_unexpected_differences_of_both_comparisons_last() -> None:
    late = CacheDifference("Pod", "default/a", "node", "n1", "n2")
    wrong = CacheDifference("Node", "n1", "used", "{}", "{'cpu': 1}")
    under_way = CacheDifference("Pod", "default/b", "status", "Binding on n1", "Pending", expected=True)
    assert lasting([late, wrong, under_way], [wrong, under_way]) == [wrong]


def test_resources_that_were_met_in_another_order_are_the_same_resources() -> None:
    h = Listed()
    h.node("n1", resources={"a.com/x": 1})
    h.node("n2", resources={f"b.com/{i}": i for i in range(1, 12)})
    h.step()
    assert compare(h.state, h.listing()[::-1]) == []
    h.state.nodes.allocatable[0, h.state.columns.column("b.com/3")] += 1000
    found = compare(h.state, h.listing()[::-1])
    assert [(item.kind, item.name, item.field) for item in found] == [("Node", "n1", "allocatable")]


# --- storage ----------------------------------------------------------------------------------------------------------


def stored() -> Listed:
    """A bound claim, one that waits for its pod, and every object that restricts where volumes may be."""
    h = Listed(run=True)
    h.node("n1")
    h.queue("q")
    h.storage_class("fast")
    h.volume("disk", storage_class="fast", claim="data", driver="csi.test")
    h.claim("data", storage_class="fast", volume="disk")
    h.claim("scratch", storage_class="fast")
    h.csi_node("n1", csi_test=3)
    h.csi_driver("csi.test", storage_capacity=True)
    h.storage_capacity("here", storage_class="fast", capacity="10Gi", labels={})
    h.attachment("a1", node="n1", volume="disk")
    h.settle()
    return h


STORAGE = [
    ("PersistentVolumeClaim default/data", "PersistentVolumeClaim default/data: object: cache none, "),
    ("PersistentVolume /disk", "PersistentVolume disk: object: cache none, "),
    ("PersistentVolume /disk", "Cluster: reserved: cache {}, API {'default/data': ['disk']}"),
    ("PersistentVolume /disk", "Cluster: volumes_of_class: cache {}, API {'fast': ['disk']}"),
    ("StorageClass /fast", "StorageClass fast: object: cache none, "),
    ("CSINode /n1", "CSINode n1: object: cache none, API {'limits': {'csi.test': 3}"),
    ("CSIDriver /csi.test", "Cluster: tracked_drivers: cache also nothing, API also csi.test"),
    ("CSIStorageCapacity kube-system/here", "CSIStorageCapacity kube-system/here: object: cache none, "),
    ("VolumeAttachment /a1", "VolumeAttachment n1/a1: object: cache none, API {'node': 'n1', 'volume': 'disk'}"),
]


@pytest.mark.parametrize("lost, line", STORAGE, ids=[line for _, line in STORAGE])
def test_storage_that_memory_has_lost_is_named(lost: str, line: str) -> None:
    h = stored()
    assert compare(h.state, h.listing()) == []
    assert compare(h.state, h.listing()[::-1]) == []
    kind, _, key = lost.partition(" ")
    h.state.apply(deltas.ObjectGone(kind, *key.split("/")))
    lines = [difference.render() for difference in compare(h.state, h.listing())]
    assert any(found.startswith(line) for found in lines), lines


def test_a_claim_that_is_settled_with_a_binding_makes_no_difference_before_or_after() -> None:
    h = stored()
    h.echo = "none"
    h.group("g")
    h.pod("writer", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "scratch"}}])
    h.step()
    assert h.binds == {"writer": "n1"}
    assert h.state.volumes.assumed
    h.deliver()
    assert unexpected(compare(h.state, h.listing())) == []


# --- devices ----------------------------------------------------------------------------------------------------------


def test_pods_whose_devices_a_plugin_accounts_equal_their_list() -> None:
    """The list is accounted by the same rule: 3,000 MiB of a card, not the limit of the container."""
    register = encode_registration((RegisteredCard("A", 10, 10000, "NVIDIA-L40S", healthy=True, mode="hami-core"),))
    h = Listed(
        "actions: enqueue, allocate\n"
        "tiers: [{plugins: [{name: gang}, {name: predicates}, "
        "{name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}]}]",
        run=True,
    )
    h.node(
        "n1",
        annotations={NODE_VGPU_REGISTER: register},
        resources={"volcano.sh/vgpu-number": 10, "volcano.sh/vgpu-memory": 10000, "volcano.sh/vgpu-cores": 100},
    )
    h.queue("q")
    h.group("g")
    h.pod("p", group="g", limits={"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 30})
    h.step()
    h.settle()
    assert h.state.queues["q"].allocated.any()
    assert compare(h.state, h.listing()) == []
