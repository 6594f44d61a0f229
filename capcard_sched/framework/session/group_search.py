"""The search for the domains of a job with subgroups: `GroupPlan` over the domains that the job may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.placement.group_plan import GroupPlan
from capcard_sched.framework.placement.group_problem import PlanGoal, PlanPlace, PlanPod, PlanUnit, PodKind
from capcard_sched.framework.placement.hypernode_bounds import anchor_of, fullness, subgroup_anchor
from capcard_sched.framework.session.hypernode_search import hyper_node_scores
from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.placement.group_problem import PlanChoice
    from capcard_sched.framework.session.group_units import GroupUnit, GroupUnits
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.hyper_nodes import HyperNodeTree, NetworkTopology
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

    Amounts = npt.NDArray[np.int64]

#: The number of the domain that is the whole cluster, and its tier: above all others.
_CLUSTER = -1
_CLUSTER_TIER = 1 << 30
_NOWHERE = -2


class PlannedUnit(NamedTuple):
    """A unit of a plan."""

    unit: GroupUnit
    #: Number of the HyperNode; -1 for the whole cluster.
    place: int
    #: Pods with the rows of their nodes.
    pods: tuple[tuple[Task, int], ...]


class GroupSearch:
    """The search of one visit, over the nodes as they are when it is built."""

    def __init__(self, session: Session, queue: Queue, job: Job, units: GroupUnits, *, future: bool) -> None:
        """`future`: counts capacity that is being released as free."""
        self._session, self._queue, self._job, self._units = session, queue, job, units
        self._future = future
        self._tree = session.snapshot.tree
        #: Units that are not placed in a HyperNode (by number), or nowhere (-2).
        self._bans: set[tuple[GroupUnit, int]] = set()
        self._problem: _Problem | None = None
        #: Whether some search ended at its limit.
        self.ended = False

    # --- what is never met ------------------------------------------------------------------------------------------

    def refusal(self) -> Refusal | None:
        """The reason why no domain is allowed at all, or None."""
        tree, job, groups = self._tree, self._job, self._job.groups
        assert groups is not None
        needed = [policy for policy in groups.policies if policy.minimum]
        wanted = [(f"networkTopology of policy <{policy.name}>", policy.topology) for policy in needed]
        for field, topology in [("spec.networkTopology", job.topology), *wanted]:
            if topology is None or not topology.hard:
                continue
            if not tree.ready:
                return self._refused(reasons.HYPER_NODES_NOT_READY, reasons.HYPER_NODES_NOT_READY.render(field=field))
            highest = topology.allowed(tree)
            if highest is None or highest < tree.tiers[0]:
                requested = topology.highest_name if highest is None else f"{highest} or below"
                return self._refused(reasons.NO_SUCH_TIER, reasons.NO_SUCH_TIER.render(field=field, tier=requested))
        if job.topology is not None and job.topology.hard and not self._domains():
            return self._refused(reasons.BEYOND_HYPER_NODES, reasons.BEYOND_HYPER_NODES.text)
        return None

    def is_beyond(self, unit: GroupUnit) -> bool:
        """Whether the placed pods of a subgroup share no HyperNode of its tier."""
        return unit.is_begun and not any(self._domains_of(unit, domain) for domain in self._domains())

    def _refused(self, row: reasons.Reason, message: str) -> Refusal:
        return Refusal("hyper_node_order", "", row.code, message, queue=self._queue.name)

    def ban(self, planned: PlannedUnit, *, everywhere: bool) -> None:
        """Excludes a domain for a unit whose placement failed there, or the unit (`everywhere`)."""
        self._bans.add((planned.unit, _NOWHERE if everywhere else planned.place))

    # --- plans ------------------------------------------------------------------------------------------------------

    def start(self) -> list[PlannedUnit] | None:
        """Units with which the job starts, or None."""
        job, groups = self._job, self._job.groups
        assert groups is not None
        goal = PlanGoal(
            tuple(groups.missing(groups.ready())),
            job.missing_tasks,
            job.missing_of_roles(),
        )
        return self._search([*self._units.groups, *self._units.singles], goal, extras=True)

    def further(self, unit: GroupUnit, beside: Sequence[GroupUnit] = ()) -> list[PlannedUnit] | None:
        """Nodes for one unit, and for those `beside` it at the same time; or None."""
        groups, units = self._job.groups, [*beside, unit]
        assert groups is not None
        need = sum(one.need for one in units)
        return self._search(units, PlanGoal((0,) * len(groups.policies), need, {}), extras=False)

    def _search(self, units: list[GroupUnit], goal: PlanGoal, *, extras: bool) -> list[PlannedUnit] | None:
        if not units:
            return None
        if self._problem is None:
            tasks = [task for unit in (*self._units.groups, *self._units.singles) for task in unit.tasks]
            self._problem = _Problem(self._session, self._queue, tasks, future=self._future)
        problem = self._problem
        for domain in self._ordered_domains(goal.pods):
            planned, sources = self._units_in(domain, units, goal, extras=extras)
            plan = GroupPlan(problem.free, problem.total, problem.kinds, planned, goal)
            found = plan.search()
            self.ended = self.ended or (found is None and plan.ended)
            if found is not None:
                return [self._planned(choice, sources) for choice in found]
            if self._session.deadline.is_exhausted(self._queue.name):
                self.ended = True
                break
        return None

    def _planned(self, choice: PlanChoice, sources: list[GroupUnit]) -> PlannedUnit:
        assert self._problem is not None
        pods = tuple((self._problem.tasks[pod], node) for pod, node in choice.pods)
        return PlannedUnit(sources[choice.unit], choice.place.number, pods)

    def _units_in(
        self, domain: int, units: list[GroupUnit], goal: PlanGoal, *, extras: bool
    ) -> tuple[list[PlanUnit], list[GroupUnit]]:
        """The units with their places in a domain of the job, and the units by number."""
        problem, groups = self._problem, self._job.groups
        assert problem is not None
        assert groups is not None
        planned: list[PlanUnit] = []
        sources: list[GroupUnit] = []
        followers: list[tuple[PlanUnit, GroupUnit]] = []
        for unit in units:
            pods = tuple(
                PlanPod(number, problem.kind_of[number], task.role if task.role in goal.roles else "")
                for task in unit.tasks
                for number in (problem.numbers[task.uid],)
            )
            policy = unit.group.policy if unit.group is not None and unit.completes else -1
            places = tuple(
                problem.place(self._tree, number)
                for number in self._domains_of(unit, domain)
                if self._bans.isdisjoint({(unit, number), (unit, _NOWHERE)})
            )
            own = PlanUnit(len(sources), policy, pods, unit.need, places)
            planned.append(own)
            sources.append(unit)
            extra = unit._replace(need=1, completes=False)
            if extras and unit.completes and (extra, _NOWHERE) not in self._bans:
                followers += [(own, extra)] * (len(unit.tasks) - unit.need)
        groups_first = [unit for unit in planned if unit.policy >= 0 or unit.need > 1]
        singles = [unit for unit in planned if not (unit.policy >= 0 or unit.need > 1)]
        for leader, extra in followers:
            singles.append(leader._replace(number=len(sources), policy=-1, need=1, follows=leader.number))
            sources.append(extra)
        return [*groups_first, *singles], sources

    # --- domains ----------------------------------------------------------------------------------------------------

    def _domains(self) -> list[int]:
        """The domains that the job may have, lowest tier first; only the cluster without a hard topology."""
        topology = self._job.topology
        if topology is None or not topology.hard:
            return [_CLUSTER]
        return self._allowed(topology, anchor_of(self._tree, self._job), _CLUSTER)

    def _ordered_domains(self, pods: int) -> list[int]:
        """The same, per tier in order of the plugins' scores, then the fuller first."""
        found, problem = self._domains(), self._problem
        assert problem is not None
        places = {number: problem.place(self._tree, number) for number in found}
        found = [number for number in found if problem.most_pods(places[number]) >= pods]
        inside = [number for number in found if number >= 0]
        scores = hyper_node_scores(self._session, self._job, self._tree, inside) if len(inside) > 1 else None
        preferred = {} if scores is None else dict(zip(inside, scores.tolist(), strict=True))
        return sorted(found, key=lambda n: (places[n].tier, -preferred.get(n, 0.0), -problem.fullness(places[n]), n))

    def _domains_of(self, unit: GroupUnit, domain: int) -> list[int]:
        """The places of a unit inside of a domain of the job, lowest tier first."""
        group, groups = unit.group, self._job.groups
        assert groups is not None
        topology = None if group is None else groups.policies[group.policy].topology
        if topology is None or not self._tree.ready:
            return [domain] if topology is None or not topology.hard else []
        assert group is not None
        if not topology.hard:
            inside = self._allowed(None, None, domain)
            return inside if domain in inside else [*inside, domain]
        found = self._allowed(topology, subgroup_anchor(self._tree, self._job, group), domain)
        return found if unit.completes or unit.need > 1 else found[-1:]

    def _allowed(self, topology: NetworkTopology | None, anchor: int | None, domain: int) -> list[int]:
        """HyperNodes inside of a domain, that contain an anchor, up to the tier of a topology; tiers ascending."""
        tree = self._tree
        allowed = np.ones(len(tree), dtype=bool)
        if topology is not None:
            highest = topology.allowed(tree)
            allowed = tree.tiers <= (-1 if highest is None else highest)
        if anchor == -1:
            return []
        if anchor is not None:
            meets = tree.meets(anchor)
            allowed &= meets == np.arange(len(tree))
        if domain >= 0:
            allowed &= tree.meets(domain) == domain
        numbers: list[int] = np.flatnonzero(allowed).tolist()
        return sorted(numbers, key=lambda number: (int(tree.tiers[number]), number))


class _Problem:
    """The nodes and pods of a search as numbers."""

    def __init__(self, session: Session, queue: Queue, tasks: Sequence[Task], *, future: bool) -> None:
        engine, table = session.engine, session.nodes
        self.tasks = list(tasks)
        self.numbers = {task.uid: number for number, task in enumerate(tasks)}
        by_signature: dict[PodSignature, int] = {}
        known: dict[tuple[int, int], PodSignature] = {}
        self.kind_of: list[int] = []
        for task in tasks:
            key = id(task.cls), id(task.labels)
            if key not in known:
                known[key] = engine.signature(queue, task)
            self.kind_of.append(by_signature.setdefault(known[key], len(by_signature)))
        wanted = [signature.cls.fit_request for signature in by_signature]
        columns = np.flatnonzero(np.logical_or.reduce([request > 0 for request in wanted]))
        coming = table.releasing - table.pipelined
        free = (table.allocatable - table.used + (coming if future else np.minimum(coming, 0)))[:, columns]
        self._free, self._total = free, table.allocatable[:, columns]
        masks = [engine.feasible(signature) for signature in by_signature]
        counts = [
            np.where(mask, _times(free, request[columns]), 0) for mask, request in zip(masks, wanted, strict=True)
        ]
        #: The most pods of one kind per node.
        self._most: Amounts = np.maximum.reduce(counts)
        #: The requests of all pods together.
        self._request: Amounts = np.sum([wanted[kind][columns] for kind in self.kind_of], axis=0)
        self.kinds = [
            PodKind(tuple(request[columns].tolist()), tuple((count > 0).tolist()))
            for request, count in zip(wanted, counts, strict=True)
        ]
        self.free: list[list[int]] = free.tolist()
        self.total: list[list[int]] = self._total.tolist()
        self._places: dict[int, PlanPlace] = {}

    def place(self, tree: HyperNodeTree, number: int) -> PlanPlace:
        """A domain with its nodes."""
        found = self._places.get(number)
        if found is None:
            rows = np.arange(len(self.free)) if number < 0 else tree.rows_of(number)
            is_open = self._most[rows] > 0
            closed = rows[~is_open]
            amounts = zip(
                self._free[closed].sum(axis=0).tolist(), self._total[closed].sum(axis=0).tolist(), strict=True
            )
            tier = _CLUSTER_TIER if number < 0 else int(tree.tiers[number])
            found = self._places[number] = PlanPlace(number, tier, tuple(rows[is_open].tolist()), tuple(amounts))
        return found

    def most_pods(self, place: PlanPlace) -> int:
        """Upper bound on the number of pods that fit."""
        return int(self._most[list(place.nodes)].sum())

    def fullness(self, place: PlanPlace) -> float:
        """The mean utilization of requested resources with all pods, 0 to 1; 0 where they do not fit."""
        nodes = list(place.nodes)
        free = self._free[nodes].sum(axis=0) + [amount for amount, _ in place.closed]
        total = self._total[nodes].sum(axis=0) + [amount for _, amount in place.closed]
        return fullness(free, total, self._request)


def _times(free: Amounts, request: Amounts) -> Amounts:
    """How often a request fits each row of free amounts."""
    columns = np.flatnonzero(request)
    found: Amounts = np.maximum((free[:, columns] // request[columns]).min(axis=1, initial=1 << 30), 0)
    return found
