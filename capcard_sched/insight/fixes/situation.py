"""A pending job and its diagnosis, as the kinds of changes read them."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.insight.fixes.scene import Scene
from capcard_sched.insight.trials.change import ProposedChange
from capcard_sched.model.annotations import NODE_UNSCHEDULABLE
from capcard_sched.model.node_conditions import conditions_of
from capcard_sched.model.queue import ancestors
from capcard_sched.model.selectors import untolerated_taint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.framework.session.session import Session
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.insight.trials.change import Candidate, Target
    from capcard_sched.model.diagnosis import JobDiagnosis, LimitUse, PodRefusal
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue

#: Combinations of accepted cards that are proposed.
MOST_CHOICES: Final = 4
#: Outcomes of pods that have a node already.
FITTING: Final = frozenset({"schedulable", "pipelined"})


class ExcludedNode(NamedTuple):
    """A node that is cordoned, or has a taint `key=value:effect`, and otherwise fits a number of pods."""

    pods: int
    is_cordoned: bool
    taint: str
    name: str

    def changes(self) -> Candidate:
        """What admits pods to it."""
        target = ("Node", "", self.name)
        cordoned = (ProposedChange("Uncordon", target),) if self.is_cordoned else ()
        return (*cordoned, ProposedChange("Untaint", target, self.taint)) if self.taint else cordoned


class Situation:
    """One pending job in one state. The scene has no edits; kinds read objects there."""

    def __init__(
        self,
        core: Core,
        session: Session,
        view: ObjectView,
        job: Job,
        owner: Json | None,
        found: JobDiagnosis,
        may_evict: Sequence[str],
    ) -> None:
        self.core, self.session, self.job, self.found, self.may_evict = core, session, job, found, may_evict
        self.view, self._owner = view, owner
        self.state, self.conf = core.snapshot().state, core.snapshot().conf
        self.waiting = session.pending_tasks(job)
        #: Pods that are still needed: up to the minimum, or all pending pods of a job that has it.
        missing = job.starting_pods - job.ready_tasks
        self.needed = self.waiting if job.is_ready() else self.waiting[: max(1, missing)]
        self.target: Target = ("PodGroup", job.namespace, job.name)
        self.limits: Sequence[LimitUse] = found.queue.limits if found.queue is not None else ()

    @cached_property
    def scene(self) -> Scene:
        return Scene(self.core, self.view, self.job, self._owner)

    @property
    def queues(self) -> list[Queue]:
        """The queue of the job and its ancestors, nearest first; empty without the queue."""
        own = self.state.queues.get(self.job.queue)
        return [] if own is None else [own, *ancestors(own, self.state.queues)]

    @property
    def refusals(self) -> list[PodRefusal]:
        """The refusals of the job, then those of its pods, once each."""
        of_pods = (pods.refusal for pods in self.found.pending if pods.refusal is not None)
        return list(dict.fromkeys((*self.found.refusals, *of_pods)))

    def needed_of(self, row: LimitUse) -> float:
        """The amount of a limit that the needed pods, or a job without pods, request."""
        if not self.waiting:
            return row.requested
        return min(row.requested, len(self.needed) * row.requested_per_pod)

    def wanted_of(self, row: LimitUse) -> float:
        """The limit that the needed pods need; refusals by it include reservations. 0 for a limit that suffices."""
        need = self.needed_of(row)
        if row.quota is None or not need:
            return 0.0
        totals = [
            check.total
            for refusal in self.refusals
            for check in refusal.checks
            if (check.limit, check.resource) == (row.quota, row.resource)
        ]
        wanted = max(row.used + need, *totals, 0.0)
        return wanted if wanted > row.quota else 0.0

    def choices(self) -> list[set[str]]:
        """One accepted card of every template of pending pods."""
        groups = dict.fromkeys(
            line
            for task in self.needed
            if (cards := self.core.snapshot().dispatch.first("pod_cards", task.cls)) is not None and cards.alternatives
            for line in cards.choices
        )
        return [set(cards) for cards in itertools.islice(itertools.product(*groups), MOST_CHOICES)] if groups else []

    def fitting(self) -> int:
        """Number of needed pods that have a node already."""
        return sum(len(pods.names) for pods in self.found.pending if pods.outcome in FITTING)

    def fits(self, node: Node, task: Task) -> int:
        """Pods like a task for which a node has free resources, and the card."""
        if node.row < 0:
            return 0
        cards = self.core.snapshot().dispatch.first("pod_cards", task.cls)
        if cards is not None and cards.alternatives:
            provided = self.state.cards_of(node)
            if not any(card in provided for card in cards.alternatives):
                return 0
        request = task.cls.fit_request
        wanted = np.flatnonzero(request)
        table = self.state.nodes
        free = (table.allocatable[node.row] - table.used[node.row])[wanted]
        return max(0, int((free // request[wanted]).min())) if len(wanted) else 1

    @cached_property
    def excluded_nodes(self) -> list[ExcludedNode]:
        """Nodes that one change opens to the needed pods, the best first. Not those that need repair."""
        if not self.needed:
            return []
        task = self.needed[0]
        found: list[ExcludedNode] = []
        for node in self.state.nodes.by_name.values():
            others = [one for one in node.taints if one.key != NODE_UNSCHEDULABLE]
            taint = untolerated_taint(others, task.cls.tolerations)
            if (
                (not node.unschedulable and taint is None)
                or conditions_of(node.taints)
                or not self._is_ready(node.name)
            ):
                continue
            if fits := self.fits(node, task):
                found.append(ExcludedNode(fits, node.unschedulable, taint.text if taint is not None else "", node.name))
        return sorted(found, key=lambda row: (bool(row.taint), -row.pods, row.name))

    def first_that_fit(self, rows: Sequence[ExcludedNode]) -> Sequence[ExcludedNode]:
        """The first rows that fit the pods that have no node; all rows when they do not."""
        short = max(1, len(self.needed) - self.fitting())
        for count in range(1, len(rows)):
            if sum(row.pods for row in rows[:count]) >= short:
                return rows[:count]
        return rows

    def _is_ready(self, name: str) -> bool:
        """False for a node whose kubelet reports, or lets expire, another condition; taints follow later."""
        node = self.view.get("Node", "", name) or {}
        conditions = (node.get("status") or {}).get("conditions") or ()
        return all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready")
