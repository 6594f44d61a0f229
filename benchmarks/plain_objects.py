"""Plain Python objects for the plain scheduler: one object per node, pod, group and queue, read from Kubernetes dicts.

Nothing here is shared with the engine: quantities, cards, selectors and requests are read again, in the most obvious
way, so that a mistake in the engine's own reading shows as a difference.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from fractions import Fraction
from typing import Any

Raw = dict[str, Any]
_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SUFFIXES |= {suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)}
_PRODUCT = re.compile(r"((.+?)/([\w-]+))\.product", re.ASCII)
ENDED = ("Succeeded", "Failed")


def quantity(raw: str | float) -> Fraction:
    """A Kubernetes quantity, exactly."""
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(raw))
    if match is None:
        raise ValueError(f"not a quantity: {raw!r}")
    return Fraction(match[1]) * _SUFFIXES[match[2]]


def amounts(raw: Raw | None) -> dict[str, int]:
    """Base units: milli for all but memory (bytes) and pods (count); rounded up."""
    found = {}
    for name, value in (raw or {}).items():
        scaled = quantity(value) * (1 if name in ("memory", "pods") else 1000)
        found[name] = -int(-scaled // 1)
    return found


def add(total: dict[str, int], more: dict[str, int], sign: int = 1) -> None:
    """Add `sign * more` to `total`, in place."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + sign * amount


def seconds(timestamp: str | None) -> float:
    """Unix seconds of an RFC 3339 time; 0 when absent."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


class PlainNode:
    """A node with what is used on it."""

    def __init__(self, raw: Raw) -> None:
        meta, spec = raw["metadata"], raw.get("spec", {})
        self.name: str = meta["name"]
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.taints: list[Raw] = list(spec.get("taints") or ())
        self.unschedulable = bool(spec.get("unschedulable"))
        self.allocatable = amounts(raw.get("status", {}).get("allocatable"))
        self.used: dict[str, int] = {}
        self.nonzero = [0, 0]
        self.cards = self._find_cards()

    def _find_cards(self) -> dict[str, tuple[int, str]]:
        """Card name to (milli-cards, resource)."""
        cards: dict[str, tuple[int, str]] = {}
        for label in sorted(self.labels):
            match = None if "nvidia.com/mig-" in label else _PRODUCT.fullmatch(label)
            memory = self.labels.get(f"{match[1]}.memory") if match else None
            if match is None or memory is None:
                continue
            product, prefix = self.labels[label], match[2]
            for resource, amount in self.allocatable.items():
                if amount <= 0:
                    continue
                if prefix == "nvidia.com" and resource == "nvidia.com/gpu.shared":
                    replicas = self.labels.get("nvidia.com/gpu.replicas", "")
                    if replicas.isdigit() and int(replicas):
                        cards[f"{product}/mps-{int(int(memory) / 1024 + 0.5)}g*1/{replicas}"] = (amount, resource)
                elif prefix == "nvidia.com" and resource.startswith("nvidia.com/mig-"):
                    cards[f"{product}/mig-{resource.removeprefix('nvidia.com/mig-')}-mixed"] = (amount, resource)
                elif resource == match[1]:
                    cards[product] = (amount, resource)
        return cards

    def take(self, pod: PlainPod, sign: int = 1) -> None:
        """Put the pod here, or take it away again."""
        add(self.used, pod.request, sign)
        self.nonzero[0] += sign * pod.nonzero[0]
        self.nonzero[1] += sign * pod.nonzero[1]


class PlainPod:
    """A pod: requests, constraints, charge."""

    def __init__(self, raw: Raw) -> None:
        meta, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
        notes = meta.get("annotations") or {}
        self.name = f"{meta.get('namespace') or 'default'}/{meta['name']}"
        group = notes.get("scheduling.k8s.io/group-name", "")
        self.group = f"{self.name.partition('/')[0]}/{group}" if group else ""
        self.phase: str = status.get("phase") or "Pending"
        self.node: str = spec.get("nodeName") or ""
        self.deleting = bool(meta.get("deletionTimestamp"))
        self.waiting = self.phase == "Pending" and not (self.node or self.deleting or spec.get("schedulingGates"))
        self.selector: dict[str, str] = spec.get("nodeSelector") or {}
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        self.terms: list[Raw] | None = list(required.get("nodeSelectorTerms") or ()) if required else None
        self.tolerations: list[Raw] = list(spec.get("tolerations") or ())
        self.nonzero = [0, 0]
        self.request: dict[str, int] = amounts(spec.get("overhead"))
        self.limits: dict[str, int] = {}
        for container in spec.get("containers") or ():
            resources = container.get("resources") or {}
            limits, requests = amounts(resources.get("limits")), amounts(resources.get("requests"))
            requests = limits | requests
            add(self.request, requests)
            add(self.limits, limits)
            self.nonzero[0] += requests.get("cpu", 100)
            self.nonzero[1] += requests.get("memory", 200 << 20)
        self.best_effort = not any(self.request.values())
        self.request["pods"] = 1
        names: list[str] = [name.strip() for name in notes.get("volcano.sh/card.name", "").split("|")]
        self.alternatives: tuple[str, ...] = tuple(dict.fromkeys(names)) if names != [""] else ()
        self.assigned: str = notes.get("volcano.sh/card.assigned", "")
        self.alike = repr(
            [sorted(self.request.items()), self.alternatives, self.selector, self.terms, self.tolerations]
        )
        self.charge: dict[str, int] = {}
        self.fresh = not self.node  # placed by this session, if at all
        self.failed = False  # found no node; nothing is freed in a session, so it will find none later
        ordinal = self.name.rpartition("-")[2]
        numbered = self.name.partition("/")[2].count("-") >= 2 and ordinal.isdigit()
        index = int(ordinal) if numbered else 1 << 62  # names without a number come last
        priority = int(notes.get("volcano.sh/task-priority", spec.get("priority", 1)))
        self.key = (-priority, index, seconds(meta.get("creationTimestamp")), meta.get("uid", ""))


class PlainGroup:
    """A PodGroup and its pods."""

    def __init__(self, raw: Raw, priorities: dict[str, int]) -> None:
        meta, spec = raw["metadata"], raw.get("spec", {})
        self.name = f"{meta.get('namespace') or 'default'}/{meta['name']}"
        self.queue: str = spec.get("queue") or "default"
        self.minimum: int = spec.get("minMember") or 0
        self.min_resources: Raw | None = spec.get("minResources")
        self.phase: str = raw.get("status", {}).get("phase") or "Pending"
        self.priority = priorities.get(spec.get("priorityClassName") or "", priorities.get("", 0))
        self.created = seconds(meta.get("creationTimestamp"))
        text = (meta.get("annotations") or {}).get("volcano.sh/card.request")
        self.card_request = {card: count * 1000 for card, count in json.loads(text).items()} if text else {}
        self.waiting: list[PlainPod] = []
        self.placed: list[PlainPod] = []
        self.held: dict[str, int] = {}
        self.done = 0  # members that succeeded

    @property
    def degraded(self) -> bool:
        """Runs, but with less than its minimum."""
        return not self.ready and any(not pod.fresh for pod in self.placed)

    @property
    def ready(self) -> bool:
        """Enough members are placed; those that request nothing count as placed."""
        best_effort = sum(pod.best_effort for pod in self.waiting)
        return len(self.placed) + self.done + best_effort >= self.minimum


class PlainQueue:
    """A queue: limits per card, cpu and memory, and what its pods hold."""

    def __init__(self, raw: Raw) -> None:
        meta, spec = raw["metadata"], raw.get("spec", {})
        self.name: str = meta["name"]
        self.open = raw.get("status", {}).get("state", "Open") == "Open"
        self.priority: int = spec.get("priority") or 0
        self.created = seconds(meta.get("creationTimestamp"))
        text = (meta.get("annotations") or {}).get("volcano.sh/card.quota")
        self.quota: dict[str, int] = {card: count * 1000 for card, count in json.loads(text).items()} if text else {}
        self.capability = amounts(spec.get("capability"))
        self.guarantee = amounts((spec.get("guarantee") or {}).get("resource"))
        self.wanted = amounts(spec.get("deserved"))
        self.limit: dict[str, int] = {}
        self.deserved: dict[str, int] = {}
        self.allocated: dict[str, int] = {}
        self.inqueue: dict[str, int] = {}
        self.groups: list[PlainGroup] = []

    def set_limits(self, total: dict[str, int], guaranteed: dict[str, int]) -> None:
        """Limits and deserved amounts, once the cluster's totals are known."""
        self.limit, self.deserved = dict(self.quota), dict(self.quota)
        for name in ("cpu", "memory"):
            guarantee = self.guarantee.get(name, 0)
            real = max(0, total.get(name, 0) - guaranteed.get(name, 0)) + guarantee
            real = min(real, self.capability.get(name, real))
            self.limit[name] = self.capability.get(name, real)
            self.deserved[name] = max(min(self.wanted.get(name, 0), real), guarantee)

    @property
    def share(self) -> float:
        """The largest part of anything deserved that is in use."""
        return max((self.allocated.get(d, 0) / n for d, n in self.deserved.items() if n > 0), default=0.0)
