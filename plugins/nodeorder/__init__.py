"""Node scores of Kubernetes: utilisation, affinity, images, taints, spread (plugins reference §8)."""

from capcard_sched.plugins.nodeorder.plugin import NodeOrder

__all__ = ["NodeOrder"]
