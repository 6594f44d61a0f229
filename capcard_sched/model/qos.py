"""The QoS class of a pod, as far as kubelets give whole CPUs by it: Guaranteed or not.

By the rules of Kubernetes: every container limits cpu and memory and requests just that much; with `spec.resources`
these decide alone. A static CPU manager gives each container of a Guaranteed pod that asks for whole CPUs its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from capcard_sched.model.objects import Container, PodSpec, RawAmounts, ResourceRequirements

_MILLI = 1000


def own_cpus(spec: PodSpec) -> tuple[tuple[str, int], ...] | None:
    """Name and number of CPUs of each container that gets its own, in the order kubelets admit them.

    None when the pod is not Guaranteed; empty when it is and nobody gets any: fractions, or amounts that stand in
    `spec.resources`, which CPU managers do not serve. Sidecars stand first; an init container that ends gives its CPUs
    to those after it and is left out. Never raises: an amount that cannot be read is none.
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
    """The cpu request when cpu and memory are limited and requested alike, else None."""
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
