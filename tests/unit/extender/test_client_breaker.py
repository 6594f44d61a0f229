"""The circuit breaker: its state, its messages, and its effects (docs/extender.md)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

import pytest

from capcard_sched_extender.client import Breaker, WebhookClient
from capcard_sched_extender.port import BreakerState
from tests.unit.extender.webhook import (
    YES,
    Raw,
    Webhook,
    call_webhook,
    cluster,
    conf,
    failures,
    metric,
    state_of,
)

pytestmark = pytest.mark.processes


def test_a_breaker_opens_tries_once_and_closes() -> None:
    breaker = Breaker(3, 10.0)
    assert not breaker.failed(0.0)
    assert not breaker.failed(1.0)
    breaker.succeeded()
    assert not breaker.failed(2.0)
    assert not breaker.failed(3.0)
    assert breaker.failed(4.0)  # the third in a row
    assert not breaker.allows(13.9)
    assert breaker.state(14.0) is BreakerState.HALF_OPEN
    assert breaker.allows(14.0)
    assert not breaker.allows(14.0)  # one call tries
    assert not breaker.failed(15.0)
    assert breaker.state(24.9) is BreakerState.OPEN
    assert breaker.allows(25.0)
    assert breaker.succeeded()
    assert breaker.state(25.0) is BreakerState.CLOSED
    assert breaker.allows(25.0)
    assert breaker.failures == 0


def test_a_call_that_was_cut_short_leaves_the_trial_to_the_next() -> None:
    breaker = Breaker(1, 10.0)
    breaker.failed(0.0)
    assert breaker.allows(10.0)
    breaker.abandoned()
    assert breaker.allows(10.0)


def test_a_failure_of_a_call_that_was_under_way_does_not_keep_it_open_longer() -> None:
    breaker = Breaker(1, 10.0)
    breaker.failed(0.0)
    breaker.failed(9.0)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN


def test_a_breaker_of_no_failures_never_opens() -> None:
    breaker = Breaker(0, 10.0)
    assert not any(breaker.failed(0.0) for _ in range(100))
    assert breaker.allows(0.0)


def test_a_webhook_that_keeps_failing_is_left_alone_and_comes_back(
    webhook: Webhook, client_of: Callable[..., WebhookClient], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "capcard_sched.plugins.extender")
    webhook.replies = {"predicate": Raw(b"", 503)}
    client = client_of(webhook.url, failures=3, period=0.3, consequence="it counts as rejecting")
    for _ in range(5):
        call_webhook(client)
    assert len(webhook.received) == 3
    assert state_of(client) is BreakerState.OPEN
    assert failures(client) == {"status": 3, "breaker": 2}
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2  # the first failure, and that it is left alone
    assert re.search(r"failed 3 times in a row.*until it responds, it counts as rejecting\. .*code 503", logged[1])
    time.sleep(0.35)
    assert state_of(client) is BreakerState.HALF_OPEN
    assert [answer.kind for answer in call_webhook(client, 4)] == ["status", "breaker", "breaker", "breaker"]
    assert len(webhook.received) == 4
    webhook.replies = {"predicate": {}}
    time.sleep(0.35)
    assert call_webhook(client, 4) == [YES] * 4
    assert state_of(client) is BreakerState.CLOSED
    assert caplog.records[-1].getMessage() == "the extender responds again: predicate"
    assert len(caplog.records) == 3


def test_a_webhook_that_fails_now_and_then_does_not_fill_the_log(
    webhook: Webhook, client_of: Callable[..., WebhookClient], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "capcard_sched.plugins.extender")
    client = client_of(webhook.url, failures=3)
    for code in (500, 200) * 5:
        webhook.replies = {"predicate": Raw(b"{}", code)}
        call_webhook(client)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert failures(client) == {"status": 5}


def test_calls_that_wait_for_a_connection_are_not_made_once_the_breaker_is_open(
    webhook: Webhook, client_of: Callable[..., WebhookClient]
) -> None:
    webhook.replies = {"predicate": Raw(b"", 500)}
    client = client_of(webhook.url, failures=2, connections=1)
    assert [answer.kind for answer in call_webhook(client, 6)] == ["status"] * 2 + ["breaker"] * 4
    assert len(webhook.received) == 2


@pytest.mark.parametrize("ignorable", [True, False])
def test_while_the_breaker_is_open_ignorable_decides(webhook: Webhook, ignorable: bool) -> None:
    webhook.replies = {"ready": Raw(b"", 500)}
    h = cluster(conf(webhook.url, "ready", ignorable=ignorable, breakerFailures=1, breakerPeriod="1h"))
    h.session()
    plugin, job = h.plugin("extender"), h.job("g")
    assert [plugin.job_ready(job) for _ in range(3)] == [ignorable] * 3
    assert len(webhook.received) == 1
    assert metric(h, "extender_breaker_state") == 2
    assert metric(h, "extender_calls_total", verb="ready") == 1
    assert metric(h, "extender_failures_total", verb="ready", reason="status") == 1
    assert metric(h, "extender_failures_total", verb="ready", reason="breaker") == 2
    assert metric(h, "extender_seconds_total", verb="ready") > 0
