"""Node checks of Kubernetes: selectors, taints, ports, pod affinity, topology spread (plugins reference §5)."""

from capcard_sched.plugins.predicates.plugin import Predicates

__all__ = ["Predicates"]
