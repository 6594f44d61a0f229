"""Claims with access mode ReadWriteOncePod: only one pod in the cluster may use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.api.node_view import FilterResult, NodeView
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
IN_USE: Final = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"


def claims_of(task: Task) -> list[str]:
    """Keys of the claims of a pod."""
    return [f"{task.namespace}/{name}" for name in task.cls.volumes]


class ExclusiveClaims:
    """The pods on nodes that use each claim, kept between sessions."""

    def __init__(self) -> None:
        #: Node name to its pods by uid, with their claims.
        self._on_node: dict[str, dict[str, list[str]]] = {}
        #: Claim to the uids of its pods, each with its node.
        self._users: dict[str, dict[str, str]] = {}
        self._touched: set[str] = set()

    def open(self, session: Session) -> None:
        """Apply the changes since the last session. O(pods on changed nodes)."""
        table, changed = session.nodes, session.changed
        stale: Iterable[str]
        if changed.everything:
            self._on_node.clear()
            self._users.clear()
            stale = table.by_name
        else:
            stale = changed.nodes | self._touched
        for name in stale:
            for uid, claims in self._on_node.pop(name, {}).items():
                self._remove(uid, claims)
            node = table.by_name.get(name)
            for task in node.tasks.values() if node is not None else ():
                if task.cls.volumes:
                    self.place(task, name)
        self._touched.clear()

    def place(self, task: Task, node: str) -> None:
        """Add a pod that was placed, or whose eviction was undone."""
        self._touched.add(node)
        claims = self._on_node.setdefault(node, {})[task.uid] = claims_of(task)
        for claim in claims:
            self._users.setdefault(claim, {})[task.uid] = node

    def displace(self, task: Task, node: str) -> None:
        """Remove a pod that was unplaced or is being evicted."""
        self._touched.add(node)
        claims = self._on_node.get(node, {}).pop(task.uid, None)
        if claims is not None:
            self._remove(task.uid, claims)

    def _remove(self, uid: str, claims: list[str]) -> None:
        for claim in claims:
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
