"""Filters and scores nodes by the NUMA alignment of exclusive CPUs."""

from capcard_sched.plugins.numa_aware.plugin import NumaAware

__all__ = ["NumaAware"]
