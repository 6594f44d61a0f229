"""The steps of /readyz."""

from __future__ import annotations

from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.observer import LoggingObserver
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection
from capcard_sched.kube.fence import Fence
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.kinds import KINDS

CLIENT = Client(Connection("http://127.0.0.1:9", None, lambda: None, "default"))


def test_each_list_is_named_with_the_last_trouble_of_its_watch() -> None:
    log_observer = LoggingObserver(Metrics(), lambda _: None)
    kinds = [kind for kind in KINDS if kind.name in {"Node", "Pod"}]
    feed = Informers(CLIENT, lambda _: None, log_observer, kinds)
    fresh = {"list/nodes": "not listed yet", "list/pods": "not listed yet"}
    assert log_observer.steps(feed, None) == fresh
    for event in ("unreachable", "forbidden", "refused"):
        log_observer.watch("pods", event, "why")
        assert log_observer.steps(feed, None) == {**fresh, "list/pods": event}
    log_observer.watch("pods", "listed", "3 objects")
    log_observer.watch("nodes", "restarted", "after version 7")
    assert log_observer.steps(feed, None) == fresh, "a repeated list"


def test_the_probe_of_the_fence_is_a_step_where_there_is_a_fence() -> None:
    log_observer = LoggingObserver(Metrics(), lambda _: None)
    feed = Informers(CLIENT, lambda _: None, log_observer, [])
    fence = Fence(CLIENT, namespace="default", on_change=lambda state, sentence: None)
    assert log_observer.steps(feed, fence) == {"fence-probed": ""}
    fence.probing = True
    assert log_observer.steps(feed, fence) == {"fence-probed": "the probe of the fencing policy is in progress"}
