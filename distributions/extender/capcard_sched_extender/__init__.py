"""Calls a webhook that can take part in every decision (docs/extender.md).

`plugin` implements the hooks, `nodes` the calls about nodes, `wire` the requests and responses; `objects` converts the
objects of the session, `client` sends requests through the port in `port`. Only `client` does I/O.
"""

from capcard_sched_extender.plugin import Extender

__all__ = ["Extender"]
