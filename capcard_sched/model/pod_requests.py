"""Requests and limits of a pod: the one sum over containers, sidecars, overhead, `spec.resources` and resizes.

The rule is that of kube-scheduler 1.37. The containers and sidecars run together; an init container runs beside the
sidecars before it, so each resource counts with the larger of the two sums. `spec.resources` override that sum for cpu,
memory and huge pages. Overhead is added last.

A resize in place counts with the largest of the specified, allocated and actual sums; an infeasible one without the
specified sum. `status.allocatedResources` and `status.resources` of the pod replace the sums over its container
statuses.

Defaults of the API server apply where a field is unset: a limit is the default of a request, and the amounts of the
containers are the defaults of `spec.resources`.
"""

from __future__ import annotations

from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from capcard_sched.model.objects import PodStatus
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.objects import Container, ContainerStatus, PodObject, PodSpec, RawAmounts

#: milli-CPU and bytes. Defaults of a container without a request in least/most-requested scores.
DEFAULT_CPU_MILLI = 100
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024

_Amounts: TypeAlias = dict[str, int]
#: Keys of the non-zero amounts while they are summed together with the requests.
_SCORED_CPU: Final = "cpu, or its default"
_SCORED_MEMORY: Final = "memory, or its default"
_SCORED_DEFAULTS: Final = {_SCORED_CPU: DEFAULT_CPU_MILLI, _SCORED_MEMORY: DEFAULT_MEMORY_BYTES}
_NOTHING: Final[_Amounts] = {}
_NO_STATUS: Final = PodStatus()
_PENDING_RESIZE: Final = "PodResizePending"
_INFEASIBLE: Final = "Infeasible"


class PodAmounts(NamedTuple):
    """Amounts of a pod in base units. Callers do not change the mappings."""

    #: Effective requests; an explicit 0 is kept.
    requests: Mapping[str, int]
    #: Limits as specified, of the resources that some container or the pod limits.
    limits: Mapping[str, int]
    #: The requests of cpu and memory, with the defaults of scores where they are missing.
    nonzero_cpu_milli: int
    nonzero_memory_bytes: int


def is_sidecar(container: Container) -> bool:
    """Whether an init container runs as long as the pod."""
    return container.restart_policy == "Always"


def is_pod_level(resource: str) -> bool:
    """Whether `spec.resources` of a pod supports the resource."""
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def pod_amounts(spec: PodSpec, status: PodStatus = _NO_STATUS) -> PodAmounts:
    """The requests and limits of a pod. Raises QuantityError with the path of an invalid or negative quantity.

    The status counts where it has resources or an infeasible resize. About 5 microseconds for a pod of one container.
    """
    specified = _of_containers(spec, _specified)
    limits = _of_containers(spec, _limits)
    resized = _resized(spec, status, specified)
    scored = specified if resized is None else resized
    requests = {name: amount for name, amount in scored.items() if name not in _SCORED_DEFAULTS}
    cpu, memory = scored.get(_SCORED_CPU, 0), scored.get(_SCORED_MEMORY, 0)
    has_pod_level = False
    if spec.resources is not None and (spec.resources.requests or spec.resources.limits):
        written, limits = _pod_level(spec, specified, limits)
        has_pod_level = bool(written)
        if has_pod_level:
            requests.update(_effective_pod_level(written, status))
    if spec.overhead:
        overhead = _amounts(spec.overhead, "spec.overhead")
        requests = _merged(requests, overhead, add)
        limits = _merged(limits, {name: amount for name, amount in overhead.items() if limits.get(name)}, add)
        cpu, memory = cpu + overhead.get(CPU, 0), memory + overhead.get(MEMORY, 0)
    if has_pod_level:
        cpu, memory = requests.get(CPU, cpu), requests.get(MEMORY, memory)
    return PodAmounts(requests, limits, cpu, memory)


# --- amounts of containers ------------------------------------------------------------------------------------------


def _amounts(raw: RawAmounts, path: str) -> _Amounts:
    """Base-unit amounts. Raises QuantityError with the path of an invalid or negative quantity."""
    found: _Amounts = {}
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


def _specified(container: Container, path: str) -> _Amounts:
    """The requests in the spec, and the non-zero amounts."""
    resources = container.resources
    if resources is None:
        return _SCORED_DEFAULTS
    found = _amounts(resources.requests, f"{path}.resources.requests") if resources.requests else {}
    for name, amount in _limits(container, path).items():
        found.setdefault(name, amount)
    return _scored(found)


def _limits(container: Container, path: str) -> _Amounts:
    if container.resources is None or not container.resources.limits:
        return _NOTHING
    return _amounts(container.resources.limits, f"{path}.resources.limits")


def _scored(amounts: _Amounts) -> _Amounts:
    """Add the non-zero amounts to those of a container, in place."""
    amounts[_SCORED_CPU] = amounts.get(CPU, DEFAULT_CPU_MILLI)
    amounts[_SCORED_MEMORY] = amounts.get(MEMORY, DEFAULT_MEMORY_BYTES)
    return amounts


def _merged(left: _Amounts, right: _Amounts, of_both: Callable[[int, int], int]) -> _Amounts:
    """Sums or maximums. The result may be one of the arguments."""
    if not left or not right:
        return left or right
    merged = dict(left)
    for resource, amount in right.items():
        merged[resource] = of_both(merged.get(resource, 0), amount)
    return merged


def _of_containers(spec: PodSpec, amounts_of: Callable[[Container, str], _Amounts]) -> _Amounts:
    """The effective amounts of all containers: per resource, the maximum of the steady state and of each init step."""
    total = _NOTHING
    for index, container in enumerate(spec.containers):
        total = _merged(total, amounts_of(container, f"spec.containers[{index}]"), add)
    sidecars, peak = _NOTHING, _NOTHING
    for index, container in enumerate(spec.init_containers or ()):
        step = _merged(sidecars, amounts_of(container, f"spec.initContainers[{index}]"), add)
        if is_sidecar(container):
            sidecars = step
        peak = _merged(peak, step, max)
    return _merged(_merged(total, sidecars, add), peak, max)


# --- spec.resources -------------------------------------------------------------------------------------------------


def _pod_level(spec: PodSpec, specified: _Amounts, limits: _Amounts) -> tuple[_Amounts, _Amounts]:
    """The requests of `spec.resources`, and the limits of the pod, with the defaults of the API server."""
    resources = spec.resources
    if resources is None:
        return _NOTHING, limits
    written = _supported(resources.requests, "spec.resources.requests")
    limited = _supported(resources.limits, "spec.resources.limits")
    for name, amount in limits.items():
        if name.startswith("hugepages-") and name not in written:
            limited.setdefault(name, amount)
    for name in (CPU, MEMORY):
        if name in specified:
            written.setdefault(name, specified[name])
    for name, amount in limited.items():
        written.setdefault(name, amount)
    containers = (*spec.containers, *(spec.init_containers or ()))
    for name, amount in written.items():
        if name not in limited and all(name in _limits(each, "") for each in containers):
            limited[name] = max(amount, limits.get(name, 0))
    return written, {**limits, **limited}


def _supported(raw: RawAmounts | None, path: str) -> _Amounts:
    return {name: amount for name, amount in _amounts(raw or {}, path).items() if is_pod_level(name)}


def _effective_pod_level(written: _Amounts, status: PodStatus) -> _Amounts:
    if status.resources is None:
        return written
    actual = _supported(status.resources.requests, "status.resources.requests")
    allocated = _supported(status.allocated_resources, "status.allocatedResources")
    reported = _merged(actual, allocated, max)
    return reported if _is_infeasible(status) else _merged(written, reported, max)


# --- resizes --------------------------------------------------------------------------------------------------------


def resizes(pod: PodObject) -> tuple[Any, ...]:
    """All of the status that counts beside the spec, comparable; () when the status reports what the spec requests."""
    status = pod.status
    pod_level = status.resources, status.allocated_resources
    if pod_level == (None, None) and is_settled(pod):
        return ()
    rows = [(row.name, row.resources, row.allocated_resources) for row in _container_statuses(status) if _reports(row)]
    return _is_infeasible(status), pod_level, rows


def is_settled(pod: PodObject) -> bool:
    """Whether no resize is infeasible and the statuses of all containers have the requests of their specs."""
    rows = [row for row in _container_statuses(pod.status) if _reports(row)]
    return not _is_infeasible(pod.status) and (not rows or _are_settled(pod.spec, rows))


def _reports(row: ContainerStatus) -> bool:
    return row.resources is not None or row.allocated_resources is not None


def _container_statuses(status: PodStatus) -> Iterable[ContainerStatus]:
    rows = status.container_statuses or ()
    return (*rows, *status.init_container_statuses) if status.init_container_statuses else rows


def _are_settled(spec: PodSpec, rows: Iterable[ContainerStatus]) -> bool:
    """Whether each status of a container has the requests of its spec."""
    specified: dict[str, RawAmounts] = {}
    for container in (*spec.containers, *(spec.init_containers or ())):
        specified[container.name] = (container.resources.requests if container.resources is not None else None) or {}
    for row in rows:
        wanted = specified.get(row.name)
        if wanted is None:
            continue
        allocated = row.allocated_resources
        actual = row.resources.requests if row.resources is not None else None
        if actual is None:
            actual = allocated
        if (allocated is not None and allocated != wanted) or (actual is not None and actual != wanted):
            return False
    return True


def _is_infeasible(status: PodStatus) -> bool:
    for condition in status.conditions or ():
        if condition.type == _PENDING_RESIZE:
            return condition.reason == _INFEASIBLE
    return status.resize == _INFEASIBLE


def _resized(spec: PodSpec, status: PodStatus, specified: _Amounts) -> _Amounts | None:
    """The sum by the status of the pod; None when only the spec counts."""
    is_infeasible = _is_infeasible(status)
    rows = {row.name: row for row in _container_statuses(status)}
    if not is_infeasible and status.allocated_resources is None and not any(map(_reports, rows.values())):
        return None
    actual_of_pod = status.resources.requests if status.resources is not None else None
    if status.allocated_resources is not None and actual_of_pod is not None:
        allocated = _reported(status.allocated_resources, "status.allocatedResources")
        actual = _reported(actual_of_pod, "status.resources.requests")
    else:
        allocated = _of_containers(spec, partial(_allocated, rows, is_infeasible))
        actual = _of_containers(spec, partial(_actual, rows, is_infeasible))
    if is_infeasible:
        # Only cpu and memory can be resized. Kubelets before 1.33 report nothing else.
        specified = {name: amount for name, amount in specified.items() if not _is_resizable(name)}
    return _merged(specified, _merged(allocated, actual, max), max)


def _is_resizable(name: str) -> bool:
    return name in (CPU, MEMORY) or name in _SCORED_DEFAULTS


def _reported(raw: RawAmounts, path: str) -> _Amounts:
    found = _amounts(raw, path)
    scored = {_SCORED_CPU: found.get(CPU, 0), _SCORED_MEMORY: found.get(MEMORY, 0)}
    return {**found, **scored}


def _allocated(rows: Mapping[str, ContainerStatus], is_infeasible: bool, container: Container, path: str) -> _Amounts:
    """The allocated requests of a container; while it has none, those of its spec, unless the resize is infeasible."""
    row = rows.get(container.name)
    if row is not None and row.allocated_resources is not None:
        return _scored(_amounts(row.allocated_resources, f"status of {path}.allocatedResources"))
    return _SCORED_DEFAULTS if is_infeasible else _specified(container, path)


def _actual(rows: Mapping[str, ContainerStatus], is_infeasible: bool, container: Container, path: str) -> _Amounts:
    row = rows.get(container.name)
    if row is not None and row.resources is not None and row.resources.requests is not None:
        return _scored(_amounts(row.resources.requests, f"status of {path}.resources.requests"))
    return _allocated(rows, is_infeasible, container, path)
