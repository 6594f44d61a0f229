"""Templates of pods: effective requests and placement constraints, with the defaults of the API server applied.

Requests follow the kubelet: overhead is added after the maximum over init containers, a limit is the default of a
missing request, and pod-level `spec.resources` override the containers for cpu, memory and huge pages.

A pod is Guaranteed when every container limits cpu and memory and requests the same amounts; `spec.resources` replace
the containers. A static CPU manager assigns exclusive CPUs to each container of a Guaranteed pod that requests whole
CPUs.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.objects import HostPort
from capcard_sched.model.quantity import MAX_POD_AMOUNT, QuantityError, base_amount
from capcard_sched.model.resources import CPU, MEMORY, PODS
from capcard_sched.model.task_class import ContainerAmounts, PodTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.in_tree_volumes import AttachmentKey
    from capcard_sched.model.objects import Container, PodObject, PodSpec, RawAmounts, ResourceRequirements, Volume

#: milli-CPU and bytes. Defaults of a container without a request in least/most-requested scores.
DEFAULT_CPU_MILLI = 100
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 -- a value of hostIP, not an address we bind
_NO_AMOUNTS: dict[str, int] = {}
NO_RESIZES: Mapping[str, tuple[RawAmounts, ...]] = {}


def resizes(pod: PodObject) -> dict[str, tuple[RawAmounts, ...]]:
    """The requests to consider per container, by name, while a resize is pending or in progress; else empty.

    As kube-scheduler: the specified, the allocated and the actual requests; when the resize is infeasible, without the
    specified cpu and memory, the resources that can be resized. The effective request is their maximum.
    """
    status, spec = pod.status, pod.spec
    statuses = status.container_statuses or ()
    if status.init_container_statuses:
        statuses = (*statuses, *status.init_container_statuses)
    for each in statuses:
        if each.resources is not None:
            break
    else:
        return {}
    specified: dict[str, RawAmounts] = {}
    for container in (*spec.containers, *filter(_is_sidecar, spec.init_containers or ())):
        specified[container.name] = (container.resources.requests if container.resources is not None else None) or {}
    infeasible = _is_infeasible(pod)
    found: dict[str, tuple[RawAmounts, ...]] = {}
    for each in statuses:
        wanted = specified.get(each.name)
        if wanted is None or each.resources is None:
            continue
        actual = each.resources.requests or {}
        allocated = each.allocated_resources if each.allocated_resources is not None else actual
        if actual != wanted or allocated != wanted:
            if infeasible:
                wanted = {name: amount for name, amount in wanted.items() if name not in (CPU, MEMORY)}
            found[each.name] = (wanted, allocated, actual)
    return found


def _is_infeasible(pod: PodObject) -> bool:
    for condition in pod.status.conditions or ():
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible"
    return pod.status.resize == "Infeasible"


class _Part(NamedTuple):
    """Base-unit amounts of one or several containers."""

    requests: dict[str, int]
    limits: dict[str, int]
    cpu_milli: int
    memory_bytes: int


_NOTHING = _Part(_NO_AMOUNTS, _NO_AMOUNTS, 0, 0)
_UNSET = _Part(_NO_AMOUNTS, _NO_AMOUNTS, DEFAULT_CPU_MILLI, DEFAULT_MEMORY_BYTES)


def _amounts(raw: RawAmounts, path: str) -> dict[str, int]:
    """Base-unit amounts. Raises QuantityError with the path of an invalid or negative quantity."""
    found: dict[str, int] = {}
    for resource, quantity in raw.items():
        try:
            amount = base_amount(resource, quantity)
        except QuantityError as error:
            raise QuantityError(f"{path}[{resource}]: {error}") from None
        if amount is not None:
            if amount < 0:
                raise QuantityError(f"{path}[{resource}]: '{quantity}' is negative")
            found[resource] = amount
    return found


def _container(
    container: Container, path: str, index: int, resized: Mapping[str, tuple[RawAmounts, ...]] = NO_RESIZES
) -> _Part:
    resources = container.resources
    if resources is None:
        return _UNSET
    sources = resized.get(container.name) if resized else None
    if sources is not None:
        requests: dict[str, int] = {}
        for raw in sources:
            requests = _merged(requests, _amounts(raw, f"status of {path}[{index}].resources.requests"), max)
        requests = dict(requests)
    else:
        requests = _amounts(resources.requests, f"{path}[{index}].resources.requests") if resources.requests else {}
    limits = _NO_AMOUNTS
    if resources.limits:
        limits = _amounts(resources.limits, f"{path}[{index}].resources.limits")
        for resource, amount in limits.items():
            requests.setdefault(resource, amount)
    return _Part(requests, limits, requests.get(CPU, DEFAULT_CPU_MILLI), requests.get(MEMORY, DEFAULT_MEMORY_BYTES))


def _merged(left: dict[str, int], right: dict[str, int], of_both: Callable[[int, int], int]) -> dict[str, int]:
    if not left or not right:
        return left or right
    merged = dict(left)
    for resource, amount in right.items():
        merged[resource] = of_both(merged.get(resource, 0), amount)
    return merged


def _joined(left: _Part, right: _Part, of_both: Callable[[int, int], int]) -> _Part:
    """The sums, or the maximums, of two parts."""
    return _Part(
        _merged(left.requests, right.requests, of_both),
        _merged(left.limits, right.limits, of_both),
        of_both(left.cpu_milli, right.cpu_milli),
        of_both(left.memory_bytes, right.memory_bytes),
    )


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _containers(spec: PodSpec, resized: Mapping[str, tuple[RawAmounts, ...]]) -> _Part:
    """Effective amounts of all containers: per resource, the maximum of the steady state and of each init step."""
    ordinary = spec.containers
    total = _container(ordinary[0], "spec.containers", 0, resized) if ordinary else _NOTHING
    for index in range(1, len(ordinary)):
        total = _joined(total, _container(ordinary[index], "spec.containers", index, resized), add)
    if not spec.init_containers:
        return total
    sidecars, peak = _NOTHING, _NOTHING
    for index, container in enumerate(spec.init_containers):
        step = _joined(sidecars, _container(container, "spec.initContainers", index, resized), add)
        if _is_sidecar(container):
            sidecars = step
        peak = _joined(peak, step, max)
    return _joined(_joined(total, sidecars, add), peak, max)


def _pod_level(resource: str) -> bool:
    """Whether `spec.resources` of a pod supports the resource."""
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def _with_pod_level(part: _Part, spec: PodSpec) -> _Part:
    """Override by `spec.resources`; a pod-level limit is the default of a request that no container has."""
    resources = spec.resources
    if resources is None:
        return part
    requests = _amounts(resources.requests or {}, "spec.resources.requests")
    limits = _amounts(resources.limits or {}, "spec.resources.limits")
    requests = {name: amount for name, amount in requests.items() if _pod_level(name)}
    limits = {name: amount for name, amount in limits.items() if _pod_level(name)}
    for resource, amount in limits.items():
        if resource not in part.requests:
            requests.setdefault(resource, amount)
    return _Part(
        {**part.requests, **requests},
        {**part.limits, **limits},
        requests.get(CPU, part.cpu_milli),
        requests.get(MEMORY, part.memory_bytes),
    )


def _with_overhead(part: _Part, spec: PodSpec) -> _Part:
    """Add overhead to requests, and to limits of limited resources."""
    overhead = _amounts(spec.overhead or {}, "spec.overhead")
    return _Part(
        _merged(part.requests, overhead, add),
        _merged(part.limits, {name: amount for name, amount in overhead.items() if part.limits.get(name)}, add),
        part.cpu_milli + overhead.get(CPU, 0),
        part.memory_bytes + overhead.get(MEMORY, 0),
    )


def container_amounts(spec: PodSpec) -> tuple[dict[str, int], dict[str, int]]:
    """Requests and limits of a pod in base units by its containers and overhead. Raises QuantityError."""
    part = _with_overhead(_containers(spec, NO_RESIZES), spec)
    return part.requests, part.limits


def _sorted(amounts: dict[str, int]) -> dict[str, int]:
    """Sorted by name, so that equal templates have equal items; sums are capped at MAX_POD_AMOUNT."""
    return {name: min(amounts[name], MAX_POD_AMOUNT) for name in sorted(amounts)}


def _host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    containers: Iterable[Container] = spec.containers
    if spec.init_containers:
        containers = (*containers, *filter(_is_sidecar, spec.init_containers))
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
    part = _containers(spec, resizes(pod))
    if spec.resources is not None:
        part = _with_pod_level(part, spec)
    if spec.overhead:
        part = _with_overhead(part, spec)
    requests = dict(part.requests)
    requests[PODS] = 1
    init = spec.init_containers or ()
    volumes = spec.volumes
    names, own_names = _claims(volumes, pod.metadata.name) if volumes else ((), ())
    has_ports = spec.host_network or any(container.ports for container in (*spec.containers, *init))
    return PodTemplate(
        requests=_sorted(requests),
        limits=_sorted(part.limits) if part.limits else {},
        nonzero_cpu_milli=min(part.cpu_milli, MAX_POD_AMOUNT),
        nonzero_memory_bytes=min(part.memory_bytes, MAX_POD_AMOUNT),
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
        own_cpus=own_cpus(spec) if part.limits else None,
        device_containers=_device_containers(spec) if any("/" in name for name in requests) else (),
    )


def _device_containers(spec: PodSpec) -> tuple[ContainerAmounts, ...]:
    """What each container says of extended resources. Its quantities were read before."""
    containers = ((spec.containers, False), (spec.init_containers or (), True))
    return tuple(
        ContainerAmounts(container.name, _extended(_sides(container)[0]), _extended(_sides(container)[1]), init)
        for group, init in containers
        for container in group
    )


def _sides(container: Container) -> tuple[RawAmounts, RawAmounts]:
    resources = container.resources
    return ({}, {}) if resources is None else (resources.limits or {}, resources.requests or {})


def _extended(raw: RawAmounts) -> tuple[tuple[str, int], ...]:
    amounts = ((name, base_amount(name, quantity)) for name, quantity in raw.items() if "/" in name)
    return tuple(sorted((name, amount) for name, amount in amounts if amount is not None))


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
