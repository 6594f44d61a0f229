"""Random clusters: the figures of a diagnosis on quota, nodes and gang agree with an independent calculation."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.testing import Harness

H200, A100 = "NVIDIA-H200", "NVIDIA-A100-80GB"
CONF = """
actions: "enqueue, allocate"
tiers: [{plugins: [{name: priority}, {name: gang}, {name: predicates}, {name: capacity-card}]}]
"""
TAINT = {"key": "dedicated", "value": "llm", "effect": "NoSchedule"}

STATES = st.sampled_from(["", "", "", "cordoned", "tainted"])
#: Card, number of cards, state.
NODES = st.lists(
    st.tuples(st.sampled_from([H200, H200, A100]), st.integers(4, 8), STATES),
    min_size=1,
    max_size=5,
)
#: Queue, node, cards of one running pod.
PODS = st.lists(st.tuples(st.sampled_from("aab"), st.integers(0, 2), st.integers(1, 6)), max_size=12)
QUOTAS = st.tuples(st.sampled_from([0, 4, 8, 12, 40]), st.sampled_from([8, 40]))
#: Card, pods of the gang, cards of one pod.
GANG = st.tuples(st.sampled_from([H200, H200, H200, A100]), st.integers(1, 4), st.sampled_from([1, 2, 2, 3, 4, 9]))


class World:
    """One random cluster, and what follows from it by plain sums."""

    def __init__(
        self,
        nodes: list[tuple[str, int, str]],
        pods: list[tuple[str, int, int]],
        quotas: tuple[int, int],
        gang: tuple[str, int, int],
    ) -> None:
        self.card, self.size, self.per_pod = gang
        self.quota = quotas[0] if self.card == H200 else quotas[1]
        self.nodes = nodes
        self.held = [0] * len(nodes)
        self.used: Counter[tuple[str, str]] = Counter()
        self.h = Harness(CONF)
        for index, (card, count, state) in enumerate(nodes):
            taints = [TAINT] if state == "tainted" else []
            self.h.gpu_node(f"n{index}", card, count, unschedulable=state == "cordoned", taints=taints)
        for name in "ab":
            self.h.queue(name, cards={H200: quotas[0], A100: quotas[1]})
        for number, (queue, node, cards) in enumerate(pods):
            if node < len(nodes) and self.held[node] + cards <= nodes[node][1]:
                self.held[node] += cards
                self.used[queue, nodes[node][0]] += cards
                self.h.group(f"run{number}", queue=queue, phase="Running")
                self.h.pod(
                    f"run{number}",
                    group=f"run{number}",
                    card=nodes[node][0],
                    cards=cards,
                    node=f"n{node}",
                    phase="Running",
                )
        self.h.group("gang", queue="a", min_member=self.size)
        for number in range(self.size):
            self.h.pod(f"gang-{number}", group="gang", card=self.card, cards=self.per_pod)
        self.h.step()

    @property
    def offers(self) -> list[tuple[int, int, str]]:
        """Total, free and state of the nodes with the card of the gang."""
        rows = zip(self.nodes, self.held, strict=True)
        return [(count, count - held, state) for (card, count, state), held in rows if card == self.card]

    @property
    def open_nodes(self) -> list[int]:
        return [free for _, free, state in self.offers if not state]

    @property
    def stage(self) -> str:
        totals = [total for total, _, _ in self.offers]
        if self.quota < self.size * self.per_pod or sum(total // self.per_pod for total in totals) < self.size:
            return "CannotStart"
        by_quota = max(0, self.quota - self.used["a", self.card]) // self.per_pod
        by_nodes = sum(free // self.per_pod for free in self.open_nodes)
        if min(by_quota, by_nodes) >= self.size:
            return "Schedulable"
        if not by_quota:
            return "OverQuota"
        return "GangWaiting" if by_nodes else "NoNodeFits"


def fits(found: JobDiagnosis) -> int:
    return sum(len(pods.names) for pods in found.pending if pods.outcome == "schedulable")


@settings(max_examples=2 * settings().max_examples)
@example([("NVIDIA-A100-80GB", 4, "")], [], (0, 8), ("NVIDIA-H200", 1, 9))
@given(NODES, PODS, QUOTAS, GANG)
def test_figures_agree_with_plain_sums(
    nodes: list[tuple[str, int, str]],
    pods: list[tuple[str, int, int]],
    quotas: tuple[int, int],
    gang: tuple[str, int, int],
) -> None:
    world = World(nodes, pods, quotas, gang)
    found = diagnose_job(world.h.core.snapshot(), world.h.job("gang"))
    assert found.stage == world.stage, found.summary
    if found.stage == "Schedulable":
        return
    assert found.queue is not None
    (limit,) = [row for row in found.queue.limits if row.resource == world.card]
    used = world.used["a", world.card]
    assert (limit.quota, limit.used, limit.over) == (world.quota, used, max(0, used - world.quota))
    assert limit.free == max(0, world.quota - used)
    assert sum(user.amount for user in limit.users) == limit.used
    assert sum(user.amount for user in limit.reservations) == limit.reserved
    assert limit.cluster_total == sum(total for total, _, _ in world.offers)
    assert (limit.requested_per_pod, limit.requested) == (world.per_pod, world.per_pod * world.size) or not world.offers
    for row in found.capacity:
        free = world.open_nodes
        assert {bar.free: bar.nodes for bar in row.histogram} == dict(Counter(free))
        assert (row.largest_free, row.free) == (max(free, default=0), sum(free))
        assert row.fits_now == sum(one // world.per_pod for one in free)
        assert row.fits_when_empty == sum(total // world.per_pod for total, _, _ in world.offers)
        assert row.cordoned_nodes == sum(state == "cordoned" for _, _, state in world.offers)
        assert row.tainted_nodes == sum(state == "tainted" for _, _, state in world.offers)
        assert sum(node.total - node.free for node in row.candidates) == sum(one.amount for one in row.holders)
    if found.stage == "GangWaiting":
        assert fits(found) == min(max(0, world.quota - used) // world.per_pod, sum(f // world.per_pod for f in free))
        assert found.summary.startswith(f"{fits(found)} of {world.size} pending pod")
    assert bool(found.capacity) == bool(world.offers)
