"""Places the pods of a job close to each other in the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from capcard_sched.framework.api.arguments import NO_DOMAIN_LIMIT
from capcard_sched.framework.api.node_hooks import CANDIDATES, OTHER_NODES, score
from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.framework.placement.hypernode_bounds import placed_by_hyper_node
from capcard_sched.model.resources import CPU, MEMORY

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    import numpy.typing as npt

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.placement.hypernode_bounds import HyperNodeRows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]


class Fullness:
    """Allocatable and used amounts below each HyperNode, int64 [HyperNodes, resources]; valid for one session."""

    def __init__(self, session: Session, weights: Mapping[str, int], fading: float) -> None:
        """`weights`: resource to its relative weight; other resources do not count. `fading`: as in `faded`."""
        self._table = session.nodes
        self._tree = tree = session.snapshot.tree
        #: HyperNodes of a tier and their parents, from the highest tier: parents are of higher tiers.
        self._tiers = [(np.array(found), tree.parents[found]) for found in reversed(tree.by_tier.values())]
        self._fading = float(fading) ** np.maximum(tree.tiers - 1, 0).astype(np.float64)
        total = self._summed_down(self._fading)
        self._fading_sums = np.where(total > 0, total, 1.0)
        columns = session.resources
        found = [(columns.find(name), weight) for name, weight in weights.items() if weight > 0]
        #: Column and weight of the resources that count and exist in the cluster.
        self._weights = [(column, weight) for column, weight in found if column is not None]
        self._capacity = self._under(self._table.allocatable)
        self._seen = self._table.used.copy()
        self._used = self._under(self._seen)
        self._serial = self._table.serial

    def _under(self, amounts: Ints) -> Ints:
        tree = self._tree
        totals = np.zeros((len(tree), amounts.shape[1]), dtype=np.int64)
        inside = np.flatnonzero(tree.leaf >= 0)
        np.add.at(totals, tree.leaf[inside], amounts[inside])
        for number, above in enumerate(tree.parents.tolist()):  # members precede their parents
            if above >= 0:
                totals[above] += totals[number]
        return totals

    def _catch_up(self) -> None:
        table, tree = self._table, self._tree
        if self._serial == table.serial:
            return
        changed = np.flatnonzero(table.stamps > self._serial)
        self._serial = table.serial
        for row in changed.tolist():
            more = table.used[row] - self._seen[row]
            self._seen[row] = table.used[row]
            number = int(tree.leaf[row])
            while number >= 0:
                self._used[number] += more
                number = int(tree.parents[number])

    def with_request(self, request: npt.NDArray[np.int64] | Floats) -> Floats | None:
        """Utilization of each HyperNode with a request (base units, [resources]): float64 [HyperNodes], 0 to 1.

        The weighted mean over the requested resources that count; 0 where one of them does not fit. None without such
        a resource.
        """
        self._catch_up()
        total = np.zeros(len(self._tree))
        fits = np.ones(len(self._tree), dtype=bool)
        weights = 0
        for column, weight in self._weights:
            if column >= len(request) or request[column] <= 0:
                continue
            after, capacity = self._used[:, column] + request[column], self._capacity[:, column]
            fits &= after <= capacity
            total += weight * after / np.maximum(capacity, 1)
            weights += weight
        if not weights:
            return None
        return np.where(fits, total / weights, 0.0)

    def faded(self, request: npt.NDArray[np.int64]) -> Floats | None:
        """The value of a node by its lowest HyperNode: float64 [HyperNodes], 0 to 1; None like `with_request`.

        The mean utilization of all HyperNodes that contain the node; tier `t` has the weight `fading` to the power of
        t - 1.
        """
        utilization = self.with_request(request)
        return None if utilization is None else self._summed_down(self._fading * utilization) / self._fading_sums

    def _summed_down(self, amounts: Floats) -> Floats:
        """For each HyperNode the sum over itself and those that contain it."""
        sums = np.append(amounts, 0.0)  # the last entry is the parent of roots
        for numbers, above in self._tiers:
            sums[numbers] += sums[above]
        return sums[:-1]


MAX_SCORE: Final = 100.0
RESOURCES_KEY: Final = "hypernode.binpack.resources"
_MOST_EVICTED: Final = "hypernode.gradient.evict.max-hypernodes"

#: Relative weight; 0 disables the resource, a negative value is replaced by the default.
Weight: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class NetworkTopologyArguments(msgspec.Struct, frozen=True):
    """Arguments of network-topology-aware."""

    #: Score multiplier; 0 disables.
    weight: int = 1
    #: Relative weight of cpu in the utilization of HyperNodes.
    cpu: Weight = msgspec.field(name="hypernode.binpack.cpu", default=1)
    #: Relative weight of memory.
    memory: Weight = msgspec.field(name="hypernode.binpack.memory", default=1)
    #: Comma-separated names of further resources.
    resources: str = msgspec.field(name=RESOURCES_KEY, default="")
    #: Relative weight of each of them, 1 by default.
    resource_weights: dict[str, Weight] = msgspec.field(name=f"{RESOURCES_KEY}.<name>", default_factory=dict)
    #: Whether pods without a network topology also prefer fuller HyperNodes. They are then placed one by one.
    normal_pods: bool = msgspec.field(name="hypernode.binpack.normal-pod.enable", default=True)
    #: Factor by which the weight decreases with each tier for these pods.
    fading: Annotated[float, msgspec.Meta(ge=0, le=1)] = msgspec.field(
        name="hypernode.binpack.normal-pod.fading", default=0.8
    )
    #: Accepted for compatibility, ignored with a warning: victims are searched for in up to 64 HyperNodes.
    most_evicted: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name=_MOST_EVICTED, default=8)


class Context(NamedTuple):
    """The plugin's part of the signature of a pod that it scores."""

    #: Job key, "" while no pod of the job is placed.
    job: str
    #: Number of the lowest HyperNode that contains the placed pods of the job; -1 for none.
    anchor: int


#: The first pod of a job has no preference; the following pods are placed one by one.
_FIRST = Context("", -1)
#: Pods of jobs without a network topology.
_NORMAL = Context("", -2)


class NetworkTopologyAware(Plugin):
    """Prefers nodes close to the placed pods of a job, for PodGroups with `spec.networkTopology`.

    A node in the HyperNode of the job scores 100, other nodes less with each tier up to the common HyperNode; among
    several best nodes, those with more pods of the job in their HyperNode score higher. `mode: hard` is enforced with
    or without the plugin.

    For jobs in hard mode the plugin prefers the fuller of the HyperNodes that fit. Pods without a network topology
    prefer nodes in fuller HyperNodes, and nodes in no HyperNode most.
    """

    name = "network-topology-aware"
    Arguments = NetworkTopologyArguments
    arguments: NetworkTopologyArguments
    reads = Reads.TREE

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> NetworkTopologyArguments:
        """Reads `hypernode.binpack.resources.<name>` of listed names; other names are ignored with a warning."""
        if raw.get(_MOST_EVICTED) is not None:
            problems.warning(_MOST_EVICTED, NO_DOMAIN_LIMIT)
        return problems.decode_weighted(NetworkTopologyArguments, raw, RESOURCES_KEY, Weight)

    def open(self, session: Session) -> None:
        """Read the tree. Placed pods and the utilization of HyperNodes are counted on first use."""
        self._session = session
        self._tree: HyperNodeTree = session.snapshot.tree
        self._fullness: Fullness | None = None
        #: Job key to its number of placed pods by lowest HyperNode.
        self._placed: dict[str, Counter[int]] = {}

    def _placed_pods(self, job: Job) -> Counter[int]:
        found = self._placed.get(job.key)
        if found is None:
            found = self._placed[job.key] = placed_by_hyper_node(self._tree, job)
        return found

    def _full(self) -> Fullness:
        if self._fullness is None:
            given = self.arguments
            weights = {**given.resource_weights, CPU: given.cpu, MEMORY: given.memory}
            self._fullness = Fullness(self._session, weights, given.fading)
        return self._fullness

    def signature(self, queue: Queue, task: Task) -> Context | None:
        """The job and its anchor. Pods of a job restricted to the lowest tier have no preference."""
        job = task.job
        if job is None or not self._tree.ready:
            return None
        if job.topology is not None and job.topology.label:
            return None
        if job.topology is None:
            return _NORMAL if self.arguments.normal_pods else None
        if job.topology.hard:
            highest = job.topology.allowed(self._tree)
            if highest is None or highest <= self._tree.tiers[0]:
                return None
        anchor = self._tree.common(sorted(number for number, pods in self._placed_pods(job).items() if pods))
        return Context(job.key, anchor) if anchor >= 0 else _FIRST

    def _follows_pods(self, signature: PodSignature) -> bool:
        """Whether the placement of one pod changes the scores of the next."""
        return signature.context(self.name) not in (None, _NORMAL)

    def _is_normal(self, signature: PodSignature) -> bool:
        return bool(signature.context(self.name) == _NORMAL)

    @score(reads=OTHER_NODES, when=_follows_pods)
    def score_nearness(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        """0 to 200 x `weight` per row; None while no pod of a job with a network topology is placed."""
        context = signature.context(self.name)
        if not isinstance(context, Context) or not context.job or not self.arguments.weight:
            return None
        job = self._session.jobs.get(context.job)
        if job is None:
            return None
        leaf = candidates.take(self._tree.leaf)
        scores = np.append(nearness(self._tree, context.anchor), 0.0)[leaf]
        best = scores == scores.max(initial=0.0)
        if np.count_nonzero(best) > 1:
            pods = np.zeros(len(self._tree) + 1)  # the last entry is for nodes in no HyperNode
            for number, count in self._placed_pods(job).items():
                pods[number] = count
            pods[-1] = 0.0
            scores = scores + np.where(best, MAX_SCORE * pods[leaf] / len(job.tasks), 0.0)
        weighted: Scores = scores * self.arguments.weight
        return weighted

    @score(reads=CANDIDATES, when=_is_normal)
    def score_fullness(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        """0 to 100 x `weight` per row by the utilization of its HyperNodes; 100 for nodes in none."""
        faded = self._full().faded(signature.cls.request) if self.arguments.weight else None
        if faded is None:
            return None
        worth = np.append(faded, 1.0)
        scores: Scores = MAX_SCORE * self.arguments.weight * worth[candidates.take(self._tree.leaf)]
        return scores

    def hyper_node_order(self, job: Job, candidates: tuple[HyperNodeRows, ...]) -> Scores | None:
        """0 to 100 x `weight`: the utilization of each HyperNode with the pods that the job still needs.

        None for values of a node label.
        """
        pending = job.pending.values()
        if not pending or (job.topology is not None and job.topology.label) or not self.arguments.weight:
            return None
        needed = max(1, job.missing_tasks)
        total = np.sum([task.cls.request for task in pending], axis=0) * (min(needed, len(pending)) / len(pending))
        fullness = self._full().with_request(total)
        if fullness is None:
            return None
        scores: Scores = MAX_SCORE * self.arguments.weight * fullness[[one.number for one in candidates]]
        return scores

    def on_allocate(self, placement: Placement) -> None:
        self._count(placement, +1)

    def on_deallocate(self, placement: Placement) -> None:
        self._count(placement, -1)

    def _count(self, placement: Placement, sign: int) -> None:
        found = self._placed.get(placement.job.key)
        if found is not None:
            leaf_of = self._tree.leaf_of
            for node in placement.nodes:
                found[leaf_of.get(node.name, -1)] += sign


def nearness(tree: HyperNodeTree, anchor: int) -> Scores:
    """Scores of nodes by their lowest HyperNode, for a job placed in `anchor`: float64 [HyperNodes].

    The anchor scores 100, another HyperNode by the tier of the common ancestor: 0 for the highest tier or without one.
    """
    lowest, highest = int(tree.tiers[0]), int(tree.tiers[-1])
    meets = tree.meets(anchor)
    scores = np.zeros(len(tree))
    if highest > lowest:
        joined = meets >= 0
        scores[joined] = MAX_SCORE * (highest - tree.tiers[meets[joined]]) / (highest - lowest)
    scores[anchor] = MAX_SCORE
    return scores
