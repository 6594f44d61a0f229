"""Tasks (pods as the scheduler sees them) and their equivalence classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.cooldown import Cooldown
    from capcard_sched.model.job import Job
    from capcard_sched.model.node import Node
    from capcard_sched.model.objects import Affinity, HostPort, Toleration, TopologySpreadConstraint
    from capcard_sched.model.resources import Vector


#: Seconds that pods are given to end when they say nothing: the default of Kubernetes.
GRACE_SECONDS: Final = 30


class TaskClass:
    """What pods of one template share: everything about a pod, but its labels, that decides where it may go.

    Two pending pods of one class get the same feasibility mask and the same scores. Instances are interned by the
    state: compare them with `is`, use them as dictionary keys. Immutable after construction, but `request` and
    `charge`, which are padded when a resource column is added.
    """

    __slots__ = (
        "affinity",
        "annotations",
        "best_effort",
        "charge",
        "host_ports",
        "id",
        "images",
        "limits",
        "namespace",
        "node_selector",
        "nonzero_cpu_milli",
        "nonzero_memory_bytes",
        "own_cpus",
        "own_volumes",
        "owner_kind",
        "preemption_policy",
        "priority_class_name",
        "request",
        "requests",
        "spread",
        "tolerations",
        "volumes",
    )

    id: int
    #: The namespace when pod (anti-)affinity, topology spread or claims make it matter, else "".
    namespace: str
    #: Effective request (core reference §2.2) in base units, `pods: 1` included.
    requests: Mapping[str, int]
    #: The same as int64 [resource columns].
    request: Vector
    #: `request` and the two non-zero amounts below: int64 [resource columns + 2], what one pod adds to its node.
    charge: Vector
    #: Pod-level limits in base units, only of resources some container limits.
    limits: Mapping[str, int]
    #: cpu and memory with the scheduler's non-zero defaults per container (plugins reference §8.2).
    nonzero_cpu_milli: int
    nonzero_memory_bytes: int
    #: Requests nothing but its pod slot.
    best_effort: bool
    node_selector: Mapping[str, str]
    affinity: Affinity | None
    tolerations: tuple[Toleration, ...]
    spread: tuple[TopologySpreadConstraint, ...]
    host_ports: tuple[HostPort, ...]
    #: Image names of init and ordinary containers, in order.
    images: tuple[str, ...]
    #: Claim names of mounted persistent volumes.
    volumes: tuple[str, ...]
    #: Those of them that are made for one pod alone; their names hold its name, so the class is of that pod alone.
    own_volumes: tuple[str, ...]
    #: Template-level annotations that plugins read: `model.annotations.CLASS_ANNOTATIONS`.
    annotations: Mapping[str, str]
    #: Kind of the pod's first owner reference, "" without one.
    owner_kind: str
    priority_class_name: str
    preemption_policy: str
    #: None unless the pod's QoS class is Guaranteed; then name and number of CPUs of each container that asks for whole
    #: ones, and gets its own where the kubelet gives them (`model.qos`).
    own_cpus: tuple[tuple[str, int], ...] | None

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"TaskClass({self.id}, {dict(self.requests)})"


class Task:
    """One pod. Owned by the state; plugins and actions read it and never write it."""

    __slots__ = (
        "assigned_card",
        "cls",
        "cooldown",
        "created",
        "deleting",
        "gated",
        "grace",
        "held",
        "index",
        "job",
        "labels",
        "name",
        "namespace",
        "node",
        "nominated_node",
        "ours",
        "preemptable",
        "priority",
        "role",
        "status",
        "uid",
    )

    uid: str
    namespace: str
    name: str
    cls: TaskClass
    #: Labels; equal label sets share one mapping.
    labels: Mapping[str, str]
    #: None for a pod that belongs to no group.
    job: Job | None
    #: `volcano.sh/task-spec`: the role inside the job, "" when unset.
    role: str
    status: TaskStatus
    #: The node it holds room on (placed statuses and PIPELINED), else None.
    node: Node | None
    #: `spec.priority`, default 1; overridden by `volcano.sh/task-priority`.
    priority: int
    #: Pod label or annotation `volcano.sh/cooldown-time` with the times it counts from; None when the pod has neither.
    cooldown: Cooldown | None
    #: Pod annotation or label `volcano.sh/preemptable`; None when the pod says nothing (PodGroup, then True, decide).
    preemptable: bool | None
    #: Has scheduling gates: never placed, never counted.
    gated: bool
    #: Its binding was refused: not placed until it may be tried again.
    held: bool
    #: Has a deletion timestamp.
    deleting: bool
    #: Seconds it is given to end when it is told to go.
    grace: int
    #: `spec.schedulerName` is one of ours.
    ours: bool
    #: Unix seconds.
    created: float
    #: Text after the last dash of the name when it is a number and the name has three parts, else -1.
    index: int
    nominated_node: str
    #: `volcano.sh/card.assigned`, "" when unset.
    assigned_card: str

    def __init__(self, uid: str, namespace: str, name: str, cls: TaskClass) -> None:
        self.uid = uid
        self.namespace = namespace
        self.name = name
        self.cls = cls
        self.labels = {}
        self.job = None
        self.role = ""
        self.status = TaskStatus.PENDING
        self.node = None
        self.priority = 1
        self.preemptable = None
        self.cooldown = None
        self.gated = False
        self.held = False
        self.deleting = False
        self.grace = GRACE_SECONDS
        self.ours = True
        self.created = 0.0
        self.index = -1
        self.nominated_node = ""
        self.assigned_card = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def __repr__(self) -> str:
        return f"Task({self.key}, {self.status.name})"
