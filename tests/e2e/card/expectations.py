"""Objects of scenarios with card quotas, and how bindings, events and conditions differ from expected ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml

from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Manifest
from tests.controlplane.manifests import gang, pod, pod_group

H200: Final = "NVIDIA-H200"
#: For `bound`: on whichever node.
SOMEWHERE: Final = "*"
#: Events with these reasons go only to objects that a scenario names.
CHECKED_REASONS: Final = frozenset(
    {
        "CardNameMissing",
        "EmptyQueueCapability",
        "GetTaskRequestResourceFailed",
        "InsufficientCPUQuota",
        "InsufficientMemoryQuota",
        "InsufficientScalarQuota",
        "InvalidCardLabel",
        "InvalidCardQuota",
        "InvalidCardRequest",
        "InvalidServiceType",
        "QueueNotFound",
        "QueueNotOpen",
    }
)
#: Those of them that are never the reason why something waits.
_ASIDE: Final = frozenset(
    {"CardNameMissing", "EmptyQueueCapability", "InvalidServiceType", "InvalidCardQuota", "InvalidCardLabel"}
)
_PLUGIN: Final = "volcano.capacity-card"


class ObjectEvent(NamedTuple):
    """An event as `kubectl describe` shows it. `name` may end in `*`."""

    kind: str
    name: str
    reason: str
    message: str

    def fits(self, other: ObjectEvent) -> bool:
        """Whether `other`, which has a full name, is this."""
        if self.name.endswith("*") and other.name.startswith(self.name[:-1]):
            return self._replace(name=other.name) == other
        return self == other


def short_of(
    kind: str, name: str, card: str, requested: int, total: int, limit: int, *, queue: str = "q"
) -> ObjectEvent:
    """`InsufficientScalarQuota`; amounts in cards."""
    figures = f"requested <{1000 * requested}>, total would be <{1000 * total}>, but capability is <{1000 * limit}>"
    return ObjectEvent(
        kind, name, "InsufficientScalarQuota", f"Queue <{queue}> has insufficient <{card}> quota: {figures}"
    )


def unreadable(name: str, error: str, *, kind: str = "Pod", queue: str = "q") -> ObjectEvent:
    """`GetTaskRequestResourceFailed`."""
    text = f"Get request resource failed, Queue <{queue}>, error: <{error}>"
    return ObjectEvent(kind, name, "GetTaskRequestResourceFailed", text)


def wants(count: int = 1, resource: str = "nvidia.com/gpu", cpu: str = "100m") -> dict[str, Any]:
    """The requests of a pod with cards."""
    return {"cpu": cpu, resource: count}


def h200_gang(name: str, size: int, **rest: Any) -> list[Manifest]:
    """A gang in the queue `q`; each pod requests one H200."""
    return gang(name, size, queue="q", cards=H200, requests=wants(), **rest)


def request(name: str, cards: Mapping[str, int] | str, *, queue: str = "q", **spec: Any) -> Manifest:
    """A PodGroup without pods that requests cards by annotation."""
    text = cards if isinstance(cards, str) else json.dumps(cards)
    return pod_group(name, queue=queue, annotations={keys.CARD_REQUEST: text}, **spec)


def elastic(name: str, size: int, *, queue: str = "q", members: int = 1, **rest: Any) -> list[Manifest]:
    """A job that runs with `members` of its `size` pods."""
    pods = [pod(f"{name}-{index}", group=name, **rest) for index in range(size)]
    return [pod_group(name, queue=queue, members=members), *pods]


def conf_with(arguments: Mapping[str, Any]) -> str:
    """A scheduler-conf with these arguments of capacity-card."""
    card: dict[str, Any] = {"name": "capacity-card", "arguments": dict(arguments)}
    tiers = [
        {"plugins": [{"name": "priority"}, {"name": "gang"}, {"name": "conformance"}]},
        {"plugins": [{"name": "predicates"}, card, {"name": "nodeorder"}, {"name": "binpack"}]},
    ]
    conf: str = yaml.safe_dump({"actions": "enqueue, allocate, backfill", "tiers": tiers})
    return conf


def flattened(manifests: Iterable[Manifest | Sequence[Manifest]]) -> list[Manifest]:
    """The objects of objects and lists of objects."""
    return [item for each in manifests for item in (each if isinstance(each, Sequence) else [each])]


def event_of(event: Manifest) -> ObjectEvent:
    """An Event object by the object it is about."""
    about = event["involvedObject"]
    return ObjectEvent(about["kind"], about["name"], event["reason"], event["message"])


def differing_bindings(expected: Mapping[str, str] | int, bound: Mapping[str, str]) -> list[str]:
    """How the bindings differ; [] when they do not."""
    if isinstance(expected, int):
        return [] if len(bound) == expected else [f"{len(bound)} pods are bound, not {expected}: {bound}"]
    seen = {name: SOMEWHERE if expected.get(name) == SOMEWHERE else node for name, node in bound.items()}
    return [] if seen == expected else [f"bound are {bound}"]


def differing_events(
    expected: Iterable[ObjectEvent], allowed: Iterable[ObjectEvent], events: Iterable[Manifest]
) -> list[str]:
    """Events that are missing, that no expectation allows, or whose source or type is wrong."""
    events = [event for event in events if event["reason"] in CHECKED_REASONS]
    seen = [event_of(event) for event in events]
    found = [f"no event {one}" for one in expected if not any(one.fits(other) for other in seen)]
    allowed = list(allowed)
    found += [f"unexpected event: {one}" for one in seen if not any(other.fits(one) for other in allowed)]
    for event in events:
        # Events about pods are the plugin's own, those about all else the scheduler's.
        is_plugins = event["involvedObject"]["kind"] == "Pod" and event["reason"] != "QueueNotFound"
        source = event["source"]["component"]
        if source != (_PLUGIN if is_plugins else "capcard-sched") or event["type"] != "Warning":
            found.append(f"{event['type']} event by {source}: {event_of(event)}")
    return found


def differing_condition(expected: ObjectEvent, items: Iterable[Manifest]) -> list[str]:
    """The reason why an object is pending is in its condition as well; `items` are the objects of its kind."""
    if expected.reason in _ASIDE:
        return []
    kind = "PodScheduled" if expected.kind == "Pod" else "Unschedulable"
    shown = {item["metadata"]["name"]: condition(item, kind).get("message", "") for item in items}
    for name, message in shown.items():
        # For a job the text starts with the outcome of its pods.
        same = message == expected.message or (
            expected.kind == "PodGroup" and message.endswith(f": {expected.message}")
        )
        if same and expected.fits(expected._replace(name=name)):
            return []
    return [f"no {kind} condition has {expected}: {shown}"]


def condition(item: Manifest, kind: str) -> dict[str, Any]:
    """The condition of a type, {} when there is none."""
    rows = item.get("status", {}).get("conditions") or []
    return next((row for row in rows if row["type"] == kind), {})
