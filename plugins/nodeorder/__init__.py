"""Scores nodes as kube-scheduler does: utilization, affinity, images, taints, spread."""

from capcard_sched.plugins.nodeorder.plugin import NodeOrder

__all__ = ["NodeOrder"]
