"""capcard-sched: a batch scheduler for Kubernetes GPU clusters with quotas per card model."""

__version__ = "0.1.0"
