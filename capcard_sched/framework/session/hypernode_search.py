"""The search for the HyperNode of a job with a hard network topology.

From the lowest tier up, every HyperNode of a tier is tried on the statement and undone again; the best of the first
tier that fits the job now gets it. Releasing capacity counts only when no allowed tier has idle capacity. A trial is a
visit over the rows of one HyperNode; nothing is copied.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.api.node_view import NodeView
from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.framework.placement.hypernode_bounds import HyperNodeRows, bound_of, fullness, reachable
from capcard_sched.model import reasons
from capcard_sched.model.quoting import plural
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.placement.engine import PlacementEngine
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.session.statement import Statement
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

#: Results of a trial: nothing, pipelined on releasing capacity, everything at once.
_NEVER, _LATER, _NOW = range(3)
_FIELD: Final = "spec.networkTopology"
#: Number of HyperNodes from which equal ones are detected.
_MANY = 8


class Visit(NamedTuple):
    """The result of one visit to a job on the nodes of one engine; its placements are on the statement."""

    #: The number of processed tasks.
    processed: int
    #: Whether the result depends only on the amounts and static results of the nodes.
    by_amounts: bool


class _HyperNodeOffer(NamedTuple):
    """The result of a trial."""

    placements: list[Placement]
    grade: int


class HyperNodeSearch:
    """One visit to a job in hard mode."""

    def __init__(
        self,
        session: Session,
        statement: Statement,
        queue: Queue,
        job: Job,
        tasks: Sequence[Task],
        place: Callable[[PlacementEngine], Visit],
    ) -> None:
        """`place` places the tasks on an engine's nodes."""
        self._session = session
        self._statement = statement
        self._queue = queue
        self._job = job
        self._tasks = tasks
        self._place = place
        self._tree = session.snapshot.tree.of(job.topology)
        self._needed = max(1, job.missing_tasks)
        #: The highest number of pods that fit one HyperNode, and its number.
        self._most = (0, -1)
        #: The first HyperNode that only quotas refused.
        self._refused = -1
        #: The number of refusals before the search.
        self._refusals_before = len(session.results.report.refusals)
        #: Number of a HyperNode to the job's placements there.
        self._offers: dict[int, _HyperNodeOffer] = {}
        #: HyperNodes with the same nodes as one that was tried, to the number of that one.
        self._twins: dict[int, int] = {}
        #: The HyperNode on the statement, and whether plugins that follow the tree took part.
        self._held = (-1, False)
        #: The number of tasks processed there.
        self._processed = 0

    def run(self) -> int:
        """Returns the number of processed tasks. Raises HookFailed.

        The statement holds the job's placements in the best HyperNode; it is empty when no HyperNode fits, and the pods
        get the reason.
        """
        tree, job = self._tree, self._job
        assert job.topology is not None
        highest = job.topology.allowed(tree)
        if not tree.ready and tree.label:
            return self._refuse_no_fit(0, np.zeros(0, dtype=bool))
        if not tree.ready:
            return self._refuse(reasons.HYPER_NODES_NOT_READY, reasons.HYPER_NODES_NOT_READY.render(field=_FIELD))
        if highest is None or highest < tree.tiers[0]:
            requested = job.topology.highest_name if highest is None else f"{highest} or below"
            return self._refuse(reasons.NO_SUCH_TIER, reasons.NO_SUCH_TIER.render(field=_FIELD, tier=requested))
        bound = bound_of(tree, job)
        assert bound is not None
        if bound.anchor == -1:
            row = reasons.BEYOND_TOPOLOGY_DOMAIN if tree.label else reasons.BEYOND_HYPER_NODES
            return self._refuse(row, row.render(label=tree.label) if tree.label else row.text)
        meets = np.arange(len(tree)) if bound.anchor is None else tree.meets(bound.anchor)
        capacity = self._capacity()
        allowed = reachable(tree, bound)
        later: list[int] = []
        for tier, numbers in tree.by_tier.items():
            if tier > highest:
                break
            # Nearest to the placed pods first: the order decides between equals.
            near = sorted((number for number in numbers if allowed[number]), key=lambda n: (tree.tiers[meets[n]], n))
            now, pipelined = self._try(near, capacity)
            if now is None:
                return 0  # recorded already; no other HyperNode changes it
            if now:
                return self._choose(now)
            later = later or pipelined
        if later:
            return self._choose(later)
        if self._refused >= 0:
            self._visit(self._refused)
            return 0
        return self._refuse_no_fit(highest, allowed, is_bound=bound.anchor is not None)

    # --- trials -----------------------------------------------------------------------------------------------------

    def _capacity(self) -> npt.NDArray[np.int64]:
        """An upper bound on the tasks that fit each HyperNode, whatever the plugins decide: int64 [HyperNodes].

        Counts free resources alone, for each class as if it were alone there.
        """
        session, tree, tasks = self._session, self._tree, self._tasks
        table, leaf = session.nodes, tree.leaf
        free = table.allocatable - table.used + table.releasing
        inside = leaf >= 0
        found = np.full(len(tree), len(tasks), dtype=np.int64)
        for cls, count in Counter(task.cls for task in tasks).items():
            columns = np.flatnonzero(cls.fit_request)
            fits = np.maximum((free[:, columns] // cls.fit_request[columns]).min(axis=1, initial=len(tasks)), 0)
            totals = np.zeros(len(tree), dtype=np.int64)
            np.add.at(totals, leaf[inside], np.minimum(fits[inside], count))
            for number, parent in enumerate(tree.parents.tolist()):
                if parent >= 0:
                    totals[parent] += totals[number]
            found = np.minimum(found, np.minimum(totals, count) + len(tasks) - count)
        return found

    def _try(self, numbers: list[int], capacity: npt.NDArray[np.int64]) -> tuple[list[int] | None, list[int]]:
        """The HyperNodes that fit the job now, and those where it is pipelined.

        None instead of the first when the refusal does not depend on the HyperNode.
        """
        now: list[int] = []
        pipelined: list[int] = []
        for number in numbers:
            if capacity[number] < self._needed:
                self._record_most(int(capacity[number]), number)
        numbers = [number for number in numbers if capacity[number] >= self._needed]
        fingerprints = self._fingerprints(numbers) if len(numbers) >= _MANY else {}
        tried: dict[bytes, int] = {}
        for number in numbers:
            twin = tried.get(fingerprints[number], -1) if fingerprints else -1
            if twin >= 0:
                self._twins[number] = twin
                offer = self._offers[twin]
            else:
                visit = self._visit(number)
                if self._is_refused():
                    self._refused = number if self._refused < 0 else self._refused
                    if not self._has_alternatives():
                        return None, []
                offer = self._offers[number] = _HyperNodeOffer(self._statement.placements, self._grade())
                self._record_most(sum(len(placement.tasks) for placement in offer.placements), number)
                if fingerprints and visit.by_amounts:
                    tried[fingerprints[number]] = number
            if offer.grade == _NOW:
                now.append(number)
            elif offer.grade == _LATER:
                pipelined.append(number)
        return now, pipelined

    def _fingerprints(self, numbers: list[int]) -> dict[int, bytes]:
        """By HyperNode, a fingerprint of its nodes for visits that depend on amounts and static results."""
        session, tree = self._session, self._tree
        engine, table = self._engine(numbers[0], by_tree=False), session.nodes
        first, *others = {task.cls: task for task in self._tasks}.values()
        kinds = session.engine.equal_nodes(engine.signature(self._queue, first))
        for task in others:
            of_nodes = session.engine.equal_nodes(engine.signature(self._queue, task))
            # numbered anew: the numbers stay small, however many classes the pods have
            kinds = np.unique(kinds * (int(of_nodes.max()) + 1) + of_nodes, return_inverse=True)[1]
        # Node classes know what pods charge, not what is about to end or to start: few nodes have either.
        moving = np.flatnonzero((table.releasing != 0).any(axis=1) | (table.pipelined != 0).any(axis=1))
        seen: dict[bytes, int] = {}
        for row in moving.tolist():
            content = kinds[row].tobytes() + table.releasing[row].tobytes() + table.pipelined[row].tobytes()
            kinds[row] = seen.setdefault(content, -1 - len(seen))
        return {number: np.sort(kinds.take(tree.rows_of(number))).tobytes() for number in numbers}

    def _grade(self) -> int:
        """The grade of the current statement for the job."""
        placements, session = self._statement.placements, self._session
        if session.job_ready(self._job) and any(map(_is_allocated, placements)):
            return _NOW
        return _LATER if placements and session.job_pipelined(self._job) else _NEVER

    def _visit(self, number: int, *, by_tree: bool = False) -> Visit:
        """Places the job's tasks in one HyperNode, and nothing else on the statement."""
        self._statement.rollback(0)
        session = self._session
        session.results.drop_outcomes(self._tasks)
        session.results.withdraw_refusals(self._refusals_before)
        self._held = number, by_tree
        visit = self._place(self._engine(number, by_tree=by_tree))
        self._processed = visit.processed
        return visit

    def _engine(self, number: int, *, by_tree: bool) -> PlacementEngine:
        return self._session.engine.restrict(number, by_tree=by_tree, label=self._tree.label)

    def _is_refused(self) -> bool:
        """Whether only quotas, or checks before all nodes, refuse the job."""
        outcomes = self._session.results.outcomes
        failed = [outcome for task in self._tasks if (outcome := outcomes.get(task.uid)) is not None]
        return (
            bool(failed)
            and all(outcome.refusal is not None for outcome in failed)
            and not (len(self._statement) and self._session.job_ready(self._job))
        )

    def _has_alternatives(self) -> bool:
        """Whether a quota may decide differently elsewhere: pods with several cards take the card of the node."""
        return any(
            refusal.alternatives for _, refusal in self._session.results.report.refusals[self._refusals_before :]
        )

    def _record_most(self, pods: int, number: int) -> None:
        if pods > self._most[0]:
            self._most = pods, number

    # --- the choice -------------------------------------------------------------------------------------------------

    def _choose(self, numbers: list[int]) -> int:
        """Places the job in the best of some HyperNodes. Returns the number of processed tasks."""
        best = numbers[0]
        if len(numbers) > 1:
            self._statement.rollback(0)
            self._held = (-1, False)
            scores = hyper_node_scores(self._session, self._job, self._tree, numbers)
            if scores is None:
                scores = self._fullness(numbers)
            highest = scores.max()
            fullest = [number for number, score in zip(numbers, scores.tolist(), strict=True) if score == highest]
            best = self._best_by_nodes(fullest)
        wanted = self._offers[self._twins.get(best, best)].grade
        if self._session.engine.tree_followers:
            self._visit(best, by_tree=True)
            if self._grade() < wanted:  # it fits only as in its trial
                self._visit(best)
        elif self._held != (best, False):
            self._visit(best)
        self._explain_rest(best)
        return self._processed

    def _fullness(self, numbers: list[int]) -> npt.NDArray[np.float64]:
        """The utilization of each HyperNode with all pending pods of the job: float64 [k]."""
        table, tree = self._session.nodes, self._tree
        request = np.sum([task.cls.request for task in self._tasks], axis=0)
        rows = [tree.rows_of(number) for number in numbers]  # of HyperNodes with nodes: the job fits there
        starts = np.cumsum([0, *map(len, rows[:-1])])
        inside = np.concatenate(rows)
        totals = np.add.reduceat(table.allocatable.take(inside, axis=0), starts, axis=0)
        free = totals - np.add.reduceat(table.used.take(inside, axis=0), starts, axis=0)
        return np.array([fullness(idle, total, request) for idle, total in zip(free, totals, strict=True)])

    def _best_by_nodes(self, numbers: list[int]) -> int:
        """Of HyperNodes that are equally full, the one whose nodes score highest for the pods; the first of them."""
        if len(numbers) < 2:
            return numbers[0]
        twins = [self._twins.get(number, number) for number in numbers]
        scores = {twin: self._node_scores(twin) for twin in dict.fromkeys(twins)}
        return max(zip(numbers, twins, strict=True), key=lambda pair: scores[pair[1]])[0]

    def _node_scores(self, number: int) -> float:
        """The sum of the node scores of the pods in a HyperNode, each evaluated after the ones before."""
        engine, table = self._engine(number, by_tree=True), self._session.nodes
        offer = self._offers[number].placements
        charged = table.charged.copy() if len(offer) > 1 else table.charged
        scores = 0.0
        for record in offer:
            signature = engine.signature(self._queue, record.tasks[0])
            rows = np.array([node.row for node in record.nodes], dtype=np.intp)
            filled: Counter[int] = Counter()
            before = np.zeros((len(rows), 1), dtype=np.int64)
            for position, row in enumerate(rows.tolist()):
                before[position] = filled[row]
                filled[row] += 1
            seen = charged[rows] + before * record.cls.charge
            selection = NodeView(table, rows, charged=seen)
            scores += float(engine.totals(signature, selection).sum())
            if len(offer) > 1:
                np.add.at(charged, rows, record.cls.charge)
        return scores

    # --- reasons ----------------------------------------------------------------------------------------------------

    def _explain_rest(self, number: int) -> None:
        """Fills in the reason of the pods that found no node; trials leave it out."""
        engine = self._engine(number, by_tree=False)
        for task in self._tasks:
            outcome = self._session.results.outcomes.get(task.uid)
            if outcome is not None and outcome.kind == "unfit" and not outcome.message:
                text, _ = engine.diagnose(engine.signature(self._queue, task))
                text = f"{self._name(number)}: {text}"
                self._session.results.set_outcome(task, TaskOutcome("unfit", text))

    def _name(self, number: int) -> str:
        label, name = self._tree.label, self._tree.names[number]
        return f"{label}={name}" if label else f"HyperNode {name}"

    def _refuse_no_fit(self, highest: int, allowed: Mask, *, is_bound: bool = False) -> int:
        """`is_bound`: placed pods of the job decide on its HyperNodes."""
        tree, (most, number) = self._tree, self._most
        detail = "none of them fits anywhere"
        if is_bound:
            widest = self._name(int(np.argmax(np.where(allowed, tree.tiers, -1))))
            where = f"on nodes with {widest}" if tree.label else f"in {widest}"
            detail = f"its placed pods keep it {where}, where no pending pod fits"
        if not tree.ready:
            return self._refuse_domain("no node has the label")
        # Placed once more: what refuses the pods in the HyperNode that takes most of them is their reason.
        nearest = number if number >= 0 else int(np.argmax(allowed))
        self._visit(nearest)
        fitting = [task.uid for placement in self._statement.placements for task in placement.tasks]
        self._session.observe_failure(self._session, self._job, self._engine(nearest, by_tree=False))
        if number >= 0:
            where = f"on nodes with {self._name(number)}"
            if not tree.label:
                where = f"in {self._name(number)} of tier {tree.tiers[number]}"
            detail = f"at most {most} {'fits' if most == 1 else 'fit'}, {where}"
        if tree.label:
            self._refuse_domain(detail)
        else:
            row = reasons.NO_HYPER_NODE_FITS
            self._refuse(row, row.render(tier=highest, needed=plural(self._needed, "pod"), detail=detail))
        self._session.results.mark_partly_fitting(fitting)
        return 0

    def _refuse_domain(self, detail: str) -> int:
        row = reasons.NO_TOPOLOGY_DOMAIN_FITS
        return self._refuse(row, row.render(label=self._tree.label, needed=plural(self._needed, "pod"), detail=detail))

    def _refuse(self, row: reasons.Reason, message: str) -> int:
        """Refuses the job, and all its pods for the same reason."""
        self._statement.rollback(0)
        session = self._session
        session.results.drop_outcomes(self._tasks)
        refusal = Refusal("hyper_node_order", "", row.code, message, queue=self._queue.name)
        session.results.refuse(self._job, refusal)
        session.results.explain_pending(self._job, refusal)
        return 0


def hyper_node_scores(
    session: Session, job: Job, tree: HyperNodeTree, numbers: Sequence[int]
) -> npt.NDArray[np.float64] | None:
    """The plugins' scores of HyperNodes for a job: float64 [k]; None when no plugin has any."""
    entries = session.dispatch.entries("hyper_node_order")
    if not entries:
        return None
    candidates = tuple(
        HyperNodeRows(number, tree.names[number], int(tree.tiers[number]), tree.rows_of(number)) for number in numbers
    )
    total = None
    for _, call in entries:
        part = call(job, candidates)
        if part is not None:
            total = part if total is None else total + part
    return total


def _is_allocated(placement: Placement) -> bool:
    return placement.tasks[0].status is TaskStatus.ALLOCATED
