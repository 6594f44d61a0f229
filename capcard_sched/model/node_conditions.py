"""Taints that controllers derive from the condition of a node: the node needs repair, and a toleration is no fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import NODE_UNSCHEDULABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.job import Node
    from capcard_sched.model.objects import Taint

#: Prefixes of keys of taints that the node controller and cloud providers set.
_PREFIXES: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
NOT_READY_TAINT: Final = "node.kubernetes.io/not-ready"
UNREACHABLE_TAINT: Final = "node.kubernetes.io/unreachable"
#: Taints of nodes whose kubelet does not work.
LOST_TAINTS: Final = (UNREACHABLE_TAINT, NOT_READY_TAINT)
#: Key to the predicate of the node.
_WORDS: Final = {
    UNREACHABLE_TAINT: "unreachable",
    NOT_READY_TAINT: "not ready",
    "node.kubernetes.io/memory-pressure": "under memory pressure",
    "node.kubernetes.io/disk-pressure": "under disk pressure",
    "node.kubernetes.io/pid-pressure": "under PID pressure",
    "node.kubernetes.io/network-unavailable": "without network",
    "node.kubernetes.io/out-of-service": "out of service",
    "node.cloudprovider.kubernetes.io/uninitialized": "not initialized",
    "node.cloudprovider.kubernetes.io/shutdown": "shut down",
}


def is_condition(taint: str) -> bool:
    """Whether a taint, by its key or as `key=value:effect`, is a condition of the node. Not that of a cordoned one."""
    return taint.startswith(_PREFIXES) and not taint.startswith(NODE_UNSCHEDULABLE)


def conditions_of(taints: Iterable[Taint]) -> list[Taint]:
    """The taints that are conditions of the node."""
    return [taint for taint in taints if is_condition(taint.key)]


def condition_word(taint: str) -> str:
    """`unreachable`, of a taint `key=value:effect` that is a condition; an unknown one as `under condition key`."""
    key = taint.rpartition(":")[0].partition("=")[0]
    return _WORDS.get(key, f"under condition {key}")


def lost_word(node: Node) -> str:
    """`unreachable`, `not ready` or `missing` of a node whose kubelet does not work; "" of another node."""
    if not node.known:
        return "missing"
    if not node.taints:
        return ""
    keys = {taint.key for taint in node.taints}
    return next((_WORDS[key] for key in LOST_TAINTS if key in keys), "")
