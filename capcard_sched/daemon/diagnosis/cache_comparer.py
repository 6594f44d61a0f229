"""Compares the scheduler's state in memory with the API server (SIGUSR2).

A second state is built from a fresh list of all objects. Assumed binds and evictions are carried over to it. The two
documents of the states (`state/document.py`) are compared field by field, including every sum.

A list is newer than the watch: on a busy cluster compare twice and use `lasting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.quoting import brief
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.cluster import ClusterState
from capcard_sched.state.document import TABLES, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.job import Task

_LONGEST_SHOWN: Final = 120
_MOST_NAMES: Final = 5

#: Kinds without a counterpart in a list: they follow from decisions and measurements of this process.
_NOT_LISTED: Final = frozenset({"AssumedClaim", "DeletedQueue", "NodeUsage"})
#: Fields compared of a job whose PodGroup is missing; the others may be left over from a deleted PodGroup.
_UNDESCRIBED_FIELDS: Final = frozenset(
    {
        "allocated", "bound", "counts", "implicit", "orphan", "pending", "pending_best_effort", "queue", "releasing",
        "schedulable", "tasks", "total_request", "uid", "without_group",
    }
)  # fmt: skip
#: Fields of a job without a PodGroup, or with one of `scheduling.k8s.io`, that no object has.
_OWN_FIELDS: Final = frozenset({"conditions", "phase", "status_counts"})
#: Fields of a job that a list cannot have: what this process saw of it.
_SEEN: Final = frozenset({"had_tasks"})
#: Fields of a HyperNode that follow from other HyperNodes.
_OF_TREE: Final = frozenset({"above", "nodes"})
#: Fields of a pod that no tenant can edit.
_FIXED_BY_NODE: Final = frozenset({"name", "node", "status"})
_BOUND: Final = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING})


class CacheDifference(msgspec.Struct, frozen=True, order=True):
    """One difference between memory and API server."""

    #: "Node", "Pod", "PodGroup" (also jobs without one), "Queue", another watched kind, or "Cluster".
    kind: str
    #: `namespace/name` or name; "" for the cluster.
    name: str
    #: The field; "" for the whole object, or if only one side has it.
    field: str
    cache: str
    api: str
    #: An assumed decision, not yet confirmed.
    expected: bool = False

    def render(self) -> str:
        """One line."""
        place = " ".join(filter(None, (self.kind, self.name)))
        note = " (expected: assumed)" if self.expected else ""
        return f"{place}: {self.field or 'object'}: cache {self.cache}, API {self.api}{note}"


def compare(state: ClusterState, deltas: Sequence[Delta]) -> list[CacheDifference]:
    """Differences between `state` and `deltas`, a list of all objects. Sorted.

    For the scheduler thread, between two steps; `rebuild` and `differences` are its two halves. Changes nothing.
    """
    return differences(state, rebuild(state, deltas))


def rebuild(state: ClusterState, deltas: Iterable[Delta]) -> ClusterState:
    """A state with the same settings from a list of all objects. For any thread."""
    fresh = ClusterState(
        state.scheduler_names, state.default_queue, state.term_limits, waits_for_groups=state.waits_for_groups
    )
    fresh.support_claims(state.supports_claims)
    for delta in deltas:
        fresh.apply(delta)
    fresh.account_devices(state.device_accounting)
    return fresh


def lasting(before: Iterable[CacheDifference], after: Iterable[CacheDifference]) -> list[CacheDifference]:
    """Unexpected differences found by both comparisons, which the watch will not resolve."""
    seen = set(before)
    return [difference for difference in after if difference in seen and not difference.expected]


def differences(state: ClusterState, fresh: ClusterState) -> list[CacheDifference]:
    """The second half of `compare`. Modifies `fresh`: assumed decisions of `state` are carried over to it."""
    found = list(_carry_over(state, fresh))
    for one in (state, fresh):
        one.back_resources()  # as the next session does
        one.refresh_tree()  # problems of HyperNodes depend on all HyperNodes and nodes
    for kind, table in TABLES.items():
        if kind in _NOT_LISTED:
            continue
        mine, theirs = table.objects(state), table.objects(fresh)
        for key in mine.keys() | theirs.keys():
            row = table.row(state, key, mine[key]) if key in mine else None
            other = table.row(fresh, key, theirs[key]) if key in theirs else None
            found.extend(_compare(kind, key, row, other))
    ignored = _edited_accounts(state, fresh)
    return sorted(each for each in found if (each.kind, each.name) not in ignored or each.field in _FIXED_BY_NODE)


def _edited_accounts(state: ClusterState, fresh: ClusterState) -> set[tuple[str, str]]:
    """Kind and name of objects that differ because the state ignores an edit of a bound pod or its PodGroup."""
    jobs = {key for key, job in state.jobs.items() if job.bound and not job.uid}
    found: set[tuple[str, str]] = set()
    for ref in state.ignored_edits.details:
        key = f"{ref.namespace}/{ref.name}"
        found.add((ref.kind, key))
        if ref.kind == "PodGroup":
            jobs.add(key)
        else:
            tasks = (state.tasks.get(ref.uid), fresh.tasks.get(ref.uid))
            jobs.update(task.job.key for task in tasks if task is not None and task.job is not None)
    for key in jobs:
        found.add(("PodGroup", key))
        found.update(("Queue", one.jobs[key].queue) for one in (state, fresh) if key in one.jobs)
    return found


# --- assumed decisions ------------------------------------------------------------------------------------------------


def _carry_over(state: ClusterState, fresh: ClusterState) -> Iterator[CacheDifference]:
    """Assume in `fresh` what `state` assumes, unless the API server contradicts it."""
    for task in state.tasks.values():
        other = fresh.tasks.get(task.uid)
        if other is not None and task.held and not other.held:
            fresh._accounting.hold(other, held=True)
        if other is None or task.node is None:
            continue
        listed = _status_text(other)
        if task.status is TaskStatus.BINDING:
            carried = _bind(fresh, other, task.node.name)
            if carried:
                other.device_notes = task.device_notes
        elif task.status is TaskStatus.RELEASING and not task.deleting and other.node is not None:
            carried = other.status in _BOUND and other.node.name == task.node.name
            if carried:
                fresh.release(other)
        else:
            continue
        if carried:
            yield CacheDifference("Pod", task.key, "status", _status_text(task), listed, expected=True)
            # The watch delivers these together with the node.
            other.assigned_card, other.cooldown, other.bound = task.assigned_card, task.cooldown, task.bound


def _bind(fresh: ClusterState, task: Task, node_name: str) -> bool:
    """Assume a task on the node, whether the API server has it as pending or as bound there."""
    if task.status is not TaskStatus.PENDING and not (
        task.status in _BOUND and task.node is not None and task.node.name == node_name
    ):
        return False
    # As the state moves tasks: also to a node without a Node object.
    fresh._accounting.move(task, TaskStatus.BINDING, fresh.node_named(node_name))
    return True


# --- pieces -----------------------------------------------------------------------------------------------------------


def _compare(kind: str, key: str, mine: Row | None, theirs: Row | None) -> Iterator[CacheDifference]:
    """The differing fields of one object; None for the side that does not have it."""
    if mine == theirs:
        return
    name = str((mine or theirs or {}).get("name", key))
    if mine is None or theirs is None:
        yield CacheDifference(kind, name, "", _summary(mine), _summary(theirs))
        return
    fields: AbstractSet[str] = mine.keys()
    if kind == "PodGroup" and not mine["uid"] and not theirs["uid"]:
        fields = _UNDESCRIBED_FIELDS
    elif kind == "PodGroup" and ((mine["implicit"] and theirs["implicit"]) or kube_name(key.rpartition("/")[2])):
        fields = fields - _OWN_FIELDS
    elif kind == "HyperNode":
        fields = fields - _OF_TREE
    if kind == "PodGroup":
        fields = fields - _SEEN
    for field in sorted(fields):
        one, other = mine[field], theirs[field]
        if one == other:
            continue
        if isinstance(one, list) and field != "nonzero_used":
            yield CacheDifference(kind, name, field, _more(one, other), _more(other, one))
        else:
            yield CacheDifference(kind, name, field, _shown(one), _shown(other))


def _status_text(task: Task) -> str:
    return _placed(task.status.title, task.node.name if task.node is not None else "")


def _placed(status: str, node: str) -> str:
    return " on ".join(filter(None, (status, node)))


def _summary(row: Row | None) -> str:
    if row is None or "uid" not in row:
        return _shown(row)
    status = f"{_placed(row['status'], row['node'])}, " if "status" in row else ""
    return f"{status}uid {row['uid'] or 'unknown'}"


def _more(one: list[str], other: list[str]) -> str:
    """The names that only the first list has."""
    names = [str(name) for name in one if name not in set(other)]
    return f"also {brief(names, _MOST_NAMES) or 'nothing'}"


def _shown(value: object) -> str:
    text = str(value)
    text = "none" if text in ("", "None") else text
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
