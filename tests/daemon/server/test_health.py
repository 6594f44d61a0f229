"""Liveness, slow cycles and readiness."""

from __future__ import annotations

from capcard_sched.daemon.observability.health import LIST_SECONDS, Health
from tests.clock import Clock


def make(period: float = 1.0) -> tuple[Health, Clock]:
    clock = Clock()
    return Health(period, clock), clock


def test_a_standby_is_alive_and_not_slow_however_long_nothing_happens() -> None:
    health, clock = make()
    health.lists_applied()
    clock.now += 1e6
    assert (health.liveness_error(), health.slow_cycle(), health.cycle_age()) == ("", "", 0.0)


def test_liveness_fails_only_when_the_scheduler_thread_has_ended() -> None:
    health, clock = make()
    health.leads(leading=True)
    clock.now += 1e6
    assert health.liveness_error() == "", "the initial lists take long"
    health.lists_applied()
    clock.now += 1e6
    assert health.liveness_error() == "", "a session takes long"
    health.alive = lambda: False
    assert health.liveness_error() == "the scheduler thread is dead"


def test_a_leader_whose_cycles_stop_is_slow_after_ten_periods_or_half_a_minute() -> None:
    for period, limit in ((0.1, 30.0), (1.0, 30.0), (6.0, 60.0)):
        health, clock = make(period)
        health.lists_applied()
        health.leads(leading=True)
        clock.now += limit
        assert health.slow_cycle() == ""
        assert health.cycle_age() == limit
        clock.now += 0.5
        assert "no scheduling cycle completed" in health.slow_cycle()
        assert f"limit {limit:.0f} s" in health.slow_cycle()
        health.cycle_done()
        assert health.slow_cycle() == ""


def test_a_new_leader_has_the_whole_time_for_its_first_cycle() -> None:
    health, clock = make()
    health.lists_applied()
    clock.now += 1e6
    health.leads(leading=True)
    assert health.slow_cycle() == ""
    clock.now += 31
    health.leads(leading=True)  # repeated: no new term
    assert health.slow_cycle()
    health.leads(leading=False)
    assert health.slow_cycle() == ""


def test_a_leader_that_lists_again_has_more_time() -> None:
    health, clock = make()
    health.lists_applied()
    health.leads(leading=True)
    clock.now += 20
    health.lists_outdated()
    clock.now += LIST_SECONDS
    assert health.slow_cycle() == ""
    clock.now += 1
    assert "initial lists" in health.slow_cycle()
    health.lists_applied()
    assert health.slow_cycle() == ""


def test_ready_means_that_the_lists_are_applied_not_that_one_leads() -> None:
    health, _ = make()
    not_yet = {"lists-applied": "the lists are not applied yet"}
    assert health.readiness() == not_yet
    health.leads(leading=True)
    assert health.readiness() == not_yet
    health.leads(leading=False)
    health.lists_applied()
    assert health.readiness() == {"lists-applied": ""}
    health.lists_outdated()
    assert health.readiness() == not_yet


def test_losing_the_lease_during_a_relist_leaves_readiness_unchanged() -> None:
    health, _ = make()
    health.leads(leading=True)
    health.leads(leading=False)
    assert not health.synced, "it never listed anything"
    health.lists_applied()
    health.leads(leading=True)
    health.lists_outdated()
    health.leads(leading=False)
    assert health.readiness() == {"lists-applied": ""}


def test_readiness_names_every_missing_condition() -> None:
    health, _ = make()
    lists = {"list/nodes": "", "list/pods": "forbidden"}
    health.steps = lambda: lists
    assert health.readiness() == {**lists, "lists-applied": "the lists are not applied yet"}
    health.lists_applied()
    assert health.readiness() == {"list/nodes": "", "list/pods": "", "lists-applied": ""}, "a watch that broke later"
