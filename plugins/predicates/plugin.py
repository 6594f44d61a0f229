"""The predicates plugin: maps its hooks to the checks of this package."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_PODS, NODE_SPEC, OTHER_NODES, filter, score
from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.framework.api.place_limits import SELECTED_NODES, PlaceLimit
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.toolkit.node_index import NodeIndex
from capcard_sched.model.refusal import Code, Refusal
from capcard_sched.model.selectors import UNSCHEDULABLE_TAINT, is_tolerated
from capcard_sched.plugins.predicates.arguments import (
    MOVED_KEYS,
    SHAPE_KEY,
    PredicatesArguments,
)
from capcard_sched.plugins.predicates.claim_rules import ClaimRules, PodClaims
from capcard_sched.plugins.predicates.rule_book import PodRules, RuleBook
from capcard_sched.plugins.predicates.topology_spread import HostPorts, reject_by_pods, reject_skewed
from capcard_sched.plugins.predicates.volume_rules import PodVolumes, VolumeRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import msgspec

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.intents import ClaimAllocation, ClaimBinding
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass


POD_NUMBER_EXCEEDED = "node(s) pod number exceeded"
UNSCHEDULABLE = "node(s) were unschedulable"
AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
FEATURE_MISMATCH = "node(s) didn't match Pod's required features"
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


def reject_by_features(index: NodeIndex, cls: TaskClass, rows: NodeView, result: FilterResult) -> None:
    """Reject nodes that do not declare a feature that the pod requires."""
    if cls.required_features:
        result.reject(~rows.take(index.declaring(cls.required_features)), Code.UNRESOLVABLE, FEATURE_MISMATCH)


def reject_full(rows: NodeView, result: FilterResult) -> None:
    """Reject nodes at their maximum number of pods. Terminating pods do not count, so that a pod can be nominated."""
    full = rows.used[:, 2] >= rows.allocatable[:, 2]
    if full.any():
        full = rows.used[:, 2] - rows.releasing[:, 2] >= rows.allocatable[:, 2]
        result.reject(full, Code.UNSCHEDULABLE, POD_NUMBER_EXCEEDED)


class PodContext(NamedTuple):
    """The plugin's part of a pod signature."""

    rules: PodRules | None
    volumes: PodVolumes | None
    claims: PodClaims | None = None

    @property
    def shared(self) -> PodContext:
        """The context without the names of generated claims: equal ones allow and rank nodes alike."""
        return self if self.claims is None else self._replace(claims=self.claims.shared)


_NOTHING = PodContext(None, None)
_VOLCANO_KEYS = ("Utilization", "Score")


class Predicates(Plugin):
    """Filters nodes as kube-scheduler does."""

    name = "predicates"
    Arguments = PredicatesArguments
    arguments: PredicatesArguments

    def setup(self) -> None:
        self._enabled = self.arguments
        self._index = NodeIndex(())
        self._ports = HostPorts()
        self._rules = RuleBook(self._enabled)
        self._volumes = VolumeRules(self._enabled)
        self._claims = ClaimRules(self._enabled.device_binding_timeout)
        self.supports_claims = self._enabled.dynamic_resources
        #: The diagnosis whose nodes were already checked for their number of pods.
        self._counted: Diagnosis | None = None

    def open(self, session: Session) -> None:
        self._index = self._index.renewed(session)
        self._claimed_resource = session.snapshot.claimed_resource
        self._counted = None
        if self._enabled.node_ports:
            self._ports.open(session)
        self._rules.open(session, self._index)
        self._volumes.open(session, self._index)
        self._claims.open(session)

    def close(self, session: Session) -> None:
        self._counted = None

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> msgspec.Struct:
        raw = {**raw, SHAPE_KEY: _lower_case(raw[SHAPE_KEY])} if SHAPE_KEY in raw else raw
        moved = {key: plugin for key in raw for prefix, plugin in MOVED_KEYS if key.startswith(prefix)}
        arguments = problems.decode(PredicatesArguments, raw, handled=moved)
        for key, plugin in moved.items():
            problems.warning(key, "moved to another plugin", hint=f"it is an argument of plugin {plugin}")
        shape = arguments.volume_binding_shape or ()
        if any(left.utilization >= right.utilization for left, right in pairwise(shape)):
            problems.error("volumebinding.shape", "the utilization of the points must increase")
        return arguments

    def signature(self, queue: Queue, task: Task) -> PodContext | None:
        rules = self._rules.of(task)
        volumes = self._volumes.of(task)
        claims = self._claims.of(task)
        return None if rules is None and volumes is None and claims is None else PodContext(rules, volumes, claims)

    def _context(self, signature: PodSignature) -> PodContext:
        return signature.context(self.name) or _NOTHING

    def _reads_pods(self, signature: PodSignature) -> bool:
        if signature.cls.host_ports and self._enabled.node_ports:
            return True
        if signature.context(self.name) is None:
            return False
        volumes = self._context(signature).volumes
        return (volumes is not None and self._volumes.is_limited(volumes)) or self._searches_single_nodes(signature)

    def _searches_single_nodes(self, signature: PodSignature) -> bool:
        """Whether devices are searched on the nodes that changed alone: nothing of the pod reads other nodes."""
        claims = self._context(signature).claims
        return claims is not None and claims.needs_devices and not self._reads_other_nodes(signature)

    def _reads_other_nodes(self, signature: PodSignature) -> bool:
        context = signature.context(self.name)
        if context is None:
            return False
        rules, volumes, claims = context
        if rules is not None or (volumes is not None and bool(volumes.open or volumes.exclusive)):
            return True
        return claims is not None and claims.needs_devices and not self._claims.reads_single_nodes(claims)

    def _prefers_volumes(self, signature: PodSignature) -> bool:
        if not self._enabled.volume_binding_shape:
            return False
        volumes = self._context(signature).volumes
        return volumes is not None and bool(volumes.open)

    def _prefers_alternatives(self, signature: PodSignature) -> bool:
        context = signature.context(self.name) if self._enabled.prioritized_list_weight else None
        return context is not None and context.claims is not None and context.claims.has_alternatives

    def pre_predicate(self, signature: PodSignature) -> Refusal | None:
        cls, context = signature.cls, signature.context(self.name)
        error = cls.term_excess or ("" if self.supports_claims else self._claimed_resource(cls))
        if context is None and not error:
            return None
        rules, volumes, claims = context or _NOTHING
        if not error and rules is not None:
            error = rules.error
        if not error and volumes is not None:
            error = volumes.error
        if not error and claims is not None:
            error = claims.error
        if not error:
            return None
        return Refusal("pre_predicate", self.name, "Unschedulable", error, code=Code.UNRESOLVABLE)

    def place_limits(self, tasks: Sequence[Task]) -> Iterator[PlaceLimit]:
        """Node selector and affinity; host ports, (anti-)affinity and spread of the pods among themselves; claims."""
        cls, index = tasks[0].cls, self._index
        if self._enabled.node_affinity and (mask := index.matching(cls)) is not None:
            yield PlaceLimit(SELECTED_NODES, nodes=mask)
        if self._enabled.node_ports and cls.host_ports:
            port, every = cls.host_ports[0].port, np.arange(len(index), dtype=np.intp)
            yield PlaceLimit(f"the nodes have space for {{limit}} with host port {port}", domains=every)
        yield from self._rules.place_limits(tasks)
        if cls.volumes:
            yield from self._volumes.place_limits(tasks[0])
        if cls.claims:
            yield from self._claims.place_limits(tasks)

    def most_pods(self, signature: PodSignature) -> Callable[[NodeView], Vector] | None:
        """By the devices that are free, where pods with claims read the devices of single nodes alone."""
        rules, volumes, claims = self._context(signature)
        if claims is None or rules is not None or volumes is not None or not self._searches_single_nodes(signature):
            return None
        return self._claims.most_pods(claims, signature.cls)

    def further_pods(self, signature: PodSignature) -> Callable[[NodeView], tuple[Vector, Mask]] | None:
        """By the devices that pods with claims of equal content took on equal nodes."""
        rules, volumes, claims = self._context(signature)
        if claims is None or rules is not None or volumes is not None or signature.cls.host_ports:
            return None
        return self._claims.further_pods(claims)

    @filter(reads=NODE_SPEC)
    def filter_by_spec(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        if isinstance(result, Diagnosis):
            # The fit covers the number of pods, as a request includes a pod slot: only a diagnosis needs the reason.
            # It comes first, so that unresolvable nodes report it as well.
            reject_full(rows, result)
            self._counted = result
        cls, index = signature.cls, self._index
        reject_cordoned(index, cls, rows, result)
        if self._enabled.node_affinity:
            reject_by_affinity(index, cls, rows, result)
        if self._enabled.taint_toleration:
            reject_tainted(index, cls, rows, result)
        reject_by_features(index, cls, rows, result)
        volumes = self._context(signature).volumes
        if volumes is not None:
            if isinstance(result, Diagnosis) and self._volumes.is_limited(volumes):
                # As above: nodes that the volumes themselves rule out report the limit as well.
                self._volumes.reject_over_limit(volumes, rows, result)
            self._volumes.reject_fixed(volumes, rows, result)
        claims = self._context(signature).claims
        if claims is not None:
            self._claims.reject_allocated(claims, rows, result)

    @filter(reads=NODE_PODS, when=_reads_pods)
    def filter_by_pods(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        wanted = signature.cls.host_ports
        if wanted and self._enabled.node_ports:
            self._ports.reject(wanted, rows, result)
        _, volumes, claims = self._context(signature)
        if volumes is not None and result is not self._counted and self._volumes.is_limited(volumes):
            self._volumes.reject_over_limit(volumes, rows, result)
        if claims is not None and self._searches_single_nodes(signature):  # last: it is a search
            self._claims.reject_without_devices(claims, rows, result)

    @filter(reads=OTHER_NODES, when=_reads_other_nodes)
    def filter_by_other_nodes(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        rules, volumes, claims = self._context(signature)
        if rules is not None:
            reject_by_pods(self._index, rules, rows, result)
            if rules.spread:
                reject_skewed(self._rules, self._index, signature.cls, rules.spread, rows, result)
        if volumes is not None and volumes.exclusive:
            self._volumes.exclusive.reject(volumes.exclusive, rows, result)
        if volumes is not None and volumes.open:
            self._volumes.reject_without_offer(volumes, rows, result)
        if claims is not None and claims.needs_devices:  # last: it is a search
            self._claims.reject_without_devices(claims, rows, result)

    @score(reads=OTHER_NODES, when=_prefers_volumes)
    def score_volumes(self, signature: PodSignature, candidates: NodeView) -> Scores:
        shape, volumes = self._enabled.volume_binding_shape, self._context(signature).volumes
        assert shape is not None
        assert volumes is not None
        return candidates.take(self._volumes.score(volumes, shape)) * self._enabled.volume_binding_weight

    @score(reads=OTHER_NODES, when=_prefers_alternatives)
    def score_alternatives(self, signature: PodSignature, candidates: NodeView) -> Scores:
        """Higher for the first alternatives of claims; the best node gets 100 times the weight."""
        claims = self._context(signature).claims
        assert claims is not None
        found = self._claims.preferences(claims, candidates)
        best = max(1, int(found.max(initial=0)))
        scores: Scores = found.astype(np.float64) * (100 * self._enabled.prioritized_list_weight / best)
        return scores

    def on_allocate(self, placement: Placement) -> None:
        if placement.cls.host_ports and self._enabled.node_ports:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                self._ports.place(task, node.name)
        self._rules.counters.place(placement)
        cls = placement.cls
        if cls.volumes or cls.inline_volumes:
            self._volumes.place(placement)  # last: it may fail, as the next
        if cls.claims or cls.device_containers:
            self._claims.place(placement)

    def on_deallocate(self, placement: Placement) -> None:
        if placement.cls.host_ports and self._enabled.node_ports:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                self._ports.displace(task, node.name)
        self._rules.counters.displace(placement)
        cls = placement.cls
        if cls.volumes or cls.inline_volumes:
            self._volumes.displace(placement)
        if cls.claims or cls.device_containers:
            self._claims.displace(placement)

    def bind_claims(self, placement: Placement) -> dict[str, tuple[ClaimAllocation, ...]] | None:
        return self._claims.allocations(placement)

    def bind_volumes(self, placement: Placement) -> dict[str, tuple[ClaimBinding, ...]] | None:
        return self._volumes.bindings(placement)


def _lower_case(shape: object) -> object:
    """The points with lower-case keys: Volcano writes `Utilization` and `Score`."""
    if not isinstance(shape, list):
        return shape
    return [
        {key.lower() if key in _VOLCANO_KEYS else key: value for key, value in point.items()}
        if isinstance(point, dict)
        else point
        for point in shape
    ]
