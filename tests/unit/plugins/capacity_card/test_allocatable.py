"""The quota check of single pods, and their charge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity_card.admission import allocated, hold_on, nodes, scalar

GPU = "nvidia.com/gpu"


def no_charge(error: str) -> tuple[str, str]:
    return "GetTaskRequestResourceFailed", f"Get request resource failed, Queue <q>, error: <{error}>"


def check(h: Harness, pod: str = "p") -> Refusal | None:
    h.session()
    answer: Refusal | None = h.plugin("capacity-card").allocatable(h.state.queues["q"], h.task(pod))
    return answer


def shown(refusal: Refusal | None) -> tuple[str, str] | None:
    if refusal is None:
        return None
    assert (refusal.hook, refusal.plugin, refusal.component) == (
        "allocatable",
        "capacity-card",
        "volcano.capacity-card",
    )
    return refusal.reason, refusal.message


@pytest.mark.parametrize(
    ("quota", "held", "pod", "expected"),
    [
        pytest.param(
            {"NVIDIA-H200": 3}, {"NVIDIA-H200": 3}, {"card": "NVIDIA-H200", "cards": 1},
            scalar("NVIDIA-H200", 1000, 4000, 3000), id="50 the quota is used up",
        ),
        pytest.param({"A": 2, "B": 3}, {"A": 2}, {"card": "A|B", "cards": 1}, None, id="52 one alternative is enough"),
        pytest.param(
            {"A": 5, "B": 8}, {"A": 5, "B": 8}, {"card": "A|B", "cards": 2},
            scalar("A|B", 2000, 10000, 8000), id="55 reported with the last alternative's numbers",
        ),
        pytest.param(
            {"A": 1, "B": 1}, {}, {"card": "A|B", "cards": 2}, scalar("A|B", 2000, 2000, 1000),
            id="56 alternatives are not summed for one pod",
        ),
        pytest.param(
            {"NVIDIA-H200": 3}, {}, {"card": "NVIDIA-H200"},
            no_charge(f"no resource <{GPU}> defined in requests/limits for card <NVIDIA-H200>"),
            id="61 no card resource requested",
        ),
        pytest.param({}, {}, {"card": "X", "cards": 1}, no_charge("no resource name found for card <X>"), id="62"),
        pytest.param(
            {}, {}, {"card": "X|Y", "cards": 1}, no_charge("no resource name found for card <X|Y>"),
            id="62 all alternatives unknown",
        ),
        pytest.param({"B": 1}, {}, {"card": "X|B", "cards": 1}, None, id="63 unknown alternatives are skipped"),
        pytest.param({}, {}, {"requests": {GPU: 1}}, None, id="65 no card name, not charged"),
        pytest.param({"A": 1}, {}, {"card": "A", "requests": {GPU: 1, "rdma/hca": 5}}, None, id="70 rdma is free"),
        pytest.param(
            {"A": 9}, {}, {"card": "A|", "cards": 1}, no_charge("invalid card name <A|>: empty alternative"),
            id="70b empty alternative",
        ),
        pytest.param({}, {}, {"card": "A", "requests": {GPU: 0}}, None, id="none of the card always fits"),
        pytest.param({}, {}, {"card": "A|B", "requests": {GPU: 0}}, None, id="none of several cards always fits"),
        pytest.param(
            {"A": 2}, {}, {"card": "A", "requests": {GPU: "1500m"}}, None, id="fractions round up within the quota",
        ),
        pytest.param(
            {"A": 1}, {}, {"card": "A", "requests": {GPU: "1500m"}}, scalar("A", 2000, 2000, 1000),
            id="fractions round up beyond the quota",
        ),
        pytest.param(
            {"A": 1}, {"A": 5}, {"card": "A", "cards": 1}, scalar("A", 1000, 6000, 1000), id="an overdrawn card",
        ),
        pytest.param({"A": 1, "B": 1}, {"A": 5}, {"card": "B", "cards": 1}, None, id="but nothing else is"),
    ],
)  # fmt: skip
def test_one_pod_is_checked_against_the_allocated_amounts(
    harness: Callable[..., Harness],
    quota: dict[str, int],
    held: dict[str, int],
    pod: dict[str, Any],
    expected: tuple[str, str] | None,
) -> None:
    h = harness()
    nodes(h, "NVIDIA-H200", "A", "B")
    h.queue("q", cards=quota)
    for card, count in held.items():
        hold_on(h, card, count)
    h.group("g")
    h.pod("p", **pod)
    assert shown(check(h)) == expected


def test_a_closed_queue_allocates_nothing(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 3}, state="Closed")
    h.group("g")
    h.pod("p", card="A", cards=1)
    assert shown(check(h)) == ("QueueNotOpen", "Queue <q> is <Closed>")


def test_pods_without_a_card_name_go_anywhere(harness: Callable[..., Harness]) -> None:
    """Vector 65, `ignore`."""
    h = harness()
    nodes(h, "A")
    h.queue("q")
    h.group("g")
    h.pod("p", requests={GPU: 1})
    h.settle()
    assert h.binds == {"p": "n-a"}
    assert allocated(h) == {}
    assert (
        h.event_messages("Pod", "p").count(
            (
                "CardNameMissing",
                (
                    "Pod requests <nvidia.com/gpu> without annotation volcano.sh/card.name; "
                    "it is not charged to any card quota of Queue <q>"
                ),
            )
        )
        == 1
    )


def test_inferred_cards_are_charged_like_named_ones(harness: Callable[..., Harness]) -> None:
    h = harness({"unnamedCards": "infer"})
    nodes(h, "A", "B")
    h.queue("q", cards={"B": 2})
    h.group("g")
    h.pod("p", requests={GPU: 1})
    h.step()
    assert h.binds == {"p": "n-b"}
    assert allocated(h) == {"B": 1000}


def test_pipelined_pods_are_charged_the_card_of_their_node(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "B")
    h.queue("q", cards={"A": 2, "B": 3})
    h.group("g")
    h.pod("p", card="A|B", cards=1)
    session = h.session()
    statement = Statement(session)
    statement.pipeline(h.job("g"), [h.task("p")], [session.nodes.nodes[0]])
    assert allocated(h) == {"B": 1000}
    statement.discard()
    assert allocated(h) == {}
    assert h.plugin("capacity-card").ledger.internal_errors == 0


def test_a_running_multi_card_pod_is_charged_its_nodes_card(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 2, "B": 3})
    h.group("g", phase="Running")
    h.pod("p", card="A|B", cards=1, node="n-b")
    h.session()
    assert allocated(h) == {"B": 1000}


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [("B", {"A": 1000}), ("C", {"A": 1000}), ("", {"A": 1000})],
    ids=["one of its own", "not one of its own", "none"],
)
def test_the_card_under_the_requested_resource_of_the_node_counts(
    harness: Callable[..., Harness], assigned: str, expected: dict[str, int]
) -> None:
    h = harness()
    h.node(
        "n",
        labels={
            "nvidia.com/gpu.product": "A", "nvidia.com/gpu.memory": "1024",
            "acme.com/gpu.product": "B", "acme.com/gpu.memory": "1024",
        },
        resources={GPU: 8, "acme.com/gpu": 8},
    )  # fmt: skip
    h.gpu_node("n-b", card="B")
    h.queue("q", cards={"A": 2, "B": 3})
    h.group("g", phase="Running")
    h.pod("p", card="A|B", cards=1, node="n", annotations={"volcano.sh/card.assigned": assigned})
    h.session()
    assert allocated(h) == expected


def test_counts_are_summed_over_containers(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 9})
    h.group("g", phase="Running")
    container = {"resources": {"requests": {GPU: 2}, "limits": {GPU: 2}}}
    h.pod("p", card="A", node="n-a", containers=[{"name": "a", **container}, {"name": "b", **container}])
    h.session()
    assert allocated(h) == {"A": 4000}


def test_the_largest_init_step_counts(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 9})
    h.group("g", phase="Running")

    def container(name: str, cards: int) -> dict[str, Any]:
        return {"name": name, "resources": {"requests": {GPU: cards}, "limits": {GPU: cards}}}

    h.pod(
        "p", card="A", node="n-a",
        containers=[container("main", 1)], initContainers=[container("i", 1), container("j", 2)],
    )  # fmt: skip
    h.session()
    assert allocated(h) == {"A": 2000}


def test_an_evicted_pod_holds_its_quota_and_an_undone_eviction_restores_it(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 4, "B": 4})
    hold_on(h, "A", 2)
    h.group("g", phase="Running")
    h.pod("p", card="A|B", cards=3, node="n-b", annotations={"volcano.sh/card.assigned": "A"})
    session = h.session()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert (account.own.allocated.cards, account.share) == ({"A": 2000, "B": 3000}, 0.75)
    statement = Statement(session)
    statement.evict(h.task("p"), "test")
    assert account.own.allocated.cards == {"A": 2000, "B": 3000}
    assert account.own.releasing.cards == {"B": 3000}
    statement.discard()
    assert (account.own.allocated.cards, account.share) == ({"A": 2000, "B": 3000}, 0.75)
    assert account.own.releasing == {}


@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_a_card_with_the_name_of_a_resource_has_an_account_of_its_own(
    harness: Callable[..., Harness], name: str
) -> None:
    h = harness()
    h.gpu_node("n", card=name, count=8, cpu="64", memory="64Gi")
    h.queue("q", cards={name: 3}, capability={"cpu": "8", "memory": "8Gi"})
    h.group("run", phase="Running", min_member=2)
    for i in range(2):
        h.pod(f"run-{i}", group="run", card=name, cards=1, requests={"cpu": "2", "memory": "1Gi", GPU: 1}, node="n")
    h.group("g")
    h.pod("p", card=name, requests={"cpu": "1", GPU: 2})
    assert shown(check(h)) == scalar(name, 2000, 4000, 3000)
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert account.own.allocated == {CPU_KEY: 4000, MEMORY_KEY: 2 * 2**30, name: 2000}
    assert account.share == 2 / 3
    h.group("wide", phase="Pending", min_resources={"cpu": "5"})
    h.session()
    assert h.plugin("capacity-card").job_enqueueable(h.job("wide")).reason == "InsufficientCPUQuota"


@pytest.mark.parametrize(
    ("written", "read"), [(" A | B ", "A|B"), ("A|A", "A"), ("A|B|A", "A|B")], ids=["spaces", "twice", "thrice"]
)
def test_card_names_are_normalised(harness: Callable[..., Harness], written: str, read: str) -> None:
    h = harness()
    nodes(h, "A", "B")
    h.queue("q")
    h.group("g")
    h.pod("p", card=written, cards=1)
    assert shown(check(h)) == scalar(read, 1000, 1000, 0)


def test_a_refused_claim_carries_every_alternative(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 1, "B": 2})
    h.group("g")
    h.pod("p", card="A|B", cards=3)
    refusal = check(h)
    assert refusal is not None
    assert refusal.figures == Figures("A|B", 3000, 3000, 2000)
    assert refusal.alternatives == (Figures("A", 3000, 3000, 1000), Figures("B", 3000, 3000, 2000))
    assert refusal.event
