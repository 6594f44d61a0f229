"""Numatopology objects: CPU topology and free CPUs of a node.

An exporter on each node writes them. `numares.cpu.allocatable` lists the CPUs that the kubelet has not assigned
exclusively. A set of CPUs is an integer: bit n is CPU n.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.model.objects import ApiStruct, ObjectMeta
from capcard_sched.model.quantity import QuantityError, milli
from capcard_sched.model.quoting import quoted, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.model.objects import RawQuantity

#: CPUs. Maximum of Linux.
MOST_CPUS: Final = 8192
#: NUMA nodes. The kubelet's default maximum is 8.
MOST_NUMA_NODES: Final = 64

STATIC: Final = "static"
NONE: Final = "none"
BEST_EFFORT: Final = "best-effort"
RESTRICTED: Final = "restricted"
SINGLE_NUMA_NODE: Final = "single-numa-node"
CPU_MANAGER_POLICIES: Final = (NONE, STATIC)
TOPOLOGY_MANAGER_POLICIES: Final = (NONE, BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)

_CPU = "cpu"
_NUMBER = re.compile(r"[0-9]{1,9}")
_RANGE = re.compile(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*")
CPU_LIST_FORM: Final = f"CPU numbers below {MOST_CPUS} and ranges such as 0-3,8"


# --- API objects ----------------------------------------------------------------------------------------------------


class NumaResource(ApiStruct, frozen=True):
    """Free amount of one resource; a list of CPUs for `cpu`."""

    allocatable: str | None = None
    capacity: int | None = None


class CpuPlace(ApiStruct, frozen=True):
    """Location of one CPU; exporters omit zeros."""

    numa: int | None = None
    socket: int | None = None
    core: int | None = None


class PodAllocation(ApiStruct, frozen=True):
    """A pod with exclusive CPUs, by uid, or by namespace and name. Older exporters list none."""

    uid: str | None = None
    name: str | None = None
    namespace: str | None = None


class NumatopologySpec(ApiStruct, frozen=True):
    """`policies`: `CPUManagerPolicy` and `TopologyManagerPolicy` of the kubelet; `cpu_detail`: by CPU number."""

    policies: dict[str, str] | None = None
    res_reserved: dict[str, str | int | float] | None = None
    numares: dict[str, NumaResource] | None = None
    cpu_detail: dict[str, CpuPlace] | None = None
    pod_allocations: tuple[PodAllocation, ...] | None = None


class NumatopologyObject(ApiStruct, frozen=True, tag="Numatopology", tag_field="kind"):
    """A Numatopology; its name is the name of the node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NumatopologySpec = NumatopologySpec()


# --- cached facts ---------------------------------------------------------------------------------------------------


class CpuTopology(msgspec.Struct, frozen=True, cache_hash=True):
    """CPU topology of a machine. Equal machines share one object."""

    #: Numbers of the NUMA nodes, ascending, and the CPUs of each.
    numa_ids: tuple[int, ...]
    numa_nodes: tuple[int, ...]
    #: The CPUs of each socket, by its number.
    sockets: tuple[int, ...]
    #: Position of its socket and CPUs of each core, by socket and number.
    cores: tuple[tuple[int, int], ...]

    @property
    def cpus(self) -> int:
        """All CPUs."""
        found = 0
        for socket in self.sockets:
            found |= socket
        return found


class NumaFacts(msgspec.Struct, frozen=True):
    """NUMA facts of a node."""

    name: str
    #: One of CPU_MANAGER_POLICIES and TOPOLOGY_MANAGER_POLICIES; "" when unset.
    cpu_policy: str
    topology_policy: str
    topology: CpuTopology
    #: CPUs that the kubelet reserves for the system.
    reserved: int
    #: CPUs that no container has exclusively; None when the object does not list them.
    free: int | None
    #: Pods with exclusive CPUs, by uid and by namespace/name.
    pods: frozenset[str]


class CpuListError(ValueError):
    """Text that is not a list of CPUs."""


def parse_cpus(text: str) -> int:
    """`0-3,8` as a set, "" as the empty one. Raises CpuListError."""
    found = 0
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise CpuListError(f"{quoted(part)} is neither a CPU nor a range of CPUs")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= MOST_CPUS:
            raise CpuListError(f"{quoted(part)} is not a range of CPUs below {MOST_CPUS}")
        found |= ((1 << (last - first + 1)) - 1) << first
    return found


def format_cpus(cpus: int) -> str:
    """A set as `0-3,8`."""
    parts = []
    while cpus:
        first = (cpus & -cpus).bit_length() - 1
        length = (~(cpus >> first) & ((cpus >> first) + 1)).bit_length() - 1
        parts.append(str(first) if length == 1 else f"{first}-{first + length - 1}")
        cpus &= ~(((1 << length) - 1) << first)
    return ",".join(parts)


def members(cpus: int) -> Iterator[int]:
    """The CPUs of a set, ascending, each as a set of its own."""
    while cpus:
        lowest = cpus & -cpus
        yield lowest
        cpus ^= lowest


def topology_of(places: Mapping[int, CpuPlace]) -> CpuTopology:
    """The topology of CPUs by number. Core numbers count within a socket and a NUMA node."""
    numa: dict[int, int] = {}
    sockets: dict[int, int] = {}
    cores: dict[tuple[int, int, int], int] = {}
    for cpu, place in places.items():
        bit, at, socket = 1 << cpu, place.numa or 0, place.socket or 0
        numa[at] = numa.get(at, 0) | bit
        sockets[socket] = sockets.get(socket, 0) | bit
        core = (socket, at, place.core or 0)
        cores[core] = cores.get(core, 0) | bit
    ids = tuple(sorted(numa))
    order = sorted(sockets)
    position = {socket: index for index, socket in enumerate(order)}
    return CpuTopology(
        ids,
        tuple(numa[at] for at in ids),
        tuple(sockets[socket] for socket in order),
        tuple((position[core[0]], cores[core]) for core in sorted(cores)),
    )


def numa_facts(obj: NumatopologyObject) -> tuple[NumaFacts | None, str]:
    """The facts of an object, or None and all its problems: field, value and accepted form."""
    spec, problems = obj.spec, list[str]()
    policies = {}
    for field, accepted in (
        ("CPUManagerPolicy", CPU_MANAGER_POLICIES),
        ("TopologyManagerPolicy", TOPOLOGY_MANAGER_POLICIES),
    ):
        policy = policies[field] = (spec.policies or {}).get(field, "")
        if policy and policy not in accepted:
            problems.append(f"spec.policies.{field}: expected one of {', '.join(accepted)}, got {quoted(policy)}")
    reserved = _reserved((spec.res_reserved or {}).get(_CPU, 0), problems)
    topology = _topology(spec.cpu_detail, problems)
    cpus = (spec.numares or {}).get(_CPU)
    free: int | None = None
    if cpus is not None:
        try:
            free = parse_cpus(cpus.allocatable or "")
        except CpuListError as error:
            problems.append(f"spec.numares.cpu.allocatable: {error}: expected {CPU_LIST_FORM}")
        else:
            strange = free & ~topology.cpus if topology is not None else 0
            if strange:
                problems.append(
                    f"spec.numares.cpu.allocatable: CPUs {shortened(format_cpus(strange))} are not in spec.cpuDetail"
                )
    if problems or topology is None:
        return None, "; ".join(problems)
    pods: set[str] = set()
    for pod in spec.pod_allocations or ():
        if pod.uid:
            pods.add(pod.uid)
        if pod.name:
            pods.add(f"{pod.namespace or 'default'}/{pod.name}")
    return (
        NumaFacts(
            obj.metadata.name,
            policies["CPUManagerPolicy"],
            policies["TopologyManagerPolicy"],
            topology,
            min(reserved, topology.cpus.bit_count()),
            free,
            frozenset(pods),
        ),
        "",
    )


def _reserved(raw: RawQuantity, problems: list[str]) -> int:
    """Whole CPUs, rounded up."""
    try:
        amount = milli(raw)
    except QuantityError as error:
        problems.append(f"spec.resReserved.cpu: {error}")
        return 0
    if amount < 0:
        problems.append(f"spec.resReserved.cpu: expected a quantity that is not negative, got {quoted(str(raw))}")
    return -(-max(amount, 0) // 1000)


def _topology(detail: Mapping[str, CpuPlace] | None, problems: list[str]) -> CpuTopology | None:
    topology, problem = _read(tuple((detail or {}).items()))
    if problem:
        problems.append(problem)
    return topology


# Computed 111 us, kept 2.8 (benchmarks/caches.py).
@lru_cache(maxsize=64)  # machines are alike, and objects change whenever a container gets or releases CPUs
def _read(detail: tuple[tuple[str, CpuPlace], ...]) -> tuple[CpuTopology | None, str]:
    form = "a map of CPU number to numa, socket and core"
    if not detail:
        return None, f"spec.cpuDetail: is missing: expected {form}"
    places: dict[int, CpuPlace] = {}
    for key, place in detail:
        if _NUMBER.fullmatch(key) is None or int(key) >= MOST_CPUS:
            return None, f"spec.cpuDetail: {quoted(key)} is not a CPU below {MOST_CPUS}: expected {form}"
        for field in ("numa", "socket", "core"):
            number = getattr(place, field) or 0
            if number < 0:
                return None, f"spec.cpuDetail[{key}].{field}: {number} is below 0: expected 0 or more"
        places[int(key)] = place
    topology = topology_of(places)
    if len(topology.numa_ids) > MOST_NUMA_NODES:
        return None, f"spec.cpuDetail: {len(topology.numa_ids)} NUMA nodes: expected at most {MOST_NUMA_NODES}"
    return topology, ""
