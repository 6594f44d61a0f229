"""The steps of /readyz."""

from __future__ import annotations

from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.observer import LoggingObserver
from capcard_sched.daemon.observability.readiness import steps
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection
from capcard_sched.kube.fence import Fence
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.kinds import KINDS

CLIENT = Client(Connection("http://127.0.0.1:9", None, lambda: None, "default"))


def test_each_list_is_named_with_the_last_trouble_of_its_watch() -> None:
    telling = LoggingObserver(Metrics(), lambda _: None)
    kinds = [kind for kind in KINDS if kind.name in {"Node", "Pod"}]
    feed = Informers(CLIENT, lambda _: None, telling, kinds)
    fresh = {"list/nodes": "not listed yet", "list/pods": "not listed yet"}
    assert steps(feed, telling, None) == fresh
    for event in ("unreachable", "forbidden", "refused"):
        telling.watch("pods", event, "why")
        assert steps(feed, telling, None) == {**fresh, "list/pods": event}
    telling.watch("pods", "listed", "3 objects")
    telling.watch("nodes", "restarted", "after version 7")
    assert steps(feed, telling, None) == fresh, "a list that was asked for again"


def test_the_probe_of_the_fence_is_a_step_where_there_is_a_fence() -> None:
    telling = LoggingObserver(Metrics(), lambda _: None)
    feed = Informers(CLIENT, lambda _: None, telling, [])
    fence = Fence(CLIENT, namespace="default", on_change=lambda state, sentence: None)
    assert steps(feed, telling, fence) == {"fence-probed": ""}
    fence.probing = True
    assert steps(feed, telling, fence) == {"fence-probed": "the probe of the fencing policy is in progress"}
