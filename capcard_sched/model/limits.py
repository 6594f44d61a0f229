"""ResourceQuotas and PodDisruptionBudgets.

Amounts of a quota are exact integers under the quota's own names (`cpu` differs from `requests.cpu`): bytes for
resources in bytes, thousandths for all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model.objects import ApiStruct, LabelSelector, ObjectMeta, RawAmounts
from capcard_sched.model.quantity import QuantityError, format_binary, format_milli, is_quota_in_bytes, milli, units
from capcard_sched.model.text_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.objects import RawQuantity


# --- API objects ----------------------------------------------------------------------------------------------------


class ResourceQuotaSpec(ApiStruct, frozen=True):
    """Specified limits; scopes are ignored."""

    hard: RawAmounts | None = None


class ResourceQuotaStatus(ApiStruct, frozen=True):
    """Enforced limits and usage, from the quota controller."""

    hard: RawAmounts | None = None
    used: RawAmounts | None = None


class ResourceQuotaObject(ApiStruct, frozen=True, tag="ResourceQuota", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class DisruptionBudgetSpec(ApiStruct, frozen=True):
    """The selected pods; the status has the number of allowed disruptions."""

    selector: LabelSelector | None = None


class DisruptionBudgetStatus(ApiStruct, frozen=True):
    """Result of the disruption controller."""

    disruptions_allowed: int = 0
    #: Pod name to the time its eviction was allowed.
    disrupted_pods: dict[str, str] | None = None


class PodDisruptionBudgetObject(ApiStruct, frozen=True, tag="PodDisruptionBudget", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


# --- cached facts ---------------------------------------------------------------------------------------------------


class Quota(msgspec.Struct, frozen=True):
    """One ResourceQuota: `hard` and `used` by the same names."""

    namespace: str
    name: str
    hard: dict[str, int]
    used: dict[str, int]


class Budget(msgspec.Struct, frozen=True):
    """One PodDisruptionBudget: the number of selected pods that may be disrupted now."""

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int
    #: Names of pods whose eviction was already allowed.
    disrupted: frozenset[str]


def quota_amount(name: str, raw: RawQuantity) -> int:
    """An amount under a quota's name. Raises QuantityError."""
    return units(raw) if is_quota_in_bytes(name) else milli(raw)


def format_quota_amount(name: str, amount: int) -> str:
    """In Kubernetes' canonical form; parsing it again gives the same amount."""
    return format_binary(amount) if is_quota_in_bytes(name) else format_milli(amount)


# Computed 1.7 us, kept 2.4 (benchmarks/caches.py): it saves memory, most PodGroups have equal lists.
@text_cache(4096)
def _amounts(items: tuple[tuple[str, RawQuantity], ...]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for name, raw in items:
        try:
            found[name] = quota_amount(name, raw)
        except QuantityError:
            found[name] = 0
    return found


def quota_amounts(raw: Mapping[str, RawQuantity]) -> Mapping[str, int]:
    """Amounts under every name as written, including `count/pods` and `requests.cpu`; an invalid one is 0.

    Equal lists share one mapping: there is one per PodGroup, and most are equal.
    """
    return _amounts(tuple(raw.items()))


def quota_facts(obj: ResourceQuotaObject) -> Quota:
    """The facts of a ResourceQuota: enforced limits, else the specified ones."""
    hard = quota_amounts(obj.status.hard if obj.status.hard is not None else obj.spec.hard or {})
    used = quota_amounts(obj.status.used or {})
    meta = obj.metadata
    return Quota(meta.namespace or "default", meta.name, dict(hard), {name: used.get(name, 0) for name in hard})


def budget_facts(obj: PodDisruptionBudgetObject) -> Budget:
    """The facts of a PodDisruptionBudget; it allows no disruption before the controller has processed it."""
    meta, status = obj.metadata, obj.status
    return Budget(
        meta.namespace or "default",
        meta.name,
        obj.spec.selector,
        max(0, status.disruptions_allowed),
        frozenset(status.disrupted_pods or ()),
    )
