"""Volumes in use: limits of CSI drivers per node, and claims of a single pod.

A volume counts once per node, whatever the number of its pods there, and also while the API server still lists it as
attached. Without any limit nothing is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.framework.toolkit.pods_by_node import PodsByNode
from capcard_sched.model.in_tree_volumes import CSI_DRIVERS, AttachmentKey, in_tree_key
from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.storage import Storage

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
IN_USE: Final = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"


class ExclusiveClaims(PodsByNode[list[str]]):
    """The pods on nodes that use each claim."""

    def __init__(self) -> None:
        super().__init__()
        #: Claim to the uids of its pods, each with its node.
        self._users: dict[str, dict[str, str]] = {}

    def _value(self, task: Task, node: str) -> list[str] | None:
        return [f"{task.namespace}/{name}" for name in task.cls.volumes] or None

    def _change(self, node: str, uid: str, value: list[str], sign: int) -> None:
        for claim in value:
            if sign > 0:
                self._users.setdefault(claim, {})[uid] = node
                continue
            users = self._users[claim]
            users.pop(uid, None)
            if not users:
                del self._users[claim]

    def reject(self, claims: Sequence[str], rows: NodeView, result: FilterResult) -> None:
        """Reject all nodes while another pod uses one of the claims. Eviction helps on the node of a single user."""
        used = {node for claim in claims for node in self._users.get(claim, {}).values()}
        if not used:
            return
        everywhere = np.ones(len(rows), dtype=bool)
        if len(used) > 1:
            result.reject(everywhere, Code.UNRESOLVABLE, IN_USE)
            return
        here = np.array([rows.nodes[row].name in used for row in rows.rows.tolist()], dtype=bool)
        result.reject(~here, Code.UNRESOLVABLE, IN_USE)
        result.reject(here, Code.UNSCHEDULABLE, IN_USE)


NO_DRIVER = "{driver} CSI driver is not installed on the node"
TOO_MANY_VOLUMES = "node(s) exceed max volume count"

_NO_LIMIT = np.iinfo(np.int64).max


def reject_without_driver(
    storage: Storage, required: Sequence[tuple[str, str]], rows: NodeView, result: FilterResult
) -> None:
    """Reject nodes whose CSINode does not list a driver. Volumes of a plugin count where the driver replaces it."""
    names = [rows.nodes[row].name for row in rows.rows.tolist()]
    for driver, plugin in required:
        missing = [
            driver not in storage.drivers.get(name, ()) and (not plugin or plugin in storage.migrated.get(name, ()))
            for name in names
        ]
        result.reject(np.array(missing, dtype=bool), Code.UNRESOLVABLE, NO_DRIVER.format(driver=driver))


def keys_of_driver(driver: str) -> list[AttachmentKey]:
    """The keys, with an empty handle, that volumes of a driver have."""
    plugins = {in_tree_key(plugin, "").plugin for plugin, replaced_by in CSI_DRIVERS.items() if replaced_by == driver}
    return [AttachmentKey(driver, "", plugin) for plugin in sorted(plugins | {""})]


class AttachedVolumes(PodsByNode["tuple[AttachmentKey, ...]"]):
    """Volumes on nodes: O(pods on changed nodes) per session, O(volumes) per placement."""

    def __init__(self, keys_of: Callable[[Task], tuple[AttachmentKey, ...]]) -> None:
        """`keys_of` returns the current attachments of a task's claims."""
        super().__init__()
        self._keys_of = keys_of
        #: Node name to the volumes that the API server lists as attached.
        self._listed: dict[str, tuple[AttachmentKey, ...]] = {}
        #: Volume to node name to the number of pods and listings with it there.
        self._on: dict[AttachmentKey, dict[str, int]] = {}
        #: Node name to driver to number of volumes.
        self._counts: dict[str, dict[str, int]] = {}
        #: Driver to the count, and to the limit, on each node: int64 [nodes]; built on first use in a session.
        self._count_arrays: dict[str, Vector] = {}
        self._limit_arrays: dict[str, Vector] = {}
        #: Drivers with a limit on any node.
        self.drivers: frozenset[str] = frozenset()

    def open(self, session: Session) -> None:
        """Apply the changes since the last session; with the first limit everything is counted."""
        storage = session.snapshot.volumes
        self._count_arrays, self._limit_arrays = {}, {}
        self._storage: Storage = storage
        before, self.drivers = self.drivers, frozenset(name for limits in storage.limits.values() for name in limits)
        if not self.drivers:
            self._held, self._listed, self._on, self._counts = {}, {}, {}, {}
        if self.drivers and not before:
            self.refresh(session, session.nodes.by_name)
        else:
            changed = session.changed.volumes
            self.refresh(session, self._users_of(session, changed) if changed else ())

    def _read(self, name: str, node: Node | None) -> None:
        if not self.drivers:
            return
        self._add(name, self._listed.pop(name, ()), -1)
        super()._read(name, node)
        listed = tuple(self._storage.attached(name)) if node is not None else ()
        if listed:
            self._listed[name] = listed
            self._add(name, listed, +1)

    def _users_of(self, session: Session, claims: set[str]) -> set[str]:
        """The nodes of the pods that use some claims."""
        tasks = session.snapshot.tasks_by_uid
        return {
            node
            for node, held in self._held.items()
            for uid in held
            if (task := tasks.get(uid)) is not None
            and any(f"{task.namespace}/{claim}" in claims for claim in task.cls.volumes)
        }

    def _value(self, task: Task, node: str) -> tuple[AttachmentKey, ...] | None:
        """The volumes of a pod that count on a node, without their plugin."""
        if not self.drivers or not (task.cls.volumes or task.cls.inline_volumes):
            return None
        migrated = self._storage.migrated.get(node, ())
        return tuple(
            key._replace(plugin="") if key.plugin else key
            for key in self._keys_of(task)
            if not key.plugin or key.plugin in migrated
        )

    def _change(self, node: str, uid: str, value: tuple[AttachmentKey, ...], sign: int) -> None:
        self._add(node, value, sign)

    def _add(self, node: str, keys: Iterable[AttachmentKey], sign: int) -> None:
        for key in keys:
            nodes = self._on.setdefault(key, {})
            before, now = nodes.get(node, 0), nodes.get(node, 0) + sign
            nodes[node] = now
            if not now:
                del nodes[node]
                if not nodes:
                    del self._on[key]
            if not before or not now:
                self._count(node, key.driver, sign)

    def _count(self, node: str, driver: str, change: int) -> None:
        counts = self._counts.setdefault(node, {})
        counts[driver] = counts.get(driver, 0) + change
        if not counts[driver]:
            del counts[driver]
            if not counts:
                del self._counts[node]
        array = self._count_arrays.get(driver)
        if array is not None and node in self._by_name:
            array[self._by_name[node].row] += change

    def snapshot(self) -> dict[str, dict[str, int]]:
        """The current counts: node name to driver to number of volumes."""
        return {node: dict(counts) for node, counts in self._counts.items()}

    def _arrays(self, driver: str) -> tuple[Vector, Vector]:
        """Count and limit of a driver on each node: int64 [nodes] each."""
        counts = self._count_arrays.get(driver)
        if counts is None:
            counts = self._count_arrays[driver] = np.zeros(len(self._by_name), dtype=np.int64)
            limits = self._limit_arrays[driver] = np.full(len(self._by_name), _NO_LIMIT, dtype=np.int64)
            for name, by_driver in self._counts.items():
                node = self._by_name.get(name)
                if node is not None:
                    counts[node.row] = by_driver.get(driver, 0)
            for name, of_node in self._storage.limits.items():
                node = self._by_name.get(name)
                if node is not None and driver in of_node:
                    limits[node.row] = of_node[driver]
        return counts, self._limit_arrays[driver]

    def _new_attachments(self, key: AttachmentKey) -> Vector:
        """The attachments of a volume that a pod adds: int64 [nodes], 0 where it is attached."""
        new = np.ones(len(self._by_name), dtype=np.int64)
        for name in self._on.get(key._replace(plugin=""), ()):
            node = self._by_name.get(name)
            if node is not None:
                new[node.row] = 0
        return new

    def reject(
        self,
        keys: Sequence[AttachmentKey],
        more: Sequence[tuple[AttachmentKey, Mask]],
        rows: NodeView,
        result: FilterResult,
    ) -> None:
        """Reject nodes where the pod would exceed a limit.

        `keys`: volumes that the pod attaches on every node. `more`: driver and plugin of further new volumes, with the
        nodes where each is attached.
        """
        wanted: dict[str, Vector] = {}

        def add(key: AttachmentKey, new: Vector) -> None:
            if key.plugin:
                for name, node in self._by_name.items():
                    if key.plugin not in self._storage.migrated.get(name, ()):
                        new[node.row] = 0
            wanted[key.driver] = wanted[key.driver] + new if key.driver in wanted else new

        for key, nodes in more:
            if key.driver in self.drivers:
                add(key, nodes.astype(np.int64))
        for key in keys:
            if key.driver in self.drivers:
                add(key, self._new_attachments(key))
        full = np.zeros(len(self._by_name), dtype=bool)
        for driver, new in wanted.items():
            counts, limits = self._arrays(driver)
            full |= (new > 0) & (counts + new > limits)
        if full.any():
            result.reject(rows.take(full), Code.UNSCHEDULABLE, TOO_MANY_VOLUMES)
