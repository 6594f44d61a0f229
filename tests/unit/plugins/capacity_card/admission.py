"""Clusters with cards, what holds some of them, and the answers of the plugin."""

from __future__ import annotations

from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import Vote
from capcard_sched.testing import Harness

CARDS = ("A", "B", "C", "NVIDIA-H200", "H100", "H200")


def scalar(card: str, requested: int, total: int, limit: int, queue: str = "q") -> tuple[str, str]:
    return (
        "InsufficientScalarQuota",
        (
            f"Queue <{queue}> has insufficient <{card}> quota: requested <{requested}>, total would be <{total}>, "
            f"but capability is <{limit}>"
        ),
    )


def cpu(requested: int, total: int, limit: int) -> tuple[str, str]:
    return (
        "InsufficientCPUQuota",
        (
            f"Queue <q> has insufficient CPU quota: requested <{requested}>, total would be <{total}>, "
            f"but capability is <{limit}>"
        ),
    )


def memory(requested: int, total: int, limit: int) -> tuple[str, str]:
    return (
        "InsufficientMemoryQuota",
        (
            f"Queue <q> has insufficient memory quota: requested <{requested} Mi>, total would be <{total} Mi>, "
            f"but capability is <{limit} Mi>"
        ),
    )


def cluster_of_everything(h: Harness) -> None:
    for card in CARDS:
        h.gpu_node(f"node-{card.lower()}", card=card, count=64, cpu="1000", memory="4Ti")


def node_of(card: str) -> str:
    return f"n-{card.lower()}"


def nodes(h: Harness, *cards: str, count: int = 64) -> None:
    """A large node of each card."""
    for card in cards:
        h.gpu_node(node_of(card), card=card, count=count, cpu="1000", memory="4Ti")


def hold_on(h: Harness, card: str, count: int) -> None:
    """A running gang with `count` single-card pods on the node of the card."""
    group = f"held-{card.lower()}"
    h.group(group, phase="Running", min_member=count)
    for i in range(count):
        h.pod(f"{group}-{i}", group=group, requests={}, card=card, cards=1, node=node_of(card))


def running(
    h: Harness, count: int, *, card: str = "H200", node: str = "n1", queue: str = "q", group: str = "run"
) -> None:
    """A running job with `count` single-card pods, one of which it needs."""
    h.group(group, queue=queue, phase="Running", min_member=1)
    for i in range(count):
        h.pod(f"{group}-p-{i}", group=group, requests={}, card=card, cards=1, node=node)


def allocated(h: Harness, queue: str = "q") -> dict[str, int]:
    """Card to the allocated amount of a queue, in thousandths."""
    cards: dict[str, int] = h.plugin("capacity-card").ledger.queues[queue].own.allocated.cards
    return cards


def hold(h: Harness, card: str, count: int, *, group: str = "", min_member: int | None = None) -> None:
    """A running gang with `count` single-card pods and nothing to spare."""
    group = group or f"held-{card.lower()}"
    h.group(group, phase="Running", min_member=count if min_member is None else min_member)
    for i in range(count):
        h.pod(f"{group}-{i}", group=group, requests={}, card=card, cards=1, node=f"node-{card.lower()}")


def verdict(h: Harness, group: str = "g") -> tuple[str, str] | None:
    answer = h.plugin("capacity-card").job_enqueueable(h.job(group))
    if isinstance(answer, Refusal):
        assert answer.hook == "job_enqueueable"
        assert answer.plugin == "capacity-card"
        assert answer.event
        return answer.reason, answer.message
    assert answer is Vote.PERMIT, "it never abstains"
    return None
