"""The nodegroup plugin: what `tests/vectors/nodegroup.yaml` does not show."""

from __future__ import annotations

from typing import Any

from capcard_sched.testing import Harness

CONF = "actions: allocate\ntiers: [{plugins: [{name: nodegroup}]}]\n"


def cluster(**queue: Any) -> Harness:
    """A node of group g, and a pod of queue q."""
    h = Harness(CONF)
    h.node("n", labels={"volcano.sh/nodegroup-name": "g"})
    h.queue("q", affinity=requiring("g"), **queue)
    h.group("job")
    h.pod("p", group="job")
    return h


def requiring(group: str) -> dict[str, Any]:
    return {"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [group]}}


def test_queues_with_equal_affinity_share_a_signature() -> None:
    h = cluster()
    h.queue("q2", affinity=requiring("g"))
    h.queue("q3", affinity=requiring("h"))
    session = h.session()
    ids = [session.engine.signature(session.queues[name], h.task("p")).id for name in ("q", "q2", "q3")]
    assert ids == [0, 0, 1]


def test_limits_that_nest_too_deeply_close_the_group() -> None:
    h = cluster(annotations={"volcano.sh/nodegroup-resource-limits": "[" * 9999})
    h.step()
    assert h.binds == {}
    ((reason, message),) = h.event_messages("Queue", "q")
    assert (reason, len(message) < 600) == ("InvalidNodeGroupLimits", True)
