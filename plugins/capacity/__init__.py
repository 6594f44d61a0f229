"""capacity: elastic queues with guarantee, deserved and capability, flat or as a tree."""

from capcard_sched.plugins.capacity.plugin import Capacity

__all__ = ["Capacity"]
