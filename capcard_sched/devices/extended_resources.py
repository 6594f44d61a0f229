"""Extended resources that a DeviceClass offers: the ResourceClaim that a pod gets for them.

The claim is created with the placement of the pod. Its requests follow from the containers, and from the resources that
the node offers by devices instead of a device plugin. Containers and sidecars run together, so each has devices of its
own; the other init containers run one after another and share the devices of the largest, after those of the containers
that start later.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.device_objects import DeviceClaim, DeviceRequest, ExactRequest, RequestMapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.task_class import ContainerAmounts

#: Thousandths: one unit of an extended resource.
_UNIT: Final = 1000
#: Characters of a generated name before its suffix, and of the suffix.
_PREFIX_LENGTH, _SUFFIX_LENGTH = 53, 10


class ExtendedRequests(NamedTuple):
    """The content of the claim for the extended resources of a pod."""

    spec: DeviceClaim
    mappings: tuple[RequestMapping, ...]


def extended_claim_name(pod: str, uid: str) -> str:
    """The name of the claim of a pod: a repeated creation makes no second one."""
    prefix = f"{pod}-extended-resources-"[:_PREFIX_LENGTH]
    return prefix + hashlib.sha256(uid.encode()).hexdigest()[:_SUFFIX_LENGTH]


class _ContainerRequest(NamedTuple):
    name: str
    devices: int


def extended_requests(containers: Sequence[ContainerAmounts], classes: Mapping[str, str]) -> ExtendedRequests:
    """The requests of a pod for resources by class, and the mappings of its containers.

    `containers`: ordinary ones, then init containers.
    """
    init_first = [*(each for each in containers if each.init), *(each for each in containers if not each.init)]
    requests: dict[str, DeviceRequest] = {}
    mappings: list[RequestMapping] = []
    for resource in sorted(classes):
        found, mapped = _of_resource(init_first, resource)
        mappings += mapped
        for each in found:
            exactly = ExactRequest(device_class_name=classes[resource], count=each.devices)
            requests[each.name] = DeviceRequest(each.name, exactly)
    return ExtendedRequests(DeviceClaim(tuple([requests[name] for name in sorted(requests)])), tuple(mappings))


def _of_resource(
    containers: Sequence[ContainerAmounts], resource: str
) -> tuple[list[_ContainerRequest], list[RequestMapping]]:
    """The requests for one resource, and the mappings: of containers that stay, then of the others.

    `containers`: init containers first.
    """
    amounts = [_count(each, resource) for each in containers]
    lasting: list[_ContainerRequest | None] = [
        _ContainerRequest(_name(index, each, resource), amounts[index])
        if amounts[index] and (each.sidecar or not each.init)
        else None
        for index, each in enumerate(containers)
    ]
    mappings = [
        RequestMapping(containers[index].name, resource, each.name)
        for index, each in enumerate(lasting)
        if each is not None
    ]
    largest: _ContainerRequest | None = None
    ending: list[tuple[str, str]] = []  # container and request; "" for the largest of them
    for index, each in enumerate(containers):
        if not amounts[index] or lasting[index] is not None:
            continue
        missing = amounts[index]
        for later in lasting[index:]:
            if later is not None and missing > 0:
                ending.append((each.name, later.name))
                missing -= later.devices
        if missing > 0:
            ending.append((each.name, ""))
            if largest is None or largest.devices < missing:
                largest = _ContainerRequest(_name(index, each, resource), missing)
    shared = largest.name if largest is not None else ""
    mappings += [RequestMapping(name, resource, request or shared) for name, request in ending]
    return [each for each in (largest, *lasting) if each is not None], mappings


def _count(container: ContainerAmounts, resource: str) -> int:
    """The devices that a container requests; its limit is the default."""
    amount = dict(container.limits) | dict(container.requests)
    return -(-amount.get(resource, 0) // _UNIT)


def _name(index: int, container: ContainerAmounts, resource: str) -> str:
    return f"container-{index}-request-{container.names.index(resource)}"
