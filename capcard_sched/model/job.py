"""Jobs, their tasks, and the nodes the tasks are on. The three refer to each other, so they share one module."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.model.annotations import PREEMPTION_POLICY
from capcard_sched.model.cards import CARD
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.status import PodGroupPhase, TaskStatus
from capcard_sched.model.unsupported import gates_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.cooldown import Cooldown
    from capcard_sched.model.group_affinity import GroupTerm
    from capcard_sched.model.groups import GroupPolicy, SubGroups
    from capcard_sched.model.hyper_nodes import NetworkTopology
    from capcard_sched.model.objects import PodGroupCondition, Taint
    from capcard_sched.model.refusal import ExceededLimit
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task_class import TaskClass

#: Shared by all objects whose mapping is empty: most mappings of running pods and jobs are, and 10,000 empty ones take
#: 0.6 MiB. Never changed in place: a writer replaces it.
NO_ENTRIES: Final[Mapping[str, Any]] = {}
_CLASS: Final = attrgetter("cls")

#: Jobs with equal figures share them: 10,000 tuples take 0.6 MiB.
_COUNTS: Final[dict[tuple[int, int, int], tuple[int, int, int]]] = {}
_MOST_COUNTS: Final = 1024


def shared_counts(running: int, succeeded: int, failed: int) -> tuple[int, int, int]:
    """`Job.status_counts`."""
    if len(_COUNTS) > _MOST_COUNTS:
        _COUNTS.clear()
    found = running, succeeded, failed
    return _COUNTS.setdefault(found, found)


def _no_entries() -> Mapping[str, Any]:
    return NO_ENTRIES


#: Seconds. Kubernetes' default of `terminationGracePeriodSeconds`.
GRACE_SECONDS: Final = 30

#: PriorityClasses that count on jobs of this namespace only.
CRITICAL_CLASSES: Final = frozenset({"system-cluster-critical", "system-node-critical"})
SYSTEM_NAMESPACE: Final = "kube-system"
#: The uid of jobs of pods that name no PodGroup.
IMPLICIT: Final = "implicit"

_READY = (TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.RUNNING, TaskStatus.ALLOCATED, TaskStatus.SUCCEEDED)
_PIPELINED = (*_READY, TaskStatus.PIPELINED)
#: Of tasks whose binding the API server has.
_CONFIRMED = (
    *(TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.RELEASING),
    *(TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.UNKNOWN),
)
_VALID = (*_PIPELINED, TaskStatus.PENDING)
#: The obstacle of a pod whose latest object is invalid.
_UNDECODABLE: Final = "the object cannot be decoded"


class BackedResource(NamedTuple):
    """An extended resource of a node that a DeviceClass offers by devices of ResourceSlices."""

    #: Devices that the class matches, whether in use or not. A shared device counts as one.
    devices: int
    #: Card of dedicated devices among them to their number, sorted.
    cards: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One node. Its amounts are in the state's columns at `row`; labels, taints and tasks are here.

    A node that a pod names and the API server does not list is a placeholder: `known` is False, `row` is -1, and its
    tasks are kept until the node (re)appears.
    """

    name: str
    uid: str = ""
    known: bool = False
    #: Row in the node columns; rows are in order of node name whenever a session is open.
    row: int = -1
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Base units, every resource the node names.
    allocatable: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    #: The extended resources that the node offers by DRA: `allocatable` has none of them.
    backed: Mapping[str, BackedResource] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    #: Image name to size in bytes.
    images: Mapping[str, int] = field(default_factory=dict)
    #: `status.declaredFeatures`.
    features: frozenset[str] = frozenset()
    created: float = 0.0
    #: Increases whenever labels, annotations, taints, images, features, unschedulable, allocatable or `backed` change.
    generation: int = 0
    resource_version: str = ""
    #: Tasks that occupy the node, of any scheduler, by uid.
    tasks: dict[str, Task] = field(default_factory=dict)
    #: Keys of bound pods whose requests are unknown: the node accepts no new pods.
    undecodable_pods: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        return f"Node({self.name}, row={self.row})"


def offered_amounts(node: Node) -> Mapping[str, int]:
    """The amounts of a node, in base units, with those that its devices provide."""
    if not node.backed:
        return node.allocatable
    return {**node.allocatable, **{name: each.devices * CARD for name, each in node.backed.items()}}


def backed_cards(node: Node) -> dict[str, tuple[int, str]]:
    """Card to (thousandths, resource name) of the extended resources that a node offers by devices."""
    return {card: (devices * CARD, resource) for resource, each in node.backed.items() for card, devices in each.cards}


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """One pod. Owned by the state; plugins and actions read it and never write it."""

    uid: str
    namespace: str
    name: str
    cls: TaskClass
    #: Labels; equal label sets share one mapping.
    labels: Mapping[str, str] = field(default_factory=_no_entries)
    #: None for a pod that belongs to no group.
    job: Job | None = None
    #: `volcano.sh/task-spec`: the role inside the job, "" when unset.
    role: str = ""
    status: TaskStatus = TaskStatus.PENDING
    #: The node it occupies (placed statuses) or is nominated to (PIPELINED), else None.
    node: Node | None = None
    #: `spec.priority`, default 1; overridden by `volcano.sh/task-priority`.
    priority: int = 1
    #: Pod annotation or label `volcano.sh/preemptable`; None when unset (the PodGroup decides, default True).
    preemptable: bool | None = None
    #: Pod label or annotation `volcano.sh/cooldown-time` with the times it counts from; None when the pod has neither.
    cooldown: Cooldown | None = None
    #: Has scheduling gates of other components, or uses what is not supported: never placed, never counted.
    gated: bool = False
    #: Its binding failed: in backoff until a BindRetry.
    held: bool = False
    #: Has a deletion timestamp.
    deleting: bool = False
    #: Seconds of its termination grace period.
    grace: int = GRACE_SECONDS
    #: `spec.schedulerName` is one of ours.
    ours: bool = True
    #: `spec.nodeName` is set. Job, card annotations and owner are fixed from the commit of the binding on: later edits
    #: of the object do not change them.
    bound: bool = False
    #: Unix seconds.
    created: float = 0.0
    #: Number after the last dash of a name of three parts or more, else -1.
    index: int = -1
    nominated_node: str = ""
    #: `volcano.sh/card.assigned`, "" when unset.
    assigned_card: str = ""
    #: The pod's annotations of `annotations.DEVICE_ANNOTATIONS`: its devices, and how far they are set up.
    device_notes: Mapping[str, str] = field(default_factory=_no_entries)
    #: Names of its scheduling gates. The scheduler itself removes the queue allocation gate.
    gates: tuple[str, ...] = ()
    #: Features it uses that are not supported, as a sentence; "" for none.
    unsupported: str = ""
    #: `status.reason` of a failed pod, else "".
    failure: str = ""
    #: Unix seconds of the deletion timestamp: the end of its grace period; 0.0 without one.
    ends: float = 0.0
    #: Name of the claim for its extended resources in its status, "" for none. The API server keeps it there.
    extended_claim: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def alike(self, uid: str, name: str, node: Node | None, *, created: float, index: int) -> Task:
        """A pod of the same workload and status."""
        return Task(
            uid, self.namespace, name, self.cls, self.labels, self.job, self.role, self.status, node, self.priority,
            self.preemptable, self.cooldown, self.gated, self.held, self.deleting, self.grace, self.ours, self.bound,
            created, index, self.nominated_node, self.assigned_card, self.device_notes, self.gates, self.unsupported,
            self.failure, self.ends, self.extended_claim,
        )  # fmt: skip

    @property
    def may_preempt(self) -> bool:
        """Whether the preemption policies of the pod and of its group allow evictions for it."""
        of_group = self.job.annotations.get(PREEMPTION_POLICY) if self.job is not None else None
        return self.cls.may_preempt and of_group != "Never"

    @property
    def obstacle(self) -> str:
        """What excludes a gated task from scheduling: `scheduling gate a`; "" for another task."""
        if not self.gated:
            return ""
        return self.unsupported or gates_text(self.gates) or _UNDECODABLE

    def __repr__(self) -> str:
        return f"Task({self.key}, {self.status.name})"


@dataclass(slots=True, eq=False, repr=False)
class Job:
    """One PodGroup and its tasks. Owned by the state, which keeps the counters exact at every change."""

    #: `namespace/name` of the PodGroup.
    key: str
    #: Sum of requests of tasks in allocated statuses: int64 [resource columns].
    allocated: Vector
    #: Sum of requests of all tasks.
    total_request: Vector
    #: Sum of requests of bound tasks that are not allocated (RELEASING, UNKNOWN): they occupy their node until the
    #: object is finished or deleted.
    releasing: Vector
    namespace: str = field(init=False)
    name: str = field(init=False)
    #: "" while the PodGroup is missing: sessions schedule no task of such a job. A job whose PodGroup was deleted keeps
    #: its queue while it has bound tasks.
    uid: str = ""
    #: True for the in-memory group of pods that name none.
    implicit: bool = False
    queue: str = ""  # fixed while the job has bound tasks
    min_available: int = 0
    #: Role to minimum; rebuilt at every PodGroup update.
    min_task_member: Mapping[str, int] = field(default_factory=_no_entries)
    #: `spec.minResources` in base units; None when unset.
    min_resources: Mapping[str, int] | None = None
    #: The same under every name as written (`model.limits.quota_amounts`), for ResourceQuotas.
    min_quota: Mapping[str, int] | None = None
    phase: PodGroupPhase = PodGroupPhase.PENDING
    conditions: tuple[PodGroupCondition, ...] = ()
    #: `status.running`, `.succeeded`, `.failed` as last seen or written.
    status_counts: tuple[int, int, int] = (0, 0, 0)
    priority_class_name: str = ""
    #: Value of the PriorityClass, else of the global default class, else 0.
    priority: int = 0
    created: float = 0.0
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    labels: Mapping[str, str] = field(default_factory=_no_entries)
    #: `spec.networkTopology`; None when unset.
    topology: NetworkTopology | None = None
    #: Terms of `spec.topologyAffinity.podGroupAntiAffinity`.
    anti_affinity: tuple[GroupTerm, ...] = ()
    #: Name of the Job that owns the PodGroup, "" for others.
    owner_job: str = ""
    #: Whether a task joined the job since its PodGroup was created, also when it is gone by now.
    had_tasks: bool = False
    #: The limit of all nodes together that its minimum exceeds, as of the last session: it reserves nothing then.
    node_limit: ExceededLimit | None = None
    #: Whether the minimum was bound at some time since the job last had no bound task: `note_whole`.
    was_whole: bool = False
    #: All tasks by uid, completed ones included.
    tasks: dict[str, Task] = field(default_factory=dict)
    #: PENDING tasks that are neither gated nor held, by uid: `tasks` itself as long as it has no others.
    pending: Mapping[str, Task] = field(default_factory=_no_entries)
    #: PENDING tasks that are gated, by uid.
    gated: Mapping[str, Task] = field(default_factory=_no_entries)
    #: Number of PENDING tasks that request nothing and are not gated.
    pending_best_effort: int = 0
    #: Number of tasks in BOUND_STATUSES on a node.
    bound: int = 0
    #: Tasks per status, indexed by TaskStatus.
    counts: list[int] = field(default_factory=lambda: [0] * len(TaskStatus))
    #: Per role, the same counters plus, at index len(TaskStatus), pending tasks that request nothing.
    #: Kept only while `min_task_member` is not empty.
    roles: Mapping[str, list[int]] = field(default_factory=_no_entries)
    #: The subgroups of `spec.subGroupPolicy` with their counters; None for a job without policies.
    groups: SubGroups | None = None

    def __post_init__(self) -> None:
        namespace, _, self.name = self.key.partition("/")
        self.namespace = intern(namespace)

    @property
    def is_editable(self) -> bool:
        """Whether the job is a PodGroup of Volcano: no implicit one, and no translation."""
        return not self.implicit and not kube_name(self.name)

    @property
    def classes(self) -> set[TaskClass]:
        """The classes of all pods. O(pods)."""
        return set(map(_CLASS, self.tasks.values()))

    def count(self, statuses: Iterable[TaskStatus]) -> int:
        """The number of tasks in one of `statuses`."""
        return sum(map(self.counts.__getitem__, statuses))

    @property
    def ready_tasks(self) -> int:
        """Bound, Binding, Running, Allocated or Succeeded; pending best-effort members are excluded."""
        c = self.counts
        return c[1] + c[3] + c[4] + c[5] + c[7]  # literal indices: every job order key evaluates it

    @property
    def waiting_tasks(self) -> int:
        """Pipelined tasks."""
        return self.counts[2]

    @property
    def valid_tasks(self) -> int:
        """Tasks that run, may run, or have succeeded."""
        c = self.counts
        return c[0] + c[1] + c[2] + c[3] + c[4] + c[5] + c[7]

    @property
    def allocated_tasks(self) -> int:
        """Tasks in allocated statuses."""
        c = self.counts
        return c[1] + c[3] + c[4] + c[5]

    @property
    def missing_tasks(self) -> int:
        """Members that the job lacks for `minMember`, best-effort ones counted as placed; below 0 beyond it."""
        return self.min_available - self.ready_tasks - self.pending_best_effort

    @property
    def starting_pods(self) -> int:
        """The pods without which the job does not start, by its own minimum and those of its subgroups."""
        return self.min_available if self.groups is None else max(self.min_available, self.groups.least_pods)

    def is_ready(self) -> bool:
        """Enough members are placed; best-effort members count as placed."""
        c = self.counts
        if c[1] + c[3] + c[4] + c[5] + c[7] + self.pending_best_effort < self.min_available:
            return False
        return self.groups is None or self.groups.reach(_READY, best_effort=True)

    def note_whole(self) -> None:
        """Record that the whole minimum is bound, after tasks or the minimum changed. A PodGroup must exist."""
        if self.was_whole or not (self.bound and self.uid):
            return
        c = self.counts
        confirmed = self.bound - c[TaskStatus.BINDING] + c[TaskStatus.SUCCEEDED] + c[TaskStatus.FAILED]
        if confirmed + self.pending_best_effort >= self.min_available:
            self.was_whole = self._roles_reach(_CONFIRMED, best_effort=True) and (
                self.groups is None or self.groups.reach(_CONFIRMED, best_effort=True)
            )

    def is_partial(self) -> bool:
        """Whether the job has bound tasks, and fewer than its minimum."""
        return self.bound > 0 and not (self.is_ready() and self.roles_ready())

    def is_pipelined(self) -> bool:
        """Enough members are placed or nominated to releasing capacity."""
        if self.waiting_tasks + self.ready_tasks + self.pending_best_effort < self.min_available:
            return False
        return self.groups is None or self.groups.reach(_PIPELINED, best_effort=True)

    def is_starving(self) -> bool:
        """Below the minimum. Best-effort members do not count, so that they can preempt.

        Of a job with subgroups, all its minimums count.
        """
        if self.waiting_tasks + self.ready_tasks < self.min_available:
            return True
        return self.groups is not None and not (
            self.groups.reach(_PIPELINED, best_effort=False) and self._roles_reach(_PIPELINED, best_effort=False)
        )

    @property
    def policies(self) -> tuple[GroupPolicy, ...]:
        """`spec.subGroupPolicy`; () for a job without subgroups."""
        return () if self.groups is None else self.groups.policies

    @property
    def has_topology(self) -> bool:
        """Whether the job, or one of its policies, has a network topology."""
        return self.topology is not None or (self.groups is not None and self.groups.has_topology)

    @property
    def checks_roles(self) -> bool:
        """Whether per-role minimums apply: not when their sum exceeds the gang minimum."""
        return bool(self.min_task_member) and self.min_available >= sum(self.min_task_member.values())

    def _roles_reach(self, statuses: tuple[TaskStatus, ...], best_effort: bool) -> bool:
        if not (self.min_task_member and self.checks_roles):
            return True
        for role, minimum in self.min_task_member.items():
            if minimum <= 0:
                continue
            counts = self.roles.get(role)
            if counts is None:
                return False
            reached = sum(counts[status] for status in statuses)
            if best_effort:
                reached += counts[len(TaskStatus)]
            if reached < minimum:
                return False
        return True

    def needs_gated(self) -> bool:
        """Whether the minimum, in total, of a role or of subgroups, is out of reach without gated tasks."""
        if not self.gated:
            return False
        if self.valid_tasks - len(self.gated) < self.min_available:
            return True
        if self.groups is not None and self.groups.need(self.gated):
            return True
        if not (self.min_task_member and self.checks_roles):
            return False
        gated = Counter(task.role for task in self.gated.values())
        return any(
            sum(self.roles[role][status] for status in _VALID) - count < self.min_task_member.get(role, 0)
            for role, count in gated.items()
        )

    def needs_unsupported(self) -> bool:
        """As `needs_gated`, with pods whose obstacle is an unsupported feature."""
        return self.needs_gated() and any(task.unsupported for task in self.gated.values())

    def missing_of_roles(self, *, pipelined: bool = False) -> dict[str, int]:
        """By role, the number of placed members below its minimum; only roles whose minimum counts and is not met.

        `pipelined`: nominated members count as placed.
        """
        if not (self.min_task_member and self.checks_roles):
            return {}
        found, counted = {}, (*(_PIPELINED if pipelined else _READY), len(TaskStatus))
        for role, minimum in self.min_task_member.items():
            counts = self.roles.get(role)
            placed = 0 if counts is None else sum(counts[status] for status in counted)
            if placed < minimum:
                found[role] = minimum - placed
        return found

    def roles_valid(self) -> bool:
        """Each role has at least its minimum of live tasks."""
        return self._roles_reach(_VALID, best_effort=False)

    def roles_ready(self) -> bool:
        """Each role has its minimum placed."""
        return self._roles_reach(_READY, best_effort=True)

    def roles_pipelined(self) -> bool:
        """Each role has its minimum placed or nominated."""
        return self._roles_reach(_PIPELINED, best_effort=True)

    def role_pipelined(self, role: str) -> int:
        """The number of placed or nominated members of a role; 0 when the job counts no roles."""
        counts = self.roles.get(role)
        return 0 if counts is None else sum(counts[status] for status in _PIPELINED)

    def __repr__(self) -> str:
        return f"Job({self.key}, {self.phase.value}, min={self.min_available}, tasks={len(self.tasks)})"


def unoffered_amounts(tasks: Iterable[Task]) -> Counter[str]:
    """What pods request of resources without a column, in base units: no node offers them."""
    found: Counter[str] = Counter()
    for task in tasks:
        if task.cls.unoffered:
            found.update({name: task.cls.requests[name] for name in task.cls.unoffered})
    return found
