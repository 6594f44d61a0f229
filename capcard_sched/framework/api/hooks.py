"""The table of extension points.

A plugin implements a hook by defining the method. Dispatch lists, conf switches, docs and conformance tests are derived
from this table; a new hook is a new row and its call.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Combine(Enum):
    """The combination of the results of several plugins. Tiers are outer, plugins inner, in file order."""

    KEYS = "sort keys, concatenated in tier order; the lowest tuple goes first"
    FIRST_REFUSAL = "called in order until one refuses"
    ALL = "true unless one returns false"
    ANY = "true as soon as one returns true"
    VOTES = "any reject is final; a permit decides for its tier and the later ones; true when all abstain"
    FIRST_TIER_ALL = "the first tier with an implementation decides; all of it must return true"
    VICTIMS = (
        "intersection inside a tier; the first tier with a decision is final, unless a plugin requires unanimity; "
        "a VictimDecision of any tier always protects"
    )
    UNION_FIRST_TIER = "union inside a tier; the first tier with any decides"
    FILTER = "each removes some of what the one before kept"
    VERDICT = "every plugin may reject rows"
    SUM = "scores are added"
    NOTIFY = "every plugin is called"
    FIRST = "the first result that is not None"
    MERGE = "kept side by side, per plugin"


class Hook(NamedTuple):
    """One extension point."""

    #: Method name on `Plugin`.
    method: str
    #: Call signature.
    signature: str
    #: The scheduler-conf switch that gates it, as spelled in the conf; None: never gated.
    switch: str | None
    combine: Combine
    #: The default when no plugin implements it.
    silence: str


HOOKS: tuple[Hook, ...] = (
    # session
    Hook(
        "prepare",
        "(session) -> None: before any plugin opens; sets how devices of pods are counted",
        None,
        Combine.NOTIFY,
        "nothing",
    ),
    Hook("open", "(session) -> None", None, Combine.NOTIFY, "nothing"),
    Hook("close", "(session) -> None", None, Combine.NOTIFY, "nothing"),
    Hook(
        "next_wakeup",
        "() -> Unix seconds | None: when the plugin's results change without a change of the cluster; after a session",
        None,
        Combine.MERGE,
        "never",
    ),
    Hook("metrics", "() -> iterable of Sample", None, Combine.MERGE, "no series"),
    Hook(
        "job_cards",
        "(job) -> JobCards | None: what the job holds and reserves of card quotas; for diagnoses",
        None,
        Combine.FIRST,
        "no card quotas",
    ),
    Hook(
        "pod_cards",
        "(cls) -> PodCards | None: the cards that pods of a class accept, and their charge; for diagnoses",
        None,
        Combine.FIRST,
        "no card quotas",
    ),
    Hook(
        "reserved_amounts",
        "(job) -> {resource: amount} | None: what its pods without a node reserve in queues, without cards; base units",
        "enableJobEnqueued",
        Combine.FIRST,
        "nothing is reserved",
    ),
    Hook(
        "claimed_amounts",
        "(queue | job) -> {resource: amount}: what the pods of a queue and of those below it, or of a job, hold of the "
        "device quotas of queues by ResourceClaims; base units",
        None,
        Combine.FIRST,
        "no device quotas",
    ),
    Hook(
        "exceeded_limit",
        "(job) -> ExceededLimit | None: the limit of its queue or of an ancestor that the minimum of the job exceeds, "
        "whatever the usage: it can never start, and is not admitted unless the limit is overcommitted",
        None,
        Combine.FIRST,
        "no limit",
    ),
    # orders: smaller keys first
    Hook("job_order", "(job) -> sort key", "enableJobOrder", Combine.KEYS, "creation time, then key"),
    Hook("queue_order", "(queue) -> sort key", "enableQueueOrder", Combine.KEYS, "creation time, then name"),
    Hook("task_order", "(task) -> sort key", "enableTaskOrder", Combine.KEYS, "index in name, creation time, uid"),
    Hook("victim_queue_order", "(queue, reclaimer queue) -> sort key", None, Combine.KEYS, "reverse queue order"),
    Hook("cluster_order", "(cluster) -> sort key", "EnabledClusterOrder", Combine.KEYS, "name"),
    # jobs
    Hook("job_valid", "(job) -> Refusal | None", None, Combine.FIRST_REFUSAL, "valid"),
    Hook("job_ready", "(job) -> bool", "enableJobReady", Combine.ALL, "ready"),
    Hook("job_pipelined", "(job) -> Vote", "enableJobPipelined", Combine.VOTES, "pipelined"),
    Hook("job_starving", "(job) -> bool", "enableJobStarving", Combine.FIRST_TIER_ALL, "not starving"),
    Hook("job_enqueueable", "(job) -> Vote | Refusal", "enableJobEnqueued", Combine.VOTES, "admitted"),
    Hook(
        "admission_version",
        "(job) -> value | None: determines the plugin's `job_enqueueable`: the same value, the same result. Values of "
        "unchanged jobs of one queue and namespace change together, or at `next_wakeup`",
        "enableJobEnqueued",
        Combine.MERGE,
        "the vote is computed in every session",
    ),
    Hook(
        "reservation_changed",
        "(job) -> None; called after `open`, when the nodes can no longer or can again hold the minimum of the job",
        None,
        Combine.NOTIFY,
        "nothing",
    ),
    Hook(
        "place_limits",
        "(tasks) -> PlaceLimits: what limits equal pods of one job beside each other on empty nodes, whatever cordons "
        "and taints they have; called after `open`; a failure concerns the job alone",
        "enablePredicate",
        Combine.MERGE,
        "the amounts and cards of the nodes alone",
    ),
    Hook("job_enqueued", "(job) -> None", "enableJobEnqueued", Combine.NOTIFY, "nothing"),
    Hook("target_job", "(jobs) -> job | None", "enableTargetJob", Combine.FIRST, "none"),
    Hook("reserved_nodes", "() -> None", "enableReservedNodes", Combine.NOTIFY, "nothing"),
    # queues
    Hook("overused", "(queue) -> bool", "enabledOverused", Combine.ANY, "not overused"),
    Hook("allocatable", "(queue, task) -> Refusal | None", "enabledAllocatable", Combine.FIRST_REFUSAL, "allowed"),
    Hook(
        "allocatable_many",
        "(queue, signature, tasks) -> Grant: `allocatable` for a run of tasks of one signature at once, or of classes "
        "that differ in names of generated claims alone (`TaskClass.alike`), with claims of equal content",
        "enabledAllocatable",
        Combine.FIRST_REFUSAL,
        "`allocatable` is called one by one",
    ),
    Hook(
        "allocation_version",
        "(queue) -> value | None: determines `overused`, `allocatable` and `preemptive` for unchanged jobs of the "
        "queue: the same value, the same results",
        None,
        Combine.MERGE,
        "a plugin with one of these hooks has every waiting job attempted in every session",
    ),
    Hook("preemptive", "(queue, task) -> Refusal | None", "enablePreemptive", Combine.FIRST_REFUSAL, "allowed"),
    # victims
    Hook(
        "preemptable",
        "(task, candidates) -> victims | VictimDecision | None",
        "enablePreemptable",
        Combine.VICTIMS,
        "no victims",
    ),
    Hook(
        "reclaimable",
        "(task, candidates) -> victims | VictimDecision | None",
        "enableReclaimable",
        Combine.VICTIMS,
        "no victims",
    ),
    Hook(
        "may_reclaim",
        "(job) -> bool | None: whether the job may reclaim from other queues, whatever `job_starving` returns",
        "enableReclaimable",
        Combine.FIRST,
        "as `job_starving`",
    ),
    Hook(
        "protects",
        '("preemptable" | "reclaimable", job, priority) -> Protection: of the pods of the job from all preemptors in '
        "jobs of the priority (across queues: 0, for preemptors of any priority); may depend on the job alone. "
        "Sessions skip preemptors whose possible victims are all protected",
        None,
        Combine.MERGE,
        "no protection",
    ),
    Hook(
        "eviction_version",
        '("preemptable" | "reclaimable", queue, "preemptor" | "victim") -> value | None: determines what the hook '
        "and `victim_queue_order` read of the queue in this role, besides nodes, their pods and the jobs of these: the "
        "same value, the same results. It may change at `next_wakeup`",
        None,
        Combine.MERGE,
        "a plugin with one of these hooks has every search for victims repeated in every session",
    ),
    Hook(
        "evict_scope",
        "(job) -> 'whole' | 'member' | 'job' | None: the part of a gang evicted at once when its minimum is broken",
        None,
        Combine.FIRST,
        "`job` when the PodGroup's annotation volcano.sh/evict-scope is `job`, else `whole`",
    ),
    Hook(
        "alternatives",
        "(signature) -> intp [nodes] | None: the alternative that a pod gets on each node; lower is better",
        None,
        Combine.FIRST,
        "pods have no alternatives: the name decides between nodes of equal eviction cost",
    ),
    Hook(
        "victim_filter",
        "(tasks) -> tasks: those that may be evicted, of the pods of one job that `victim_tasks` named",
        "enabledVictim",
        Combine.FILTER,
        "all of them",
    ),
    Hook("victim_tasks", "(tasks) -> victims", "enabledVictim", Combine.UNION_FIRST_TIER, "no victims"),
    # pod signatures
    Hook(
        "signature",
        "(queue, task) -> hashable | None: depends on the task's class, labels, namespace and job, nothing else of it. "
        "Read once for pods that are placed together: `allocatable_many` limits their number",
        "enablePredicate",
        Combine.MERGE,
        "the class alone",
    ),
    Hook(
        "node_state",
        "() -> int64 [nodes] | None: a number for what the plugin keeps of each node besides its amounts; nodes of "
        "equal amounts and numbers are judged alike. Kept up to date in on_allocate and on_deallocate",
        None,
        Combine.MERGE,
        "amounts alone tell nodes apart",
    ),
    Hook(
        "next_node_state",
        "(cls, number) -> number: the node state after one more pod of the class; -1 when the pod does not fit",
        None,
        Combine.MERGE,
        "the state stays as it is",
    ),
    Hook(
        "claim_cards",
        "(queue, task) -> UsableCards | None: the cards of the ResourceClaims of a pod, one of `names` and all of "
        "`others`, and at most how many thousandths of each. Called for the signature of the pod, and when it "
        "is placed",
        None,
        Combine.FIRST,
        "devices of any card",
    ),
    # feasibility of nodes
    Hook("pre_predicate", "(signature) -> Refusal | None", "enablePredicate", Combine.FIRST_REFUSAL, "passes"),
    Hook("filter", "(signature, node view, result) -> None", "enablePredicate", Combine.VERDICT, "passes"),
    Hook(
        "most_pods",
        "(signature) -> function of a node view | None: int64 [k], an upper bound of the pods that fit each node by "
        "what they read beside amounts. It changes with the signature, with facts of nodes and on rows that "
        "`NodeTable.touch` stamps. Called for pods with claims: sessions skip a waiting job while the sum over all "
        "nodes is below what it needs",
        None,
        Combine.MERGE,
        "a job whose pods with claims read more of nodes than amounts is attempted in each session",
    ),
    Hook(
        "further_pods",
        "(signature) -> function of a node view | None. The function returns two arrays: int64 [k], the number of pods "
        "with this signature that the `NODE_PODS` filters of the plugin accept on each node in sequence, at least 1, a "
        "lower bound; bool [k], whether the next one is rejected for certain. Called for pods with generated claims, "
        "on nodes that accept the first pod",
        None,
        Combine.MERGE,
        "each node gets one such pod before the filters run again",
    ),
    Hook(
        "rejection_details",
        "(task, node view) -> (node name, texts) pairs: figures behind the rejections of filters, the node nearest "
        "to fitting first; for `explain`",
        "enablePredicate",
        Combine.MERGE,
        "none",
    ),
    # preference among nodes
    Hook("score", "(signature, node view) -> scores | None", "enableNodeOrder", Combine.SUM, "0"),
    Hook("best_node", "(signature, rows, scores) -> row | None", "enableBestNode", Combine.FIRST, "highest score"),
    Hook(
        "hyper_node_order",
        "(job, HyperNodeRows tuple) -> scores | None: float64 [k], of HyperNodes that fit a job in hard mode",
        "enabledHyperNodeOrder",
        Combine.SUM,
        "0",
    ),
    # events
    Hook(
        "on_allocate",
        "(placement) -> None; first in the plugins with `supports_claims`: others may read the devices of the pods",
        None,
        Combine.NOTIFY,
        "nothing",
    ),
    Hook("on_deallocate", "(placement) -> None", None, Combine.NOTIFY, "nothing"),
    Hook("bind_annotations", "(placement) -> annotations by task uid | None", None, Combine.MERGE, "none"),
    Hook(
        "node_lock",
        "(placement) -> node annotation by task uid | None: the lock that each pod takes before it is bound",
        None,
        Combine.MERGE,
        "none",
    ),
    Hook(
        "binding_lock",
        "(placement) -> node annotation by task uid | None: the lock that excludes other schedulers during the binding",
        None,
        Combine.MERGE,
        "none",
    ),
    Hook(
        "bind_volumes",
        "(placement) -> ClaimBinding tuples by task uid | None: claims to bind before the pods",
        None,
        Combine.MERGE,
        "none",
    ),
    Hook(
        "bind_claims",
        "(placement) -> ClaimAllocation tuples by task uid | None: ResourceClaims to allocate and reserve before the "
        "pods are bound. Pods with claims are schedulable only with a plugin that implements it and whose "
        "`supports_claims` is true",
        None,
        Combine.MERGE,
        "pods with claims are refused",
    ),
)

#: Hooks that no action calls.
UNUSED = frozenset({"cluster_order", "target_job", "reserved_nodes"})

#: Hooks of methods with any name and a decorator (`framework.api.node_hooks`).
DECORATED = frozenset({"filter", "score"})

#: Names of former hooks and attributes to their replacement. Loading fails for a plugin that defines one.
REPLACED: dict[str, str] = {
    "predicate_static": "`@filter(reads=NODE_SPEC)`",
    "predicate": "`@filter(reads=...)`",
    "predicate_domain": "`@filter(reads=OTHER_NODES, when=...)`",
    "node_order_static": "`@score(reads=NODE_SPEC)`",
    "node_order": "`@score(reads=...)`",
    "batch_node_order": "`@score(reads=CANDIDATES)`",
    "row_private": "`reads=NODE_PODS` of the filter or score",
    "row_dependent": "`reads=OTHER_NODES` of the filter or score",
    "domain_bound": "`reads=OTHER_NODES` of the filter or score",
    "class_context": "`signature(queue, task)`",
    "task_context": "`signature(queue, task)`",
    "time_dependent": "`reads = Reads.CLOCK`",
    "wakes_on": "`reads = Reads.QUOTAS` and the like",
    "follows_tree": "`reads = Reads.TREE`",
}

BY_METHOD: dict[str, Hook] = {hook.method: hook for hook in HOOKS}

#: Switches of Volcano that gate no hook here; files with them load.
EXTRA_SWITCHES: dict[str, bool] = {
    "enableHierarchy": False,
    "EnabledClusterOrder": False,
}

#: Switches of Volcano that cannot be off here, with the reason; `false` is a warning.
FIXED_SWITCHES: dict[str, str] = {
    "enabledSubJobReady": "a job always starts with the minimum of its subgroups",
    "enabledSubJobPipelined": "a job always starts with the minimum of its subgroups",
    "enabledSubJobOrder": "subgroups that the minimums need are always placed first",
    "enabledHyperNodeGradient": "HyperNodes are always searched from the lowest tier",
}

#: Every switch of a plugin option with its default.
SWITCHES: dict[str, bool] = {
    **{hook.switch: True for hook in HOOKS if hook.switch is not None},
    **EXTRA_SWITCHES,
    **dict.fromkeys(FIXED_SWITCHES, True),
}
