"""The cluster that a cache holds, after any changes, gives the answers of a new process that lists the same objects."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capcard_sched.cli.exit_codes import FailureWatch
from capcard_sched.cli.sources.cores import build_core, options_of
from capcard_sched.cli.sources.held_cluster import HeldCluster, SortedDeltas
from capcard_sched.cli.sources.source import Source
from capcard_sched.framework.core import Core
from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.insight.diagnosis.explain import explain, find
from capcard_sched.insight.diagnosis.lists import job_items, pod_items
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.kube.connection import Connection
from capcard_sched.kube.kinds import KINDS
from capcard_sched.model import deltas
from capcard_sched.model.deltas import Delta
from capcard_sched.model.intents import ObjectRef
from tests import objects

_NOW = 1_800_000_000.0
_GROUPS, _NODES, _QUEUES = ("g", "g-0", "h"), ("n", "n-0", "m"), ("q", "p")


class _Pod(NamedTuple):
    """A pod as a user or the scheduler writes it."""

    name: str
    group: str
    node: str
    gpu: int
    uid: str


class _Pods:
    """Makes pods of one history: a pod of a uid keeps its requests, and its node once it has one."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int]] = {}

    def delta(self, change: Delta | _Pod) -> Delta:
        if not isinstance(change, _Pod):
            return change
        uid = f"{change.name}-{change.uid}"
        node, gpu = self._known.get(uid, ("", change.gpu))
        node = node or change.node
        self._known[uid] = node, gpu
        requests = {"cpu": "1", **({"nvidia.com/gpu": gpu} if gpu else {})}
        return objects.pod(change.name, uid=uid, group=change.group, node=node, requests=requests)


def _gone(kind: str, name: str) -> Delta:
    return deltas.ObjectGone(kind, "default" if kind in {"Pod", "PodGroup"} else "", name, "")


def _unreadable(kind: str, name: str) -> Delta:
    namespace = "default" if kind in {"Pod", "PodGroup"} else ""
    ref: Any = kind
    return deltas.ObjectUnreadable(ObjectRef(ref, namespace, name, f"{name}-0"), "spec: is a number")


_PODS = [f"{group}-{number}" for group in _GROUPS for number in (0, 1, 10)]
_NAMED = {"Pod": _PODS, "PodGroup": _GROUPS, "Node": _NODES, "Queue": _QUEUES}
_CHANGES = st.one_of(
    st.builds(
        _Pod,
        st.sampled_from(_PODS),
        st.sampled_from(["", *_GROUPS]),
        st.sampled_from(["", "", *_NODES]),
        st.sampled_from([0, 1, 4]),
        st.sampled_from("01"),
    ),
    st.builds(
        lambda name, queue, size, phase: objects.group(name, queue=queue, minMember=size, phase=phase),
        st.sampled_from(_GROUPS),
        st.sampled_from(_QUEUES),
        st.integers(1, 3),
        st.sampled_from(["", "Pending", "Inqueue", "Running"]),
    ),
    st.builds(
        lambda name, cpu, gpu: objects.node(name, cpu=cpu, devices={"nvidia.com/gpu": gpu} if gpu else None),
        st.sampled_from(_NODES),
        st.integers(1, 8),
        st.sampled_from([0, 4]),
    ),
    st.builds(
        lambda name, cpu: objects.queue(name, capability={"cpu": cpu}), st.sampled_from(_QUEUES), st.integers(0, 8)
    ),
    st.sampled_from(
        [change(kind, name) for kind, names in _NAMED.items() for name in names for change in (_gone, _unreadable)]
    ),
)


def _core() -> Core:
    return build_core(None, None, options_of(Source()))


def _held() -> HeldCluster:
    return HeldCluster(_core(), Connection("http://127.0.0.1:1", None, lambda: None, "default"), "default")


def _answers(core: Core, view: DeltaObjects) -> dict[str, object]:
    """What verbs show of a cluster."""
    watched = FailureWatch(core)
    core.keep_silent()
    core.resync()
    watched.step((), _NOW)
    assert not watched.failures
    found: dict[str, object] = {}
    for key, job in sorted(core.snapshot().state.jobs.items()):
        subject = find(core, view, "default", f"podgroup/{job.name}")
        if subject is not None:
            found[key] = msgspec.to_builtins(explain(core, view, subject, _NOW))
    capacity = CapacityReader(core.snapshot())
    return {
        **found,
        "jobs": job_items(core, view, _NOW),
        "pods": pod_items(core, view, _NOW),
        "queues": msgspec.to_builtins(queue_uses(core.snapshot())),
        "nodes": [str(node) for node in capacity.list_nodes()],
        "cards": [str(card) for card in capacity.list_cards()],
        "objects": [obj for kind in _NAMED for obj in view.all_of(kind)],
    }


@settings(deadline=None)
@given(st.lists(st.lists(_CHANGES, max_size=6), max_size=8))
@example(
    [
        [objects.node("n"), objects.queue("q"), objects.group("g")],
        [_Pod("g-10", "g", "", 0, "0")],
        [_Pod("g-1", "g", "n", 0, "0")],
    ]
)
@example([[objects.group("g"), _Pod("g-0", "g", "", 0, "0")], [_gone("PodGroup", "g")]])
def test_a_cluster_that_changed_equals_one_that_is_listed(batches: list[list[Delta | _Pod]]) -> None:
    held, pods = _held(), _Pods()
    for batch in batches:
        held.deliver([pods.delta(change) for change in batch])
    listed = SortedDeltas(held.objects, KINDS)
    fresh = _core()
    fresh.apply_all(listed)
    expected = _answers(fresh, DeltaObjects(listed))
    assert _answers(held.core, held.objects) == expected


def test_a_cluster_that_is_held_does_not_grow_with_what_is_gone() -> None:
    held = _held()
    for turn in range(5000):
        held.deliver([objects.pod("a", uid=str(turn), requests={"cpu": f"{turn + 1}m"})])
        held.deliver([_gone("Pod", "a")])
    assert len(held.core.snapshot().state.classes) < 2000
