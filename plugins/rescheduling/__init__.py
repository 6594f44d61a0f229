"""Selects pods of loaded nodes to deschedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.framework.eviction.victim_index import protection
from capcard_sched.model.timestamps import parse_duration
from capcard_sched.plugins.rescheduling.arguments import ReschedulingArguments, parse
from capcard_sched.plugins.rescheduling.balance import Sides, node_loads, select_victims, sides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.usage import NodeUsage


class Rescheduling(Plugin):
    """Selects victims on nodes with high measured load for action shuffle, as many as nodes with low load can take.

    The load is that of plugin `usage`. Victims are selected on a node once per measurement, because only the next one
    shows the effect. Pods that may not be evicted are skipped and not counted.
    """

    name = "rescheduling"
    Arguments = ReschedulingArguments
    arguments: ReschedulingArguments
    reads = Reads.USAGE

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._interval = parse_duration(self.arguments.interval)
        self._session: Session
        #: Unix seconds of the last run.
        self._ran_at: float | None = None
        #: Whether to run again after the interval: load was measured since, or a node still has victims.
        self._unfinished = False
        #: Node name to the measurement on which victims were last selected there.
        self._measured: dict[str, NodeUsage] = {}

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> ReschedulingArguments:
        return parse(raw, problems)

    def open(self, session: Session) -> None:
        self._session = session
        self._unfinished |= bool(session.changed.usage)

    def next_wakeup(self) -> float | None:
        """The end of the interval, if there is a reason to run then."""
        return self._ran_at + self._interval if self._unfinished and self._ran_at is not None else None

    def victim_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        """Victims, at most once per interval. O(nodes + pods of the overloaded nodes)."""
        session = self._session
        if self._ran_at is not None and session.now < self._ran_at + self._interval:
            return []
        nodes = node_loads(session.nodes.nodes, session.usage, session.now) if session.usage else []
        if not nodes:
            return []
        self._ran_at, self._unfinished = session.now, False
        self._measured = {name: load for name, load in self._measured.items() if session.usage.get(name) is load}
        movable: dict[str, list[Task]] = {}
        for task in tasks:
            if task.node is not None and not protection(session, task):
                movable.setdefault(task.node.name, []).append(task)
        victims: dict[str, Task] = {}
        for strategy in self.arguments.strategies:
            low, high = sides(nodes, strategy.params)
            fresh = Sides(low, [each for each in high if each.node.name not in self._measured])
            self._unfinished |= bool(fresh.high)
            victims |= {task.uid: task for task in select_victims(fresh, strategy.params, movable)}
        for task in victims.values():
            assert task.node is not None, task
            self._measured[task.node.name] = session.usage[task.node.name]
        return list(victims.values())
