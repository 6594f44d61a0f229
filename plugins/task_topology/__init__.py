"""Tasks of a job that want to be together, or apart (plugins reference §19)."""

from capcard_sched.plugins.task_topology.plugin import TaskTopology

__all__ = ["TaskTopology"]
