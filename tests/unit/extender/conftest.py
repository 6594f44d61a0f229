"""A webhook that answers, and clients that are closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from capcard_sched_extender.client import WebhookClient
from capcard_sched_extender.port import WebhookSettings
from tests.unit.extender.webhook import Webhook


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """A webhook that lets every pod go everywhere."""
    with Webhook(predicate={}) as running:
        yield running


@pytest.fixture
def client_of() -> Iterator[Callable[..., WebhookClient]]:
    """Makes a client of a URL; `failures` and `period` are those of its breaker."""
    made: list[WebhookClient] = []

    def make(url: str, *, failures: int = 0, period: float = 60.0, **more: Any) -> WebhookClient:
        settings = WebhookSettings(url, 10.0, 60.0, 4, breaker_failures=failures, breaker_period=period)
        made.append(WebhookClient(settings._replace(**more)))
        return made[-1]

    yield make
    for client in made:
        client.close()
