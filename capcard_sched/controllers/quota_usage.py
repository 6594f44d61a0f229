"""Usage of pods in `spec.minResources`, by the keys of a ResourceQuota."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.json_pods import amounts_of_json, counted_json
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.text_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.controllers.objects import JsonObject

_NATIVE = ("cpu", "memory", "ephemeral-storage")


#: Usages that are kept: the Jobs of a cluster have few shapes, and each pass over a Job needs its usage.
_MOST_USAGES: Final = 2048
#: Bytes of the templates of a usage that is kept.
_SHORT: Final = 16_384


def quota_usage(pods: Iterable[tuple[JsonObject, int]]) -> dict[str, str]:
    """Usage of (pod or pod template, how many of it) pairs by quota key, as quantities. Raises QuantityError."""
    return dict(_usage(tuple((counted_json(pod), count) for pod, count in pods)))


# Computed 5.2 us, kept 1.2 (benchmarks/caches.py).
@text_cache(_MOST_USAGES, short=_SHORT)
def _usage(shapes: tuple[tuple[bytes, int], ...]) -> dict[str, str]:
    found: dict[str, int] = {}
    shown_as: dict[str, str] = {}
    number = 0

    def charge(key: str, name: str, amount: int) -> None:
        found[key] = found.get(key, 0) + amount
        shown_as[key] = name

    for pod, count in shapes:
        number += count
        amounts = amounts_of_json(pod)
        for name, amount in amounts.requests.items():
            charge(name, name, amount * count)
            charge(f"requests.{name}", name, amount * count)
        for name, amount in amounts.limits.items():
            if name in _NATIVE:
                charge(f"limits.{name}", name, amount * count)
    usage = {"count/pods": str(number), "pods": str(number)}
    usage.update({key: format_amount(shown_as[key], amount) for key, amount in sorted(found.items())})
    return usage
