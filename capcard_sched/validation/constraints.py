"""Accepted values of known fields: one table per kind, from field paths to checks.

Bounds and words are those of an API server. Values of `volcano.sh/*` annotations and of node labels are not checked:
the scheduler reports invalid ones as events, as in a cluster.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from capcard_sched.model.annotations import (
    SIMULATION_DURATION,
    SIMULATION_EXIT_CODE,
    SIMULATION_GRACE,
    SIMULATION_USAGE,
)
from capcard_sched.model.kube_groups import KUBE_GROUP
from capcard_sched.model.quantity import QuantityError, parse_quantity
from capcard_sched.model.quoting import shown
from capcard_sched.model.timestamps import SPAN_FORM, parse_span, parse_timestamp
from capcard_sched.model.usage import parse_usage
from capcard_sched.validation.job_structure import ACTIONS, EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable

#: Returns the problem of a value, None when it is accepted.
Check: TypeAlias = "Callable[[Any], str | None]"
#: Paths, of fields separated by blanks, with `*` for every entry of a list or mapping; and the checks of their values.
Rules: TypeAlias = tuple[tuple[str, Check], ...]


def _one_of(*words: str) -> Check:
    def check(value: Any) -> str | None:
        accepted = ", ".join(word for word in words if word)
        return None if value in words else f"expected one of {accepted}, got {shown(value)}"

    return check


def _between(least: int, most: int | None = None) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, int | float):
            return f"expected an integer, got {shown(value)}"
        if value < least:
            return f"must be at least {least}, got {value}"
        return f"must be at most {most}, got {value}" if most is not None and value > most else None

    return check


def quantity(value: Any) -> str | None:
    """Checks a quantity: not negative."""
    try:
        return f"must not be negative, got {shown(value)}" if parse_quantity(value) < 0 else None
    except QuantityError as error:
        return str(error)


def _parsed(parse: Callable[[Any], object], expected: str = "") -> Check:
    """Checks that a value can be parsed; `expected` follows the message of the ValueError."""

    def check(value: Any) -> str | None:
        try:
            parse(value)
        except ValueError as error:
            return f"{error}{expected}"
        return None

    return check


def _exit_code(value: Any) -> str | None:
    fits = isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}", value) is not None and int(value) <= 255
    return None if fits else f'expected a string with a number from 0 to 255, such as "1", got {shown(value)}'


def _count_or_percent(value: Any) -> str | None:
    if isinstance(value, int):
        return None if value >= 0 else f"must not be negative, got {value}"
    fits = re.fullmatch(r"[0-9]+%", str(value)) is not None
    return None if fits else f"expected a number or a percentage such as 25%, got {shown(value)}"


def _with(field: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value.get(field) else f"{field} is required"

    return check


def _not_both(one: str, other: str) -> Check:
    def check(value: Any) -> str | None:
        both = value.get(one) is not None and value.get(other) is not None
        return f"has both {one} and {other}: accepted is one of them" if both else None

    return check


def _distinct_names(value: Any) -> str | None:
    names = [entry.get("name") for entry in value]
    found = next((name for number, name in enumerate(names) if name and name in names[:number]), None)
    return None if found is None else f"two policies are named {shown(found)}: each has a name of its own"


def _spread(value: Any) -> str | None:
    if value.get("minDomains") is not None and value.get("whenUnsatisfiable") == "ScheduleAnyway":
        return "minDomains is accepted only with whenUnsatisfiable: DoNotSchedule"
    return None


_duration = _parsed(parse_span, f": expected {SPAN_FORM}")
_timestamp = _parsed(parse_timestamp)
_COUNT = _between(0, 2**31 - 1)
_INT32 = _between(-(2**31), 2**31 - 1)
_PORT = _between(0, 65535)
_TERM_WEIGHT = _between(1, 100)
_ONE_TIER = _not_both("highestTierAllowed", "highestTierName")
_LABEL_OPERATORS = _one_of("In", "NotIn", "Exists", "DoesNotExist")
_OPERATORS = _one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_EFFECTS = _one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ACTIONS = _one_of(*ACTIONS)
_EVENTS = _one_of(*EVENTS)

_SPREAD = "spec topologySpreadConstraints *"
#: Of pod affinity and anti-affinity terms, required and preferred ones.
_POD_TERMS = tuple(
    f"spec affinity {side} {place}"
    for side in ("podAffinity", "podAntiAffinity")
    for place in (f"{_REQUIRED} *", f"{_PREFERRED} * podAffinityTerm")
)
_TERMS = "nodeSelectorTerms * matchExpressions * operator"
_SELECTOR_OPERATORS = "labelSelector matchExpressions * operator"
#: Of every kind.
COMMON_RULES: Rules = (
    ("metadata creationTimestamp", _timestamp),
    ("metadata deletionTimestamp", _timestamp),
)
_TEMPLATE_RULES: Rules = (
    (f"metadata annotations {SIMULATION_DURATION}", _duration),
    (f"metadata annotations {SIMULATION_GRACE}", _duration),
    (f"metadata annotations {SIMULATION_EXIT_CODE}", _exit_code),
    ("spec terminationGracePeriodSeconds", _COUNT),
    ("spec restartPolicy", _one_of("Always", "OnFailure", "Never")),
    ("spec preemptionPolicy", _one_of("PreemptLowerPriority", "Never")),
    ("spec overhead *", quantity),
    *(
        (f"spec {group} * resources {side} *", quantity)
        for group in ("containers", "initContainers")
        for side in ("requests", "limits")
    ),
    ("spec resources requests *", quantity),
    ("spec resources limits *", quantity),
    ("spec tolerations * operator", _one_of("Exists", "Equal", "Lt", "Gt", "")),
    ("spec tolerations * effect", _one_of("NoSchedule", "PreferNoSchedule", "NoExecute", "")),
    (f"spec affinity nodeAffinity {_REQUIRED} {_TERMS}", _OPERATORS),
    (f"spec affinity nodeAffinity {_REQUIRED}", _with("nodeSelectorTerms")),
    *(
        (f"spec affinity {side} {_PREFERRED} * weight", _TERM_WEIGHT)
        for side in ("nodeAffinity", "podAffinity", "podAntiAffinity")
    ),
    *((term, _with("topologyKey")) for term in _POD_TERMS),
    *((f"{term} {_SELECTOR_OPERATORS}", _LABEL_OPERATORS) for term in _POD_TERMS),
    (f"{_SPREAD} whenUnsatisfiable", _one_of("DoNotSchedule", "ScheduleAnyway")),
    (f"{_SPREAD} maxSkew", _between(1)),
    (f"{_SPREAD} minDomains", _between(1)),
    (_SPREAD, _with("topologyKey")),
    (_SPREAD, _spread),
    (f"{_SPREAD} {_SELECTOR_OPERATORS}", _LABEL_OPERATORS),
    ("spec priority", _INT32),
    ("spec schedulingGates *", _with("name")),
    *(
        (f"spec {group} * ports * {field}", check)
        for group in ("containers", "initContainers")
        for field, check in (
            ("hostPort", _PORT),
            ("containerPort", _PORT),
            ("protocol", _one_of("TCP", "UDP", "SCTP", "")),
        )
    ),
)
_POLICY_RULES: Rules = (
    ("action", _ACTIONS),
    ("event", _EVENTS),
    ("events *", _EVENTS),
    ("timeout", _duration),
)


def _under(prefix: str, rules: Rules) -> Rules:
    return tuple((f"{prefix} {path}", check) for path, check in rules)


def _topology_rules(place: str) -> Rules:
    return (
        (f"{place} mode", _one_of("hard", "soft")),
        (f"{place} highestTierAllowed", _COUNT),
    )


_WORKLOAD_RULES: Rules = (
    ("spec replicas", _COUNT),
    ("spec podManagementPolicy", _one_of("OrderedReady", "Parallel")),
    ("spec strategy type", _one_of("RollingUpdate", "Recreate")),
    ("spec strategy rollingUpdate maxSurge", _count_or_percent),
    ("spec strategy rollingUpdate maxUnavailable", _count_or_percent),
    ("spec updateStrategy type", _one_of("RollingUpdate", "OnDelete")),
    *_under("spec template", _TEMPLATE_RULES),
)
_ACCESS_MODES = _one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_VOLUME_MODES = _one_of("Filesystem", "Block")
_RECLAIM = _one_of("Delete", "Retain", "Recycle")
_CLAIM_RULES: Rules = (
    ("spec resources requests *", quantity),
    ("spec accessModes *", _ACCESS_MODES),
    ("spec volumeMode", _VOLUME_MODES),
    ("spec selector matchExpressions * operator", _LABEL_OPERATORS),
    ("status phase", _one_of("Pending", "Bound", "Lost", "")),
)
_DEVICE_EFFECTS = _one_of("NoSchedule", "NoExecute", "None")
#: Of the requests of a claim, below its devices.
_DEVICE_REQUEST_RULES: Rules = tuple(
    (f"requests * {place} {path}", check)
    for place in ("exactly", "firstAvailable *")
    for path, check in (
        ("capacity requests *", quantity),
        ("tolerations * operator", _one_of("Exists", "Equal", "")),
        ("tolerations * effect", _one_of("NoSchedule", "NoExecute", "None", "")),
    )
)
_POLICY = "spec devices * capacity * requestPolicy"
_JOB_PHASES = (
    *("Pending", "Running", "Restarting", "Aborting", "Aborted", "Completing", "Completed"),
    *("Terminating", "Terminated", "Failed", ""),
)
RULES: dict[str, Rules] = {
    "Pod": (
        *_TEMPLATE_RULES,
        ("status phase", _one_of("Pending", "Running", "Succeeded", "Failed", "Unknown")),
        ("status containerStatuses * restartCount", _COUNT),
        ("status initContainerStatuses * restartCount", _COUNT),
        *(
            (f"{place} *", quantity)
            for holder in ("status", "status containerStatuses *", "status initContainerStatuses *")
            for place in (f"{holder} resources requests", f"{holder} resources limits", f"{holder} allocatedResources")
        ),
    ),
    "Deployment": _WORKLOAD_RULES,
    "ReplicaSet": _WORKLOAD_RULES,
    "StatefulSet": (*_WORKLOAD_RULES, *_under("spec volumeClaimTemplates *", _CLAIM_RULES)),
    "Job.batch/v1": (
        ("spec parallelism", _COUNT),
        ("spec completions", _COUNT),
        ("spec backoffLimit", _COUNT),
        ("status succeeded", _COUNT),
        ("status failed", _COUNT),
        *_under("spec template", _TEMPLATE_RULES),
    ),
    "Job": (
        ("spec minAvailable", _COUNT),
        ("spec maxRetry", _COUNT),
        ("spec minSuccess", _between(1)),
        *_topology_rules("spec networkTopology"),
        *_topology_rules("spec tasks * partitionPolicy networkTopology"),
        ("spec ttlSecondsAfterFinished", _COUNT),
        ("spec tasks * replicas", _COUNT),
        ("spec tasks * minAvailable", _COUNT),
        ("spec tasks * dependsOn iteration", _one_of("any", "all")),
        ("status state phase", _one_of(*_JOB_PHASES)),
        *_under("spec policies *", _POLICY_RULES),
        *_under("spec tasks * policies *", _POLICY_RULES),
        *_under("spec tasks * template", _TEMPLATE_RULES),
    ),
    "Node": (
        (f"metadata annotations {SIMULATION_USAGE}", _parsed(lambda value: parse_usage(str(value)))),
        ("status allocatable *", quantity),
        ("status capacity *", quantity),
        ("spec taints * effect", _EFFECTS),
        ("status conditions * status", _one_of("True", "False", "Unknown")),
        ("status images * sizeBytes", _between(0, 2**63 - 1)),
    ),
    "Queue": (
        ("spec weight", _between(1, 65535)),
        ("spec priority", _INT32),
        ("spec dequeueStrategy", _one_of("fifo", "traverse", "")),
        ("spec capability *", quantity),
        ("spec deserved *", quantity),
        ("spec guarantee resource *", quantity),
        ("status state", _one_of("Open", "Closed", "Closing", "Unknown", "")),
        ("status allocated *", quantity),
    ),
    "PodGroup": (
        ("spec minMember", _COUNT),
        ("spec minTaskMember *", _COUNT),
        ("spec minResources *", quantity),
        *_topology_rules("spec networkTopology"),
        ("spec networkTopology", _ONE_TIER),
        ("spec subGroupPolicy * networkTopology", _ONE_TIER),
        ("spec subGroupPolicy", _distinct_names),
        ("spec subGroupPolicy *", _with("name")),
        ("spec subGroupPolicy * subGroupSize", _between(1, 2**31 - 1)),
        ("spec subGroupPolicy * minSubGroups", _COUNT),
        (f"spec subGroupPolicy * {_SELECTOR_OPERATORS}", _LABEL_OPERATORS),
        *_topology_rules("spec subGroupPolicy * networkTopology"),
        ("status phase", _one_of("Pending", "Inqueue", "Running", "Unknown", "Completed", "")),
    ),
    KUBE_GROUP: (("spec schedulingPolicy gang minCount", _between(1, 2**31 - 1)),),
    "HyperNode": (
        ("spec tier", _COUNT),
        ("spec members * type", _one_of("Node", "HyperNode")),
    ),
    "PriorityClass": (
        ("preemptionPolicy", _one_of("PreemptLowerPriority", "Never")),
        ("value", _INT32),
    ),
    "PersistentVolume": (
        ("spec capacity *", quantity),
        ("spec accessModes *", _ACCESS_MODES),
        ("spec volumeMode", _VOLUME_MODES),
        ("spec persistentVolumeReclaimPolicy", _RECLAIM),
        ("spec nodeAffinity required", _with("nodeSelectorTerms")),
        (f"spec nodeAffinity required {_TERMS}", _OPERATORS),
        ("status phase", _one_of("Pending", "Available", "Bound", "Released", "Failed", "")),
    ),
    "PersistentVolumeClaim": _CLAIM_RULES,
    "StorageClass": (
        ("volumeBindingMode", _one_of("Immediate", "WaitForFirstConsumer")),
        ("reclaimPolicy", _RECLAIM),
    ),
    "CSINode": (("spec drivers * allocatable count", _COUNT),),
    "CSIStorageCapacity": (("capacity", quantity), ("maximumVolumeSize", quantity)),
    "ResourceQuota": (("spec hard *", quantity),),
    "ResourceSlice": (
        ("spec pool resourceSliceCount", _between(1)),
        ("spec pool generation", _between(0)),
        ("spec devices * capacity * value", quantity),
        *((f"{_POLICY} {field}", quantity) for field in ("default", "validValues *", "validRange *")),
        ("spec devices * consumesCounters * counters * value", quantity),
        ("spec sharedCounters * counters * value", quantity),
        ("spec devices * taints * effect", _DEVICE_EFFECTS),
    ),
    "ResourceClaim": _under("spec devices", _DEVICE_REQUEST_RULES),
    "ResourceClaimTemplate": _under("spec spec devices", _DEVICE_REQUEST_RULES),
    "DeviceTaintRule": (("spec taint effect", _DEVICE_EFFECTS),),
    "PodDisruptionBudget": (
        ("spec minAvailable", _count_or_percent),
        ("spec maxUnavailable", _count_or_percent),
        ("spec", _not_both("minAvailable", "maxUnavailable")),
    ),
    "Command": (("target kind", _one_of("Job", "Queue")),),
}
