"""Liveness, slow cycles and readiness."""

from __future__ import annotations

import pytest

from capcard_sched.daemon.observability.health import LIST_SECONDS, Health
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.observer import LoggingObserver
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection
from capcard_sched.kube.election import Election
from capcard_sched.kube.fence import Fence
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.kinds import KINDS
from tests.clock import Clock

_NOT_YET = {"lists-applied": "the lists are not applied yet"}
_READY = {"lists-applied": ""}


@pytest.mark.parametrize(
    "story",
    [
        pytest.param("applied, wait 1e6: alive, ok", id="a standby is not slow however long nothing happens"),
        pytest.param(
            "leads, wait 1e6: alive, applied, wait 1e6: alive, dies: dead",
            id="only the end of the scheduler thread is a death, not long lists and not long sessions",
        ),
        pytest.param(
            "applied, leads, wait 30: ok, wait 0.5: slow, cycle: ok", id="a leader is slow after half a minute"
        ),
        pytest.param(
            "applied, wait 1e6, leads: ok, wait 31, leads: slow, stands by: ok",
            id="a new leader has the whole time for its first cycle, a repeated report is no new term",
        ),
        pytest.param(
            f"applied, leads, wait 20, outdated, wait {LIST_SECONDS}: ok, wait 1: initial lists, applied: ok",
            id="a leader that lists again has more time",
        ),
        pytest.param(
            "start: not ready, leads: not ready, stands by, applied: ready, outdated: not ready",
            id="ready means that the lists are applied, not that one leads",
        ),
        pytest.param(
            "leads, stands by: not ready, applied, leads, outdated, stands by: ready",
            id="losing the lease during a relist leaves readiness unchanged",
        ),
    ],
)
def test_health_follows_what_happens(story: str) -> None:
    clock = Clock()
    health = Health(1.0, clock)
    for step in story.split(", "):
        what, _, expected = step.partition(": ")
        match what.split():
            case ["applied"]:
                health.lists_applied()
            case ["outdated"]:
                health.lists_outdated()
            case ["leads"]:
                health.leads(leading=True)
            case ["stands", "by"]:
                health.leads(leading=False)
            case ["cycle"]:
                health.cycle_done()
            case ["dies"]:
                health.alive = lambda: False
            case ["wait", seconds]:
                clock.now += float(seconds)
        match expected:
            case "ok":
                assert health.slow_cycle() == "", step
            case "slow":
                assert "no scheduling cycle completed" in health.slow_cycle(), step
            case "initial lists":
                assert "initial lists" in health.slow_cycle(), step
            case "alive" | "dead":
                assert health.liveness_error() == ("" if expected == "alive" else "the scheduler thread is dead"), step
            case "ready" | "not ready":
                assert health.readiness() == (_READY if expected == "ready" else _NOT_YET), step


@pytest.mark.parametrize(("period", "limit"), [(0.1, 30.0), (1.0, 30.0), (6.0, 60.0)])
def test_the_limit_of_a_cycle_is_ten_periods_or_half_a_minute(period: float, limit: float) -> None:
    clock = Clock()
    health = Health(period, clock)
    assert health.cycle_age() == 0.0
    health.lists_applied()
    health.leads(leading=True)
    clock.now += limit
    assert (health.slow_cycle(), health.cycle_age()) == ("", limit)
    clock.now += 0.5
    assert f"limit {limit:.0f} s" in health.slow_cycle()


def test_readiness_names_every_missing_condition() -> None:
    health = Health(1.0, Clock())
    lists = {"list/nodes": "", "list/pods": "forbidden"}
    health.steps = lambda: lists
    assert health.readiness() == {**lists, **_NOT_YET}
    health.lists_applied()
    assert health.readiness() == {"list/nodes": "", "list/pods": "", **_READY}, "a watch that broke later"


def test_each_list_is_a_step_with_the_last_trouble_of_its_watch_and_so_is_the_probe_of_the_fence() -> None:
    client = Client(Connection("http://127.0.0.1:9", None, lambda: None, "default"))
    observer = LoggingObserver(Metrics(), lambda _: None)
    informers = Informers(client, lambda _: None, observer, [kind for kind in KINDS if kind.name in {"Node", "Pod"}])
    fresh = {"list/nodes": "not listed yet", "list/pods": "not listed yet"}
    assert observer.steps(informers, None) == fresh
    for event in ("unreachable", "forbidden", "refused"):
        observer.watch("pods", event, "why")
        assert observer.steps(informers, None) == {**fresh, "list/pods": event}
    observer.watch("pods", "listed", "3 objects")
    observer.watch("nodes", "restarted", "after version 7")
    election = Election(client, namespace="default", name="lease", identity="a", on_change=lambda _: None)
    fence = Fence(client, election, namespace="default", on_change=lambda state, sentence: None)
    for probing, step in ((False, ""), (True, "the probe of the fencing policy is in progress")):
        fence.probing = probing
        assert observer.steps(informers, fence) == {**fresh, "fence-probed": step}, "a repeated list"
