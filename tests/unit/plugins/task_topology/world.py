"""A job with a task topology and some nodes, for tests."""

from __future__ import annotations

import json
from typing import Any

from capcard_sched.framework.session.session import Session
from capcard_sched.model.annotations import (
    TASK_TOPOLOGY_AFFINITY,
    TASK_TOPOLOGY_ANTI_AFFINITY,
    TASK_TOPOLOGY_TASK_ORDER,
)
from capcard_sched.plugins.task_topology import JobBuckets, TaskTopology
from capcard_sched.testing import Harness


def conf(*others: str, **arguments: Any) -> str:
    plugins = [{"name": name} for name in ("gang", *others)]
    tier = {"plugins": [*plugins, {"name": "task-topology", "arguments": arguments}]}
    return json.dumps({"actions": "allocate, backfill", "tiers": [tier, {"plugins": [{"name": "predicates"}]}]})


def notes(affinity: str | None = None, anti: str | None = None, order: str | None = None) -> dict[str, str]:
    given_ = {
        TASK_TOPOLOGY_AFFINITY: affinity,
        TASK_TOPOLOGY_ANTI_AFFINITY: anti,
        TASK_TOPOLOGY_TASK_ORDER: order,
    }
    return {key: text for key, text in given_.items() if text is not None}


class World:
    """A job `g` of pods named `<role>-<n>` and some nodes."""

    def __init__(self, pods: dict[str, int], *, cpu: str = "1", conf_: str | None = None, **topology: str) -> None:
        self.h = h = Harness(conf_ or conf())
        h.queue("q")
        h.group("g", annotations=notes(**topology), min_member=sum(pods.values()))
        for role, count in pods.items():
            for index in range(count):
                h.pod(f"{role}-{index}", role=role, requests={"cpu": cpu})

    def nodes(self, **cpu: int) -> World:
        for name, amount in cpu.items():
            self.h.node(name, cpu=str(amount))
        return self

    def bound(self, pod: str, node: str, cpu: str = "1") -> World:
        self.h.pod(pod, role=pod.partition("-")[0], requests={"cpu": cpu}, node=node)
        return self

    def open(self) -> Session:
        self.session = self.h.session()
        return self.session

    @property
    def plugin(self) -> TaskTopology:
        found = self.h.plugin("task-topology")
        assert isinstance(found, TaskTopology)
        return found

    @property
    def job(self) -> JobBuckets:
        return self.plugin._jobs["default/g"]

    def buckets(self) -> list[list[str]]:
        """Names of the tasks in each bucket, sorted."""
        tasks = self.session.snapshot.tasks_by_uid
        return [
            sorted(tasks[uid].name for uid, bucket in self.job.of.items() if bucket is one) for one in self.job.buckets
        ]


def snapshot(job: JobBuckets) -> Any:
    """Everything that a placement may change."""
    return {role: dict(rows) for role, rows in job.placed.items() if rows}, [
        (dict(bucket.bound), bucket.waiting.tolist()) for bucket in job.buckets
    ]
