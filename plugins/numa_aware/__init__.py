"""Whole CPUs on as few NUMA nodes as the kubelet's policy asks for (plugins reference §20)."""

from capcard_sched.plugins.numa_aware.plugin import NumaAware

__all__ = ["NumaAware"]
