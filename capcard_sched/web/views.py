"""The documents of /api/v1: what a page shows, as data. `docs/web.schema.json` is generated from these classes.

Amounts of cards are plain numbers (4, 0.5), cpu is in cores, memory in bytes. Times are RFC 3339, durations seconds.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from capcard_sched.model.diagnosis import JobDiagnosis  # noqa: TC001 - msgspec reads them
from capcard_sched.model.trials import API_VERSION, InsightPart, WhatIfReport
from capcard_sched.web.history import CardSeries, EvictionMark  # noqa: TC001 - likewise

ApiVersion: TypeAlias = Literal["insight.capcard-sched.io/v1alpha1"]
Severity: TypeAlias = Literal["error", "warning", "note"]


class Moment(InsightPart, frozen=True, kw_only=True):
    """The time of a page, and the range of the time machine."""

    #: "config/examples/tidal", or the address of an API server.
    source: str
    now: str
    #: Seconds from `begin` to `now`, and to the end; 0 without a past.
    at: float = 0
    length: float = 0
    #: Begin of the history; "" without one.
    begin: str = ""
    live: bool = False
    #: Seconds since the watches of a live cluster are interrupted; 0 while they are open.
    stale: float = 0
    #: Seconds since the first change of a live cluster that the page does not show: its state is being prepared.
    behind: float = 0
    #: Whether the page of usage has a ledger.
    has_usage: bool = False
    #: What the page lacks at a moment of a ledger, and what has it; "" for other pages.
    missing: str = ""
    #: All queues, in the order of their colors.
    queues: tuple[str, ...] = ()


class CardSum(InsightPart, frozen=True, kw_only=True):
    """One card in the cluster."""

    card: str
    nodes: int
    total: float
    used: float
    free: float
    #: The largest number of free cards on one schedulable node, and that node.
    largest_free: float
    largest_node: str
    #: Free cards on nodes that are cordoned or tainted.
    blocked: float
    #: Mean use over the last 24 hours; None without a history.
    mean: float | None = None


class QuotaCell(InsightPart, frozen=True, kw_only=True):
    """One card in one queue. The usage of a parent is that of its subtree."""

    card: str
    used: float
    #: None without a limit.
    quota: float | None
    #: Reserved by admitted jobs for pods without a node.
    reserved: float
    #: What the queue and its ancestors leave; None without a limit.
    free: float | None
    #: Used above the quota.
    over: float
    #: Cards in the cluster.
    total: float


class QuotaRow(InsightPart, frozen=True, kw_only=True):
    """One queue."""

    queue: str
    parent: str
    depth: int
    state: str
    jobs: int
    waiting: int
    cells: tuple[QuotaCell, ...]
    #: cpu, memory and others: used and limit.
    resources: tuple[QuotaCell, ...] = ()
    warnings: tuple[str, ...] = ()


class StageCount(InsightPart, frozen=True, kw_only=True):
    """Waiting jobs of one stage of the diagnosis."""

    stage: str
    text: str
    jobs: int
    pods: int


class Alert(InsightPart, frozen=True, kw_only=True):
    """What needs repair or attention."""

    severity: Severity
    #: `Queue q`, `Node n`.
    object: str
    message: str
    #: Page of the object; "" for none.
    link: str = ""


class JobRow(InsightPart, frozen=True, kw_only=True):
    """One job of the table."""

    namespace: str
    name: str
    kind: str
    queue: str
    phase: str
    #: Of the diagnosis; "" for a job that does not wait.
    stage: str
    scheduled: int
    pods: int
    min_available: int
    running: int
    succeeded: int
    failed: int
    created: str
    age_seconds: int | None
    wait_seconds: int | None
    #: One line.
    reason: str


class Tenant(InsightPart, frozen=True, kw_only=True):
    """A pod on a card."""

    #: `namespace/name`; "" where the viewer may not see the namespace.
    pod: str
    workload: str
    queue: str
    #: Part of the card, up to 1.
    share: float
    terminating: bool = False
    #: A MIG slice or amounts in words; "" for a whole card.
    text: str = ""


class CardBox(InsightPart, frozen=True, kw_only=True):
    """One card of a node, or one slice of it where the node offers slices."""

    tenants: tuple[Tenant, ...] = ()
    available: bool = True


class NodeCardRow(InsightPart, frozen=True, kw_only=True):
    """The cards of one model on a node."""

    card: str
    #: `whole` cards, `fraction`s of cards that pods count, MIG `slice`s, or cards `shared` by a device plugin.
    sharing: Literal["whole", "fraction", "slice", "shared"]
    total: float
    used: float
    free: float
    boxes: tuple[CardBox, ...]


class NodeRow(InsightPart, frozen=True, kw_only=True):
    """One node."""

    name: str
    #: "" for a schedulable node, else `cordoned` and its taints.
    state: str
    #: `not ready`, `unreachable` or `missing`; "" for a node whose kubelet works.
    lost: str
    cards: tuple[NodeCardRow, ...]
    free_cpu: float
    free_memory: float
    pods: int
    max_pods: int


class Overview(InsightPart, frozen=True, kw_only=True):
    """The first page."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["Overview"] = "Overview"
    moment: Moment
    jobs: int
    running_pods: int
    pending_pods: int
    cards: tuple[CardSum, ...]
    queues: tuple[QuotaRow, ...]
    stages: tuple[StageCount, ...]
    #: Jobs that wait, the longest first, up to a limit; `waiting_jobs` counts all.
    waiting: tuple[JobRow, ...]
    waiting_jobs: int
    alerts: tuple[Alert, ...]
    series: tuple[CardSeries, ...] = ()
    #: Up to the moment, oldest first.
    evictions: tuple[EvictionMark, ...] = ()
    #: The first nodes, those that need repair before others; /nodes has all.
    nodes: tuple[NodeRow, ...] = ()
    all_nodes: int = 0


class UsageGroup(InsightPart, frozen=True, kw_only=True):
    """Card-hours of one group, and the waits of its jobs in seconds."""

    group: tuple[str, ...]
    used: float
    evicted: float
    jobs: int
    wait_p50: float | None
    wait_p90: float | None
    #: Parts of quotas; None for groups without one.
    quota: float | None
    idle: float | None
    lent: float | None
    #: Used hours of whole cards that a source of utilization measured, and those without any use; None without one.
    measured: float | None = None
    unused: float | None = None


class CardHours(InsightPart, frozen=True, kw_only=True):
    """Card-hours of one card of the cluster."""

    card: str
    capacity: float
    #: On nodes that were cordoned or not ready.
    unavailable: float
    used: float


class UsageView(InsightPart, frozen=True, kw_only=True):
    """Card-hours of a period by queue, card, namespace, user, service or day."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["Usage"] = "Usage"
    moment: Moment
    #: The period, up to the last record.
    begin: str
    end: str
    #: As in the query: `30d`.
    since: str
    by: tuple[str, ...]
    groups: tuple[UsageGroup, ...]
    cards: tuple[CardHours, ...]
    #: Cards in use over time, by queue.
    series: tuple[CardSeries, ...]
    #: Sentences about what the figures do not have.
    notes: tuple[str, ...]


class QueueList(InsightPart, frozen=True, kw_only=True):
    """The tree of queues."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["QueueList"] = "QueueList"
    moment: Moment
    cards: tuple[str, ...]
    queues: tuple[QuotaRow, ...]


class BudgetRow(InsightPart, frozen=True, kw_only=True):
    """One card of a CardBudget of a queue, or of a queue above it, in card-hours."""

    budget: str
    queue: str
    card: str
    limit: float
    #: None before the first status.
    used: float | None
    spent: bool
    when_spent: str
    #: `month`, `week` or `rolling30d`, and its end; "" without one.
    period: str
    until: str
    #: Date at which the first card of the budget is spent; "" for none in the period.
    forecast: str


class QueueView(InsightPart, frozen=True, kw_only=True):
    """One queue: its ancestors, itself and its subtree, jobs and usage over time."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["Queue"] = "Queue"
    moment: Moment
    queue: QuotaRow
    tree: tuple[QuotaRow, ...]
    jobs: tuple[JobRow, ...]
    #: Jobs of the queue that are not visible to the viewer.
    hidden_jobs: int
    series: tuple[CardSeries, ...] = ()
    #: Of the queue and of those above it.
    budgets: tuple[BudgetRow, ...] = ()
    evictions: tuple[EvictionMark, ...] = ()


class JobList(InsightPart, frozen=True, kw_only=True):
    """Jobs of the filter, in its order."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["JobList"] = "JobList"
    moment: Moment
    #: The filter as given.
    queue: str
    namespace: str
    stage: str
    text: str
    sort: str
    #: Jobs that match; `items` has one page of them.
    matching: int
    total: int
    page: int
    pages: int
    items: tuple[JobRow, ...]
    queues: tuple[str, ...]
    namespaces: tuple[str, ...]
    stages: tuple[str, ...]


class StagePeriod(InsightPart, frozen=True, kw_only=True):
    """A stage of the life of a job. `begin` in seconds since its creation."""

    stage: Literal["waiting", "starting", "running", "ended"]
    begin: float
    seconds: float


class PodRow(InsightPart, frozen=True, kw_only=True):
    """One pod of a job."""

    name: str
    status: str
    node: str
    card: str
    created: str
    restarts: int


class FormerLife(InsightPart, frozen=True, kw_only=True):
    """An ended life of a job of this name, by the ledger. Times in seconds."""

    submitted: str
    queue: str
    card: str
    #: From the submission until its minimum was scheduled, else until its end.
    waited: float
    #: None if its minimum was never scheduled.
    ran: float | None
    card_hours: float
    #: Completed, Failed, Evicted, Deleted, or Lost.
    outcome: str
    #: Why the scheduler evicted its pods, each cause once.
    preemptors: tuple[str, ...] = ()


class JobView(InsightPart, frozen=True, kw_only=True):
    """One job: its life, diagnosis and pods."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["Job"] = "Job"
    moment: Moment
    job: JobRow
    life: tuple[StagePeriod, ...]
    diagnosis: JobDiagnosis
    pods: tuple[PodRow, ...]
    #: Whether fixes were searched; in a large cluster only on demand.
    fixes_searched: bool
    #: Why a search failed; "" for none.
    fixes_error: str = ""
    evictions: tuple[EvictionMark, ...] = ()
    #: The last ones, the latest first; none without a ledger.
    former: tuple[FormerLife, ...] = ()
    #: Why the ledger could not be read; "" when it was.
    ledger_error: str = ""


class FreeBlock(InsightPart, frozen=True, kw_only=True):
    """Schedulable nodes with the same number of free cards."""

    free: float
    nodes: int


class CardFragmentation(InsightPart, frozen=True, kw_only=True):
    """Free cards of one model by node."""

    card: str
    total: float
    free: float
    largest_free: float
    #: The largest node when empty.
    node_size: float
    #: Free cards on cordoned and tainted nodes.
    blocked: float
    blocks: tuple[FreeBlock, ...]


class NodeList(InsightPart, frozen=True, kw_only=True):
    """Nodes of the filter."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["NodeList"] = "NodeList"
    moment: Moment
    card: str
    queue: str
    text: str
    matching: int
    total: int
    page: int
    pages: int
    items: tuple[NodeRow, ...]
    cards: tuple[str, ...]
    queues: tuple[str, ...]
    fragmentation: tuple[CardFragmentation, ...]


class WhatIfView(InsightPart, frozen=True, kw_only=True):
    """The form of changes, and their effect."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["WhatIf"] = "WhatIf"
    moment: Moment
    queues: tuple[str, ...]
    cards: tuple[str, ...]
    nodes: tuple[str, ...]
    #: The changes as given: QUEUE/CARD=N, NODE, NxNODE, and the text of a scheduler-conf.
    quota: str = ""
    drain: str = ""
    add_nodes: str = ""
    conf: str = ""
    #: Why the changes are invalid; "" for none.
    error: str = ""
    warnings: tuple[str, ...] = ()
    report: WhatIfReport | None = None


class WebError(InsightPart, frozen=True, kw_only=True):
    """A request without a page."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["Error"] = "Error"
    status: int
    message: str
