"""The parts of the soak: a reproducible schedule, and an oracle that finds planted violations and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.controlplane.cluster import Manifest
from tests.controlplane.controlplane import Audited
from tests.controlplane.manifests import gpu_node, pod, pod_group, queue
from tests.e2e.history import Change, Moment
from tests.soak.faults import FaultInjector
from tests.soak.oracle import Oracle, amounts, request_of
from tests.soak.resources import ResourceSample, ResourceSampler
from tests.soak.schedule import ENDING, KINDS, fault_schedule

CARD = "NVIDIA-A10"


def test_a_seed_reproduces_the_schedule_and_a_shorter_soak_is_a_prefix() -> None:
    long = fault_schedule(7, 1800)
    assert fault_schedule(7, 1800) == long
    assert fault_schedule(7, 120) == [fault for fault in long if fault.at < 120]
    assert fault_schedule(8, 1800) != long


def test_half_an_hour_has_every_kind_of_fault_and_each_has_an_action() -> None:
    assert {fault.kind for fault in fault_schedule(1, 1800)} == set(KINDS)
    for kind in KINDS:
        assert callable(getattr(FaultInjector, f"_{kind.partition('-')[0]}")), kind


def test_in_the_second_quarter_of_an_hour_no_process_ends_so_that_its_memory_is_measured() -> None:
    ends = [fault.at for fault in fault_schedule(3, 3600) if fault.kind in ENDING]
    assert len(ends) > 20
    assert not [at for at in ends if 900 <= at < 1800 or at >= 2700]
    assert fault_schedule(3, 1800, ["kill-leader"])[-1].at < 900


def test_a_schedule_of_chosen_kinds_has_no_other() -> None:
    assert {fault.kind for fault in fault_schedule(3, 300, ["compact", "move-podgroup"])} == {
        "compact",
        "move-podgroup",
    }


class Story:
    """A history written by hand: one change per revision, `step` seconds apart."""

    def __init__(self) -> None:
        self.oracle = Oracle(grace=5)
        self.revision = 0
        self.now = 0.0
        self._live: dict[str, Manifest] = {}
        #: Names of pods whose binding by scheduler-a succeeded.
        self.binds: list[str] = []
        self.put("nodes", gpu_node("n", CARD, 4, cpu=8))
        self.put("queues", queue("q", cards={CARD: 4}))
        self.put("leases", self.lease("a"))

    @staticmethod
    def lease(holder: str) -> Manifest:
        return {"metadata": {"name": "capcard-sched", "namespace": "soak"}, "spec": {"holderIdentity": holder}}

    def put(self, kind: str, *items: Manifest) -> None:
        """These objects are as given from now on, all at once."""
        changes = []
        for item in copy.deepcopy(items):
            key = item["metadata"].setdefault("uid", f"{kind}-{item['metadata']['name']}")
            changes.append(Change(kind, self._live.get(key), item))
            self._live[key] = item
        self._apply(*changes)

    def gone(self, kind: str, name: str) -> None:
        self._apply(Change(kind, self._live.pop(f"{kind}-{name}"), None))

    def _apply(self, *changes: Change) -> None:
        self.revision += 1
        self.now += 1
        self.oracle.apply(Moment(self.revision, self.now, changes))

    def member(self, name: str, group: str = "g", count: int = 1, **fields: Any) -> Manifest:
        requests = {"cpu": "1", "nvidia.com/gpu": count}
        return pod(name, **{"group": group, "cards": CARD, "requests": requests, "namespace": "soak", **fields})

    def bind(self, name: str, group: str = "g", count: int = 1, node: str = "n", **fields: Any) -> Manifest:
        item = self.member(name, group, count, **fields)
        self.put("pods", item)
        bound = {**item, "spec": {**item["spec"], "nodeName": node}}
        self.put("pods", bound)
        self.binds.append(name)
        return {**bound, "metadata": {**bound["metadata"], "uid": f"pods-{name}"}}

    def finish(self) -> list[str]:
        rows = [Audited("scheduler-a", "create", "", "pods", "binding", "soak", name, 201) for name in self.binds]
        self.oracle.finish(rows, {"a": "scheduler-a", "b": "scheduler-b"}, ["soak"])
        return [violation.text for violation in self.oracle.violations]


def gang(story: Story, minimum: int = 1, queue_name: str = "q") -> Manifest:
    group = pod_group("g", queue=queue_name, members=minimum, namespace="soak")
    story.put("podgroups", group)
    return group


def _full(story: Story) -> None:
    gang(story)
    story.bind("p", count=4)


def _quota_by_the_cards_of_the_node(story: Story) -> None:
    story.put("queues", queue("q", cards={CARD: 2}))
    story.now += 10
    gang(story)
    bound = story.bind("p", count=2)
    edited = copy.deepcopy(bound)
    del edited["metadata"]["annotations"]["volcano.sh/card.name"]
    story.put("pods", edited)  # the tenant removes the annotation: the charge stays
    story.bind("r")


def _a_moved_podgroup(story: Story) -> None:
    story.put("queues", queue("q", cards={CARD: 2}))
    story.put("queues", queue("other", cards={CARD: 9}))
    story.now += 10
    group = gang(story)
    story.bind("p", count=2)
    story.put("podgroups", {**group, "spec": {**group["spec"], "queue": "other"}})
    story.put("podgroups", {**pod_group("h", queue="q", namespace="soak")})
    story.bind("r", group="h")


def _a_terminating_pod_counts(story: Story) -> None:
    gang(story)
    bound = story.bind("p", count=4)
    story.put("pods", {**bound, "metadata": {**bound["metadata"], "deletionTimestamp": "x"}})
    story.bind("r")


def _a_lowered_quota_within_the_grace(story: Story) -> None:
    gang(story)
    story.put("queues", queue("q", cards={CARD: 0}))
    story.bind("p")


def _a_lowered_quota_after_the_grace(story: Story) -> None:
    gang(story)
    story.put("queues", queue("q", cards={CARD: 0}))
    story.now += 10
    story.bind("p")


def _a_deleted_podgroup_keeps_its_queue(story: Story) -> None:
    story.put("queues", queue("q", cards={CARD: 1}))
    story.now += 10
    gang(story)
    story.bind("p")
    story.gone("podgroups", "g")
    story.put("podgroups", {**pod_group("h", queue="q", namespace="soak")})
    story.bind("r", group="h")


def _a_finished_pod_does_not_count(story: Story) -> None:
    gang(story)
    bound = story.bind("p", count=4)
    story.put("pods", {**bound, "status": {"phase": "Succeeded"}})
    story.bind("r", count=4)


def _cpu_beyond_the_node(story: Story) -> None:
    gang(story)
    for index in range(9):
        story.bind(f"p{index}", count=0)


def _a_missing_node(story: Story) -> None:
    gang(story)
    story.bind("p", node="m")


def _another_node(story: Story) -> None:
    gang(story)
    bound = story.bind("p")
    story.put("pods", {**bound, "spec": {**bound["spec"], "nodeName": "m"}})


def _bound_twice(story: Story) -> None:
    gang(story)
    story.bind("p")
    story.binds.append("p")


def _bound_by_a_former_leader(story: Story) -> None:
    gang(story)
    story.put("leases", story.lease("b"))
    story.bind("p")


def _half_a_gang(story: Story) -> None:
    gang(story, minimum=2)
    story.bind("p")


def _pods_and_devices_that_the_node_lacks(story: Story) -> None:
    """All bound in one moment, after a gap of the watch."""
    story.put("nodes", gpu_node("n", CARD, 4, pods=1))
    story.now += 10
    placed = [pod(name, namespace="soak", requests={"x.y/fpga": "1"}, nodeName="n") for name in ("p", "r")]
    story.put("pods", *placed)


def _another_card(story: Story) -> None:
    story.bind("p", group="", count=0, cards="X|Y")


def _bare_pods_of_a_queue_without_a_quota(story: Story) -> None:
    story.put("queues", queue("none"))
    story.bind("p", group="", queue="none")


def _a_gang_that_was_complete_loses_a_member(story: Story) -> None:
    gang(story, minimum=2)
    for name in ("p", "r"):
        story.bind(name)
    story.gone("pods", "p")


def _a_gang_that_takes_the_name_of_a_complete_one(story: Story) -> None:
    _a_gang_that_was_complete_loses_a_member(story)
    story.gone("podgroups", "g")
    group = pod_group("g", members=2, namespace="soak")
    story.put("podgroups", {**group, "metadata": {**group["metadata"], "uid": "another"}})


def _a_group_that_is_made_for_bound_pods(story: Story) -> None:
    story.bind("p", group="g", count=0, cards="")
    gang(story)


def _pods_of_one_name_are_bound_once_each(story: Story) -> None:
    gang(story)
    for _ in range(2):
        story.bind("p")
        story.gone("pods", "p")


def _evict(story: Story, preemptor: Callable[[], object]) -> None:
    gang(story)
    bound = story.bind("v", count=4)
    story.now += 60
    story.put("pods", story.member("p"))
    message = f"Pod is evicted, because of reclaim: {CARD}: 1 on node n for soak/p of queue q"
    condition = {"type": "PodReady", "message": message}
    leaving = {
        **bound,
        "metadata": {**bound["metadata"], "deletionTimestamp": "x"},
        "status": {"conditions": [condition]},
    }
    story.put("pods", leaving)
    story.gone("pods", "v")
    preemptor()


def _a_wasted_eviction(story: Story) -> None:
    _evict(story, lambda: None)


def _a_served_eviction(story: Story) -> None:
    _evict(story, lambda: story.bind("p"))


def _a_disturbed_eviction(story: Story) -> None:
    _evict(story, lambda: story.put("nodes", gpu_node("n", CARD, 0, cpu=8)))


STORIES: list[tuple[Callable[[Story], None], list[str]]] = [
    (_full, []),
    (_quota_by_the_cards_of_the_node, [f"queue q has 3 of 2 {CARD}: soak/p, soak/r"]),
    (_a_moved_podgroup, [f"queue q has 3 of 2 {CARD}: soak/p, soak/r"]),
    (
        _a_terminating_pod_counts,
        ["node n has 5 of 4 nvidia.com/gpu: soak/p, soak/r", f"queue q has 5 of 4 {CARD}: soak/p, soak/r"],
    ),
    (_a_lowered_quota_within_the_grace, []),
    (_a_lowered_quota_after_the_grace, [f"queue q has 1 of 0 {CARD}: soak/p"]),
    (_a_deleted_podgroup_keeps_its_queue, [f"queue q has 2 of 1 {CARD}: soak/p, soak/r"]),
    (_a_finished_pod_does_not_count, []),
    (_cpu_beyond_the_node, ["node n has 9 of 8 cpu: " + ", ".join(f"soak/p{index}" for index in range(9))]),
    (_a_missing_node, ["bind to node m, which does not exist"]),
    (_another_node, ["pod soak/p moved from node n to m"]),
    (_bound_twice, ["pod soak/p: 2 binds succeeded for 1 pods of that name"]),
    (_pods_of_one_name_are_bound_once_each, []),
    (
        _pods_and_devices_that_the_node_lacks,
        [
            "node n has 1 of 0 x.y/fpga: soak/p",
            "node n has 2 of 1 pods: soak/p, soak/r",
            "node n has 2 of 0 x.y/fpga: soak/p, soak/r",
        ],
    ),
    (_another_card, ["pod soak/p is on node n, which lacks its card"]),
    (_bare_pods_of_a_queue_without_a_quota, [f"queue none has 1 of 0 {CARD}: soak/p"]),
    (_a_gang_that_was_complete_loses_a_member, []),
    (
        _a_gang_that_takes_the_name_of_a_complete_one,
        ["gang soak/g has 1 bound members, at most 1 at a time, of 2"],
    ),
    (_a_group_that_is_made_for_bound_pods, []),
    (_bound_by_a_former_leader, ["pod soak/p bound by scheduler-a, the leader is scheduler-b"]),
    (_half_a_gang, ["gang soak/g has 1 bound members, at most 1 at a time, of 2"]),
    (_a_wasted_eviction, ["pod soak/v evicted for soak/p, which is pending"]),
    (_a_served_eviction, []),
    (_a_disturbed_eviction, []),
]


@pytest.mark.parametrize("story, violations", STORIES, ids=[story.__name__.strip("_") for story, _ in STORIES])
def test_the_oracle_finds_planted_violations(story: Callable[[Story], None], violations: list[str]) -> None:
    played = Story()
    story(played)
    assert played.finish() == violations


def test_requests_are_those_of_kubernetes() -> None:
    def container(**requested: str) -> dict[str, Any]:
        return {"name": "c", "image": "i", "resources": {"requests": requested}}

    one = pod("p", overhead={"cpu": "10m"})
    one["spec"]["containers"] = [container(cpu="1"), {"name": "d", "image": "i", "resources": {"limits": {"x/y": "3"}}}]
    one["spec"]["initContainers"] = [
        {**container(cpu="200m"), "restartPolicy": "Always"},
        container(cpu="1100m", memory="1Ki"),
    ]
    assert request_of(one) == {"cpu": 1310, "memory": 1024 * 1000, "x/y": 3000}
    assert amounts({"a": "1e3", "b": "1.5Gi", "c": 2, "d": "1n"}) == {
        "a": 1_000_000,
        "b": 1536 * 2**20 * 1000,
        "c": 2000,
        "d": 1,
    }


def _readings(sampler: ResourceSampler, name: str, minutes: int, mebibytes: float, descriptors: float) -> None:
    """One reading a minute: 100 MiB and 40 descriptors, and this growth per minute."""
    for minute in range(minutes):
        reading = ResourceSample(60.0 * minute, 100 + mebibytes * minute, 40 + int(descriptors * minute))
        sampler.add(name, reading)


def test_growth_of_memory_and_descriptors_after_the_warm_up_is_found() -> None:
    sampler = ResourceSampler()
    _readings(sampler, "steady", 15, 0.0, 0.0)
    _readings(sampler, "grows", 15, 5.0, 0.0)
    _readings(sampler, "opens", 15, 0.0, 5.0)
    _readings(sampler, "short-lived", 8, 20.0, 20.0)
    assert [text.partition(":")[0] for text in sampler.leaks()] == ["grows", "opens"]
    assert sampler.leaks()[1] == "opens: open descriptors grew from 55 to 105"
