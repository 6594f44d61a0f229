"""Figures of an answer, summed again from the objects."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from capcard_sched.model.diagnosis import JobDiagnosis
from tests.insight.oracle_factors import QUOTA, chain
from tests.insight.oracle_world import GROUP, Json, Waiting, World, ended, notes

_UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "m": 0.001}
MPS, MIG, WHOLE = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.18gb", "nvidia.com/gpu"


def amount(text: object) -> float:
    """A quantity of Kubernetes."""
    word = str(text)
    for unit, factor in _UNITS.items():
        if word.endswith(unit):
            return float(word.removesuffix(unit)) * factor
    return float(word)


def requests(spec: Json) -> Counter[str]:
    """Requests of a pod: of one container each."""
    found: Counter[str] = Counter()
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            found[name] += amount(value)  # type: ignore[assignment]
    return found


def card_of(node: Json, resource: str) -> str:
    """The card of a resource on a node; "" for none."""
    product: str = (node["metadata"].get("labels") or {}).get("nvidia.com/gpu.product", "")
    if not product:
        return ""
    return {WHOLE: product, MPS: f"{product}/mps-80g*1/2", MIG: f"{product}/mig-1g.18gb-mixed"}.get(resource, "")


def with_cards(world: World, pod: Json) -> dict[str, float]:
    """Requests of a bound pod, by resource and by card."""
    found: dict[str, float] = dict(requests(pod["spec"]))
    node = world.get("Node", pod["spec"]["nodeName"])
    for resource in (WHOLE, MPS, MIG):
        if resource in found and node is not None and (card := card_of(node, resource)):
            found[card] = found[resource]
    return found


def held_by(world: World) -> dict[str, tuple[str, Counter[str]]]:
    """PodGroup to its queue and what its pods hold on nodes."""
    found: dict[str, tuple[str, Counter[str]]] = {}
    for pod in world.of("Pod"):
        if not pod["spec"].get("nodeName") or ended(pod) or pod["spec"].get("schedulerName") != "volcano":
            continue
        group = notes(pod).get(GROUP, "")
        obj = world.get("PodGroup", group)
        queue = str(((obj or {}).get("spec") or {}).get("queue") or "default")
        _, amounts = found.setdefault(group, (queue, Counter()))
        amounts.update(with_cards(world, pod))
    return found


def used(world: World, queue: str, resource: str) -> float:
    """What the pods of a queue and the queues below it hold."""
    return sum(amounts[resource] for its_queue, amounts in held_by(world).values() if queue in chain(world, its_queue))


def quota_of(world: World, queue: str, card: str) -> float | None:
    """The card quota of a queue; None where it cannot be read."""
    obj = world.get("Queue", queue)
    if obj is None or QUOTA not in notes(obj):
        return None
    quota: dict[str, float] = json.loads(notes(obj)[QUOTA])
    return quota.get(card, 0)


def free_on(world: World, node: Json, resource: str) -> float:
    """What the pods on a node leave of a resource."""
    on = [pod for pod in world.of("Pod") if pod["spec"].get("nodeName") == node["metadata"]["name"] and not ended(pod)]
    if resource == "pods":
        return amount(node["status"]["allocatable"]["pods"]) - len(on)
    return amount(node["status"]["allocatable"].get(resource, 0)) - sum(requests(pod["spec"])[resource] for pod in on)


def wrong_figures(world: World, job: Waiting, found: JobDiagnosis, text: str) -> Iterator[tuple[str, str, str]]:
    """Kind, what is said, and what is right."""
    pods = world.members(job.group)
    scheduled = sum(bool(pod["spec"].get("nodeName")) and not ended(pod) for pod in pods)
    if found.stage != "NotProcessed" and found.scheduled not in {scheduled, job.running}:
        yield "scheduled", f"{found.scheduled} scheduled", f"{scheduled}"
    group = world.get("PodGroup", job.group) or {}
    if found.phase and found.phase != (group.get("status") or {}).get("phase"):
        yield "phase", found.phase, str((group.get("status") or {}).get("phase"))
    for row in found.queue.limits if found.queue is not None else ():
        if "|" in row.resource:
            continue
        right = used(world, row.queue, row.resource)
        said = f"{row.queue} {row.resource}: {row.used} used"
        if abs(row.used - right) > 1e-6:
            yield "used", said, f"{right}"
        quota = quota_of(world, row.queue, row.resource)
        if quota is not None and row.resource.startswith("NVIDIA") and row.quota not in {quota, None}:
            yield "quota", f"{row.queue} {row.resource}: quota {row.quota}", f"{quota}"
        if row.quota is not None and row.free is not None and abs(row.free - max(0.0, row.quota - row.used)) > 1e-6:
            yield "free", f"{row.queue} {row.resource}: {row.free} free", f"{max(0.0, row.quota - row.used)}"
    for capacity in found.capacity:
        offers = {}
        for node in world.of("Node"):
            has = card_of(node, capacity.resource) if capacity.card != capacity.resource else capacity.card
            if has == capacity.card and capacity.resource in node["status"]["allocatable"]:
                offers[node["metadata"]["name"]] = max(0.0, free_on(world, node, capacity.resource))
        for one in (*capacity.candidates, *capacity.cordoned, *capacity.tainted):
            if capacity.resource.startswith("volcano.sh"):
                continue
            if one.name not in offers or abs(offers[one.name] - one.free) > 1e-6:
                yield "free on node", f"{one.name}: {one.free} {capacity.card} free", f"{offers.get(one.name)}"
    yield from _of_text(world, text)


_LEFT: Final = re.compile(
    r"queue (?P<queue>\S+) has (?P<left>[\d.]+) (?P<card>NVIDIA[\w./*-]+|cpu) left of its quota of (?P<quota>[\d.]+) "
    r"\((?P<used>[\d.]+) used(, (?P<reserved>[\d.]+) reserved)?"
)
_USED: Final = re.compile(
    r"[Qq]ueue (?P<queue>[^\s,:]+)[,:]? .{0,60}?(?P<used>[\d.]+) of (?P<quota>[\d.]+) (?P<card>NVIDIA[\w./*-]+) used"
)


def _of_text(world: World, text: str) -> Iterator[tuple[str, str, str]]:
    for pattern in (_LEFT, _USED):
        for match in pattern.finditer(text):
            right, quota = used(world, match["queue"], match["card"]), quota_of(world, match["queue"], match["card"])
            if float(match["used"]) != right:
                yield "used in a sentence", match[0], f"{right} used"
            if quota is not None and match["card"] != "cpu" and float(match["quota"]) != quota:
                yield "quota in a sentence", match[0], f"quota {quota}"
    if re.search(r"\b\d+00\d of|<\d+000>", text.partition("\n")[0]):
        yield "thousandths", text.partition("\n")[0], "cards and cores"
    if "0 of 0 " in text:
        yield "zero row", "0 of 0", "not printed"
