"""A webhook that may take part in every decision (plugins reference §16, §28; docs/extender.md).

`plugin` answers the hooks, `nodes` asks about nodes, `wire` is what is sent and understood, `objects` turns our objects
into that, `breaker` says when the webhook is left alone, and `client`, the only module that calls out, talks to it.
"""

from capcard_sched.plugins.extender.plugin import Extender

__all__ = ["Extender"]
