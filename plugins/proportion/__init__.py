"""proportion: each queue deserves a share of the cluster by weight, up to its request."""

from capcard_sched.plugins.proportion.plugin import Proportion

__all__ = ["Proportion"]
