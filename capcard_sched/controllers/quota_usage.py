"""What pods count as in `spec.minResources`: the keys of a ResourceQuota."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.model.objects import PodSpec
from capcard_sched.model.pod_template import container_amounts
from capcard_sched.model.quantity import format_amount

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.controllers.objects import JsonObject

_NATIVE = ("cpu", "memory", "ephemeral-storage")
#: Usages that are remembered: the Jobs of a cluster have few shapes, and each pass over a Job needs its usage.
_REMEMBERED: Final = 2048
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[PodSpec, int]]).decode


def quota_usage(pod_specs: Iterable[tuple[JsonObject, int]]) -> dict[str, str]:
    """Usage of (pod spec, how many of it) pairs by quota key, as quantities."""
    shapes = [(_resources(pod_spec), count) for pod_spec, count in pod_specs]
    return dict(_usage(_encode(shapes)))


def _resources(pod_spec: JsonObject) -> JsonObject:
    """The fields of a pod spec that count."""
    found = {
        group: [
            {field: container[field] for field in ("resources", "restartPolicy") if container.get(field)}
            for container in pod_spec[group]
        ]
        for group in ("containers", "initContainers")
        if pod_spec.get(group)
    }
    if pod_spec.get("overhead"):
        found["overhead"] = pod_spec["overhead"]
    return found


@lru_cache(_REMEMBERED)
def _usage(shapes: bytes) -> dict[str, str]:
    """`quota_usage` of the JSON of (`_resources`, how many) pairs."""
    found: dict[str, int] = {}
    shown_as: dict[str, str] = {}
    pods = 0

    def charge(key: str, name: str, amount: int) -> None:
        found[key] = found.get(key, 0) + amount
        shown_as[key] = name

    for pod_spec, count in _decode(shapes):
        pods += count
        requests, limits = container_amounts(pod_spec)
        for name, amount in requests.items():
            charge(name, name, amount * count)
            charge(f"requests.{name}", name, amount * count)
        for name, amount in limits.items():
            if name in _NATIVE:
                charge(f"limits.{name}", name, amount * count)
    usage = {"count/pods": str(pods), "pods": str(pods)}
    usage.update({key: format_amount(shown_as[key], amount) for key, amount in sorted(found.items())})
    return usage
