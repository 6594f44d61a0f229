"""Requests of pods that are JSON. Pods of one workload have equal resources, so their sums are cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.objects import PodObject
from capcard_sched.model.pod_requests import PodAmounts, pod_amounts
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.text_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: Sums that are kept, and bytes of the JSON that they are of: pods have a few resources.
_MOST_SUMS: Final = 4096
_SHORT: Final = 8192
_SPEC: Final = ("resources", "overhead")
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_STATUS: Final = ("resources", "allocatedResources", "resize")
_CONTAINER_STATUS: Final = ("name", "resources", "allocatedResources")
_CONDITION: Final = ("type", "reason")
_SIDES: Final = ("requests", "limits")
#: Lists of a spec and of a status, with the fields of their entries that count.
_SPEC_LISTS: Final = (("containers", _CONTAINER), ("initContainers", _CONTAINER))
_STATUS_LISTS: Final = (
    ("containerStatuses", _CONTAINER_STATUS),
    ("initContainerStatuses", _CONTAINER_STATUS),
    ("conditions", _CONDITION),
)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PodObject).decode


def counted_json(pod: Mapping[str, Any]) -> bytes:
    """JSON of the fields of a pod or pod template that count, for `amounts_of_json`."""
    return _encode(_counted(pod, lambda amounts: amounts))


# Computed 4 us, kept 0.5 (benchmarks/caches.py).
@text_cache(_MOST_SUMS, short=_SHORT)
def amounts_of_json(pod: bytes) -> PodAmounts:
    """The amounts of a pod. Raises QuantityError, msgspec.ValidationError for a malformed one."""
    decoded = _decode(pod)
    return pod_amounts(decoded.spec, decoded.status)


def valid_pod_amounts(pod: Mapping[str, Any]) -> PodAmounts:
    """The amounts of a pod or pod template. Never raises: a malformed or negative quantity counts as unset."""
    try:
        return amounts_of_json(counted_json(pod))
    except (QuantityError, msgspec.ValidationError, TypeError, AttributeError, UnicodeError):
        return amounts_of_json(_encode(_counted(pod, lambda amounts: dict(_valid(amounts)))))


def _counted(pod: Mapping[str, Any], amounts_of: Callable[[Any], Any]) -> dict[str, Any]:
    """The fields of a pod that count."""

    def picked(value: Any, fields: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in fields if isinstance(value, dict) else ():
            given = value.get(field)
            if given is None:
                continue
            if field in ("overhead", "allocatedResources"):
                found[field] = amounts_of(given)
            elif isinstance(given, str):
                found[field] = given
            elif field == "resources" and isinstance(given, dict):
                found[field] = {side: amounts_of(given[side]) for side in _SIDES if given.get(side) is not None}
        return found

    def part(value: Any, fields: tuple[str, ...], lists: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, Any]:
        if not value or not isinstance(value, dict):
            return {}
        found = picked(value, fields)
        for key, of_rows in lists:
            rows = value.get(key)
            if rows and isinstance(rows, list | tuple):
                found[key] = [picked(row, of_rows) for row in rows]
        return found

    return {
        "kind": "Pod",
        "spec": part(pod.get("spec"), _SPEC, _SPEC_LISTS),
        "status": part(pod.get("status"), _STATUS, _STATUS_LISTS),
    }


def _valid(amounts: Any) -> Iterator[tuple[str, Any]]:
    for name, raw in amounts.items() if isinstance(amounts, dict) else ():
        if isinstance(name, str) and isinstance(raw, str | int | float) and not isinstance(raw, bool):
            try:
                if (base_amount(name, raw) or 0) >= 0:
                    yield name, raw
            except QuantityError:
                continue
