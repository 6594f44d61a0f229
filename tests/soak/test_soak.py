"""The parts of the soak: a reproducible schedule, and an oracle that finds planted violations and nothing else."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Self

import pytest

from tests.controlplane.audit import Audited
from tests.controlplane.cluster import RequestError
from tests.controlplane.manifests import Manifest, gpu_node, pod, pod_group, queue
from tests.e2e.history import Change, Moment
from tests.manifests.test_foreign_objects import SCHEDULER
from tests.soak.admission import foreign_attempts, violation
from tests.soak.faults import ACTIONS
from tests.soak.oracle import Oracle, amounts, request_of
from tests.soak.resources import ResourceSample, ResourceSampler
from tests.soak.schedule import ENDING, KINDS, fault_schedule
from tests.soak.tenant import TENANT, attempted

CARD = "NVIDIA-A10"


def test_a_seed_reproduces_the_schedule_and_a_shorter_soak_is_a_prefix() -> None:
    long = fault_schedule(7, 1800)
    assert fault_schedule(7, 1800) == long
    assert fault_schedule(7, 120) == [fault for fault in long if fault.at < 120]
    assert fault_schedule(8, 1800) != long


def test_half_an_hour_has_every_kind_of_fault_and_each_has_an_action() -> None:
    assert {fault.kind for fault in fault_schedule(1, 1800)} == KINDS.keys() == ACTIONS.keys()


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
    """A history written by hand: each method is the next change, in a revision of its own and a second later."""

    def __init__(self) -> None:
        self.oracle = Oracle(grace=5, half_gang=60)
        self._revision = 0
        self._now = 0.0
        self._live: dict[str, Manifest] = {}
        #: Names of pods whose binding by scheduler-a succeeded.
        self._binds: list[str] = []
        self.put("nodes", gpu_node("n", CARD, 4, cpu=8)).quota(4).leader("a")

    def put(self, kind: str, *items: Manifest) -> Self:
        """These objects are as given from now on, all at once."""
        changes = []
        for item in copy.deepcopy(items):
            key = item["metadata"].setdefault("uid", f"{kind}-{item['metadata']['name']}")
            changes.append(Change(kind, self._live.get(key), item))
            self._live[key] = item
        return self._apply(*changes)

    def gone(self, kind: str, name: str) -> Self:
        return self._apply(Change(kind, self._live.pop(f"{kind}-{name}"), None))

    def _apply(self, *changes: Change) -> Self:
        self._revision += 1
        self.later(1)
        self.oracle.apply(Moment(self._revision, self._now, changes))
        return self

    def later(self, seconds: float = 10) -> Self:
        self._now += seconds
        return self

    def leader(self, holder: str) -> Self:
        meta = {"name": "capcard-sched", "namespace": "soak"}
        return self.put("leases", {"metadata": meta, "spec": {"holderIdentity": holder}})

    def quota(self, cards: int, name: str = "q") -> Self:
        return self.put("queues", queue(name, cards={CARD: cards}))

    def gang(self, minimum: int = 1, *, name: str = "g", queue_name: str = "q", uid: str = "") -> Self:
        group = pod_group(name, queue=queue_name, members=minimum, namespace="soak")
        return self.put("podgroups", {**group, "metadata": {**group["metadata"], **({"uid": uid} if uid else {})}})

    def pod(self, name: str, group: str = "g", count: int = 1, **fields: Any) -> Self:
        requests = {"cpu": "1", "nvidia.com/gpu": count}
        given = {"group": group, "cards": CARD, "requests": requests, "namespace": "soak", **fields}
        return self.put("pods", pod(name, **given))

    def bind(self, name: str, count: int = 1, group: str = "g", node: str = "n", **fields: Any) -> Self:
        self._binds.append(name)
        return self.pod(name, group, count, **fields).change(name, spec={"nodeName": node})

    def change(self, name: str, **parts: Manifest) -> Self:
        """A pod gets these fields in its metadata, spec or status."""
        before = self._live[f"pods-{name}"]
        return self.put("pods", {**before, **{part: {**before.get(part, {}), **new} for part, new in parts.items()}})

    def evict(self, name: str, preemptor: str) -> Self:
        self.later(60).pod(preemptor)
        message = f"Pod is evicted, because of reclaim: {CARD}: 1 on node n for soak/{preemptor} of queue q"
        leaving = {"conditions": [{"type": "PodReady", "message": message}]}
        return self.change(name, metadata=TERMINATING, status=leaving).gone("pods", name)

    def bound_again(self, name: str) -> Self:
        """The audit log has one more binding of the pod."""
        self._binds.append(name)
        return self

    def violations(self) -> list[str]:
        rows = [Audited("scheduler-a", "create", "", "pods", "binding", "soak", name, 201) for name in self._binds]
        self.oracle.finish(rows, {"a": "scheduler-a", "b": "scheduler-b"}, ["soak"])
        return [violation.text for violation in self.oracle.violations]


TERMINATING = {"deletionTimestamp": "x"}
NINE = ", ".join(f"soak/p{index}" for index in range(9))
#: What happens, and the violations.
STORIES: dict[str, tuple[Callable[[Story], Story], list[str]]] = {
    "a full node and queue": (lambda it: it.gang().bind("p", 4), []),
    "a card annotation that is removed changes no charge": (
        lambda it: it.quota(2).later().gang().bind("p", 2).change("p", metadata={"annotations": {}}).bind("r"),
        [f"queue q has 3 of 2 {CARD}: soak/p, soak/r"]),
    "a moved PodGroup changes no charge": (
        lambda it: it.quota(2).quota(9, "other").later().gang().bind("p", 2).gang(queue_name="other")
        .gang(name="h").bind("r", group="h"),
        [f"queue q has 3 of 2 {CARD}: soak/p, soak/r"]),
    "a terminating pod counts": (
        lambda it: it.gang().bind("p", 4).change("p", metadata=TERMINATING).bind("r"),
        ["node n has 5 of 4 nvidia.com/gpu: soak/p, soak/r", f"queue q has 5 of 4 {CARD}: soak/p, soak/r"]),
    "a quota is lowered within the grace": (lambda it: it.gang().quota(0).bind("p"), []),
    "a quota is lowered before the grace": (
        lambda it: it.gang().quota(0).later().bind("p"), [f"queue q has 1 of 0 {CARD}: soak/p"]),
    "a deleted PodGroup keeps its queue": (
        lambda it: it.quota(1).later().gang().bind("p").gone("podgroups", "g").gang(name="h").bind("r", group="h"),
        [f"queue q has 2 of 1 {CARD}: soak/p, soak/r"]),
    "a PodGroup is deleted before a bind that was decided with it": (
        lambda it: it.gang().gone("podgroups", "g").bind("p"), []),
    "a finished pod does not count": (
        lambda it: it.gang().bind("p", 4).change("p", status={"phase": "Succeeded"}).bind("r", 4), []),
    "cpu beyond the node": (
        lambda it: functools.reduce(lambda so_far, index: so_far.bind(f"p{index}", 0), range(9), it.gang()),
        [f"node n has 9 of 8 cpu: {NINE}"]),
    "a missing node": (lambda it: it.gang().bind("p", node="m"), ["bind to node m, which does not exist"]),
    "another node": (
        lambda it: it.gang().bind("p").change("p", spec={"nodeName": "m"}), ["pod soak/p moved from node n to m"]),
    "bound twice": (
        lambda it: it.gang().bind("p").bound_again("p"), ["pod soak/p: 2 binds succeeded for 1 pods of that name"]),
    "pods of one name are bound once each": (
        lambda it: it.gang().bind("p").gone("pods", "p").bind("p").gone("pods", "p"), []),
    "pods and devices that the node lacks, bound in one moment after a gap of the watch": (
        lambda it: it.put("nodes", gpu_node("n", CARD, 4, pods=1)).later().put(
            "pods", *(pod(name, namespace="soak", requests={"x.y/fpga": "1"}, nodeName="n") for name in "pr")),
        ["node n has 1 of 0 x.y/fpga: soak/p", "node n has 2 of 1 pods: soak/p, soak/r",
         "node n has 2 of 0 x.y/fpga: soak/p, soak/r"]),
    "another card": (
        lambda it: it.bind("p", 0, "", cards="X|Y"), ["pod soak/p is on node n, which lacks its card"]),
    "bare pods of a queue without a quota": (
        lambda it: it.put("queues", queue("none")).bind("p", group="", queue="none"),
        [f"queue none has 1 of 0 {CARD}: soak/p"]),
    "a gang that was complete loses a member": (lambda it: it.gang(2).bind("p").bind("r").gone("pods", "p"), []),
    "a gang takes the name of a complete one": (
        lambda it: it.gang(2).bind("p").bind("r").gone("pods", "p").gone("podgroups", "g").gang(2, uid="another"),
        ["gang soak/g has 1 bound members, at most 1 at a time, of 2"]),
    "a group is made for bound pods": (lambda it: it.bind("p", 0, cards="").gang(), []),
    "bound by a former leader": (
        lambda it: it.gang().leader("b").bind("p"), ["pod soak/p bound by scheduler-a, the leader is scheduler-b"]),
    "half a gang": (
        lambda it: it.gang(2).bind("p"), ["gang soak/g has 1 bound members, at most 1 at a time, of 2"]),
    "half a gang for a minute": (
        lambda it: it.gang(2).bind("p").later(50).pod("r").later(50).bind("r"),
        ["gang soak/g had bound members for 102 s without its minimum"]),
    "half a gang that is completed": (
        lambda it: it.gang(2).bind("p").later(50).bind("r").later(99).gone("pods", "p"), []),
    "half a gang that is evicted": (
        lambda it: it.gang(2).bind("p").later(50).change("p", metadata=TERMINATING).later(99).gone("pods", "p"), []),
    "a wasted eviction": (
        lambda it: it.gang().bind("v", 4).evict("v", "p"), ["pod soak/v evicted for soak/p, which is pending"]),
    "a served eviction": (lambda it: it.gang().bind("v", 4).evict("v", "p").bind("p"), []),
    "a disturbed eviction": (
        lambda it: it.gang().bind("v", 4).evict("v", "p").put("nodes", gpu_node("n", CARD, 0, cpu=8)), []),
}  # fmt: skip


@pytest.mark.parametrize("play, violations", STORIES.values(), ids=STORIES)
def test_the_oracle_finds_planted_violations(play: Callable[[Story], Story], violations: list[str]) -> None:
    assert play(Story()).violations() == violations


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
    _readings(sampler, "large", 4, 70.0, 0.0)
    assert [text.partition(":")[0] for text in sampler.leaks()] == ["grows", "opens", "large"]
    assert sampler.leaks()[2] == "large: memory of 310.0 MiB, more than 300 MiB"
    assert sampler.leaks()[1] == "opens: open descriptors grew from 55 to 105"


_DOWN = '500 failed calling webhook "validatepodgroup.volcano.sh"'
_RULE = '403 admission webhook "validatepodgroup.volcano.sh" denied the request: spec.queue'


@pytest.mark.parametrize(
    ("text", "is_foreign", "serves", "passes_unserved", "expected"),
    [
        ("", False, True, False, ""),
        (_DOWN, False, False, False, ""),
        ("", False, False, False, "x passes unchecked while the admission server is down"),
        (_DOWN, False, True, False, f"x is refused while the admission server serves: {_DOWN}"),
        (_RULE, False, True, False, f"x is refused while the admission server serves: {_RULE}"),
        (_RULE, False, False, False, f"x is refused by another rule: {_RULE}"),
        (_DOWN, False, False, True, f"x is refused while the admission server is down: {_DOWN}"),
        ("", True, False, False, ""),
        (_DOWN, True, False, False, f"x of another scheduler is refused: {_DOWN}"),
        (_RULE, True, True, False, f"x of another scheduler is refused: {_RULE}"),
        ("503 etcdserver: leader changed", True, True, False, ""),
        ("403 not yet ready to handle request", False, True, False, ""),
    ],
)
def test_refusals_are_those_that_are_documented(
    text: str, is_foreign: bool, serves: bool, passes_unserved: bool, expected: str
) -> None:
    found = violation("x", text, is_foreign=is_foreign, serves=serves, passes_unserved=passes_unserved)
    assert found == expected


def test_no_policy_exempts_the_user_of_the_requests_for_another_scheduler() -> None:
    assert {attempt.user for attempt in foreign_attempts()} == {"somebody", SCHEDULER}


@pytest.mark.parametrize(
    ("status", "text", "is_policy"),
    [
        (403, "ValidatingAdmissionPolicy 'p' denied request: no", True),
        (422, "Invalid value", True),
        (403, f'User "{TENANT}" cannot create resource "jobs"', False),
        (500, "etcd", False),
    ],
)
async def test_a_server_without_its_roles_refuses_nothing_by_policy(status: int, text: str, is_policy: bool) -> None:
    async def request() -> None:
        raise RequestError("POST", "/jobs", status, "Forbidden", text)

    if is_policy:
        assert text in await attempted(request())
    else:
        with pytest.raises(RequestError):
            await attempted(request())
