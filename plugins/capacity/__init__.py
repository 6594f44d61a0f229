"""Elastic queues: guaranteed, deserved and most amounts, flat or as a tree (plugins reference §7)."""

from capcard_sched.plugins.capacity.plugin import Capacity

__all__ = ["Capacity"]
