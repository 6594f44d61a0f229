"""Every event, condition and refusal reason: the word, its type and its text, in one place.

A new reason is a new row here. `render` fills the format; users' alerts match the texts byte for byte.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

_DIGITS: Final = re.compile(r"\d+")


#: A gang has one message for all its pods, and closes compare it in every session.
@lru_cache(1024)
def without_numbers(message: str) -> str:
    """A message with its numbers replaced, so that messages that differ only in numbers are equal."""
    return _DIGITS.sub("#", message)


class Reason(NamedTuple):
    """One row: `code` is the reason word, `text` a `str.format` template with the names of its fields."""

    code: str
    type: Literal["Normal", "Warning"]
    text: str

    def render(self, **fields: Any) -> str:
        """The message. Raises KeyError when a field is missing."""
        return self.text.format(**fields)


# --- capacity-card -------------------------------------------------------------------------------------------------
INSUFFICIENT_SCALAR_QUOTA = Reason(
    "InsufficientScalarQuota",
    "Warning",
    "Queue <{queue}> has insufficient <{card}> quota: requested <{requested}>, total would be <{total}>, "
    "but capability is <{limit}>",
)
INSUFFICIENT_CPU_QUOTA = Reason(
    "InsufficientCPUQuota",
    "Warning",
    "Queue <{queue}> has insufficient CPU quota: requested <{requested}>, total would be <{total}>, "
    "but capability is <{limit}>",
)
INSUFFICIENT_MEMORY_QUOTA = Reason(
    "InsufficientMemoryQuota",
    "Warning",
    "Queue <{queue}> has insufficient memory quota: requested <{requested} Mi>, total would be <{total} Mi>, "
    "but capability is <{limit} Mi>",
)
EMPTY_QUEUE_CAPABILITY = Reason(
    "EmptyQueueCapability",
    "Warning",
    "Queue <{queue}> capability <{capability}> is empty, deny it to {verb}",
)
CAN_NEVER_START = Reason(
    "CanNeverStart",
    "Warning",
    "can never start: needs {needed}, quota is {limit} (<{resource}> of Queue <{queue}>); nothing is reserved for it",
)
GET_TASK_REQUEST_RESOURCE_FAILED = Reason(
    "GetTaskRequestResourceFailed",
    "Warning",
    "Get request resource failed, Queue <{queue}>, error: <{error}>",
)
INVALID_CARD_REQUEST = Reason("InvalidCardRequest", "Warning", "Invalid annotation volcano.sh/card.request: {detail}")
INVALID_SERVICE_TYPE = Reason(
    "InvalidServiceType",
    "Warning",
    "Invalid annotation volcano.sh/service.type: <{value}> is neither inference nor training; treated as unknown",
)
INVALID_CARD_QUOTA = Reason(
    "InvalidCardQuota",
    "Warning",
    "Invalid annotation volcano.sh/card.quota: {detail}; all card quotas of Queue <{queue}> are 0",
)

INVALID_CARD_LABEL = Reason("InvalidCardLabel", "Warning", "Label {key}={value} is not a positive integer")
CARD_NAME_MISSING = Reason(
    "CardNameMissing",
    "Warning",
    "Pod requests <{resource}> without annotation volcano.sh/card.name; "
    "it is not charged to any card quota of Queue <{queue}>",
)
QUEUE_NOT_OPEN = Reason("QueueNotOpen", "Warning", "Queue <{queue}> is <{state}>, cannot enqueue")
QUEUE_NOT_OPEN_ALLOCATE = Reason("QueueNotOpen", "Warning", "Queue <{queue}> is <{state}>")
QUEUE_NOT_OPEN_RECLAIM = Reason(
    "QueueNotOpen",
    "Warning",
    "Queue <{queue}> current state: <{state}>, is not open state, can not reclaim for <{task}>.",
)

# --- quota and admission plugins (event reason is always `Unschedulable`) -------------------------------------------
CLUSTER_OVERUSED = Reason("Unschedulable", "Normal", "resource in cluster is overused{dimensions}")
QUEUE_QUOTA_INSUFFICIENT = Reason("Unschedulable", "Normal", "queue resource quota insufficient{dimensions}")
RESOURCE_QUOTA_INSUFFICIENT = Reason(
    "Unschedulable", "Normal", "resource quota insufficient, requested: {requested}, used: {used}, limited: {limited}"
)
EXTENDER_REJECTED = Reason("Unschedulable", "Normal", "rejected by the extender{detail}")
SLA_DEADLINE_REACHED = Reason(
    "SLADeadlineReached", "Normal", "SLA deadline reached: the job has waited for {limit} and is prioritized"
)
QUEUE_OVERUSED = Reason("Unschedulable", "Normal", "Queue <{queue}> is overused")
SESSION_DEADLINE = Reason(
    "SessionDeadline",
    "Warning",
    "not tried in this session: Queue <{queue}> used its share of the session deadline (--session-deadline)",
)
ATTEMPT_TOO_LONG = Reason(
    "SessionDeadline",
    "Warning",
    "attempt ended: it takes longer than the session deadline (--session-deadline)",
)
QUEUE_STRICT_FIFO = Reason("Unschedulable", "Normal", "Waiting behind <{job}> (FIFO queue <{queue}>)")

# --- capacity: hierarchical queues ---------------------------------------------------------------------------------
QUEUE_CYCLE = Reason("InvalidQueueHierarchy", "Warning", "cycle detected in queue hierarchy for queue {queue}")
QUEUE_PARENT_INVALID = Reason("InvalidQueueHierarchy", "Warning", "the queue {queue} has invalid parent queue {parent}")
QUEUE_CAPABILITY_EXCEEDED = Reason(
    "InvalidQueueHierarchy",
    "Warning",
    "queue <{queue}> capability <{capability}> is less than its child queue <{child}> capability <{child_capability}>",
)
QUEUE_SHARES_EXCEEDED = Reason(
    "InvalidQueueHierarchy",
    "Warning",
    "queue <{queue}> {kind} resources <{amounts}> are less than the sum of its child queues' {kind} resources "
    "<{wanted}>",
)
QUEUE_NOT_LEAF = Reason("QueueNotLeaf", "Warning", "Queue <{queue}> is not a leaf queue")

# --- the framework itself -------------------------------------------------------------------------------------------
QUEUE_NOT_FOUND = Reason("QueueNotFound", "Warning", "Queue <{queue}> does not exist")
PODGROUP_NOT_FOUND = Reason("PodGroupNotFound", "Warning", "PodGroup <{namespace}/{name}> does not exist")
CONF_REJECTED = Reason(
    "InvalidSchedulerConf",
    "Warning",
    "Invalid scheduler-conf, the last valid one stays in effect (at start the built-in one): {detail}",
)
INVALID_OBJECT = Reason("InvalidObject", "Warning", "{detail}")
QUEUE_NAMESPACE_DENIED = Reason(
    "QueueNamespaceDenied",
    "Warning",
    "Queue <{queue}> does not accept jobs of namespace <{namespace}> (annotation {annotation} of Queue <{owner}>)",
)
QUEUE_ACCEPTS_NO_JOBS = Reason("QueueAcceptsNoJobs", "Warning", "Queue <{queue}> accepts no jobs: {cause}")
LIMIT_NOT_ENFORCED = Reason("LimitNotEnforced", "Warning", "{detail}")
INVALID_QUEUE_NAMESPACES = Reason(
    "InvalidQueueNamespaces",
    "Warning",
    "Invalid annotation {annotation}: {detail}; Queue <{queue}> accepts no namespace",
)
PRIORITY_CLASS_IGNORED = Reason(
    "PriorityClassIgnored",
    "Warning",
    "PriorityClass {name} counts only in namespace kube-system; the default priority applies",
)
QUOTA_EVASION_IGNORED = Reason(
    "QuotaEvasionIgnored", "Warning", "{detail}: ignored, queue and charge of bound pods do not change"
)
INVALID_ANNOTATION = Reason("InvalidAnnotation", "Warning", "Invalid annotation {key}: {detail}; accepted: {accepted}")
DEVICE_CONFIG = Reason("InvalidDeviceConfig", "Warning", "{key} is not used, the last valid one is: {detail}")
DEVICE_REGISTRATION = Reason("InvalidDeviceRegistration", "Warning", "{detail}")
DEVICE_REQUEST = Reason("InvalidDeviceRequest", "Warning", "{detail}")
DEVICE_ANNOTATION = Reason("InvalidDeviceAnnotation", "Warning", "{detail}")
DEVICES_OVERBOOKED = Reason("DevicesOverbooked", "Warning", "card {card} holds more than it has: {detail}")
PLUGIN_FAILED = Reason("PluginFailed", "Warning", "Plugin {plugin} failed in {hook}: {error}")
INQUEUE_TIMEOUT = Reason(
    "InqueueTimeout",
    "Warning",
    "No pod was scheduled within {seconds} s of admission to Queue <{queue}>; "
    "moved back to Pending, other jobs are tried",
)
NOT_ENOUGH_PODS_OF_TASK = Reason(
    "NotEnoughPodsOfTask", "Warning", "Not enough valid pods of each task for gang-scheduling"
)
NOT_ENOUGH_TASKS = Reason(
    "NotEnoughTasks", "Warning", "Not enough valid tasks for gang-scheduling, valid: {valid}, min: {minimum}"
)
NOT_ENOUGH_RESOURCES = Reason(
    "NotEnoughResources", "Warning", "{unready}/{total} tasks in gang unschedulable: {detail}"
)
PODGROUP_UNSCHEDULABLE = Reason("Unschedulable", "Warning", "{pending}/{total} tasks in gang unschedulable: {detail}")
PODGROUP_SCHEDULED = Reason("Scheduled", "Normal", "pod group is ready")
GANG_READY = Reason("tasks in gang are ready to be scheduled", "Normal", "")
POD_SCHEDULED = Reason("Scheduled", "Normal", "Successfully assigned {namespace}/{name} to {node}")
FAILED_SCHEDULING = Reason("FailedScheduling", "Warning", "{detail}")
POD_UNSCHEDULABLE = Reason("Unschedulable", "Warning", "{detail}")
POD_SCHEDULABLE = Reason(
    "Schedulable",
    "Normal",
    "Pod {namespace}/{name} can possibly be assigned to {node}, once minAvailable is satisfied",
)
POD_PIPELINED = Reason(
    "Unschedulable",
    "Warning",
    "Pod {namespace}/{name} can possibly be assigned to {node}, "
    "once resource is released and minAvailable is satisfied",
)
# --- preemption and reclaim -----------------------------------------------------------------------------------------
CAPACITY_RECLAIMED = Reason(
    "Reclaimed", "Normal", "{pods} pods of {jobs} jobs evicted on node {node}: {names}; waiting for {lacking}"
)
CAPACITY_PREEMPTED = Reason(
    "Preempting", "Normal", "{pods} pods of {jobs} jobs evicted on node {node}: {names}; waiting for {lacking}"
)
RECLAIM_FAILED = Reason("ReclaimFailed", "Warning", "0/{nodes} nodes can be reclaimed{causes}")
RECLAIM_EXPIRED = Reason("ReclaimExpired", "Warning", "reservation on node {node} expired after {seconds}s")
PREEMPT_EXPIRED = Reason("PreemptExpired", "Warning", "reservation on node {node} expired after {seconds}s")
GROUP_EVICTED = Reason("Evict", "Normal", "{action}: {pods} pods evicted for {by} of queue {queue}")

# --- network topology ----------------------------------------------------------------------------------------------
HYPER_NODES_NOT_READY = Reason(
    "HyperNodesNotReady",
    "Warning",
    "spec.networkTopology of the PodGroup is hard, and no HyperNode exists",
)
NO_SUCH_TIER = Reason(
    "NoSuchTier",
    "Warning",
    "spec.networkTopology of the PodGroup is hard, and no HyperNode has tier {tier}",
)
BEYOND_HYPER_NODES = Reason(
    "BeyondHyperNodes",
    "Warning",
    "spec.networkTopology of the PodGroup is hard, and its scheduled pods do not share a HyperNode "
    "within the allowed tier",
)
NO_HYPER_NODE_FITS = Reason(
    "NoHyperNodeFits",
    "Warning",
    "no HyperNode up to tier {tier} fits {needed} pods of the job: {detail}",
)

NODE_GROUP_PARENT = Reason("InvalidQueueParent", "Warning", "Queue <{queue}> inherits no node groups: {detail}")
NODE_GROUP_LIMITS = Reason(
    "InvalidNodeGroupLimits", "Warning", "Invalid annotation volcano.sh/nodegroup-resource-limits: {detail}"
)


def every() -> dict[str, Reason]:
    """All rows by constant name, for the docs table and the test that renders each."""
    return {name: value for name, value in sorted(globals().items()) if isinstance(value, Reason)}
