"""Jobs: a PodGroup plus its pods, with the gang arithmetic of the core reference §2.4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.status import ALLOCATED_STATUSES, PodGroupPhase, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.hyper_nodes import NetworkTopology
    from capcard_sched.model.objects import PodGroupCondition
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task import Task

_READY = (TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.RUNNING, TaskStatus.ALLOCATED, TaskStatus.SUCCEEDED)
_PROMISED = (*_READY, TaskStatus.PIPELINED)
_VALID = (*_PROMISED, TaskStatus.PENDING)


class Job:
    """One PodGroup and its tasks. Owned by the state, which keeps the counters exact at every change."""

    __slots__ = (
        "allocated",
        "annotations",
        "conditions",
        "counts",
        "created",
        "implicit",
        "key",
        "labels",
        "min_available",
        "min_quota",
        "min_resources",
        "min_task_member",
        "name",
        "namespace",
        "owner_job",
        "pending",
        "pending_best_effort",
        "phase",
        "priority",
        "priority_class_name",
        "queue",
        "roles",
        "status_counts",
        "tasks",
        "topology",
        "total_request",
        "uid",
    )

    #: `namespace/name` of the PodGroup.
    key: str
    namespace: str
    name: str
    #: "" until the PodGroup itself was seen: such a job is invisible to sessions.
    uid: str
    #: True for the in-memory group of a pod that names none.
    implicit: bool
    queue: str
    min_available: int
    #: Role to minimum; rebuilt at every PodGroup update (W-27).
    min_task_member: Mapping[str, int]
    #: `spec.minResources` in base units; None when unset.
    min_resources: Mapping[str, int] | None
    #: The same under every name as written (`model.limits.quota_amounts`), for ResourceQuotas.
    min_quota: Mapping[str, int] | None
    phase: PodGroupPhase
    conditions: tuple[PodGroupCondition, ...]
    #: `status.running`, `.succeeded`, `.failed` as last seen or written.
    status_counts: tuple[int, int, int]
    priority_class_name: str
    #: Value of the PriorityClass, else of the global default class, else 0.
    priority: int
    created: float
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    #: `spec.networkTopology`; None when unset.
    topology: NetworkTopology | None
    #: Name of the Job that the PodGroup was made for, "" for others.
    owner_job: str
    #: All tasks by uid, ended ones included.
    tasks: dict[str, Task]
    #: PENDING tasks that are neither gated nor held, by uid.
    pending: dict[str, Task]
    #: How many PENDING tasks request nothing (gated ones included).
    pending_best_effort: int
    #: Tasks per status, indexed by TaskStatus.
    counts: list[int]
    #: Per role, the same counters plus, at index len(TaskStatus), pending tasks that request nothing.
    #: Kept only while `min_task_member` is not empty.
    roles: dict[str, list[int]]
    #: Sum of requests of tasks in allocated statuses: int64 [resource columns].
    allocated: Vector
    #: Sum of requests of all tasks.
    total_request: Vector

    def __init__(self, key: str, allocated: Vector, total_request: Vector) -> None:
        self.key = key
        self.namespace, _, self.name = key.partition("/")
        self.uid = ""
        self.implicit = False
        self.queue = ""
        self.min_available = 0
        self.min_task_member = {}
        self.min_resources = None
        self.min_quota = None
        self.phase = PodGroupPhase.PENDING
        self.conditions = ()
        self.status_counts = (0, 0, 0)
        self.priority_class_name = ""
        self.priority = 0
        self.created = 0.0
        self.annotations = {}
        self.labels = {}
        self.topology = None
        self.owner_job = ""
        self.tasks = {}
        self.pending = {}
        self.pending_best_effort = 0
        self.counts = [0] * len(TaskStatus)
        self.roles = {}
        self.allocated = allocated
        self.total_request = total_request

    def count(self, statuses: Iterable[TaskStatus]) -> int:
        """How many tasks are in one of `statuses`."""
        counts = self.counts
        total = 0
        for status in statuses:
            total += counts[status]
        return total

    @property
    def ready_tasks(self) -> int:
        """Bound, Binding, Running, Allocated or Succeeded; best-effort members that pend are not among them."""
        c = self.counts
        return c[1] + c[3] + c[4] + c[5] + c[7]  # plain numbers: every job key asks for it

    @property
    def waiting_tasks(self) -> int:
        """Pipelined tasks."""
        return self.counts[TaskStatus.PIPELINED]

    @property
    def valid_tasks(self) -> int:
        """Tasks that run, may run, or have succeeded."""
        return self.count(_VALID)

    @property
    def allocated_tasks(self) -> int:
        """Tasks in allocated statuses."""
        return self.count(ALLOCATED_STATUSES)

    def is_ready(self) -> bool:
        """Enough members are placed; best-effort members count as placed."""
        return self.ready_tasks + self.pending_best_effort >= self.min_available

    def is_pipelined(self) -> bool:
        """Enough members are placed or promised room that is being released."""
        return self.waiting_tasks + self.ready_tasks + self.pending_best_effort >= self.min_available

    def is_starving(self) -> bool:
        """Below the minimum; best-effort members do not help, so that they may still preempt."""
        return self.waiting_tasks + self.ready_tasks < self.min_available

    @property
    def checks_roles(self) -> bool:
        """Whether per-role minimums apply: not when they add up to more than the gang minimum."""
        return bool(self.min_task_member) and self.min_available >= sum(self.min_task_member.values())

    def _roles_reach(self, statuses: tuple[TaskStatus, ...], best_effort: bool) -> bool:
        if not self.checks_roles:
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

    def roles_valid(self) -> bool:
        """Each role has at least its minimum of live tasks."""
        return self._roles_reach(_VALID, best_effort=False)

    def roles_ready(self) -> bool:
        """Each role has its minimum placed."""
        return self._roles_reach(_READY, best_effort=True)

    def roles_pipelined(self) -> bool:
        """Each role has its minimum placed or promised."""
        return self._roles_reach(_PROMISED, best_effort=True)

    def role_promised(self, role: str) -> int:
        """How many members of a role are placed or promised room; 0 where nothing is counted per role."""
        counts = self.roles.get(role)
        return 0 if counts is None else sum(counts[status] for status in _PROMISED)

    def __repr__(self) -> str:
        return f"Job({self.key}, {self.phase.value}, min={self.min_available}, tasks={len(self.tasks)})"
