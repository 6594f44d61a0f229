"""Changing clusters and quotas, and the shares of queues."""

from __future__ import annotations

from collections.abc import Callable

from capcard_sched.plugins.capacity_card.charge import CPU_KEY
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity_card.admission import allocated, running

GPU = "nvidia.com/gpu"


def order(h: Harness) -> list[str]:
    session = h.session()
    return sorted(session.queues, key=lambda name: (h.plugin("capacity-card").queue_order(session.queues[name]), name))


def test_a_card_is_known_as_long_as_a_pod_holds_it(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="other")
    h.queue("q", cards={"H200": 9})
    running(h, 8)
    h.step()
    h.delete_node("n1")
    h.group("g")
    h.pod("p", card="H200", cards=1)
    h.step()
    assert allocated(h) == {"H200": 8000}
    assert h.pod_message("p") == "0/1 nodes are unavailable: 1 node(s) didn't have card <H200>."
    for i in range(8):
        h.delete_pod(f"run-p-{i}")
    h.step()
    assert allocated(h) == {}
    h.node("wake")
    h.step()
    assert h.pod_message("p") == (
        "Get request resource failed, Queue <q>, error: <no resource name found for card <H200>>"
    )
    h.gpu_node("n3", card="H200")
    h.step()
    assert h.binds == {"p": "n3"}


def test_a_recorded_card_counts_though_no_node_ever_offered_it(harness: Callable[..., Harness]) -> None:
    """A scheduler that starts after the last node of a card went charges its pods that card, and no other."""
    h = harness()
    h.gpu_node("n1", card="B", count=4)
    h.queue("q", cards={"A": 2, "B": 1})
    h.group("old", phase="Running")
    h.pod("old", group="old", card="A|B", cards=1, node="gone", annotations={"volcano.sh/card.assigned": "A"})
    h.group("new")
    h.pod("new", group="new", card="B", cards=1)
    h.step()
    assert h.binds == {"new": "n1"}
    assert allocated(h) == {"A": 1000, "B": 1000}
    h.gpu_node("n2", card="A", count=4)
    h.step()
    assert allocated(h) == {"A": 1000, "B": 1000}


def test_a_resliced_node_leaves_the_quota_alone(harness: Callable[..., Harness]) -> None:
    h = harness()
    slices = {"nvidia.com/mig-1g.18gb": 3, "nvidia.com/mig-3g.71gb": 1}
    h.gpu_node("n1", card="H200", count=7, resources=slices)
    h.queue("q", cards={"H200/mig-1g.18gb-mixed": 3, "H200": 1})
    h.step()
    h.gpu_node("n1", card="H200", count=7, resources={"nvidia.com/mig-3g.71gb": 2})
    h.group("g")
    h.pod("p", card="H200/mig-1g.18gb-mixed", requests={"nvidia.com/mig-1g.18gb": 1})
    h.group("h")
    h.pod("other", group="h", card="H200", cards=1)
    h.step()
    plugin = h.plugin("capacity-card")
    assert plugin.inventory.totals == {"H200": 7000, "H200/mig-3g.71gb-mixed": 2000}
    assert plugin.ledger.queues["q"].quota.limit("H200/mig-1g.18gb-mixed") == 3000
    assert h.binds == {"other": "n1"}
    assert "no resource name found for card <H200/mig-1g.18gb-mixed>" in h.pod_message("p")


def test_the_lower_share_is_served_first(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200", count=64)
    h.queue("a", cards={"H200": 4})
    h.queue("b", cards={"H200": 8})
    running(h, 3, queue="a", group="a")
    running(h, 2, queue="b", group="b")
    assert order(h) == ["b", "a"]
    ledger = h.plugin("capacity-card").ledger
    assert (ledger.queues["b"].share, ledger.queues["a"].share) == (0.25, 0.75)


def test_the_most_used_dimension_is_the_share(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200", cpu="200", count=8)
    h.gpu_node("n2", card="H100", cpu="200", count=8)
    h.queue("q", cards={"H200": 8, "H100": 2}, deserved={"cpu": "100"})
    running(h, 2)
    running(h, 2, card="H100", node="n2", group="other")
    h.group("cpu", phase="Running")
    h.pod("cpu", group="cpu", requests={"cpu": "50"}, node="n1")
    h.session()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert account.share == 1
    account.quota = account.quota._replace(deserved={CPU_KEY: account.quota.plain[CPU_KEY].deserved})
    account.invalidate()
    assert account.share == 0.5


def test_nothing_deserved_means_no_share(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.node("n1", cpu="10")
    h.queue("q")
    h.group("cpu", phase="Running")
    h.pod("cpu", group="cpu", requests={"cpu": "5"}, node="n1")
    h.session()
    assert h.plugin("capacity-card").ledger.queues["q"].share == 0


def test_guarantees_of_others_are_out_of_reach(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.node("n1", cpu="10")
    h.queue("a", guarantee={"cpu": "2"})
    h.queue("b", guarantee={"cpu": "3"}, deserved={"cpu": "20"})
    h.session()
    queues = h.plugin("capacity-card").ledger.queues
    cpu = [queues[name].quota.plain[CPU_KEY] for name in "ab"]
    assert [(one.real_capability, one.limit, one.deserved) for one in cpu] == [(7000, 7000, 2000), (8000, 8000, 8000)]
    h.queue("b", guarantee={"cpu": "20"}, capability={"cpu": "4"})
    h.session()
    assert queues["a"].quota.plain[CPU_KEY].limit == 2000
    assert queues["b"].quota.plain[CPU_KEY] == (4000, 4000, 20000, 4000)


def test_cards_may_be_handed_out_twice(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200", count=8)
    h.queue("a", cards={"H200": 8})
    h.queue("b", cards={"H200": 8})
    h.session()
    samples = {(s.name, s.labels.get("queue_name")): s.value for s in h.plugin("capacity-card").metrics()}
    for queue in ("a", "b"):
        assert samples["queue_real_capacity_scalar_resources", queue] == 8000
        assert samples["queue_card_deserved", queue] == 8


def test_quota_is_read_per_card(harness: Callable[..., Harness]) -> None:
    """Quotas are limits, not an inventory; other cards have none."""
    h = harness()
    h.queue("q", cards={"NVIDIA-H200": 3, "NVIDIA-H800/mps-80g*1/2": 2})
    h.step()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert [account.quota.limit(card) for card in ("NVIDIA-H200", "NVIDIA-H800/mps-80g*1/2", "X")] == [3000, 2000, 0]
    assert h.event_messages("Queue", "q") == []


def test_every_known_node_counts(harness: Callable[..., Harness]) -> None:
    """Cordoned nodes too; a node without cards contributes nothing."""
    h = harness()
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="H200", unschedulable=True)
    h.gpu_node("n3", card="H200", count=0)
    h.session()
    inventory = h.plugin("capacity-card").inventory
    assert inventory.totals == {"H200": 16000}
    assert inventory.resources_of("H200") == {GPU}
    assert inventory.cards_of(GPU) == ["H200"]


def test_a_card_with_two_resource_names_is_requested_by_either(harness: Callable[..., Harness]) -> None:
    """One node renames its resources."""
    h = harness()
    h.gpu_node("n1", card="H200", count=2)
    labels = {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.memory": "1024"}
    h.node("n2", labels=labels, resources={"nvidia.com/h200": 2})
    h.queue("q", cards={"H200": 4})
    for i, resource in enumerate((GPU, "nvidia.com/h200")):
        h.group(f"g{i}")
        h.pod(f"p{i}", group=f"g{i}", card="H200", requests={resource: 2})
    h.step()
    assert h.plugin("capacity-card").inventory.totals == {"H200": 4000}
    assert h.binds == {"p0": "n1", "p1": "n2"}
    assert allocated(h) == {"H200": 4000}


def test_a_queue_that_comes_back_finds_its_jobs(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200")
    h.queue("q", cards={"H200": 8})
    running(h, 3)
    h.step()
    h.delete_queue("q")
    h.step()
    assert "q" not in h.plugin("capacity-card").ledger.queues
    h.queue("q", cards={"H200": 8})
    h.step()
    assert allocated(h) == {"H200": 3000}
