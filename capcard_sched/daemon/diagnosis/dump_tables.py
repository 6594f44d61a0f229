"""The smaller tables of a dump: objects by name, with the fields that a session reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from capcard_sched.model.numa import format_cpus
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from capcard_sched.model.numa import NumaFacts
    from capcard_sched.model.storage import PersistentVolume, Storage, VolumeClaim
    from capcard_sched.model.usage import NodeUsage
    from capcard_sched.state.cluster import ClusterState

Json: TypeAlias = dict[str, Any]


def tables(state: ClusterState, now: float) -> Json:
    """All tables except nodes, HyperNodes, jobs and queues; `now` (Unix seconds) decides which usage is fresh."""
    return {
        "nodeUsage": {name: _usage(usage, now) for name, usage in sorted(state.usage.items())},
        "numatopologies": {name: _numa(facts) for name, facts in sorted(state.numa.items())},
        "configMaps": {key: sorted(data) for key, data in sorted(state.config_maps.items())},
        "priorityClasses": {
            name: {"value": value, "globalDefault": default}
            for name, (value, default) in sorted(state.priority_classes.items())
        },
        "namespaces": sorted(state.namespaces),
        "resourceQuotas": {
            f"{namespace}/{name}": {"hard": quota.hard, "used": quota.used}
            for namespace, quotas in sorted(state.quotas.items())
            for name, quota in quotas.items()
        },
        "podDisruptionBudgets": {
            f"{namespace}/{name}": {"allowed": budget.allowed, "granted": sorted(budget.disrupted)}
            for namespace, budgets in sorted(state.budgets.items())
            for name, budget in budgets.items()
        },
        "storage": _storage(state.volumes),
    }


def _usage(usage: NodeUsage, now: float) -> Json:
    measured = None if usage.at is None else format_timestamp(usage.at)
    return {"cpu": usage.cpu, "memory": usage.memory, "measured": measured, "fresh": usage.is_fresh(now)}


def _numa(facts: NumaFacts) -> Json:
    topology = facts.topology
    return {
        "cpuManagerPolicy": facts.cpu_policy,
        "topologyManagerPolicy": facts.topology_policy,
        "numaNodes": {
            str(number): format_cpus(cpus) for number, cpus in zip(topology.numa_ids, topology.numa_nodes, strict=True)
        },
        "reservedCpus": facts.reserved,
        "freeCpus": None if facts.free is None else format_cpus(facts.free),
        "podsWithCpus": sorted(facts.pods),
    }


def _storage(storage: Storage) -> Json:
    return {
        "classes": {
            name: {"provisioner": found.provisioner, "waitsForPod": found.waits_for_consumer}
            for name, found in sorted(storage.classes.items())
        },
        "claims": {key: _claim(storage, claim) for key, claim in sorted(storage.claims.items())},
        "volumes": {name: _volume(volume) for name, volume in sorted(storage.volumes.items())},
        "capacities": {
            f"{namespace}/{name}": {"class": found.class_name, "left": found.left, "largest": found.largest}
            for (namespace, name), found in sorted(storage.capacities.items())
        },
        "driversWithCapacity": sorted(storage.tracked_drivers),
        "attachLimits": {node: dict(sorted(limits.items())) for node, limits in sorted(storage.limits.items())},
        "attached": {node: sorted(found.values()) for node, found in sorted(storage.attachments.items())},
    }


def _claim(storage: Storage, claim: VolumeClaim) -> Json:
    found: Json = {
        "class": claim.class_name,
        "volume": claim.volume_name,
        "bound": claim.bound,
        "lost": claim.lost,
        "deleting": claim.deleting,
        "selectedNode": claim.selected_node,
        "bytes": claim.size,
    }
    assumed = storage.assumed.get(claim.key)
    if assumed is not None:
        decision = assumed.decision
        found["assumed"] = {"volume": decision.volume, "node": decision.node, "pods": sorted(assumed.holders)}
    return {key: value for key, value in found.items() if value}


def _volume(volume: PersistentVolume) -> Json:
    owner = volume.claim
    found: Json = {
        "class": volume.class_name,
        "bytes": volume.size,
        "claim": f"{owner.namespace}/{owner.name}" if owner is not None else "",
        "available": volume.available,
        **(volume.attachment._asdict() if volume.attachment is not None else {}),
    }
    return {key: value for key, value in found.items() if value}
