"""drf: dominant resource fairness between jobs, and between queues in a hierarchy."""

from capcard_sched.plugins.drf.plugin import Drf

__all__ = ["Drf"]
