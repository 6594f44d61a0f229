"""The snapshot file: what stands in it, and how it is written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capcard_sched.daemon.diagnosis.dump import snapshot, write_snapshot
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model import deltas
from capcard_sched.model.card_budgets import CardBudgetObject
from capcard_sched.model.intents import ClaimBinding
from capcard_sched.model.kinds import KubernetesObject
from capcard_sched.model.limits import PodDisruptionBudgetObject, ResourceQuotaObject
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.model.usage import NodeUsage
from capcard_sched.state.document import to_document
from capcard_sched.testing import Harness
from tests import objects

CARD = "NVIDIA-H200"
NOW = 1767225600.25
SECRET = "hunter2"


def cluster() -> Harness:
    h = Harness(run=True)
    h.gpu_node("n1", count=4, cpu="16", taints=[{"key": "k", "value": "v", "effect": "PreferNoSchedule"}])
    h.node("plain", annotations={"note": SECRET}, labels={"secret-label": SECRET})
    h.queue("q", cards={CARD: 3}, capability={"cpu": "8", "memory": "64Gi"}, annotations={"token": SECRET})
    h.group("runs", min_member=2, annotations={"password": SECRET})
    h.group("waits", min_member=2)
    for name in ("a", "b"):
        h.pod(name, group="runs", card=CARD, cards=1, annotations={"x": SECRET}, labels={"y": SECRET})
    for name in ("c", "d"):
        h.pod(
            name,
            group="waits",
            requests={"cpu": "2", "nvidia.com/gpu": 2},
            limits={"nvidia.com/gpu": 2},
            card=CARD,
            containers=[
                {
                    "name": "main",
                    "env": [{"name": "TOKEN", "value": SECRET}],
                    "args": [SECRET],
                    "resources": {"requests": {"cpu": "2", "nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 2}},
                }
            ],
        )
    h.pod("foreign", group=None, node="elsewhere", scheduler="default-scheduler")
    h.settle()
    return h


def document(h: Harness) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(snapshot(h.core.snapshot(), NOW))
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The snapshot of the cluster above with an object of every other kind."""
    h = cluster()
    h.group("stray", queue="nowhere")
    h.pod("alone", group="unheard-of")
    h.hyper_node("leaf", 1, nodes=["n1", "missing"])
    h.hyper_node("spine", 2, nodes=["plain"], hyper_nodes=["leaf"])
    h.group("waits", min_member=2, topology={"mode": "hard", "highestTierAllowed": 2})
    h.priority_class("low", 5, global_default=True)
    h.priority_class("high", 1000)
    h.storage_class("fast")
    h.claim("bound", storage_class="fast", volume="pv1")
    h.claim("waits", storage_class="fast", size="2Gi")
    h.volume("pv1", storage_class="fast", claim="bound", driver="csi.test", handle="h1", labels={"l": SECRET})
    h.volume("pv2", storage_class="fast", size="2Gi")
    h.csi_node("n1", csi_test=3)
    h.csi_driver("csi.test", storage_capacity=True)
    h.storage_capacity("left", storage_class="fast", capacity="10Gi", labels={"l": SECRET}, largest="4Gi")
    h.attachment("at", node="n1", volume="pv1")
    measured = {"n1": NodeUsage(cpu=42.5, memory=10.0, at=NOW - 299), "plain": NodeUsage(cpu=7.0, at=NOW - 301)}
    numa = {
        "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "single-numa-node"},
        "numares": {"cpu": {"allocatable": "1-3,6", "capacity": 8}},
        "resReserved": {"cpu": "1"},
        "cpuDetail": {str(cpu): {"numa": cpu // 4, "socket": 0, "core": cpu // 2} for cpu in range(8)},
        "podAllocations": [{"namespace": "default", "name": "a"}],
    }
    hard = {"requests.cpu": "4", "pods": "9"}
    budget = {"disruptionsAllowed": 2, "disruptedPods": {"b": "2026-01-01T00:00:00Z"}}
    spec = {"queue": "q", "period": "month", "cards": {CARD: "5h"}}
    bodies: list[tuple[type[KubernetesObject], dict[str, Any]]] = [
        (NumatopologyObject, {"metadata": {"name": "n1"}, "spec": numa}),
        (
            ResourceQuotaObject,
            {
                "metadata": {"namespace": "default", "name": "rq"},
                "status": {"hard": hard, "used": {"requests.cpu": "500m"}},
            },
        ),
        (PodDisruptionBudgetObject, {"metadata": {"namespace": "default", "name": "pdb"}, "status": budget}),
        (CardBudgetObject, {"metadata": {"name": "month"}, "spec": spec, "status": {"used": {CARD: "1.00h"}}}),
    ]
    h.apply(
        deltas.NodeUsageChanged({**measured, "gone": NodeUsage(memory=1.0)}),
        *(deltas.ObjectChanged(msgspec.convert(body, kind)) for kind, body in bodies),
        objects.namespace("default", {"note": SECRET}),
    )
    h.step()
    h.state.assume_volumes(h.task("c"), "n1", [ClaimBinding("waits", "default-waits-uid", "pv2")])
    return document(h)


_MEMBER = "spec.members[1].selector"
#: Of the two pods that run.
_TWO = {"cpu": 2000, "nvidia.com/gpu": 2000, "pods": 2}
FACTS = [
    ("Queue q state", "Open"),
    ("Queue q weight", 1),
    ("Queue q capability", {"cpu": 8000, "memory": 64 << 30}),
    ("Queue q allocated", _TWO),
    ("Queue q jobs", ["default/runs", "default/waits"]),
    (f"Queue q cards {CARD} capacity", 3.0),
    (f"Queue q cards {CARD} allocated", 2.0),
    (f"Queue q cards {CARD} inqueue", 0.0),  # `waits` needs more than the quota: nothing is reserved for it
    ("PodGroup default/runs phase", "Running"),
    ("PodGroup default/runs counts", {"Running": 2}),
    ("PodGroup default/runs allocated", _TWO),
    ("PodGroup default/runs tasks", ["default-a-uid", "default-b-uid"]),
    ("PodGroup default/runs topology", None),
    ("PodGroup default/runs schedulable", True),
    ("PodGroup default/runs uid", "default-runs-uid"),
    ("PodGroup default/waits counts", {"Pending": 2}),
    ("PodGroup default/waits allocated", None),
    ("PodGroup default/waits total_request nvidia.com/gpu", 4000),
    ("PodGroup default/waits conditions 0 type", "Unschedulable"),
    ("PodGroup default/waits conditions 0 status", "True"),
    ("PodGroup default/waits topology", {"hard": True, "highest": 2, "highest_name": ""}),
    ("PodGroup default/stray schedulable", False),
    ("PodGroup default/stray uid", "default-stray-uid"),
    ("PodGroup default/unheard-of schedulable", False),
    ("PodGroup default/unheard-of uid", None),
    ("Pod default-a-uid name", "default/a"),
    ("Pod default-a-uid job", "default/runs"),
    ("Pod default-a-uid status", "Running"),
    ("Pod default-a-uid node", "n1"),
    ("Pod default-a-uid requests", {"cpu": 1000, "nvidia.com/gpu": 1000, "pods": 1}),
    ("Pod default-a-uid priority", 1),
    ("Pod default-a-uid card", CARD),
    ("Pod default-a-uid ours", True),
    ("Pod default-foreign-uid node", "elsewhere"),
    ("Pod default-foreign-uid ours", False),
    ("Pod default-foreign-uid job", None),
    ("Node n1 cards", {CARD: 4.0}),
    ("Node n1 taints", [{"key": "k", "value": "v", "effect": "PreferNoSchedule"}]),
    ("Node n1 tasks", ["default-a-uid", "default-b-uid"]),
    ("Node n1 used", {"cpu": 2000, "nvidia.com/gpu": 2000, "pods": 2}),
    ("Node n1 allocatable cpu", 16000),
    ("Node plain cards", None),
    ("Node plain used", None),
    ("HyperNode leaf", {"tier": 1, "above": "spine", "nodes": ["n1"]}),
    ("HyperNode spine", {"tier": 2, "nodes": ["plain"]}),
    ("Cluster  unreadable", {"HyperNode leaf": f"{_MEMBER}.exactMatch.name: node missing does not exist"}),
    ("Cluster  total_used", _TWO),
    ("Cluster  tracked_drivers", ["csi.test"]),
    ("NodeUsage gone", {"memory": 1.0, "fresh": True}),
    ("NodeUsage n1", {"cpu": 42.5, "memory": 10.0, "at": NOW - 299, "fresh": True}),
    ("NodeUsage plain", {"cpu": 7.0, "at": NOW - 301, "fresh": False}),
    ("Numatopology n1 cpu_policy", "static"),
    ("Numatopology n1 topology_policy", "single-numa-node"),
    ("Numatopology n1 numa_nodes", {"0": "0-3", "1": "4-7"}),
    ("Numatopology n1 sockets", ["0-7"]),
    ("Numatopology n1 cores", [[0, "0-1"], [0, "2-3"], [0, "4-5"], [0, "6-7"]]),
    ("Numatopology n1 reserved", 1),
    ("Numatopology n1 free", "1-3,6"),
    ("Numatopology n1 pods", ["default/a"]),
    ("CardBudget month limits", {CARD: 5}),
    ("CardBudget month used", {CARD: "1.00h"}),
    ("ResourceQuota default/rq hard", {"pods": 9000, "requests.cpu": 4000}),
    ("ResourceQuota default/rq used", {"pods": 0, "requests.cpu": 500}),
    ("PodDisruptionBudget default/pdb", {"allowed": 2, "disrupted": ["b"]}),
    ("PriorityClass high", {"value": 1000, "is_default": False}),
    ("PriorityClass low", {"value": 5, "is_default": True}),
    ("Namespace default", {}),
    ("StorageClass fast", {"provisioner": "csi.test", "waits_for_consumer": True}),
    ("PersistentVolumeClaim default/bound class_name", "fast"),
    ("PersistentVolumeClaim default/bound volume_name", "pv1"),
    ("PersistentVolumeClaim default/bound bound", True),
    ("PersistentVolumeClaim default/bound size", 1 << 30),
    ("PersistentVolumeClaim default/waits bound", False),
    ("PersistentVolumeClaim default/waits size", 2 << 30),
    ("AssumedClaim default/waits", {"volume": "pv2", "node": "n1", "pods": ["default-c-uid"]}),
    ("PersistentVolume pv1 claim name", "bound"),
    ("PersistentVolume pv1 attachment 0", "csi.test"),
    ("PersistentVolume pv1 attachment 1", "h1"),
    ("PersistentVolume pv2 size", 2 << 30),
    ("PersistentVolume pv2 available", True),
    ("CSIStorageCapacity kube-system/left", {"class_name": "fast", "left": 10 << 30, "largest": 4 << 30}),
    ("CSINode n1", {"limits": {"csi.test": 3}, "drivers": ["csi.test"]}),
    ("VolumeAttachment n1/at", {"node": "n1", "volume": "pv1"}),
]


@pytest.mark.parametrize("path, value", FACTS, ids=[path for path, _ in FACTS])
def test_a_snapshot_has_the_facts_of_every_kind(found: dict[str, Any], path: str, value: object) -> None:
    here: Any = found
    for word in path.split(" "):
        here = here[int(word)] if isinstance(here, list) else here.get(word)
    assert here == value


def test_annotations_labels_environment_and_arguments_stay_out(found: dict[str, Any]) -> None:
    assert SECRET not in json.dumps(found)


def test_every_table_of_the_state_stands_in_the_snapshot() -> None:
    """A table that is new must be given its place here, or its reason not to have one."""
    places = {
        "tasks": "Pod",
        "jobs": "PodGroup",
        "schedulable": "PodGroup",
        "orphans": "PodGroup",
        "groups_missing": "PodGroup",
        "held": "PodGroup",  # as `schedulable`
        "kube_groups": "PodGroup",
        "partial": "PodGroup",
        "unoffered": "PodGroup",
        "queues": "Queue",
        "nodes": "Node",
        "hyper_nodes": "HyperNode",
        "numa": "Numatopology",
        "usage": "NodeUsage",
        "config_maps": "ConfigMap",
        "namespaces": "Namespace",
        "device_classes": "DeviceClass",
        "devices": "ResourceSlice",
        "claims": "ResourceClaim",
        "claim_templates": "ResourceClaimTemplate",
        "priority_classes": "PriorityClass",
        "quotas": "ResourceQuota",
        "budgets": "PodDisruptionBudget",
        "card_budgets": "CardBudget",
        "provisioning": "ProvisioningRequest",
        "volumes": "PersistentVolume",
        "problems": "Cluster",
        "affinities": "Cluster",
        "ignored_edits": "Cluster",
        "deleted_queues": "DeletedQueue",
        "scheduler_names": "schedulerNames",
        "default_queue": "defaultQueue",
        "waits_for_groups": "waitsForPodGroups",
        "terms": "terms",
    }
    #: Mechanics of the state, not its content.
    inner = {"active", "classes", "columns", "confirmed", "changes", "device_accounting", "term_limits"}
    h = cluster()
    tables = {name for name, value in vars(h.state).items() if not name.startswith("_") and not callable(value)}
    assert tables - inner == set(places)
    assert set(places.values()) <= set(document(h))


def test_the_head_has_time_conf_and_totals() -> None:
    h = cluster()
    found = document(h)
    assert found["time"] == "2026-01-01T00:00:00Z"
    assert found["schedulerConf"]["hash"] == h.core.snapshot().conf.hash
    assert found["schedulerConf"]["actions"] == ["enqueue", "allocate", "backfill"]
    assert "capacity-card" in found["schedulerConf"]["tiers"][1]


def test_a_snapshot_changes_nothing_and_is_the_same_twice() -> None:
    h = cluster()
    before = to_document(h.state)
    first = snapshot(h.core.snapshot(), NOW)
    assert snapshot(h.core.snapshot(), NOW) == first
    assert to_document(h.state) == before
    assert h.step().idle


def test_a_plugin_that_fails_is_named_and_the_rest_is_written() -> None:
    class Broken(Plugin):
        name = "broken"

        def metrics(self) -> Any:
            raise ValueError("no figures")

    h = Harness('actions: "allocate"\ntiers: [{plugins: [{name: broken}]}]', plugins=[Broken])
    h.queue("q")
    h.step()
    found = document(h)
    assert found["failures"] == ["plugin broken, metrics: ValueError: no figures"]
    assert list(found["Queue"]) == ["q"]


def test_objects_that_cannot_be_read_are_listed() -> None:
    h = Harness()
    h.node("n1", cpu="?")
    h.step()
    assert list(document(h)["Cluster"][""]["unreadable"]) == ["Node n1"]


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_named_by_the_second_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, b"{}", NOW)
    assert path == tmp_path / "snapshot-1767225600.json"
    assert path.read_bytes() == b"{}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_two_snapshots_within_a_second_leave_the_later_one(tmp_path: Path) -> None:
    write_snapshot(tmp_path, b"1", NOW)
    assert write_snapshot(tmp_path, b"2", NOW + 0.5).read_bytes() == b"2"


def test_a_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "snapshot-1767225600.json").symlink_to(victim)
    write_snapshot(tmp_path, b"{}", NOW)
    assert victim.read_text() == "mine"


def test_a_folder_that_does_not_exist_is_an_os_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_snapshot(tmp_path / "none", b"{}", NOW)


def test_a_target_that_cannot_be_replaced_leaves_no_part_behind(tmp_path: Path) -> None:
    (tmp_path / "snapshot-1767225600.json").mkdir()
    with pytest.raises(OSError, match=os.strerror(21)):
        write_snapshot(tmp_path, b"{}", NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot-1767225600.json"]
