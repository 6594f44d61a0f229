"""Vectors 50 to 70j of the capacity-card reference: one pod, one alternative, the plain limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.rows import Diagnosis
from capcard_sched.model.refusal import Code, Figures, Refusal
from capcard_sched.testing import Harness

GPU = "nvidia.com/gpu"


def scalar(card: str, requested: int, total: int, limit: int) -> tuple[str, str]:
    return (
        "InsufficientScalarQuota",
        f"Queue <q> has insufficient <{card}> quota: requested <{requested}>, total would be <{total}>, "
        f"but capability is <{limit}>",
    )


def no_charge(error: str) -> tuple[str, str]:
    return "GetTaskRequestResourceFailed", f"Get request resource failed, Queue <q>, error: <{error}>"


def node_of(card: str) -> str:
    return f"n-{card.lower()}"


def nodes(h: Harness, *cards: str, count: int = 64) -> None:
    for card in cards:
        h.gpu_node(node_of(card), card=card, count=count, cpu="1000", memory="4Ti")


def hold(h: Harness, card: str, count: int) -> None:
    group = f"held-{card.lower()}"
    h.group(group, phase="Running", min_member=count)
    for i in range(count):
        h.pod(f"{group}-{i}", group=group, requests={}, card=card, cards=1, node=node_of(card))


def check(h: Harness, pod: str = "p") -> Refusal | None:
    h.session()
    answer: Refusal | None = h.plugin("capacity-card").allocatable(h.state.queues["q"], h.task(pod))
    return answer


def told(refusal: Refusal | None) -> tuple[str, str] | None:
    if refusal is None:
        return None
    assert (refusal.hook, refusal.plugin, refusal.component) == (
        "allocatable",
        "capacity-card",
        "volcano.capacity-card",
    )
    return refusal.reason, refusal.message


def allocated(h: Harness, queue: str = "q") -> dict[str, int]:
    cards: dict[str, int] = h.plugin("capacity-card").ledger.queues[queue].allocated.cards
    return cards


def diagnosis(h: Harness, pod: str = "p") -> Diagnosis:
    session = h.session()
    profile = session.engine.profile(h.state.queues["q"], h.task(pod))
    rows = session.all_rows()
    verdict = Diagnosis(len(rows))
    plugin = h.plugin("capacity-card")
    plugin.predicate_static(profile, rows, verdict)
    plugin.predicate(profile, rows, verdict)
    return verdict


def scores(h: Harness, pod: str = "p") -> list[float] | None:
    session = h.session()
    profile = session.engine.profile(h.state.queues["q"], h.task(pod))
    found = h.plugin("capacity-card").node_order_static(profile, session.all_rows())
    return None if found is None else [float(score) for score in found]


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
            scalar("A|B", 2000, 10000, 8000), id="55 told with the last alternative's numbers",
        ),
        pytest.param(
            {"A": 1, "B": 1}, {}, {"card": "A|B", "cards": 2}, scalar("A|B", 2000, 2000, 1000),
            id="56 alternatives are not summed for one pod",
        ),
        pytest.param(
            {"NVIDIA-H200": 3}, {}, {"card": "NVIDIA-H200"},
            no_charge(f"no resource <{GPU}> defined in requests/limits for card <NVIDIA-H200>"),
            id="61 no card resource asked for",
        ),
        pytest.param({}, {}, {"card": "X", "cards": 1}, no_charge("no resource name found for card <X>"), id="62 unknown"),
        pytest.param(
            {}, {}, {"card": "X|Y", "cards": 1}, no_charge("no resource name found for card <X|Y>"),
            id="62 all alternatives unknown",
        ),
        pytest.param({"B": 1}, {}, {"card": "X|B", "cards": 1}, None, id="63 unknown alternatives are skipped"),
        pytest.param({}, {}, {"requests": {GPU: 1}}, None, id="65 no card name, not charged"),
        pytest.param({"A": 1}, {}, {"card": "A", "requests": {GPU: 1, "rdma/hca": 5}}, None, id="70 rdma is not counted"),
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
            {"A": 1}, {"A": 5}, {"card": "A", "cards": 1}, scalar("A", 1000, 6000, 1000), id="an overdrawn card is closed",
        ),
        pytest.param({"A": 1, "B": 1}, {"A": 5}, {"card": "B", "cards": 1}, None, id="but nothing else is"),
    ],
)  # fmt: skip
def test_one_pod_is_checked_against_what_is_allocated(
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
        hold(h, card, count)
    h.group("g")
    h.pod("p", **pod)
    assert told(check(h)) == expected


def test_reservations_play_no_role(harness: Callable[..., Harness]) -> None:
    """Vector 51."""
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 3})
    hold(h, "A", 2)
    h.group("waiting", annotations={"volcano.sh/card.request": '{"A":1}'})
    h.group("g")
    h.pod("p", card="A", cards=1)
    assert check(h) is None


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


def test_a_closed_queue_allocates_nothing(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 3}, state="Closed")
    h.group("g")
    h.pod("p", card="A", cards=1)
    assert told(check(h)) == ("QueueNotOpen", "Queue <q> is <Closed>")


def test_mixed_resources_are_refused(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A")
    h.gpu_node("n-b", card="B", resources={"nvidia.com/mig-1g.24gb": 4})
    h.queue("q", cards={"A": 9})
    h.group("g")
    h.pod("p", card="A|B/mig-1g.24gb-mixed", cards=1)
    assert told(check(h)) == no_charge(
        "cards <A|B/mig-1g.24gb-mixed> use different resources <nvidia.com/gpu, nvidia.com/mig-1g.24gb>, "
        "which is not supported"
    )


def test_a_pod_goes_where_its_queue_has_quota(harness: Callable[..., Harness]) -> None:
    """Vector 52."""
    h = harness()
    nodes(h, "A", "B", count=8)
    h.queue("q", cards={"A": 2, "B": 3})
    hold(h, "A", 2)
    h.group("g")
    h.pod("p", card="A|B", cards=1)
    found = diagnosis(h)
    assert found.reasons == {"node(s) had card <A> without quota left in queue <q>": 1}
    assert found.codes.tolist() == [Code.UNSCHEDULABLE, Code.SUCCESS]
    h.node("wake")
    h.step()
    assert h.binds == {"p": "n-b"}
    assert allocated(h) == {"A": 2000, "B": 1000}


def test_the_first_alternative_is_preferred_and_recorded(harness: Callable[..., Harness]) -> None:
    """Vector 53."""
    h = harness()
    nodes(h, "A", "B", count=8)
    h.queue("q", cards={"A": 2, "B": 3})
    h.group("g")
    h.pod("p", card="A|B", cards=1)
    assert scores(h) == [100.0, 50.0]
    h.node("wake")
    h.step()
    assert h.binds == {"p": "n-a"}
    assert h.bind_annotations["p"] == {"volcano.sh/card.assigned": "A"}
    assert allocated(h) == {"A": 1000}
    assert h.plugin("capacity-card").ledger.charge_of(h.task("p")).card == "A"


@pytest.mark.parametrize("groups", [1, 4], ids=["one gang", "four jobs"])
def test_alternatives_are_used_up_in_order(harness: Callable[..., Harness], groups: int) -> None:
    """Vector 54."""
    h = harness()
    nodes(h, "A", "B", count=8)
    h.queue("q", cards={"A": 2, "B": 3})
    for i in range(4):
        name = f"g{i % groups}"
        if i < groups:
            h.group(name, min_member=4 // groups)
        h.pod(f"g-p-{i}", group=name, card="A|B", cards=1)
    h.step()
    assert [h.binds[f"g-p-{i}"] for i in range(4)] == ["n-a", "n-a", "n-b", "n-b"]
    assert allocated(h) == {"A": 2000, "B": 2000}


def test_a_gang_never_overdraws_an_alternative(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A", "B", count=64)
    h.queue("q", cards={"A": 5, "B": 4})
    h.group("g", min_member=1)
    for i in range(8):
        h.pod(f"g-p-{i}", card="A|B", cards=2)
    h.settle()
    assert len(h.binds) == 4
    assert allocated(h) == {"A": 4000, "B": 4000}
    assert scalar("A|B", 2000, 6000, 4000) in h.event_messages("Pod", "g-p-7")


def test_preference_halves_with_every_alternative(harness: Callable[..., Harness]) -> None:
    """Vector 57."""
    h = harness({"nodeOrderWeight": 2})
    nodes(h, "A", "B", "V")
    h.node("plain")
    h.queue("q", cards={"A": 2, "B": 3, "V": 1})
    h.group("g")
    h.pod("p", card="A|B|V", cards=1)
    assert scores(h) == [200.0, 100.0, 50.0, 0.0]


def test_a_single_card_pod_has_no_preference_but_needs_its_card(harness: Callable[..., Harness]) -> None:
    """Vector 58."""
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 2})
    h.group("g")
    h.pod("p", card="A", cards=1)
    assert scores(h) is None
    found = diagnosis(h)
    assert found.reasons == {"node(s) didn't have card <A>": 1}
    assert found.codes.tolist() == [Code.SUCCESS, Code.UNRESOLVABLE]


def test_the_filter_of_single_card_pods_can_be_left_to_affinity(harness: Callable[..., Harness]) -> None:
    h = harness({"cardNodeFilter": False})
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 2})
    h.group("g")
    h.pod("p", card="A", cards=1)
    assert diagnosis(h).reasons == {}


def test_nodes_without_any_alternative_are_out_for_good(harness: Callable[..., Harness]) -> None:
    h = harness({"cardNodeFilter": False})
    nodes(h, "A", "B", "V")
    h.queue("q", cards={"A": 2})
    h.group("g")
    h.pod("p", card="A|B", cards=1)
    found = diagnosis(h)
    assert found.reasons == {
        "node(s) didn't have card <A|B>": 1,
        "node(s) had card <B> without quota left in queue <q>": 1,
    }
    assert found.codes.tolist() == [Code.SUCCESS, Code.UNSCHEDULABLE, Code.UNRESOLVABLE]


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
                "Pod requests <nvidia.com/gpu> without annotation volcano.sh/card.name; "
                "it is not charged to any card quota of Queue <q>",
            )
        )
        == 1
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("deny", no_charge("card resource <nvidia.com/gpu> requested without annotation volcano.sh/card.name")),
        ("infer", scalar("A|B", 1000, 1000, 0)),
    ],
)
def test_unnamed_cards_can_be_denied_or_inferred(
    harness: Callable[..., Harness], mode: str, expected: tuple[str, str]
) -> None:
    h = harness({"unnamedCards": mode})
    nodes(h, "A", "B")
    h.queue("q")
    h.group("g")
    h.pod("p", requests={GPU: 1})
    assert told(check(h)) == expected


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
    """Vector 59 (R43)."""
    h = harness()
    nodes(h, "B")
    h.queue("q", cards={"A": 2, "B": 3})
    h.group("g")
    h.pod("p", card="A|B", cards=1)
    session = h.session()
    statement = session.statement()
    statement.pipeline(h.job("g"), [h.task("p")], [session.nodes.nodes[0]])
    assert allocated(h) == {"B": 1000}
    statement.discard()
    assert allocated(h) == {}
    assert h.plugin("capacity-card").ledger.internal_errors == 0


def test_a_running_multi_card_pod_is_charged_its_nodes_card(harness: Callable[..., Harness]) -> None:
    """Vector 60."""
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 2, "B": 3})
    h.group("g", phase="Running")
    h.pod("p", card="A|B", cards=1, node="n-b")
    h.session()
    assert allocated(h) == {"B": 1000}


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [("B", {"B": 1000}), ("C", {"A": 1000}), ("", {"A": 1000})],
    ids=["one of its own", "not one of its own", "none"],
)
def test_the_recorded_card_counts_when_the_pod_accepts_it(
    harness: Callable[..., Harness], assigned: str, expected: dict[str, int]
) -> None:
    """R3, §13.4."""
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
    """Vector 64."""
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 9})
    h.group("g", phase="Running")
    container = {"resources": {"requests": {GPU: 2}, "limits": {GPU: 2}}}
    h.pod("p", card="A", node="n-a", containers=[{"name": "a", **container}, {"name": "b", **container}])
    h.session()
    assert allocated(h) == {"A": 4000}


def test_the_largest_init_step_counts(harness: Callable[..., Harness]) -> None:
    """Vector 70d."""
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


@pytest.mark.parametrize("unlimited", [True, False])
def test_card_pods_are_exempt_from_cpu_quota_only_when_told(harness: Callable[..., Harness], unlimited: bool) -> None:
    """Vector 66."""
    h = harness({"cardUnlimitedCpuMemory": unlimited})
    nodes(h, "A")
    h.queue("q", cards={"A": 2}, capability={"cpu": "4"})
    h.group("held", phase="Running")
    h.pod("held", group="held", requests={"cpu": "4"}, node="n-a")
    h.group("g")
    h.pod("p", card="A", requests={"cpu": "8", GPU: 1})
    reason = told(check(h))
    assert (reason is None) == unlimited
    if reason is not None:
        assert reason[0] == "InsufficientCPUQuota"


@pytest.mark.parametrize("unlimited", [True, False])
def test_cpu_pods_keep_their_cpu_quota(harness: Callable[..., Harness], unlimited: bool) -> None:
    """Vector 67."""
    h = harness({"cardUnlimitedCpuMemory": unlimited})
    nodes(h, "A")
    h.queue("q", capability={"cpu": "4"})
    h.group("held", phase="Running")
    h.pod("held", group="held", requests={"cpu": "4"}, node="n-a")
    h.group("g")
    h.pod("p", requests={"cpu": "1"})
    assert told(check(h)) == (
        "InsufficientCPUQuota",
        "Queue <q> has insufficient CPU quota: requested <1000>, total would be <5000>, but capability is <4000>",
    )


def test_unnamed_card_pods_are_exempt_too(harness: Callable[..., Harness]) -> None:
    """§4.2 rule 6: with or without `card.name`."""
    h = harness({"cardUnlimitedCpuMemory": True})
    nodes(h, "A")
    h.queue("q", capability={"cpu": "4"})
    h.group("g")
    h.pod("p", requests={"cpu": "8", GPU: 1})
    assert check(h) is None


def test_memory_is_told_in_mebibytes_without_exponent(harness: Callable[..., Harness]) -> None:
    h = harness()
    nodes(h, "A")
    h.queue("q", capability={"memory": "1Mi"})
    h.group("g")
    h.pod("p", requests={"memory": "1572864"})
    assert told(check(h)) == (
        "InsufficientMemoryQuota",
        "Queue <q> has insufficient memory quota: requested <1.5 Mi>, total would be <1.5 Mi>, "
        "but capability is <1 Mi>",
    )


def test_eviction_undone_restores_the_very_charge(harness: Callable[..., Harness]) -> None:
    """Vector 68."""
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 4, "B": 4})
    hold(h, "A", 2)
    h.group("g", phase="Running")
    h.pod("p", card="A|B", cards=1, node="n-b", annotations={"volcano.sh/card.assigned": "A"})
    session = h.session()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert (account.allocated.cards, account.share) == ({"A": 3000}, 0.75)
    statement = session.statement()
    statement.evict(h.task("p"), "test")
    assert (account.allocated.cards, account.share) == ({"A": 2000}, 0.5)
    statement.discard()
    assert (account.allocated.cards, account.share) == ({"A": 3000}, 0.75)


def test_device_names_in_capability_are_ignored(harness: Callable[..., Harness]) -> None:
    """Vector 69."""
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 3}, capability={GPU: 1})
    h.group("g")
    h.pod("p", card="A", cards=2)
    assert check(h) is None


@pytest.mark.parametrize(
    ("written", "read"), [(" A | B ", "A|B"), ("A|A", "A"), ("A|B|A", "A|B")], ids=["spaces", "twice", "thrice"]
)
def test_card_names_are_normalised(harness: Callable[..., Harness], written: str, read: str) -> None:
    """Vector 70a."""
    h = harness()
    nodes(h, "A", "B")
    h.queue("q")
    h.group("g")
    h.pod("p", card=written, cards=1)
    assert told(check(h)) == scalar(read, 1000, 1000, 0)


def test_the_misspelt_key_is_an_alias(harness: Callable[..., Harness]) -> None:
    """Vector 70c (R1)."""
    h = harness()
    nodes(h, "A", "B")
    h.queue("q")
    h.group("g")
    h.pod("p", cards=1, annotations={"volcano.sh/card.card": "A|B"})
    assert told(check(h)) == scalar("A|B", 1000, 1000, 0)
    h.pod("p", card="A", cards=1, annotations={"volcano.sh/card.card": "A|B"})
    assert told(check(h)) == scalar("A", 1000, 1000, 0)


def test_a_gang_beyond_the_plain_limit_is_undone_whole(harness: Callable[..., Harness]) -> None:
    """Vector 70h."""
    h = harness({"overCommitFactor": 2})
    nodes(h, "A")
    h.queue("q", cards={"A": 3})
    h.group("g", phase="Pending", min_member=4)
    for i in range(4):
        h.pod(f"g-p-{i}", card="A", cards=1)
    h.step()
    assert h.phases["g"] == "Inqueue"
    assert h.binds == {}
    assert allocated(h) == {}
    refused = [i for i in range(4) if scalar("A", 1000, 4000, 3000) in h.event_messages("Pod", f"g-p-{i}")]
    assert refused == [3]
    assert h.pod_message("g-p-3") == scalar("A", 1000, 4000, 3000)[1]


def test_scale_in_of_one_deployment_makes_room_for_another(harness: Callable[..., Harness]) -> None:
    """Vector 70i."""
    h = harness()
    nodes(h, "A")
    h.queue("q", cards={"A": 8})
    h.group("d1", phase="Running", min_member=1)
    for i in range(8):
        h.pod(f"d1-p-{i}", group="d1", card="A", cards=1, node="n-a")
    h.group("d2", phase="Running", min_member=1)
    for i in range(2):
        h.pod(f"d2-p-{i}", group="d2", card="A", cards=1)
    h.step()
    assert h.binds == {}
    assert scalar("A", 1000, 9000, 8000) in h.event_messages("Pod", "d2-p-0")
    h.delete_pod("d1-p-6")
    h.delete_pod("d1-p-7")
    h.step()
    assert h.binds == {"d2-p-0": "n-a", "d2-p-1": "n-a"}


def test_a_pod_that_fits_nowhere_is_told_why(harness: Callable[..., Harness]) -> None:
    """Vector 70j."""
    h = harness()
    h.gpu_node("n1", card="4090", count=8)
    h.gpu_node("n2", card="NVIDIA-H200", count=1)
    h.queue("q", cards={"NVIDIA-H200": 8})
    h.group("held", phase="Running")
    h.pod("held", group="held", card="NVIDIA-H200", cards=1, node="n2")
    h.group("g")
    h.pod("p", card="NVIDIA-H200", cards=1)
    h.step()
    assert h.pod_message("p") == (
        "0/2 nodes are unavailable: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't have card <NVIDIA-H200>."
    )


def test_a_run_of_pods_is_allowed_as_one_by_one(harness: Callable[..., Harness]) -> None:
    """`allocatable_many` counts what one after the other would fit, whichever dimension ends it."""
    h = harness()
    nodes(h, "A", "B")
    h.queue("q", cards={"A": 3, "B": 4}, capability={"cpu": "6", "memory": "1Ti"})
    h.group("g", min_member=8)
    for i in range(8):
        h.pod(f"g-p-{i}", card="A|B", requests={"cpu": "1", GPU: 1})
    session = h.session()
    queue, tasks = h.state.queues["q"], session.pending_tasks(h.job("g"))
    answer = h.plugin("capacity-card").allocatable_many(queue, session.engine.profile(queue, tasks[0]), tasks)
    assert answer.count == 6
    assert answer.refusal.reason == "InsufficientCPUQuota"
    assert answer.refusal.figures == Figures("cpu", 1000, 7000, 6000)
    assert answer.lane_limits == (3, 4)
    assert np.array_equal(answer.lanes, [0, 1])


class TestSameCardForAllPods:
    """`multiCardJobMode: single` (R18)."""

    def test_the_first_pod_fixes_the_card_of_the_rest(self, harness: Callable[..., Harness]) -> None:
        h = harness({"multiCardJobMode": "single"})
        nodes(h, "A", "B", count=2)
        h.queue("q", cards={"A": 4, "B": 4})
        h.group("g", min_member=1)
        for i in range(4):
            h.pod(f"g-p-{i}", card="A|B", cards=1)
        h.settle()
        assert set(h.binds.values()) == {"n-a"}
        assert len(h.binds) == 2
        assert "1 node(s) had card <B>, but pods of this job use card <A>" in h.pod_message("g-p-3")

    def test_a_gang_takes_the_alternative_that_carries_all_of_it(self, harness: Callable[..., Harness]) -> None:
        h = harness({"multiCardJobMode": "single"})
        nodes(h, "A", "B", count=8)
        h.queue("q", cards={"A": 2, "B": 3})
        h.group("g", phase="Pending", min_member=3)
        for i in range(3):
            h.pod(f"g-p-{i}", card="A|B", cards=1)
        h.step()
        assert set(h.binds.values()) == {"n-b"}
        assert len(h.binds) == 3

    def test_quota_of_the_other_card_does_not_help_later_pods(self, harness: Callable[..., Harness]) -> None:
        h = harness({"multiCardJobMode": "single"})
        nodes(h, "A", "B", count=8)
        h.queue("q", cards={"A": 2, "B": 3})
        h.group("g", min_member=1)
        for i in range(4):
            h.pod(f"g-p-{i}", card="A|B", cards=1)
        h.settle()
        assert allocated(h) == {"A": 2000}
        assert h.pod_message("g-p-3") == scalar("A|B", 1000, 3000, 2000)[1]
