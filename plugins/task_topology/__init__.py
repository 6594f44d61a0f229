"""Task affinity and anti-affinity inside a job."""

from capcard_sched.plugins.task_topology.plugin import TaskTopology

__all__ = ["TaskTopology"]
