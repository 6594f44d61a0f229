"""The plugin: scores of nodes and HyperNodes (plugins reference §22, §28)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from capcard_sched.framework.api.arguments import listed_names
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.placement.hypernode_bounds import placed_by_hyper_node
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.network_topology_aware.fullness import Fullness, faded

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.placement.hypernode_bounds import HyperNodeRows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task

MAX_SCORE: Final = 100.0
RESOURCES_KEY: Final = "hypernode.binpack.resources"

#: Shares a total of weights; 0 leaves a resource out, a negative one is refused in favour of the default.
Weight: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class NetworkTopologyArguments(msgspec.Struct, frozen=True):
    """Arguments as users write them."""

    #: Times the scores; 0 scores nothing.
    weight: int = 1
    #: How much cpu counts where HyperNodes are filled up one after the other.
    cpu: Weight = msgspec.field(name="hypernode.binpack.cpu", default=1)
    #: The same for memory.
    memory: Weight = msgspec.field(name="hypernode.binpack.memory", default=1)
    #: Names of further resources that count, separated by commas.
    resources: str = msgspec.field(name=RESOURCES_KEY, default="")
    #: The weight of each of them, 1 when not given.
    resource_weights: dict[str, Weight] = msgspec.field(name=f"{RESOURCES_KEY}.<name>", default_factory=dict)
    #: Whether pods without a network topology fill HyperNodes up, too. They are then placed one by one.
    normal_pods: bool = msgspec.field(name="hypernode.binpack.normal-pod.enable", default=True)
    #: How much less each further tier counts for them.
    fading: Annotated[float, msgspec.Meta(ge=0, le=1)] = msgspec.field(
        name="hypernode.binpack.normal-pod.fading", default=0.8
    )


class Context(NamedTuple):
    """What the plugin puts into the profile of a pod that it scores."""

    #: Key of the job, "" while nothing of it is placed.
    job: str
    #: Number of the lowest HyperNode that contains what is placed of the job; -1 for none.
    anchor: int


#: The first pod of a job goes anywhere; those after it are placed one by one.
_FIRST = Context("", -1)
#: Pods of jobs that ask for no network topology.
_NORMAL = Context("", -2)


class NetworkTopologyAware(Plugin):
    """Prefers nodes near to the pods that a job has placed already, for jobs whose PodGroup has `spec.networkTopology`.

    A node in the HyperNode of the job scores 100, others the less the higher the tier that joins them with it; among
    several best nodes those count more whose HyperNode has more pods of the job. What `mode: hard` forbids is forbidden
    with or without the plugin.

    Among HyperNodes that have room for a job in hard mode the fuller ones are preferred. Pods without a topology prefer
    nodes in fuller ones, and most of all nodes in none.
    """

    name = "network-topology-aware"
    Arguments = NetworkTopologyArguments
    arguments: NetworkTopologyArguments
    follows_tree = True

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> NetworkTopologyArguments:
        """Reads `hypernode.binpack.resources.<name>` of listed names too; of others it is ignored with a warning."""
        arguments = problems.decode_weighted(NetworkTopologyArguments, raw, RESOURCES_KEY, Weight)
        assert isinstance(arguments, NetworkTopologyArguments)
        return arguments

    def open(self, session: Session) -> None:
        """Take up the tree. What is placed of a job, and how full HyperNodes are, is counted when first asked for."""
        self._session = session
        self._tree: HyperNodeTree = session.tree
        self._fullness: Fullness | None = None
        #: Job key to how many of its pods are placed, by lowest HyperNode.
        self._placed: dict[str, Counter[int]] = {}

    def _standing(self, job: Job) -> Counter[int]:
        found = self._placed.get(job.key)
        if found is None:
            found = self._placed[job.key] = placed_by_hyper_node(self._tree, job)
        return found

    def _full(self) -> Fullness:
        if self._fullness is None:
            given = self.arguments
            named = {name: given.resource_weights.get(name, 1) for name in listed_names(given.resources)}
            self._fullness = Fullness(self._session, {**named, CPU: given.cpu, MEMORY: given.memory})
        return self._fullness

    # --- what a profile is ------------------------------------------------------------------------------------------

    def task_context(self, task: Task) -> Context | None:
        """Pods of a job that may not leave the lowest tier are as near as can be: nothing to prefer."""
        job = task.job
        if job is None or not self._tree.ready:
            return None
        if job.topology is None:
            return _NORMAL if self.arguments.normal_pods else None
        if job.topology.hard:
            highest = job.topology.allowed(self._tree)
            if highest is None or highest <= self._tree.tiers[0]:
                return None
        anchor = self._tree.common(sorted(number for number, pods in self._standing(job).items() if pods))
        return Context(job.key, anchor) if anchor >= 0 else _FIRST

    def domain_bound(self, profile: PodSignature) -> bool:
        """Where one pod goes decides where the next would rather be."""
        return profile.context(self.name) not in (None, _NORMAL)

    # --- scores -----------------------------------------------------------------------------------------------------

    def batch_node_order(self, profile: PodSignature, candidates: NodeView) -> Scores | None:
        """0 to 200 x `weight` per row; None while nothing of a job with a network topology is placed."""
        context = profile.context(self.name)
        if context == _NORMAL:
            return self._filling(profile, candidates)
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
            for number, count in self._standing(job).items():
                pods[number] = count
            pods[-1] = 0.0
            scores = scores + np.where(best, MAX_SCORE * pods[leaf] / len(job.tasks), 0.0)
        weighted: Scores = scores * self.arguments.weight
        return weighted

    def _filling(self, profile: PodSignature, candidates: NodeView) -> Scores | None:
        """0 to 100 x `weight` per row by how full the HyperNodes around it are; 100 where there is none."""
        fullness = self._full().with_request(profile.cls.request) if self.arguments.weight else None
        if fullness is None:
            return None
        worth = np.append(faded(self._tree, fullness, self.arguments.fading), 1.0)
        scores: Scores = MAX_SCORE * self.arguments.weight * worth[candidates.take(self._tree.leaf)]
        return scores

    def hyper_node_order(self, job: Job, candidates: tuple[HyperNodeRows, ...]) -> Scores | None:
        """0 to 100 x `weight`: how full what the job still needs would make each HyperNode."""
        pending = job.pending.values()
        if not pending or not self.arguments.weight:
            return None
        needed = max(1, job.min_available - job.ready_tasks - job.pending_best_effort)
        total = np.sum([task.cls.request for task in pending], axis=0) * (min(needed, len(pending)) / len(pending))
        fullness = self._full().with_request(total)
        if fullness is None:
            return None
        scores: Scores = MAX_SCORE * self.arguments.weight * fullness[[one.number for one in candidates]]
        return scores

    # --- events -----------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        """Count pods that were placed."""
        self._count(placement, +1)

    def on_deallocate(self, placement: Placement) -> None:
        """Uncount pods that were taken off."""
        self._count(placement, -1)

    def _count(self, placement: Placement, sign: int) -> None:
        found = self._placed.get(placement.job.key)
        if found is not None:
            leaf_of = self._tree.leaf_of
            for node in placement.nodes:
                found[leaf_of.get(node.name, -1)] += sign


def nearness(tree: HyperNodeTree, anchor: int) -> Scores:
    """Scores of nodes by the lowest HyperNode they are in, for a job that stands in `anchor`: float64 [HyperNodes].

    The HyperNode itself scores 100, another by the tier where it joins it: 0 for the highest, 0 where it never does.
    """
    lowest, highest = int(tree.tiers[0]), int(tree.tiers[-1])
    meets = tree.meets(anchor)
    scores = np.zeros(len(tree))
    if highest > lowest:
        joined = meets >= 0
        scores[joined] = MAX_SCORE * (highest - tree.tiers[meets[joined]]) / (highest - lowest)
    scores[anchor] = MAX_SCORE
    return scores
