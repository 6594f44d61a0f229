"""Nodes that need no victims, of a pod whose gang evicts for another one: their scores may be no numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import pytest

from capcard_sched.framework.api.node_hooks import NODE_AMOUNTS, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores

_CONF: Final = """
actions: "enqueue, allocate, preempt"
tiers: [{plugins: [{name: priority}, {name: gang}, {name: predicates}, {name: opinion}]}]
"""


class _Opinion(Plugin):
    """Scores nodes by their use: 0/0 on an empty one where `divides`."""

    name: ClassVar[str] = "opinion"
    divides: ClassVar[bool] = False

    @score(reads=NODE_AMOUNTS)
    def score_nodes(self, signature: PodSignature, rows: NodeView) -> Scores:
        idle = rows.idle[:, 0].astype(float)
        with np.errstate(invalid="ignore"):
            return (4000 - idle) / (4000 - idle) if self.divides else -idle


def _cluster() -> Harness:
    """Two nodes are free, two have a pod each; a gang of three needs one of those."""
    h = Harness(_CONF, plugins=[_Opinion])
    h.queue("q")
    h.priority_class("high", 1000)
    for number in range(4):
        h.node(f"n{number}", cpu="4")
    h.group("low", queue="q", phase="Running", min_member=1)
    for number in (2, 3):
        h.pod(f"low-{number}", group="low", requests={"cpu": "4"}, node=f"n{number}", phase="Running")
    h.group("high", queue="q", min_member=3, priority_class="high")
    for number in range(3):
        h.pod(f"high-{number}", group="high", requests={"cpu": "4"}, priority=1000)
    return h


@pytest.mark.parametrize("divides", [False, True])
def test_a_score_that_is_no_number_does_not_end_the_search(divides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Opinion, "divides", divides)
    result = _cluster().step()
    assert not result.report.errors
    assert len([each for each in result.intents if isinstance(each, Evict)]) == 1
