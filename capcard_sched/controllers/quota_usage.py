"""What pods count as in `spec.minResources`: the keys of a ResourceQuota."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.quantity import amounts, format_amount

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.controllers.objects import JsonObject

_NATIVE = ("cpu", "memory", "ephemeral-storage")
#: Usages that are remembered: the Jobs of a cluster have few shapes, and each pass over a Job needs its usage.
_REMEMBERED: Final = 2048
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[dict[str, Any], int]]).decode


def pod_amounts(pod_spec: JsonObject, side: str) -> dict[str, int]:
    """`requests` or `limits` of a pod in base units: containers and sidecars added, or the init peak, plus overhead."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod_spec.get("containers") or ():
        _add(running, _side(container, side))
    sidecars: dict[str, int] = {}
    for container in pod_spec.get("initContainers") or ():
        wanted = _side(container, side)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            wanted = {}
        starting = dict(sidecars)
        _add(starting, wanted)
        for name, amount in starting.items():
            peak[name] = max(peak.get(name, 0), amount)
    _add(running, sidecars)
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in (*running, *peak)}
    overhead = amounts(pod_spec.get("overhead"))
    _add(total, overhead if side == "requests" else {name: overhead[name] for name in overhead if name in total})
    return total


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
        for name, amount in pod_amounts(_with_default_requests(pod_spec), "requests").items():
            charge(name, name, amount * count)
            charge(f"requests.{name}", name, amount * count)
        for name, amount in pod_amounts(pod_spec, "limits").items():
            if name in _NATIVE:
                charge(f"limits.{name}", name, amount * count)
    usage = {"count/pods": str(pods), "pods": str(pods)}
    usage.update({key: format_amount(shown_as[key], amount) for key, amount in sorted(found.items())})
    return usage


def _with_default_requests(pod_spec: JsonObject) -> JsonObject:
    """Templates have not been through the API server, which lets requests default to limits."""

    def filled(container: JsonObject) -> JsonObject:
        resources = container.get("resources") or {}
        requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        return {**container, "resources": {**resources, "requests": requests}}

    return {
        **pod_spec,
        **{
            group: [filled(container) for container in pod_spec[group]]
            for group in ("containers", "initContainers")
            if pod_spec.get(group)
        },
    }


def _side(container: JsonObject, side: str) -> dict[str, int]:
    return amounts((container.get("resources") or {}).get(side))


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
