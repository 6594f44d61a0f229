"""Opens the port of a webhook. The HTTP client is imported with the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capcard_sched.framework.api.webhook import WebhookPort, WebhookSettings


def connect(settings: WebhookSettings) -> WebhookPort:
    """The port of one webhook. It connects with the first call."""
    from capcard_sched.webhook.client import WebhookClient

    return WebhookClient(settings)
