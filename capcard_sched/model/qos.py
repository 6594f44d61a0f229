"""QoS class Guaranteed, and the exclusive CPUs that it entails.

A pod is Guaranteed when every container limits cpu and memory and requests the same amounts; `spec.resources` replace
the containers. A static CPU manager assigns exclusive CPUs to each container of a Guaranteed pod that requests whole
CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from capcard_sched.model.objects import Container, PodSpec, RawAmounts, ResourceRequirements

_MILLI = 1000


def own_cpus(spec: PodSpec) -> tuple[tuple[str, int], ...] | None:
    """Name and number of CPUs of each container with exclusive CPUs, in the order of the kubelet's admission.

    None when the pod is not Guaranteed. Empty when no container qualifies: fractional requests, or amounts in
    `spec.resources`, which CPU managers ignore. Sidecars are first; other init containers release their CPUs to later
    containers and are omitted. Never raises: an invalid amount counts as unset.
    """
    if spec.resources is not None and (_has(spec.resources.requests) or _has(spec.resources.limits)):
        return () if _milli_cpu(spec.resources) is not None else None
    init = spec.init_containers or ()
    amounts = [_milli_cpu(container.resources) for container in (*init, *spec.containers)]
    if not amounts or None in amounts:
        return None
    lasting: list[Container] = [each for each in init if each.restart_policy == "Always"]
    found = []
    for container in (*lasting, *spec.containers):
        milli = _milli_cpu(container.resources) or 0
        if milli and milli % _MILLI == 0:
            found.append((container.name, milli // _MILLI))
    return tuple(found)


def _has(amounts: RawAmounts | None) -> bool:
    return amounts is not None and (CPU in amounts or MEMORY in amounts)


def _milli_cpu(resources: ResourceRequirements | None) -> int | None:
    """The cpu request when requests equal limits for cpu and memory, else None."""
    if resources is None or not resources.limits:
        return None
    limits, requests = resources.limits, resources.requests or {}
    cpu = 0
    for resource in (CPU, MEMORY):
        try:
            limit = base_amount(resource, limits.get(resource, 0))
            request = limit if resource not in requests else base_amount(resource, requests[resource])
        except QuantityError:
            return None
        if not limit or limit != request:
            return None
        if resource == CPU:
            cpu = limit
    return cpu
