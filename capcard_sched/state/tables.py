"""Tables of the kinds that plugins read: ConfigMaps, namespaces, Numatopologies, loads, quotas and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from capcard_sched.model import deltas
from capcard_sched.model.card_budgets import CARD_BUDGET, CardBudget, CardBudgetObject, card_budget_facts
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.limits import (
    Budget,
    PodDisruptionBudgetObject,
    Quota,
    ResourceQuotaObject,
    budget_facts,
    quota_facts,
)
from capcard_sched.model.numa import CpuTopology, NumaFacts, NumatopologyObject, numa_facts
from capcard_sched.model.objects import ConfigMapObject, NamespaceObject
from capcard_sched.model.selectors import matches_labels, namespace_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.model.deltas import ObjectGone
    from capcard_sched.model.usage import NodeUsage
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.classes import ClassTable
    from capcard_sched.state.invalid_objects import InvalidObjects

_EMPTY: Mapping[str, str] = {}


class ConfigMapTable:
    """Applies ConfigMap deltas. Plugins read the contents; the backend delivers the ConfigMaps that they name."""

    def __init__(self, changes: Changes) -> None:
        #: Data by `namespace/name`.
        self.data: dict[str, Mapping[str, str]] = {}
        self._changes = changes
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            ConfigMapObject: self._put,
            "ConfigMap": self._drop,
        }

    def _put(self, obj: ConfigMapObject) -> None:
        meta = obj.metadata
        key, data = f"{meta.namespace or 'default'}/{meta.name}", obj.data or _EMPTY
        if self.data.get(key) != data:
            self.data[key] = data
            self._changes.config_maps.add(key)

    def _drop(self, gone: ObjectGone) -> None:
        key = f"{gone.namespace}/{gone.name}"
        if self.data.pop(key, None) is not None:
            self._changes.config_maps.add(key)


class NamespaceTable:
    """Applies namespace deltas. A change opens a session only when it changes the result of a pod's selector."""

    def __init__(self, classes: ClassTable, changes: Changes, set_default_queue: Callable[[str, str], None]) -> None:
        """`set_default_queue(namespace, queue)` applies a changed default queue; "" for none."""
        #: By name of the namespace.
        self.labels: dict[str, Mapping[str, str]] = {}
        #: The queue of PodGroups that name none, by namespace; only namespaces with one.
        self.default_queues: dict[str, str] = {}
        self._set_default_queue = set_default_queue
        self._classes = classes
        self._changes = changes
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            NamespaceObject: self._apply,
            "Namespace": lambda gone: self._put(gone.name, None, ""),
        }

    def _apply(self, namespace: NamespaceObject) -> None:
        self._put(namespace.metadata.name, namespace.metadata.labels or {}, namespace.default_queue)

    def _put(self, name: str, labels: Mapping[str, str] | None, default_queue: str) -> None:
        if self.default_queues.get(name, "") != default_queue:
            self.default_queues[name] = default_queue
            if not default_queue:
                del self.default_queues[name]
            self._set_default_queue(name, default_queue)
        before = self.labels.get(name)
        if before == labels:
            return
        if labels is None:
            del self.labels[name]
        else:
            self.labels[name] = labels
        changes = self._changes
        if changes.everything:
            return  # the next session considers everything
        changes.namespaces.setdefault(name, before)
        if not changes.selectors_changed:
            old, new = namespace_labels(name, before), namespace_labels(name, labels)
            changes.selectors_changed = any(
                matches_labels(selector, old) != matches_labels(selector, new)
                for selector in self._classes.namespace_selectors()
            )


#: Unused topologies that may stay cached.
_SPARE = 64


class NumaTable:
    """Applies Numatopology deltas. The node of an invalid object has no NUMA facts."""

    def __init__(self, changes: Changes, invalid: InvalidObjects) -> None:
        #: By node name; records are replaced, never changed in place.
        self.numa: dict[str, NumaFacts] = {}
        self._changes = changes
        self._invalid = invalid
        #: Equal topologies share one object.
        self._topologies: dict[CpuTopology, CpuTopology] = {}
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            NumatopologyObject: self._put,
            "Numatopology": lambda gone: self._gone(gone.name),
        }

    def _put(self, obj: NumatopologyObject) -> None:
        name = obj.metadata.name
        facts, problem = numa_facts(obj)
        self._invalid.note(ObjectRef("Numatopology", "", name, obj.metadata.uid), problem)
        if facts is None:
            self._drop(name)
            return
        if self.numa.get(name) == facts:
            return
        self.numa[name] = msgspec.structs.replace(facts, topology=self._share(facts.topology))
        self._changes.numa.add(name)

    def _share(self, topology: CpuTopology) -> CpuTopology:
        if len(self._topologies) > 2 * len(self.numa) + _SPARE:
            self._topologies = {facts.topology: facts.topology for facts in self.numa.values()}
        return self._topologies.setdefault(topology, topology)

    def _gone(self, name: str) -> None:
        self._invalid.forget("Numatopology", "", name)
        self._drop(name)

    def _drop(self, name: str) -> None:
        if self.numa.pop(name, None) is not None:
            self._changes.numa.add(name)


class CardBudgetTable:
    """Applies CardBudget deltas. An invalid CardBudget limits nothing, and is reported."""

    def __init__(self, changes: Changes, invalid: InvalidObjects) -> None:
        #: By name; records are replaced, never changed in place.
        self.budgets: dict[str, CardBudget] = {}
        self._changes = changes
        self._invalid = invalid
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            CardBudgetObject: self._put,
            CARD_BUDGET: self._gone,
        }

    def _put(self, obj: CardBudgetObject) -> None:
        name = obj.metadata.name
        facts, problems = card_budget_facts(obj)
        text = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
        self._invalid.note(ObjectRef(CARD_BUDGET, "", name, obj.metadata.uid), text)
        if facts is None:
            self._drop(name)
        elif self.budgets.get(name) != facts:
            self.budgets[name] = facts
            self._changes.card_budgets.add(name)

    def _gone(self, gone: ObjectGone) -> None:
        self._invalid.forget(CARD_BUDGET, "", gone.name)
        self._drop(gone.name)

    def _drop(self, name: str) -> None:
        if self.budgets.pop(name, None) is not None:
            self._changes.card_budgets.add(name)


#: Nodes beyond twice those of a measurement that may stay before stale ones are dropped.
_SPARE_LOADS = 1024


class UsageTable:
    """Applies load measurements. Each measurement is a record of its own; an identical record is no change.

    A record outlives its node until it is stale: the source may report a node before the API server lists it.
    """

    def __init__(self, changes: Changes) -> None:
        self.usage: dict[str, NodeUsage] = {}
        self._changes = changes
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            deltas.NodeUsageChanged: self._put,
            deltas.NodeUsageGone: self._drop,
        }

    def _put(self, delta: deltas.NodeUsageChanged) -> None:
        self.usage.update(delta.nodes)
        self._changes.usage.update(delta.nodes)
        if len(self.usage) > 2 * len(delta.nodes) + _SPARE_LOADS:
            self._forget_stale(max((found.at or 0.0 for found in delta.nodes.values()), default=0.0))

    def _forget_stale(self, now: float) -> None:
        for name in [name for name, found in self.usage.items() if not found.is_fresh(now)]:
            del self.usage[name]

    def _drop(self, delta: deltas.NodeUsageGone) -> None:
        if self.usage.pop(delta.name, None) is not None:
            self._changes.usage.add(delta.name)


_T = TypeVar("_T", Quota, Budget)


class LimitTable:
    """Applies ResourceQuota, PodDisruptionBudget and CardBudget deltas. Records are replaced, never changed."""

    def __init__(self, changes: Changes, invalid: InvalidObjects) -> None:
        #: Namespace to name to quota; a namespace without any is absent.
        self.quotas: dict[str, dict[str, Quota]] = {}
        #: Namespace to name to budget; a namespace without any is absent.
        self.budgets: dict[str, dict[str, Budget]] = {}
        card_budgets = CardBudgetTable(changes, invalid)
        #: Valid CardBudgets by name.
        self.card_budgets = card_budgets.budgets
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            **card_budgets.handlers,
            ResourceQuotaObject: lambda quota: _put(self.quotas, quota_facts(quota), changes.quotas),
            "ResourceQuota": lambda gone: _drop(self.quotas, gone, changes.quotas),
            PodDisruptionBudgetObject: lambda budget: _put(self.budgets, budget_facts(budget), changes.budgets),
            "PodDisruptionBudget": lambda gone: _drop(self.budgets, gone, changes.budgets),
        }


def _put(table: dict[str, dict[str, _T]], record: _T, changed: set[str]) -> None:
    """Add a record, and its namespace to `changed` if it differs. Records of a namespace are in order of name."""
    there = table.get(record.namespace, {})
    if there.get(record.name) != record:
        table[record.namespace] = dict(sorted({**there, record.name: record}.items()))
        changed.add(record.namespace)


def _drop(table: dict[str, dict[str, _T]], gone: ObjectGone, changed: set[str]) -> None:
    there = table.get(gone.namespace, {})
    if there.pop(gone.name, None) is not None:
        if not there:
            del table[gone.namespace]
        changed.add(gone.namespace)
