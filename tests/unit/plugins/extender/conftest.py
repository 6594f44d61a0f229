"""A webhook that answers, and clients that are closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from capcard_sched.plugins.extender.breaker import Breaker
from capcard_sched.plugins.extender.client import WebhookClient
from tests.unit.plugins.extender.webhook import Webhook


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
        options = {"timeout": 10.0, "budget": 60.0, "connections": 4, "breaker": Breaker(failures, period), **more}
        made.append(WebhookClient(url, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()
