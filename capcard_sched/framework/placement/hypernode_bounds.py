"""The position of a job in the tree of HyperNodes, and the HyperNodes it may use because of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from capcard_sched.model.status import ALLOCATED_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.model.groups import SubGroup
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task

    Amounts = npt.NDArray[np.int64]

#: Statuses of placed pods; releasing pods do not restrict the others.
PLACED: Final = frozenset({*ALLOCATED_STATUSES, TaskStatus.UNKNOWN, TaskStatus.PIPELINED})
#: The framework's own key among the contexts of a signature.
CONTEXT: Final = ""
#: The reason of rejected nodes.
_BEYOND_TIER: Final = "node(s) were beyond the network tier the job may span"
_BEYOND_LABEL: Final = "node(s) had no label {label}, or another value than the scheduled pods of the job"


class HyperNodeRows(NamedTuple):
    """A HyperNode as an argument of hooks."""

    #: Its number in the tree.
    number: int
    name: str
    tier: int
    #: Rows of its nodes: intp, ascending.
    rows: Rows


class HyperNodeBound(NamedTuple):
    """The HyperNodes allowed for a job in hard mode: part of its signature unless a HyperNode was chosen already."""

    #: The highest allowed tier; None when no tier has the given name.
    highest: int | None
    #: The lowest common HyperNode of its placed pods (`anchor_of`).
    anchor: int | None
    #: The tree version of the number.
    version: int
    #: The node label whose values are the domains, "" for HyperNodes.
    label: str = ""


def fullness(free: Amounts, total: Amounts, request: Amounts) -> float:
    """The mean utilization of the requested resources with a request: 0 to 1; 0 where it does not fit.

    Amounts are int64 [resources].
    """
    counts = (request > 0) & (total > 0)
    if not counts.any() or (request > free)[request > 0].any():
        return 0.0
    return float(((total - free + request)[counts] / total[counts]).mean())


def anchor_of(tree: HyperNodeTree, job: Job) -> int | None:
    """The lowest HyperNode that contains all placed pods of the job.

    None without such a pod, -1 when they share no HyperNode. O(tasks) once some are placed.
    """
    return tree.common(sorted(found)) if (found := placed_by_hyper_node(tree, job)) else None


def placed_by_hyper_node(tree: HyperNodeTree, job: Job) -> Counter[int]:
    """The number of placed pods of the job by their lowest HyperNode, -1 outside of all.

    A pod on a removed node counts for the HyperNode in the PodGroup's annotation, and for no value of a label.
    """
    found: Counter[int] = Counter()
    if not job.count(PLACED):
        return found
    for task in job.tasks.values():
        node = task.node
        if node is not None and task.status in PLACED:
            if node.known:
                number = tree.leaf_of.get(node.name, -1)
            elif tree.label:
                continue
            else:
                number = tree.numbers.get(job.annotations.get(JOB_ALLOCATED_HYPERNODE, ""), -1)
            found[number] += 1
    return found


def bounds_of(
    tree: HyperNodeTree, job: Job, task: Task, confined: Mapping[Hashable, int]
) -> tuple[HyperNodeBound, ...]:
    """The bounds of a pod: that of its job, and that of its subgroup; () for an unrestricted one.

    `confined`: key of a job, or it and a subgroup, to a HyperNode that its pods are placed in.
    """
    own = bound_of(tree.of(job.topology), job)
    found = [] if own is None else [own]
    group = None if job.groups is None or not job.groups.has_topology else job.groups.of(task)
    if group is not None and job.groups is not None:
        topology = job.groups.policies[group.policy].topology
        if topology is not None and topology.hard:
            anchor = subgroup_anchor(tree, job, group)
            found.append(HyperNodeBound(topology.allowed(tree), anchor, tree.version))
    for key in (job.key, (job.key, group)) if confined else ():
        number = confined.get(key)
        if number is not None:
            domains = tree.of(job.topology)
            found.append(HyperNodeBound(int(domains.tiers[number]), number, domains.version, domains.label))
    return tuple(found)


def subgroup_anchor(tree: HyperNodeTree, job: Job, group: SubGroup) -> int | None:
    """`anchor_of` for the pods of one subgroup; those on removed nodes do not count. O(tasks)."""
    groups = job.groups
    assert groups is not None
    found = {
        tree.leaf_of.get(task.node.name, -1)
        for task in job.tasks.values()
        if task.status in PLACED and task.node is not None and task.node.known and groups.of(task) == group
    }
    return tree.common(sorted(found)) if found else None


def bound_of(tree: HyperNodeTree, job: Job) -> HyperNodeBound | None:
    """The bound of a job's pods; None for an unrestricted job."""
    topology = job.topology
    if topology is None or not topology.hard:
        return None
    return HyperNodeBound(topology.allowed(tree), anchor_of(tree, job), tree.version, tree.label)


def reachable(tree: HyperNodeTree, bound: HyperNodeBound) -> Mask:
    """The allowed HyperNodes: bool [HyperNodes]."""
    highest, anchor = bound.highest, bound.anchor
    if highest is None or anchor == -1:
        return np.zeros(len(tree), dtype=bool)
    if anchor is None:
        return tree.tiers <= highest
    meets = tree.meets(anchor)
    found: Mask = (meets >= 0) & (tree.tiers[meets] <= highest)
    return found


def allowed_rows(tree: HyperNodeTree, bounds: tuple[HyperNodeBound, ...]) -> Mask:
    """The nodes that some bounds allow together: bool [nodes]."""
    trees = [(tree.labeled(bound.label), bound) for bound in bounds]
    found: Mask = np.logical_and.reduce([domains.mask_of(reachable(domains, bound)) for domains, bound in trees])
    return found


def beyond_text(bounds: tuple[HyperNodeBound, ...]) -> str:
    """The reason of the nodes that some bounds exclude."""
    label = next((bound.label for bound in bounds if bound.label), "")
    return _BEYOND_LABEL.format(label=label) if label else _BEYOND_TIER


def annotation_changes(tree: HyperNodeTree, job: Job) -> dict[str, str | None]:
    """The annotation changes for the PodGroup of a job with placed pods; empty when it is up to date."""
    if job.topology is None or job.topology.label or job.implicit or not tree.ready:
        return {}
    anchor = anchor_of(tree, job)
    if anchor is None:
        return {}
    name = tree.names[anchor] if anchor >= 0 else None
    if job.annotations.get(JOB_ALLOCATED_HYPERNODE) == name:
        return {}
    return {JOB_ALLOCATED_HYPERNODE: name}


def merged(annotations: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Annotations after a merge patch, in which None removes a key."""
    return {key: value for key, value in {**annotations, **changes}.items() if value is not None}
