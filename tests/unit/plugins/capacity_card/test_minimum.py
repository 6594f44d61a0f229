"""Counting a job of equal pods comes to the same as going through its pods one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.plugins.capacity_card.minimum import Minimum
from capcard_sched.testing import Harness

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: capacity-card
    arguments: {arguments}
"""


@given(
    count=st.integers(1, 6),
    minimum=st.integers(0, 6),
    card=st.sampled_from(["NVIDIA-H200", "NVIDIA-H200|NVIDIA-A100", "unknown", None]),
    placed=st.booleans(),
    unlimited=st.booleans(),
    all_pods=st.booleans(),
    min_resources=st.sampled_from([None, {"cpu": "3"}, {"cpu": "1", "nvidia.com/gpu": "2"}]),
    request=st.sampled_from(["", '{"NVIDIA-H200": 9}', "not json"]),
)
def test_a_job_of_equal_pods_is_counted_as_if_gone_through(
    count: int,
    minimum: int,
    card: str | None,
    placed: bool,
    unlimited: bool,
    all_pods: bool,
    min_resources: dict[str, str] | None,
    request: str,
) -> None:
    arguments = {"cardUnlimitedCpuMemory": unlimited, "cardMinimum": "allPods" if all_pods else "minMember"}
    h = Harness(CONF.format(arguments=str(arguments).replace("True", "true").replace("False", "false")))
    h.gpu_node("n1", card="NVIDIA-H200", count=8)
    h.gpu_node("n2", card="NVIDIA-A100", count=8)
    h.queue("q", cards={"NVIDIA-H200": 8})
    h.group(
        "g",
        min_member=minimum,
        min_resources=min_resources,
        annotations={"volcano.sh/card.request": request} if request else {},
    )
    for index in range(count):
        h.pod(f"g-w-{index}", card=card, cards=1 if card else 0, node="n1" if placed else None)
    h.session()
    plugin: Any = h.plugin("capacity-card")
    held = plugin.accounts.ledger.jobs["default/g"].charges
    counted = plugin.accounts.minimum.quantities(h.job("g"), held)

    class OneByOne(Minimum):
        def _alike(self, job: object, held: object) -> None:
            return None

    slow = OneByOne(plugin.arguments, plugin.accounts.inventory, plugin.accounts.shared)
    assert counted == slow.quantities(h.job("g"), held)


def test_the_charges_of_a_job_are_those_of_its_placed_pods() -> None:
    h = Harness(CONF.format(arguments={}))
    h.gpu_node("n1", card="NVIDIA-H200", count=8)
    h.queue("q", cards={"NVIDIA-H200": 8})
    for name in ("g", "h"):
        h.group(name, min_member=1)
        for index in range(3):
            h.pod(f"{name}-w-{index}", group=name, card="NVIDIA-H200", cards=1, node="n1" if index < 2 else None)
    h.session()
    ledger: Any = h.plugin("capacity-card")
    one, other = (ledger.accounts.ledger.jobs[f"default/{name}"] for name in ("g", "h"))
    assert one.allocated is other.allocated
    assert one.by_service is other.by_service
    assert one.charges.keys() == {uid for uid, task in h.job("g").tasks.items() if task.node is not None}
    h.delete_pod("g-w-0")
    h.session()
    one = ledger.accounts.ledger.jobs["default/g"]
    for name, account in (("g", one), ("h", other)):
        placed = {uid for uid, task in h.job(name).tasks.items() if task.node is not None}
        assert placed
        assert (account.charges.keys(), account.allocated["NVIDIA-H200"]) == (placed, 1000 * len(placed))
    assert len(one.charges) < len(other.charges)
