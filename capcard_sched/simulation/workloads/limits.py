"""Stand-ins for the ResourceQuota and PodDisruptionBudget controllers: they count pods and write statuses.

A quota counts pods and their requests and limits; pods beyond it are still created, as quota admission is not
simulated, and `beyond` reports them. A status in the input is the starting point, because it may cover objects outside
the scenario: only later changes are counted on top of it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.controllers.objects import (
    ENDED_PHASES,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    JsonObject,
    controller_of,
    key_of,
    labels_of,
    meta,
    spec,
    status,
)
from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.limits import format_quota_amount, quota_amounts
from capcard_sched.model.numbers import percentage
from capcard_sched.model.objects import LabelSelector
from capcard_sched.model.selectors import matches_labels
from capcard_sched.simulation.kinds import DISRUPTION_BUDGET, RESOURCE_QUOTA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.simulation.store import Change, Store

_COUNT = "count/pods"
_SCALED = (REPLICA_SET, STATEFUL_SET)


class QuotaController:
    """Keeps `status.hard` and `status.used` of every ResourceQuota. A changed pod costs O(quotas of its namespace)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Namespace to pod name to its usage.
        self._usage: dict[str, dict[str, Mapping[str, int]]] = {}
        #: Namespace to the sum of the usage; namespaces with quotas only.
        self._used: dict[str, dict[str, int]] = {}
        self._quotas: dict[str, set[str]] = {}
        self._changed: OrderedDict[str, None] = OrderedDict()
        #: Quota to the last written usage, and to the usage beyond the pods of the scenario.
        self._written: dict[tuple[str, str], JsonObject] = {}
        self._unseen: dict[tuple[str, str], Mapping[str, int]] = {}
        #: Quota and resource to the largest usage that exceeded the limit, and the limit.
        self._exceeded: dict[tuple[str, str, str], tuple[int, int]] = {}

    def beyond(self) -> list[str]:
        """Warnings about quotas that pods exceeded: an API server does not create these pods."""
        return [
            f"ResourceQuota {name} of namespace {namespace}: the pods use {format_quota_amount(key, used)} of "
            f"{format_quota_amount(key, limit)} {key}; an API server refuses the pods beyond it"
            for (namespace, name, key), (used, limit) in sorted(self._exceeded.items())
        ]

    def observe(self, change: Change) -> None:
        """Queue quotas, and count pods in namespaces with quotas."""
        namespace, name = change.key
        if change.kind == RESOURCE_QUOTA:
            if change.new is None:
                self._quotas[namespace].discard(name)
                self._written.pop(change.key, None)
                self._unseen.pop(change.key, None)
            else:
                self._quotas.setdefault(namespace, set()).add(name)
            self._changed[namespace] = None
        elif change.kind == POD and self._quotas.get(namespace) and namespace in self._used:
            self._count(namespace, name, change.new)
            self._changed[namespace] = None

    def _count(self, namespace: str, name: str, pod: JsonObject | None) -> None:
        used, usage = self._used[namespace], self._usage[namespace]
        for key, amount in usage.pop(name, {}).items():
            used[key] -= amount
        if pod is not None:
            usage[name] = _usage(pod)
            for key, amount in usage[name].items():
                used[key] = used.get(key, 0) + amount

    def reconcile(self) -> bool:
        """Write changed statuses; whether there were any."""
        progressed = bool(self._changed)
        while self._changed:
            namespace, _ = self._changed.popitem(last=False)
            if not self._quotas.get(namespace):
                self._used.pop(namespace, None)
                self._usage.pop(namespace, None)
                continue
            if namespace not in self._used:
                self._used[namespace], self._usage[namespace] = {}, {}
                for pod in self._store.list(POD):
                    if key_of(pod)[0] == namespace:
                        self._count(namespace, key_of(pod)[1], pod)
            for name in sorted(self._quotas[namespace]):
                self._write(namespace, name)
        return progressed

    def _write(self, namespace: str, name: str) -> None:
        quota = self._store.get(RESOURCE_QUOTA, namespace, name)
        if quota is None:
            return
        limits = spec(quota)["hard"] if "hard" in spec(quota) else status(quota).get("hard")
        hard, counted = quota_amounts(limits or {}), self._used[namespace]
        given = status(quota).get("used") or {}
        if given != self._written.get((namespace, name), {}):
            amounts = quota_amounts(given)
            self._unseen[namespace, name] = {key: max(0, amounts[key] - counted.get(key, 0)) for key in amounts}
        unseen = self._unseen.get((namespace, name), {})
        totals = {key: counted.get(key, 0) + unseen.get(key, 0) for key in hard}
        for key, total in totals.items():
            if total > max(hard[key], self._exceeded.get((namespace, name, key), (0, 0))[0]) and counted.get(key):
                self._exceeded[namespace, name, key] = total, hard[key]
        used = {key: format_quota_amount(key, total) for key, total in totals.items()}
        written = {"hard": {key: format_quota_amount(key, amount) for key, amount in hard.items()}, "used": used}
        self._written[namespace, name] = used
        patch = {side: {**dict.fromkeys(status(quota).get(side) or ()), **amounts} for side, amounts in written.items()}
        self._store.patch(RESOURCE_QUOTA, namespace, name, {"status": patch})


def _usage(pod: JsonObject) -> Mapping[str, int]:
    usage = quota_amounts(quota_usage([(pod, 1)]))
    return {_COUNT: usage[_COUNT]} if status(pod).get("phase") in ENDED_PHASES else usage


class BudgetController:
    """Keeps the status of every PodDisruptionBudget."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Namespace to names.
        self._budgets: dict[str, set[str]] = {}
        self._changed: dict[str, None] = {}
        #: Budget to the last written value; and to the value of the input with the result of its rule at that time.
        self._written: dict[tuple[str, str], int] = {}
        self._given: dict[tuple[str, str], tuple[int, int]] = {}

    def observe(self, change: Change) -> None:
        """Queue budgets; pods and their owners queue all budgets of their namespace."""
        namespace, name = change.key
        if change.kind == DISRUPTION_BUDGET:
            if change.new is None:
                self._budgets[namespace].discard(name)
                self._written.pop(change.key, None)
                self._given.pop(change.key, None)
            else:
                self._budgets.setdefault(namespace, set()).add(name)
                self._changed[namespace] = None
        elif change.kind in (POD, *_SCALED) and self._budgets.get(namespace):
            self._changed[namespace] = None

    def reconcile(self) -> bool:
        """Write changed statuses; whether there were any. O(pods) per round with a change."""
        progressed = bool(self._changed)
        if progressed:
            pods: dict[str, list[JsonObject]] = {namespace: [] for namespace in self._changed}
            for pod in self._store.list(POD):
                namespace = key_of(pod)[0]
                if namespace in pods and status(pod).get("phase") not in ENDED_PHASES:
                    pods[namespace].append(pod)
            self._changed.clear()
            for namespace, living in pods.items():
                for name in sorted(self._budgets[namespace]):
                    self._write(namespace, name, living)
        return progressed

    def _write(self, namespace: str, name: str, living: list[JsonObject]) -> None:
        budget = self._store.get(DISRUPTION_BUDGET, namespace, name)
        if budget is None:
            return
        wanted = spec(budget)
        selector = msgspec.convert(wanted.get("selector"), LabelSelector | None)
        selected = [pod for pod in living if matches_labels(selector, labels_of(pod))]
        healthy = sum(
            status(pod).get("phase") == "Running" and not meta(pod).get("deletionTimestamp") for pod in selected
        )
        expected = self._expected(selected)
        if wanted.get("maxUnavailable") is not None:
            desired = max(0, expected - _share(wanted["maxUnavailable"], expected))
        else:
            desired = _share(wanted.get("minAvailable", 1), expected)
        given = status(budget).get("disruptionsAllowed")
        if given is not None and given != self._written.get((namespace, name)):
            starting = sum(status(pod).get("phase") != "Running" and "nodeName" in spec(pod) for pod in selected)
            self._given[namespace, name] = given, healthy + starting - desired
        allowed = _allowed(healthy - desired, self._given.get((namespace, name)))
        found = {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
        }
        self._written[namespace, name] = allowed
        self._store.patch(DISRUPTION_BUDGET, namespace, name, {"status": found})

    def _expected(self, selected: list[JsonObject]) -> int:
        """The number of expected pods: the replicas of their owners, and one for each pod without an owner."""
        owners: dict[tuple[str, str, str], int] = {}
        alone = 0
        for pod in selected:
            owner = controller_of(pod)
            kind = None if owner is None else kind_of(owner)
            if owner is None or kind not in _SCALED:
                alone += 1
                continue
            key = (kind, key_of(pod)[0], owner["name"])
            if key not in owners:
                scaled = self._store.get(*key)
                owners[key] = int(spec(scaled).get("replicas", 1)) if scaled is not None else 0
        return alone + sum(owners.values())


def _allowed(spare: int, given: tuple[int, int] | None) -> int:
    """Disruptions allowed with `spare` pods above the rule; `given`: those of the input, and its spare pods."""
    if given is None:
        return max(0, spare)
    allowed, spare_then = given
    change = spare - spare_then
    return max(0, allowed + change) if allowed < spare_then else max(0, spare, allowed + min(0, change))


def _share(written: int | str, total: int) -> int:
    """A number of pods, or a percentage of all, rounded up."""
    if isinstance(written, str) and written.endswith("%"):
        return -(-percentage(written) * total // 100)
    return int(written)
