"""Pods of a job near to each other in the network (plugins reference §22, §28)."""

from capcard_sched.plugins.network_topology_aware.plugin import NetworkTopologyAware

__all__ = ["NetworkTopologyAware"]
