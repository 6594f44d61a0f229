"""The rules of the plain scheduler over one pod and one node: predicates and scores."""

from __future__ import annotations

from math import floor, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.plain_objects import PlainNode, PlainPod, Raw

GPU = "nvidia.com/gpu"

# --- predicates -----------------------------------------------------------------------------------------------------


def fits(pod: PlainPod, node: PlainNode) -> bool:
    used, allocatable = node.used, node.allocatable
    return all(used.get(name, 0) + n <= allocatable.get(name, 0) for name, n in pod.request.items() if n)


def matches(pod: PlainPod, node: PlainNode) -> bool:
    """Unschedulable flag, node selector, required affinity, taints."""
    if node.unschedulable and not tolerates(pod, "node.kubernetes.io/unschedulable", "", "NoSchedule"):
        return False
    if any(node.labels.get(key) != value for key, value in pod.selector.items()):
        return False
    if pod.terms is not None and not any(term_matches(term, node) for term in pod.terms):
        return False
    return all(
        taint.get("effect") not in ("NoSchedule", "NoExecute")
        or tolerates(pod, taint.get("key", ""), taint.get("value", ""), taint["effect"])
        for taint in node.taints
    )


def tolerates(pod: PlainPod, key: str, value: str, effect: str) -> bool:
    """Whether some toleration covers the taint."""
    return any(
        t.get("effect", "") in ("", effect)
        and (t.get("key", "") == key or (not t.get("key") and t.get("operator") == "Exists"))
        and (t.get("operator") == "Exists" or t.get("value", "") == value)
        for t in pod.tolerations
    )


def term_matches(term: Raw, node: PlainNode) -> bool:
    """All expressions of one node selector term; an empty term matches nothing."""
    expressions = [(e, node.labels) for e in term.get("matchExpressions") or ()]
    expressions += [(e, {"metadata.name": node.name}) for e in term.get("matchFields") or ()]
    return bool(expressions) and all(expression_matches(expression, labels) for expression, labels in expressions)


def expression_matches(expression: Raw, labels: dict[str, str]) -> bool:
    """One expression of a node selector term."""
    operator: str = expression["operator"]
    wanted: list[str] = list(expression.get("values") or ())
    value = labels.get(expression["key"])
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "In":
        return value in wanted
    if operator == "NotIn":
        return value not in wanted
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > int(wanted[0]) if operator == "Gt" else int(value) < int(wanted[0])


# --- scores -----------------------------------------------------------------------------------------------------------


def least_requested(pod: PlainPod, node: PlainNode) -> int:
    """0-100, more for a node that stays emptier; counts the non-zero defaults of pods that name nothing."""
    scores = []
    for name, used, more in zip(("cpu", "memory"), node.nonzero, pod.nonzero, strict=True):
        allocatable = node.allocatable.get(name, 0)
        if allocatable:
            free = allocatable - used - more
            scores.append(free * 100 // allocatable if free >= 0 else 0)
    return sum(scores) // len(scores) if scores else 0


def balanced(pod: PlainPod, node: PlainNode) -> int:
    """0-100, more for a node whose resources would be used evenly."""
    names = ["cpu", "memory"] + ([GPU] if pod.request.get(GPU) else [])
    if not any(pod.request.get(name) for name in names):
        return 0
    fractions = [
        min(1.0, (node.used.get(name, 0) + pod.request.get(name, 0)) / node.allocatable[name])
        for name in names
        if node.allocatable.get(name)
    ]
    if len(fractions) < 2:
        return 100
    if len(fractions) == 2:
        deviation = abs(fractions[0] - fractions[1]) / 2
    else:
        cpu, memory, gpu = fractions
        mean = (cpu + memory + gpu) / 3
        spread = (cpu - mean) * (cpu - mean) + (memory - mean) * (memory - mean) + (gpu - mean) * (gpu - mean)
        deviation = sqrt(spread / 3)
    return floor((1 - deviation) * 100)


def binpack(pod: PlainPod, node: PlainNode, weight: float) -> float:
    """0-100 x weight, more for a node that becomes fuller; cpu and memory weigh the same where both are requested."""
    names = [name for name in ("cpu", "memory") if pod.request.get(name)]
    score = 0.0
    for name in names:
        after, allocatable = pod.request[name] + node.used.get(name, 0), node.allocatable.get(name, 0)
        if not allocatable:
            continue
        if after > allocatable:
            return 0.0
        score += after / allocatable * (1 / len(names) * 100 * weight)
    return score
