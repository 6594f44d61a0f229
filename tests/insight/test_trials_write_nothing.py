"""Trials write no metric, event or status: those on copies of the core, and those inside a session."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

import pytest

from capcard_sched.daemon.observability.metric_samples import sample_core
from capcard_sched.framework.toolkit.device_cards import DeviceStateCounts
from capcard_sched.insight.diagnosis.explain import explain, find
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.insight.trials.forked_copy import in_copy
from capcard_sched.insight.trials.trial import advance, with_actions
from capcard_sched.model.trials import StateDifference
from capcard_sched.testing import Harness
from tests.insight.test_trial import node, queue

_CARD: Final = "NVIDIA-H200"
_CONF: Final = """
actions: "enqueue, {actions}"
tiers:
- plugins: [{{name: priority}}, {{name: gang, enablePreemptable: false}}, {{name: conformance}}]
- plugins: [{{name: predicates}}, {{name: capacity-card}}, {{name: drf}}, {{name: nodeorder}}]
"""
_REFUSALS: Final = "capacity_card_refusals_total"
_WITH: Final = {
    "allocate": "allocate, backfill",
    "evictions": "allocate, backfill, preempt, reclaim",
    "compared HyperNodes": "allocate, preempt, reclaim",
}


def _cluster(kind: str) -> Harness:
    """Jobs that run, that wait for a quota, for nodes and for admission, and one that may evict."""
    h = Harness(_CONF.format(actions=_WITH[kind]))
    for name in ("n1", "n2", "n3"):
        h.gpu_node(name, card=_CARD, count=8)
    h.priority_class("urgent", 1000)
    h.queue("q", cards={_CARD: 16}, capability={"cpu": "400", "memory": "4Ti"})
    h.queue("other", cards={_CARD: 8}, capability={"cpu": "400", "memory": "4Ti"})
    for name, of in (("n1", "q"), ("n2", "q"), ("n3", "q")):
        h.group(f"runs-{name}", queue=of, phase="Running")
        for each in range(4):
            h.pod(f"{name}-{each}", group=f"runs-{name}", card=_CARD, cards=2, node=name, phase="Running")
    for name, cards, priority in (("small", 1, 0), ("urgent", 4, 1000), ("large", 99, 0)):
        h.group(name, queue="q", phase="Inqueue", min_member=2, priority_class="urgent" if priority else "")
        for each in range(2):
            h.pod(f"{name}-{each}", group=name, card=_CARD, cards=cards, priority=priority)
    h.group("reclaims", queue="other", phase="Inqueue", min_member=2)
    for each in range(2):
        h.pod(f"reclaims-{each}", group="reclaims", card=_CARD, cards=4)
    h.group("late", queue="q", min_member=1, annotations={"volcano.sh/card.request": f'{{"{_CARD}": 40}}'})
    if kind == "compared HyperNodes":
        h.hyper_node("s1", 1, nodes=["n1", "n2"])
        h.hyper_node("s2", 1, nodes=["n3"])
        h.group("near", queue="q", phase="Inqueue", min_member=2, topology={"mode": "hard", "highestTierAllowed": 1})
        for each in range(2):
            h.pod(f"near-{each}", group="near", card=_CARD, cards=5)
    return h


def _refusals(h: Harness) -> Counter[tuple[str, str, str]]:
    samples = dict(sample_core(h.core.snapshot(), DeviceStateCounts()).plugins)["capacity-card"]
    found = [one for one in samples if one.name == _REFUSALS]
    labels = "queue_name", "hook", "reason"
    return Counter({(*map(one.labels.__getitem__, labels),): int(one.value) for one in found})  # type: ignore[misc]


@pytest.mark.parametrize("kind", _WITH)
def test_the_counter_of_refusals_has_those_of_sessions_alone(kind: str) -> None:
    """Trial evictions, nominations, comparisons of HyperNodes and the reasons for autoscalers call the same hooks."""
    h, before = _cluster(kind), Counter[tuple[str, str, str]]()
    seen = 0
    for number in range(4):
        h.group(f"more-{number}", queue="q", phase="Inqueue")
        h.pod(f"more-{number}", group=f"more-{number}", card=_CARD, cards=1)
        report, now = h.step().report, _refusals(h)
        recorded = {
            (ref, refusal.hook): (refusal.queue, refusal.hook, refusal.reason)
            for ref, refusal in report.refusals
            if refusal.plugin == "capacity-card"
        }
        assert now - before == Counter(recorded.values())
        seen, before = seen + len(recorded), now
    assert seen > 4


@pytest.mark.parametrize("kind", _WITH)
def test_trials_on_copies_leave_metrics_events_and_statuses_alone(kind: str) -> None:
    """Of two equal clusters the trials run on one: both go on alike."""
    tried, alone = _cluster(kind), _cluster(kind)
    objects = DeltaObjects(list(tried._deltas))
    for h in (tried, alone):
        h.step()
    before = sample_core(tried.core.snapshot(), DeviceStateCounts())
    assert dict(before.plugins)["capacity-card"]
    done = 0
    for name in ("small", "urgent", "large", "late", "reclaims"):
        subject = find(tried.core, objects, "default", name)
        assert subject is not None
        found = explain(tried.core, objects, subject, tried.now, fix=True)
        done += found.fixes is not None and found.fixes.trials > 0
    assert done > 1, "trials ran"
    conf = with_actions(tried.core.snapshot().conf, ("preempt", "reclaim"))
    for changes in ([], [queue(40)], [node("n9"), queue(40)]):
        in_copy(partial(advance, tried.core, tried.now, changes, conf=conf), StateDifference)
    assert sample_core(tried.core.snapshot(), DeviceStateCounts()) == before
    for number in range(3):
        for h in (tried, alone):
            h.group(f"more-{number}", queue="q", phase="Inqueue")
            h.pod(f"more-{number}", group=f"more-{number}", card=_CARD, cards=1)
        one, other = tried.step(), alone.step()
        assert one.intents == other.intents
        assert one.report.refusals == other.report.refusals
    samples = [sample_core(h.core.snapshot(), DeviceStateCounts()) for h in (tried, alone)]
    assert samples[0] == samples[1]
