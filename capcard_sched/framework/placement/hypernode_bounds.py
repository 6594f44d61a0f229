"""Where in the tree of HyperNodes a job stands, and what it may use because of that (core reference §3.6)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from capcard_sched.model.status import ALLOCATED_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job

#: What counts as placed: pods that leave make no difference to those that come.
PLACED: Final = frozenset({*ALLOCATED_STATUSES, TaskStatus.UNKNOWN, TaskStatus.PIPELINED})
#: The framework's own entry among the contexts of a profile.
CONTEXT: Final = ""
#: Why a node is ruled out.
BEYOND: Final = "node(s) were beyond the network tier the job may span"


class HyperNodeRows(NamedTuple):
    """A HyperNode as hooks see it."""

    #: Its number in the tree.
    number: int
    name: str
    tier: int
    #: Rows of its nodes: intp, ascending.
    rows: Rows


class HyperNodeBound(NamedTuple):
    """What pods of a job in hard mode may use: part of their profile wherever no HyperNode was chosen for them."""

    #: The highest tier that may be spanned; None when no tier has the name that was given.
    highest: int | None
    #: Where the job stands (`anchor_of`).
    anchor: int | None
    #: Version of the tree that the number is of.
    version: int


def anchor_of(tree: HyperNodeTree, job: Job) -> int | None:
    """The lowest HyperNode that contains all pods of the job that are placed or promised room.

    None when there is no such pod, -1 when they stand in no common HyperNode. O(tasks) once some are placed.
    """
    return tree.common(sorted(found)) if (found := placed_by_hyper_node(tree, job)) else None


def placed_by_hyper_node(tree: HyperNodeTree, job: Job) -> Counter[int]:
    """How many pods of the job are placed or promised room, by the lowest HyperNode they are in, -1 outside of all.

    A node that is gone counts for the HyperNode that the PodGroup's annotation names.
    """
    found: Counter[int] = Counter()
    if not job.count(PLACED):
        return found
    for task in job.tasks.values():
        node = task.node
        if node is not None and task.status in PLACED:
            if node.known:
                number = tree.leaf_of.get(node.name, -1)
            else:
                number = tree.numbers.get(job.annotations.get(JOB_ALLOCATED_HYPERNODE, ""), -1)
            found[number] += 1
    return found


def bound_of(tree: HyperNodeTree, job: Job) -> HyperNodeBound | None:
    """What confines the pods of a job; None for one that may go anywhere."""
    topology = job.topology
    if topology is None or not topology.hard:
        return None
    return HyperNodeBound(topology.allowed(tree), anchor_of(tree, job), tree.version)


def reachable(tree: HyperNodeTree, bound: HyperNodeBound) -> Mask:
    """The HyperNodes that may be used: bool [HyperNodes]."""
    highest, anchor = bound.highest, bound.anchor
    if highest is None or anchor == -1:
        return np.zeros(len(tree), dtype=bool)
    if anchor is None:
        return tree.tiers <= highest
    meets = tree.meets(anchor)
    found: Mask = (meets >= 0) & (tree.tiers[meets] <= highest)
    return found


def allowed_rows(tree: HyperNodeTree, bound: HyperNodeBound) -> Mask:
    """The nodes that may be used: bool [nodes]."""
    return tree.mask_of(reachable(tree, bound))


def annotation_changes(tree: HyperNodeTree, job: Job) -> dict[str, str | None]:
    """What is to be written on the PodGroup of a job that has placed pods; nothing when it says so already (W-47)."""
    if job.topology is None or job.implicit or not tree.ready:
        return {}
    anchor = anchor_of(tree, job)
    if anchor is None:
        return {}
    name = tree.names[anchor] if anchor >= 0 else None
    if job.annotations.get(JOB_ALLOCATED_HYPERNODE) == name:
        return {}
    return {JOB_ALLOCATED_HYPERNODE: name}


def merged(annotations: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Annotations after a merge patch."""
    return {key: value for key, value in {**annotations, **changes}.items() if value is not None}
