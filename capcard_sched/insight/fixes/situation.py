"""A pending job and its diagnosis, as the kinds of changes read them."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.insight.fixes.scene import Scene
from capcard_sched.model.queue import ancestors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.framework.session.session import Session
    from capcard_sched.insight.fixes.change import Target
    from capcard_sched.insight.object_view import Json, ObjectView
    from capcard_sched.model.diagnosis import JobDiagnosis, LimitUse
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue

#: Combinations of accepted cards that are proposed.
MOST_CHOICES: Final = 4
#: Outcomes of pods that have a node already.
FITTING: Final = frozenset({"schedulable", "pipelined"})


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
        missing = job.min_available - job.ready_tasks
        self.needed = self.waiting if job.is_ready() else self.waiting[: max(1, missing)]
        self.target: Target = ("PodGroup", job.namespace, job.name)
        self.limits: Sequence[LimitUse] = found.queue.limits if found.queue is not None else ()

    @cached_property
    def scene(self) -> Scene:
        """The objects of the job."""
        return Scene(self.core, self.view, self.job, self._owner)

    @property
    def queues(self) -> list[Queue]:
        """The queue of the job and its ancestors."""
        own = self.state.queues.get(self.job.queue)
        return [] if own is None else [own, *ancestors(own, self.state.queues)]

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
        refusals = [*self.found.refusals, *(pods.refusal for pods in self.found.pending if pods.refusal is not None)]
        totals = [
            check.total
            for refusal in refusals
            for check in refusal.checks
            if (check.limit, check.resource) == (row.quota, row.resource)
        ]
        wanted = max(row.used + need, *totals, 0.0)
        return wanted if wanted > row.quota else 0.0

    def choices(self) -> list[set[str]]:
        """One accepted card of every template of pending pods."""
        groups = dict.fromkeys(
            cards.alternatives
            for task in self.needed
            if (cards := self.core.snapshot().dispatch.first("pod_cards", task.cls)) is not None and cards.alternatives
        )
        return [set(cards) for cards in itertools.islice(itertools.product(*groups), MOST_CHOICES)] if groups else []

    def fitting(self) -> int:
        """Needed pods that have a node already."""
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
