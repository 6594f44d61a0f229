"""Objects that are gone leave nothing behind in what follows a cluster beside the scheduler.

The clusters of `cache` and of the pages, the recorder of the ledger, and the counter of card-seconds run for months.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pytest

from capcard_sched.cli.sources.cores import build_core, options_of
from capcard_sched.cli.sources.source import Source
from capcard_sched.cli.web_live import FollowedCluster
from capcard_sched.devices import inventory, pool_changes
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection
from capcard_sched.kube.informers import Informers
from capcard_sched.ledger.card_seconds import CardSecondsCounter
from capcard_sched.ledger.recorder import AdoptedRows, LedgerRecorder
from capcard_sched.model import deltas
from capcard_sched.model.intents import Evict
from tests.properties.test_churn import CHURN, SPARES, TYPES
from tests.reachable import sizes

Json = dict[str, Any]
#: What takes in deltas at a moment, in Unix seconds.
Follower = Callable[[float, Sequence[deltas.Delta]], object]
#: The objects of one number, one after the other, with their kinds.
Made = Callable[[int], list[tuple[str, Json]]]
_FEW, _MANY, _AT_ONCE = 20, 200, 10
_CARD: Final = "NVIDIA-A10"


def _changed(kind: str, obj: Json) -> deltas.ObjectChanged:
    return deltas.ObjectChanged(msgspec.convert(obj, TYPES[kind]))


def _gone(kind: str, obj: Json) -> deltas.ObjectGone:
    meta = obj["metadata"]
    return deltas.ObjectGone(kind, meta.get("namespace", ""), meta["name"])


def _first() -> list[deltas.Delta]:
    """A cluster that stays."""
    labels = {"nvidia.com/gpu.product": _CARD}
    amounts = {"cpu": "64", "memory": "64Gi", "nvidia.com/gpu": "8"}
    node = {"metadata": {"name": "n1", "labels": labels}, "status": {"allocatable": amounts, "capacity": amounts}}
    return [_changed("Node", node), _changed("Queue", {"metadata": {"name": "q"}, "spec": {}})]


# --- what comes and goes ----------------------------------------------------------------------------------------------


def _pod(index: int, spec: Json | None = None, annotations: Json | None = None) -> Json:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    meta = {"name": f"p{index}", "namespace": f"ns{index}", "uid": f"p{index}", "annotations": annotations or {}}
    return {"metadata": meta, "spec": {"schedulerName": "capcard-sched", "containers": containers, **(spec or {})}}


def _with_cards(index: int, notes: Json | None = None, phase: str = "Running", spec: Json | None = None) -> Json:
    resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    more = {"nodeName": "n1", "containers": [{"name": "c", "resources": resources}], **(spec or {})}
    made = _pod(index, more, notes)
    made["status"] = {"phase": phase, "conditions": [{"type": "PodScheduled", "status": "True"}]}
    return made


def _evicted(index: int) -> Json:
    made = _with_cards(index)
    message = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"for {index}",
    }
    made["status"]["conditions"].append(message)
    return made


def _group(index: int) -> Json:
    return {"metadata": {"name": f"g{index}", "namespace": f"ns{index}", "uid": f"g{index}"},
            "spec": {"queue": f"q{index}", "minMember": 1}}  # fmt: skip


def _quota_of(index: int) -> Json:
    notes = {"volcano.sh/card.quota": f'{{"{_CARD}": 1, "card{index}": 1}}'}
    return {"metadata": {"name": f"o{index}", "namespace": f"ns{index}", "annotations": notes}, "spec": {}}


def _node(index: int) -> Json:
    made: Json = {"metadata": {"name": f"n-{index}", "labels": {"nvidia.com/gpu.product": f"card-{index}"}}}
    return {**made, "status": {"allocatable": {"nvidia.com/gpu": "1"}, "capacity": {"nvidia.com/gpu": "1"}}}


def _slice(index: int) -> Json:
    attributes = {"productName": {"string": f"card{index}"}, "type": {"string": "gpu"}}
    pool = {"name": f"p{index}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": f"n-{index}", "pool": pool,
            "devices": [{"name": "g", "attributes": attributes}]}  # fmt: skip
    return {"metadata": {"name": f"s{index}"}, "spec": spec}


_IN_GROUP: Final = "scheduling.k8s.io/group-name"
_QUEUE: Final = "scheduling.volcano.sh/queue-name"
_BY_CLAIM: Final[Json] = {"resourceClaims": [{"name": "c", "resourceClaimName": "missing"}], "containers": []}
#: Objects of one number, one after the other; what a ledger reads.
_RECORDED: Final[dict[str, Made]] = {
    "a pod with cards": lambda index: [("Pod", _with_cards(index))],
    "a pod with cards in a queue of its own": lambda index: [("Pod", _with_cards(index, {_QUEUE: f"q{index}"}))],
    "a pod that the scheduler bound": lambda index: [("Pod", _with_cards(index, {"capcard-sched.io/queue": "q"}))],
    "a pod that finishes": lambda index: [("Pod", _with_cards(index)), ("Pod", _with_cards(index, phase="Succeeded"))],
    "a pod that is evicted": lambda index: [("Pod", _with_cards(index)), ("Pod", _evicted(index))],
    "a pod of a gang": lambda index: [
        ("PodGroup", _group(index)), ("Pod", _with_cards(index, {_IN_GROUP: f"g{index}"}))],
    "a pod that waits in a gang": lambda index: [
        ("PodGroup", _group(index)), ("Pod", _pod(index, annotations={_IN_GROUP: f"g{index}"}))],
    "a gang without pods": lambda index: [("PodGroup", _group(index))],
    "a pod with a missing claim": lambda index: [("Pod", _with_cards(index, spec={
        **_BY_CLAIM, "resourceClaims": [{"name": "c", "resourceClaimName": f"missing{index}"}]}))],
    "a pod with the missing claim of all": lambda index: [("Pod", _with_cards(index, spec=_BY_CLAIM))],
    "a NamespaceQueue with quotas": lambda index: [("NamespaceQueue", _quota_of(index))],
    "a NamespaceQueue with a wrong quota": lambda index: [
        ("NamespaceQueue", _quota_of(index) | {"spec": {"parent": f"p{index}"}})],
    "a Queue": lambda index: [("Queue", _quota_of(index))],
    "a namespace": lambda index: [("Namespace", {"metadata": {
        "name": f"ns{index}", "annotations": {"scheduling.volcano.sh/queue-name": f"q{index}"}}})],
    "a node": lambda index: [("Node", _node(index))],
    "a node with devices": lambda index: [("Node", _node(index)), ("ResourceSlice", _slice(index))],
    "a claim": lambda index: [("ResourceClaim", CHURN["ResourceClaim"](index)[1])],
}  # fmt: skip


def _churn(
    follow: Follower, made: Callable[[int], list[tuple[str, Json]]], first: int, count: int, now: float
) -> float:
    """Objects with the numbers from `first` on come and go. Returns the moment after it."""
    for begin in range(first, first + count, _AT_ONCE):
        numbers = range(begin, begin + _AT_ONCE)
        for stage in zip(*[made(index) for index in numbers], strict=True):
            now += 1
            follow(now, [_changed(kind, obj) for kind, obj in stage])
        last = {(kind, index): obj for index in numbers for kind, obj in made(index)}
        now += 1
        follow(now, [_gone(kind, obj) for (kind, _), obj in reversed(last.items())])
    gc.collect()
    return now


def _grown(root: object, follow: Follower, made: Made) -> list[str]:
    """The containers that are larger after many objects than after few."""
    now = _churn(follow, made, 0, _FEW, 1_000_000.0)
    before = sizes(root)
    _churn(follow, made, _FEW, _MANY, now)
    return [f"{path}: {before[path]} to {size}" for path, size in sizes(root).items() if size > 2 * before[path] + 32]


# --- the ledger -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", _RECORDED)
@pytest.mark.parametrize("evicts", [False, True], ids=["", "evicting"])
def test_a_ledger_keeps_nothing_of_objects_that_are_gone(
    case: str, evicts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evicting`: with the intents of the scheduler, as of a recording."""
    monkeypatch.setattr(inventory, "_SPARE", 8)
    monkeypatch.setattr(pool_changes, "_MOST", 8)
    recorder = LedgerRecorder(AdoptedRows())

    def follow(now: float, changes: Sequence[deltas.Delta]) -> None:
        pods = [each.object for each in changes if isinstance(each, deltas.ObjectChanged)] if evicts else []
        intents = [
            Evict(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, "Reclaim", f"for {pod.metadata.uid}")
            for pod in pods
            if isinstance(pod, TYPES["Pod"])
        ]
        recorder.feed(round(now * 1000), changes, intents)

    follow(999_999.0, _first())
    assert _grown(recorder, follow, _RECORDED[case]) == []


@pytest.mark.parametrize("case", _RECORDED)
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "standby"])
def test_the_counter_of_card_seconds_keeps_nothing_of_objects_that_are_gone(
    case: str, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prometheus reads it all the time."""
    monkeypatch.setattr(inventory, "_SPARE", 8)
    monkeypatch.setattr(pool_changes, "_MOST", 8)
    counter = CardSecondsCounter()
    counter.lead(leads)

    def follow(now: float, changes: Sequence[deltas.Delta]) -> None:
        counter.apply(changes, now)
        counter.read()

    follow(999_999.0, _first())
    counter.lists_applied()
    assert _grown(counter, follow, _RECORDED[case]) == []


# --- the clusters of the pages and of `cache` -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*CHURN, "PodGroup and Pod"])
def test_a_followed_cluster_keeps_nothing_of_objects_that_are_gone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session runs on its core: copies of the process do that."""
    for module, name in SPARES["entries"]:
        monkeypatch.setattr(module, name, 8)
    connection = Connection("http://127.0.0.1:1", None, lambda: None, "default")
    held = FollowedCluster(build_core(None, None, options_of(Source())), connection, "default")
    held.informers = Informers(Client(connection), held.deliver, held, ())

    def made(index: int) -> list[tuple[str, Json]]:
        if kind in CHURN:
            return [(kind, obj) for obj in CHURN[kind](index)]
        return _RECORDED["a pod of a gang"](index)

    def follow(_: float, changes: Sequence[deltas.Delta]) -> None:
        held.deliver(changes)

    follow(0.0, _first())
    assert _grown(held, follow, made) == []
