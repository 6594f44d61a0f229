"""Filters nodes as kube-scheduler does: selectors, taints, ports, pod affinity, topology spread, volumes."""

from capcard_sched.plugins.predicates.plugin import Predicates

__all__ = ["Predicates"]
