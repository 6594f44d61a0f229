"""Pods of loaded nodes that shall be started again on idle ones (plugins reference §21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.eviction.victim_index import protection
from capcard_sched.model.timestamps import parse_duration
from capcard_sched.plugins.rescheduling.arguments import ReschedulingArguments, parse
from capcard_sched.plugins.rescheduling.balance import Sides, chosen, sides, standings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.usage import NodeUsage


class Rescheduling(Plugin):
    """Names pods of nodes with much measured load for the shuffle action, as many as nodes with little can take.

    Load is what `usage` looks at. A node gives pods once per measurement: until there is another one, nobody knows what
    came of it. Pods that may not be evicted are passed over, and nothing is counted for them.
    """

    name = "rescheduling"
    Arguments = ReschedulingArguments
    arguments: ReschedulingArguments
    wakes_on = frozenset({"usage"})

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._interval = parse_duration(self.arguments.interval)
        self._session: Session
        #: When nodes were last looked at, Unix seconds.
        self._ran_at: float | None = None
        #: Whether they are to be when the interval is over: load was measured since, or some still had pods to give.
        self._unfinished = False
        #: Node to the measurement on which pods of it were last named.
        self._given: dict[str, NodeUsage] = {}

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> ReschedulingArguments:
        return parse(raw, problems)

    def open(self, session: Session) -> None:
        self._session = session
        self._unfinished |= bool(session.changed.usage)

    def next_wakeup(self) -> float | None:
        """The end of the interval, when there is something to look at then."""
        return self._ran_at + self._interval if self._unfinished and self._ran_at is not None else None

    def victim_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        """Pods to be moved, at most once per interval. O(nodes + pods of the nodes that give)."""
        session = self._session
        if self._ran_at is not None and session.now < self._ran_at + self._interval:
            return []
        nodes = standings(session.nodes.nodes, session.usage, session.now) if session.usage else []
        if not nodes:
            return []
        self._ran_at, self._unfinished = session.now, False
        self._given = {name: said for name, said in self._given.items() if session.usage.get(name) is said}
        movable: dict[str, list[Task]] = {}
        for task in tasks:
            if task.node is not None and not protection(session, task):
                movable.setdefault(task.node.name, []).append(task)
        victims: dict[str, Task] = {}
        for strategy in self.arguments.strategies:
            low, high = sides(nodes, strategy.params)
            news = Sides(low, [each for each in high if each.node.name not in self._given])
            self._unfinished |= bool(news.high)
            victims |= {task.uid: task for task in chosen(news, strategy.params, movable)}
        for task in victims.values():
            assert task.node is not None, task
            self._given[task.node.name] = session.usage[task.node.name]
        return list(victims.values())
