"""Weighted queues: each deserves a share of the cluster by weight, as far as it asks for it (plugins reference §6)."""

from capcard_sched.plugins.proportion.plugin import Proportion

__all__ = ["Proportion"]
