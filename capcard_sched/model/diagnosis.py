"""The diagnosis of a job as data: its stage, the reason, and figures of one state. CLI, JSON and events render it.

Amounts of cards, cores and devices are plain numbers (4, 0.5); memory and storage are bytes. Names are those of
`kubectl get`. `docs/diagnosis.schema.json` is generated from these classes.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from capcard_sched.model.explanation import EvictedPod, VictimsConsidered  # noqa: TC001 - msgspec reads them
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.trials import API_VERSION, FixSearch, InsightPart, PreemptionTrial

#: Entries of a list of nodes, or of holders. Sums and numbers of nodes count all of them.
MOST_LISTED: Final = 32

Stage: TypeAlias = Literal[
    "NotProcessed",
    "Suspended",
    "CannotStart",
    "Unsupported",
    "NotAdmitted",
    "OverQuota",
    "ClusterFull",
    "NoNodeFits",
    "GangWaiting",
    "NotTried",
    "VictimsTerminating",
    "BindBackoff",
    "Gated",
    "NoPods",
    "Incomplete",
    "Schedulable",
    "Scheduled",
    "Degraded",
    "Terminating",
    "Finished",
]

#: Stage to its text.
STAGES: Final[dict[Stage, str]] = {
    "NotProcessed": "not processed by this scheduler or its controllers",
    "Suspended": "suspended",
    "CannotStart": "can never start",
    "Unsupported": "unsupported feature",
    "NotAdmitted": "not admitted",
    "OverQuota": "over quota",
    "ClusterFull": "too little left in the cluster",
    "NoNodeFits": "no node fits",
    "GangWaiting": "gang waiting",
    "NotTried": "not tried in the last session",
    "VictimsTerminating": "victims terminating",
    "BindBackoff": "bind backoff",
    "Gated": "scheduling gates",
    "NoPods": "no pods created",
    "Incomplete": "members of the gang are missing",
    "Schedulable": "the next session schedules it",
    "Scheduled": "scheduled",
    "Degraded": "below its minimum",
    "Terminating": "terminating",
    "Finished": "finished",
}
#: Stages of jobs that nothing but a change starts, and of others that wait.
NEEDS_CHANGE: Final[frozenset[Stage]] = frozenset({"CannotStart", "Unsupported", "Suspended", "Gated"})
_WAITING: Final[frozenset[Stage]] = frozenset(
    {
        "NotAdmitted",
        "OverQuota",
        "ClusterFull",
        "NoNodeFits",
        "GangWaiting",
        "NotTried",
        "VictimsTerminating",
        "BindBackoff",
        "Schedulable",
    }
)


class ObjectProblem(InsightPart, frozen=True, kw_only=True):
    """A mistake in an object that this job depends on."""

    #: `Queue q`, `Job default/train`.
    object: str
    #: Path inside the object.
    field: str
    severity: Literal["error", "warning", "note"]
    message: str
    #: The accepted form or the nearest valid name, "" for none.
    accepted: str = ""


class HolderUse(InsightPart, frozen=True, kw_only=True):
    """One workload and the amount of a card or resource that it holds or reserves."""

    #: `namespace/kind/name`.
    workload: str
    #: "" for pods of other schedulers.
    queue: str
    amount: float


class LimitUse(InsightPart, frozen=True, kw_only=True):
    """One limit of a queue: the card, or the resource, and its usage in the same state."""

    queue: str
    #: A card, or a resource such as cpu.
    resource: str
    #: None without a limit.
    quota: float | None
    #: Held by pods on nodes.
    used: float
    #: Reserved by admitted jobs for pods without a node. Reservations limit admission, not pods.
    reserved: float
    #: `max(0, quota - used)`; None without a limit.
    free: float | None
    #: What the queue can still use: the smallest `free` of itself and its ancestors.
    usable: float | None
    #: The amount by which the usage exceeds the quota.
    over: float
    #: In the cluster; None for resources that are not counted in cards.
    cluster_total: float | None
    #: What one pending pod of the job requests of it, and all of them; 0 when the job requests none.
    requested_per_pod: float = 0
    requested: float = 0
    users: tuple[HolderUse, ...] = ()
    reservations: tuple[HolderUse, ...] = ()
    #: False for a limit that the queue does not set: a share of `proportion`, or what others leave in the cluster.
    is_set: bool = True


class NodeUse(InsightPart, frozen=True, kw_only=True):
    """One node of a `CardCapacity`."""

    name: str
    total: float
    free: float
    #: More than `total` on a node that lost cards.
    used: float = 0.0
    #: Why no pending pod of the job may use it: `cordoned`, a taint `key=value:effect`; "" for a candidate.
    excluded: str = ""
    holders: tuple[HolderUse, ...] = ()


class NodeSummary(InsightPart, frozen=True, kw_only=True):
    """One node of `node list`. Amounts in cards, cores, bytes and pods."""

    name: str
    #: `cordoned`, its taints, or "" for a node that takes pods.
    state: str
    cards: tuple[str, ...]
    total: float
    free: float
    used: float
    free_cpu: float
    free_memory: float
    pods: int
    max_pods: int


class FreeBlocks(InsightPart, frozen=True, kw_only=True):
    """A bar of the histogram: the number of candidate nodes with this many free cards."""

    free: float
    nodes: int


class CardCapacity(InsightPart, frozen=True, kw_only=True):
    """One card on the nodes that provide it, or another resource on the nodes with an accepted card."""

    #: The card, or the resource for pods without a card.
    card: str
    resource: str
    #: What one pod requests.
    per_pod: float
    nodes: int
    total: float
    free: float
    #: Free amounts of the candidates: neither cordoned nor with a taint that the pods do not tolerate.
    histogram: tuple[FreeBlocks, ...]
    largest_free: float
    #: Total of the largest node.
    largest_node: float
    #: Pods that fit now, counting this card alone, and that would fit on empty nodes, excluded ones included.
    fits_now: int
    fits_when_empty: int
    cordoned_nodes: int
    tainted_nodes: int
    #: Up to a limit, as all lists of nodes and holders.
    cordoned: tuple[NodeUse, ...] = ()
    tainted: tuple[NodeUse, ...] = ()
    #: Candidates, those with the most free cards first.
    candidates: tuple[NodeUse, ...] = ()
    holders: tuple[HolderUse, ...] = ()


class StrandedCards(InsightPart, frozen=True, kw_only=True):
    """Free cards of one model, and those that no pod of the mix of requests can use where they are."""

    card: str
    free: float
    stranded: float
    #: Cause to stranded cards: too little free `cpu`, `memory` or `cpu and memory` beside them, blocks smaller than any
    #: request (`size`), and a model that no pod accepts (`model`).
    causes: dict[str, float]


class RejectedNodes(InsightPart, frozen=True, kw_only=True):
    """One filter reason and the number of nodes it applies to."""

    reason: str
    nodes: int
    plugin: str
    hook: str
    #: Whether these nodes come nearest to fitting: the others are too small, tainted or not selected.
    decides: bool = False
    #: The sentence about the nodes in `names`, with figures.
    text: str = ""
    names: tuple[str, ...] = ()


class NearestNode(InsightPart, frozen=True, kw_only=True):
    """Figures behind the rejection of one node by one plugin."""

    node: str
    plugin: str
    #: One sentence per device.
    texts: tuple[str, ...]


class QuotaCheck(InsightPart, frozen=True, kw_only=True):
    """The arithmetic of one refusal, in the units of the diagnosis."""

    resource: str
    requested: float
    total: float
    limit: float
    #: The part of the total that admitted jobs reserve.
    reserved: float = 0


class PodRefusal(InsightPart, frozen=True, kw_only=True):
    """A refusal, with the text of its event."""

    plugin: str
    hook: str
    reason: str
    message: str
    #: The object that has the limit: `Queue q`, `ResourceQuota team`, `cluster`; "" without one.
    object: str = ""
    checks: tuple[QuotaCheck, ...] = ()


class PendingPods(InsightPart, frozen=True, kw_only=True):
    """Pending pods of one template with one outcome. `names` share all other fields."""

    names: tuple[str, ...]
    #: Result of the last attempt: rejected (mostly by a quota), no node fits, a node fits, nominated, not tried.
    outcome: Literal["refused", "unfit", "schedulable", "pipelined", "untried"]
    #: The text of the pod's condition.
    message: str
    node: str = ""
    refusal: PodRefusal | None = None
    nodes: tuple[RejectedNodes, ...] = ()
    #: The rejected nodes that come nearest to fitting.
    nearest: tuple[NearestNode, ...] = ()


class PlacedPods(InsightPart, frozen=True, kw_only=True):
    """Pods of the job on one node, with one card and status."""

    node: str
    #: "" for pods without cards.
    card: str
    status: str
    names: tuple[str, ...]


class QueuePosition(InsightPart, frozen=True, kw_only=True):
    """The queue of a job, its limits, and the jobs before it."""

    name: str
    #: `Open`, `Closed`, `Closing`; `missing` when the Queue does not exist.
    state: str
    limits: tuple[LimitUse, ...] = ()
    #: From 1 among the pending jobs of the queue; 0 for a job that is not pending.
    position: int = 0
    #: Pending jobs before it, in order: `namespace/kind/name`.
    ahead: tuple[str, ...] = ()


#: What the estimate of an end rests on.
EstimateSource: TypeAlias = Literal[
    "Annotation", "RunningEstimate", "LikeJobs", "ActiveDeadline", "Simulation", "Termination", "Unknown"
]


class AwaitedEnd(InsightPart, frozen=True, kw_only=True):
    """A job that ends directly before another one starts."""

    #: `namespace/kind/name`.
    workload: str
    source: EstimateSource
    #: Of source `LikeJobs`: the ended jobs that the estimate rests on, and what they have in common.
    like_jobs: int = 0
    alike: str = ""
    #: Simulated runs in which it is so.
    runs: int


class ExpectedStart(InsightPart, frozen=True, kw_only=True):
    """When a waiting job starts, from simulated runs with ends of jobs drawn from estimates. No further jobs arrive."""

    #: RFC 3339.
    computed_at: str
    #: Percentiles in seconds from then; None: no start is known.
    p10: float | None
    p50: float | None
    p90: float | None
    #: Simulated runs; 1 when all ends are known, 0 when the start depends on no end.
    runs: int
    #: The most frequent first; none for a job that starts without an end.
    awaited: tuple[AwaitedEnd, ...] = ()
    #: Why a percentile is unknown, else "".
    reason: str = ""


class JobDiagnosis(InsightPart, frozen=True, kw_only=True):
    """Why a job is pending, or that it is not."""

    api_version: Literal["insight.capcard-sched.io/v1alpha1"] = API_VERSION
    kind: Literal["JobDiagnosis"] = "JobDiagnosis"
    namespace: str
    #: `job/train`, `deployment/chat`, `pod/notebook`, `podgroup/g`.
    workload: str
    #: Name of its PodGroup; "" without one.
    pod_group: str = ""
    #: Phase of the PodGroup.
    phase: str = ""
    stage: Stage
    #: The schedulers that its pods belong to, if none of them is this one.
    schedulers: tuple[str, ...] = ()
    #: The cause in one sentence.
    summary: str
    #: Further sentences, the most important first.
    facts: tuple[str, ...] = ()
    problems: tuple[ObjectProblem, ...] = ()
    #: Pods on nodes, and pods that are wanted: the replicas of a Job, else the pods that exist.
    scheduled: int = 0
    pods: int = 0
    min_available: int = 0
    waiting_seconds: float = 0
    queue: QueuePosition | None = None
    #: Refusals of the job itself.
    refusals: tuple[PodRefusal, ...] = ()
    pending: tuple[PendingPods, ...] = ()
    placed: tuple[PlacedPods, ...] = ()
    capacity: tuple[CardCapacity, ...] = ()
    #: Of pods that no node fits: the cards that they accept, on nodes that accept the pods.
    stranded: tuple[StrandedCards, ...] = ()
    preemption: PreemptionTrial | None = None
    #: False: a trial does not start it with every other job ended, because nodes are cordoned or tainted.
    starts_alone: bool = True
    #: Pods of others, volumes or ResourceSlices that do not exist yet decide about its start.
    awaits_objects: bool = False
    #: None for a job that has started, and where it was not computed.
    expected_start: ExpectedStart | None = None
    #: Searches for preemption victims in the last session.
    victims: tuple[VictimsConsidered, ...] = ()
    #: Recently evicted pods of the job, oldest first.
    evicted: tuple[EvictedPod, ...] = ()
    #: Messages of `Evict` events of the PodGroup, oldest first.
    eviction_events: tuple[str, ...] = ()
    #: Of `explain --fix`.
    fixes: FixSearch | None = None

    @property
    def stage_text(self) -> str:
        """The stage in words."""
        if self.stage == "CannotStart" and not self.waits:
            return f"further pods {STAGES[self.stage]}"
        return f"belongs to {' and '.join(self.schedulers)}" if self.schedulers else STAGES[self.stage]

    @property
    def waits(self) -> bool:
        """Whether the job has not started, and this scheduler processes it."""
        return waits(self.stage, self.scheduled, self.min_available)


def waits(stage: Stage, scheduled: int, minimum: int) -> bool:
    """Whether a job of a stage has not started, with some pods scheduled of its minimum."""
    return (stage in NEEDS_CHANGE or stage in _WAITING) and scheduled < max(minimum, 1)


def no_start(now: float, reason: str) -> ExpectedStart:
    """An unknown start. `now` in Unix seconds."""
    return ExpectedStart(computed_at=format_timestamp(now), p10=None, p50=None, p90=None, runs=0, reason=reason)
