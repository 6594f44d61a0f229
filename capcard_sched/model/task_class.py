"""Equivalence classes of pods: the scheduling-relevant content of a pod template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from capcard_sched.model.in_tree_volumes import AttachmentKey
    from capcard_sched.model.objects import Affinity, HostPort, Toleration, TopologySpreadConstraint
    from capcard_sched.model.pod_claims import PodClaim
    from capcard_sched.model.resources import Vector


#: Sizes of jobs whose requests a class keeps. 10,000 running pods in gangs of 8 take 0.4 MiB less.
_MOST_MULTIPLES: Final = 64


class ContainerAmounts(NamedTuple):
    """Extended resources of one container, as name and thousandths, sorted by name."""

    name: str
    limits: tuple[tuple[str, int], ...]
    requests: tuple[tuple[str, int], ...]
    #: Whether it is an init container, sidecars included.
    init: bool = False
    #: Whether it is an init container that runs as long as the pod.
    sidecar: bool = False
    #: The names of all resources that it requests, cpu and memory included, sorted.
    names: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class PodTemplate:
    """What the spec of a pod contributes to its class."""

    #: Effective request in base units, sorted by name, `pods: 1` included; an explicit 0 is kept.
    requests: Mapping[str, int]
    #: The same over limits, only of resources that some container or the pod limits.
    limits: Mapping[str, int]
    #: cpu and memory with the scheduler's non-zero defaults per container.
    nonzero_cpu_milli: int
    nonzero_memory_bytes: int
    node_selector: Mapping[str, str]
    affinity: Affinity | None
    tolerations: tuple[Toleration, ...]
    spread: tuple[TopologySpreadConstraint, ...]
    #: Sorted, without repetition.
    host_ports: tuple[HostPort, ...]
    #: Image names of init and ordinary containers, in order.
    images: tuple[str, ...]
    #: Claim names of mounted persistent volumes, in order, without repetition.
    volumes: tuple[str, ...]
    #: The claims among them that belong to one pod (generic ephemeral volumes). Their names contain the pod's name, so
    #: the class has that pod alone.
    own_volumes: tuple[str, ...]
    #: In-tree volumes of the pod itself, in order, without repetition.
    inline_volumes: tuple[AttachmentKey, ...]
    priority_class_name: str
    preemption_policy: str
    #: Features that its node must declare, sorted.
    required_features: tuple[str, ...] = ()
    #: None unless the pod's QoS class is Guaranteed; then name and number of CPUs of each container that requests whole
    #: CPUs, which a static CPU manager assigns exclusively.
    own_cpus: tuple[tuple[str, int], ...] | None = None
    #: Every container, init containers last, when some container names an extended resource; else empty.
    device_containers: tuple[ContainerAmounts, ...] = ()
    #: Its ResourceClaims, in order. Names of generated claims belong to one pod, and so does the class.
    claims: tuple[PodClaim, ...] = ()

    @property
    def may_preempt(self) -> bool:
        """Whether the `preemptionPolicy` allows evictions for its pods."""
        return self.preemption_policy != "Never"


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class TaskClass(PodTemplate):
    """Everything in a pod, except its labels, that decides which nodes fit it. Pods of one template share one class.

    Two pending pods of one class get the same feasibility mask and the same scores. The state interns instances:
    compare them with `is`, use them as dictionary keys. Immutable after construction, except for the amounts, which the
    state sets when a resource column is added or devices are accounted otherwise.
    """

    id: int
    #: The namespace when pod (anti-)affinity, topology spread or claims depend on it, else "".
    namespace: str
    #: `requests` as int64 [resource columns], without `unoffered`.
    request: Vector = field(init=False)
    #: `request` without the resources that plugins account for themselves: the amounts a node must have free. With
    #: `unoffered` resources it has more pod slots than any node. int64 [resource columns].
    fit_request: Vector = field(init=False)
    #: Requested resources that have no column: no node offers them, and no queue limits them.
    unoffered: frozenset[str] = field(init=False)
    #: `request` and the two non-zero amounts: int64 [resource columns + 2], the amounts one pod adds to its node.
    charge: Vector = field(init=False)
    #: Requests nothing but its pod slot.
    best_effort: bool
    #: Template-level annotations that plugins read: `model.annotations.CLASS_ANNOTATIONS`.
    annotations: Mapping[str, str]
    #: Kind of the pod's first owner reference, "" without one.
    owner_kind: str
    #: Of pods whose devices fix other amounts than the class: the class before they were placed, and these amounts by
    #: resource, in thousandths.
    unplaced: TaskClass | None = None
    placed: tuple[tuple[str, int], ...] = ()
    #: Number of the classes that differ in the names of generated claims alone; 0 without such claims.
    alike: int = 0
    #: The limit of affinity terms or spread constraints that its pods exceed (`model.term_limits`), "" for none.
    term_excess: str = ""
    #: `request` of several pods by their number, as far as jobs have them: equal jobs share one vector.
    _multiples: dict[int, Vector] = field(init=False)

    def set_request(self, request: Vector) -> None:
        """Set `request`."""
        self.request, self._multiples = request, {1: request}

    def request_of(self, pods: int) -> Vector:
        """`request` of a number of pods, below 0 to subtract them. Not to be changed."""
        found = self._multiples.get(pods)
        if found is None:
            if len(self._multiples) > _MOST_MULTIPLES:
                self._multiples = {1: self.request}
            found = self._multiples[pods] = self.request * pods
        return found

    def changed_sum(self, held: Vector, before: int, pods: int) -> Vector:
        """A sum over `before` pods, with further ones of this class, below 0 to subtract them.

        Sums over pods of this class alone are `request_of` their number, and stay so.
        """
        if before == 0 or held is self._multiples.get(before):
            return self.request_of(before + pods)
        return held + self.request_of(pods)

    def __repr__(self) -> str:
        return f"TaskClass({self.id}, {dict(self.requests)})"


@dataclass(frozen=True, slots=True)
class DeviceAccounting:
    """How a plugin that books devices by itself counts pods: which amounts nodes, queues and jobs are charged."""

    #: Equal versions count every pod alike.
    version: Hashable
    #: Resources that a node need not have free: the plugin decides.
    unfit: frozenset[str]
    #: Resources that count nowhere.
    uncounted: frozenset[str]
    #: Resources that queues limit only where they name them.
    shares: frozenset[str]
    #: The amounts of a class in place of its own, by resource, in thousandths.
    charge: Callable[[TaskClass], Mapping[str, int]]
    #: The amounts that the device annotations of a placed pod of the class fix, by resource, in thousandths.
    placed_charge: Callable[[TaskClass, Mapping[str, str]], Mapping[str, int]]
    #: Registered amounts of the cluster by resource, in thousandths; they count where the nodes offer less.
    totals: Mapping[str, int]


def _own_amounts(_: TaskClass, __: Mapping[str, str] | None = None) -> Mapping[str, int]:
    return {}


#: Without such a plugin: every resource is an ordinary amount.
NO_ACCOUNTING: Final = DeviceAccounting((), frozenset(), frozenset(), frozenset(), _own_amounts, _own_amounts, {})
