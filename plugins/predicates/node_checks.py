"""Checks of a node against the task class alone: cordon, node selector and affinity, taints.

The checks read only the node index, so their results are valid until the node generation changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.model.refusal import Code
from capcard_sched.model.selectors import UNSCHEDULABLE_TAINT, is_tolerated

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import FilterResult, NodeView
    from capcard_sched.framework.toolkit.node_index import NodeIndex
    from capcard_sched.model.task_class import TaskClass

POD_NUMBER_EXCEEDED = "node(s) pod number exceeded"
UNSCHEDULABLE = "node(s) were unschedulable"
AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
UNTOLERATED_TAINT = "node(s) had untolerated taint {{{key}: {value}}}"


def reject_cordoned(index: NodeIndex, cls: TaskClass, rows: NodeView, result: FilterResult) -> None:
    """Reject cordoned nodes for pods that do not tolerate the unschedulable taint."""
    if index.cordoned is not None and not is_tolerated(UNSCHEDULABLE_TAINT, cls.tolerations):
        result.reject(rows.take(index.cordoned), Code.UNRESOLVABLE, UNSCHEDULABLE)


def reject_by_affinity(index: NodeIndex, cls: TaskClass, rows: NodeView, result: FilterResult) -> None:
    """Reject nodes outside nodeSelector and required node affinity."""
    mask = index.matching(cls)
    if mask is not None:
        result.reject(~rows.take(mask), Code.UNRESOLVABLE, AFFINITY_MISMATCH)


def reject_tainted(index: NodeIndex, cls: TaskClass, rows: NodeView, result: FilterResult) -> None:
    """Reject nodes with an untolerated NoSchedule or NoExecute taint; the reason names the first one in list order."""
    clean = index.tolerated(cls.tolerations)
    if clean is None:
        return
    if not isinstance(result, Diagnosis):
        result.reject(~rows.take(clean), Code.UNRESOLVABLE, UNTOLERATED_TAINT)
        return
    # One reason per distinct text: number the texts and assign each node the number of its text.
    numbers: dict[str, int] = {}
    by_set = np.array(
        [
            -1
            if taint is None
            else numbers.setdefault(UNTOLERATED_TAINT.format(key=taint.key, value=taint.value), len(numbers))
            for taint in index.offending(cls.tolerations)
        ],
        dtype=np.intp,
    )
    by_row = by_set[rows.take(index.taint_codes)]
    present = set(by_row.tolist())
    for reason, number in numbers.items():
        if number in present:
            result.reject(by_row == number, Code.UNRESOLVABLE, reason)


def reject_full(rows: NodeView, result: FilterResult) -> None:
    """Reject nodes at their maximum number of pods. Terminating pods do not count, so that a pod can be nominated."""
    full = rows.used[:, 2] >= rows.allocatable[:, 2]
    if full.any():
        full = rows.used[:, 2] - rows.releasing[:, 2] >= rows.allocatable[:, 2]
        result.reject(full, Code.UNSCHEDULABLE, POD_NUMBER_EXCEEDED)
