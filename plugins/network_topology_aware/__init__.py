"""Places the pods of a job close to each other in the network."""

from capcard_sched.plugins.network_topology_aware.plugin import NetworkTopologyAware

__all__ = ["NetworkTopologyAware"]
