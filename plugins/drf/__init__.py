"""Dominant resource fairness between jobs, and between queues in a hierarchy (plugins reference §4)."""

from capcard_sched.plugins.drf.plugin import Drf

__all__ = ["Drf"]
