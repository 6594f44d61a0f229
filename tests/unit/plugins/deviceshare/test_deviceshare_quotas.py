"""Quotas of shares of cards in reports; `tests/vectors/deviceshare-quotas.yaml` has the decisions."""

from __future__ import annotations

import pytest

from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.queue_uses import queue_uses
from tests.unit.plugins.deviceshare.cluster import CORES, MEMORY, NUMBER, VgpuHarness, conf

_CARD = "  - name: capacity-card\n"
_PLUGINS = (
    _CARD,
    "  - name: proportion\n",
    "  - name: capacity\n",
    "  - {name: capacity, enableHierarchy: true}\n",
)


def test_capacity_card_shows_shares_in_whole_units() -> None:
    h = VgpuHarness(conf(plugins=_CARD))
    h.do(f"queue q capability={MEMORY}:6000; cards n1 A:10000 B:10000; group g; share p 1000 number=2 cores=20")
    h.settle()
    (queue,) = [use for use in queue_uses(h.core.snapshot()) if use.name == "q"]
    shown = {use.card: (use.quota, use.allocated, use.free, use.total) for use in queue.cards}
    assert shown == {
        MEMORY: (6000, 2000, 4000, 20000),
        NUMBER: (None, 2, None, 20),
        CORES: (None, 40, None, 200),
    }
    assert queue.warnings == ()


@pytest.mark.parametrize("plugin", _PLUGINS)
@pytest.mark.parametrize("more", ["", f"resources={MEMORY}:0,{CORES}:0"], ids=["", "more units than the kubelet takes"])
def test_explain_lists_the_shares_that_a_queue_names_whatever_nodes_offer(plugin: str, more: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    h.do(f"queue top; queue q parent=top capability={MEMORY}:1500,{CORES}:300; cards n1 A:10000 B:10000 {more}")
    h.do("group p; share p/p 1000 cores=10; group waits; share waits/waits 1000 cores=10")
    h.settle()

    found = diagnose_job(h.core.snapshot(), h.job("p" if "waits" in h.binds else "waits"))

    assert found.queue is not None
    rows = {row.resource: (row.quota, row.used, row.free, row.cluster_total) for row in found.queue.limits}
    assert rows == {MEMORY: (1500, 1000, 500, 20000), CORES: (300, 10, 290, 200)}
    assert found.summary.startswith("Queue q has too little quota left: 1000 of 1500 volcano.sh/vgpu-memory used")
