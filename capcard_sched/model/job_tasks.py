"""Defaults of the tasks of a vcjob that the controller, admission and the checks share."""

from __future__ import annotations

from typing import Any


def partition_minimum(policy: Any) -> int | None:
    """Pods of the minimum of partitions (`partitionPolicy`): minPartitions x partitionSize; None without a minimum."""
    if not isinstance(policy, dict):
        return None
    least, size = policy.get("minPartitions"), policy.get("partitionSize")
    valid = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in (least, size))
    return int(least) * int(size) if valid else None  # type: ignore[arg-type]


def default_minimum(replicas: int, policy: Any) -> int:
    """`minAvailable` of a task that has none: that of its partitions, else all its pods."""
    least = partition_minimum(policy)
    return replicas if least is None else least
