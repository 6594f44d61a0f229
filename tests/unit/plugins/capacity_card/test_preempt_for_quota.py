"""preempt inside a queue whose quota is full: victims free quota and nodes."""

from __future__ import annotations

import pytest

from capcard_sched.testing import Harness
from tests.evictions import evicted

CONF = """
actions: "allocate, preempt"
tiers:
- plugins:
  - {name: priority}
  - {name: gang, enablePreemptable: false}
- plugins:
  - {name: predicates}
  - {name: capacity-card}
  - {name: nodeorder}
"""


@pytest.mark.parametrize(
    ("quota", "held", "wanted", "victims"),
    [
        ({"A": 4}, {"a": ("A", 4, 20)}, "A", ["a"]),
        ({"A": 4, "B": 4}, {"a": ("A", 4, 20), "b": ("B", 4, 40)}, "A|B", ["a"]),
        ({"A": 4, "B": 4}, {"a": ("A", 4, 40), "b": ("B", 4, 20)}, "A|B", ["b"]),
        # The queue may still use B, but others have all there is.
        ({"A": 4, "B": 4}, {"a": ("A", 4, 20), "b-others": ("B", 4, 20)}, "A|B", ["a"]),
        ({"A": 3, "B": 3}, {"a": ("A", 2, 20), "b": ("B", 2, 20)}, "A|B", []),
        ({"A": 4, "B": 4}, {"a": ("A", 4, 80), "b": ("B", 4, 80)}, "A|B", []),
    ],
    ids=["one card", "the lower holds A", "the lower holds B", "B is open but full", "quota too small", "equals"],
)
def test_a_pod_gets_the_quota_and_the_node_of_a_lower_one(
    quota: dict[str, int], held: dict[str, tuple[str, int, int]], wanted: str, victims: list[str]
) -> None:
    h = Harness(CONF, run=True)
    for priority in (20, 40, 80):
        h.priority_class(f"p{priority}", priority)
    for card in ("A", "B"):
        h.gpu_node(f"n-{card.lower()}", card=card, count=4)
    h.queue("q", cards=quota)
    h.queue("others", cards={"B": 4})
    for name, (card, cards, priority) in held.items():
        queue = "others" if "others" in name else "q"
        h.group(name, queue=queue, phase="Running", priority_class=f"p{priority}")
        h.pod(name, group=name, card=card, cards=cards, node=f"n-{card.lower()}", priority=priority)
    h.group("hi", priority_class="p80")
    h.pod("hi", group="hi", card=wanted, cards=4, priority=80)
    assert evicted(h.step()) == victims
