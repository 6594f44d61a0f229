"""Machines, their Numatopology objects, and a small cluster of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model import deltas
from capcard_sched.model.numa import NumatopologyObject
from capcard_sched.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Mapping

POLICY = "volcano.sh/numa-topology-policy"
DECISION = "volcano.sh/topology-decision"
BEST_EFFORT, RESTRICTED, SINGLE = "best-effort", "restricted", "single-numa-node"


def conf(arguments: str = "", switches: str = "", others: str = "") -> str:
    entry = f"{{name: numa-aware, arguments: {{{arguments}}}{switches}}}"
    return f'actions: "allocate"\ntiers: [{{plugins: [{entry}{others}]}}]\n'


def detail(nodes: int = 2, cpus: int = 8, *, threads: int = 1, per_socket: int = 1) -> dict[str, dict[str, int]]:
    """NUMA nodes of so many CPUs in a row, `per_socket` of them to a socket, `threads` CPUs to a core."""
    places = {}
    for cpu in range(nodes * cpus):
        numa = cpu // cpus
        place = {"numa": numa, "socket": numa // per_socket, "core": cpu // threads}
        places[str(cpu)] = {field: value for field, value in place.items() if value}
    return places


def numatopology(
    name: str,
    free: str | None,
    policy: str = SINGLE,
    *,
    manager: str = "static",
    reserved: str | None = None,
    pods: tuple[Mapping[str, str], ...] = (),
    places: Mapping[str, Any] | None = None,
    **shape: int,
) -> deltas.ObjectChanged:
    """The object an exporter writes; `free` None leaves the CPUs out, `shape` is as `detail` takes it."""
    spec: dict[str, Any] = {
        "policies": {"CPUManagerPolicy": manager, "TopologyManagerPolicy": policy},
        "cpuDetail": detail(**shape) if places is None else places,
        "podAllocations": list(pods),
    }
    if free is not None:
        spec["numares"] = {"cpu": {"allocatable": free, "capacity": len(spec["cpuDetail"])}}
    if reserved is not None:
        spec["resReserved"] = {"cpu": reserved}
    obj = {"metadata": {"name": name, "uid": f"{name}-numa"}, "spec": spec}
    return deltas.ObjectChanged(msgspec.convert(obj, NumatopologyObject))


def cluster(configuration: str | None = None, **more: Any) -> Harness:
    """A queue and a group; nodes are up to the test."""
    h = Harness(conf() if configuration is None else configuration, **more)
    h.queue("q")
    h.group("g")
    return h


def whole(h: Harness, name: str, cpus: int | str, policy: str = "", **more: Any) -> None:
    """A Guaranteed pod of one container."""
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    h.pod(name, requests=amounts, limits=amounts, annotations={POLICY: policy} if policy else {}, **more)


def container(name: str, cpus: int | str, **more: Any) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}, **more}
