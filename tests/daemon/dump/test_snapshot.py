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
from capcard_sched.model.intents import ClaimBinding
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


def test_a_queue_is_written_with_its_amounts_and_card_figures() -> None:
    queue = document(cluster())["Queue"]["q"]
    assert (queue["state"], queue["weight"]) == ("Open", 1)
    assert queue["capability"] == {"cpu": 8000, "memory": 64 << 30}
    assert queue["allocated"] == {"cpu": 2000, "nvidia.com/gpu": 2000, "pods": 2}
    assert queue["jobs"] == ["default/runs", "default/waits"]
    figures = queue["cards"][CARD]
    # `waits` needs more than the quota: nothing is reserved for it.
    assert (figures["capacity"], figures["allocated"], figures["inqueue"]) == (3.0, 2.0, 0.0)


def test_a_job_is_written_with_phase_counts_amounts_and_conditions() -> None:
    jobs = document(cluster())["PodGroup"]
    runs, waits = jobs["default/runs"], jobs["default/waits"]
    assert (runs["phase"], runs["counts"]) == ("Running", {"Running": 2})
    assert runs["allocated"] == {"cpu": 2000, "nvidia.com/gpu": 2000, "pods": 2}
    assert runs["tasks"] == ["default-a-uid", "default-b-uid"]
    assert (waits["counts"], "allocated" in waits) == ({"Pending": 2}, False)
    assert waits["total_request"]["nvidia.com/gpu"] == 4000
    assert (waits["conditions"][0]["type"], waits["conditions"][0]["status"]) == ("Unschedulable", "True")


def test_a_pod_is_written_with_its_node_its_request_and_its_card() -> None:
    pods = document(cluster())["Pod"]
    expected = {
        "name": "default/a",
        "job": "default/runs",
        "status": "Running",
        "node": "n1",
        "requests": {"cpu": 1000, "nvidia.com/gpu": 1000, "pods": 1},
        "priority": 1,
        "card": CARD,
        "ours": True,
    }
    assert {field: pods["default-a-uid"][field] for field in expected} == expected
    foreign = pods["default-foreign-uid"]
    assert (foreign["node"], foreign["ours"], "job" in foreign) == ("elsewhere", False, False)


def test_a_node_is_written_with_cards_amounts_and_tasks() -> None:
    nodes = document(cluster())["Node"]
    n1, plain = nodes["n1"], nodes["plain"]
    assert n1["cards"] == {CARD: 4.0}
    assert n1["taints"] == [{"key": "k", "value": "v", "effect": "PreferNoSchedule"}]
    assert n1["tasks"] == ["default-a-uid", "default-b-uid"]
    assert n1["allocatable"]["cpu"] - n1["used"]["cpu"] == 14000
    assert not {"cards", "used"} & plain.keys()


def test_hyper_nodes_are_written_as_the_tree_they_form() -> None:
    h = cluster()
    h.hyper_node("leaf", 1, nodes=["n1", "missing"])
    h.hyper_node("spine", 2, nodes=["plain"], hyper_nodes=["leaf"])
    h.group("waits", min_member=2, topology={"mode": "hard", "highestTierAllowed": 2})
    h.step()
    found = document(h)
    assert found["HyperNode"] == {
        "leaf": {"tier": 1, "above": "spine", "nodes": ["n1"]},
        "spine": {"tier": 2, "nodes": ["plain"]},
    }
    assert found["Cluster"][""]["unreadable"]["HyperNode leaf"].endswith("node missing does not exist")
    jobs = found["PodGroup"]
    assert "topology" not in jobs["default/runs"]
    assert jobs["default/waits"]["topology"] == {"hard": True, "highest": 2, "highest_name": ""}


def test_measured_load_is_written_with_its_age() -> None:
    h = cluster()
    measured = {"n1": NodeUsage(cpu=42.5, memory=10.0, at=NOW - 299), "plain": NodeUsage(cpu=7.0, at=NOW - 301)}
    h.apply(deltas.NodeUsageChanged({**measured, "gone": NodeUsage(memory=1.0)}))
    h.step()
    assert document(h)["NodeUsage"] == {
        "gone": {"memory": 1.0, "fresh": True},
        "n1": {"cpu": 42.5, "memory": 10.0, "at": NOW - 299, "fresh": True},
        "plain": {"cpu": 7.0, "at": NOW - 301, "fresh": False},
    }


def test_numa_facts_are_written_as_lists_of_cpus() -> None:
    h = cluster()
    places = {str(cpu): {"numa": cpu // 4, "socket": 0, "core": cpu // 2} for cpu in range(8)}
    body = {
        "metadata": {"name": "n1"},
        "spec": {
            "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "single-numa-node"},
            "numares": {"cpu": {"allocatable": "1-3,6", "capacity": 8}},
            "resReserved": {"cpu": "1"},
            "cpuDetail": places,
            "podAllocations": [{"namespace": "default", "name": "a"}],
        },
    }
    h.apply(deltas.ObjectChanged(msgspec.convert(body, NumatopologyObject)))
    h.step()
    assert document(h)["Numatopology"] == {
        "n1": {
            "cpu_policy": "static",
            "topology_policy": "single-numa-node",
            "numa_nodes": {"0": "0-3", "1": "4-7"},
            "sockets": ["0-7"],
            "cores": [[0, "0-1"], [0, "2-3"], [0, "4-5"], [0, "6-7"]],
            "reserved": 1,
            "free": "1-3,6",
            "pods": ["default/a"],
        }
    }


def test_quotas_and_budgets_of_namespaces_are_written() -> None:
    h = cluster()
    hard = {"requests.cpu": "4", "pods": "9"}
    quota = {
        "metadata": {"namespace": "default", "name": "rq"},
        "status": {"hard": hard, "used": {"requests.cpu": "500m"}},
    }
    budget = {
        "metadata": {"namespace": "default", "name": "pdb"},
        "status": {"disruptionsAllowed": 2, "disruptedPods": {"b": "2026-01-01T00:00:00Z"}},
    }
    h.apply(
        deltas.ObjectChanged(msgspec.convert(quota, ResourceQuotaObject)),
        deltas.ObjectChanged(msgspec.convert(budget, PodDisruptionBudgetObject)),
        objects.namespace("default", {"note": SECRET}),
    )
    h.priority_class("low", 5, global_default=True)
    h.priority_class("high", 1000)
    h.step()
    found = document(h)
    assert found["ResourceQuota"] == {
        "default/rq": {"hard": {"pods": 9000, "requests.cpu": 4000}, "used": {"pods": 0, "requests.cpu": 500}}
    }
    assert found["PodDisruptionBudget"] == {"default/pdb": {"allowed": 2, "disrupted": ["b"]}}
    assert found["PriorityClass"] == {
        "high": {"value": 1000, "is_default": False},
        "low": {"value": 5, "is_default": True},
    }
    assert found["Namespace"] == {"default": {}}


def test_storage_is_written_with_its_assumptions() -> None:
    h = cluster()
    h.storage_class("fast")
    h.claim("bound", storage_class="fast", volume="pv1")
    h.claim("waits", storage_class="fast", size="2Gi")
    h.volume("pv1", storage_class="fast", claim="bound", driver="csi.test", handle="h1", labels={"l": SECRET})
    h.volume("pv2", storage_class="fast", size="2Gi")
    h.csi_node("n1", csi_test=3)
    h.csi_driver("csi.test", storage_capacity=True)
    h.storage_capacity("left", storage_class="fast", capacity="10Gi", labels={"l": SECRET}, largest="4Gi")
    h.attachment("at", node="n1", volume="pv1")
    h.step()
    h.state.assume_volumes(h.task("c"), "n1", [ClaimBinding("waits", "default-waits-uid", "pv2")])
    found = document(h)
    assert found["StorageClass"] == {"fast": {"provisioner": "csi.test", "waits_for_consumer": True}}
    claims = found["PersistentVolumeClaim"]
    bound, waits = claims["default/bound"], claims["default/waits"]
    assert (bound["class_name"], bound["volume_name"], bound["bound"], bound["size"]) == ("fast", "pv1", True, 1 << 30)
    assert (waits["bound"], waits["size"]) == (False, 2 << 30)
    assert found["AssumedClaim"] == {"default/waits": {"volume": "pv2", "node": "n1", "pods": ["default-c-uid"]}}
    volumes = found["PersistentVolume"]
    assert volumes["pv1"]["claim"]["name"] == "bound"
    assert volumes["pv1"]["attachment"][:2] == ["csi.test", "h1"]
    assert (volumes["pv2"]["size"], volumes["pv2"]["available"]) == (2 << 30, True)
    assert found["CSIStorageCapacity"] == {
        "kube-system/left": {"class_name": "fast", "left": 10 << 30, "largest": 4 << 30}
    }
    assert found["Cluster"][""]["tracked_drivers"] == ["csi.test"]
    assert found["CSINode"] == {"n1": {"limits": {"csi.test": 3}}}
    assert found["VolumeAttachment"] == {"n1/at": {"node": "n1", "volume": "pv1"}}


def test_a_job_without_queue_or_podgroup_is_written_as_not_schedulable() -> None:
    h = cluster()
    h.group("stray", queue="nowhere")
    h.pod("alone", group="unheard-of")
    h.step()
    found = {name: (job["schedulable"], job.get("uid", "")) for name, job in document(h)["PodGroup"].items()}
    assert found["default/stray"] == (False, "default-stray-uid")
    assert found["default/unheard-of"] == (False, "")
    assert found["default/runs"] == (True, "default-runs-uid")


def test_every_table_of_the_state_stands_in_the_snapshot() -> None:
    """A table that is new must be given its place here, or its reason not to have one."""
    places = {
        "tasks": "Pod",
        "jobs": "PodGroup",
        "schedulable": "PodGroup",
        "orphans": "PodGroup",
        "groups_missing": "PodGroup",
        "queues": "Queue",
        "nodes": "Node",
        "hyper_nodes": "HyperNode",
        "numa": "Numatopology",
        "usage": "NodeUsage",
        "config_maps": "ConfigMap",
        "namespaces": "Namespace",
        "priority_classes": "PriorityClass",
        "quotas": "ResourceQuota",
        "budgets": "PodDisruptionBudget",
        "volumes": "PersistentVolume",
        "problems": "Cluster",
        "ignored_edits": "Cluster",
        "deleted_queues": "DeletedQueue",
        "scheduler_names": "schedulerNames",
        "default_queue": "defaultQueue",
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
    assert found["Cluster"][""]["total_used"] == {"cpu": 2000, "nvidia.com/gpu": 2000, "pods": 2}


def test_annotations_labels_environment_and_arguments_stay_out() -> None:
    assert SECRET.encode() not in snapshot(cluster().core.snapshot(), NOW)


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
