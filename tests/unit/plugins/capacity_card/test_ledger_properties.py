"""Invariant: after any history the ledger equals a rebuild from the pods."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.status import TaskStatus
from capcard_sched.plugins.capacity_card import CapacityCard
from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, ChargeSum
from capcard_sched.plugins.capacity_card.quota import ChargeBook
from capcard_sched.state.changes import Changes
from capcard_sched.testing import Harness

CARD_NAMES = ("A", "B", "A|B", "B|A", "B|C", "A|B|C", "X", "A||B", None)
QUEUES = ("q", "r", "top")
JOBS = tuple(f"j{i}" for i in range(4))


def sums_of(book: ChargeBook) -> list[ChargeSum]:
    return [book.allocated, book.releasing, book.pending, book.inqueue, book.elastic]


def books(plugin: CapacityCard) -> dict[str, Any]:
    ledger, minimum = plugin.accounts.ledger, plugin.accounts.minimum
    ledger.recompute()
    for job in ledger.jobs.values():  # alike pods that all fit are not summed up
        found = minimum.exceeded_by(job)
        assert found == minimum.exceeded(job.queue, minimum.quantities(job.job, job.charges))
    queues = {
        name: (
            *sums_of(account.own),
            *sums_of(account.subtree),
            [one.name for one in account.limiting],
            account.share,
            account.quota,
            sorted(account.jobs),
        )
        for name, account in ledger.queues.items()
    }
    services = {held: amount for held, amount in ledger.by_service.items() if amount}
    return {"queues": queues, "services": services, "totals": plugin.accounts.inventory.totals}


def rebuilt(h: Harness, arguments: CapacityCardArguments) -> CapacityCard:
    """A plugin that sees the cluster for the first time."""
    fresh = CapacityCard(arguments)
    core, ledger, placed = h.core, h.plugin("capacity-card").accounts.ledger, fresh.accounts.demands.placed
    # On a node without the card only the ledger of the running scheduler has the charge.
    fresh.accounts.demands.placed = lambda task, node, before=None, *, moved=False: placed(  # type: ignore[method-assign]
        task, node, before or ledger.charge_of(task), moved=moved
    )
    session = Session(
        h.state,
        core.snapshot().dispatch,
        h.last_session.engine,
        Changes(everything=True),
        uid="fresh",
        now=h.now,
        actions=(),
    )
    fresh.open(session)
    return fresh


def agree(h: Harness) -> None:
    plugin = h.plugin("capacity-card")
    assert books(plugin) == books(rebuilt(h, plugin.arguments))
    assert plugin.accounts.ledger.internal_errors == 0
    for account in plugin.accounts.ledger.queues.values():
        charges = [c for key in account.jobs for c in plugin.accounts.ledger.jobs[key].charges.values()]
        for card, amount in account.own.allocated.cards.items():
            assert amount == sum(c.amount for c in charges if c.card == card) > 0


class Actor:
    """Random deeds on one cluster."""

    def __init__(self, h: Harness, draw: Callable[[Any], Any]) -> None:
        self.h = h
        self.draw = draw
        self.pods: dict[str, int] = {}
        self.count = 0
        for card in "ABC":  # never touched: every card stays known, as a rebuild has no memory of vanished cards
            h.gpu_node(f"spare-{card.lower()}", card=card, count=64, cpu="1000", memory="4Ti")
        for queue in QUEUES:
            self.queue(queue)
        for name in JOBS:
            self.group(name)

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def queue(self, name: str) -> None:
        cards = {card: self.number(0, 6) for card in "ABC" if self.pick(True, True, False)}
        capability = self.pick(None, {"cpu": "8"}, {"cpu": "3", "memory": "1Gi"})
        self.h.queue(
            name,
            cards=self.pick(cards, cards, "{", None),
            capability=capability,
            guarantee=self.pick(None, {"cpu": 2}),
            parent=self.pick(None, "top", "top", *QUEUES, "nowhere"),
        )

    def group(self, name: str) -> None:
        request = self.pick(None, {"A": 2}, {"A|B": 3}, {"B|A": 1, "C": 1}, {"A": "x"})
        service = self.pick({}, {"volcano.sh/service.type": "training"})
        self.h.group(
            name,
            queue=self.pick(*QUEUES, "nowhere"),
            phase=self.pick("Pending", "Inqueue", "Running"),
            min_member=self.number(0, 3),
            min_task_member=self.pick(None, None, {"w": 1}),
            min_resources=self.pick(None, {"cpu": 2}, {"cpu": 1, "memory": "64Mi", "nvidia.com/gpu": 1}),
            annotations={**service, **({"volcano.sh/card.request": json.dumps(request)} if request else {})},
        )

    def pod(self) -> None:
        self.count += 1
        name = f"j-p-{self.count}"
        card = self.pick(*CARD_NAMES)
        node = self.pick(None, None, None, "spare-a", "spare-b", "n1", "nowhere")
        notes = {"volcano.sh/card.name": card} if card else {}
        if node is not None and card is not None:
            notes["volcano.sh/card.assigned"] = card.split("|")[0]
        self.pods[name] = self.count
        self.h.pod(
            name,
            group=self.pick(*JOBS),
            requests={"cpu": "500m", "memory": "10Mi", "nvidia.com/gpu": self.number(0, 2)},
            node=node,
            role=self.pick("", "w"),
            annotations=notes,
            schedulingGates=self.pick([], [], [{"name": "g"}]) if node is None else [],
        )

    def change(self) -> None:
        """Something that the cluster itself does."""
        deed = self.pick(
            "pod", "pod", "pod", "gone", "ended", "terminating", "group", "queue", "node", "lost", "dropped"
        )
        if deed == "pod":
            self.pod()
        elif deed == "group":
            self.group(self.pick(*JOBS))
        elif deed == "queue":
            self.queue(self.pick(*QUEUES))
        elif deed == "node":
            self.h.gpu_node("n1", card=self.pick(*"ABC"), count=self.number(0, 8))
        elif deed == "lost":
            self.h.delete_node("n1")
        elif deed == "dropped":
            self.h.delete_queue(self.pick(*QUEUES))
        elif self.pods:
            name = self.pick(*self.pods)
            if deed == "gone":
                del self.pods[name]
                self.h.delete_pod(name)
            elif deed == "ended":
                self.h.set_phase(name, "Succeeded")
            else:
                self.h.terminate(name)

    def act(self, session: Session) -> None:
        """Placements and evictions in one session, kept or undone."""
        h = self.h
        for _ in range(self.number(1, 4)):
            statement = Statement(session)
            for _ in range(self.number(1, 3)):
                waiting = [job for job in session.jobs.values() if job.pending]
                placed = [
                    task
                    for job in session.jobs.values()
                    for task in job.tasks.values()
                    if task.status in {TaskStatus.RUNNING, TaskStatus.BOUND}
                    and task.node is not None
                    and task.node.known
                ]
                if placed and self.pick(True, False):
                    statement.evict(self.pick(*placed), "test")
                elif waiting:
                    job = self.pick(*waiting)
                    first = next(iter(job.pending.values()))
                    run = [task for task in job.pending.values() if task.cls is first.cls][: self.number(1, 3)]
                    nodes = [self.pick(*session.nodes.nodes) for _ in run]
                    place = self.pick(statement.allocate, statement.allocate, statement.pipeline)
                    place(job, run, nodes)
            agree(h)
            if self.pick(True, False):
                statement.discard()
            else:
                statement.commit()
            agree(h)


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"cardUnlimitedCpuMemory": True, "unnamedCards": "infer"},
    {"cardMinimum": "allPods", "unnamedCards": "deny"},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@given(data=st.data())
@settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_the_books_equal_a_rebuild_after_anything(
    harness: Callable[..., Harness], arguments: dict[str, Any], data: st.DataObject
) -> None:
    h = harness(arguments)
    actor = Actor(h, data.draw)
    for _ in range(actor.number(1, 4)):
        for _ in range(actor.number(1, 6)):
            actor.change()
        session = h.session()
        agree(h)
        actor.act(session)
        h.core._closer.close(session)


def populate(h: Harness, seed: int) -> None:
    source = random.Random(seed)
    for i in range(4):
        h.gpu_node(f"n{i}", card=source.choice("AB"), count=source.randint(2, 6))
    for name in QUEUES:
        quota = {"A": source.randint(0, 6), "B": source.randint(0, 6)}
        h.queue(name, cards=quota, capability={"cpu": "12"}, parent=source.choice((None, "top")))
    for i in range(8):
        size = source.randint(1, 4)
        h.group(f"g{i}", queue=source.choice(QUEUES), phase="Pending", min_member=source.randint(1, size))
        card, cards = source.choice(("A", "B", "A|B", "B|A")), source.randint(1, 2)
        for j in range(size):
            h.pod(f"g{i}-p-{j}", group=f"g{i}", card=card, cards=cards)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("mode", ["sum", "single"])
def test_no_allocation_goes_over_a_limit(harness: Callable[..., Harness], seed: int, mode: str) -> None:
    h = harness({"overCommitFactor": 2, "multiCardJobMode": mode})
    populate(h, seed)
    h.settle()
    assert h.binds
    h.node("wake")
    h.session()
    agree(h)
    for account in h.plugin("capacity-card").accounts.ledger.queues.values():
        assert account.own.allocated[CPU_KEY] <= account.quota.plain[CPU_KEY].limit
        for card, amount in account.own.allocated.cards.items():
            assert amount <= account.quota.limit(card)
        for card, amount in account.subtree.allocated.cards.items():
            assert amount <= account.quota.limit(card)
    for name, notes in h.bind_annotations.items():
        charge = h.plugin("capacity-card").accounts.ledger.charge_of(h.task(name))
        assert notes.get("volcano.sh/card.assigned", charge.card) == charge.card


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_the_initial_list_decides_nothing(harness: Callable[..., Harness], seed: int) -> None:
    h, other = harness(), harness()
    populate(h, seed)
    shuffled = list(h._deltas)
    random.Random(seed).shuffle(shuffled)
    other.apply(*shuffled)
    assert h.step().intents == other.step().intents


def test_a_session_on_an_unchanged_cluster_touches_nothing(harness: Callable[..., Harness]) -> None:
    h = harness()
    populate(h, 1)
    h.settle()
    plugin = h.plugin("capacity-card")
    before = dict(plugin.accounts.ledger.jobs)
    h.node("wake")
    h.session()
    assert plugin.accounts.ledger.jobs == before
    assert all(plugin.accounts.ledger.jobs[key] is account for key, account in before.items())
