"""A harness that also remembers what an API server would list: the last of every object, our own writes included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from capcard_sched.framework.core import StepResult
from capcard_sched.framework.session.session_deadline import QueueCut
from capcard_sched.model import deltas
from capcard_sched.model.intents import AnnotateQueue, Bind, UpdatePodGroup, UpdateQueueStatus
from capcard_sched.model.kinds import kind_of_object
from capcard_sched.testing import Harness


class Listed(Harness):
    """`listing()` is a fresh list.

    `echo` is what becomes of bindings: "shown" to the scheduler, "late" (the API server has them, the watch has not
    shown them; `catch_up` does) or "none" (they have not arrived at the API server).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.objects: dict[tuple[str, str], deltas.Delta] = {}
        self.echo: Literal["shown", "late", "none"] = "shown"
        self._late: list[deltas.Delta] = []

    def step(self, now: float | None = None, cuts: Mapping[str, QueueCut] | None = None) -> StepResult:
        self._keep(self._deltas)
        result = super().step(now, cuts)
        for intent in result.intents:
            self._write(intent)
        return result

    def listing(self) -> list[deltas.Delta]:
        return list(self.objects.values())

    def deliver(self) -> None:
        """Hand in everything that is under way, without a session."""
        self._keep(self._deltas)
        for delta in self._deltas:
            self.state.apply(delta)
        self._deltas.clear()

    def _keep(self, changes: list[deltas.Delta]) -> None:
        for delta in changes:
            match delta:
                case deltas.ObjectGone(kind, namespace, name):
                    self.objects.pop((kind, f"{namespace}/{name}"), None)
                case deltas.ObjectChanged(obj):
                    meta = obj.metadata
                    self.objects[kind_of_object(obj), f"{meta.namespace or ''}/{meta.name}"] = delta
                case _:
                    raise TypeError(delta)

    def _write(self, intent: object) -> None:
        """The object that results from a status write."""
        match intent:
            case UpdatePodGroup():
                key = ("PodGroup", f"{intent.namespace}/{intent.name}")
                group: Any = self.objects.get(key)
                if group is None:
                    return
                status = msgspec.structs.replace(
                    group.object.status,
                    phase=intent.phase,
                    running=intent.running,
                    succeeded=intent.succeeded,
                    failed=intent.failed,
                    conditions=intent.conditions,
                )
                change: deltas.Delta = deltas.ObjectChanged(msgspec.structs.replace(group.object, status=status))
            case UpdateQueueStatus() | AnnotateQueue():
                queue: Any = self.objects.get(("Queue", f"/{intent.name}"))
                if queue is None:
                    return
                change = self._queue(queue.object, intent)
            case _:
                return
        self._deltas.append(change)
        self._keep([change])

    @staticmethod
    def _queue(queue: Any, intent: UpdateQueueStatus | AnnotateQueue) -> deltas.Delta:
        if isinstance(intent, UpdateQueueStatus):
            status = msgspec.structs.replace(queue.status, allocated=intent.allocated)
            return deltas.ObjectChanged(msgspec.structs.replace(queue, status=status))
        notes = {**(queue.metadata.annotations or {}), **intent.annotations}
        notes = {key: value for key, value in notes.items() if value is not None}
        return deltas.ObjectChanged(
            msgspec.structs.replace(queue, metadata=msgspec.structs.replace(queue.metadata, annotations=notes))
        )

    def _bound(self, bind: Bind) -> None:
        if self.echo == "none":
            return
        super()._bound(bind)
        if self.echo == "late":
            self._late.append(self._deltas.pop())
            self._keep(self._late[-1:])

    def catch_up(self) -> None:
        """The watch shows what it owes."""
        self._deltas[:0] = self._late
        self._late.clear()
