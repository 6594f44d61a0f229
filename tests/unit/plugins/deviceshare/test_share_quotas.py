"""Quotas of shares of cards under capacity-card."""

from __future__ import annotations

import msgspec
import pytest

from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import ConfigMapObject
from tests.unit.plugins.deviceshare.cluster import MEMORY, NUMBER, PERCENTAGE, VgpuHarness, conf

CORES = "volcano.sh/vgpu-cores"


@pytest.mark.parametrize(
    ("named", "refused"),
    [
        (
            {NUMBER: 3},
            "<volcano.sh/vgpu-number> quota: requested <2000>, total would be <4000>, but capability is <3000>",
        ),
        ({MEMORY: 3999}, "<volcano.sh/vgpu-memory> quota: requested <2000000>, total would be <4000000>"),
        ({CORES: 79}, "<volcano.sh/vgpu-cores> quota: requested <40000>, total would be <80000>"),
        ({NUMBER: 4, MEMORY: 4000, CORES: 80}, ""),
        ({}, ""),
    ],
    ids=["number", "memory", "cores", "equal", "not named"],
)
@pytest.mark.parametrize("declared", [False, True], ids=["allocate", "enqueue"])
def test_capacity_card_limits_the_shares_that_a_queue_names(
    named: dict[str, int], refused: str, *, declared: bool
) -> None:
    """A pod of two cards is charged for both, at enqueue and for each pod."""
    h = VgpuHarness(conf(plugins="  - name: capacity-card\n"))
    h.queue("q", capability={"cpu": "64", "memory": "256Gi", **named})
    h.cards("n1", "A:10000", "B:10000", "C:10000")
    for index in range(2):
        minimum = {NUMBER: 2, MEMORY: 2000, CORES: 40} if declared else None
        h.group(f"g{index}", min_resources=minimum, phase="Pending" if declared else "Inqueue")
        if not declared:
            h.share(f"p{index}", 1000, number=2, cores=20, group=f"g{index}")

    h.settle()

    if declared:
        phases = sorted(h.job(f"g{index}").phase.value for index in range(2))
        assert phases == (["Inqueue", "Pending"] if refused else ["Inqueue", "Inqueue"])
        message = "".join(text for index in range(2) for _, text in h.event_messages("PodGroup", f"g{index}"))
    else:
        assert len(h.binds) == (1 if refused else 2)
        message = "".join(h.pod_message(f"p{index}") or "" for index in range(2) if f"p{index}" not in h.binds)
    assert f"Queue <q> has insufficient {refused}" in message if refused else not message


def test_capacity_card_shows_shares_in_whole_units() -> None:
    h = VgpuHarness(conf(plugins="  - name: capacity-card\n"))
    h.queue("q", capability={MEMORY: 6000})
    h.cards("n1", "A:10000", "B:10000")
    h.group("g")
    h.share("p", 1000, number=2, cores=20)
    h.settle()
    (queue,) = [use for use in queue_uses(h.core) if use.name == "q"]
    shown = {use.card: (use.quota, use.allocated, use.free) for use in queue.cards}
    assert shown == {MEMORY: (6000, 2000, 4000), NUMBER: (None, 2, None), CORES: (None, 40, None)}
    assert queue.warnings == ()
    written = h.state.queues["q"].status_allocated
    assert written is not None
    assert [written[name] // 1000 for name in (MEMORY, NUMBER, CORES)] == [2000, 2, 40]


def test_shares_are_counted_anew_when_the_accounting_changes() -> None:
    h = VgpuHarness(conf(plugins="  - name: capacity-card\n"))
    h.queue("q", capability={MEMORY: 10000})
    h.cards("n1", "A:10000")
    h.group("g")
    h.share("p", limits={PERCENTAGE: 50})
    h.settle()
    h.cards("n2", "B:4000")
    h.node("wake")
    h.settle()
    allocated = h.plugin("capacity-card").ledger.queues["q"].allocated.cards
    assert allocated[MEMORY] == 5000_000  # of the card that was chosen

    metadata = {"name": "volcano-vgpu-device-config", "namespace": "kube-system"}
    data = {"device-config.yaml": "nvidia: {resourceMemoryName: example.com/memory}"}
    h.apply(ObjectChanged(msgspec.convert({"metadata": metadata, "data": data}, ConfigMapObject)))
    h.settle()
    allocated = h.plugin("capacity-card").ledger.queues["q"].allocated.cards
    assert allocated.get(MEMORY, 0) == 0
