"""Restricts queues to groups of nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_SPEC, OTHER_NODES, filter, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.toolkit.node_index import NodeIndex
from capcard_sched.model.annotations import NODEGROUP_NAME, NODEGROUP_RESOURCE_LIMITS
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.quantity import QuantityError, amounts
from capcard_sched.model.queue import ROOT
from capcard_sched.model.reasons import NODE_GROUP_LIMITS, NODE_GROUP_PARENT
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import ALLOCATED_STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.objects import QueueAffinity
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Amounts, Vector
    from capcard_sched.model.task_class import TaskClass

NO_LABEL = "node group label not found"
NO_AFFINITY = "node group affinity not specified"
NOT_SATISFIED = "node does not satisfy the node group affinity"
LIMIT_EXCEEDED = "node group resource limit exceeded"
LIMIT_INVALID = "node group resource limit annotation invalid"

_REQUIRED, _PREFERRED, _AVOIDED = 100.0, 50.0, -1.0


class NodeGroupArguments(msgspec.Struct, frozen=True):
    """Arguments of nodegroup."""

    #: Whether queues without affinity are also excluded from nodes in no group.
    strict: bool = True
    #: Whether the score of preferred groups decreases in the order of their list.
    preferred_order: bool = msgspec.field(name="enablePreferredOrder", default=False)
    #: Whether a queue with anti-affinity only may use all other groups. Otherwise such a queue may use none.
    exclusion_admits: bool = msgspec.field(name="antiAffinityAdmitsOthers", default=False)


class Groups(NamedTuple):
    """The node group affinity of a queue."""

    required: tuple[str, ...]
    preferred: tuple[str, ...]
    anti_required: tuple[str, ...]
    anti_preferred: tuple[str, ...]


class NodeGroupLimits(NamedTuple):
    """Limits of a queue by group, base units; resources without a limit are unlimited."""

    queue: str
    #: (group, ((resource, amount), ...)), sorted.
    by_group: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


class QueueContext(NamedTuple):
    """The plugin's part of a pod signature; absent for queues without affinity and limits."""

    groups: Groups | None
    limits: NodeGroupLimits | None
    #: The error in the limits, "" without one.
    problem: str = ""


_NO_CONTEXT = QueueContext(None, None)


def groups_of(affinity: QueueAffinity | None) -> Groups | None:
    """The groups of an affinity; None when it names none."""
    if affinity is None:
        return None
    towards, away = affinity.node_group_affinity, affinity.node_group_anti_affinity
    found = Groups(
        (towards.required or ()) if towards else (),
        (towards.preferred or ()) if towards else (),
        (away.required or ()) if away else (),
        (away.preferred or ()) if away else (),
    )
    return found if any(found) else None


def limits_of(queue: Queue) -> tuple[NodeGroupLimits | None, str]:
    """The limits in a queue's annotation, and the error in them."""
    text = queue.annotations.get(NODEGROUP_RESOURCE_LIMITS)
    if text is None:
        return None, ""
    raw: Any = None
    try:
        raw = json.loads(text)
        if not isinstance(raw, dict):
            return None, "not a map of groups to resources"
        limits = msgspec.convert(raw, dict[str, dict[str, str | int | float]])
        by_group = [(group, tuple(sorted(amounts(limits[group]).items()))) for group in sorted(limits)]
    except (ValueError, RecursionError, msgspec.ValidationError, QuantityError) as error:
        return None, str(field_problem(error, raw))[:256]
    return NodeGroupLimits(queue.name, tuple(by_group)), ""


class NodeGroup(Plugin):
    """Restricts the pods of a queue to nodes of its node groups, by the label volcano.sh/nodegroup-name.

    With `enableHierarchy` a queue without affinity inherits it from the nearest ancestor that has one.
    """

    name = "nodegroup"
    Arguments = NodeGroupArguments
    arguments: NodeGroupArguments

    def setup(self) -> None:
        self._session: Session
        self._index = NodeIndex(())
        #: By queue name; queues without affinity and limits are absent.
        self._contexts: dict[str, QueueContext] = {}
        #: Queue with limits to group to the amounts that its pods use there, base units.
        self._held: dict[str, dict[str, Vector]] = {}

    def open(self, session: Session) -> None:
        """Apply changed labels and queues, and sum the usage of queues with limits. O(tasks of such queues)."""
        self._session = session
        changed = session.changed
        self._index = self._index.renewed(session)
        #: The code of each node's group, -1 for none: intp [nodes]; and each group to its code.
        self._rows, self._codes = self._index.column(NODEGROUP_NAME)
        if changed.everything or changed.queues:
            self._read_queues(session)
        self._held = {
            context.limits.queue: self._count(session.queues[context.limits.queue])
            for context in self._contexts.values()
            if context.limits is not None
        }

    def _read_queues(self, session: Session) -> None:
        self._contexts = {}
        for name in sorted(session.queues):
            queue = session.queues[name]
            groups, error = self._inherited(queue)
            if error:
                session.results.notice(queue, NODE_GROUP_PARENT, NODE_GROUP_PARENT.render(queue=name, detail=error))
            limits, problem = limits_of(queue)
            if problem:
                session.results.notice(queue, NODE_GROUP_LIMITS, NODE_GROUP_LIMITS.render(detail=problem))
            if groups is not None or limits is not None or problem:
                self._contexts[name] = QueueContext(groups, limits, problem)

    def _inherited(self, queue: Queue) -> tuple[Groups | None, str]:
        """The queue's groups or, in a hierarchy, those of the nearest ancestor with any; and the error, if any."""
        groups = groups_of(queue.affinity)
        seen = {queue.name}
        above = queue
        while groups is None and self.hierarchy and above.name != ROOT:
            parent = above.parent or ROOT
            found = self._session.queues.get(parent)
            if found is None:
                return None, f"parent <{parent}> of Queue <{above.name}> does not exist" if above.parent else ""
            if parent in seen:
                return None, f"Queue <{parent}> is its own ancestor"
            seen.add(parent)
            above = found
            groups = groups_of(above.affinity)
        return groups, ""

    def signature(self, queue: Queue, task: Task) -> QueueContext | None:
        return self._contexts.get(queue.name)

    def _context(self, signature: PodSignature) -> QueueContext:
        return signature.context(self.name) or _NO_CONTEXT

    def _admits(self, groups: Groups, group: str) -> bool:
        admitted = self.arguments.exclusion_admits and not (groups.required or groups.preferred)
        if group in groups.required or group in groups.preferred:
            admitted = True
        if group in groups.anti_required:
            admitted = False
        return admitted or group in groups.anti_preferred

    def _points(self, groups: Groups, group: str) -> float:
        if group in groups.anti_preferred:
            return _AVOIDED
        points = _REQUIRED if group in groups.required else 0.0
        if group in groups.preferred:
            several, place = len(groups.preferred), groups.preferred.index(group)
            points += _PREFERRED * (several - place) / several if self.arguments.preferred_order else _PREFERRED
        return points

    def _table(self, values: Iterable[float], last: float) -> npt.NDArray[np.float64]:
        """Values by code; the last one serves nodes without a group."""
        return np.array([*values, last], dtype=np.float64)

    @filter(reads=NODE_SPEC)
    def filter_by_group(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        groups, _, problem = self._context(signature)
        codes = rows.take(self._rows)
        ungrouped = codes < 0
        if groups is not None or self.arguments.strict:
            result.reject(ungrouped, Code.UNRESOLVABLE, NO_LABEL)
        if groups is None:
            result.reject(~ungrouped, Code.UNRESOLVABLE, NO_AFFINITY)
        else:
            excluded = self._table((not self._admits(groups, name) for name in self._codes), 0)[codes] > 0
            result.reject(excluded, Code.UNRESOLVABLE, NOT_SATISFIED)
        if problem:
            result.reject(~ungrouped, Code.UNRESOLVABLE, LIMIT_INVALID)

    @score(reads=NODE_SPEC)
    def score_groups(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        groups = self._context(signature).groups
        if groups is None:
            return None
        points = self._table((self._points(groups, name) for name in self._codes), 0.0)
        return points.take(rows.take(self._rows))

    def _has_limits(self, signature: PodSignature) -> bool:
        return self._context(signature).limits is not None

    @filter(reads=OTHER_NODES, when=_has_limits)
    def filter_by_limits(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        limits = self._context(signature).limits
        if limits is None:
            return
        over = {group for group, limit in limits.by_group if self._exceeds(limits.queue, group, dict(limit), signature)}
        if over:
            exceeded = self._table((name in over for name in self._codes), 0)
            result.reject(exceeded[rows.take(self._rows)] > 0, Code.UNRESOLVABLE, LIMIT_EXCEEDED)

    def _exceeds(self, queue: str, group: str, limit: Amounts, signature: PodSignature) -> bool:
        columns = self._session.resources
        held = columns.amounts(columns.fit(self._held[queue].get(group, columns.zeros())))
        return any(
            amount and name in limit and held.get(name, 0) + amount > limit[name]
            for name, amount in signature.cls.requests.items()
        )

    def _count(self, queue: Queue) -> dict[str, Vector]:
        held: dict[str, Vector] = {}
        for job in queue.jobs.values():
            for task in job.tasks.values():
                if task.status in ALLOCATED_STATUSES and task.node is not None:
                    self._charge(held, task.node.labels.get(NODEGROUP_NAME), task.cls, 1)
        return held

    def _charge(self, held: dict[str, Vector], group: str | None, cls: TaskClass, sign: int) -> None:
        if group is not None:
            columns = self._session.resources
            held[group] = columns.fit(held.get(group, columns.zeros())) + sign * columns.fit(cls.request)

    def _move(self, placement: Placement, sign: int) -> None:
        held = self._held.get(placement.job.queue)
        if held is not None:
            for node in placement.nodes:
                self._charge(held, node.labels.get(NODEGROUP_NAME), placement.cls, sign)

    def on_allocate(self, placement: Placement) -> None:
        self._move(placement, 1)

    def on_deallocate(self, placement: Placement) -> None:
        self._move(placement, -1)
