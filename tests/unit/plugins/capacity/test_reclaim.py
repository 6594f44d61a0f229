"""Victims of capacity's reclaim."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from capcard_sched.framework.session.statement import Statement
from tests.unit.plugins.capacity.clusters import GPU, capacity, cluster, reclaim


class Case(NamedTuple):
    id: str
    #: Requests of the victim queue's running pods, in the order they are offered.
    pods: list[dict[str, Any]]
    victims: list[int]
    deserved: dict[str, Any] | None = None
    guarantee: dict[str, Any] | None = None
    reclaimer: dict[str, Any] = {"cpu": "1"}
    #: Protection reasons of the others.
    cause: str = "deserved"


CASES = [
    Case("down to deserved", [{"cpu": 2}] * 3, [0], {"cpu": 4}, {"cpu": 3}),
    Case("never below the guarantee", [{"cpu": 2}] * 3, [], {"cpu": 4}, {"cpu": 5}, cause="guarantee"),
    Case("a guarantee of something else protects nothing", [{"cpu": 2}] * 3, [0], {"cpu": 4}, {GPU: 2}),
    Case("below deserved though it has no cards", [{"cpu": 2}], [], {"cpu": 4, GPU: 2}),
    Case("not a pod whose eviction entitles its queue to the first", [{"cpu": 1}, {"cpu": 3}, {"cpu": 1}], [0, 2],
         {"cpu": 3}),
    Case("at deserved", [{"cpu": 2}] * 2, [], {"cpu": 4}),
    Case("everything when nothing is deserved", [{"cpu": 2}] * 2, [0, 1]),
    Case("what deserved does not name is unlimited", [{"cpu": 2, GPU: 1}] * 3, [], {"cpu": 6}),
    Case("a resource with deserved 0 is not", [{"cpu": 2, GPU: 1}] * 2, [0, 1], {"cpu": 6, GPU: 0},
         reclaimer={"cpu": 1, GPU: 1}),
    Case("pods that use nothing of what is deserved are there on sufferance", [{"cpu": 2}] * 2, [0, 1], {GPU: 4}),
    Case("too much memory does not cost pods without memory", [{"memory": "6Gi"}, {"cpu": 2}], [0],
         {"cpu": 4, "memory": "4Gi"}, reclaimer={"cpu": 1, "memory": "1Gi"}),
    Case("too much of what the reclaimer does not need costs nothing", [{"cpu": 2, "memory": "6Gi"}], [],
         {"cpu": 4, "memory": "4Gi"}),
    Case("pods that free nothing the reclaimer needs", [{"memory": "6Gi"}], [], {"memory": "4Gi"},
         cause="other-resources"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_victims(case: Case) -> None:
    h = cluster("20", memory="20Gi", resources={GPU: 8})
    h.queue("rich", deserved=case.deserved, guarantee=case.guarantee)
    h.queue("poor", deserved={"cpu": 9, "memory": "9Gi", GPU: 9})
    h.group("rich", queue="rich")
    h.group("poor", queue="poor")
    for i, requests in enumerate(case.pods):
        h.pod(f"r{i}", group="rich", node="n1", requests=requests)
    h.pod("asks", group="poor", requests=case.reclaimer)
    h.session()
    names = [f"r{i}" for i in range(len(case.pods))]
    victims, causes = reclaim(h, "asks", names)
    assert victims == [f"r{i}" for i in case.victims]
    assert causes == dict.fromkeys((name for name in names if name not in victims), case.cause)


@pytest.mark.parametrize(
    "deserved",
    [
        pytest.param({"cpu": "3", "memory": "2Gi"}, id="everything is named"),
        pytest.param({"cpu": "3"}, id="one resource is named"),
        pytest.param({GPU: "1"}, id="another one is named"),
        pytest.param(None, id="nothing is named"),
    ],
)
@pytest.mark.parametrize("requests", [{"cpu": 1}, {"cpu": 2, "memory": "2Gi"}, {"memory": "1Gi", GPU: 1}], ids=str)
def test_a_queue_never_reclaims_its_own_victim(deserved: dict[str, str] | None, requests: dict[str, Any]) -> None:
    h = cluster("20", memory="20Gi", resources={GPU: 8})
    h.queue("rich", deserved=deserved)
    h.queue("poor", deserved={"cpu": 9, "memory": "9Gi", GPU: 9})
    h.group("rich", queue="rich")
    h.group("poor", queue="poor")
    for i in range(4):
        h.pod(f"r{i}", group="rich", node="n1", requests=requests)
    h.pod("asks", group="poor", requests={"cpu": 1, "memory": "1Gi", GPU: 1})
    session = h.session()
    victims, _ = reclaim(h, "asks", [f"r{i}" for i in range(4)])
    assert victims
    statement = Statement(session)
    for name in victims:
        statement.evict(h.task(name), "reclaim")
        assert capacity(h).preemptive(session.queues["rich"], h.task(name)) is not None
