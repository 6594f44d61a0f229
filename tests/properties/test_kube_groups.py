"""PodGroups of `scheduling.k8s.io` and their pods in any order: what the state derives follows from what is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.kube_groups import KubePodGroup, translated
from capcard_sched.state.cluster import ClusterState
from tests import objects

_NAMES = st.sampled_from(["a", "b", "c", "d"])
_GROUPS = st.sampled_from(["g", "h"])


class _Member(NamedTuple):
    name: str
    #: PodGroup of scheduling.k8s.io.
    group: str
    #: PodGroup of Volcano, which counts.
    other: str
    queue: str
    ours: bool
    uid: str
    cpu: int

    def delta(self) -> deltas.ObjectChanged:
        return objects.pod(
            self.name,
            uid=f"{self.name}{self.uid}",
            group=self.other,
            annotations={keys.POD_QUEUE_NAME: self.queue} if self.queue else {},
            scheduler="capcard-sched" if self.ours else "default-scheduler",
            requests={"cpu": str(self.cpu)},
            schedulingGroup={"podGroupName": self.group},
        )


class _Group(NamedTuple):
    name: str
    queue: str
    uid: str
    minimum: int

    def delta(self) -> deltas.ObjectChanged:
        notes = {keys.POD_QUEUE_NAME: self.queue} if self.queue else {}
        meta = {"name": self.name, "namespace": "default", "uid": f"{self.name}{self.uid}", "annotations": notes}
        body = {"metadata": meta, "spec": {"schedulingPolicy": {"gang": {"minCount": self.minimum}}}}
        return deltas.ObjectChanged(translated(msgspec.convert(body, KubePodGroup)))


class _Gone(NamedTuple):
    kind: str
    name: str


_members = st.builds(
    _Member,
    name=_NAMES,
    group=_GROUPS,
    other=st.sampled_from(["", "", "", "v"]),
    queue=st.sampled_from(["", "q", "r"]),
    ours=st.sampled_from([True, True, True, False]),
    uid=st.sampled_from(["", "2"]),
    cpu=st.sampled_from([1, 2]),
)
_groups = st.builds(
    _Group,
    name=_GROUPS,
    queue=st.sampled_from(["", "", "q"]),
    uid=st.sampled_from(["", "2"]),
    minimum=st.sampled_from([1, 2, 3]),
)
_gone = st.one_of(st.builds(_Gone, st.just("pod"), _NAMES), st.builds(_Gone, st.just("group"), _GROUPS))
#: Deltas of one element are one batch: alike pods that follow one another are added as a run.
_batches = st.lists(st.lists(st.one_of(_members, _members, _groups, _gone), max_size=5), max_size=8)


@dataclass
class _Model:
    """The objects that are left; the facts that the state derives, written down anew."""

    pods: dict[str, _Member] = field(default_factory=dict)
    groups: dict[str, _Group] = field(default_factory=dict)

    def take(self, change: Any) -> deltas.Delta:
        match change:
            case _Member():
                known = self.pods.get(change.name)
                if known is not None and known.uid == change.uid:  # the scheduler of a pod is immutable
                    change = change._replace(ours=known.ours)
                self.pods[change.name] = change
            case _Group():
                self.groups[change.name] = change
            case _Gone():
                return self._gone(change)
        made: deltas.Delta = change.delta()
        return made

    def _gone(self, change: _Gone) -> deltas.Delta:
        kept: dict[str, Any] = self.pods if change.kind == "pod" else self.groups
        kept.pop(change.name, None)
        named = ("Pod", change.name) if change.kind == "pod" else ("PodGroup", f"kube:{change.name}")
        return deltas.ObjectGone(named[0], "default", named[1])

    def queues(self) -> dict[str, str]:
        """That of the group, else of its first pod by name that names one, else the default queue."""
        found = {}
        for group in self.groups.values():
            pods = [pod for pod in self.pods.values() if pod.ours and not pod.other and pod.group == group.name]
            named = min((pod.name, pod.queue) for pod in pods if pod.queue) if any(p.queue for p in pods) else ("", "")
            found[f"default/kube:{group.name}"] = group.queue or named[1] or "default"
        return found

    def minima(self) -> dict[str, int]:
        """Thousandths of the cpus of the first pods, by name: none is placed, and all have one priority and age."""
        found = {}
        for group in self.groups.values():
            pods = [pod for pod in self.pods.values() if pod.ours and not pod.other and pod.group == group.name]
            first = sorted(pods, key=lambda pod: pod.name)[: group.minimum]
            found[f"default/kube:{group.name}"] = 1000 * sum(pod.cpu for pod in first)
        return found

    def two_groups(self) -> set[str]:
        return {pod.name for pod in self.pods.values() if pod.ours and pod.other}

    def mixed(self) -> set[str]:
        others = {pod.group for pod in self.pods.values() if not pod.ours}
        return {f"kube:{name}" for name in self.groups if name in others}


def _state() -> ClusterState:
    state = ClusterState(("capcard-sched",), "default")
    for name in ("default", "q", "r"):
        state.apply(objects.queue(name))
    return state


def _derived(state: ClusterState) -> tuple[dict[str, str], set[str], set[str]]:
    queues = {key: job.queue for key, job in state.jobs.items() if job.uid and job.name.startswith("kube:")}
    kept = state.kube_groups
    return queues, {ref.name for ref in kept.two_groups}, {ref.name for ref in kept.other_schedulers}


@given(batches=_batches)
def test_queues_and_events_follow_from_the_objects_that_are_left(batches: list[list[Any]]) -> None:
    state, model = _state(), _Model()
    for batch in batches:
        state.apply_all([model.take(change) for change in batch])
        assert _derived(state) == (model.queues(), model.two_groups(), model.mixed())


@given(batches=_batches)
def test_the_minimum_is_what_the_first_pods_request(batches: list[list[Any]]) -> None:
    state, model = _state(), _Model()
    for batch in batches:
        state.apply_all([model.take(change) for change in batch])
        state.open_session()
        jobs = {key: job for key, job in state.jobs.items() if job.uid and job.name.startswith("kube:")}
        assert {key: (job.min_resources or {}).get("cpu", 0) for key, job in jobs.items()} == model.minima()


@given(batches=_batches, data=st.data())
def test_objects_that_are_gone_leave_nothing(batches: list[list[Any]], data: st.DataObject) -> None:
    state, model = _state(), _Model()
    before = {name: len(kept) for name, kept in vars(state.kube_groups).items() if hasattr(kept, "__len__")}
    for batch in batches:
        state.apply_all([model.take(change) for change in batch])
    rest: list[Any] = [*(_Gone("pod", name) for name in model.pods), *(_Gone("group", name) for name in model.groups)]
    state.apply_all([model.take(each) for each in data.draw(st.permutations(rest))])
    assert {name: len(vars(state.kube_groups)[name]) for name in before} == before
