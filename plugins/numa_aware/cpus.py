"""Assigns CPUs to a container: whole sockets, whole cores, then single threads.

A set of CPUs is an integer, CPU n is bit n. The order is that of the kubelet's static CPU manager, so that the planned
assignment is, as a rule, the kubelet's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.numa import members

if TYPE_CHECKING:
    from capcard_sched.model.numa import CpuTopology


def assign(topology: CpuTopology, free: int, count: int, nodes: int) -> int:
    """Assign `count` CPUs of `free`, those of the preferred NUMA `nodes` (bit i: position i of the topology) first.

    Raises ValueError when fewer are free.
    """
    near = 0
    for position, cpus in enumerate(topology.numa_nodes):
        if nodes >> position & 1:
            near |= cpus & free
    first = assign_packed(topology, near, min(count, near.bit_count()))
    rest = count - first.bit_count()
    return first | assign_packed(topology, free & ~first, rest) if rest else first


def assign_packed(topology: CpuTopology, free: int, count: int) -> int:
    """Assign `count` CPUs of `free`, packed. Raises ValueError when fewer are free."""
    if count >= free.bit_count():
        if count > free.bit_count():
            raise ValueError(f"{count} CPUs of {free.bit_count()}")
        return free
    taken = 0
    for socket in topology.sockets:
        if socket & free == socket and socket.bit_count() <= count:
            taken |= socket
            count -= socket.bit_count()
    if not count:
        return taken
    for core in _whole_cores(topology, free & ~taken):
        if core.bit_count() <= count:
            taken |= core
            count -= core.bit_count()
            if not count:
                return taken
    for thread in _threads(topology, free & ~taken, taken)[:count]:
        taken |= thread
    return taken


def _whole_cores(topology: CpuTopology, free: int) -> list[int]:
    """Entirely free cores, those on sockets with the fewest of them first."""
    whole = [(socket, core) for socket, core in topology.cores if core & free == core]
    on_socket = [0] * len(topology.sockets)
    for socket, _ in whole:
        on_socket[socket] += 1
    whole.sort(key=lambda each: (on_socket[each[0]], each[0]))
    return [core for _, core in whole]


def _threads(topology: CpuTopology, free: int, taken: int) -> list[int]:
    """Free CPUs: sockets with the most assigned CPUs first, then sockets and cores with the fewest free CPUs."""
    socket_order = [(-(cpus & taken).bit_count(), (cpus & free).bit_count()) for cpus in topology.sockets]
    cores = [(socket, core & free) for socket, core in topology.cores if core & free]
    cores.sort(key=lambda each: (socket_order[each[0]], each[1].bit_count(), each[0]))
    return [thread for _, core in cores for thread in members(core)]
