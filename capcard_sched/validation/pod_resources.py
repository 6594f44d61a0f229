"""Resources of containers and pods, checked as the API server does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.json_pods import valid_pod_amounts
from capcard_sched.model.pod_requests import is_pod_level
from capcard_sched.model.quantity import QuantityError, format_amount, milli
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.names import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.inventory import Json

#: Native resources, of which fractions and different requests and limits are accepted.
_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_DEVICE_FORM: Final = "the same request and limit: the resource is a device"
_IN_BYTES: Final = ("memory", "ephemeral-storage")
_NATIVE_PREFIXES: Final = ("hugepages-", "requests.", "limits.")


def check_resources(resources: Any, field: str) -> Iterator[Finding]:
    """What is wrong with the resources of a container at the path `field`: amounts, and requests beside limits."""
    if not isinstance(resources, dict):
        return
    amounts: dict[str, dict[str, int | None]] = {}
    for side in ("requests", "limits"):
        found: dict[str, int | None] = {}
        values = resources.get(side)
        for name, raw in values.items() if isinstance(values, dict) else ():
            place = f'{field}.{side}["{name}"]'
            amount = _milli(raw)
            found[name] = amount
            yield from _amount_problems(name, raw, amount, place)
        amounts[side] = found
    for name, request in amounts["requests"].items():
        limit = amounts["limits"].get(name)
        place = f'{field}.requests["{name}"]'
        if request is None:
            continue
        if limit is not None and request > limit:
            raw, most = resources["requests"][name], resources["limits"][name]
            yield Finding("error", place, f"{shown(raw)} is more than the limit", f"at most {most}")
        elif not _is_native(name) and name not in amounts["limits"]:
            yield Finding("error", place, f"{shown(resources['requests'][name])} has no limit", _DEVICE_FORM)
        elif not _is_native(name) and limit is not None and request != limit:
            values = f"{shown(resources['requests'][name])} differs from the limit {shown(resources['limits'][name])}"
            yield Finding("error", place, values, _DEVICE_FORM)


def _amount_problems(name: str, raw: object, amount: int | None, place: str) -> Iterator[Finding]:
    """What is wrong with one amount of a container, in thousandths; None for no quantity."""
    if amount is None:
        yield Finding("error", place, f"{shown(raw)} is not a quantity", "a quantity such as 500m, 2 or 16Gi")
    elif amount < 0:
        yield Finding("error", place, f"{shown(raw)} is negative", "a quantity of at least 0")
    elif not _is_native(name) and amount % 1000:
        yield Finding("error", place, f"{shown(raw)} is a fraction", "a whole number: the resource is a device")
    elif amount % 1000 and (name in _IN_BYTES or name.startswith("hugepages-")):
        yield Finding("warning", place, f"{shown(raw)} is a fraction of a byte", "an amount such as 512Mi")


def _is_native(name: str) -> bool:
    return name in _NATIVE or name.startswith(_NATIVE_PREFIXES) or "/" not in name or "kubernetes.io/" in name


def _milli(raw: Any) -> int | None:
    """Thousandths of a quantity, rounded up; None when it is none."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        return None
    try:
        return milli(raw)
    except QuantityError:
        return None


_SIDES: Final = ("requests", "limits")
_HUGE_PAGES: Final = "hugepages-"
_POD_LEVEL_FORM: Final = "cpu, memory, or huge pages such as hugepages-2Mi"


def check_pod_level(spec: Json, field: str) -> Iterator[Finding]:
    """What is wrong with `spec.resources` of a pod at the path `field`, by itself and beside its containers."""
    resources = spec.get("resources")
    if not isinstance(resources, dict):
        return
    if resources.get("claims"):
        yield Finding("error", f"{field}.claims", "is not accepted for a pod", "claims of its containers")
    supported: dict[str, dict[str, Any]] = {}
    for side in _SIDES:
        written = resources.get(side)
        named = written if isinstance(written, dict) else {}
        supported[side] = {name: raw for name, raw in named.items() if is_pod_level(name)}
        for name in named:
            if name not in supported[side]:
                message = "is not supported for a pod: its containers request the resource"
                yield Finding("error", f'{field}.{side}["{name}"]', message, _POD_LEVEL_FORM)
    problems = list(check_resources(supported, field))
    yield from problems
    if problems:
        return
    for name, request in supported["requests"].items():
        if name.startswith(_HUGE_PAGES) and milli(request) != milli(supported["limits"].get(name, -1)):
            place = f'{field}.requests["{name}"]'
            limit = supported["limits"].get(name)
            problem = "has no limit" if limit is None else f"differs from the limit {shown(limit)}"
            message = f"{shown(request)} {problem}"
            yield Finding("error", place, message, "the same request and limit of huge pages")
    yield from _beside_containers(spec, supported, field)


def _beside_containers(spec: Json, supported: dict[str, dict[str, Any]], field: str) -> Iterator[Finding]:
    """A pod has at least what its containers request together, and the limit of each of them."""
    containers = valid_pod_amounts({"spec": {group: spec.get(group) for group in ("containers", "initContainers")}})
    pod = valid_pod_amounts({"spec": {"resources": supported}})
    for name, amount in containers.requests.items():
        side = next((side for side in _SIDES if name in supported[side]), None)
        if side is not None and amount > getattr(pod, side)[name]:
            least = format_amount(name, amount)
            message = f"{shown(supported[side][name])} is less than the {least} that the containers request"
            yield Finding("error", f'{field}.{side}["{name}"]', message, f"at least {least}")
    listed = spec.get("containers")
    for index, container in enumerate(listed if isinstance(listed, list) else ()):
        limits = valid_pod_amounts({"spec": {"containers": [container]}}).limits
        for name in sorted(supported["limits"].keys() & limits.keys()):
            if limits[name] > pod.limits[name]:
                place = f'{field.removesuffix("resources")}containers[{index}].resources.limits["{name}"]'
                most = format_amount(name, pod.limits[name])
                message = f"{format_amount(name, limits[name])} is more than the limit of the pod"
                yield Finding("error", place, message, f"at most {most}")
