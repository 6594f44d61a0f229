"""Every supported annotation and label key. Some are listed only so that `validate` accepts them."""

from functools import cache
from typing import Final

# --- cards ----------------------------------------------------------------------------------------------------------
#: Queue: JSON, card to number of cards.
CARD_QUOTA: Final = "volcano.sh/card.quota"
#: Workload and PodGroup: JSON, card or `A|B` to number of cards of the whole job.
CARD_REQUEST: Final = "volcano.sh/card.request"
#: Pod: the cards it accepts, `A|B`, preferred first.
CARD_NAME: Final = "volcano.sh/card.name"
#: Pod: read when CARD_NAME is absent.
CARD_NAME_ALIAS: Final = "volcano.sh/card.card"
#: Pod, written with the binding: the card assigned to a multi-card pod.
CARD_ASSIGNED: Final = "volcano.sh/card.assigned"
#: Queue, written by us: JSON, card to number of cards its pods hold.
CARD_ALLOCATED: Final = "volcano.sh/card.allocated"
#: Workload and PodGroup: `inference` or `training`.
SERVICE_TYPE: Final = "volcano.sh/service.type"

# --- node labels of cards -------------------------------------------------------------------------------------------
#: `<prefix>/<type>.product` names the card, `.memory` its MiB, `.count` the number of cards.
PRODUCT_SUFFIX: Final = ".product"
MEMORY_SUFFIX: Final = ".memory"
COUNT_SUFFIX: Final = ".count"
#: Shares per physical card under MPS.
GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"

# --- groups, queues, roles ------------------------------------------------------------------------------------------
#: Every key with this prefix on a workload is copied to its PodGroup.
VOLCANO_PREFIX: Final = "volcano.sh/"
#: Pod: its PodGroup, in the pod's namespace.
GROUP_NAME: Final = "scheduling.k8s.io/group-name"
#: Pod: read when GROUP_NAME is absent.
GROUP_NAME_ALIAS: Final = "scheduling.volcano.sh/group-name"
#: Workload: `minMember` of its generated PodGroup.
GROUP_MIN_MEMBER: Final = "scheduling.volcano.sh/group-min-member"
#: Pod template of a Deployment and the like: the queue of its PodGroup.
POD_QUEUE_NAME: Final = "scheduling.volcano.sh/queue-name"
#: Pods of a vcjob carry these, as annotations and mostly as labels too.
QUEUE_NAME: Final = "volcano.sh/queue-name"
JOB_NAME: Final = "volcano.sh/job-name"
JOB_NAMESPACE: Final = "volcano.sh/job-namespace"
JOB_VERSION: Final = "volcano.sh/job-version"
JOB_RETRY_COUNT: Final = "volcano.sh/job-retry-count"
JOB_TYPE: Final = "volcano.sh/job-type"
JOB_FORWARDING: Final = "volcano.sh/job-forwarding"
#: Role of a pod inside its job.
TASK_SPEC: Final = "volcano.sh/task-spec"
TASK_INDEX: Final = "volcano.sh/task-index"
#: Overrides `spec.priority` inside the job; a 32-bit integer.
TASK_PRIORITY: Final = "volcano.sh/task-priority"
TEMPLATE_UID: Final = "volcano.sh/template-uid"
PARTITION_ID: Final = "volcano.sh/partition-id"
#: Pod: the job controller deletes it on purpose, so its end raises no event.
CONTROLLER_OUT_OF_SYNC: Final = "volcano.sh/controller-out-of-sync"
#: Pod: chosen through the admission configuration's resource groups.
RESOURCE_GROUP: Final = "volcano.sh/resource-group"
#: Scheduling gate and pod annotation that hold a pod until its queue admits it.
QUEUE_ALLOCATION_GATE: Final = "scheduling.volcano.sh/queue-allocation-gate"
#: Queue hierarchy of drf: `root/eng/prod` and `1/2/4`.
HIERARCHY: Final = "volcano.sh/hierarchy"
HIERARCHY_WEIGHTS: Final = "volcano.sh/hierarchy-weights"
#: Queue: closed together with its parent.
CLOSED_BY_PARENT: Final = "volcano.sh/closed-by-parent"

# --- eviction and time ----------------------------------------------------------------------------------------------
#: Annotation or label, pod or PodGroup: preemptable.
PREEMPTABLE: Final = "volcano.sh/preemptable"
#: PodGroup: `job` makes the whole job one unit of eviction.
EVICT_SCOPE: Final = "volcano.sh/evict-scope"
#: Node label: the zone; pod and PodGroup: `*`.
REVOCABLE_ZONE: Final = "volcano.sh/revocable-zone"
#: Pod, label or else annotation: Go duration after scheduling during which it is not evicted.
COOLDOWN_TIME: Final = "volcano.sh/cooldown-time"
#: PodGroup: Go duration after which a waiting job takes precedence.
SLA_WAITING_TIME: Final = "volcano.sh/sla-waiting-time"
SLA_WAITING_TIME_ALIAS: Final = "sla-waiting-time"
#: PodGroup: disruption budget of a job.
JDB_MIN_AVAILABLE: Final = "volcano.sh/jdb-min-available"
JDB_MAX_UNAVAILABLE: Final = "volcano.sh/jdb-max-unavailable"

# --- placement ------------------------------------------------------------------------------------------------------
NUMA_TOPOLOGY_POLICY: Final = "volcano.sh/numa-topology-policy"
NUMA_TOPOLOGY_DECISION: Final = "volcano.sh/topology-decision"
TASK_TOPOLOGY_AFFINITY: Final = "volcano.sh/task-topology-affinity"
TASK_TOPOLOGY_ANTI_AFFINITY: Final = "volcano.sh/task-topology-anti-affinity"
TASK_TOPOLOGY_TASK_ORDER: Final = "volcano.sh/task-topology-task-order"
RESOURCE_STRATEGY_SCORING_TYPE: Final = "volcano.sh/resource-strategy-scoring-type"
RESOURCE_STRATEGY_WEIGHT: Final = "volcano.sh/resource-strategy-weight"
#: Pod: `networkTopology` of the PodGroup made for it: `hard` or `soft`, and the highest tier.
NETWORK_TOPOLOGY_MODE: Final = "volcano.sh/network-topology-mode"
NETWORK_TOPOLOGY_HIGHEST_TIER: Final = "volcano.sh/network-topology-highest-tier"
JOB_ALLOCATED_HYPERNODE: Final = "volcano.sh/job-allocated-hypernode"
#: Node label: its group; queue annotation: limits per group.
NODEGROUP_NAME: Final = "volcano.sh/nodegroup-name"
NODEGROUP_RESOURCE_LIMITS: Final = "volcano.sh/nodegroup-resource-limits"
#: Node annotations of oversubscription: cpu in milli-cpu, memory in bytes.
OVERSUBSCRIPTION_CPU: Final = "volcano.sh/oversubscription-cpu"
OVERSUBSCRIPTION_MEMORY: Final = "volcano.sh/oversubscription-memory"
OFFLINE_JOB_EVICTING: Final = "volcano.sh/offline-job-evicting"
#: Taint of a cordoned node.
NODE_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
HOSTNAME: Final = "kubernetes.io/hostname"

# --- shared devices ----------------------------------------------------------------------------------------------
VGPU_NODE: Final = "volcano.sh/vgpu-node"
VGPU_TIME: Final = "volcano.sh/vgpu-time"
VGPU_IDS: Final = "volcano.sh/vgpu-ids-new"
VGPU_DEVICES_TO_ALLOCATE: Final = "volcano.sh/devices-to-allocate"
VGPU_MODE: Final = "volcano.sh/vgpu-mode"
VGPU_USE_UUID: Final = "volcano.sh/vgpu-use-gpuuuid"
VGPU_NOUSE_UUID: Final = "volcano.sh/vgpu-nouse-gpuuuid"
VGPU_PODGROUP_POLICY: Final = "volcano.sh/vgpu-podgroup-policy"
USE_GPU_TYPE: Final = "nvidia.com/use-gputype"
NOUSE_GPU_TYPE: Final = "nvidia.com/nouse-gputype"
NODE_VGPU_REGISTER: Final = "volcano.sh/node-vgpu-register"
NODE_VGPU_HANDSHAKE: Final = "volcano.sh/node-vgpu-handshake"
#: ConfigMap of a device plugin: the key of its settings.
DEVICE_CONFIG_KEY: Final = "device-config.yaml"
BIND_PHASE: Final = "volcano.sh/bind-phase"
BIND_TIME: Final = "volcano.sh/bind-time"
GPU_INDEX: Final = "volcano.sh/gpu-index"
GPU_UNHEALTHY_IDS: Final = "volcano.sh/gpu-unhealthy-ids"
PREDICATE_TIME: Final = "volcano.sh/predicate-time"
#: Pod, written with the binding: the vNPUs it got, `0-vir04`.
NPU_CORE: Final = "huawei.com/npu-core"
#: Pod labels: whether a vNPU may have fewer AI CPUs (`low`) or not (`high`), and whether it has the media engine.
VNPU_LEVEL: Final = "vnpu-level"
VNPU_DVPP: Final = "vnpu-dvpp"
#: Pod: where its devices are, and how far a device plugin is with them.
DEVICE_ANNOTATIONS: Final = frozenset({VGPU_NODE, VGPU_TIME, VGPU_IDS, BIND_PHASE, GPU_INDEX, NPU_CORE})
#: Those that name the devices of a pod: the first sight of a bound pod fixes them.
FIXED_DEVICE_ANNOTATIONS: Final = frozenset({VGPU_NODE, VGPU_IDS, GPU_INDEX, NPU_CORE})

# --- replicas -------------------------------------------------------------------------------------------------------
#: Binding (and so pod), written by us: holder and term of the Lease at decision time, `holder/leaseTransitions`.
FENCE: Final = "capcard-sched.io/fence"

#: Node, while a pod with shared devices is bound to it: the time, and an identifier of the lock.
BINDING_LOCK: Final = "capcard-sched.io/binding-lock"

#: Pod, written with the binding: the queue that is charged for it, also after a restart.
BOUND_QUEUE: Final = "capcard-sched.io/queue"

#: Namespace: `true` lets users raise requests of bound pods; read by the admission policy of pods.
ALLOW_RESIZE: Final = "capcard-sched.io/allow-resize"

#: Workload, pod or PodGroup: Go duration from start to end, as its owner expects it; read for expected starts.
RUNNING_ESTIMATE: Final = "capcard-sched.io/running-estimate"

#: Label or annotation of pods or PodGroup: the user whom the ledger charges.
LEDGER_USER: Final = "capcard-sched.io/user"

# --- controllers ----------------------------------------------------------------------------------------------------
#: Queue, of Volcano's gate QueueScopedOvercommit: without effect.
#: HyperNode: the source from which Volcano's controller made it, and to which it keeps it equal.
DISCOVERED_FROM: Final = "volcano.sh/network-topology-source"
OVERCOMMIT_FACTOR: Final = "volcano.sh/overcommit-factor"
#: The namespaces whose jobs a Queue accepts (`model.queue_access`); absent: all.
QUEUE_NAMESPACES: Final = "capcard-sched.io/namespaces"
#: PodGroup, written by us: the annotation keys that were copied from its pods and their owners.
INHERITED_KEYS: Final = "capcard-sched.io/inherited-keys"
#: Translation of a PodGroup of `scheduling.k8s.io`, never written: why its pods wait, its priority, its preemption
#: policy, and the node label of which its pods share a value.
HELD: Final = "capcard-sched.io/held"
GROUP_PRIORITY: Final = "capcard-sched.io/priority"
PREEMPTION_POLICY: Final = "capcard-sched.io/preemption-policy"
TOPOLOGY_LABEL: Final = "capcard-sched.io/topology-label"
#: On a PodGroup: the rule of `ownerGroups` by which the controller made it.
OWNER_RULE: Final = "capcard-sched.io/owner-rule"

# --- the simulator --------------------------------------------------------------------------------------------------
#: Pod: duration from its start to its end.
SIMULATION_DURATION: Final = "simulation.capcard-sched.io/duration"
#: Pod: its exit code; "0" when unset.
SIMULATION_EXIT_CODE: Final = "simulation.capcard-sched.io/exit-code"
#: Pod: duration of Terminating, overrides `terminationGracePeriodSeconds`.
SIMULATION_GRACE: Final = "simulation.capcard-sched.io/grace"
#: Node: its measured load, `cpu=80,memory=50` in percent; valid until the next value.
SIMULATION_USAGE: Final = "simulation.capcard-sched.io/usage"

#: Pod annotations that affect placement or charge: pods that differ in them belong to different classes.
#: PREEMPTABLE is among them because `true` admits a pod to revocable nodes.
CLASS_ANNOTATIONS: Final = frozenset(
    {
        CARD_NAME,
        CARD_NAME_ALIAS,
        NUMA_TOPOLOGY_POLICY,
        REVOCABLE_ZONE,
        PREEMPTABLE,
        RESOURCE_STRATEGY_SCORING_TYPE,
        RESOURCE_STRATEGY_WEIGHT,
        VGPU_MODE,
        VGPU_USE_UUID,
        VGPU_NOUSE_UUID,
        VGPU_PODGROUP_POLICY,
        USE_GPU_TYPE,
        NOUSE_GPU_TYPE,
    }
)

#: Pod labels that do so.
CLASS_LABELS: Final = frozenset({VNPU_LEVEL, VNPU_DVPP})

#: Pod annotations that count as its binding found or wrote them. A restart reads them again, so the admission policy of
#: pods refuses changes of them.
BOUND_ANNOTATIONS: Final = (
    CLASS_ANNOTATIONS
    | DEVICE_ANNOTATIONS
    | {GROUP_NAME, GROUP_NAME_ALIAS, POD_QUEUE_NAME, QUEUE_NAME, BOUND_QUEUE, CARD_ASSIGNED}
    # Read by device plugins and kubelets, or by the controller of plain pods.
    | {VGPU_DEVICES_TO_ALLOCATE, NUMA_TOPOLOGY_DECISION, CARD_REQUEST}
)
#: The same of labels.
BOUND_LABELS: Final = CLASS_LABELS | {PREEMPTABLE}

#: Prefixes of supported keys: an unknown key under one of them is probably a misspelling.
OWN_PREFIXES: Final = (VOLCANO_PREFIX, "scheduling.volcano.sh/", "simulation.capcard-sched.io/")


@cache
def known_keys() -> frozenset[str]:
    """Every key under `OWN_PREFIXES` in this module."""
    return frozenset(
        value
        for name, value in globals().items()
        if name.isupper() and isinstance(value, str) and value.startswith(OWN_PREFIXES) and value not in OWN_PREFIXES
    )
