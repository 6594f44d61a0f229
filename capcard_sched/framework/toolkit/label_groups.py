"""Groups the pods on nodes by namespace and labels, so that a selector is evaluated once per group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from capcard_sched.framework.toolkit.pod_selectors import SelectorIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.toolkit.pod_selectors import NamespaceLabels, PodSelector
    from capcard_sched.model.job import Node

_Key = TypeVar("_Key")


class GroupCount(Protocol):
    """A count of the pods of groups."""

    selectors: tuple[PodSelector, ...]
    live_only: bool
    groups: list[LabelGroup]

    def change(self, row: int, amount: int) -> None:
        """Add to one node row."""


class LabelGroup:
    """The pods with one set of labels in one namespace, by node row."""

    __slots__ = ("counts", "labels", "live", "namespace", "rows")

    def __init__(self, namespace: str, labels: Mapping[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        #: Node row to its number of pods, and to those that are not being deleted; rows with 0 are absent.
        self.rows: dict[int, int] = {}
        self.live: dict[int, int] = {}
        #: The loaded counts that select the group.
        self.counts: dict[GroupCount, None] = {}

    def change(self, row: int, pods: int, live: int) -> None:
        """Add to one node row, here and in the counts."""
        add_to(self.rows, row, pods)
        add_to(self.live, row, live)
        for count in self.counts:
            amount = live if count.live_only else pods
            if amount:
                count.change(row, amount)


def add_to(amounts: dict[_Key, int], key: _Key, amount: int) -> None:
    """Add to one entry; entries with 0 are absent."""
    total = amounts.get(key, 0) + amount
    if total:
        amounts[key] = total
    else:
        amounts.pop(key, None)


class LabelGroups:
    """All groups. Their memory is proportional to the number of pods on nodes."""

    def __init__(self) -> None:
        #: By namespace and identity of the labels.
        self._groups: dict[tuple[str, int], LabelGroup] = {}
        self._by_label: dict[tuple[str, str], dict[LabelGroup, None]] = {}
        self._by_namespace: dict[str, dict[LabelGroup, None]] = {}
        #: Node name to its groups with their number of pods and of live pods.
        self._on_node: dict[str, dict[LabelGroup, tuple[int, int]]] = {}
        #: The counts that follow the groups.
        self._loaded: SelectorIndex[GroupCount] = SelectorIndex()

    def clear(self) -> None:
        """Remove all groups. The caller unloads the counts before."""
        self._groups.clear()
        self._by_label.clear()
        self._by_namespace.clear()
        self._on_node.clear()

    # --- pods -------------------------------------------------------------------------------------------------------

    def of(self, namespace: str, labels: Mapping[str, str], known: NamespaceLabels) -> LabelGroup:
        """The group of a pod. `labels` must not change later."""
        group = self._groups.get((namespace, id(labels)))
        if group is None:
            group = self._groups[namespace, id(labels)] = LabelGroup(namespace, labels)
            self._by_namespace.setdefault(namespace, {})[group] = None
            for item in labels.items():
                self._by_label.setdefault(item, {})[group] = None
            for count in self._loaded.matching(namespace, labels, known):
                group.counts[count] = None
                count.groups.append(group)
        return group

    def change(self, node: Node, group: LabelGroup, pods: int, live: int) -> None:
        """Add pods of a group to a node with a row."""
        on_node = self._on_node.setdefault(node.name, {})
        old = on_node.get(group, (0, 0))
        new = old[0] + pods, old[1] + live
        if any(new):
            on_node[group] = new
        else:
            on_node.pop(group, None)
        group.change(node.row, pods, live)

    def replace(self, name: str, node: Node | None, new: Mapping[LabelGroup, tuple[int, int]]) -> None:
        """Replace the pods of a node; None for a node that no longer exists, whose row is gone."""
        old = self._on_node.pop(name, {})
        if node is None:
            return
        for group in (*old, *(each for each in new if each not in old)):
            before, after = old.get(group, (0, 0)), new.get(group, (0, 0))
            if before != after:
                group.change(node.row, after[0] - before[0], after[1] - before[1])
        if new:
            self._on_node[name] = dict(new)

    def move_rows(self, nodes: Iterable[Node]) -> None:
        """Assign the pods to the new rows of the nodes. The caller unloads the counts before."""
        for group in self._groups.values():
            group.rows.clear()
            group.live.clear()
        rows = {node.name: node.row for node in nodes}
        for name in list(self._on_node):
            row = rows.get(name)
            if row is None:
                del self._on_node[name]
                continue
            for group, (pods, live) in self._on_node[name].items():
                group.change(row, pods, live)

    def prune(self) -> None:
        """Remove empty groups. O(groups)."""
        for key, group in list(self._groups.items()):
            if group.rows or group.live:
                continue
            del self._groups[key]
            self._discard(self._by_namespace, group.namespace, group)
            for item in group.labels.items():
                self._discard(self._by_label, item, group)
            for count in group.counts:
                count.groups.remove(group)

    @staticmethod
    def _discard(index: dict, key: object, group: LabelGroup) -> None:  # type: ignore[type-arg]
        del index[key][group]
        if not index[key]:
            del index[key]

    # --- counts -----------------------------------------------------------------------------------------------------

    def load(self, count: GroupCount, known: NamespaceLabels) -> None:
        """Attach a count to the groups that it selects. O(groups found by a namespace or label of its selectors)."""
        for group in self._candidates(count.selectors):
            if all(each.selects(group.namespace, group.labels, known) for each in count.selectors):
                count.groups.append(group)
                group.counts[count] = None
        self._loaded.add(count.selectors, count)

    def unload(self, count: GroupCount) -> None:
        """Detach a count from its groups."""
        for group in count.groups:
            del group.counts[count]
        count.groups.clear()
        self._loaded.discard(count.selectors, count)

    def _candidates(self, selectors: tuple[PodSelector, ...]) -> list[LabelGroup]:
        if any(selector.selector is None for selector in selectors):
            return []
        for selector in selectors:
            assert selector.selector is not None
            for requirement in selector.selector.match_expressions or ():
                if requirement.operator == "In":
                    found = (self._by_label.get((requirement.key, value), {}) for value in requirement.values or ())
                    return list(dict.fromkeys(group for groups in found for group in groups))
        for selector in selectors:
            if selector.namespaces is not None and selector.namespace_selector is None:
                return [group for name in selector.namespaces for group in self._by_namespace.get(name, {})]
        return list(self._groups.values())
