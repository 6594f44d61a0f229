"""ClusterState under deltas in any order: what it keeps up to date equals what follows from the objects that are left.

The expectation is written down twice, independently of the code: `_Model` computes it from the plain descriptions the
deltas were made of, `tests.accounting.rebuilt` from the state's own tasks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hypothesis.strategies as st
from hypothesis import given

from capcard_sched.model import deltas
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.cluster import ClusterState
from capcard_sched.state.document import to_document
from tests import objects
from tests.accounting import rebuilt, recorded

_GPU = "nvidia.com/gpu"
_MEMORY = 200 * 1024 * 1024


class _Pod(NamedTuple):
    name: str
    uid: str
    group: str
    queue: str
    role: str
    cpu: int
    gpu: int
    node: str
    phase: str
    deleting: bool
    gated: bool
    ours: bool
    owner: str
    created: int
    readable: bool

    def delta(self) -> deltas.Delta:
        requests: dict[str, Any] = {"cpu": self.cpu}
        if self.gpu:
            requests[_GPU] = self.gpu
        if not self.readable:
            requests["memory"] = "?"
        return objects.pod(
            self.name,
            uid=self.uid,
            group=self.group,
            queue=self.queue,
            role=self.role,
            requests=requests,
            node=self.node,
            phase=self.phase,
            deleting=self.deleting,
            gated=self.gated,
            scheduler="capcard-sched" if self.ours else "default-scheduler",
            owner=self.owner,
            created=self.created,
        )

    def status(self) -> TaskStatus:
        if self.phase in ("Succeeded", "Failed"):
            return TaskStatus[self.phase.upper()]
        if self.deleting:
            return TaskStatus.RELEASING
        if self.phase == "Running":
            return TaskStatus.RUNNING
        return TaskStatus.BOUND if self.node else TaskStatus.PENDING


_pods = st.builds(
    _Pod,
    name=st.sampled_from(["a", "b", "c", "d"]),
    uid=st.sampled_from(["", "2"]),
    group=st.sampled_from(["", "g", "h", "podgroup-rs"]),
    queue=st.sampled_from(["", "r"]),
    role=st.sampled_from(["", "ps"]),
    cpu=st.sampled_from([0, 1, 3]),
    gpu=st.sampled_from([0, 2]),
    node=st.sampled_from(["", "m", "n"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    deleting=st.booleans(),
    gated=st.booleans(),
    ours=st.sampled_from([True, True, False]),
    owner=st.sampled_from(["", "rs"]),
    created=st.integers(0, 3),
    readable=st.sampled_from([True] * 9 + [False]),
).map(lambda pod: pod._replace(uid=f"{pod.name}{pod.uid}"))


class _Group(NamedTuple):
    name: str
    uid: str
    queue: str
    roles: bool


class _Gone(NamedTuple):
    kind: str
    name: str
    uid: str


_groups = st.builds(
    _Group,
    name=st.sampled_from(["g", "h", "podgroup-rs", "podgroup-a"]),
    uid=st.sampled_from(["1", "2"]),
    queue=st.sampled_from(["", "q", "r"]),
    roles=st.booleans(),
)
_nodes = st.tuples(st.sampled_from(["m", "n"]), st.integers(1, 3))
_queues = st.sampled_from(["default", "q", "r"])
_gone = st.one_of(
    st.builds(_Gone, st.just("pod"), st.sampled_from(["a", "b", "c", "d"]), st.just("")),
    st.builds(_Gone, st.just("pod"), st.just("a"), st.sampled_from(["a", "a2"])),
    st.builds(_Gone, st.just("node"), st.sampled_from(["m", "n"]), st.just("")),
    st.builds(_Gone, st.just("queue"), _queues, st.just("")),
    st.builds(
        _Gone,
        st.just("group"),
        st.sampled_from(["g", "h", "podgroup-rs", "podgroup-a"]),
        st.sampled_from(["", "1", "2"]),
    ),
)
_changes = st.lists(st.one_of(_pods, _pods, _pods, _groups, _nodes, _queues, _gone), max_size=30)


@dataclass
class _Model:
    """The cluster, as plain facts."""

    pods: dict[str, tuple[_Pod, TaskStatus, str]] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    groups: dict[str, _Group] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)

    def take(self, change: Any) -> deltas.Delta:
        """Follow one change. Returns it as a delta."""
        match change:
            case _Pod():
                self._pod(change)
                return change.delta()
            case _Group():
                self.groups[change.name] = change
                roles = {"ps": 1} if change.roles else None
                return objects.group(change.name, uid=change.uid, queue=change.queue, roles=roles)
            case _Gone():
                return self._gone(change)
            case str():
                self.queues.add(change)
                return objects.queue(change)
        name, cpu = change
        self.nodes[name] = cpu
        return objects.node(name, cpu=cpu, memory=0)

    def _pod(self, pod: _Pod) -> None:
        known = self.pods.get(pod.name)
        if known is not None and known[0].uid != pod.uid:
            del self.pods[pod.name]
            known = None
        if known is None and not pod.ours and not pod.node:
            return
        if not pod.readable:
            self.pods.pop(pod.name, None)
            return
        status, node = pod.status(), pod.node
        placed = (TaskStatus.BOUND, TaskStatus.RUNNING)
        if known is not None and status is TaskStatus.PENDING and known[1] in placed:
            status, node = known[1:]
        if status in (TaskStatus.SUCCEEDED, TaskStatus.FAILED):
            node = ""
        self.pods[pod.name] = pod, status, node

    def _gone(self, gone: _Gone) -> deltas.Delta:
        if gone.kind == "node":
            self.nodes.pop(gone.name, None)
            return deltas.ObjectGone("Node", "", gone.name)
        if gone.kind == "queue":
            self.queues.discard(gone.name)
            return deltas.ObjectGone("Queue", "", gone.name)
        if gone.kind == "group":
            group = self.groups.get(gone.name)
            if group is not None and gone.uid in ("", group.uid):
                del self.groups[gone.name]
            return deltas.ObjectGone("PodGroup", "default", gone.name, gone.uid)
        known = self.pods.get(gone.name)
        if known is not None and gone.uid in ("", known[0].uid):
            del self.pods[gone.name]
        return deltas.ObjectGone("Pod", "default", gone.name, gone.uid)

    # --- derived values ----------------------------------------------------------------------------------------------

    @staticmethod
    def _own_group(pod: _Pod) -> str:
        return f"podgroup-{pod.owner or pod.uid}" if pod.ours else ""

    def _queue_of(self, name: str, members: list[_Pod]) -> str | None:
        """None: no session may see the job."""
        if name in self.groups:
            return self.groups[name].queue or "default"
        nameless = [pod for pod in members if pod.ours and name == self._own_group(pod)]
        if not nameless:
            return None
        return min(nameless, key=lambda pod: (pod.created, pod.uid)).queue or "default"

    def sums(self) -> dict[str, Any]:
        """The sums of `accounting.recorded` that matter to sessions."""
        jobs: dict[str, list[tuple[_Pod, TaskStatus, str]]] = {name: [] for name in self.groups}
        for pod, status, node in self.pods.values():
            name = pod.group or self._own_group(pod)
            if name:
                jobs.setdefault(name, []).append((pod, status, node))
        queue_of = {name: self._queue_of(name, [pod for pod, _, _ in members]) for name, members in jobs.items()}
        placed = (TaskStatus.BOUND, TaskStatus.RUNNING)
        held = {
            name: _requests([pod for pod, status, _ in members if status in placed]) for name, members in jobs.items()
        }
        on_nodes = {
            name: [(pod, status) for pod, status, node in self.pods.values() if node == name] for name in self.nodes
        }
        return {
            "PodGroup": {
                f"default/{name}": {
                    "tasks": sorted(pod.uid for pod, _, _ in members),
                    "pending": sorted(pod.uid for pod, status, _ in members if _waits(status) and not pod.gated),
                    "pending_best_effort": sum(
                        _waits(status) and not (pod.cpu or pod.gpu or pod.gated) for pod, status, _ in members
                    ),
                    "counts": dict(Counter(status.title for _, status, _ in members)),
                    "allocated": held[name],
                    "total_request": _requests([pod for pod, _, _ in members]),
                    "schedulable": queue_of[name] in self.queues,
                    "orphan": queue_of[name] is not None and queue_of[name] not in self.queues,
                    "without_group": queue_of[name] is None,
                }
                for name, members in jobs.items()
            },
            "Queue": {
                queue: {
                    "jobs": sorted(f"default/{name}" for name in jobs if queue_of[name] == queue),
                    "allocated": dict(
                        sum((Counter(held[name]) for name in jobs if queue_of[name] == queue), Counter())
                    ),
                }
                for queue in self.queues
            },
            "Node": {
                name: {
                    "tasks": sorted(pod.uid for pod, _ in here),
                    "used": _requests([pod for pod, _ in here]),
                    "releasing": _requests([pod for pod, status in here if status is TaskStatus.RELEASING]),
                    "nonzero_used": [1000 * sum(pod.cpu for pod, _ in here), _MEMORY * len(here)],
                    "allocatable": {"cpu": 1000 * self.nodes[name], "pods": 110},
                }
                for name, here in on_nodes.items()
            },
        }


def _waits(status: TaskStatus) -> bool:
    return status is TaskStatus.PENDING


def _requests(pods: list[_Pod]) -> dict[str, int]:
    total = {
        "cpu": 1000 * sum(pod.cpu for pod in pods),
        _GPU: 1000 * sum(pod.gpu for pod in pods),
        "pods": len(pods),
    }
    return {name: amount for name, amount in total.items() if amount}


def _state() -> ClusterState:
    return ClusterState(("capcard-sched",), "default")


def _shared(sums: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Only what `like` has, at every depth of a fixed set of keys."""
    return {
        kind: {name: {key: sums[kind][name][key] for key in row} for name, row in rows.items()}
        for kind, rows in like.items()
    }


@given(changes=_changes)
def test_the_sums_follow_from_the_objects_that_are_left(changes: list[Any]) -> None:
    state, model = _state(), _Model()
    for change in changes:
        state.apply(model.take(change))
        kept = recorded(state)
        assert kept == rebuilt(state)
    expected = model.sums()
    for part in ("PodGroup", "Queue", "Node"):
        assert set(kept[part] if changes else {}) == set(expected[part])
    assert _shared(recorded(state), expected) == expected


@given(changes=_changes, data=st.data())
def test_the_order_of_the_initial_list_does_not_matter(changes: list[Any], data: st.DataObject) -> None:
    model = _Model()
    for change in changes:
        model.take(change)
    listed: list[deltas.Delta] = [
        *(objects.queue(name) for name in model.queues),
        *(_Model().take(group) for group in model.groups.values()),
        *(objects.node(name, cpu=cpu, memory=0) for name, cpu in model.nodes.items()),
        *(pod.delta() for pod, _, _ in model.pods.values()),
    ]
    states = [_state(), _state()]
    for state, order in zip(states, (listed, data.draw(st.permutations(listed))), strict=True):
        for delta in order:
            state.apply(delta)
        state.open_session()
    assert recorded(states[0]) == recorded(states[1])
    for key, job in states[0].jobs.items():
        other = states[1].jobs[key]
        assert (job.queue, job.created, job.priority, job.min_available, job.implicit) == (
            other.queue,
            other.created,
            other.priority,
            other.min_available,
            other.implicit,
        )


#: Name, uid, node and creation time in which a pod differs from the one before it.
_twins = st.lists(
    st.tuples(
        st.sampled_from(["a", "e", "f", "g-x-1", "g-x-2"]), st.sampled_from(["", "2"]), st.booleans(), st.integers(0, 3)
    ),
    max_size=4,
)


@given(
    lists=st.lists(st.lists(st.tuples(st.one_of(_pods, _pods, _groups, _nodes, _queues, _gone), _twins), max_size=8))
)
def test_a_list_at_once_is_the_same_as_its_objects_one_by_one(lists: list[list[Any]]) -> None:
    single, whole = _state(), _state()
    for each in lists:
        found: list[deltas.Delta] = []
        for change, twins in each:
            found.append(_Model().take(change) if not isinstance(change, _Pod) else change.delta())
            if isinstance(change, _Pod):
                for name, uid, other, created in twins:
                    node = {"m": "n", "n": "m"}.get(change.node, "") if other else change.node
                    found.append(change._replace(name=name, uid=f"{name}{uid}", node=node, created=created).delta())
        for delta in found:
            single.apply(delta)
        whole.apply_all(found)
        assert to_document(whole) == to_document(single)
        assert whole.changes.jobs == single.changes.jobs
        assert whole.changes.nodes == single.changes.nodes
        assert whole.changes.queues == single.changes.queues
        assert [[*job.tasks] for job in whole.jobs.values()] == [[*job.tasks] for job in single.jobs.values()]
    assert recorded(whole) == rebuilt(whole)


@given(changes=_changes)
def test_everything_twice_is_the_same_as_once(changes: list[Any]) -> None:
    state, model = _state(), _Model()
    for change in changes:
        delta = model.take(change)
        state.apply(delta)
        before = recorded(state)
        state.open_session()
        state.apply(delta)
        assert not state.open_session()
        assert recorded(state) == before


@given(changes=_changes)
def test_deleting_every_object_leaves_an_empty_state(changes: list[Any]) -> None:
    state, model = _state(), _Model()
    for change in changes:
        state.apply(model.take(change))
    for name in ("a", "b", "c", "d"):
        state.apply(deltas.ObjectGone("Pod", "default", name))
    for name in ("g", "h", "podgroup-rs", "podgroup-a"):
        state.apply(deltas.ObjectGone("PodGroup", "default", name))
    for name in ("m", "n"):
        state.apply(deltas.ObjectGone("Node", "", name))
    for name in ("default", "q", "r"):
        state.apply(deltas.ObjectGone("Queue", "", name))
    left = (state.tasks, state.jobs, state.queues, state.schedulable, state.orphans, state.problems)
    assert not any(left)
    assert not state.groups_missing
    table = state._job_table
    assert not any(
        (
            state._node_cache._nodes,
            state._pod_table._by_name,
            table._groupless,
            table._oldest,
            state._accounting._former,
        )
    )
    assert not state._invalid._refs
    assert not state.nodes.total_used.any()
    assert not state.nodes.total_allocatable.any()
