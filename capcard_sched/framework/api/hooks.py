"""The table of extension points.

A plugin implements a hook by defining the method. Dispatch lists, conf switches, docs and conformance tests are derived
from this table; adding a hook is adding a row (and the call that asks it).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Combine(Enum):
    """How the answers of several plugins become one. Tiers are outer, plugins inner, in file order."""

    KEYS = "sort keys, concatenated in tier order; the lowest tuple goes first"
    FIRST_REFUSAL = "asked until one refuses"
    ALL = "true unless one says no"
    ANY = "true as soon as one says yes"
    VOTES = "any reject is final; a permit ends at its tier; all abstain is yes"
    FIRST_TIER_ALL = "the first tier with an answer decides; all of it must say yes"
    VICTIMS = (
        "intersection inside a tier; the first tier with a decision is final, unless a plugin asks for unanimity; "
        "a veto of any tier protects always"
    )
    UNION_FIRST_TIER = "union inside a tier; the first tier with any decides"
    FILTER = "each passes on what it lets through"
    VERDICT = "every plugin may reject rows"
    SUM = "scores are added"
    NOTIFY = "all are told"
    FIRST = "the first answer that is not None"
    MERGE = "kept side by side, per plugin"


class Hook(NamedTuple):
    """One extension point."""

    #: Method name on `Plugin`.
    method: str
    #: Call signature in words.
    signature: str
    #: The scheduler-conf switch that gates it, spelled as users spell it; None is never gated.
    switch: str | None
    combine: Combine
    #: What it means that no plugin implements it.
    silence: str


HOOKS: tuple[Hook, ...] = (
    # session
    Hook("open", "(session) -> None", None, Combine.NOTIFY, "nothing"),
    Hook("close", "(session) -> None", None, Combine.NOTIFY, "nothing"),
    Hook(
        "next_wakeup",
        "() -> Unix seconds | None: when the plugin's answers change although nothing else does; asked after a session",
        None,
        Combine.MERGE,
        "never",
    ),
    Hook("metrics", "() -> iterable of Sample", None, Combine.MERGE, "no series"),
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
        "(job) -> value | None: what the plugin's `job_enqueueable` follows from; the same again, the same answer",
        "enableJobEnqueued",
        Combine.MERGE,
        "the vote is asked in every session",
    ),
    Hook("job_enqueued", "(job) -> None", "enableJobEnqueued", Combine.NOTIFY, "nothing"),
    Hook("target_job", "(jobs) -> job | None", "enableTargetJob", Combine.FIRST, "none"),
    Hook("reserved_nodes", "() -> None", "enableReservedNodes", Combine.NOTIFY, "nothing"),
    # queues
    Hook("overused", "(queue) -> bool", "enabledOverused", Combine.ANY, "not overused"),
    Hook("allocatable", "(queue, task) -> Refusal | None", "enabledAllocatable", Combine.FIRST_REFUSAL, "allowed"),
    Hook(
        "allocatable_many",
        "(queue, profile, tasks) -> Allowance: `allocatable` for a run of tasks of one profile at once",
        "enabledAllocatable",
        Combine.FIRST_REFUSAL,
        "`allocatable` is asked one by one",
    ),
    Hook("preemptive", "(queue, task) -> Refusal | None", "enablePreemptive", Combine.FIRST_REFUSAL, "allowed"),
    # victims
    Hook(
        "preemptable", "(task, candidates) -> victims | Veto | None", "enablePreemptable", Combine.VICTIMS, "no victims"
    ),
    Hook(
        "reclaimable", "(task, candidates) -> victims | Veto | None", "enableReclaimable", Combine.VICTIMS, "no victims"
    ),
    Hook(
        "may_reclaim",
        "(job) -> bool | None: whether the job may take from other queues, whatever `job_starving` says",
        "enableReclaimable",
        Combine.FIRST,
        "as `job_starving` says",
    ),
    Hook(
        "evict_scope",
        "(job) -> 'whole' | 'member' | 'job' | None: what of a gang goes at once when its minimum is broken",
        None,
        Combine.FIRST,
        "`job` when the PodGroup's annotation volcano.sh/evict-scope says so, else `whole`",
    ),
    Hook(
        "alternatives",
        "(profile) -> intp [nodes] | None: which of its alternatives a pod would get on each node; fewer is better",
        None,
        Combine.FIRST,
        "pods have no alternatives: between nodes where taking room costs the same the name decides",
    ),
    Hook(
        "victim_filter",
        "(tasks) -> tasks: those that may go, of the pods of one job that `victim_tasks` named",
        "enabledVictim",
        Combine.FILTER,
        "all may",
    ),
    Hook("victim_tasks", "(tasks) -> victims", "enabledVictim", Combine.UNION_FIRST_TIER, "no victims"),
    # what a profile is
    Hook("class_context", "(queue, cls) -> hashable | None", "enablePredicate", Combine.MERGE, "the class alone"),
    Hook(
        "task_context",
        "(task) -> hashable | None: may look at the task's class, labels, namespace and job, nothing else of it",
        "enablePredicate",
        Combine.MERGE,
        "the class alone",
    ),
    Hook("domain_bound", "(profile) -> bool", "enablePredicate", Combine.ANY, "rows are independent"),
    Hook(
        "row_private",
        "(profile) -> bool: the plugin's `predicate` or `node_order` looks at more of a node than its amounts",
        None,
        Combine.ANY,
        "private and dependent, when the plugin has either hook: all nodes are asked before every pod",
    ),
    Hook(
        "row_dependent",
        "(profile) -> bool: the plugin's `predicate` or `node_order` looks at what is placed on other nodes, too",
        None,
        Combine.ANY,
        "independent, when the plugin answers `row_private`",
    ),
    # feasibility of nodes
    Hook("pre_predicate", "(profile) -> Refusal | None", "enablePredicate", Combine.FIRST_REFUSAL, "passes"),
    Hook("predicate_static", "(profile, node rows, verdict) -> None", "enablePredicate", Combine.VERDICT, "passes"),
    Hook("predicate", "(profile, node rows, verdict) -> None", "enablePredicate", Combine.VERDICT, "passes"),
    Hook("predicate_domain", "(profile, node rows, verdict) -> None", "enablePredicate", Combine.VERDICT, "passes"),
    # preference among nodes
    Hook("node_order_static", "(profile, node rows) -> scores | None", "enableNodeOrder", Combine.SUM, "0"),
    Hook("node_order", "(profile, node rows) -> scores | None", "enableNodeOrder", Combine.SUM, "0"),
    Hook("batch_node_order", "(profile, candidates) -> scores | None", "enableNodeOrder", Combine.SUM, "0"),
    Hook("best_node", "(profile, rows, scores) -> row | None", "enableBestNode", Combine.FIRST, "highest score"),
    Hook(
        "hyper_node_order",
        "(job, HyperNodeRows tuple) -> scores | None: float64 [k], of HyperNodes that have room for a job in hard mode",
        "enabledHyperNodeOrder",
        Combine.SUM,
        "0",
    ),
    # events
    Hook("on_allocate", "(placement) -> None", None, Combine.NOTIFY, "nothing"),
    Hook("on_deallocate", "(placement) -> None", None, Combine.NOTIFY, "nothing"),
    Hook("bind_annotations", "(placement) -> annotations by task uid | None", None, Combine.MERGE, "none"),
    Hook(
        "bind_volumes",
        "(placement) -> ClaimBinding tuples by task uid | None: claims to settle before the pods are bound",
        None,
        Combine.MERGE,
        "none",
    ),
)

#: Hooks that no action asks so far.
UNUSED = frozenset({"cluster_order", "target_job", "reserved_nodes"})

BY_METHOD: dict[str, Hook] = {hook.method: hook for hook in HOOKS}

#: Switches of the reference that gate no hook of ours but must load (core reference §1.3, §7.5).
EXTRA_SWITCHES: dict[str, bool] = {
    "enableHierarchy": False,
    "EnabledClusterOrder": False,
}

#: Every switch of a plugin option with its default when absent.
SWITCHES: dict[str, bool] = {
    **{hook.switch: True for hook in HOOKS if hook.switch is not None},
    **EXTRA_SWITCHES,
}
