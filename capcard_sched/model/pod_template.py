"""Templates of pods: effective requests and placement constraints, with the defaults of the API server applied.

`pod_requests` sums the amounts.

A pod is Guaranteed when every container limits cpu and memory and requests the same amounts; `spec.resources` replace
the containers. A static CPU manager assigns exclusive CPUs to each container of a Guaranteed pod that requests whole
CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.declared_features import required_features
from capcard_sched.model.objects import HostPort
from capcard_sched.model.pod_claims import pod_claims
from capcard_sched.model.pod_requests import container_sides, is_sidecar, pod_amounts
from capcard_sched.model.quantity import MAX_POD_AMOUNT, QuantityError, base_amount
from capcard_sched.model.resources import CPU, MEMORY, PODS
from capcard_sched.model.task_class import ContainerAmounts, PodTemplate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.model.in_tree_volumes import AttachmentKey
    from capcard_sched.model.objects import Container, PodObject, PodSpec, RawAmounts, ResourceRequirements, Volume
    from capcard_sched.model.pod_requests import ContainerSides

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 -- a value of hostIP, not an address we bind


def _sorted(amounts: Mapping[str, int]) -> dict[str, int]:
    """Sorted by name, so that equal templates have equal items; sums are capped at MAX_POD_AMOUNT."""
    return {name: min(amounts[name], MAX_POD_AMOUNT) for name in sorted(amounts)}


def _host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    containers: Iterable[Container] = spec.containers
    if spec.init_containers:
        containers = (*containers, *filter(is_sidecar, spec.init_containers))
    found = set()
    for container in containers:
        for port in container.ports or ():
            # With hostNetwork every container port is a host port, as the API server defaults it.
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number > 0:
                address = port.host_ip or ""
                found.add(HostPort("" if address == _EVERY_ADDRESS else address, port.protocol or "TCP", number))
    return tuple(sorted(found))


def _claims(volumes: tuple[Volume, ...], pod_name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of all claims, and of those of ephemeral volumes."""
    names: dict[str, None] = {}
    own: dict[str, None] = {}
    for volume in volumes:
        if volume.persistent_volume_claim is not None:
            names[volume.persistent_volume_claim.claim_name] = None
        elif volume.ephemeral is not None:
            name = f"{pod_name}-{volume.name}"
            names[name] = own[name] = None
    return tuple(names), tuple(own)


def inline_volumes(volumes: Iterable[Volume]) -> tuple[AttachmentKey, ...]:
    """The in-tree volumes among the volumes of a pod."""
    return tuple(dict.fromkeys(key for volume in volumes if (key := volume.in_tree()) is not None))


def template_of(pod: PodObject) -> PodTemplate:
    """The scheduling-relevant template of a pod. Pods of one workload give equal templates.

    Raises QuantityError with the path of the first invalid or negative quantity. About 10 microseconds for a pod of one
    container.
    """
    spec = pod.spec
    sides = container_sides(spec)
    amounts = pod_amounts(spec, pod.status, sides)
    requests = {**amounts.requests, PODS: 1}
    init = spec.init_containers or ()
    volumes = spec.volumes
    names, own_names = _claims(volumes, pod.metadata.name) if volumes else ((), ())
    has_ports = spec.host_network or any(container.ports for container in (*spec.containers, *init))
    return PodTemplate(
        requests=_sorted(requests),
        limits=_sorted(amounts.limits) if amounts.limits else {},
        nonzero_cpu_milli=min(amounts.nonzero_cpu_milli, MAX_POD_AMOUNT),
        nonzero_memory_bytes=min(amounts.nonzero_memory_bytes, MAX_POD_AMOUNT),
        node_selector=spec.node_selector or {},
        affinity=spec.affinity,
        tolerations=spec.tolerations or (),
        spread=spec.topology_spread_constraints or (),
        host_ports=_host_ports(spec) if has_ports else (),
        images=tuple([container.image for container in (*init, *spec.containers)]),
        volumes=names,
        own_volumes=own_names,
        inline_volumes=inline_volumes(volumes) if volumes else (),
        priority_class_name=spec.priority_class_name or "",
        preemption_policy=spec.preemption_policy or "",
        required_features=required_features(spec),
        own_cpus=own_cpus(spec) if amounts.limits else None,
        device_containers=_device_containers(spec, sides) if any("/" in name for name in requests) else (),
        claims=pod_claims(pod) if spec.resource_claims else (),
    )


def _device_containers(spec: PodSpec, sides: Sequence[ContainerSides]) -> tuple[ContainerAmounts, ...]:
    """The extended resources of each container."""
    containers = (*spec.containers, *(spec.init_containers or ()))
    first_init = len(spec.containers)
    return tuple(
        ContainerAmounts(
            container.name,
            _extended(amounts.limits),
            _extended(amounts.requests),
            index >= first_init,
            index >= first_init and is_sidecar(container),
            tuple(sorted({*amounts.requests, *amounts.limits})),
        )
        for index, (container, amounts) in enumerate(zip(containers, sides, strict=True))
    )


def _extended(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted([item for item in amounts.items() if "/" in item[0]]))


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
    lasting = filter(is_sidecar, init)
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
