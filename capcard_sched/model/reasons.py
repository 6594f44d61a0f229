"""Every event, condition and refusal reason: the word, its type and its text, in one place.

A new reason is a new row here. `render` fills the format; users' alerts match the texts byte for byte.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

from capcard_sched.model.quoting import escaped
from capcard_sched.model.text_cache import text_cache

_DIGITS: Final = re.compile(r"\d+")


#: A gang has one message for all its pods, and closes compare it in every session.
# Computed 1.5 us, kept 0.5 (benchmarks/caches.py).
@text_cache(1024, short=8192)
def without_numbers(message: str) -> str:
    """A message with its numbers replaced, so that messages that differ only in numbers are equal."""
    return _DIGITS.sub("#", message)


class Reason(NamedTuple):
    """One row: `code` is the reason word, `text` a `str.format` template with the names of its fields."""

    code: str
    text: str
    type: Literal["Normal", "Warning"] = "Warning"

    def render(self, **fields: Any) -> str:
        """The message; control characters of values are escaped. Raises KeyError when a field is missing."""
        return escaped(self.text.format(**fields))


# --- capacity-card -------------------------------------------------------------------------------------------------
INSUFFICIENT_SCALAR_QUOTA = Reason(
    "InsufficientScalarQuota",
    "Queue <{queue}> has insufficient <{card}> quota: requested <{requested}>, total would be <{total}>, "
    "but capability is <{limit}>",
)
INSUFFICIENT_CPU_QUOTA = Reason(
    "InsufficientCPUQuota",
    "Queue <{queue}> has insufficient CPU quota: requested <{requested}>, total would be <{total}>, "
    "but capability is <{limit}>",
)
INSUFFICIENT_MEMORY_QUOTA = Reason(
    "InsufficientMemoryQuota",
    "Queue <{queue}> has insufficient memory quota: requested <{requested} Mi>, total would be <{total} Mi>, "
    "but capability is <{limit} Mi>",
)
EMPTY_QUEUE_CAPABILITY = Reason(
    "EmptyQueueCapability", "Queue <{queue}> capability <{capability}> is empty, deny it to {verb}"
)
CAN_NEVER_START = Reason(
    "CanNeverStart",
    "can never start: needs {needed}, quota is {limit} (<{resource}> of Queue <{queue}>); nothing is reserved for it",
)
TOO_FEW_PLACES = Reason(
    "CanNeverStart",
    "can never start: needs {needed} with <{resource}>, and the nodes have space for {limit}",
)
NO_PLACES = Reason("CanNeverStart", "can never start: needs {needed}, and {places}; nothing is reserved for it")
GET_TASK_REQUEST_RESOURCE_FAILED = Reason(
    "GetTaskRequestResourceFailed", "Get request resource failed, Queue <{queue}>, error: <{error}>"
)
CLAIM_CARDS_POSTPONED = Reason("SessionDeadline", "not tried in this session: {error}")
INVALID_CARD_REQUEST = Reason("InvalidCardRequest", "Invalid annotation volcano.sh/card.request: {detail}")
INVALID_SERVICE_TYPE = Reason(
    "InvalidServiceType",
    "Invalid annotation volcano.sh/service.type: <{value}> is neither inference nor training; treated as unknown",
)
INVALID_CARD_QUOTA = Reason(
    "InvalidCardQuota", "Invalid annotation volcano.sh/card.quota: {detail}; all card quotas of Queue <{queue}> are 0"
)

INVALID_CARD_LABEL = Reason("InvalidCardLabel", "Label {key}={value} is not a positive integer")
CARD_NAME_MISSING = Reason(
    "CardNameMissing",
    "Pod requests <{resource}> without annotation volcano.sh/card.name; "
    "it is not charged to any card quota of Queue <{queue}>",
)
CARD_BUDGET_SPENT = Reason(
    "CardBudgetSpent",
    "CardBudget <{budget}> of Queue <{queue}> is spent: <{card}> used <{figures}> {span}{effect}",
)
QUEUE_NOT_OPEN = Reason("QueueNotOpen", "Queue <{queue}> is <{state}>, cannot enqueue")
QUEUE_NOT_OPEN_ALLOCATE = Reason("QueueNotOpen", "Queue <{queue}> is <{state}>")
QUEUE_NOT_OPEN_RECLAIM = Reason(
    "QueueNotOpen", "Queue <{queue}> current state: <{state}>, is not open state, can not reclaim for <{task}>."
)

# --- quota and admission plugins (event reason is always `Unschedulable`) -------------------------------------------
CLUSTER_OVERUSED = Reason("Unschedulable", "resource in cluster is overused{dimensions}", "Normal")
QUEUE_QUOTA_INSUFFICIENT = Reason("Unschedulable", "queue resource quota insufficient{dimensions}", "Normal")
DEVICE_QUOTA_UNBOUNDED = Reason(
    "Unschedulable",
    "request {request} takes all devices, and queue {queue} limits {resource}: only a count is supported there",
    "Normal",
)
QUEUE_OVERCOMMIT_EXCEEDED = Reason(
    "Unschedulable", "overcommit factor of queue {queue} is exhausted{dimensions}", "Normal"
)
OVERCOMMIT_FACTOR_INVALID = Reason(
    "Unschedulable", "annotation volcano.sh/overcommit-factor of queue {queue} is {value}; accepted: {form}", "Normal"
)
FAIR_SHARE_USED = Reason(
    "Unschedulable",
    "namespace {namespace} holds {running} {resource} of its fair share of {share} in queue {queue}",
    "Normal",
)
RESOURCE_QUOTA_INSUFFICIENT = Reason(
    "Unschedulable", "resource quota insufficient, requested: {requested}, used: {used}, limited: {limited}", "Normal"
)
EXTENDER_REJECTED = Reason("Unschedulable", "rejected by the extender{detail}", "Normal")
SLA_DEADLINE_REACHED = Reason(
    "SLADeadlineReached", "SLA deadline reached: the job has waited for {limit} and is prioritized", "Normal"
)
QUEUE_OVERUSED = Reason("Unschedulable", "Queue <{queue}> is overused", "Normal")
SESSION_DEADLINE = Reason(
    "SessionDeadline",
    "not tried in this session: Queue <{queue}> used its share of the session deadline (--session-deadline)",
)
ATTEMPT_TOO_LONG = Reason(
    "SessionDeadline", "attempt ended: it takes longer than the session deadline (--session-deadline)"
)
CLAIM_SEARCHES = Reason(
    "SessionDeadline",
    "not tried in this session: the namespace reached the bound of searches that find no devices for ResourceClaims",
)
CLAIM_SELECTORS = Reason(
    "SessionDeadline",
    "attempt ended early: the selectors of the ResourceClaims of the namespace reached the limit of steps per session; "
    "the next session continues",
)
GROUP_COMPARISONS = Reason(
    "SessionDeadline",
    "not tried in this session: the namespace reached the bound of comparisons of PodGroups by spec.topologyAffinity",
)
QUEUE_STRICT_FIFO = Reason("Unschedulable", "Waiting behind <{job}> (FIFO queue <{queue}>)", "Normal")

# --- capacity: hierarchical queues ---------------------------------------------------------------------------------
QUEUE_CYCLE = Reason("InvalidQueueHierarchy", "cycle detected in queue hierarchy for queue {queue}")
QUEUE_PARENT_INVALID = Reason("InvalidQueueHierarchy", "the queue {queue} has invalid parent queue {parent}")
QUEUE_CAPABILITY_EXCEEDED = Reason(
    "InvalidQueueHierarchy",
    "queue <{queue}> capability <{capability}> is less than its child queue <{child}> capability <{child_capability}>",
)
QUEUE_SHARES_EXCEEDED = Reason(
    "InvalidQueueHierarchy",
    "queue <{queue}> {kind} resources <{amounts}> are less than the sum of its child queues' {kind} resources "
    "<{wanted}>",
)
QUEUE_NOT_LEAF = Reason("QueueNotLeaf", "Queue <{queue}> is not a leaf queue")

# --- the framework itself -------------------------------------------------------------------------------------------
QUEUE_NOT_FOUND = Reason("QueueNotFound", "{problem}")
QUEUE_NOT_READY = Reason("QueueNotReady", "NamespaceQueue <{queue}> is not ready: {cause}")
PODGROUP_NOT_FOUND = Reason("PodGroupNotFound", "PodGroup <{namespace}/{name}> does not exist")
CONF_REJECTED = Reason(
    "InvalidSchedulerConf",
    "Invalid scheduler-conf, the last valid one stays in effect (at start the built-in one): {detail}",
)
INVALID_OBJECT = Reason("InvalidObject", "{detail}")
TOPOLOGY_AFFINITY_IGNORED = Reason(
    "TopologyAffinityIgnored",
    "{detail} has no effect without the plugin group-topology-affinity: the PodGroup may share a HyperNode with others",
)
TOPOLOGY_OCCUPIED = Reason(
    "TopologyOccupied", "no HyperNode is free by spec.topologyAffinity of the PodGroup: {detail}"
)
QUEUE_NAMESPACE_DENIED = Reason(
    "QueueNamespaceDenied",
    "Queue <{queue}> does not accept jobs of namespace <{namespace}> (annotation {annotation} of Queue <{owner}>)",
)
QUEUE_ACCEPTS_NO_JOBS = Reason("QueueAcceptsNoJobs", "Queue <{queue}> accepts no jobs: {cause}")
LIMIT_NOT_ENFORCED = Reason("LimitNotEnforced", "{detail}")
INVALID_QUEUE_NAMESPACES = Reason(
    "InvalidQueueNamespaces", "Invalid annotation {annotation}: {detail}; Queue <{queue}> accepts no namespace"
)
PRIORITY_CLASS_IGNORED = Reason(
    "PriorityClassIgnored", "PriorityClass {name} counts only in namespace kube-system; the default priority applies"
)
QUOTA_EVASION_IGNORED = Reason("QuotaEvasionIgnored", "{detail}: ignored, queue and charge of bound pods do not change")
INVALID_ANNOTATION = Reason("InvalidAnnotation", "Invalid annotation {key}: {detail}; accepted: {accepted}")
DEVICE_CONFIG = Reason("InvalidDeviceConfig", "{key} is not used, the last valid one is: {detail}")
DEVICE_REGISTRATION = Reason("InvalidDeviceRegistration", "{detail}")
DEVICE_REQUEST = Reason("InvalidDeviceRequest", "{detail}")
DEVICE_ANNOTATION = Reason("InvalidDeviceAnnotation", "{detail}")
DEVICES_OVERBOOKED = Reason("DevicesOverbooked", "card {card} holds more than it has: {detail}")
PLUGIN_FAILED = Reason("PluginFailed", "Plugin {plugin} failed in {hook}: {error}")
INQUEUE_TIMEOUT = Reason(
    "InqueueTimeout",
    "No pod was scheduled within {seconds} s of admission to Queue <{queue}>; "
    "moved back to Pending, other jobs are tried",
)
NOT_ENOUGH_PODS_OF_TASK = Reason("NotEnoughPodsOfTask", "Not enough valid pods of each task for gang-scheduling")
UNSUPPORTED_FEATURE = Reason("UnsupportedFeature", "{detail}")
SCHEDULING_GATED = Reason("SchedulingGated", "{detail}")
NODE_NOT_READY = Reason("NodeNotReady", "{detail}")
TWO_POD_GROUPS = Reason("TwoPodGroups", "{detail}")
OTHER_SCHEDULER = Reason("OtherScheduler", "{detail}")
KUBE_GROUP_MISSING = Reason("PodGroupNotFound", "waiting for PodGroup {name} of scheduling.k8s.io")
AUTOMATIC_GROUP_MISSING = Reason("PodGroupNotFound", "waiting for the controllers to create PodGroup {name}")
KUBE_GROUP_INCOMPLETE = Reason("NotEnoughPods", "{valid}/{minimum} pods of PodGroup {name} exist")
KUBE_GROUP_NOT_BOUND = Reason("MinimumNotBound", "{bound} of minCount {minimum} pods are bound{detail}")
NOT_ENOUGH_TASKS = Reason(
    "NotEnoughTasks", "Not enough valid tasks for gang-scheduling, valid: {valid}, min: {minimum}"
)
NOT_ENOUGH_RESOURCES = Reason("NotEnoughResources", "{unready}/{total} tasks in gang unschedulable: {detail}")
PODGROUP_UNSCHEDULABLE = Reason("Unschedulable", "{pending}/{total} tasks in gang unschedulable: {detail}")
PODGROUP_SCHEDULED = Reason("Scheduled", "pod group is ready", "Normal")
HALF_GANG = Reason(
    "HalfGang",
    "{bound} on nodes, and the gang never had its minimum of {minimum}: its pending pods are scheduled before "
    "those of other jobs{end}",
)
HALF_GANG_EVICTED = Reason(
    "HalfGangEvicted",
    "{bound} evicted, bound for {seconds} s: the gang never had its minimum of {minimum} (--half-gang-timeout)",
)
GANG_WAS_WHOLE = Reason("GangWasWhole", "the gang had its minimum; its bound pods stay", "Normal")
GANG_READY = Reason("tasks in gang are ready to be scheduled", "", "Normal")
GATE_REMOVED = Reason(
    "SchedulingGateRemoved", "Queue <{queue}> admits the pod: scheduling gate {gate} is removed", "Normal"
)
GATE_NOT_REMOVED = Reason("GateNotRemoved", "scheduling gate {gate} is not removed: {detail}")
CLAIMS_RELEASED = Reason(
    "ResourceClaimsReleased",
    "the devices of ResourceClaims <{claims}> are released: {cause}",
)
DEVICE_ALLOCATED_TWICE = Reason(
    "DeviceAllocatedTwice",
    "devices are allocated to other ResourceClaims, too: {detail}; two schedulers must not allocate from one pool",
)
FAILED_ALLOCATION = Reason("FailedAllocation", "{detail}")
BINDING_CONDITIONS_PENDING = Reason(
    "BindingConditionsPending",
    "the pod is bound when its devices are ready: {detail}",
    "Normal",
)
POD_SCHEDULED = Reason("Scheduled", "Successfully assigned {namespace}/{name} to {node}", "Normal")
FAILED_SCHEDULING = Reason("FailedScheduling", "{detail}")
POD_UNSCHEDULABLE = Reason("Unschedulable", "{detail}")
POD_SCHEDULABLE = Reason(
    "Schedulable", "Pod {namespace}/{name} can possibly be assigned to {node}, once minAvailable is satisfied", "Normal"
)
POD_PIPELINED = Reason(
    "Unschedulable",
    "Pod {namespace}/{name} can possibly be assigned to {node}, "
    "once resource is released and minAvailable is satisfied",
)

# --- reasons of PodScheduled=False: cluster autoscalers add nodes for `Unschedulable` alone (docs/autoscaling.md) ----
POD_QUOTA_PENDING = Reason("QuotaPending", "{detail}", "Normal")
POD_ORDER_PENDING = Reason("OrderPending", "{detail}", "Normal")
POD_GANG_PENDING = Reason("GangPending", "{detail}", "Normal")
POD_RELEASE_PENDING = Reason("ReleasePending", "{detail}", "Normal")
POD_PREREQUISITE_PENDING = Reason("PrerequisitePending", "{detail}", "Normal")
POD_SCHEDULER_ERROR = Reason("SchedulerError", "{detail}")
POD_PROVISIONING_PENDING = Reason("ProvisioningPending", "{detail}", "Normal")
GANG_LACKS_NODES = Reason("Unschedulable", "{detail}; the gang lacks nodes for {missing}")

# --- ProvisioningRequests of gangs ----------------------------------------------------------------------------------
PROVISIONING_REQUESTED = Reason(
    "ProvisioningRequested", "ProvisioningRequest <{name}> asks for nodes for {pods} of the gang", "Normal"
)
PROVISIONING_FAILED = Reason(
    "ProvisioningFailed", "ProvisioningRequest <{name}> failed: {detail}; the next one follows in {seconds} s"
)
PROVISIONING_BACKOFF = Reason(
    "ProvisioningBackoff", "the ProvisioningRequest of the gang failed: it is admitted with the next one", "Normal"
)
PROVISIONING_UNAVAILABLE = Reason(
    "ProvisioningUnavailable",
    "--provisioning-request-class has no effect until a restart: {detail}; pods that lack nodes are Unschedulable",
)
TOO_MANY_REQUESTS = Reason(
    "ProvisioningDelayed",
    "{most} ProvisioningRequests of namespace {namespace} are pending: that of the gang follows",
)
TOO_MANY_POD_SETS = Reason(
    "TooManyPodSets",
    "the minimum of the gang has {count} roles and templates, and a ProvisioningRequest has {most} at most: "
    "its pods are Unschedulable instead",
)

# --- preemption and reclaim -----------------------------------------------------------------------------------------
CAPACITY_RECLAIMED = Reason(
    "Reclaimed", "{pods} pods of {jobs} jobs evicted on node {node}: {names}; waiting for {lacking}", "Normal"
)
CAPACITY_PREEMPTED = Reason(
    "Preempting", "{pods} pods of {jobs} jobs evicted on node {node}: {names}; waiting for {lacking}", "Normal"
)
RECLAIM_FAILED = Reason("ReclaimFailed", "0/{nodes} nodes can be reclaimed{causes}")
RECLAIM_EXPIRED = Reason("ReclaimExpired", "reservation on node {node} expired after {seconds}s")
PREEMPT_EXPIRED = Reason("PreemptExpired", "reservation on node {node} expired after {seconds}s")
GROUP_EVICTED = Reason("Evict", "{action}: {pods} pods evicted for {by} of queue {queue}", "Normal")

# --- network topology ----------------------------------------------------------------------------------------------
HYPER_NODES_NOT_READY = Reason("HyperNodesNotReady", "{field} of the PodGroup is hard, and no HyperNode exists")
NO_SUCH_TIER = Reason("NoSuchTier", "{field} of the PodGroup is hard, and no HyperNode has tier {tier}")
BEYOND_HYPER_NODES = Reason(
    "BeyondHyperNodes",
    "spec.networkTopology of the PodGroup is hard, and its scheduled pods do not share a HyperNode "
    "within the allowed tier",
)
NO_HYPER_NODE_FITS = Reason("NoHyperNodeFits", "no HyperNode up to tier {tier} fits {needed} of the job: {detail}")

BEYOND_TOPOLOGY_DOMAIN = Reason(
    "BeyondTopologyDomain", "the scheduled pods of the PodGroup do not share a value of the node label {label}"
)
NO_TOPOLOGY_DOMAIN_FITS = Reason(
    "NoTopologyDomainFits", "no value of the node label {label} fits {needed} of the job: {detail}"
)

NOT_ENOUGH_SUBGROUPS = Reason("NotEnoughSubGroups", "policy <{policy}>: {found}/{minimum} subgroups of {size} {verb}")
SUBGROUP_INCOMPLETE = Reason("GangPending", "policy <{policy}>: {found} of {size} of subgroup <{subgroup}> exist")
SUBGROUP_UNPLACED = Reason(
    "Unschedulable", "policy <{policy}>: subgroup <{subgroup}> of {need} does not fit as a whole"
)
SUBGROUP_SEARCH_ENDED = Reason("Unschedulable", "search ended at its limit before it found nodes for the subgroups")

NODE_GROUP_PARENT = Reason("InvalidQueueParent", "Queue <{queue}> inherits no node groups: {detail}")
NODE_GROUP_LIMITS = Reason(
    "InvalidNodeGroupLimits", "Invalid annotation volcano.sh/nodegroup-resource-limits: {detail}"
)


def every() -> dict[str, Reason]:
    """All rows by constant name, for the docs table and the test that renders each."""
    return {name: value for name, value in sorted(globals().items()) if isinstance(value, Reason)}
