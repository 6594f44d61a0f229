"""For any response of the webhook, or none, the scheduler's accounting and guarantees hold."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded
from tests.unit.extender.webhook import VERBS, Raw, Webhook, conf

pytestmark = pytest.mark.processes

_BROKEN = [Raw(b"", 500), Raw(b"{"), Raw(b'{"status": [], "overused": [], "nodeScore": [], "errorMessage": 1}')]


class Moody:
    """Answers every verb at random; `steady` is how many of ten answers are usable."""

    def __init__(self, seed: int, steady: int) -> None:
        self._draw = random.Random(seed)
        self._steady = steady

    def replies(self) -> dict[str, Any]:
        draw = self._draw
        usable: dict[str, Any] = {
            "open": lambda _: {},
            "close": lambda _: {},
            "predicate": lambda _: draw.choice([{}, {}, {"status": "no", "code": draw.randint(0, 5)}]),
            "batch": lambda received: {
                "results": {node["Name"]: draw.choice([{}, {"status": "no", "code": 2}]) for node in received["nodes"]}
            },
            "prioritize": lambda received: {
                "nodeScore": {node["Name"]: draw.randint(-5, 5) for node in received["nodes"]}
            },
            "preemptable": self._victims,
            "reclaimable": self._victims,
            "overused": lambda _: {"overused": draw.random() < 0.2},
            "enqueueable": lambda _: {"status": draw.randint(-1, 1)},
            "enqueued": lambda _: {},
            "ready": lambda _: {"status": draw.random() < 0.8},
            "allocate": lambda _: draw.choice([{}, {}, {}, {"errorMessage": "no"}]),
            "deallocate": lambda _: draw.choice([{}, {}, {}, {"errorMessage": "no"}]),
        }
        assert set(usable) == set(VERBS.values())
        return {verb: self._moody(answer) for verb, answer in usable.items()}

    def _victims(self, received: Any) -> Any:
        named = [task for task in received["evictees"] if self._draw.random() < 0.6]
        return {"status": self._draw.randint(-1, 1), "victims": named}

    def _moody(self, answer: Any) -> Any:
        def reply(received: Any) -> Any:
            return answer(received) if self._draw.randrange(10) < self._steady else self._draw.choice(_BROKEN)

        return reply


@pytest.mark.campaign
def test_accounting_balances_for_any_webhook_response() -> None:
    with Webhook() as webhook:

        @given(
            seed=st.integers(0, 1 << 30),
            steady=st.sampled_from([10, 9, 5, 0]),
            verbs=st.sets(st.sampled_from(sorted(VERBS.values()))),
            ignorable=st.booleans(),
            held=st.sampled_from(["0s", "1h"]),
            breaker=st.sampled_from([0, 3]),
        )
        @settings(max_examples=settings().max_examples // 2)
        def check(seed: int, steady: int, verbs: set[str], ignorable: bool, held: str, breaker: int) -> None:
            webhook.replies = Moody(seed, steady).replies()
            h = _cluster(
                conf(
                    webhook.url, *verbs, actions="enqueue, allocate, backfill, preempt, reclaim, shuffle",
                    others="priority gang proportion", ignorable=ignorable, cachePeriod=held, breakerFailures=breaker,
                    breakerPeriod="10ms",
                ),
                random.Random(seed),
            )  # fmt: skip
            for _ in range(4):
                result = h.step()
                assert recorded(h.state) == rebuilt(h.state)
                assert {error.plugin for error in result.report.errors} <= {"extender"}
                for job in h.state.jobs.values():  # never part of a gang
                    assert job.ready_tasks == 0 or job.ready_tasks >= job.min_available
            if ignorable and steady == 0:  # a webhook that never answers and need not is as good as none
                alone = _cluster(
                    conf("", actions="enqueue, allocate", others="priority gang proportion"), random.Random(seed)
                )
                without = {"preemptable", "reclaimable"} & verbs
                alone.step()
                assert without or Counter(h.binds) >= Counter(alone.binds)
            h.plugin("extender")._client.close()

        check()


def _cluster(text: str, draw: random.Random) -> Harness:
    """Some nodes, two queues, gangs that do not all fit, and pods that could be evicted for others."""
    h = Harness(text, run=True)
    h.priority_class("high", 1000)
    for name in ("q", "r"):
        h.queue(name)
    for number in range(draw.randint(1, 4)):
        h.node(f"n{number}", cpu="8")
        h.group(f"low-{number}", queue="r")
        h.pod(f"low-{number}", group=f"low-{number}", node=f"n{number}", requests={"cpu": "5"}, priority=1)
    for number in range(draw.randint(1, 4)):
        size = draw.randint(1, 3)
        urgent = draw.random() < 0.5
        h.group(
            f"g{number}", queue=draw.choice(["q", "r"]), min_member=size, phase=draw.choice(["Pending", "Inqueue"]),
            priority_class="high" if urgent else "",
        )  # fmt: skip
        for index in range(size):
            h.pod(f"g{number}-x-{index}", group=f"g{number}", requests={"cpu": str(draw.randint(1, 4))},
                  priority=1000 if urgent else 1)  # fmt: skip
    return h
