"""Calls a webhook that can take part in every decision (docs/extender.md).

`plugin` implements the hooks, `nodes` the calls about nodes, `wire` the requests and responses, and `objects` converts
the objects of the session. The session provides the port of the webhook (`framework.api.webhook`).
"""

from capcard_sched.plugins.extender.plugin import Extender

__all__ = ["Extender"]
