"""Pods of a PodGroup that does not exist get an event, after a grace period."""

from __future__ import annotations

import pytest

from capcard_sched.framework.close.podgroups import GRACE_SECONDS, MissingGroups
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.find import find_job
from capcard_sched.model.intents import UpdatePodCondition
from capcard_sched.testing import Harness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: priority}, {name: gang}]}]
"""
_MISSING_GROUP_EVENT = ("PodGroupNotFound", "PodGroup <default/late> does not exist")


def _cluster() -> Harness:
    h = Harness(_CONF)
    h.node("n1", cpu="8")
    h.queue("q")
    return h


def _missing_group_events(h: Harness, name: str) -> list[tuple[str, str]]:
    return [event for event in h.event_messages("Pod", name) if event[0] == "PodGroupNotFound"]


def test_a_pod_gets_its_event_after_the_grace_period_without_another_change() -> None:
    h = _cluster()
    h.pod("p", group="late")
    first = h.step(now=100.0)
    assert (_missing_group_events(h, "p"), first.next_wakeup) == ([], 100.0 + GRACE_SECONDS)
    h.settle()
    assert h.step(now=99.9 + GRACE_SECONDS).idle
    next_wakeup = h.step(now=100.0 + GRACE_SECONDS)
    assert (next_wakeup.idle, next_wakeup.next_wakeup) == (False, None)
    assert [intent.message for intent in next_wakeup.intents if isinstance(intent, UpdatePodCondition)] == [
        _MISSING_GROUP_EVENT[1]
    ]
    assert set(h.event_messages("Pod", "p")) == {_MISSING_GROUP_EVENT, ("FailedScheduling", _MISSING_GROUP_EVENT[1])}
    assert not h.event_messages("PodGroup", "late"), "there is no object to hang an event on"
    assert h.step(now=1000.0).idle


def test_a_podgroup_that_comes_in_time_silences_it_and_is_scheduled() -> None:
    h = _cluster()
    h.pod("p", group="late")
    h.step(now=100.0)
    h.group("late")
    h.step(now=104.0)
    h.step(now=110.0)
    assert h.binds == {"p": "n1"}
    assert not _missing_group_events(h, "p")


def test_a_podgroup_that_comes_late_is_scheduled_all_the_same() -> None:
    h = _cluster()
    h.pod("p", group="late")
    h.step(now=100.0)
    h.step(now=106.0)
    assert h.pod_message("p") == _MISSING_GROUP_EVENT[1]
    h.group("late")
    assert h.step(now=107.0).next_wakeup is None
    assert h.binds == {"p": "n1"}


def test_a_podgroup_that_goes_is_missed_after_the_grace_by_pods_that_wait() -> None:
    h = _cluster()
    h.group("late", min_member=3)
    h.pod("p", group="late")
    h.step(now=100.0)
    h.delete_group("late")
    h.step(now=200.0)
    assert not _missing_group_events(h, "p")
    h.step(now=205.0)
    assert _missing_group_events(h, "p") == [_MISSING_GROUP_EVENT]
    h.pod("q", group="late")
    h.step(now=206.0)
    assert _missing_group_events(h, "q") == [_MISSING_GROUP_EVENT], "it has been missing for long already"
    assert h.pod_message("q") == _MISSING_GROUP_EVENT[1]


@pytest.mark.parametrize("pod", [{"node": "n1"}, {"schedulingGates": [{"name": "wait"}]}], ids=["runs", "gated"])
def test_pods_that_do_not_wait_for_us_miss_nothing(pod: dict[str, object]) -> None:
    h = _cluster()
    h.pod("p", group="late", **pod)  # type: ignore[arg-type]
    assert h.step(now=100.0).next_wakeup is None
    h.node("n2", cpu="1")
    h.step(now=200.0)
    assert not h.event_messages("Pod", "p")


def test_a_missing_podgroup_is_reported_again_at_intervals_and_costs_nothing_between() -> None:
    h = _cluster()
    h.pod("p", group="late")
    for now in (100.0, 105.0):
        h.step(now=now)
    for now, times in ((110.0, 1), (250.0, 1), (406.0, 2), (500.0, 2)):
        h.node("n1", cpu="8", labels={"at": str(now)})
        result = h.step(now=now)
        assert len(_missing_group_events(h, "p")) == times
        assert not any(isinstance(intent, UpdatePodCondition) for intent in result.intents)


def test_explain_reports_a_missing_group_at_once() -> None:
    h = _cluster()
    h.pod("p", group="late")
    h.step()
    job = find_job(h.core.snapshot(), "default", "p")
    assert job is not None
    assert diagnose_job(h.core.snapshot(), job).summary == _MISSING_GROUP_EVENT[1]


def test_a_clock_that_is_set_back_prolongs_no_grace_period() -> None:
    h = _cluster()
    h.pod("p", group="late")
    h.step(now=100.0)
    missing, jobs = MissingGroups(), h.state.groups_missing
    assert not missing.update(jobs, 1000.0)
    assert not missing.update(jobs, 500.0)
    assert missing.next_wakeup == 500.0 + GRACE_SECONDS
    assert list(missing.update(jobs, 500.0 + GRACE_SECONDS)) == ["default/late"]
